//! A store in a PostgreSQL database.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use url::Url;

use super::TableName;
use crate::layout::{Parameters, PeerTable};

/// A store in one table of a PostgreSQL database.
///
/// Its `Debug` form shows neither the password nor any other part of the URL.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETERS`, read when the store is made. What it
    /// leaves out comes from the environment (`PGHOST`, `PGUSER`, `PGPASSWORD`, …) and the password file,
    /// as `psql` has it.
    pub url: String,
    /// The table, in the first schema of the search path.
    #[serde(default)]
    pub table: TableName,
    /// How long a statement waits in the server for a row that another session has locked; 250 ms by
    /// default. Keep it far below the request timeout.
    #[serde(default = "lock_wait")]
    pub lock_wait: Duration,
    /// The table of another system, whose election is joined, in place of one of ours.
    #[serde(default)]
    pub peers: Option<PeerTable>,
}

const fn lock_wait() -> Duration {
    PostgresConfig::DEFAULT_LOCK_WAIT
}

/// What a URL may say beside `table`.
const PARAMETERS: [&str; 11] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
];

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

impl PostgresConfig {
    pub(crate) const DEFAULT_LOCK_WAIT: Duration = Duration::from_millis(250);

    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE` (or `postgresql://`), with the parameters
    /// `sslmode` (`disable`, `allow`, `prefer`, `require`, `verify-ca`, `verify-full`), `sslrootcert`,
    /// `sslcert`, `sslkey`, `host` (a folder for a Unix socket), `application_name`, `options` and `table`; and
    /// for a table of another system `layout` (`leader_leases`, `master_lock`), `peer_skew`, `peer_zone` and
    /// `peer_lease`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for anything else. No part of the URL is repeated but the name of an
    /// unknown parameter.
    pub fn from_url(url: &str) -> Result<Self> {
        let (url, table, peers) = split(url)?;
        let config = Self {
            url: url.to_string(),
            table,
            lock_wait: lock_wait(),
            peers,
        };
        config.options()?;
        Ok(config)
    }

    /// The same store in this table.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.table = table;
        self
    }

    /// The same store with this [`lock_wait`](Self::lock_wait).
    #[must_use]
    pub fn with_lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// The same store in a table of another system; in `table`, if another than the default is named.
    #[must_use]
    pub fn with_peers(mut self, peers: PeerTable) -> Self {
        self.peers = Some(peers);
        self
    }

    pub(crate) fn options(&self) -> Result<PgConnectOptions> {
        use sqlx::ConnectOptions as _;
        let (url, ..) = split(&self.url)?;
        PgConnectOptions::from_url(&url).map_err(|_| {
            bad(
                "the PostgreSQL URL has a parameter with a value that cannot be used (sslmode, port, hostaddr)",
            )
        })
    }
}

/// The URL without our own parameters, and these.
fn split(url: &str) -> Result<(Url, TableName, Option<PeerTable>)> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(bad(
            "not a PostgreSQL URL; write postgres://USER:PASSWORD@HOST:PORT/DATABASE",
        ));
    }
    // The parser's own text would not repeat the URL, but says nothing more that helps.
    let mut url = Url::parse(url).map_err(|_| {
        bad(
            "the PostgreSQL URL cannot be read; percent-encode the special characters of the user and the password",
        )
    })?;
    let mut table = TableName::default();
    let mut peers = Parameters::default();
    let mut rest = Vec::new();
    for (key, value) in url.query_pairs() {
        match key.as_ref() {
            "table" => table = TableName::new(value.as_ref())?,
            key if peers.take(key, &value)? => {}
            known
                if PARAMETERS.contains(&known)
                    || known == "options"
                    || known.starts_with("options[") =>
            {
                rest.push((key.into_owned(), value.into_owned()));
            }
            unknown => {
                return Err(bad(format!(
                    "the PostgreSQL URL has an unknown parameter {unknown:?}; known are table, options, {}, {}",
                    Parameters::NAMES,
                    PARAMETERS.join(", ")
                )));
            }
        }
    }
    url.set_query(None);
    if !rest.is_empty() {
        url.query_pairs_mut().extend_pairs(rest);
    }
    Ok((url, table, peers.table()?))
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("url", &"(hidden)")
            .field("table", &self.table)
            .field("lock_wait", &self.lock_wait)
            .field("peers", &self.peers)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_bad_ones_are_not_repeated() {
        let full = PostgresConfig::from_url(
            "postgresql://me:hunter2@[::1]:5433/app?table=t&sslmode=verify-full",
        )
        .unwrap();
        let options = full.options().unwrap();
        assert_eq!(full.table.as_str(), "t");
        assert_eq!((options.get_port(), options.get_username()), (5433, "me"));
        assert!(!format!("{full:?}").contains("hunter2"));
        let socket = PostgresConfig::from_url("postgres:///app?host=/run/postgresql").unwrap();
        assert!(socket.options().unwrap().get_socket().is_some());
        for bad in [
            "mysql://me:hunter2@h/x",
            "postgres:hunter2",
            "postgres://me:hunter2@h:x/y",
            "postgres://me@h/x?sslmode=hunter2",
            "postgres://me:hunter2@h/x?table=a-b",
            "postgres://me:hunter2@h/x?pasword=hunter2",
            "postgres://me:hunter2@h/x?layout=hunter2",
            "postgres://me:hunter2@h/x?layout=master_lock&peer_skew=hunter2",
        ] {
            let error = PostgresConfig::from_url(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
