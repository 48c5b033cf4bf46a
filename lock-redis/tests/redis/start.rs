//! What is looked at before the first request.

use lock_core::{ErrorKind, LockPersistence as _};
use lock_redis::{RedisConfig, RedisPersistence};

use crate::support::{by_hand, own, shared, store_at};

/// 104: a user who may run no scripts is told so at the start, and which right is missing.
#[tokio::test]
async fn a_missing_right_is_one_clear_error() {
    let Some(server) = own(false).await else {
        return;
    };
    let mut admin = by_hand(server.url()).await;
    for (user, rules) in [
        ("noscript", "on >hunter2 ~* &* +@all -eval -evalsha"),
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
        (url("nokeys", "hunter2"), "~PREFIX"),
        (url("noscript", "hunter3"), "user and password"),
    ] {
        let error = prepare(url).await.expect_err(word);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    }
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
    let claim = crate::support::claim("n", crate::support::MINUTE);
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
    drop(shared().await);
}
