//! Many who want one name, and tries that nobody waits for any more.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::servers::{Server, or_skip};
use lock_core::{Attempt, LockPersistence as _};
use lock_sql::{PostgresConfig, SqlPersistence, TableName};
use tokio::sync::Barrier;

use crate::support::{MINUTE, by_hand, claim, errors, fresh, granted, is_held, run, shared, store};

/// A store whose statements wait so long for a lock.
pub(crate) fn patient(url: &str, table: &str, lock_wait: Duration) -> SqlPersistence {
    let config = PostgresConfig::from_url(url)
        .unwrap()
        .with_table(TableName::new(table).unwrap())
        .with_lock_wait(lock_wait);
    SqlPersistence::postgres(&config).unwrap()
}

/// 64: who comes while the winner's commit is on its way to the disk is denied; nobody hears of an error, nor
/// does the server's log.
#[tokio::test(flavor = "multi_thread")]
async fn racers_behind_a_slow_commit_are_denied() {
    // Each commit takes a tenth of a second, longer than a racer waits in one go.
    let slow = || {
        Server::postgres()
            .durable()
            .with_setting("commit_delay", "100000")
            .with_setting("commit_siblings", "0")
            .start()
    };
    let server = tokio::task::spawn_blocking(move || or_skip(slow()));
    let Some(server) = server.await.unwrap() else {
        return;
    };
    let table = fresh("t");
    let racers: Vec<_> = (0..8)
        .map(|_| Arc::new(patient(server.url(), &table, Duration::from_millis(60))))
        .collect();
    racers[0].prepare().await.unwrap();
    for racer in &racers {
        granted(racer, &claim(&fresh("warm"), MINUTE)).await;
    }
    let before = errors(&server).await;
    // New each time but for every other one, which was freed.
    for round in 0..8 {
        let name = format!("n{}", round / 2);
        let barrier = Arc::new(Barrier::new(racers.len()));
        let tries: Vec<_> = racers
            .iter()
            .map(|racer| {
                let (racer, barrier) = (Arc::clone(racer), Arc::clone(&barrier));
                let mine = claim(&name, MINUTE);
                tokio::spawn(async move {
                    barrier.wait().await;
                    racer.try_acquire(&mine).await
                })
            })
            .collect();
        let mut won = Vec::new();
        for attempt in tries {
            if let Attempt::Granted(lease) = attempt.await.unwrap().unwrap() {
                won.push(lease);
            }
        }
        assert_eq!(won.len(), 1, "round {round}");
        racers[0].release(&won[0]).await.unwrap();
    }
    assert_eq!(errors(&server).await, before);
}

/// A try that was dropped while it waits in the server does not take the name after it was withdrawn.
#[tokio::test]
async fn what_was_withdrawn_takes_nothing_later() {
    let Some(server) = shared().await else { return };
    let (other, table) = store(&server).await;
    let store = patient(server.url(), &table, Duration::from_millis(1200));
    let lease = granted(&store, &claim("n", MINUTE)).await;
    store.release(&lease).await.unwrap();
    let mut blocker = by_hand(&server).await;
    run(&mut blocker, "BEGIN").await;
    run(&mut blocker, &format!("SELECT FROM {table} FOR UPDATE")).await;
    let mine = claim("n", MINUTE);
    let late = tokio::time::timeout(Duration::from_millis(100), store.try_acquire(&mine)).await;
    assert!(late.is_err(), "it does not wait: {late:?}");
    store.withdraw(&mine).await.unwrap();
    run(&mut blocker, "COMMIT").await;
    for _ in 0..30 {
        assert!(!is_held(&other, "n").await, "held for nobody");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
