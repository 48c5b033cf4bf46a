//! MySQL and MariaDB; what is measured: `conformance_tests::bench`.
//!
//! ```sh
//! cargo bench -p lock-sql --features mysql --bench mysql
//! ```

use std::sync::Arc;

use conformance_tests::bench::{self, Measured, Result};
use conformance_tests::servers::Server;
use lock_core::LockPersistence;
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, Connection as _, Executor as _, Row as _};
use lock_sql::{MySqlConfig, SqlPersistence};

struct MySql(MySqlConnection);

impl Measured for MySql {
    const GOAL: f64 = 1.25;

    fn store(url: &str) -> Result<Arc<dyn LockPersistence>> {
        let config = MySqlConfig::from_url(url)?;
        Ok(Arc::new(SqlPersistence::mysql(&config)?))
    }

    async fn connect(url: &str) -> Result<Self> {
        let mut open = MySqlConnection::connect(url).await?;
        open.execute(
            "CREATE TABLE IF NOT EXISTS floor (id int PRIMARY KEY, n bigint) ENGINE=InnoDB",
        )
        .await?;
        open.execute("INSERT IGNORE INTO floor VALUES (1, 0)")
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

    async fn requests(&mut self) -> Result<u64> {
        let row = self
            .0
            .fetch_one("SHOW GLOBAL STATUS LIKE 'Queries'")
            .await?;
        Ok(row.try_get_unchecked::<String, _>(1)?.parse()?)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let server = || {
        Server::mariadb()
            .durable()
            .with_setting("max-connections", "1200")
    };
    let crowds = [(8, 8), (32, 32), (200, 200), (8, 1), (32, 1), (200, 1)];
    bench::run::<MySql>(server, &crowds).await
}
