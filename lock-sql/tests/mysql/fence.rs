//! Fenced writes.

use std::time::Duration;

use lock_core::{Attempt, ErrorKind, LockPersistence as _, Renewal};
use lock_sql::Fence as _;
use lock_sql::sqlx::Connection as _;

use crate::support::{LONG, Place, block, claim, granted, number, renewed, run};

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
