//! Restarts, failovers, killed and silent connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance_tests::servers::{Direction, Flow, Proxy, Server};
use lock_core::{ErrorKind, LockPersistence as _, LockProvider as _, Renewal};

use crate::support::{
    MINUTE, by_hand, claim, eventually, granted, is_held, on, own, provider, renew, run, shared,
    store, store_at,
};

/// 76: a restart of a second is no loss; the same term goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_restart_loses_nothing_and_a_long_one_ends_the_term() {
    let Some(server) = own(&[]).await else { return };
    let (store, table) = store(&server).await;
    let ttl = Duration::from_secs(5);
    let guard = provider(&store, ttl).acquire("n").await.unwrap();
    let token = guard.token();
    on(&server, Server::stop).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    on(&server, Server::restart).await;
    let before = guard.remaining();
    eventually("it is renewed after the restart", ttl, || async {
        assert!(guard.check(), "lost by a short restart");
        guard.remaining() > before + Duration::from_millis(200)
    })
    .await;
    assert_eq!(guard.token(), token);

    on(&server, Server::stop).await;
    let stopped = Instant::now();
    tokio::time::timeout(ttl + Duration::from_secs(1), guard.lost())
        .await
        .expect("a server that is down ends the term by its deadline");
    assert!(!guard.check());
    tokio::time::sleep_until((stopped + ttl * 2).into()).await;
    on(&server, Server::restart).await;
    let other = store_at(server.url(), &table);
    let next = tokio::time::timeout(MINUTE, provider(&other, ttl).acquire("n"))
        .await
        .unwrap()
        .unwrap();
    assert!(next.token() > token);
}

/// Where a connection takes longer to open than a call may, calls that give up must not begin anew each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_slow_to_open_is_used_in_the_end() {
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let (_, table) = store(&server).await;
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), &table);
    // Some requests go back and forth before a connection can be used; what comes then fits into a call.
    proxy.set_delay(Direction::ToClient, Duration::from_millis(300));
    let name = claim("n", MINUTE).name;
    let mut calls = 0;
    loop {
        calls += 1;
        let call = store.observe(&name);
        if let Ok(seen) = tokio::time::timeout(Duration::from_millis(850), call).await {
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
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let (_, table) = store(&server).await;
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), &table);
    let name = claim("n", MINUTE).name;
    proxy.set_flow(Direction::ToClient, Flow::Swallow);
    let call = store.observe(&name);
    let call = tokio::time::timeout(Duration::from_millis(500), call).await;
    assert!(call.is_err(), "{call:?}");
    proxy.heal();
    let call = tokio::time::timeout(Duration::from_secs(3), store.observe(&name));
    call.await.expect("a new connection").unwrap();
}

/// 16: a connection that is open and silent: loss by the deadline, and a new connection afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_ends_the_term_in_time() {
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let (direct, table) = store(&server).await;
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), &table);
    let ttl = Duration::from_secs(2);
    let guard = provider(&store, ttl).acquire("n").await.unwrap();
    proxy.black_hole();
    tokio::time::timeout(ttl + Duration::from_millis(300), guard.lost())
        .await
        .expect("lost by the deadline");
    let next = tokio::time::timeout(ttl * 3, provider(&direct, ttl).acquire("n"))
        .await
        .unwrap()
        .unwrap();
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
    proxy.heal();
    let provider = provider(&store, ttl);
    let again = tokio::time::timeout(ttl * 5, provider.acquire("n")).await;
    assert!(again.unwrap().unwrap().token() > next.token());
}

/// Sessions killed while idle are replaced within the call, and the caller hears nothing of it.
#[tokio::test]
async fn killed_idle_sessions_are_replaced_in_the_call() {
    let Some(server) = shared().await else { return };
    let table = crate::support::fresh("t");
    let store = store_at(
        &format!("{}?application_name={table}", server.url()),
        &table,
    );
    store.prepare().await.unwrap();
    let mut admin = by_hand(&server).await;
    let lease = granted(&store, &claim("n", MINUTE)).await;
    let kill = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{table}'"
    );
    for _ in 0..5 {
        renew(&store, &lease).await.unwrap();
        assert!(is_held(&store, "n").await);
        run(&mut admin, &kill).await;
        assert!(matches!(
            renew(&store, &lease).await.unwrap(),
            Renewal::Renewed { .. }
        ));
        let again = granted(&store, lease.claim()).await;
        assert_eq!(again.token(), lease.token());
        assert!(is_held(&store, "n").await);
    }
}

/// A waiter is told again after its listening session was killed, and after a silent one was noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_survives_its_listener() {
    let Some(server) = shared().await else { return };
    let table = crate::support::fresh("t");
    let store = store_at(
        &format!("{}?application_name={table}", server.url()),
        &table,
    );
    store.prepare().await.unwrap();
    let holder = store_at(server.url(), &table);
    let mut admin = by_hand(&server).await;
    let lease = granted(&holder, &claim("n", MINUTE)).await;
    let mine = claim("n", MINUTE).with_mode(lock_core::Mode::Queue);
    let seen = crate::support::denied(&store, &mine).await;
    let waiting = {
        let (store, mine, seen) = (Arc::clone(&store), mine.clone(), seen.clone());
        tokio::spawn(async move { store.wait(&mine, &seen).await })
    };
    let kill = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE application_name = '{table}' AND query ILIKE '%listen%'"
    );
    tokio::time::sleep(Duration::from_millis(200)).await;
    run(&mut admin, &kill).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "it resolved though nothing changed");
    holder.release(&lease).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .expect("told after the listener was killed")
        .unwrap()
        .unwrap();
}

/// 72: a server that turned read-only is left, and used again when it can write.
#[tokio::test]
async fn a_read_only_server_is_unavailable_until_it_writes() {
    let Some(server) = own(&[]).await else { return };
    let (store, _) = store(&server).await;
    let mut admin = by_hand(&server).await;
    let lease = granted(&store, &claim("n", MINUTE)).await;
    run(
        &mut admin,
        "ALTER SYSTEM SET default_transaction_read_only = on",
    )
    .await;
    run(&mut admin, "SELECT pg_reload_conf()").await;
    let mut refused = None;
    for _ in 0..200 {
        match renew(&store, &lease).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let error = refused.expect("the server is read-only");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.is_retryable() && !error.is_indeterminate(),
        "{error:?}"
    );
    run(&mut admin, "SET default_transaction_read_only = off").await;
    run(
        &mut admin,
        "ALTER SYSTEM RESET default_transaction_read_only",
    )
    .await;
    run(&mut admin, "SELECT pg_reload_conf()").await;
    eventually("it is renewed again", Duration::from_secs(5), || async {
        matches!(renew(&store, &lease).await, Ok(Renewal::Renewed { .. }))
    })
    .await;
}

/// 107: no server, no answer but an error; nothing of the password in it.
#[tokio::test]
async fn no_server_is_unavailable_and_shows_no_password() {
    let store = store_at("postgres://me:hunter2@127.0.0.1:1/x", "t");
    let error = store.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.is_indeterminate(), "{error:?}");
    for text in [
        format!("{error}"),
        format!("{error:?}"),
        format!("{store:?}"),
    ] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}
