//! Waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_core::{Attempt, LockPersistence as _};

use crate::support::{LONG, Place, claim, granted, number};

/// However many wait, a release sets off one try, and the others are left alone.
#[tokio::test]
async fn a_release_tells_one_waiter() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = Arc::new(place.prepared().await);
    let lease = granted(&store, &claim("a", LONG)).await;
    let tries = Arc::new(AtomicU32::new(0));
    let mut waiters = Vec::new();
    for _ in 0..40 {
        let (store, tries) = (Arc::clone(&store), Arc::clone(&tries));
        waiters.push(tokio::spawn(async move {
            let claim = claim("a", LONG);
            loop {
                match store.try_acquire(&claim).await.unwrap() {
                    Attempt::Granted(lease) => return lease,
                    Attempt::Held(holder) => store.wait(&claim, &holder).await.unwrap(),
                }
                tries.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    // All have looked and wait.
    let mut hand = place.by_hand().await;
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = number(&mut hand, "SHOW GLOBAL STATUS LIKE 'Com_insert_select'").await;
        if now == before {
            break;
        }
        before = now;
    }
    assert_eq!(tries.load(Ordering::Relaxed), 0);
    let mut held = lease;
    for round in 1..=5 {
        store.release(&held).await.unwrap();
        let (next, _, rest) = futures_util::future::select_all(waiters).await;
        (held, waiters) = (next.unwrap(), rest);
        let woken = tries.load(Ordering::Relaxed);
        assert!(
            woken <= 3 * round,
            "{woken} of forty were woken by {round} releases"
        );
    }
    for waiter in waiters {
        waiter.abort();
    }
}
