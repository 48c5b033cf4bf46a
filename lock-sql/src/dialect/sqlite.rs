//! SQLite: one file, several processes of one host.

mod changes;
mod connection;
mod row;
mod statements;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, Error, ErrorKind, Fencing, Lease, LeaseState, LockName, Metadata,
    Observation, Renewal, Result, Token,
};
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};

use self::changes::Watch;
use self::connection::{File, Slot};
use self::statements::{COLUMNS, Statements, bind};
use super::{Changes, Dialect, Tried};
use crate::config::{SqliteConfig, TableName};

pub(crate) use self::connection::identity;

/// What a lease of this store remembers: where it is kept.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) name: LockName,
    pub(crate) place: Arc<Place>,
}

/// The file and the table, for a fenced write on a connection that is not ours.
#[derive(Debug)]
pub(crate) struct Place {
    file: File,
    statements: Statements,
}

impl Place {
    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.file.table
    }

    pub(crate) fn error(&self, error: sqlx::Error) -> Error {
        self.file.error(error)
    }
}

#[derive(Debug)]
pub(crate) struct Sqlite {
    capabilities: Capabilities,
    place: Arc<Place>,
    /// For what a holder sends, which must not stand behind a crowd of tries.
    renewals: Slot,
    attempts: Slot,
    reads: Slot,
    watch: Watch,
}

impl Sqlite {
    pub(crate) fn from_config(config: SqliteConfig) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(&config.path)
            .create_if_missing(config.create);
        Self::new(options, config.table, config.busy_limit)
    }

    pub(crate) fn from_options(options: SqliteConnectOptions, table: TableName) -> Result<Self> {
        let limit = SqliteConfig::new("").busy_limit;
        Self::new(options, table, limit)
    }

    fn new(options: SqliteConnectOptions, table: TableName, busy_limit: Duration) -> Result<Self> {
        let path = options.get_filename().to_string_lossy();
        if path.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the path of the SQLite database is empty; name a file",
            ));
        }
        let in_memory = |(key, value): (_, _)| key == "mode" && value == "memory";
        if path == ":memory:"
            || path.starts_with("file:")
            || options.to_url_lossy().query_pairs().any(in_memory)
        {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "an SQLite database in memory or named by file: cannot be shared; name a plain path, or use \
                 the memory store",
            ));
        }
        let mut capabilities = Capabilities::new("sqlite", Fencing::Checked);
        capabilities.push = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        let statements = Statements::new(&table);
        let file = File::new(options, table, Arc::clone(&statements.create), busy_limit);
        Ok(Self {
            capabilities,
            place: Arc::new(Place { file, statements }),
            renewals: Slot::default(),
            attempts: Slot::default(),
            reads: Slot::default(),
            watch: Watch::default(),
        })
    }

    fn sql(&self) -> &Statements {
        &self.place.statements
    }

    async fn rows(
        &self,
        slot: &Slot,
        sql: &Arc<str>,
        arguments: SqliteArguments,
    ) -> Result<Vec<SqliteRow>> {
        slot.rows(&self.place.file, sql, arguments).await
    }

    /// What a statement has answered is decoded after it took effect.
    fn decoded<T>(&self, value: Result<T, sqlx::Error>) -> Result<T> {
        value.map_err(|e| self.place.file.error(e).with_indeterminate(true))
    }

    /// One try to make what is missing. Nothing is changed before the shape was found right.
    async fn prepare_once(&self) -> Result<Result<()>, sqlx::Error> {
        let file = &self.place.file;
        let mut connection = file.open_first().await?;
        let shape = sqlx::query(AssertSqlSafe(Arc::clone(&self.sql().shape)))
            .fetch_all(&mut connection)
            .await?;
        if let Some(fault) = fault_of(&shape)? {
            return Ok(Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "{} in {} is of another shape: {fault}; name another table, or move this one away",
                    file.table,
                    file.path.display()
                ),
            )));
        }
        let mode: String = scalar(&mut connection, "PRAGMA journal_mode").await?;
        if mode != "wal" {
            let mode: String = scalar(&mut connection, "PRAGMA journal_mode = WAL").await?;
            if mode != "wal" {
                return Ok(Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "{} cannot use WAL (journal mode {mode:?}); put it on a local disk",
                        file.path.display()
                    ),
                )));
            }
        }
        // The last statement changes nothing, and fails where this process may not write: `BEGIN
        // IMMEDIATE` does not.
        let create = format!(
            "BEGIN IMMEDIATE; {}; UPDATE {} SET token = token WHERE false; COMMIT",
            self.sql().create,
            file.table.quoted()
        );
        connection.execute(AssertSqlSafe(create)).await?;
        Ok(Ok(()))
    }
}

async fn scalar(
    connection: &mut SqliteConnection,
    sql: &'static str,
) -> Result<String, sqlx::Error> {
    sqlx::query_scalar(sql).fetch_one(connection).await
}

/// What is wrong with the table that stands there; `None` when it is ours or there is none.
fn fault_of(shape: &[SqliteRow]) -> Result<Option<String>, sqlx::Error> {
    let Some(first) = shape.first() else {
        return Ok(None);
    };
    let kind: Option<String> = first.try_get("kind")?;
    if kind.as_deref() != Some("table") {
        return Ok(Some(format!(
            "it is a {}",
            kind.as_deref().unwrap_or("virtual table")
        )));
    }
    let mut found = BTreeMap::new();
    for row in shape {
        let name: String = row.try_get("name")?;
        let kind: String = row.try_get("type")?;
        let required: bool = row.try_get("required")?;
        let key: i64 = row.try_get("pk")?;
        found.insert(name, (kind.to_ascii_uppercase(), required, key));
    }
    for (name, kind) in COLUMNS {
        let key = i64::from(name == "name");
        match found.remove(name) {
            None => return Ok(Some(format!("the column {name} is missing"))),
            Some((is, ..)) if is != kind => {
                return Ok(Some(format!("the column {name} is {is}, not {kind}")));
            }
            Some((_, false, _)) => return Ok(Some(format!("the column {name} may be NULL"))),
            Some((_, true, is)) if is != key => {
                return Ok(Some("its primary key is not the column name alone".into()));
            }
            Some(_) => {}
        }
    }
    Ok(found
        .keys()
        .next()
        .map(|name| format!("it has a column {name} that is not ours")))
}

fn text(value: &str) -> String {
    value.to_owned()
}

#[async_trait]
impl Dialect for Sqlite {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.place.file.patiently(|| self.prepare_once()).await?
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Tried> {
        let ttl = row::millis(claim.ttl);
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, text(claim.name.as_str()));
        bind(&mut arguments, text(claim.owner.as_str()));
        bind(&mut arguments, row::nonce(claim.nonce));
        bind(&mut arguments, ttl);
        bind(&mut arguments, text(claim.metadata.as_str()));
        bind(
            &mut arguments,
            row::integer(claim.min_token.map_or(1, Token::get)),
        );
        // No entry has version 0.
        bind(
            &mut arguments,
            row::integer(claim.if_unchanged.unwrap_or(0)),
        );
        let rows = self
            .rows(&self.attempts, &self.sql().try_acquire, arguments)
            .await?;
        // The first statement answers the token alone, the second the row.
        match rows.first() {
            None => Ok(Tried::Denied(LeaseState::Absent)),
            Some(granted) if granted.len() == 1 => {
                let handle = Arc::new(Handle {
                    name: claim.name.clone(),
                    place: Arc::clone(&self.place),
                });
                Ok(Tried::Granted(Lease::new(
                    claim,
                    self.decoded(row::token(granted))?,
                    Duration::from_millis(ttl.unsigned_abs()),
                    lock_core::Handle::new(handle),
                )))
            }
            Some(seen) => Ok(Tried::Denied(self.decoded(row::state(seen))?)),
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Result<Renewal>>> {
        let (sql, arguments) = self.sql().renew(leases);
        let rows = self.rows(&self.renewals, sql, arguments).await?;
        let mut renewed = BTreeMap::new();
        for row in &rows {
            let nonce: Vec<u8> = self.decoded(row.try_get("nonce"))?;
            let request: String = self.decoded(row.try_get("request"))?;
            // A wish of a later version is no wish.
            renewed.insert(row::nonce_from(&nonce), request.parse().ok());
        }
        Ok(leases
            .iter()
            .map(|lease| {
                Ok(match renewed.get(&Some(lease.nonce())) {
                    Some(request) => Renewal::Renewed {
                        ttl: Duration::from_millis(row::millis(lease.claim().ttl).unsigned_abs()),
                        request: request.clone(),
                    },
                    None => Renewal::Gone,
                })
            })
            .collect())
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, row::stored_name(lease));
        bind(&mut arguments, row::nonce(lease.nonce()));
        bind(&mut arguments, row::integer(lease.token().get()));
        let rows = self
            .rows(&self.renewals, &self.sql().release, arguments)
            .await?;
        rows.first()
            .map_or(Ok(false), |row| self.decoded(row.try_get(0)))
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, text(claim.name.as_str()));
        bind(&mut arguments, row::nonce(claim.nonce));
        self.rows(&self.renewals, &self.sql().withdraw, arguments)
            .await
            .map(drop)
    }

    async fn read(&self, name: &LockName) -> Result<LeaseState> {
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, text(name.as_str()));
        let rows = self.rows(&self.reads, &self.sql().read, arguments).await?;
        rows.first()
            .map_or(Ok(LeaseState::Absent), |row| self.decoded(row::state(row)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, text(prefix));
        let rows = self.rows(&self.reads, &self.sql().list, arguments).await?;
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(name) = self.decoded(row::name(row))? {
                seen.push(Observation::new(name, self.decoded(row::state(row))?));
            }
        }
        Ok(seen)
    }

    async fn revoke(&self, name: &LockName, note: &Metadata) -> Result<Option<Token>> {
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, text(name.as_str()));
        bind(&mut arguments, text(note.as_str()));
        let rows = self
            .rows(&self.attempts, &self.sql().revoke, arguments)
            .await?;
        self.decoded(rows.first().map(row::token).transpose())
    }

    async fn request(&self, name: &LockName, request: &str) -> Result<bool> {
        let mut arguments = SqliteArguments::default();
        bind(&mut arguments, text(name.as_str()));
        bind(&mut arguments, text(request));
        let rows = self
            .rows(&self.attempts, &self.sql().request, arguments)
            .await?;
        Ok(!rows.is_empty())
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let rows = self
            .rows(
                &self.reads,
                &self.sql().server_time,
                SqliteArguments::default(),
            )
            .await?;
        let millis: i64 = match rows.first() {
            Some(row) => self.decoded(row.try_get(0))?,
            None => 0,
        };
        Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let sql = self.sql().sweep(row::millis(unused_for));
        let rows = self
            .rows(&self.attempts, &sql, SqliteArguments::default())
            .await?;
        Ok(rows.len() as u64)
    }

    async fn subscribe(&self, _: &LockName) -> Result<Box<dyn Changes>> {
        Ok(self.watch.subscribe(&self.place.file.path))
    }

    async fn close(&self) {
        for slot in [&self.renewals, &self.attempts, &self.reads] {
            slot.close().await;
        }
    }
}
