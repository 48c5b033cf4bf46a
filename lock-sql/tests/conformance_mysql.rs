//! MySQL and MariaDB pass the suite, on a real server.

#![cfg(feature = "mysql")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::servers::{self, Kind};
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{LockName, LockPersistence, Owner};
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use lock_sql::{MySqlConfig, SqlPersistence, TableName, sqlx};

#[derive(Debug)]
struct MySql {
    url: String,
    table: String,
}

static TABLES: AtomicU32 = AtomicU32::new(0);

fn open(url: &str, table: &str) -> Answer<Arc<dyn LockPersistence>> {
    let config = MySqlConfig::from_url(url)?.with_table(TableName::new(table)?);
    Ok(Arc::new(SqlPersistence::mysql(&config)?))
}

impl MySql {
    /// A connection as an operator has it.
    async fn by_hand(&self) -> Answer<MySqlConnection> {
        MySqlConnection::connect(&self.url)
            .await
            .map_err(Stop::failed)
    }
}

#[async_trait]
impl Harness for MySql {
    async fn new() -> Answer<Self> {
        let server =
            tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::MariaDb)));
        let Some(server) = server.await.map_err(Stop::failed)? else {
            return Err(Stop::not_applicable("there is no MariaDB on this machine"));
        };
        Ok(Self {
            url: server.url().to_owned(),
            table: format!(
                "c{}_{}",
                std::process::id(),
                TABLES.fetch_add(1, Ordering::Relaxed)
            ),
        })
    }

    fn backend(&self) -> &'static str {
        "mysql"
    }

    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        open(&self.url, &self.table)
    }

    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }

    fn locator(&self) -> Answer<String> {
        Ok(format!("{} {}", self.url, self.table))
    }

    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        let (url, table) = locator
            .split_once(' ')
            .ok_or_else(|| Stop::failed("a locator is a URL and a table"))?;
        open(url, table)
    }

    async fn wipe(&self, name: &LockName) -> Answer<()> {
        let sql = format!("DELETE FROM {} WHERE name = ?", self.table);
        sqlx::query(AssertSqlSafe(sql))
            .bind(name.as_str())
            .execute(&mut self.by_hand().await?)
            .await
            .map(drop)
            .map_err(Stop::failed)
    }

    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let sql = format!(
            "UPDATE {} SET owner = ?, nonce = UNHEX(MD5(RAND())) WHERE name = ?",
            self.table
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(owner.as_str())
            .bind(name.as_str())
            .execute(&mut self.by_hand().await?)
            .await
            .map(drop)
            .map_err(Stop::failed)
    }

    async fn block(&self, name: &LockName, span: Duration) -> Answer<()> {
        let mut connection = self.by_hand().await?;
        connection.execute("BEGIN").await.map_err(Stop::failed)?;
        let sql = format!("SELECT 1 FROM {} WHERE name = ? FOR UPDATE", self.table);
        sqlx::query(AssertSqlSafe(sql))
            .bind(name.as_str())
            .execute(&mut connection)
            .await
            .map_err(Stop::failed)?;
        tokio::spawn(async move {
            tokio::time::sleep(span).await;
            connection
                .execute("ROLLBACK")
                .await
                .expect("open since above");
        });
        Ok(())
    }

    async fn residue(&self) -> Answer<u64> {
        let sql = format!(
            "SELECT COUNT(*) FROM {} WHERE nonce <> x'' AND expires > ttl + \
             TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
            self.table
        );
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&mut self.by_hand().await?)
            .await
            .map_err(Stop::failed)?;
        Ok(count.unsigned_abs())
    }

    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable("the server is shared by all cases"))
    }

    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable("the server is shared by all cases"))
    }

    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

conformance_tests::suite!(MySql);
