//! Connecting by URL, and using what comes of it.

use lockkit::{ConnectOptions, ErrorKind, LockProvider, connect};

#[tokio::test]
async fn memory_gives_a_lock() {
    let provider = connect("memory:").await.unwrap();
    let guard = provider.try_acquire("a").await.unwrap().expect("free");
    assert!(guard.check());
    assert!(provider.try_acquire("a").await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(provider.try_acquire("a").await.unwrap().is_some());
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_excludes_across_connections() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let (one, two) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = one.try_acquire("a").await.unwrap().expect("free");
    assert!(two.try_acquire("a").await.unwrap().is_none());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = two.try_acquire("a").await.unwrap().expect("free again");
    assert!(next.token() > token);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn without_prepare_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    let provider = ConnectOptions::new()
        .with_prepare(false)
        .connect(&url)
        .await
        .unwrap();
    assert!(!path.exists());
    let error = provider.observe("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema, "{error}");
    assert!(!path.exists());
}
