//! The network, the server's life, and what others do on the same database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance_tests::Tier;
use conformance_tests::servers::{Direction, Flow, Proxy, Server};
use lock_core::{LockPersistence as _, LockProvider as _, Provider, Renewal, Timing};
use lock_sql::sqlx::mysql::MySqlPoolOptions;
use lock_sql::sqlx::{self, Connection as _};
use lock_sql::{Fence as _, MySqlConfig, SqlPersistence, TableName};

use crate::support::{LONG, Place, block, claim, eventually, granted, renewed, run};

fn provider(store: &Arc<SqlPersistence>, ttl: Duration) -> Provider {
    Provider::new(Arc::clone(store) as _).with_timing(Timing::for_ttl(ttl).unwrap())
}

/// The same table through a proxy, and the proxy.
fn through_proxy(place: &Place) -> Option<(Arc<SqlPersistence>, Proxy)> {
    let proxy = Proxy::start(place.server.port()?).unwrap();
    let config = MySqlConfig::from_url(&place.server.url_at(proxy.port()))
        .unwrap()
        .with_table(TableName::new(&place.table).unwrap());
    Some((Arc::new(SqlPersistence::mysql(&config).unwrap()), proxy))
}

async fn on<E: std::fmt::Debug + Send + 'static>(
    server: &Server,
    what: fn(&Server) -> Result<(), E>,
) {
    let server = server.clone();
    tokio::task::spawn_blocking(move || what(&server).unwrap())
        .await
        .unwrap();
}

/// Where a connection takes longer to open than a call may, calls that give up must not begin anew each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_slow_to_open_is_used_in_the_end() {
    let Some(place) = Place::shared().await else {
        return;
    };
    place.prepared().await;
    let Some((store, proxy)) = through_proxy(&place) else {
        return;
    };
    // Some requests go back and forth before a connection can be used; one alone fits into a call.
    proxy.set_delay(Direction::ToClient, Duration::from_millis(300));
    let name = crate::support::name("a");
    let mut calls = 0;
    loop {
        calls += 1;
        let call = store.observe(&name);
        if let Ok(seen) = tokio::time::timeout(Duration::from_millis(700), call).await {
            seen.unwrap();
            break;
        }
        assert!(calls < 20, "never opened");
    }
    assert!(calls > 1, "the connection was not slow");
}

/// A handshake that the network has swallowed never ends: the next call has a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_was_swallowed_holds_nobody_up() {
    let Some(place) = Place::shared().await else {
        return;
    };
    place.prepared().await;
    let Some((store, proxy)) = through_proxy(&place) else {
        return;
    };
    let name = crate::support::name("a");
    proxy.set_flow(Direction::ToClient, Flow::Swallow);
    let call = store.observe(&name);
    let call = tokio::time::timeout(Duration::from_millis(500), call).await;
    assert!(call.is_err(), "{call:?}");
    proxy.heal();
    let call = tokio::time::timeout(Duration::from_secs(3), store.observe(&name));
    call.await.expect("a new connection").unwrap();
}

/// 76, and the second half of 16.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_restart_loses_nothing_and_a_long_one_ends_the_term() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = Arc::new(place.prepared().await);
    // Its stop and its start take seconds of their own on a busy machine.
    let ttl = Duration::from_secs(15);
    let guard = provider(&store, ttl).acquire("n").await.unwrap();
    let token = guard.token();
    on(&place.server, Server::stop).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    on(&place.server, Server::restart).await;
    let before = guard.remaining();
    let started = Instant::now();
    while guard.remaining() <= before + Duration::from_millis(200) {
        assert!(guard.check(), "lost by a short restart");
        assert!(started.elapsed() < ttl, "not renewed after the restart");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(guard.token(), token);
    guard.release().await.unwrap();

    let ttl = Duration::from_secs(2);
    let guard = provider(&store, ttl).acquire("n").await.unwrap();
    on(&place.server, Server::stop).await;
    let down = Instant::now();
    tokio::time::timeout(ttl + Duration::from_secs(1), guard.lost())
        .await
        .expect("a server that is down ends the term by its deadline");
    assert!(!guard.check());
    tokio::time::sleep((ttl * 2).saturating_sub(down.elapsed())).await;
    on(&place.server, Server::restart).await;
    let other = provider(&Arc::new(place.store()), ttl);
    let next = tokio::time::timeout(LONG, other.acquire("n")).await;
    assert!(next.unwrap().unwrap().token() > guard.token());
}

/// 16, 69: a connection that is open and silent. The term ends by its deadline, another takes over after the ttl
/// whatever the server still thinks of the old connection, and afterwards a new one is opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_ends_the_term_in_time() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let direct = Arc::new(place.prepared().await);
    let Some((store, proxy)) = through_proxy(&place) else {
        return;
    };
    let ttl = Duration::from_secs(2);
    let guard = provider(&store, ttl).acquire("n").await.unwrap();
    proxy.black_hole();
    tokio::time::timeout(ttl + Duration::from_millis(300), guard.lost())
        .await
        .expect("lost by the deadline");
    let other = provider(&direct, ttl);
    let next = tokio::time::timeout(ttl * 3, other.acquire("n")).await;
    let next = next.unwrap().unwrap();
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
    proxy.heal();
    let provider = provider(&store, ttl);
    let again = tokio::time::timeout(ttl * 5, provider.acquire("n")).await;
    assert!(again.unwrap().unwrap().token() > next.token());
}

/// 70: an application that uses up its own pool delays no renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_pool_of_the_application_delays_no_renewal() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = Arc::new(place.prepared().await);
    let pool = MySqlPoolOptions::new().max_connections(5);
    let pool = pool.connect(&place.url).await.unwrap();
    let busy: Vec<_> = (0..20)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { sqlx::query("SELECT SLEEP(60)").execute(&pool).await })
        })
        .collect();
    let ttl = Duration::from_secs(2);
    let provider = provider(&store, ttl);
    let mut guards = Vec::new();
    for n in 0..5 {
        guards.push(provider.acquire(&format!("n{n}")).await.unwrap());
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

/// 78: many start at once on an empty database.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_starts_at_once_make_one_table_and_no_error() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let full = Tier::of_this_run() == Tier::Full;
    let rounds = if full { 50 } else { 5 };
    for _ in 0..rounds {
        let place = Place::at(place.server.clone());
        let starts: Vec<_> = (0..16)
            .map(|n| {
                let store = place.store();
                tokio::spawn(async move {
                    store.prepare().await.unwrap();
                    granted(&store, &claim(&format!("n{n}"), LONG)).await
                })
            })
            .collect();
        for start in starts {
            start.await.unwrap();
        }
    }
}

/// A transaction that has the row of one lease for twice the ttl delays the renewal of no other, and commits
/// nothing when it comes too late.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_among_a_thousand_leases_loses_none_of_the_others() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let ttl = Duration::from_secs(4);
    let mut all = Vec::new();
    for n in 0..1000 {
        all.push(granted(&store, &claim(&format!("lease {n:04}"), LONG)).await);
    }
    let locked = granted(&store, &claim("lease 0500 locked", ttl)).await;
    all.insert(500, locked.clone());
    let mut app = place.by_hand().await;
    let work = format!("{}_work", place.table);
    run(
        &mut app,
        &format!("CREATE TABLE {work} (n INT) ENGINE=InnoDB"),
    )
    .await;
    let blocker = block(&place, "lease 0500 locked", ttl * 2).await;
    let started = Instant::now();
    let mut rounds = 0;
    while !blocker.is_finished() {
        let sent = Instant::now();
        let answers = store.renew(&all).await;
        let took = sent.elapsed();
        for (n, answer) in answers.iter().enumerate() {
            let renewed = matches!(answer, Ok(Renewal::Renewed { .. }));
            // The locked one may be had again at the very end.
            assert!(
                renewed || n == 500,
                "{n} after {:?}: {answer:?}",
                started.elapsed()
            );
        }
        assert!(took < ttl / 2, "a round took {took:?}");
        rounds += 1;
        tokio::time::sleep(ttl / 8).await;
    }
    assert!(rounds > 4, "{rounds}");
    blocker.await.unwrap();
    assert_eq!(renewed(&store, &locked).await.unwrap(), Renewal::Gone);
    let mut tx = app.begin().await.unwrap();
    run(&mut tx, &format!("INSERT INTO {work} VALUES (1)")).await;
    assert!(locked.commit(tx).await.is_err());
    // The row is not left locked.
    let next = eventually(|| async { store.try_acquire(&claim("lease 0500 locked", LONG)).await });
    assert!(matches!(next.await, lock_core::Attempt::Granted(_)));
}
