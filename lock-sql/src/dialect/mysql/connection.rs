//! Connections of our own: opened late, used by one call at a time, thrown away when a call is dropped.
//! One that is still being opened is kept for the next call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use lock_core::{Error, ErrorKind, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlQueryResult, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::row;
use crate::config::TableName;
use crate::dialect::opening::Opening;
use crate::error::mysql as errors;

/// How long a call asks again that lost to others (a deadlock, a row locked for too long), if its caller
/// does not give up first.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause before it asks again.
const PAUSE: Duration = Duration::from_millis(2);

/// A connection that was idle for longer is asked whether it still stands: servers and what is between
/// end idle ones without a word.
const IDLE: Duration = Duration::from_secs(10);

/// What the session is told. Waiting in the server is bounded by the least it offers, a second: a try
/// whose caller has gone must not take the name much later.
const SESSION: &str = "SET NAMES utf8mb4; \
     SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
     autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1; \
     SHOW VARIABLES WHERE Variable_name IN ('version', 'log_bin', 'binlog_format', 'wsrep_on'); \
     SHOW SESSION STATUS LIKE 'Ssl_cipher'; \
     SELECT SLEEP(0.001), SYSDATE(6) > NOW(6)";

/// Readers of committed rows lock nothing. A binary log of statements does not allow it.
const READ_COMMITTED: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED";

/// One server: how to reach it, and the words for what goes wrong there.
#[derive(Debug)]
pub(super) struct Server {
    options: Options,
    pub(super) table: TableName,
    pub(super) create: String,
    warned: AtomicBool,
}

/// They hold the password.
struct Options(MySqlConnectOptions);

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Options(..)")
    }
}

/// What this server can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    pub(super) skip_locked: bool,
    /// Its named locks are seen by all: the nodes of a Galera cluster do not share theirs.
    pub(super) named_locks: bool,
}

impl Features {
    fn of(version: &str, galera: bool) -> Self {
        let mut parts = version
            .split(|c: char| !c.is_ascii_digit())
            .map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0_u32);
        let version_of = (next(), next(), next());
        let skips_since = if version.contains("MariaDB") {
            (10, 6, 0)
        } else {
            (8, 0, 1)
        };
        Self {
            skip_locked: version_of >= skips_since,
            named_locks: !galera,
        }
    }
}

/// What is sent in one round trip.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// One statement or more.
    Text(String),
    /// One statement, which the server reads once for each connection.
    Prepared(Arc<str>, Vec<Value>),
}

/// What stands for a question mark.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Bytes(Vec<u8>),
    Integer(i64),
}

impl From<String> for Request {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// What one statement of a request has answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<MySqlRow>,
    /// Rows that its condition found, changed or not.
    pub(super) found: u64,
    /// The id that it left with `LAST_INSERT_ID`.
    pub(super) id: u64,
}

impl Answer {
    fn to(end: &MySqlQueryResult) -> Self {
        Self {
            rows: Vec::new(),
            found: end.rows_affected(),
            id: end.last_insert_id(),
        }
    }
}

/// Why a request failed, and whether the server can have got it.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: sqlx::Error,
    sent: bool,
}

impl Failure {
    fn before(error: sqlx::Error) -> Self {
        Self { error, sent: false }
    }
}

#[derive(Debug)]
pub(super) struct Open {
    connection: MySqlConnection,
    pub(super) features: Features,
    used: Instant,
}

impl Server {
    pub(super) fn new(options: MySqlConnectOptions, table: TableName, create: String) -> Self {
        let options = options
            // All of it in one request of our own.
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .set_names(false)
            .charset("utf8mb4")
            .disable_statement_logging();
        Self {
            options: Options(options),
            table,
            create,
            warned: AtomicBool::new(false),
        }
    }

    pub(super) fn host(&self) -> &str {
        self.options.0.get_host()
    }

    pub(super) fn error(&self, failure: Failure) -> Error {
        let error = errors::map(failure.error, self.host(), &self.table, &self.create);
        if failure.sent {
            error
        } else {
            error.with_indeterminate(false)
        }
    }

    /// A row that is not ours, found after the statement took effect.
    pub(super) fn undecodable(&self, error: sqlx::Error) -> Error {
        self.error(Failure { error, sent: true })
            .with_indeterminate(true)
    }

    pub(super) async fn open(self: Arc<Self>) -> Result<Result<Open>, Failure> {
        let mut connection = self.options.0.connect().await.map_err(Failure::before)?;
        let answers = run(&mut connection, SESSION)
            .await
            .map_err(Failure::before)?;
        let mut version = String::new();
        let (mut logs, mut logs_statements, mut galera) = (false, false, false);
        let mut cipher = String::new();
        for shown in answers.iter().take(4).flat_map(|a| &a.rows) {
            let cell = |n| row::shown(shown, n).map_err(Failure::before);
            let value = cell(1)?;
            match cell(0)?.as_str() {
                "version" => version = value,
                "log_bin" => logs = value == "ON",
                "wsrep_on" => galera = value == "ON",
                "binlog_format" => logs_statements = value == "STATEMENT",
                _ => cipher = value,
            }
        }
        let moves = answers.last().and_then(|a| a.rows.first());
        let moves = moves.map_or(Ok(String::new()), |r| row::shown(r, 1));
        if moves.map_err(Failure::before)? != "1" {
            return Ok(Err(Error::new(
                ErrorKind::Unsupported,
                "the server was started with --sysdate-is-now, so that a statement that waits cannot tell how \
                 long; start it without that option",
            )));
        }
        if !(logs && logs_statements) {
            run(&mut connection, READ_COMMITTED)
                .await
                .map_err(Failure::before)?;
        }
        if cipher.is_empty() && !self.is_local() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                host = self.host(),
                "the connection to the database is not encrypted; add ?ssl-mode=VERIFY_IDENTITY to the URL"
            );
        }
        Ok(Ok(Open {
            connection,
            features: Features::of(&version, galera),
            used: Instant::now(),
        }))
    }

    fn is_local(&self) -> bool {
        let host = self.host().trim_matches(['[', ']']);
        self.options.0.get_socket().is_some()
            || host == "localhost"
            || host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback())
    }
}

impl Open {
    pub(super) async fn run(&mut self, request: &Request) -> Result<Vec<Answer>, sqlx::Error> {
        let result = match request {
            Request::Text(sql) => run(&mut self.connection, sql).await,
            Request::Prepared(sql, values) => {
                let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
                for value in values {
                    query = match value {
                        Value::Bytes(bytes) => query.bind(bytes),
                        Value::Integer(number) => query.bind(number),
                    };
                }
                let end = query.execute(&mut self.connection).await;
                end.map(|end| vec![Answer::to(&end)])
            }
        };
        self.used = Instant::now();
        result
    }

    /// Whether it still stands; asked when it was idle for this long.
    pub(super) async fn stands(&mut self, idle: Duration) -> bool {
        self.used.elapsed() < idle || self.connection.ping().await.is_ok()
    }

    /// Says good-bye, which keeps the server's log clean; nothing is lost without.
    pub(super) async fn close(self) {
        if let Err(error) = self.connection.close().await {
            tracing::debug!(%error, "closing a connection failed; it was dropped");
        }
    }
}

/// Runs one request of one or more statements and answers for each.
pub(super) async fn run(
    connection: &mut MySqlConnection,
    sql: &str,
) -> Result<Vec<Answer>, sqlx::Error> {
    let mut answers = Vec::new();
    let mut rows = Vec::new();
    let mut stream = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(&mut *connection);
    while let Some(part) = stream.try_next().await? {
        match part {
            Either::Right(row) => rows.push(row),
            Either::Left(end) => answers.push(Answer {
                rows: std::mem::take(&mut rows),
                ..Answer::to(&end)
            }),
        }
    }
    Ok(answers)
}

fn rollback() -> Request {
    Request::Text("ROLLBACK".to_owned())
}

/// The place of one connection.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<Seat>);

/// A connection is open, or is being opened, or neither.
#[derive(Debug, Default)]
struct Seat {
    open: Option<Open>,
    opening: Opening<Result<Result<Open>, Failure>>,
}

impl Slot {
    /// Runs the request that `write` makes for this server, again while it loses to others.
    pub(super) async fn run(
        &self,
        server: &Arc<Server>,
        write: impl Fn(Features) -> Request + Send + Sync,
    ) -> Result<Vec<Answer>> {
        let started = Instant::now();
        loop {
            match self.once(server, &write).await {
                Ok(answer) => return answer,
                Err(failure)
                    if errors::lost_to_others(&failure.error) && started.elapsed() < PATIENCE =>
                {
                    sleep(PAUSE).await;
                }
                Err(failure) => return Err(server.error(failure)),
            }
        }
    }

    async fn once(
        &self,
        server: &Arc<Server>,
        write: impl Fn(Features) -> Request + Send + Sync,
    ) -> Result<Result<Vec<Answer>>, Failure> {
        let mut seat = self.0.lock().await;
        // Taken out for the call: dropped midway, it goes with the future.
        let mut open = seat.open.take();
        if let Some(idle) = &mut open
            && !idle.stands(IDLE).await
        {
            open = None;
        }
        let mut open = match open {
            Some(open) => open,
            None => match seat.opening.finish(|| Arc::clone(server).open()).await? {
                Ok(open) => open,
                Err(refused) => return Ok(Err(refused)),
            },
        };
        let request = write(open.features);
        match open.run(&request).await {
            Ok(answers) => {
                seat.open = Some(open);
                Ok(Ok(answers))
            }
            Err(error) => {
                // What was begun is undone; where that is not sure, the connection goes.
                if errors::lost_to_others(&error) && open.run(&rollback()).await.is_ok() {
                    seat.open = Some(open);
                }
                Err(Failure { error, sent: true })
            }
        }
    }

    pub(super) async fn close(&self) {
        let seat = std::mem::take(&mut *self.0.lock().await);
        if let Some(open) = seat.open {
            open.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_tell_what_a_server_can_do() {
        for skips in [
            "10.11.6-MariaDB-0+deb12u1-log",
            "10.6.0-MariaDB",
            "8.0.36",
            "8.4.0-commercial",
        ] {
            assert!(Features::of(skips, false).skip_locked, "{skips}");
        }
        for waits in ["10.5.9-MariaDB", "5.7.44-log", ""] {
            assert!(!Features::of(waits, false).skip_locked, "{waits}");
        }
    }
}
