//! Stores, claims and connections for the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Kind, Server};
use lock_core::{
    Attempt, Claim, Holder, Lease, LeaseState, LockName, LockPersistence, Nonce, Owner, Provider,
    Renewal, Timing,
};
use lock_sql::sqlx::postgres::PgConnection;
use lock_sql::sqlx::{AssertSqlSafe, Connection as _, Executor as _, Row as _};
use lock_sql::{PostgresConfig, SqlPersistence, TableName};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// The server that all tests share; `None` when there is none, which is told.
pub(crate) async fn shared() -> Option<Server> {
    tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::Postgres)))
        .await
        .unwrap()
}

/// A server to disturb.
pub(crate) async fn own(settings: &[(&str, &str)]) -> Option<Server> {
    let mut builder = Server::postgres();
    for (name, value) in settings {
        builder = builder.with_setting(*name, *value);
    }
    tokio::task::spawn_blocking(|| servers::or_skip(builder.start()))
        .await
        .unwrap()
}

/// Something of the server that blocks the thread.
pub(crate) async fn on<T: Send + 'static>(
    server: &Server,
    act: impl FnOnce(&Server) -> Result<T, servers::Error> + Send + 'static,
) -> T {
    let server = server.clone();
    tokio::task::spawn_blocking(move || act(&server))
        .await
        .unwrap()
        .unwrap()
}

/// A name of a table, a role or a database that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!(
        "{what}{}_{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

pub(crate) fn store_at(url: &str, table: &str) -> Arc<SqlPersistence> {
    let config = PostgresConfig::from_url(url)
        .unwrap()
        .with_table(TableName::new(table).unwrap());
    Arc::new(SqlPersistence::postgres(&config).unwrap())
}

/// A prepared store in a table of its own.
pub(crate) async fn store(server: &Server) -> (Arc<SqlPersistence>, String) {
    let table = fresh("t");
    let store = store_at(server.url(), &table);
    store.prepare().await.unwrap();
    (store, table)
}

pub(crate) async fn by_hand(server: &Server) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

pub(crate) async fn run(connection: &mut PgConnection, sql: &str) {
    connection
        .execute(AssertSqlSafe(sql.to_owned()))
        .await
        .unwrap();
}

pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    connection
        .fetch_one(AssertSqlSafe(sql.to_owned()))
        .await
        .unwrap()
        .get(0)
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
        Attempt::Held(holder) => panic!("{:?} should be free: {holder:?}", claim.name),
    }
}

pub(crate) async fn denied(store: &SqlPersistence, claim: &Claim) -> Holder {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Held(holder) => holder,
        Attempt::Granted(lease) => panic!("should be held: {lease:?}"),
    }
}

pub(crate) async fn renew(store: &SqlPersistence, lease: &Lease) -> lock_core::Result<Renewal> {
    store.renew(std::slice::from_ref(lease)).await.remove(0)
}

pub(crate) async fn is_held(store: &SqlPersistence, text: &str) -> bool {
    matches!(
        store.observe(&name(text)).await.unwrap().state,
        LeaseState::Held(_)
    )
}

pub(crate) async fn eventually<F: Future<Output = bool>>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> F,
) {
    let started = Instant::now();
    while !ask().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn provider(store: &Arc<SqlPersistence>, ttl: Duration) -> Provider {
    Provider::new(Arc::clone(store) as _).with_timing(Timing::for_ttl(ttl).unwrap())
}

/// Lines of the server's log that begin an error.
pub(crate) async fn errors(server: &Server) -> Vec<String> {
    let log = on(server, Server::logs).await;
    log.lines()
        .filter(|l| ["ERROR:", "FATAL:", "PANIC:"].iter().any(|e| l.contains(e)))
        // The harness's own look whether the server is ready.
        .filter(|l| !l.contains("the database system is starting up"))
        .map(str::to_owned)
        .collect()
}
