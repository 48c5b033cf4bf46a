//! One connection for all calls, and what is asked of it.

use std::time::Duration;

use lock_core::{Attempt, LockName, LockPersistence as _, LockProvider as _, Renewal};
use redis::AsyncCommands as _;

use crate::support::{MINUTE, by_hand, claim, shared, store};

/// 57: ten thousand calls dropped at any moment, among others whose answers are known: each answer belongs to its
/// own question.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancelled_calls_never_mix_replies() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let mut tokens = Vec::new();
    for n in 0..16 {
        tokens.push(
            store
                .granted(&claim(&format!("n{n}"), MINUTE))
                .await
                .token(),
        );
    }
    let cancelled = tokio::spawn({
        let store = store.clone();
        async move {
            for n in 0_u64..10_000 {
                let claim = claim(&format!("n{}", n % 16), MINUTE);
                let call = store.leases.try_acquire(&claim);
                let patience = Duration::from_micros(n * 7919 % 300);
                match tokio::time::timeout(patience, call).await {
                    Ok(Ok(Attempt::Held(_))) | Err(_) => {}
                    other => panic!("call {n} of a held name: {other:?}"),
                }
            }
        }
    });
    let mut asked = 0_u32;
    while !cancelled.is_finished() || asked < 1000 {
        let n = asked as usize % 16;
        let name = LockName::new(format!("n{n}")).unwrap();
        let seen = store.leases.observe(&name).await.unwrap();
        assert_eq!(seen.holder().unwrap().token, tokens[n], "question {asked}");
        asked += 1;
    }
    cancelled.await.unwrap();
}

/// 104: the server forgets its scripts again and again.
#[tokio::test(flavor = "multi_thread")]
async fn flushed_scripts_cost_no_term() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let guard = store
        .provider(Duration::from_secs(1))
        .acquire("n")
        .await
        .unwrap();
    let mut admin = by_hand(server.url()).await;
    for _ in 0..60 {
        let _: () = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query_async(&mut admin)
            .await
            .unwrap();
        assert!(guard.check());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    guard.release().await.unwrap();
}

/// 39: an expiry taken away by hand comes back with the next look.
#[tokio::test]
async fn a_lease_always_ends() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let lease = store.granted(&claim("n", Duration::from_secs(2))).await;
    let mut admin = by_hand(server.url()).await;
    let key = store.key("n", "lease");
    let _: bool = admin.persist(&key).await.unwrap();
    let other = store.leases.try_acquire(&claim("n", MINUTE)).await.unwrap();
    assert!(matches!(other, Attempt::Held(h) if h.token == lease.token()));
    let left: i64 = admin.pttl(&key).await.unwrap();
    assert!((1..=2000).contains(&left), "{left}");
}

/// 95: everything is gone, and the next token is larger all the same; the old term is not renewed.
#[tokio::test]
async fn tokens_grow_after_all_is_lost() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let first = store.granted(&claim("n", MINUTE)).await;
    let mut admin = by_hand(server.url()).await;
    for kind in ["lease", "mark"] {
        let _: u64 = admin.del(store.key("n", kind)).await.unwrap();
    }
    assert_eq!(store.renew(&first).await.unwrap(), Renewal::Gone);
    let second = store.granted(&claim("n", MINUTE)).await;
    assert!(second.token() > first.token());
    // The lease alone, as an eviction takes it.
    let _: u64 = admin.del(store.key("n", "lease")).await.unwrap();
    let third = store.granted(&claim("n", MINUTE)).await;
    assert!(third.token() > second.token());
    // The mark alone: the next renewal writes it again.
    let _: u64 = admin.del(store.key("n", "mark")).await.unwrap();
    store.renew(&third).await.unwrap();
    let mark: u64 = admin.hget(store.key("n", "mark"), "token").await.unwrap();
    assert_eq!(mark, third.token().get());
}

/// What another program keeps under a key is left alone.
#[tokio::test]
async fn a_foreign_key_is_a_conflict() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let mut admin = by_hand(server.url()).await;
    let _: () = admin.set(store.key("n", "lease"), "theirs").await.unwrap();
    let error = store
        .leases
        .try_acquire(&claim("n", MINUTE))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), lock_core::ErrorKind::Conflict, "{error}");
    let kept: String = admin.get(store.key("n", "lease")).await.unwrap();
    assert_eq!(kept, "theirs");
    let _: u64 = admin.del(store.key("n", "lease")).await.unwrap();
}
