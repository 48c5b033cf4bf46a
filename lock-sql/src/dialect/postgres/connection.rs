//! Connections of our own: opened late, used by one call at a time, thrown away when a call is dropped.
//! One that is still being opened is kept for the next call.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Nonce, Result};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::values::{Value, bind, render};
use crate::dialect::opening::Opening;
use crate::error::postgres as errors;
use crate::error::postgres::Words;

/// How long the server works on one statement; below any sensible request timeout, so that nothing is
/// granted long after its caller has given up.
const STATEMENT_LIMIT: Duration = Duration::from_millis(1500);

/// How often a statement is repeated that was undone because of others.
const CONFLICTS: usize = 5;

/// The setting by which a connection finds out that it has reached a session of its own: a pooler that
/// shares sessions cannot pass it on.
pub(super) const MARK: &str = "lockkit.session";

/// When a session began, in microseconds.
const SINCE: &str = "(extract(epoch FROM backend_start) * 1000000)::bigint";

/// How long a session that was left may take to end by itself; then it is ended.
const TO_END: Duration = Duration::from_millis(200);

/// How long a withdrawal waits for such sessions at most.
const UNTIL_GONE: Duration = Duration::from_secs(1);

/// One server and how to reach it.
pub(super) struct Server {
    options: PgConnectOptions,
    lock_wait: Duration,
    pub(super) words: Words,
    pooled: AtomicBool,
    warned: AtomicBool,
}

/// The options are left out: their own form shows the password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("words", &self.words)
            .field("lock_wait", &self.lock_wait)
            .field("pooled", &self.pooled)
            .finish_non_exhaustive()
    }
}

/// A session of the server: its process, and since when, in microseconds.
type Session = (i64, i64);

/// Sessions whose last statement nobody heard the end of.
#[derive(Clone, Debug, Default)]
struct Left(Arc<std::sync::Mutex<Vec<Session>>>);

impl Left {
    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        // Nothing panics while it is held; what it guards is sound all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct Open {
    connection: PgConnection,
    /// Whether its session is ours alone: prepared statements, settings and `LISTEN` stay.
    own: bool,
    session: Session,
    /// A statement was sent and not answered.
    busy: bool,
    left: Left,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Whose session it is, behind a pooler, nobody knows.
        if self.busy && self.own {
            self.left.list().push(self.session);
        }
    }
}

impl Server {
    pub(super) fn new(options: PgConnectOptions, lock_wait: Duration, words: Words) -> Self {
        let named = options.get_application_name().is_some();
        let mut options = options
            .disable_statement_logging()
            // Poolers refuse what they do not know at the start.
            .extra_float_digits(None);
        if !named {
            options = options.application_name("lockkit");
        }
        Self {
            options,
            lock_wait,
            words,
            pooled: AtomicBool::new(false),
            warned: AtomicBool::new(false),
        }
    }

    fn is_loopback(&self) -> bool {
        let host = self.options.get_host();
        self.options.get_socket().is_some()
            || host.starts_with('/')
            || host == "localhost"
            || host
                .trim_matches(['[', ']'])
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback())
    }

    /// The options with our settings, and the mark to look for.
    ///
    /// The planner's are there because a plan is kept: made while the table was empty, it would go on
    /// reading the whole table.
    fn own_session(&self) -> (PgConnectOptions, String) {
        let mark = Nonce::random().to_string();
        let lock_wait = self.lock_wait.as_millis().to_string();
        let limit = STATEMENT_LIMIT.as_millis().to_string();
        let options = self.options.clone().options([
            ("lock_timeout", lock_wait.as_str()),
            ("statement_timeout", limit.as_str()),
            ("default_transaction_isolation", "read committed"),
            // A lease that a crash takes back would be granted twice.
            ("synchronous_commit", "on"),
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("jit", "off"),
            // A peer that is gone without a word must not keep a session for hours.
            ("tcp_keepalives_idle", "15"),
            ("tcp_keepalives_interval", "5"),
            ("tcp_keepalives_count", "3"),
            (MARK, mark.as_str()),
        ]);
        (options, mark)
    }

    /// What stands before each statement where settings do not stay.
    fn preamble(&self) -> String {
        format!(
            "SET LOCAL transaction_isolation = 'read committed'; SET LOCAL lock_timeout = {}; \
             SET LOCAL statement_timeout = {}; SET LOCAL synchronous_commit = 'on'; ",
            self.lock_wait.as_millis(),
            STATEMENT_LIMIT.as_millis()
        )
    }

    /// A connection to a server that can write.
    pub(super) async fn open(self: Arc<Self>) -> Result<Open> {
        let (own, mark) = self.own_session();
        let mut connection = None;
        if !self.pooled.load(Ordering::Relaxed) {
            match own.connect().await {
                Ok(open) => connection = Some(open),
                Err(error) if errors::is_pooler(&error) => self.is_pooled(),
                Err(error) => return Err(self.words.connecting(error)),
            }
        }
        let mut connection = match connection {
            Some(connection) => connection,
            None => {
                let plain = self.options.connect().await;
                plain.map_err(|e| self.words.connecting(e))?
            }
        };
        // Text, since it is not known yet who answers.
        let about = sqlx::raw_sql(AssertSqlSafe(format!(
            "SELECT coalesce(current_setting('{MARK}', true), '') AS mark, pg_is_in_recovery() AS replica, \
             coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS secure, \
             pid::bigint AS pid, {SINCE} AS since FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        )));
        let about = about.fetch_one(&mut connection).await;
        let about = about.map_err(|e| self.words.connecting(e))?;
        let read = |e| self.words.connecting(e);
        if about.try_get::<bool, _>("replica").map_err(read)? {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} is a replica, which cannot grant; name the primary",
                    self.words.server
                ),
            )
            .with_indeterminate(false));
        }
        let own = about.try_get::<String, _>("mark").map_err(read)? == mark;
        if !own {
            self.is_pooled();
        }
        let checked = matches!(
            self.options.get_ssl_mode(),
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull
        );
        let secure = checked || own && about.try_get::<bool, _>("secure").map_err(read)?;
        if !secure && !self.is_loopback() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                server = %self.words.server,
                "the connection is not encrypted; set sslmode=verify-full in the URL"
            );
        }
        let session = (
            about.try_get("pid").map_err(read)?,
            about.try_get("since").map_err(read)?,
        );
        Ok(Open {
            connection,
            own,
            session,
            busy: false,
            left: Left::default(),
        })
    }

    /// The options and the mark of a session for a listener; `None` when there can be none.
    pub(super) fn listening(&self) -> Option<(PgConnectOptions, String)> {
        (!self.pooled.load(Ordering::Relaxed)).then(|| self.own_session())
    }

    fn is_pooled(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
            tracing::info!(
                server = %self.words.server,
                "a pooler shares its sessions among clients: statements go as text, and waiting polls"
            );
        }
    }

    async fn run(
        &self,
        open: &mut Open,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        open.busy = true;
        let answer = if open.own {
            sqlx::query_with(AssertSqlSafe(Arc::clone(sql)), bind(values))
                .fetch_all(&mut open.connection)
                .await
        } else {
            let text = self.preamble() + &render(sql, values);
            sqlx::raw_sql(AssertSqlSafe(text))
                .fetch_all(&mut open.connection)
                .await
        };
        open.busy = matches!(&answer, Err(error) if errors::code(error).is_none());
        answer
    }

    /// Statements as text, all in one transaction, on a connection that is closed then.
    pub(super) async fn once(&self, open: &mut Open, text: &str) -> Result<Vec<PgRow>> {
        sqlx::raw_sql(AssertSqlSafe(text.to_owned()))
            .fetch_all(&mut open.connection)
            .await
            .map_err(|e| self.words.map(e))
    }
}

/// The place of one connection.
#[derive(Debug, Default)]
pub(super) struct Slot {
    seat: Mutex<Seat>,
    left: Left,
}

/// A connection is open, or is being opened, or neither.
#[derive(Debug, Default)]
struct Seat {
    open: Option<Open>,
    opening: Opening<Result<Open>>,
}

impl Slot {
    /// Runs `sql`, one round trip, and answers all rows.
    ///
    /// Every statement of ours may be repeated: a try by its nonce, a renewal by its term, an end because
    /// it then finds nothing. So one that met a connection which had died meanwhile (a restart, an idle
    /// limit) is sent again on a new one.
    pub(super) async fn rows(
        &self,
        server: &Arc<Server>,
        sql: &Arc<str>,
        values: &[Value],
    ) -> Result<Vec<PgRow>> {
        let mut seat = self.seat.lock().await;
        let mut conflicts = 0;
        let mut unsure = false;
        let mut fresh = 0;
        loop {
            // Taken out for the call: dropped midway, it goes with the future.
            let mut open = match seat.open.take() {
                Some(open) => open,
                None => {
                    fresh += 1;
                    let open = seat.opening.finish(|| Arc::clone(server).open()).await;
                    let mut open = open.map_err(|e| {
                        let unsure = unsure || e.is_indeterminate();
                        e.with_indeterminate(unsure)
                    })?;
                    open.left = self.left.clone();
                    open
                }
            };
            let error = match server.run(&mut open, sql, values).await {
                Ok(rows) => {
                    seat.open = Some(open);
                    return Ok(rows);
                }
                Err(error) => error,
            };
            if errors::is_conflict(&error) && conflicts < CONFLICTS {
                conflicts += 1;
                seat.open = Some(open);
                continue;
            }
            let pooler = open.own && errors::is_pooler(&error);
            if pooler {
                server.is_pooled();
            }
            let ends = pooler || errors::ends_connection(&error);
            if !ends {
                seat.open = Some(open);
            }
            let error = server.words.map(error);
            unsure |= error.is_indeterminate();
            if ends && fresh == 0 || pooler && fresh < 2 {
                continue;
            }
            return Err(error.with_indeterminate(unsure));
        }
    }

    /// Waits until what was sent here and not answered is over: a session works off what it has read, though
    /// nobody listens any more. Looks through `other`.
    pub(super) async fn settled(&self, server: &Arc<Server>, other: &Self) -> Result<()> {
        let left = self.left.list().clone();
        if left.is_empty() {
            return Ok(());
        }
        let (pids, since): (Vec<_>, Vec<_>) = left.iter().copied().unzip();
        let values = [Value::Integers(pids), Value::Integers(since)];
        let among = format!(
            "FROM pg_stat_activity JOIN unnest($1::bigint[], $2::bigint[]) AS l (pid, since) \
             ON l.pid = pg_stat_activity.pid AND l.since = {SINCE}"
        );
        let look: Arc<str> = format!("SELECT 1 {among}").into();
        let end: Arc<str> =
            format!("SELECT pg_terminate_backend(pg_stat_activity.pid) {among}").into();
        let started = Instant::now();
        let mut ended = false;
        while !other.rows(server, &look, &values).await?.is_empty() {
            if started.elapsed() > UNTIL_GONE {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} still works on a try that nobody waits for",
                        server.words.server
                    ),
                ));
            }
            if started.elapsed() > TO_END && !ended {
                ended = true;
                other.rows(server, &end, &values).await?;
            }
            sleep(Duration::from_millis(5)).await;
        }
        self.left.list().retain(|session| !left.contains(session));
        Ok(())
    }

    pub(super) async fn close(&self) {
        // Dropped, its socket closes, and the server ends the session.
        drop(std::mem::take(&mut *self.seat.lock().await));
    }
}
