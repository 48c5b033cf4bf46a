//! Locked rows, races and clocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{Attempt, LeaseState, LockPersistence as _, Renewal};
use tokio::sync::Barrier;

use crate::support::{LONG, Place, block, claim, granted, number, renewed};

#[tokio::test]
async fn a_renewal_past_the_expiry_does_not_revive() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let ttl = Duration::from_millis(600);
    let lease = granted(&store, &claim("a", ttl)).await;
    let other = granted(&store, &claim("b", LONG)).await;
    let blocker = block(&place, "a", Duration::from_millis(900)).await;
    // While another has the row it is neither renewed nor gone, and the other lease is not kept waiting.
    let started = Instant::now();
    let answers = store.renew(&[lease.clone(), other.clone()]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert!(error.is_retryable() && !error.is_indeterminate(), "{error}");
    assert!(matches!(answers[1], Ok(Renewal::Renewed { .. })));
    assert!(started.elapsed() < ttl, "{:?}", started.elapsed());
    blocker.await.unwrap();
    assert_eq!(renewed(&store, &lease).await.unwrap(), Renewal::Gone);
    assert!(matches!(
        store.observe(lease.name()).await.unwrap().state,
        LeaseState::Expired(_)
    ));
}

/// `UTC_TIMESTAMP` stands still while a statement waits for a row. With it in place of `SYSDATE` the repeated
/// try below keeps its old token.
#[tokio::test]
async fn a_try_that_waited_is_judged_when_it_gets_the_row() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let ttl = Duration::from_millis(400);
    // Its own grant expires while the repeated try waits: a new term, with a new token and a whole ttl.
    let claim = claim("a", ttl);
    let first = granted(&store, &claim).await;
    let blocker = block(&place, "a", Duration::from_millis(800)).await;
    let second = granted(&store, &claim).await;
    blocker.await.unwrap();
    assert!(second.token() > first.token());
    let seen = store.observe(&claim.name).await.unwrap();
    let remaining = seen.holder().expect("held").remaining;
    assert!(remaining > ttl / 2, "{remaining:?}");
    assert_eq!(renewed(&store, &first).await.unwrap(), Renewal::Gone);
}

/// A crowd of candidates must not be in the way of the holder, nor write to the disk.
#[tokio::test]
async fn a_denied_try_waits_for_nobody_and_writes_nothing() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("a", LONG)).await;
    let blocker = block(&place, "a", Duration::from_millis(700)).await;
    let started = Instant::now();
    let attempt = store.try_acquire(&claim("a", LONG)).await.unwrap();
    assert!(matches!(attempt, Attempt::Held(h) if h.token == lease.token()));
    assert!(!blocker.is_finished(), "{:?}", started.elapsed());
    blocker.await.unwrap();
    let mut hand = place.by_hand().await;
    let written = "SHOW GLOBAL STATUS LIKE 'Innodb_os_log_written'";
    // The server itself writes now and then: a quiet round is enough.
    let mut quiet = false;
    for _ in 0..20 {
        let before = number(&mut hand, written).await;
        for _ in 0..50 {
            store.try_acquire(&claim("a", LONG)).await.unwrap();
        }
        quiet |= number(&mut hand, written).await == before;
    }
    assert!(
        quiet,
        "each of twenty rounds of denied tries wrote to the log"
    );
    let before = number(&mut hand, written).await;
    renewed(&store, &lease).await.unwrap();
    assert!(
        number(&mut hand, written).await > before,
        "the figure is a real one"
    );
}

#[tokio::test]
async fn one_of_many_first_tries_wins() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let stores: Vec<_> = {
        let mut stores = vec![place.prepared().await];
        stores.resize_with(24, || place.store());
        stores.into_iter().map(Arc::new).collect()
    };
    let mut hand = place.by_hand().await;
    let mut last = None;
    for round in 0..20 {
        let name = format!("round-{round}");
        let barrier = Arc::new(Barrier::new(stores.len()));
        let tries: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, barrier) = (Arc::clone(store), Arc::clone(&barrier));
                let claim = claim(&name, LONG);
                tokio::spawn(async move {
                    barrier.wait().await;
                    store.try_acquire(&claim).await
                })
            })
            .collect();
        let mut winners = Vec::new();
        for attempt in tries {
            if let Attempt::Granted(lease) = attempt.await.unwrap().unwrap() {
                winners.push(lease.token());
            }
        }
        assert_eq!(winners.len(), 1, "{name}");
        assert!(last < Some(winners[0]));
        last = Some(winners[0]);
    }
    let count = format!("SELECT CONCAT(COUNT(*)) FROM {}", place.table);
    assert_eq!(number(&mut hand, &count).await, 20);
}

#[tokio::test]
async fn batches_of_every_size_are_renewed() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let store = place.prepared().await;
    let mut leases = Vec::new();
    for n in 0..620 {
        leases.push(
            granted(
                &store,
                &claim(&format!("lease {n:04} {}", "ä".repeat(n % 40)), LONG),
            )
            .await,
        );
    }
    for size in [0, 1, 2, 33, 500, 501, 620] {
        let answers = store.renew(&leases[..size]).await;
        assert_eq!(answers.len(), size);
        for answer in answers {
            assert!(
                matches!(answer, Ok(Renewal::Renewed { .. })),
                "{size}: {answer:?}"
            );
        }
    }
    store.release(&leases[7]).await.unwrap();
    let answers = store.renew(&leases).await;
    for (n, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer.unwrap() == Renewal::Gone, n == 7, "{n}");
    }
}
