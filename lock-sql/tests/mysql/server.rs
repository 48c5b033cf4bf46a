//! Settings, accounts, tables, and the life of the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{Attempt, ErrorKind, LeaseState, LockPersistence as _, Release, Renewal};
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, Connection as _, Executor as _, Row as _};
use lock_sql::{Fence as _, SqlPersistence};

use crate::support::{LONG, Place, claim, eventually, granted, name, number, renewed, run};

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
