//! Restarts, pauses, silent and killed connections.

use std::time::Duration;

use conformance_tests::servers::{Direction, Flow, Proxy, Server};
use lock_core::{Attempt, LockPersistence as _, LockProvider as _};

use crate::support::{MINUTE, claim, on, own, shared, store, store_at};

/// 76: a restart of a second is no loss where the server keeps what it said; a long outage ends the term in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_restart_loses_nothing_and_a_long_one_ends_the_term() {
    let Some(server) = own(true).await else {
        return;
    };
    let store = store(&server);
    let ttl = Duration::from_secs(5);
    let guard = store.provider(ttl).acquire("n").await.unwrap();
    on(&server, Server::kill).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    on(&server, Server::restart).await;
    let before = guard.remaining();
    let renewed = async {
        while guard.remaining() <= before + Duration::from_millis(200) {
            assert!(guard.check(), "lost by a short restart");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(ttl, renewed)
        .await
        .expect("renewed after the restart");
    on(&server, Server::kill).await;
    tokio::time::timeout(ttl + Duration::from_secs(1), guard.lost())
        .await
        .expect("a server that is down ends the term by its deadline");
    on(&server, Server::restart).await;
    let other = store_at(server.url(), &store.prefix);
    let other = other.provider(ttl);
    let next = tokio::time::timeout(MINUTE, other.acquire("n")).await;
    assert!(next.unwrap().unwrap().token() > guard.token());
}

/// A handshake that the network has swallowed never ends: the next call has a connection of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_was_swallowed_holds_nobody_up() {
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), "handshake:");
    let name = claim("n", MINUTE).name;
    proxy.set_flow(Direction::ToClient, Flow::Swallow);
    let call = store.leases.observe(&name);
    let call = tokio::time::timeout(Duration::from_millis(500), call).await;
    assert!(call.is_err(), "{call:?}");
    proxy.heal();
    let call = tokio::time::timeout(Duration::from_secs(3), store.leases.observe(&name));
    call.await.expect("a new connection").unwrap();
}

/// 16, 106: a connection that is open and silent ends the term in time, and another one is opened after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_ends_the_term_in_time() {
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let direct = store(&server);
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), &direct.prefix);
    let ttl = Duration::from_secs(3);
    let guard = store.provider(ttl).acquire("n").await.unwrap();
    // What is sent now is lost, and the connection stays open.
    let before = guard.remaining();
    proxy.black_hole();
    while guard.remaining() > ttl / 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.heal();
    let renewed = async {
        while guard.remaining() < before - ttl / 8 {
            assert!(
                guard.check(),
                "lost though a new connection would have served"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(ttl, renewed)
        .await
        .expect("over a new connection");
    assert!(
        proxy.accepted() >= 2,
        "the silent connection was used again"
    );
    proxy.black_hole();
    tokio::time::timeout(ttl + Duration::from_millis(300), guard.lost())
        .await
        .expect("lost by the deadline");
}

/// 57: an answer that was swallowed means nothing: the same nonce asks again, and gets the same token.
#[tokio::test(flavor = "multi_thread")]
async fn a_swallowed_grant_is_found_again() {
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let direct = store(&server);
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), &direct.prefix);
    store.leases.server_time().await.unwrap();
    let claim = claim("n", MINUTE);
    proxy.swallow_next_answer();
    let error = store.leases.try_acquire(&claim).await.unwrap_err();
    assert!(error.is_indeterminate() && error.is_retryable(), "{error}");
    let seen = direct.leases.observe(&claim.name).await.unwrap();
    let lease = store.granted(&claim).await;
    assert_eq!(lease.token(), seen.holder().unwrap().token);
}

/// A try that was dropped while the server stood still, and is carried out after the withdrawal that followed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_try_of_a_withdrawn_claim_takes_nothing() {
    let Some(server) = shared().await else { return };
    let Some(port) = server.port() else { return };
    let direct = store(&server);
    let proxy = Proxy::start(port).unwrap();
    let store = store_at(&server.url_at(proxy.port()), &direct.prefix);
    store.leases.server_time().await.unwrap();
    let claim = claim("n", MINUTE);
    proxy.set_flow(Direction::ToServer, Flow::Hold);
    let dropped =
        tokio::time::timeout(Duration::from_millis(300), store.leases.try_acquire(&claim));
    dropped.await.expect_err("held up");
    // It overtakes the try over another connection.
    direct.leases.withdraw(&claim).await.unwrap();
    let after = proxy.bytes(Direction::ToServer);
    proxy.heal();
    let arrived = async {
        while proxy.bytes(Direction::ToServer) == after {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MINUTE, arrived)
        .await
        .expect("the try arrives");
    store.leases.server_time().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let seen = direct.leases.observe(&claim.name).await.unwrap();
    assert!(seen.holder().is_none(), "held for nobody: {seen:?}");
    let again = direct.leases.try_acquire(&claim).await;
    assert!(again.is_err(), "a dead nonce was granted: {again:?}");
    let next = crate::support::claim("n", MINUTE);
    assert!(matches!(
        direct.leases.try_acquire(&next).await.unwrap(),
        Attempt::Granted(_)
    ));
}
