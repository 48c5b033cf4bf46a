//! Servers, tables, stores and claims for the tests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Kind, Server};
use lock_core::{Attempt, Claim, Lease, LockName, LockPersistence as _, Nonce, Owner, Renewal};
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, AssertSqlSafe, Connection as _, Row as _};
use lock_sql::{MySqlConfig, SqlPersistence, TableName};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server, and a table in it that no other test uses.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) table: String,
    pub(crate) server: Server,
}

static TABLES: AtomicU32 = AtomicU32::new(0);

impl Place {
    pub(crate) fn at(server: Server) -> Self {
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        Self {
            url: server.url().to_owned(),
            table: format!("t{}_{number}", std::process::id()),
            server,
        }
    }

    /// The server that tests share which leave it as it is.
    pub(crate) async fn shared() -> Option<Self> {
        let server =
            tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::MariaDb)));
        server.await.unwrap().map(Self::at)
    }

    /// A server of its own.
    pub(crate) async fn own(settings: &'static [(&'static str, &'static str)]) -> Option<Self> {
        let server = tokio::task::spawn_blocking(move || {
            let mut builder = Server::mariadb();
            for (name, value) in settings {
                builder = builder.with_setting(*name, *value);
            }
            servers::or_skip(builder.start())
        });
        server.await.unwrap().map(Self::at)
    }

    pub(crate) fn config(&self) -> MySqlConfig {
        MySqlConfig::from_url(&self.url)
            .unwrap()
            .with_table(TableName::new(&self.table).unwrap())
    }

    pub(crate) fn store(&self) -> SqlPersistence {
        SqlPersistence::mysql(&self.config()).unwrap()
    }

    pub(crate) async fn prepared(&self) -> SqlPersistence {
        let store = self.store();
        store.prepare().await.unwrap();
        store
    }

    /// A connection as an application or an operator has it.
    pub(crate) async fn by_hand(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url).await.unwrap()
    }

    /// Runs this, with the table's name for `{}`.
    pub(crate) async fn run(&self, sql: &str) {
        let sql = sql.replace("{}", &self.table);
        run(&mut self.by_hand().await, &sql).await;
    }
}

pub(crate) async fn run(connection: &mut MySqlConnection, sql: &str) {
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        panic!("{sql}: {error}");
    }
}

pub(crate) async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await;
    let row = row.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let text: String = row.try_get_unchecked(row.len() - 1).unwrap();
    text.parse().unwrap()
}

/// Locks the row of `name` for this long, from when this answers.
pub(crate) async fn block(
    place: &Place,
    name: &str,
    span: Duration,
) -> tokio::task::JoinHandle<()> {
    let mut connection = place.by_hand().await;
    let sql = format!(
        "BEGIN; SELECT 1 FROM {} WHERE name = '{name}' FOR UPDATE",
        place.table
    );
    run(&mut connection, &sql).await;
    tokio::spawn(async move {
        tokio::time::sleep(span).await;
        run(&mut connection, "ROLLBACK").await;
    })
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub(crate) fn claim(text: &str, ttl: Duration) -> Claim {
    Claim::new(name(text), Owner::new("me").unwrap(), Nonce::random(), ttl)
}

pub(crate) async fn granted(store: &SqlPersistence, claim: &Claim) -> Lease {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(lease) => lease,
        Attempt::Held(holder) => panic!("held by {holder:?}"),
    }
}

pub(crate) async fn renewed(store: &SqlPersistence, lease: &Lease) -> lock_core::Result<Renewal> {
    let mut answers = store.renew(std::slice::from_ref(lease)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Asks again while `call` fails in a way that asking again may mend.
pub(crate) async fn eventually<T, F: Future<Output = lock_core::Result<T>>>(
    mut call: impl FnMut() -> F,
) -> T {
    let started = Instant::now();
    loop {
        match call().await {
            Ok(value) => return value,
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                assert!(started.elapsed() < Duration::from_secs(20), "{error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}
