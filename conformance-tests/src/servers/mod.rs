//! Real servers for tests, and a proxy to put before them.
//!
//! A server comes from the first of these that there is:
//!
//! 1. a URL in the environment, for [`shared`] only: `LOCK_TEST_POSTGRES_URL`, `LOCK_TEST_MARIADB_URL`, …
//! 2. a server program on this machine, started as an ordinary process on a free loopback port in a temporary folder;
//! 3. a container, with the feature `containers`, if its image is on this machine already.
//!
//! ```no_run
//! use conformance_tests::servers::{self, Kind, Server};
//!
//! # fn main() -> Result<(), servers::Error> {
//! let shared = servers::shared(Kind::Postgres)?; // one for the whole test program
//! println!("{}", shared.url());
//!
//! let mine = Server::postgres().with_setting("max_connections", "50").start()?; // to disturb
//! mine.pause()?;
//! mine.resume()?;
//! mine.kill()?;
//! mine.restart()?; // same port, same data
//! # Ok(())
//! # }
//! ```
//!
//! What was used is told once a program, on a line that begins with `USED `; what there is not, on a line that begins
//! with `SKIPPED `, or by a panic where `LOCK_TEST_REQUIRE` is set (see [`or_skip`]). `LOCK_TEST_SERVERS=container`
//! or `=program` allows only that way.
//!
//! A server ends with its last handle, and also when the test program panics, exits or is killed: a small
//! supervisor notices that the program is gone. Nothing listens beyond 127.0.0.1.
//!
//! All calls block, for a few milliseconds to a few seconds. A test on a single-threaded runtime whose other tasks
//! must go on meanwhile uses `tokio::task::spawn_blocking` with a clone of the server.

mod authority;
mod clock;
#[cfg(feature = "containers")]
mod container;
mod process;
mod program;
mod proxy;
mod ready;
mod server;

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

pub use authority::Authority;
pub use clock::SteppedClock;
pub use proxy::{Direction, Flow, Proxy};
pub use server::{Server, ServerBuilder};

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// Redis.
    Redis,
    /// etcd.
    Etcd,
    /// ZooKeeper.
    ZooKeeper,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::Postgres,
        Self::MariaDb,
        Self::Redis,
        Self::Etcd,
        Self::ZooKeeper,
    ];

    /// The name in lower case, as in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
        }
    }

    /// The variable of the environment that holds `what`, as `LOCK_TEST_POSTGRES_URL`.
    fn variable(self, what: &str) -> String {
        format!("LOCK_TEST_{}_{what}", self.name().to_uppercase())
    }

    /// The value of that variable, if it is set and not empty.
    fn setting(self, what: &str) -> Option<String> {
        std::env::var(self.variable(what))
            .ok()
            .filter(|value| !value.is_empty())
    }

    /// The URL of a server of this kind that needs no password, at a loopback port.
    fn url(self, port: u16) -> String {
        match self {
            Self::Postgres => format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            Self::MariaDb => format!("mysql://root@127.0.0.1:{port}/{}", program::DATABASE),
            Self::Redis => format!("redis://127.0.0.1:{port}"),
            Self::Etcd => format!("etcd://127.0.0.1:{port}"),
            Self::ZooKeeper => format!("zookeeper://127.0.0.1:{port}"),
        }
    }

    /// The package of Debian and Ubuntu that has the program.
    const fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::MariaDb => "mariadb-server",
            Self::Redis => "redis-server",
            Self::Etcd => "etcd-server",
            Self::ZooKeeper => "zookeeper",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a server could not be had, or did not do what was asked.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    missing: bool,
    message: String,
    source: Option<Arc<io::Error>>,
}

impl Error {
    fn missing(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            missing: true,
            message: message.into(),
            source: None,
        }
    }

    fn failed(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            missing: false,
            ..Self::missing(kind, message)
        }
    }

    /// For `map_err`: what was being done, and the cause.
    fn io(kind: Kind, what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |cause| Self {
            source: Some(Arc::new(cause)),
            ..Self::failed(kind, what)
        }
    }

    /// The kind of server.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether this machine has no such server, as opposed to one that did not work.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        self.missing
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|cause| cause as _)
    }
}

/// The server that all tests of this program share; started by the first call.
///
/// For tests that leave it as it is; those that stop or pause theirs use [`ServerBuilder::start`].
///
/// # Errors
/// There is none ([`Error::is_missing`]), or it did not start. Later calls give the same answer.
pub fn shared(kind: Kind) -> Result<Server, Error> {
    static SHARED: [OnceLock<Result<Server, Error>>; Kind::ALL.len()] =
        [const { OnceLock::new() }; Kind::ALL.len()];
    SHARED[kind as usize]
        .get_or_init(|| match kind.setting("URL") {
            Some(url) => Ok(Server::at(kind, url)),
            None => Server::builder(kind).start(),
        })
        .clone()
}

/// Gives the server, or reports that the test is skipped because there is none.
///
/// ```no_run
/// # use conformance_tests::servers::{self, Kind};
/// let Some(server) = servers::or_skip(servers::shared(Kind::Redis)) else { return };
/// ```
///
/// # Panics
/// When the server is there and did not start, and when it is missing and `LOCK_TEST_REQUIRE` is set.
#[must_use]
pub fn or_skip(server: Result<Server, Error>) -> Option<Server> {
    match server {
        Ok(server) => Some(server),
        Err(error) if error.is_missing() && !is_required() => {
            report(&format!("SKIPPED {error}"));
            None
        }
        Err(error) => {
            let cause = error.source.as_deref().map(|cause| format!(": {cause}"));
            panic!("{error}{}", cause.unwrap_or_default())
        }
    }
}

/// Whether a skip is a failure: `LOCK_TEST_REQUIRE` is set and not empty.
fn is_required() -> bool {
    std::env::var_os("LOCK_TEST_REQUIRE").is_some_and(|value| !value.is_empty())
}

/// Writes a line for people and for `scripts/test`, once a program.
///
/// It goes past the test runner's capture, which hides what a passing test prints, and begins with a line end since
/// the runner may have left a line open.
fn report(line: &str) {
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.iter().any(|before| before == line) {
        return;
    }
    told.push(line.to_owned());
    let mut out = io::stdout().lock();
    // With standard output closed there is nobody to tell, and the test's own outcome stands.
    let _ = write!(out, "\n{line}\n").and_then(|()| out.flush());
}
