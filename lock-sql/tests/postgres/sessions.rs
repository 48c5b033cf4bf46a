//! Sessions: time zones, isolation, open transactions, the number of connections, bloat.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance_tests::Tier;
use lock_core::{Attempt, ErrorKind, LockPersistence as _, Nonce, Renewal};
use lock_sql::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use lock_sql::{SqlPersistence, TableName, sqlx};

use crate::race::patient;
use crate::support::{
    MINUTE, by_hand, claim, denied, errors, eventually, fresh, granted, is_held, name, number, own,
    renew, run, shared, store, store_at,
};

/// 2: neither the server's zone nor a session's moves an expiry.
#[tokio::test]
async fn no_time_zone_moves_an_expiry() {
    let Some(server) = own(&[("timezone", "Pacific/Kiritimati")]).await else {
        return;
    };
    let table = fresh("t");
    let zone = |zone: &str| {
        let options: PgConnectOptions = server.url().parse().unwrap();
        let table = TableName::new(&*table).unwrap();
        SqlPersistence::from_postgres_options(options.options([("timezone", zone)]), table).unwrap()
    };
    let zones = ["UTC", "Asia/Karachi", "America/St_Johns"];
    zone("UTC").prepare().await.unwrap();
    for (n, holder) in zones.iter().enumerate() {
        for contender in &zones {
            let (holder, contender) = (zone(holder), zone(contender));
            let name = format!("n{n}");
            let lease = granted(&holder, &claim(&name, MINUTE)).await;
            let seen = denied(&contender, &claim(&name, MINUTE)).await;
            assert!(
                seen.remaining > MINUTE - Duration::from_secs(1) && seen.remaining <= MINUTE,
                "{seen:?}"
            );
            holder.release(&lease).await.unwrap();
            let next = granted(&contender, &claim(&name, MINUTE)).await;
            contender.release(&next).await.unwrap();
        }
    }
}

/// 4: a try that waits for a row is bounded; what it is granted counts from when the row is written.
#[tokio::test]
async fn a_blocked_row_never_gives_a_lease_without_time() {
    let Some(server) = shared().await else { return };
    let (holder, table) = store(&server).await;
    let waiting = store_at(server.url(), &table);
    let ttl = Duration::from_secs(2);
    let first = granted(&holder, &claim("n", ttl)).await;
    holder.release(&first).await.unwrap();
    let mut blocker = by_hand(&server).await;
    run(&mut blocker, "BEGIN").await;
    run(&mut blocker, &format!("SELECT FROM {table} FOR UPDATE")).await;

    let started = Instant::now();
    let error = waiting.try_acquire(&claim("n", ttl)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.is_retryable() && !error.is_indeterminate(),
        "{error:?}"
    );
    assert!(
        started.elapsed() < Duration::from_millis(1200),
        "the wait has no bound"
    );

    // Let go while a try waits: it is granted a whole ttl from then.
    let waiting = patient(server.url(), &table, Duration::from_secs(1));
    let mine = claim("n", ttl);
    let (attempt, ()) = tokio::join!(waiting.try_acquire(&mine), async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        run(&mut blocker, "COMMIT").await;
    });
    assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
    let seen = denied(&holder, &claim("n", ttl)).await;
    assert!(
        seen.remaining > ttl - Duration::from_millis(100),
        "{seen:?}"
    );

    // An application's transaction that has been open for long changes nothing.
    run(&mut blocker, "BEGIN; SELECT now()").await;
    let other = granted(&waiting, &claim("m", ttl)).await;
    assert!(is_held(&holder, "m").await, "not visible at return");
    waiting.release(&other).await.unwrap();
}

/// A renewal whose row is locked past the expiry is not a renewal, and delays no other.
#[tokio::test]
async fn a_locked_row_is_skipped_and_an_expired_one_is_gone() {
    let Some(server) = shared().await else { return };
    let (store, table) = store(&server).await;
    let short = Duration::from_millis(400);
    let locked = granted(&store, &claim("locked", short)).await;
    let free = granted(&store, &claim("free", MINUTE)).await;
    let mut blocker = by_hand(&server).await;
    run(&mut blocker, "BEGIN").await;
    run(
        &mut blocker,
        &format!("SELECT FROM {table} WHERE name = 'locked' FOR UPDATE"),
    )
    .await;
    let answers = store.renew(&[locked.clone(), free.clone()]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert!(
        error.is_retryable() && error.kind() == ErrorKind::Unavailable,
        "{error}"
    );
    assert!(
        matches!(answers[1], Ok(Renewal::Renewed { .. })),
        "{answers:?}"
    );
    eventually("the ttl is over", MINUTE, || async {
        !is_held(&store, "locked").await
    })
    .await;
    run(&mut blocker, "COMMIT").await;
    assert_eq!(renew(&store, &locked).await.unwrap(), Renewal::Gone);
}

/// 60, 61: whatever isolation the database defaults to, contention is no error, neither here nor in
/// the server's log.
#[tokio::test(flavor = "multi_thread")]
async fn contention_is_no_error_at_any_isolation() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let Some(server) = own(&[("default_transaction_isolation", isolation)]).await else {
            return;
        };
        let (first, table) = store(&server).await;
        let mut held = Vec::new();
        for n in 0..10 {
            held.push(granted(&first, &claim(&format!("held{n}"), MINUTE)).await);
        }
        let before = errors(&server).await;
        let contenders: Vec<_> = (0..8)
            .map(|_| {
                let store = store_at(server.url(), &table);
                tokio::spawn(async move {
                    let mut wins = 0;
                    for _ in 0..150 {
                        match store.try_acquire(&claim("n", MINUTE)).await.unwrap() {
                            Attempt::Granted(lease) => {
                                wins += 1;
                                store.release(&lease).await.unwrap();
                            }
                            Attempt::Held(_) => {}
                        }
                    }
                    wins
                })
            })
            .collect();
        for _ in 0..20 {
            for answer in first.renew(&held).await {
                assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
            }
        }
        let mut wins = 0;
        for contender in contenders {
            wins += contender.await.unwrap();
        }
        assert!(wins > 8, "{wins} of 1200 tries won");
        assert_eq!(errors(&server).await, before, "{isolation}");
    }
}

/// Limits that an administrator has set for a user's own work do not end ours.
#[tokio::test]
async fn settings_of_the_role_do_not_reach_the_leases() {
    let Some(server) = shared().await else { return };
    let mut admin = by_hand(&server).await;
    let role = fresh("r");
    run(&mut admin, &format!("CREATE ROLE {role} LOGIN SUPERUSER")).await;
    for (setting, value) in [
        ("statement_timeout", "1"),
        ("lock_timeout", "1"),
        ("default_transaction_isolation", "serializable"),
        ("synchronous_commit", "off"),
        ("bytea_output", "escape"),
        ("standard_conforming_strings", "off"),
    ] {
        run(
            &mut admin,
            &format!("ALTER ROLE {role} SET {setting} = {value}"),
        )
        .await;
    }
    let table = fresh("t");
    let store = store_at(
        &server.url().replace("postgres@", &format!("{role}@")),
        &table,
    );
    store.prepare().await.unwrap();
    let lease = granted(&store, &claim("it's a \\ name", MINUTE)).await;
    // Longer than the user's limit.
    let mut blocker = by_hand(&server).await;
    run(&mut blocker, "BEGIN").await;
    run(&mut blocker, &format!("SELECT FROM {table} FOR UPDATE")).await;
    let (released, ()) = tokio::join!(store.release(&lease), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        run(&mut blocker, "COMMIT").await;
    });
    assert_eq!(released.unwrap(), lock_core::Release::Released);
}

/// 70: an application that uses up its own pool delays no renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_of_the_application_delays_no_renewal() {
    let Some(server) = shared().await else { return };
    let (store, _) = store(&server).await;
    let options: PgConnectOptions = server.url().parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(5)
        .connect_with(options)
        .await
        .unwrap();
    let busy: Vec<_> = (0..20)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { sqlx::query("SELECT pg_sleep(60)").execute(&pool).await })
        })
        .collect();
    let ttl = Duration::from_secs(2);
    let provider = crate::support::provider(&store, ttl);
    let mut guards = Vec::new();
    for n in 0..5 {
        let guard = lock_core::LockProvider::acquire(&provider, &format!("n{n}"))
            .await
            .unwrap();
        guards.push(guard);
    }
    let started = Instant::now();
    while started.elapsed() < ttl * 2 {
        assert!(
            guards.iter().all(|guard| guard.check()),
            "lost after {:?}",
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for task in busy {
        task.abort();
    }
}

/// 64: many at once for a name that is new.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_64_wins_a_new_name() {
    let Some(server) = shared().await else { return };
    let (_, table) = store(&server).await;
    let mut stores = Vec::new();
    for _ in 0..64 {
        let store = store_at(server.url(), &table);
        // So that all have their connections when it begins.
        granted(&store, &claim(&fresh("warm"), MINUTE)).await;
        stores.push(store);
    }
    let rounds = match Tier::of_this_run() {
        Tier::Ci => 20,
        Tier::Full => 200,
    };
    for round in 0..rounds {
        let barrier = Arc::new(tokio::sync::Barrier::new(stores.len()));
        let tries: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
                tokio::spawn(async move {
                    barrier.wait().await;
                    store
                        .try_acquire(&claim(&format!("new{round}"), MINUTE))
                        .await
                })
            })
            .collect();
        let mut wins = 0;
        for attempt in tries {
            wins += usize::from(matches!(
                attempt.await.unwrap().unwrap(),
                Attempt::Granted(_)
            ));
        }
        assert_eq!(wins, 1, "round {round}");
    }
}

/// 56: calls dropped at any moment leave no open transaction and no locked row.
#[tokio::test]
async fn dropped_calls_leave_nothing_open() {
    let Some(server) = shared().await else { return };
    let table = fresh("t");
    let url = format!("{}?application_name={table}", server.url());
    let store = store_at(&url, &table);
    store.prepare().await.unwrap();
    let mine = claim("n", MINUTE);
    for micros in (0..3000).step_by(60) {
        let span = Duration::from_micros(micros);
        let _ = tokio::time::timeout(span, store.try_acquire(&mine)).await;
    }
    store.withdraw(&mine).await.unwrap();
    for n in 0..100 {
        let lease = granted(&store, &claim(&format!("m{n}"), MINUTE)).await;
        store.release(&lease).await.unwrap();
    }
    let mut admin = by_hand(&server).await;
    let open = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}' AND state LIKE 'idle in%'"
    );
    assert_eq!(number(&mut admin, &open).await, 0);
    run(
        &mut admin,
        &format!("SELECT FROM {table} FOR UPDATE NOWAIT"),
    )
    .await;
    // 70: and the sessions of the dropped calls are gone.
    let all = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{table}'");
    let mut counted = 0;
    for _ in 0..500 {
        counted = number(&mut admin, &all).await;
        if counted <= 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(counted <= 4, "{counted} sessions");
}

/// 137: renewals rewrite the row in place.
#[tokio::test]
async fn renewals_do_not_bloat_the_table() {
    // Its own: an old transaction of another test would keep dead rows alive.
    let Some(server) = own(&[]).await else { return };
    let (store, table) = store(&server).await;
    let mut leases = Vec::new();
    for n in 0..20 {
        leases.push(granted(&store, &claim(&format!("n{n}"), MINUTE)).await);
    }
    for _ in 0..150 {
        for answer in store.renew(&leases).await {
            assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
        }
    }
    store.close().await.unwrap();
    let mut admin = by_hand(&server).await;
    let stat = |column: &str| {
        format!("SELECT {column} FROM pg_stat_user_tables WHERE relname = '{table}'")
    };
    let mut updates = 0;
    for _ in 0..500 {
        updates = number(&mut admin, &stat("n_tup_upd")).await;
        if updates >= 3000 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(updates >= 3000, "{updates} updates are counted");
    let hot = number(&mut admin, &stat("n_tup_hot_upd")).await;
    assert!(hot * 100 >= updates * 95, "{hot} of {updates} in place");
    let size = number(
        &mut admin,
        &format!("SELECT pg_total_relation_size('{table}')"),
    )
    .await;
    assert!(size < 1 << 20, "{size} bytes");
}

/// Ten thousand leases are renewed by twenty statements.
#[tokio::test]
async fn ten_thousand_leases_take_one_statement_per_chunk() {
    let Some(server) = shared().await else { return };
    let (store, table) = store(&server).await;
    let mut admin = by_hand(&server).await;
    let leases: Vec<_> = (0..10_000)
        .map(|n| {
            let mine = claim(&format!("n{n}"), MINUTE * 10);
            let handle = lock_core::Handle::none();
            lock_core::Lease::new(&mine, lock_core::Token::new(1).unwrap(), mine.ttl, handle)
        })
        .collect();
    // Made by hand, since ten thousand acquisitions say nothing here.
    for chunk in leases.chunks(1000) {
        let rows: Vec<_> = chunk
            .iter()
            .map(|l| {
                format!(
                    "('{}','me',decode('{:032x}','hex'),1,now()+interval '10 min',600000,'',1,'','','')",
                    l.name(),
                    l.nonce().as_u128()
                )
            })
            .collect();
        run(
            &mut admin,
            &format!("INSERT INTO {table} VALUES {}", rows.join(",")),
        )
        .await;
    }
    let started = Instant::now();
    for answer in store.renew(&leases).await {
        assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
    }
    println!("10,000 renewals in {:?}", started.elapsed());
    let other = claim("n5", MINUTE).with_metadata(lock_core::Metadata::default());
    assert_ne!(other.nonce, Nonce::from_u128(0));
    assert!(denied(&store, &other).await.remaining > MINUTE * 9);
    assert_eq!(
        store
            .observe(&name("n7"))
            .await
            .unwrap()
            .holder()
            .unwrap()
            .version,
        2
    );
}
