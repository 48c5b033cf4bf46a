//! SQLite passes the suite.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{LockName, LockPersistence, Owner};
use lock_sql::sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use lock_sql::sqlx::{self, ConnectOptions as _};
use lock_sql::{SqlPersistence, SqliteConfig};

#[derive(Debug)]
struct Sqlite {
    folder: tempfile::TempDir,
}

const FILE: &str = "locks.db";
const NO_SERVER: &str = "SQLite has no server";

impl Sqlite {
    fn path(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }

    /// A connection as an operator has it.
    async fn by_hand(&self) -> Answer<SqliteConnection> {
        SqliteConnectOptions::new()
            .filename(self.path())
            .busy_timeout(Duration::from_secs(10))
            .connect()
            .await
            .map_err(Stop::failed)
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn new() -> Answer<Self> {
        Ok(Self {
            folder: tempfile::tempdir().map_err(Stop::failed)?,
        })
    }

    fn backend(&self) -> &'static str {
        "sqlite"
    }

    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(SqlPersistence::sqlite(SqliteConfig::new(
            self.path(),
        ))?))
    }

    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }

    fn locator(&self) -> Answer<String> {
        Ok(self.path().to_string_lossy().into_owned())
    }

    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(SqlPersistence::sqlite(SqliteConfig::new(
            locator,
        ))?))
    }

    async fn wipe(&self, name: &LockName) -> Answer<()> {
        sqlx::query("DELETE FROM lock_leases WHERE name = ?1")
            .bind(name.as_str())
            .execute(&mut self.by_hand().await?)
            .await
            .map(drop)
            .map_err(Stop::failed)
    }

    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        sqlx::query("UPDATE lock_leases SET owner = ?2, nonce = randomblob(16) WHERE name = ?1")
            .bind(name.as_str())
            .bind(owner.as_str())
            .execute(&mut self.by_hand().await?)
            .await
            .map(drop)
            .map_err(Stop::failed)
    }

    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable("SQLite locks the whole file"))
    }

    async fn residue(&self) -> Answer<u64> {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM lock_leases WHERE nonce <> x'' AND expires > \
             CAST(unixepoch('subsec') * 1000 AS INTEGER) + ttl + 1",
        )
        .fetch_one(&mut self.by_hand().await?)
        .await
        .map_err(Stop::failed)?;
        Ok(count.unsigned_abs())
    }

    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(NO_SERVER))
    }

    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(NO_SERVER))
    }

    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

conformance_tests::suite!(Sqlite);
