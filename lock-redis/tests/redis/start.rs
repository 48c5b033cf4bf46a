//! What is looked at before the first request.

use std::time::Duration;

use lock_core::{ErrorKind, LockPersistence as _, LockProvider as _};
use lock_redis::{RedisConfig, RedisPersistence};

use redis::AsyncCommands as _;

use crate::support::{MINUTE, by_hand, own, store_at};

/// 104: a user who may run no scripts is told so at the start, and which right is missing.
#[tokio::test]
async fn a_missing_right_is_one_clear_error() {
    let Some(server) = own(false).await else {
        return;
    };
    let mut admin = by_hand(server.url()).await;
    for (user, rules) in [
        ("noscript", "on >hunter2 ~* &* +@all -eval -evalsha"),
        ("notime", "on >hunter2 ~* &* +@all -time"),
        ("noinfo", "on >hunter2 ~* &* +@all -info"),
        ("nokeys", "on >hunter2 ~other:* &* +@all"),
    ] {
        let _: () = redis::cmd("ACL")
            .arg("SETUSER")
            .arg(user)
            .arg(rules.split(' ').collect::<Vec<_>>())
            .query_async(&mut admin)
            .await
            .unwrap();
    }
    let url = |user: &str, password: &str| {
        server
            .url()
            .replace("redis://", &format!("redis://{user}:{password}@"))
    };
    let prepare = async |url: String| store_at(&url, "acl:").leases.prepare().await;
    prepare(url("noinfo", "hunter2"))
        .await
        .expect("a warning is enough");
    for (url, word) in [
        (url("noscript", "hunter2"), "eval"),
        (url("notime", "hunter2"), "+time"),
        (url("nokeys", "hunter2"), "~PREFIX"),
        (url("noscript", "hunter3"), "user and password"),
    ] {
        let error = prepare(url).await.expect_err(word);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    }
}

/// 104: the rights that the documentation names are enough for all that a guard and a waiter do.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough() {
    let Some(server) = own(false).await else {
        return;
    };
    let docs = include_str!("../../src/docs.md");
    let rights = docs.split('`').find(|part| part.starts_with("~PREFIX*"));
    let rights = rights.expect("documented").replace("PREFIX", "acl:");
    let mut admin = by_hand(server.url()).await;
    let _: () = redis::cmd("ACL")
        .arg(&["SETUSER", "exact", "on", ">hunter2", "-@all"])
        .arg(rights.split_whitespace().collect::<Vec<_>>())
        .query_async(&mut admin)
        .await
        .unwrap();
    let url = server.url().replace("redis://", "redis://exact:hunter2@");
    let store = store_at(&url, "acl:");
    store.leases.prepare().await.unwrap();
    let provider = store.provider(MINUTE);
    let guard = provider.acquire("n").await.unwrap();
    let other = store_at(&url, "acl:").provider(MINUTE);
    let waiter = tokio::spawn(async move { other.acquire("n").await });
    let mut in_line = async || admin.zcard::<_, u64>(store.key("n", "line")).await.unwrap();
    while in_line().await < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.unwrap();
    let next = tokio::time::timeout(MINUTE, waiter).await.unwrap();
    let next = next.unwrap().unwrap();
    store
        .leases
        .revoke(next.lease().name(), "by hand")
        .await
        .unwrap();
    assert_eq!(store.leases.list("").await.unwrap().len(), 1);
    store.leases.server_time().await.unwrap();
    store.leases.sweep(Duration::ZERO).await.unwrap();
}

/// 73: a replica is refused, by name of what is wrong.
#[tokio::test]
async fn a_replica_is_refused() {
    let (Some(master), Some(replica)) = (own(false).await, own(false).await) else {
        return;
    };
    let Some(port) = master.port() else { return };
    let mut admin = by_hand(replica.url()).await;
    let _: () = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(port)
        .query_async(&mut admin)
        .await
        .unwrap();
    let store = store_at(replica.url(), "r:");
    let error = store.leases.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("replica"), "{error}");
    let claim = crate::support::claim("n", MINUTE);
    let error = store.leases.try_acquire(&claim).await.unwrap_err();
    assert!(error.to_string().contains("replica"), "{error}");
}

/// 107: no server is an error, at once.
#[tokio::test]
async fn a_dead_port_is_unavailable() {
    let config = RedisConfig::from_url("redis://127.0.0.1:1").unwrap();
    let store = RedisPersistence::new(&config).unwrap();
    let error = store.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && !error.is_indeterminate(), "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
