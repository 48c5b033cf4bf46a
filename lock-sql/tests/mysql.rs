//! What only MySQL and MariaDB have: locked rows, settings of the server, accounts, and the server's own life.

#![allow(clippy::unwrap_used, reason = "a test says by failing")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Kind, Server};
use lock_core::{
    Attempt, Claim, ErrorKind, Lease, LeaseState, LockName, LockPersistence, Nonce, Owner, Release,
    Renewal,
};
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, AssertSqlSafe, Connection as _, Executor as _, Row as _};
use lock_sql::{Fence, MySqlConfig, SqlPersistence, TableName};
use tokio::sync::Barrier;

const LONG: Duration = Duration::from_secs(60);

/// A server, and a table in it that no other test uses.
struct Place {
    url: String,
    table: String,
    server: Server,
}

static TABLES: AtomicU32 = AtomicU32::new(0);

impl Place {
    fn at(server: Server) -> Self {
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        Self {
            url: server.url().to_owned(),
            table: format!("t{}_{number}", std::process::id()),
            server,
        }
    }

    /// The server that tests share which leave it as it is.
    async fn shared() -> Option<Self> {
        let server =
            tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::MariaDb)));
        server.await.unwrap().map(Self::at)
    }

    /// A server of its own.
    async fn own(settings: &'static [(&'static str, &'static str)]) -> Option<Self> {
        let server = tokio::task::spawn_blocking(move || {
            let mut builder = Server::mariadb();
            for (name, value) in settings {
                builder = builder.with_setting(*name, *value);
            }
            servers::or_skip(builder.start())
        });
        server.await.unwrap().map(Self::at)
    }

    fn config(&self) -> MySqlConfig {
        MySqlConfig::from_url(&self.url)
            .unwrap()
            .with_table(TableName::new(&self.table).unwrap())
    }

    fn store(&self) -> SqlPersistence {
        SqlPersistence::mysql(&self.config()).unwrap()
    }

    async fn prepared(&self) -> SqlPersistence {
        let store = self.store();
        store.prepare().await.unwrap();
        store
    }

    /// A connection as an application or an operator has it.
    async fn by_hand(&self) -> MySqlConnection {
        MySqlConnection::connect(&self.url).await.unwrap()
    }

    /// Runs this, with the table's name for `{}`.
    async fn run(&self, sql: &str) {
        let sql = sql.replace("{}", &self.table);
        run(&mut self.by_hand().await, &sql).await;
    }
}

async fn run(connection: &mut MySqlConnection, sql: &str) {
    if let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await {
        panic!("{sql}: {error}");
    }
}

async fn number(connection: &mut MySqlConnection, sql: &str) -> i64 {
    let row = sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_one(connection)
        .await;
    let row = row.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let text: String = row.try_get_unchecked(row.len() - 1).unwrap();
    text.parse().unwrap()
}

/// Locks the row of `name` for this long, from when this answers.
async fn block(place: &Place, name: &str, span: Duration) -> tokio::task::JoinHandle<()> {
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

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn claim(text: &str, ttl: Duration) -> Claim {
    Claim::new(name(text), Owner::new("me").unwrap(), Nonce::random(), ttl)
}

async fn granted(store: &SqlPersistence, claim: &Claim) -> Lease {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(lease) => lease,
        Attempt::Held(holder) => panic!("held by {holder:?}"),
    }
}

async fn renewed(store: &SqlPersistence, lease: &Lease) -> lock_core::Result<Renewal> {
    let mut answers = store.renew(std::slice::from_ref(lease)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Asks again while `call` fails in a way that asking again may mend.
async fn eventually<T, F: Future<Output = lock_core::Result<T>>>(mut call: impl FnMut() -> F) -> T {
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

#[tokio::test]
async fn a_renewal_past_the_expiry_does_not_revive() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let ttl = Duration::from_millis(600);
    let lease = granted(&store, &claim("a", ttl)).await;
    let other = granted(&store, &claim("b", LONG)).await;
    let blocker = block(&place, "a", Duration::from_millis(900)).await;
    // While another has the row it is neither renewed nor gone, and the other lease is not kept waiting.
    let started = Instant::now();
    let answers = store.renew(&[lease.clone(), other.clone()]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert!(error.is_retryable() && !error.is_indeterminate(), "{error}");
    assert!(matches!(answers[1], Ok(Renewal::Renewed { .. })));
    assert!(started.elapsed() < ttl, "{:?}", started.elapsed());
    blocker.await.unwrap();
    assert_eq!(renewed(&store, &lease).await.unwrap(), Renewal::Gone);
    assert!(matches!(
        store.observe(lease.name()).await.unwrap().state,
        LeaseState::Expired(_)
    ));
}

/// `UTC_TIMESTAMP` stands still while a statement waits for a row. With it in place of `SYSDATE` the repeated
/// try below keeps its old token.
#[tokio::test]
async fn a_try_that_waited_is_judged_when_it_gets_the_row() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let ttl = Duration::from_millis(400);
    // Its own grant expires while the repeated try waits: a new term, with a new token and a whole ttl.
    let claim = claim("a", ttl);
    let first = granted(&store, &claim).await;
    let blocker = block(&place, "a", Duration::from_millis(800)).await;
    let second = granted(&store, &claim).await;
    blocker.await.unwrap();
    assert!(second.token() > first.token());
    let seen = store.observe(&claim.name).await.unwrap();
    let remaining = seen.holder().expect("held").remaining;
    assert!(remaining > ttl / 2, "{remaining:?}");
    assert_eq!(renewed(&store, &first).await.unwrap(), Renewal::Gone);
}

/// A crowd of candidates must not be in the way of the holder, nor write to the disk.
#[tokio::test]
async fn a_denied_try_waits_for_nobody_and_writes_nothing() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("a", LONG)).await;
    let blocker = block(&place, "a", Duration::from_millis(700)).await;
    let started = Instant::now();
    let attempt = store.try_acquire(&claim("a", LONG)).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(h) if h.token == lease.token()));
    assert!(!blocker.is_finished(), "{:?}", started.elapsed());
    blocker.await.unwrap();
    let mut hand = place.by_hand().await;
    let written = "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'";
    // The server itself writes now and then: a quiet round is enough.
    let mut quiet = false;
    for _ in 0..20 {
        let before = number(&mut hand, written).await;
        for _ in 0..50 {
            store.try_acquire(&claim("a", LONG)).await.unwrap();
        }
        quiet |= number(&mut hand, written).await == before;
    }
    assert!(
        quiet,
        "each of twenty rounds of denied tries wrote to the log"
    );
    let before = number(&mut hand, written).await;
    renewed(&store, &lease).await.unwrap();
    assert!(
        number(&mut hand, written).await > before,
        "the figure is a real one"
    );
}

#[tokio::test]
async fn one_of_many_first_tries_wins() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let stores: Vec<_> = {
        let mut stores = vec![place.prepared().await];
        stores.resize_with(24, || place.store());
        stores.into_iter().map(Arc::new).collect()
    };
    let mut hand = place.by_hand().await;
    let mut last = None;
    for round in 0..20 {
        let name = format!("round-{round}");
        let barrier = Arc::new(Barrier::new(stores.len()));
        let tries: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
                let claim = claim(&name, LONG);
                tokio::spawn(async move {
                    barrier.wait().await;
                    store.try_acquire(&claim).await
                })
            })
            .collect();
        let mut winners = Vec::new();
        for attempt in tries {
            if let Attempt::Granted(lease) = attempt.await.unwrap().unwrap() {
                winners.push(lease.token());
            }
        }
        assert_eq!(winners.len(), 1, "{name}");
        assert!(last < Some(winners[0]));
        last = Some(winners[0]);
    }
    let count = format!("SELECT CONCAT(COUNT(*)) FROM {}", place.table);
    assert_eq!(number(&mut hand, &count).await, 20);
}

#[tokio::test]
async fn zones_and_isolation_levels_change_nothing() {
    let Some(place) = Place::own(&[("default-time-zone", "+13:00")]).await else {
        return;
    };
    place.prepared().await;
    place
        .run("CREATE TABLE work (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
        .await;
    place.run("INSERT INTO work VALUES (1, 0)").await;
    let mut done = 0;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        place
            .run(&format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {level}"))
            .await;
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let store = place.store();
                let url = place.url.clone();
                tokio::spawn(async move {
                    let zone = ["+00:00", "-11:00", "+05:30"][n % 3];
                    let mut app = MySqlConnection::connect(&url).await.unwrap();
                    run(&mut app, &format!("SET time_zone = '{zone}'")).await;
                    let kept = granted(&store, &claim(&format!("kept-{level}-{n}"), LONG)).await;
                    let mut granted = 0;
                    for round in 0..30 {
                        let claim = claim(&format!("shared-{}", round % 3), LONG);
                        if let Attempt::Granted(lease) = store.try_acquire(&claim).await.unwrap() {
                            let renewal = renewed(&store, &lease).await.unwrap();
                            assert!(matches!(renewal, Renewal::Renewed { .. }));
                            if round % 3 == 0 {
                                let mut tx = app.begin().await.unwrap();
                                tx.execute("UPDATE work SET n = n + 1").await.unwrap();
                                lease.commit(tx).await.unwrap();
                                granted += 1;
                            }
                            let release = store.release(&lease).await.unwrap();
                            assert_eq!(release, Release::Released);
                        }
                        assert!(matches!(
                            renewed(&store, &kept).await.unwrap(),
                            Renewal::Renewed { .. }
                        ));
                    }
                    granted
                })
            })
            .collect();
        for task in tasks {
            done += task.await.unwrap();
        }
    }
    let mut hand = place.by_hand().await;
    assert_eq!(number(&mut hand, "SELECT CONCAT(n) FROM work").await, done);
    assert!(done > 20, "{done}");
}

#[tokio::test]
async fn batches_of_every_size_are_renewed() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let mut leases = Vec::new();
    for n in 0..620 {
        leases.push(
            granted(
                &store,
                &claim(&format!("lease {n:04} {}", "ä".repeat(n % 40)), LONG),
            )
            .await,
        );
    }
    for size in [0, 1, 2, 33, 500, 501, 620] {
        let answers = store.renew(&leases[..size]).await;
        assert_eq!(answers.len(), size);
        for answer in answers {
            assert!(
                matches!(answer, Ok(Renewal::Renewed { .. })),
                "{size}: {answer:?}"
            );
        }
    }
    store.release(&leases[7]).await.unwrap();
    let answers = store.renew(&leases).await;
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap() == Renewal::Gone, n == 7, "{n}");
    }
}

#[tokio::test]
async fn a_table_of_another_shape_is_left_alone() {
    let Some(place) = Place::shared().await else {
        return;
    };
    place.prepared().await;
    for (change, word) in [
        ("ALTER TABLE {} ENGINE=MyISAM", "InnoDB"),
        ("ALTER TABLE {} DROP COLUMN note", "note"),
        (
            "ALTER TABLE {} MODIFY expires DATETIME(0) NOT NULL",
            "expires",
        ),
        ("ALTER TABLE {} MODIFY name VARCHAR(255) NOT NULL", "name"),
        (
            "ALTER TABLE {} MODIFY owner VARCHAR(255) COLLATE utf8mb4_general_ci NOT NULL",
            "collation",
        ),
        ("ALTER TABLE {} MODIFY token BIGINT", "NULL"),
        ("ALTER TABLE {} ADD COLUMN mine INT NOT NULL", "mine"),
        ("ALTER TABLE {} DROP PRIMARY KEY", "primary key"),
        ("ALTER TABLE {} ADD INDEX (expires)", "index"),
        (
            "RENAME TABLE {} TO {}_x; CREATE VIEW {} AS SELECT * FROM {}_x",
            "not a table",
        ),
    ] {
        let place = Place::at(place.server.clone());
        place.prepared().await;
        place.run(change).await;
        let error = place.store().prepare().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema, "{change}: {error}");
        assert!(error.to_string().contains(word), "{change}: {error}");
    }
}

#[tokio::test]
async fn an_emptied_or_dropped_table_makes_no_second_leader() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("a", LONG)).await;
    place.run("DELETE FROM {}").await;
    let next = granted(&place.store(), &claim("a", LONG)).await;
    assert!(next.token() > lease.token());
    assert_eq!(renewed(&store, &lease).await.unwrap(), Renewal::Gone);
    assert_eq!(store.release(&lease).await.unwrap(), Release::NotHeld);
    place.run("DROP TABLE {}").await;
    let errors = [
        renewed(&store, &next).await.unwrap_err(),
        store.try_acquire(&claim("a", LONG)).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("CREATE TABLE"), "{error}");
    }
}

#[tokio::test]
async fn accounts_are_told_what_they_lack() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let mut hand = place.by_hand().await;
    for sql in [
        "CREATE USER poor@'%' IDENTIFIED BY 'hunter2'",
        "GRANT SELECT ON lock_test.* TO poor@'%'",
    ] {
        run(&mut hand, sql).await;
    }
    let config = |password: &str| {
        let mut config = place.config().with_password(password);
        "poor".clone_into(&mut config.user);
        SqlPersistence::mysql(&config).unwrap()
    };
    // No table, and no right to make it.
    let error = config("hunter2").prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(
        error.to_string().contains("CREATE TABLE IF NOT EXISTS"),
        "{error}"
    );
    // A table, and no right to write.
    place.prepared().await;
    let error = config("hunter2").prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(
        error
            .to_string()
            .contains("GRANT SELECT, INSERT, UPDATE, DELETE"),
        "{error}"
    );
    // Looking needs no right to write.
    let seen = config("hunter2").observe(&name("a")).await.unwrap();
    assert_eq!(seen.state, LeaseState::Absent);
    // A wrong password, which is in no text.
    let error = config("swordfish").prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(!error.is_retryable());
    let store = config("swordfish");
    assert!(!format!("{error} {error:?} {store:?}").contains("swordfish"));
    // No such database.
    let mut config = place.config();
    "nowhere".clone_into(&mut config.database);
    let error = SqlPersistence::mysql(&config)
        .unwrap()
        .prepare()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
}

/// Also for an account that may write to a read-only server, as the administrator's may.
#[tokio::test]
async fn a_read_only_server_grants_and_renews_nothing() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let mut hand = place.by_hand().await;
    for sql in [
        "CREATE USER app@'%'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON lock_test.* TO app@'%'",
    ] {
        run(&mut hand, sql).await;
    }
    for user in ["root", "app"] {
        let place = Place::at(place.server.clone());
        let mut config = place.config();
        user.clone_into(&mut config.user);
        let store = SqlPersistence::mysql(&config).unwrap();
        store.prepare().await.unwrap();
        let lease = granted(&store, &claim("a", LONG)).await;
        run(&mut hand, "SET GLOBAL read_only = ON").await;
        let errors = [
            renewed(&store, &lease).await.unwrap_err(),
            store.try_acquire(&claim("b", LONG)).await.unwrap_err(),
            SqlPersistence::mysql(&config)
                .unwrap()
                .prepare()
                .await
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{user}: {error}");
            assert!(
                error.is_retryable() && !error.is_indeterminate(),
                "{user}: {error}"
            );
        }
        assert!(
            store
                .observe(lease.name())
                .await
                .unwrap()
                .holder()
                .is_some()
        );
        run(&mut hand, "SET GLOBAL read_only = OFF").await;
        let renewal = renewed(&store, &lease).await.unwrap();
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{user}");
        granted(&store, &claim("b", LONG)).await;
    }
}

#[tokio::test]
async fn a_clock_that_stands_still_is_refused() {
    let Some(place) = Place::own(&[("sysdate-is-now", "1")]).await else {
        return;
    };
    let error = place.store().prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("--sysdate-is-now"), "{error}");
}

#[tokio::test]
async fn a_binary_log_of_statements_is_served() {
    let Some(place) = Place::own(&[
        ("log-bin", "log"),
        ("server-id", "1"),
        ("binlog-format", "STATEMENT"),
    ])
    .await
    else {
        return;
    };
    let store = Arc::new(place.prepared().await);
    let lease = granted(&store, &claim("a", LONG)).await;
    let tries: Vec<_> = (0..8)
        .map(|_| {
            let store = place.store();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let attempt = store.try_acquire(&claim("a", LONG)).await.unwrap();
                    assert!(matches!(attempt, Attempt::Held(_)));
                    let claim = claim("b", LONG);
                    if let Attempt::Granted(lease) = store.try_acquire(&claim).await.unwrap() {
                        assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
                    }
                }
            })
        })
        .collect();
    for attempt in tries {
        attempt.await.unwrap();
    }
    let renewal = eventually(|| renewed(&store, &lease)).await;
    assert!(matches!(renewal, Renewal::Renewed { .. }));
}

#[tokio::test]
async fn a_restart_and_a_killed_session_end_no_lease() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("a", LONG)).await;
    let server = place.server.clone();
    tokio::task::spawn_blocking(move || {
        server.kill().unwrap();
        server.restart().unwrap();
    })
    .await
    .unwrap();
    let renewal = eventually(|| renewed(&store, &lease)).await;
    assert!(matches!(renewal, Renewal::Renewed { .. }));
    let attempt = eventually(|| async { store.try_acquire(&claim("a", LONG)).await }).await;
    assert!(matches!(attempt, Attempt::Held(h) if h.token == lease.token()));

    let mut hand = place.by_hand().await;
    let sessions = sqlx::raw_sql(
        "SELECT CONCAT(id) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'",
    )
    .fetch_all(&mut hand)
    .await
    .unwrap();
    assert!(!sessions.is_empty());
    for session in sessions {
        let id: String = session.try_get_unchecked(0).unwrap();
        run(&mut hand, &format!("KILL {id}")).await;
    }
    let renewal = eventually(|| renewed(&store, &lease)).await;
    assert!(matches!(renewal, Renewal::Renewed { .. }));
    assert_eq!(
        eventually(|| store.release(&lease)).await,
        Release::Released
    );
}

#[tokio::test]
async fn dropped_calls_leave_no_sessions_behind() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("a", LONG)).await;
    for micros in (0..3000).step_by(37) {
        let span = Duration::from_micros(micros);
        let mine = claim("b", LONG);
        // Whether it was in time is not what is asked.
        let _ = tokio::time::timeout(span, store.try_acquire(&mine)).await;
        let _ = tokio::time::timeout(span, store.renew(std::slice::from_ref(&lease))).await;
        store.withdraw(&mine).await.unwrap();
    }
    let mut hand = place.by_hand().await;
    let started = Instant::now();
    let sessions =
        "SELECT CONCAT(COUNT(*)) FROM information_schema.processlist WHERE user = 'root'";
    // Three of the store's and our own; the server needs a moment to see the closed ones.
    while number(&mut hand, sessions).await > 4 {
        assert!(started.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(
        eventually(|| renewed(&store, &lease)).await,
        Renewal::Renewed { .. }
    ));
}

#[tokio::test]
async fn only_the_holder_commits() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let work = format!("{}_work", place.table);
    let mut app = place.by_hand().await;
    run(
        &mut app,
        &format!("CREATE TABLE {work} (n INT) ENGINE=InnoDB"),
    )
    .await;
    let insert = |n: i32| format!("INSERT INTO {work} VALUES ({n})");
    let count = format!("SELECT CONCAT(COUNT(*)) FROM {work}");

    // In an old snapshot, with renewals since, and in another zone.
    run(&mut app, "SET time_zone = '-09:00'").await;
    let lease = granted(&store, &claim("a", LONG)).await;
    let mut tx = app.begin().await.unwrap();
    number(&mut tx, &count).await;
    run(&mut tx, &insert(1)).await;
    renewed(&store, &lease).await.unwrap();
    lease.commit(tx).await.unwrap();
    assert_eq!(number(&mut app, &count).await, 1);
    assert!(matches!(
        renewed(&store, &lease).await.unwrap(),
        Renewal::Renewed { .. }
    ));

    // After the release; after the expiry; after a takeover.
    store.release(&lease).await.unwrap();
    let short = claim("a", Duration::from_millis(150));
    let expired = granted(&store, &short).await;
    let mut tx = app.begin().await.unwrap();
    run(&mut tx, &insert(2)).await;
    tokio::time::sleep(Duration::from_millis(160)).await;
    assert_eq!(
        expired.commit(tx).await.unwrap_err().kind(),
        ErrorKind::LeaseLost
    );
    let next = granted(&store, &claim("a", LONG)).await;
    for old in [&lease, &expired] {
        let mut tx = app.begin().await.unwrap();
        run(&mut tx, &insert(3)).await;
        let error = old.commit(tx).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
    }
    assert_eq!(number(&mut app, &count).await, 1);

    // A commit that waited for the row past the expiry is none.
    store.release(&next).await.unwrap();
    let short = granted(&store, &claim("a", Duration::from_millis(300))).await;
    let blocker = block(&place, "a", Duration::from_millis(500)).await;
    let mut tx = app.begin().await.unwrap();
    run(&mut tx, &insert(4)).await;
    assert_eq!(
        short.commit(tx).await.unwrap_err().kind(),
        ErrorKind::LeaseLost
    );
    blocker.await.unwrap();
    assert_eq!(number(&mut app, &count).await, 1);

    // A lease of another store.
    let memory = lock_core::memory::MemoryStore::new();
    let Attempt::Granted(foreign) = memory.try_acquire(&claim("a", LONG)).await.unwrap() else {
        panic!("the memory store is empty");
    };
    let tx = app.begin().await.unwrap();
    assert_eq!(
        foreign.commit(tx).await.unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}

/// A server that says it is a node of a Galera cluster.
#[tokio::test]
async fn a_galera_node_is_served() {
    let Some(place) = Place::own(&[("wsrep-on", "ON"), ("binlog-format", "ROW")]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("a", LONG)).await;
    assert!(matches!(
        renewed(&store, &lease).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    let waiter = place.store();
    let seen = match waiter.try_acquire(&claim("a", LONG)).await.unwrap() {
        Attempt::Held(holder) => holder,
        Attempt::Granted(lease) => panic!("{lease:?} beside another"),
    };
    let waiting = claim("a", LONG);
    let (waited, released) = tokio::join!(waiter.wait(&waiting, &seen), store.release(&lease));
    waited.unwrap();
    assert_eq!(released.unwrap(), Release::Released);
}

/// However many wait, a release sets off one try, and the others are left alone.
#[tokio::test]
async fn a_release_tells_one_waiter() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = Arc::new(place.prepared().await);
    let lease = granted(&store, &claim("a", LONG)).await;
    let tries = Arc::new(AtomicU32::new(0));
    let mut waiters = Vec::new();
    for _ in 0..40 {
        let (store, tries) = (Arc::clone(&store), Arc::clone(&tries));
        waiters.push(tokio::spawn(async move {
            let claim = claim("a", LONG);
            loop {
                match store.try_acquire(&claim).await.unwrap() {
                    Attempt::Granted(lease) => return lease,
                    Attempt::Held(holder) => store.wait(&claim, &holder).await.unwrap(),
                }
                tries.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    // All have looked and wait.
    let mut hand = place.by_hand().await;
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = number(&mut hand, "SHOW GLOBAL STATUS LIKE 'Com_insert_select'").await;
        if now == before {
            break;
        }
        before = now;
    }
    assert_eq!(tries.load(Ordering::Relaxed), 0);
    let mut held = lease;
    for round in 1..=5 {
        store.release(&held).await.unwrap();
        let (next, _, rest) = futures_util::future::select_all(waiters).await;
        (held, waiters) = (next.unwrap(), rest);
        let woken = tries.load(Ordering::Relaxed);
        assert!(
            woken <= 3 * round,
            "{woken} of forty were woken by {round} releases"
        );
    }
    for waiter in waiters {
        waiter.abort();
    }
}

fn openssl(folder: &std::path::Path, arguments: &str) {
    let made = std::process::Command::new("openssl")
        .current_dir(folder)
        .args(arguments.split(' '))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "openssl {arguments}: {said}");
}

/// Real handshakes: a right certificate, a wrong host, an expired one, an unknown authority; and no plain text
/// where TLS was asked for.
#[tokio::test]
async fn tls_is_what_the_url_says() {
    let Some(plain) = Place::own(&[]).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(at, everybody).unwrap();
    for authority in ["ca", "stranger"] {
        openssl(
            at,
            &format!(
                "req -x509 -newkey rsa:2048 -nodes -keyout {authority}.key -out {authority}.crt -days 2 \
                 -subj /CN={authority}"
            ),
        );
    }
    let mut servers = std::collections::BTreeMap::new();
    for (cert, host, days) in [
        ("right", "IP:127.0.0.1,DNS:localhost", "2"),
        ("wrong", "DNS:elsewhere.example", "2"),
        ("expired", "IP:127.0.0.1", "-1"),
    ] {
        let names = format!("subjectAltName={host}\nextendedKeyUsage=serverAuth\n");
        std::fs::write(at.join("names"), names).unwrap();
        openssl(
            at,
            &format!(
                "req -newkey rsa:2048 -nodes -keyout {cert}.key -out {cert}.csr -subj /CN={cert}"
            ),
        );
        openssl(
            at,
            &format!(
                "x509 -req -in {cert}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out {cert}.crt -days {days} \
                 -extfile names"
            ),
        );
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(at.join(format!("{cert}.key")), everybody).unwrap();
        let files = [("ssl-cert", "crt"), ("ssl-key", "key")]
            .map(|(name, end)| (name, at.join(format!("{cert}.{end}")).display().to_string()));
        let server = tokio::task::spawn_blocking(move || {
            let [cert, key] = files;
            Server::mariadb()
                .with_setting(cert.0, cert.1)
                .with_setting(key.0, key.1)
                .start_program()
        });
        servers.insert(cert, Place::at(server.await.unwrap().unwrap()));
    }
    let none = "plain";
    servers.insert(none, plain);
    let ca = at.join("ca.crt").display().to_string();
    let stranger = at.join("stranger.crt").display().to_string();
    for (cert, parameters, good) in [
        (
            "right",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
            true,
        ),
        (
            "right",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={stranger}"),
            false,
        ),
        ("right", "ssl-mode=REQUIRED".into(), true),
        (
            "wrong",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
            false,
        ),
        ("wrong", format!("ssl-mode=VERIFY_CA&ssl-ca={ca}"), true),
        (
            "expired",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
            false,
        ),
        (none, "ssl-mode=REQUIRED".into(), false),
        (none, format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"), false),
        (none, "ssl-mode=PREFERRED".into(), true),
    ] {
        let url = format!("{}?{parameters}", servers[cert].url);
        let config = MySqlConfig::from_url(&url).unwrap();
        let answer = SqlPersistence::mysql(&config).unwrap().prepare().await;
        match answer {
            Ok(()) => assert!(good, "{cert} {parameters} was taken"),
            Err(error) => {
                assert!(!good, "{cert} {parameters}: {error:?}");
                assert_eq!(
                    error.kind(),
                    ErrorKind::Tls,
                    "{cert} {parameters}: {error:?}"
                );
            }
        }
    }
}
