//! PostgreSQL; what is measured: `conformance_tests::bench`.
//!
//! ```sh
//! cargo bench -p lock-sql --features postgres --bench postgres
//! ```

use std::sync::Arc;

use conformance_tests::bench::{self, Measured, Result};
use conformance_tests::servers::Server;
use lock_core::LockPersistence;
use lock_sql::sqlx::postgres::PgConnection;
use lock_sql::sqlx::{self, Connection as _, Executor as _, Row as _};
use lock_sql::{PostgresConfig, SqlPersistence};

struct Postgres(PgConnection);

impl Measured for Postgres {
    const GOAL: f64 = 1.15;

    fn store(url: &str) -> Result<Arc<dyn LockPersistence>> {
        let config = PostgresConfig::from_url(url)?;
        Ok(Arc::new(SqlPersistence::postgres(&config)?))
    }

    async fn connect(url: &str) -> Result<Self> {
        let mut open = PgConnection::connect(url).await?;
        open.execute(
            "CREATE TABLE IF NOT EXISTS floor (id int PRIMARY KEY, n bigint) WITH (fillfactor = 50)",
        )
        .await?;
        open.execute("INSERT INTO floor VALUES (1, 0) ON CONFLICT DO NOTHING")
            .await?;
        Ok(Self(open))
    }

    async fn noop(&mut self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&mut self.0).await?;
        Ok(())
    }

    async fn write(&mut self) -> Result<()> {
        sqlx::query("UPDATE floor SET n = n + 1 WHERE id = 1")
            .execute(&mut self.0)
            .await?;
        Ok(())
    }

    /// Transactions of the database. Each statement of a store is one.
    async fn requests(&mut self) -> Result<u64> {
        // What a session has counted shows up to a second late: alike at both ends of a steady run.
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        let commits: i64 = self.0.fetch_one(sql).await?.get(0);
        Ok(commits.unsigned_abs())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = || {
        Server::postgres()
            .durable()
            .with_setting("max_connections", "900")
    };
    // As many processes as a machine of this size can serve; the rest are further waiters in each.
    let crowds = [(8, 8), (32, 20), (200, 20), (200, 1)];
    bench::run::<Postgres>(server, &crowds).await
}
