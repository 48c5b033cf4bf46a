//! The store: what is alike on every database.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Holder, Lease, LeaseState, LockName,
    LockPersistence, Metadata, Observation, Operation, Release, Renewal, Request, Result, Token,
};
use tokio::sync::watch;

use crate::dialect::{CHUNK, Dialect, Tried};

/// How often a try is repeated that was denied by an entry which was free a moment later.
const RACES: usize = 4;

/// Leases in one table of an SQL database.
///
/// It opens its own connections, when they are first needed, and never takes one of an application's
/// pool. Wrap it in an [`Arc`](std::sync::Arc) and hand it to a [`Provider`](lock_core::Provider).
#[derive(Debug)]
pub struct SqlPersistence {
    dialect: Box<dyn Dialect>,
    closed: watch::Sender<bool>,
}

#[cfg(feature = "postgres")]
impl SqlPersistence {
    /// The store in one table of a PostgreSQL database. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the URL cannot be used, or for a table name of more than 50 bytes.
    pub fn postgres(config: &crate::PostgresConfig) -> Result<Self> {
        match &config.peers {
            Some(peers) => crate::dialect::postgres::layout::open(config, peers).map(Self::over),
            None => crate::dialect::postgres::Postgres::from_config(config).map(Self::over),
        }
    }

    /// The store in the PostgreSQL database that an application's options name, in connections of its own.
    ///
    /// The options stand, but for settings of the session that leases depend on (isolation, timeouts,
    /// `synchronous_commit`, the planner's) and the logging of statements. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a table name of more than 50 bytes.
    pub fn from_postgres_options(
        options: sqlx::postgres::PgConnectOptions,
        table: crate::TableName,
    ) -> Result<Self> {
        crate::dialect::postgres::Postgres::from_options(options, table).map(Self::over)
    }
}

#[cfg(feature = "sqlite")]
impl SqlPersistence {
    /// The store in one SQLite file. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the path cannot be a database file.
    pub fn sqlite(config: crate::SqliteConfig) -> Result<Self> {
        crate::dialect::sqlite::Sqlite::from_config(config).map(Self::over)
    }

    /// The store in the SQLite file that an application's options name, in connections of its own.
    ///
    /// Of the options, `synchronous` (always FULL), `journal_mode` (always WAL), the busy timeout and the
    /// logging of statements are replaced; the rest stands. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a database in memory: every connection would see its own.
    pub fn from_sqlite_options(
        options: sqlx::sqlite::SqliteConnectOptions,
        table: crate::TableName,
    ) -> Result<Self> {
        crate::dialect::sqlite::Sqlite::from_options(options, table).map(Self::over)
    }
}

#[cfg(feature = "mysql")]
impl SqlPersistence {
    /// The store in one table of a MySQL or MariaDB database. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when no database is named.
    pub fn mysql(config: &crate::MySqlConfig) -> Result<Self> {
        match &config.peers {
            Some(peers) => crate::dialect::mysql::layout::open(config, peers).map(Self::over),
            None => crate::dialect::mysql::MySql::from_config(config).map(Self::over),
        }
    }

    /// The store in the database that an application's options name, in connections of its own.
    ///
    /// Of the options, character set, SQL mode, time zone and the logging of statements are replaced; the
    /// rest stands. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when no database is named.
    pub fn from_mysql_options(
        options: sqlx::mysql::MySqlConnectOptions,
        table: crate::TableName,
    ) -> Result<Self> {
        crate::dialect::mysql::MySql::from_options(options, table).map(Self::over)
    }
}

impl SqlPersistence {
    fn over(dialect: impl Dialect + 'static) -> Self {
        Self {
            dialect: Box::new(dialect),
            closed: watch::Sender::new(false),
        }
    }

    fn open(&self) -> Result<()> {
        if *self.closed.borrow() {
            return Err(
                Error::new(ErrorKind::Unavailable, "the store was closed").with_retryable(false)
            );
        }
        Ok(())
    }

    /// Says where an error came up.
    fn at<T>(&self, operation: Operation, name: Option<&LockName>, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let error = error
                .with_backend(self.dialect.capabilities().backend)
                .with_operation(operation);
            match name {
                Some(name) => error.with_name(name.clone()),
                None => error,
            }
        })
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        self.open()?;
        let range = self.dialect.capabilities().ttl;
        if !(range.min..=range.max).contains(&claim.ttl) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a ttl of {:?} cannot be kept; give it {:?} to {:?}",
                    claim.ttl, range.min, range.max
                ),
            ));
        }
        let mut last = None;
        for _ in 0..RACES {
            match self.dialect.try_acquire(claim).await? {
                Tried::Granted(lease) => return Ok(Attempt::Granted(lease)),
                Tried::Denied(LeaseState::Held(holder)) => return Ok(Attempt::Held(holder)),
                Tried::Denied(LeaseState::Expired(holder)) if claim.if_unchanged.is_some() => {
                    return Ok(Attempt::Held(holder));
                }
                Tried::Denied(LeaseState::Expired(holder)) => last = Some(holder),
                Tried::Denied(_) => {}
            }
        }
        last.map(Attempt::Held).ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                "others were faster each time; try again",
            )
        })
    }

    /// Resolves when `stale` is false, looking after each change; with an error when the store is closed.
    async fn until(
        &self,
        name: &LockName,
        stale: impl Fn(&LeaseState) -> bool + Send + Sync,
    ) -> Result<()> {
        self.unless_closed(async {
            let mut changes = self.dialect.subscribe(name).await?;
            while stale(&self.dialect.read(name).await?) {
                changes.changed().await?;
            }
            Ok(())
        })
        .await
    }

    async fn unless_closed(&self, look: impl Future<Output = Result<()>> + Send) -> Result<()> {
        self.open()?;
        let mut closed = self.closed.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as `self`: this ends only when the store was closed.
            _ = closed.wait_for(|closed| *closed) => self.open(),
            seen = look => seen,
        }
    }
}

#[async_trait]
impl LockPersistence for SqlPersistence {
    fn capabilities(&self) -> &Capabilities {
        self.dialect.capabilities()
    }

    async fn prepare(&self) -> Result<()> {
        let result = async {
            self.open()?;
            self.dialect.prepare().await
        };
        self.at(Operation::Prepare, None, result.await)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let result = self.attempt(claim).await;
        self.at(Operation::TryAcquire, Some(&claim.name), result)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let mut answers = Vec::with_capacity(leases.len());
        for chunk in leases.chunks(CHUNK) {
            let result = async {
                self.open()?;
                self.dialect.renew(chunk).await
            };
            match result.await {
                Ok(chunk) => answers.extend(chunk),
                Err(error) => answers.extend(chunk.iter().map(|_| Err(error.clone()))),
            }
        }
        answers
            .into_iter()
            .zip(leases)
            .map(|(answer, lease)| self.at(Operation::Renew, Some(lease.name()), answer))
            .collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let result = async {
            self.open()?;
            Ok(if self.dialect.release(lease).await? {
                Release::Released
            } else {
                Release::NotHeld
            })
        };
        self.at(Operation::Release, Some(lease.name()), result.await)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let result = async {
            self.open()?;
            self.dialect.withdraw(claim).await
        };
        self.at(Operation::Withdraw, Some(&claim.name), result.await)
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let token = seen.token;
        let stale = move |now: &LeaseState| matches!(now, LeaseState::Held(h) if h.token == token);
        let result = self.unless_closed(async {
            match self.dialect.wait(claim, seen).await {
                Some(result) => result,
                None => self.until(&claim.name, stale).await,
            }
        });
        let result = result.await;
        self.at(Operation::Wait, Some(&claim.name), result)
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let result = async {
            self.open()?;
            let state = self.dialect.read(name).await?;
            Ok(Observation::new(name.clone(), state))
        };
        self.at(Operation::Observe, Some(name), result.await)
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        let stale = |now: &LeaseState| match (now, &seen.state) {
            (LeaseState::Held(a), LeaseState::Held(b))
            | (LeaseState::Expired(a), LeaseState::Expired(b)) => a.token == b.token,
            (a, b) => a == b,
        };
        let result = self.until(&seen.name, stale).await;
        self.at(Operation::Watch, Some(&seen.name), result)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let result = async {
            self.open()?;
            self.dialect.list(prefix).await
        };
        self.at(Operation::List, None, result.await)
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let result = async {
            self.open()?;
            self.dialect.revoke(name, &Metadata::new(reason)?).await
        };
        self.at(Operation::Revoke, Some(name), result.await)
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let result = async {
            self.open()?;
            self.dialect.request(name, &request.to_string()).await
        };
        self.at(Operation::Request, Some(name), result.await)
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let result = async {
            self.open()?;
            self.dialect.server_time().await
        };
        self.at(Operation::ServerTime, None, result.await)
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let result = async {
            self.open()?;
            self.dialect.sweep(unused_for).await
        };
        self.at(Operation::Sweep, None, result.await)
    }

    async fn close(&self) -> Result<()> {
        self.closed.send_replace(true);
        self.dialect.close().await;
        Ok(())
    }
}
