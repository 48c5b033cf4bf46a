//! A server, wherever it comes from.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

#[cfg(feature = "containers")]
use super::container::Container;
use super::process::{Identity, Process, wait_until};
use super::program::{Program, Setup, accounts, free_port, give, stop_signal};
use super::{Error, Kind, SteppedClock, ready, report};

/// How long a server may take to start or to stop in good order.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked of a server before it starts; made by [`Server::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct ServerBuilder {
    setup: Setup,
}

impl ServerBuilder {
    /// Adds a setting in the server's own words: `("max_connections", "50")`. The last of a name counts.
    pub fn with_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.setup.settings.push((name.into(), value.into()));
        self
    }

    /// Makes answered writes survive a crash of the machine. Without, they survive a killed server only (Redis: not
    /// even that), and are faster.
    pub const fn durable(mut self) -> Self {
        self.setup.durable = true;
        self
    }

    /// Starts a server of one's own, and waits until it serves: a program of this machine, or else a container.
    ///
    /// # Errors
    /// There is neither ([`Error::is_missing`]), or it did not start; then the end of its log is in the message.
    pub fn start(self) -> Result<Server, Error> {
        let kind = self.setup.kind;
        let only = std::env::var("LOCK_TEST_SERVERS").unwrap_or_default();
        match only.as_str() {
            "program" => return self.start_program(),
            "container" => return self.start_container(),
            "" => {}
            other => {
                let message =
                    format!("LOCK_TEST_SERVERS is {other:?}: set program, container or nothing");
                return Err(Error::failed(kind, message));
            }
        }
        match self.clone().start_program() {
            Err(no_program) if no_program.is_missing() => match self.start_container() {
                Err(no_container) if no_container.is_missing() => {
                    let message = format!("{}; {}", no_program.message, no_container.message);
                    Err(Error::missing(kind, message))
                }
                other => other,
            },
            other => other,
        }
    }

    /// Lets the server see this wall clock. Only one that is started as a program can.
    pub fn with_clock(mut self, clock: SteppedClock) -> Self {
        self.setup.clock = Some(clock);
        self
    }

    /// As [`start`](Self::start), a program of this machine only.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_program(self) -> Result<Server, Error> {
        let kind = self.setup.kind;
        let program = Program::find(kind).ok_or_else(|| {
            let message = format!(
                "no program on this machine: apt-get install {}, or set {}",
                kind.package(),
                kind.variable("URL")
            );
            Error::missing(kind, message)
        })?;
        report(&format!(
            "USED {kind}: program {} {}",
            program.path.display(),
            program.version
        ));

        let identity =
            Identity::ordinary(accounts(kind)).map_err(Error::io(kind, "choose an account"))?;
        let folder = tempfile::Builder::new()
            .prefix(&format!("lock-test-{kind}-"))
            .tempdir()
            .map_err(Error::io(kind, "make a temporary folder"))?;
        give(folder.path(), identity)
            .map_err(Error::io(kind, "make the folder the server's own"))?;
        program.prepare(&self.setup, folder.path(), identity)?;
        let mut local = Local {
            process: None,
            program,
            setup: self.setup,
            identity,
            folder,
        };
        // Another program may take the port between our look and the server's start.
        let mut tries = 3;
        loop {
            let port = free_port().map_err(Error::io(kind, "find a port"))?;
            match local.start(port) {
                Err(error) if tries > 1 && error.message.contains("in use") => tries -= 1,
                Err(error) => return Err(error),
                Ok(()) => {
                    return Ok(Server::new(
                        kind,
                        kind.url(port),
                        Some(port),
                        Source::Local(local),
                    ));
                }
            }
        }
    }

    /// As [`start`](Self::start), a container only. Its image is `LOCK_TEST_POSTGRES_IMAGE` (and so on) or the
    /// official one; it is never fetched.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_container(self) -> Result<Server, Error> {
        let kind = self.setup.kind;
        #[cfg(feature = "containers")]
        {
            let port = free_port().map_err(Error::io(kind, "find a port"))?;
            let container = Container::start(&self.setup, port)?;
            report(&format!("USED {kind}: container {}", container.image()));
            let server = Server::new(
                kind,
                kind.url(port),
                Some(port),
                Source::Container(container),
            );
            server.wait_ready()?;
            Ok(server)
        }
        #[cfg(not(feature = "containers"))]
        Err(Error::missing(
            kind,
            "built without the feature `containers`",
        ))
    }
}

/// A server for tests. Clones are handles of the same one, which ends with the last.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    kind: Kind,
    url: String,
    port: Option<u16>,
    source: Mutex<Source>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the URL: it may hold a password.
        f.debug_struct("Inner")
            .field("kind", &self.kind)
            .field("port", &self.port)
            .field("source", &self.source)
            .finish()
    }
}

#[derive(Debug)]
enum Source {
    /// Somebody else's.
    Url,
    Local(Local),
    #[cfg(feature = "containers")]
    Container(Container),
}

impl Server {
    /// A server of this kind, to be started.
    pub const fn builder(kind: Kind) -> ServerBuilder {
        ServerBuilder {
            setup: Setup {
                kind,
                durable: false,
                settings: Vec::new(),
                clock: None,
            },
        }
    }

    /// PostgreSQL. User `postgres`, no password.
    pub const fn postgres() -> ServerBuilder {
        Self::builder(Kind::Postgres)
    }

    /// MariaDB. User `root`, no password, database `lock_test`.
    pub const fn mariadb() -> ServerBuilder {
        Self::builder(Kind::MariaDb)
    }

    /// Redis.
    pub const fn redis() -> ServerBuilder {
        Self::builder(Kind::Redis)
    }

    /// etcd, one member.
    pub const fn etcd() -> ServerBuilder {
        Self::builder(Kind::Etcd)
    }

    /// ZooKeeper, one member, with a tick of 100 ms so that a session may be as short as 200 ms.
    pub const fn zookeeper() -> ServerBuilder {
        Self::builder(Kind::ZooKeeper)
    }

    fn new(kind: Kind, url: String, port: Option<u16>, source: Source) -> Self {
        let source = Mutex::new(source);
        Self {
            inner: Arc::new(Inner {
                kind,
                url,
                port,
                source,
            }),
        }
    }

    /// The server that the environment names.
    pub(super) fn at(kind: Kind, url: String) -> Self {
        // The URL may hold a password.
        report(&format!("USED {kind}: {}", kind.variable("URL")));
        Self::new(kind, url, None, Source::Url)
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// Where it is, as URL. Stays the same over a restart.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Its port on 127.0.0.1; `None` for a server that the environment names.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.inner.port
    }

    /// The same URL at another port of 127.0.0.1: that of a [`Proxy`](super::Proxy) before this server.
    #[must_use]
    pub fn url_at(&self, port: u16) -> String {
        self.inner.kind.url(port)
    }

    /// The id of the server process; `None` when it does not run or is not ours.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match &*self.source() {
            Source::Local(local) => local.process.as_ref().map(Process::pid),
            _ => None,
        }
    }

    fn source(&self) -> MutexGuard<'_, Source> {
        let source = self.inner.source.lock();
        source.unwrap_or_else(PoisonError::into_inner)
    }

    fn not_ours(&self) -> Error {
        let message = "the environment names this server, so it cannot be disturbed: start one with Server::builder";
        Error::failed(self.kind(), message)
    }

    /// Ends the server in good order, without waiting for its clients. The data stays for [`restart`](Self::restart).
    ///
    /// # Errors
    /// It does not end (it is killed then), or is not ours.
    pub fn stop(&self) -> Result<(), Error> {
        match &mut *self.source() {
            Source::Url => Err(self.not_ours()),
            Source::Local(local) => local.stop(),
            #[cfg(feature = "containers")]
            Source::Container(container) => container.stop(PATIENCE),
        }
    }

    /// Ends the server at once, as a crash does (SIGKILL), also a paused one. The data stays.
    ///
    /// # Errors
    /// It is not ours.
    pub fn kill(&self) -> Result<(), Error> {
        match &mut *self.source() {
            Source::Url => Err(self.not_ours()),
            Source::Local(local) => local.kill(),
            #[cfg(feature = "containers")]
            Source::Container(container) => container.stop(Duration::ZERO),
        }
    }

    /// Holds the server and all its processes where they are: connections stay open, and nothing answers.
    ///
    /// # Errors
    /// It does not run, or is not ours.
    pub fn pause(&self) -> Result<(), Error> {
        match &mut *self.source() {
            Source::Url => Err(self.not_ours()),
            Source::Local(local) => local.on_process("pause", Process::pause),
            #[cfg(feature = "containers")]
            Source::Container(container) => container.pause(),
        }
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// It does not run, or is not ours.
    pub fn resume(&self) -> Result<(), Error> {
        match &mut *self.source() {
            Source::Url => Err(self.not_ours()),
            Source::Local(local) => local.on_process("resume", Process::resume),
            #[cfg(feature = "containers")]
            Source::Container(container) => container.resume(),
        }
    }

    /// Starts the server again on the same port and data, and waits until it serves. One that runs is stopped first.
    ///
    /// # Errors
    /// It does not start, or is not ours.
    pub fn restart(&self) -> Result<(), Error> {
        match &mut *self.source() {
            Source::Url => return Err(self.not_ours()),
            Source::Local(local) => {
                local.stop()?;
                local.start(self.inner.port.unwrap_or_default())?;
            }
            #[cfg(feature = "containers")]
            Source::Container(container) => {
                container.stop(PATIENCE)?;
                container.start_again()?;
            }
        }
        self.wait_ready()
    }

    /// All that the server has logged since it was made.
    ///
    /// # Errors
    /// The log cannot be read, or the server is not ours.
    pub fn logs(&self) -> Result<String, Error> {
        match &*self.source() {
            Source::Url => Err(self.not_ours()),
            Source::Local(local) => local.log().map_err(Error::io(self.kind(), "read the log")),
            #[cfg(feature = "containers")]
            Source::Container(container) => container.logs(),
        }
    }

    /// Waits until the server serves a client that logs in; looks every few milliseconds.
    ///
    /// # Errors
    /// It does not within a minute.
    pub fn wait_ready(&self) -> Result<(), Error> {
        let Some(port) = self.inner.port else {
            return Ok(());
        };
        let mut last = None;
        let ready = wait_until(PATIENCE, || match ready::probe(self.kind(), port) {
            Ok(()) => true,
            Err(error) => {
                last = Some(error);
                false
            }
        });
        match last {
            Some(error) if !ready => {
                let log = self.logs().unwrap_or_default();
                let what = format!("not ready after {PATIENCE:?}; its log ends: {}", tail(&log));
                Err(Error::io(self.kind(), what)(error))
            }
            _ => Ok(()),
        }
    }
}

/// A server that runs as a process of this machine.
#[derive(Debug)]
struct Local {
    /// Before the folder: the process ends before its folder is removed.
    process: Option<Process>,
    program: Program,
    setup: Setup,
    identity: Option<Identity>,
    folder: TempDir,
}

impl Local {
    fn start(&mut self, port: u16) -> Result<(), Error> {
        let kind = self.setup.kind;
        let folder = self.folder.path();
        let failed = |what| Error::io(kind, what);
        let command = self
            .program
            .command(&self.setup, folder, port)
            .map_err(failed("lay its configuration"))?;
        let before = self.log().map_err(failed("read the log"))?.len();
        let process = Process::start(folder, &log_of(folder), self.identity, &command)
            .map_err(failed("start it under /bin/sh and setpriv"))?;
        let process = self.process.insert(process);

        let started = Instant::now();
        let outcome = loop {
            match process.has_ended() {
                Err(error) => break Err(failed("look after it")(error)),
                Ok(true) => break Err(Error::failed(kind, "ended while it started")),
                Ok(false) => {}
            }
            match ready::probe(kind, port) {
                // Looked at again: it may be somebody else who answers at this port.
                Ok(()) if process.has_ended().is_ok_and(|ended| !ended) => break Ok(()),
                Ok(()) => {}
                Err(error) if started.elapsed() > PATIENCE => {
                    break Err(Error::io(kind, format!("not ready after {PATIENCE:?}"))(
                        error,
                    ));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        outcome.map_err(|error| {
            self.process = None;
            let log = self.log().unwrap_or_default();
            let message = format!(
                "{}; its log ends: {}",
                error.message,
                tail(log.get(before..).unwrap_or_default())
            );
            Error { message, ..error }
        })
    }

    fn stop(&mut self) -> Result<(), Error> {
        let kind = self.setup.kind;
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        let failed = Error::io(kind, "stop it");
        match process.end(stop_signal(kind), PATIENCE) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::failed(
                kind,
                format!("did not stop within {PATIENCE:?}; killed"),
            )),
            Err(error) => Err(failed(error)),
        }
    }

    fn kill(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(mut process) => process
                .kill()
                .map_err(Error::io(self.setup.kind, "kill it")),
            None => Ok(()),
        }
    }

    fn on_process(
        &mut self,
        what: &str,
        order: impl FnOnce(&mut Process) -> io::Result<()>,
    ) -> Result<(), Error> {
        match &mut self.process {
            Some(process) => order(process).map_err(Error::io(self.setup.kind, what)),
            None => Err(Error::failed(
                self.setup.kind,
                format!("cannot {what} it: it does not run"),
            )),
        }
    }

    fn log(&self) -> io::Result<String> {
        match fs::read(log_of(self.folder.path())) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error),
        }
    }
}

fn log_of(folder: &Path) -> std::path::PathBuf {
    folder.join("log")
}

/// The last lines of a log, in one line.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.trim().lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
