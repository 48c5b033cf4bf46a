//! PostgreSQL passes the suite, on a real server.

mod server;

use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::servers::Kind;
use conformance_tests::{Answer, Stop};
use lock_core::LockPersistence;
use lock_sql::sqlx::postgres::PgConnection;
use lock_sql::sqlx::{self, AssertSqlSafe, Connection as _};
use lock_sql::{PostgresConfig, SqlPersistence, TableName};

use self::server::{Database, Table};

#[derive(Debug)]
struct Postgres;

#[async_trait]
impl Database for Postgres {
    const KIND: Kind = Kind::Postgres;
    const NAME: &'static str = "postgres";
    const RANDOM: &'static str = "decode(md5(random()::text), 'hex')";
    type Connection = PgConnection;

    fn store(url: &str, table: TableName) -> Answer<Arc<dyn LockPersistence>> {
        let config = PostgresConfig::from_url(url)?.with_table(table);
        Ok(Arc::new(SqlPersistence::postgres(&config)?))
    }

    async fn connect(url: &str) -> Answer<Self::Connection> {
        PgConnection::connect(url).await.map_err(Stop::failed)
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
            "SELECT (SELECT count(*) FROM {table} WHERE nonce <> ''::bytea \
             AND expires > clock_timestamp() + ttl * interval '1 millisecond') \
             + (SELECT count(*) FROM {table}_waiters)"
        )
    }
}

conformance_tests::suite!(Table<Postgres>);
