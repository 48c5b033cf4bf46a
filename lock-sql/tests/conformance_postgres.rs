//! PostgreSQL passes the suite, on a real server.

#![cfg(feature = "postgres")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::servers::{self, Kind};
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{LockName, LockPersistence, Owner};
use lock_sql::sqlx::postgres::PgConnection;
use lock_sql::sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use lock_sql::{PostgresConfig, SqlPersistence, TableName, sqlx};

#[derive(Debug)]
struct Postgres {
    url: String,
    table: String,
}

const SHARED: &str = "the server is shared; tests/postgres.rs stops one of its own";

static TABLES: AtomicU32 = AtomicU32::new(0);

fn open(url: &str, table: &str) -> Answer<Arc<dyn LockPersistence>> {
    let config = PostgresConfig::from_url(url)?.with_table(TableName::new(table)?);
    Ok(Arc::new(SqlPersistence::postgres(&config)?))
}

impl Postgres {
    /// A connection as an operator has it.
    async fn by_hand(&self) -> Answer<PgConnection> {
        PgConnection::connect(&self.url).await.map_err(Stop::failed)
    }
}

#[async_trait]
impl Harness for Postgres {
    async fn new() -> Answer<Self> {
        let server =
            tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::Postgres)));
        let Some(server) = server.await.map_err(Stop::failed)? else {
            return Err(Stop::not_applicable(
                "there is no PostgreSQL on this machine",
            ));
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
        "postgres"
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
        let sql = format!("DELETE FROM {} WHERE name = $1", self.table);
        sqlx::query(AssertSqlSafe(sql))
            .bind(name.as_str())
            .execute(&mut self.by_hand().await?)
            .await
            .map(drop)
            .map_err(Stop::failed)
    }

    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let sql = format!(
            "UPDATE {} SET owner = $2, nonce = decode(md5(random()::text), 'hex') WHERE name = $1",
            self.table
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(name.as_str())
            .bind(owner.as_str())
            .execute(&mut self.by_hand().await?)
            .await
            .map(drop)
            .map_err(Stop::failed)
    }

    async fn block(&self, name: &LockName, span: Duration) -> Answer<()> {
        let mut connection = self.by_hand().await?;
        connection.execute("BEGIN").await.map_err(Stop::failed)?;
        let sql = format!("SELECT FROM {} WHERE name = $1 FOR UPDATE", self.table);
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
            "SELECT count(*) FROM {} WHERE nonce <> ''::bytea \
             AND expires > clock_timestamp() + ttl * interval '1 millisecond' \
             UNION ALL SELECT count(*) FROM {}_waiters",
            self.table, self.table
        );
        let counts: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_all(&mut self.by_hand().await?)
            .await
            .map_err(Stop::failed)?;
        Ok(counts.iter().sum::<i64>().unsigned_abs())
    }

    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(SHARED))
    }

    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(SHARED))
    }

    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("h_restart::a_short_restart_costs_no_term", SHARED),
            ("h_restart::a_long_outage_ends_the_term", SHARED),
        ]
    }
}

conformance_tests::suite!(Postgres);
