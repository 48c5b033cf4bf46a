//! Connections of our own: opened late, used by one call at a time, thrown away when a call is dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Result};
use sqlx::AssertSqlSafe;
use sqlx::ConnectOptions;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteRow, SqliteSynchronous,
};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use crate::config::TableName;
use crate::error::sqlite as errors;

/// How long SQLite itself waits for another writer, on the thread of the connection.
///
/// Short, since it goes on when the call has been dropped: a try must not take the name long after its
/// caller has given up and withdrawn. The patience is in [`Slot::rows`], which ends with the call. Short
/// also because SQLite's own pauses grow to 100 ms, and ours do not.
const STATEMENT_WAIT: Duration = Duration::from_millis(10);

/// The pause between two tries of a busy file.
const PAUSE: Duration = Duration::from_millis(1);

/// One database file: how to open it, and the words for what goes wrong with it.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) table: TableName,
    pub(super) create_table: Arc<str>,
    options: SqliteConnectOptions,
    busy_limit: Duration,
}

impl File {
    pub(super) fn new(
        options: SqliteConnectOptions,
        table: TableName,
        create_table: Arc<str>,
        busy_limit: Duration,
    ) -> Self {
        let options = options
            .busy_timeout(STATEMENT_WAIT)
            // A lease that a power cut takes back would be granted twice.
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        Self {
            path: options.get_filename().to_path_buf(),
            table,
            create_table,
            options,
            busy_limit,
        }
    }

    pub(super) fn error(&self, error: sqlx::Error) -> Error {
        errors::map(error, &self.path, &self.table, &self.create_table)
    }

    /// A connection for `prepare`, which may make the file if the options say so.
    pub(super) async fn open_first(&self) -> Result<SqliteConnection, sqlx::Error> {
        self.options.connect().await
    }

    /// A connection to the file that `prepare` has seen. It is never made here: an empty file in place of
    /// one that was removed would grant what is held.
    async fn open(&self) -> Result<Open, sqlx::Error> {
        let identity = identity(&self.path);
        let connection = self
            .options
            .clone()
            .create_if_missing(false)
            .connect()
            .await?;
        Ok(Open {
            connection,
            identity,
        })
    }

    /// Repeats `step` while other writers hold the file, until it has its answer or the limit is over.
    pub(super) async fn patiently<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let started = Instant::now();
        loop {
            match step().await {
                Ok(value) => return Ok(value),
                Err(error) if !errors::is_busy(&error) => return Err(self.error(error)),
                Err(error) if started.elapsed() >= self.busy_limit => {
                    return Err(errors::busy(&self.path, error));
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

#[derive(Debug)]
struct Open {
    connection: SqliteConnection,
    identity: Option<(u64, u64)>,
}

/// Which file stands at a path. A connection to a file that was removed or replaced goes on working on
/// what nobody else can see: two holders. One look at the folder, a microsecond on a local disk.
#[cfg(unix)]
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Elsewhere a file that is open cannot be removed.
#[cfg(not(unix))]
pub(crate) fn identity(_: &Path) -> Option<(u64, u64)> {
    Some((0, 0))
}

/// The place of one connection.
#[derive(Debug, Default)]
pub(super) struct Slot(Mutex<Option<Open>>);

impl Slot {
    /// Runs `sql` (one round trip, also when it is more than one statement) and answers all rows.
    ///
    /// All of them, always: a statement that is left before its end commits where its error is lost.
    pub(super) async fn rows(
        &self,
        file: &File,
        sql: &Arc<str>,
        arguments: SqliteArguments,
    ) -> Result<Vec<SqliteRow>> {
        file.patiently(|| self.rows_once(file, sql, arguments.clone()))
            .await
    }

    async fn rows_once(
        &self,
        file: &File,
        sql: &Arc<str>,
        arguments: SqliteArguments,
    ) -> Result<Vec<SqliteRow>, sqlx::Error> {
        // Between two tries the place is free, so that no call stands behind the patience of another.
        let mut place = self.0.lock().await;
        // Taken out for the call: dropped midway, it goes with the future.
        let mut open = match place.take() {
            Some(open) if open.identity.is_some() && open.identity == identity(&file.path) => open,
            _ => file.open().await?,
        };
        let result = sqlx::query_with(AssertSqlSafe(Arc::clone(sql)), arguments)
            .fetch_all(&mut open.connection)
            .await;
        match &result {
            Ok(_) => *place = Some(open),
            // Nothing was begun; the connection is as it was.
            Err(error) if errors::is_busy(error) => *place = Some(open),
            Err(_) => {}
        }
        result
    }

    pub(super) async fn close(&self) {
        // Dropping it closes it on its own thread, and undoes what was not committed.
        drop(self.0.lock().await.take());
    }
}
