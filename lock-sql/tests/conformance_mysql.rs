//! MySQL and MariaDB pass the suite, on a real server.

mod server;

use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::servers::Kind;
use conformance_tests::{Answer, Stop};
use lock_core::LockPersistence;
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, AssertSqlSafe, Connection as _};
use lock_sql::{MySqlConfig, SqlPersistence, TableName};

use self::server::{Database, Table};

#[derive(Debug)]
struct MySql;

#[async_trait]
impl Database for MySql {
    const KIND: Kind = Kind::MariaDb;
    const NAME: &'static str = "mysql";
    const RANDOM: &'static str = "UNHEX(MD5(RAND()))";
    type Connection = MySqlConnection;

    fn store(url: &str, table: TableName) -> Answer<Arc<dyn LockPersistence>> {
        let config = MySqlConfig::from_url(url)?.with_table(table);
        Ok(Arc::new(SqlPersistence::mysql(&config)?))
    }

    async fn connect(url: &str) -> Answer<Self::Connection> {
        MySqlConnection::connect(url).await.map_err(Stop::failed)
    }

    async fn run(connection: &mut Self::Connection, sql: String) -> Answer<()> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await;
        done.map(drop).map_err(Stop::failed)
    }

    async fn number(connection: &mut Self::Connection, sql: String) -> Answer<i64> {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(connection)
            .await
            .map_err(Stop::failed)
    }

    fn residue(table: &str) -> String {
        format!(
            "SELECT COUNT(*) FROM {table} WHERE nonce <> x'' AND expires > ttl + \
             TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
        )
    }
}

conformance_tests::suite!(Table<MySql>);
