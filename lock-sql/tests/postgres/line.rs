//! The line of waiters: what a hand-over costs, who is next, and what becomes of an heir that is dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_core::{Attempt, LockPersistence as _, LockProvider as _, Mode, Provider};

use crate::support::{
    MINUTE, by_hand, claim, denied, eventually, granted, number, own, shared, store, store_at,
};

async fn waiters_in_line(server: &conformance_tests::servers::Server, table: &str) -> i64 {
    let mut admin = by_hand(server).await;
    number(&mut admin, &format!("SELECT count(*) FROM {table}_waiters")).await
}

/// 89, 93 and the goal of the hand-over: the statements of one do not grow with the waiters, and all get their share.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_the_same_for_any_number_of_waiters() {
    for waiters in [8_usize, 32, 200] {
        // Its own server, so that all that its database counts is ours.
        let Some(server) = own(&[("max_connections", "200")]).await else {
            return;
        };
        let (_, table) = store(&server).await;
        let stores: Vec<_> = (0..8).map(|_| store_at(server.url(), &table)).collect();
        let (counts, stop) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let workers: Vec<_> = (0..waiters)
            .map(|worker| {
                let provider = Provider::new(Arc::clone(&stores[worker % stores.len()]) as _);
                let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
                tokio::spawn(async move {
                    let (mut warm, mut counted) = (0, 0_i64);
                    while !stop.load(Ordering::Relaxed) {
                        let guard = provider.acquire("n").await.unwrap();
                        if counts.load(Ordering::Relaxed) {
                            counted += 1
                        } else {
                            warm += 1
                        }
                        guard.release().await.unwrap();
                    }
                    (warm, counted)
                })
            })
            .collect();
        let mut admin = by_hand(&server).await;
        let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        tokio::time::sleep(Duration::from_secs(3)).await;
        counts.store(true, Ordering::Relaxed);
        let before = number(&mut admin, commits).await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let spent = number(&mut admin, commits).await - before;
        counts.store(false, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        let (mut least, mut most, mut total) = (i64::MAX, 0, 0);
        for worker in workers {
            let (warm, counted) = worker.await.unwrap();
            assert!(warm > 0 || waiters == 200, "a waiter never had it");
            least = least.min(counted);
            most = most.max(counted);
            total += counted;
        }
        println!(
            "{waiters} waiters: {total} acquisitions in 4 s, {:.1} statements each, {least} to {most} per waiter",
            spent as f64 / total as f64
        );
        assert!(
            spent <= 5 * total + total / 5,
            "{spent} statements for {total} acquisitions of {waiters} waiters"
        );
        // A share of one or two says nothing.
        assert!(
            least < 5 || most <= 2 * least,
            "{least} to {most} of {waiters} waiters"
        );
    }
}

/// 58: waiters that give up leave the line.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_give_up_leave_the_line() {
    let Some(server) = shared().await else { return };
    let (store, table) = store(&server).await;
    let held = granted(&store, &claim("n", MINUTE)).await;
    let provider = Provider::new(Arc::clone(&store) as _);
    let waits: Vec<_> = (0..50)
        .map(|n| {
            let provider = provider.clone();
            tokio::spawn(async move {
                let span = Duration::from_millis(50 + 10 * n);
                // Half are cancelled, half have a limit.
                if n % 2 == 0 {
                    provider.acquire_within("n", span).await.unwrap().is_none()
                } else {
                    tokio::time::timeout(span, provider.acquire("n"))
                        .await
                        .is_err()
                }
            })
        })
        .collect();
    for wait in waits {
        assert!(wait.await.unwrap(), "granted, though it was held");
    }
    let mut left = 0;
    for _ in 0..500 {
        left = waiters_in_line(&server, &table).await;
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(left, 0, "still in line");
    store.release(&held).await.unwrap();
    granted(&store, &claim("n", MINUTE)).await;
}

/// An heir that never comes costs others its time, and no more; a stranger is kept out meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_heir_costs_its_time_only() {
    let Some(server) = shared().await else { return };
    let (holder, table) = store(&server).await;
    let (dead, live) = (
        store_at(server.url(), &table),
        store_at(server.url(), &table),
    );
    for _ in 0..3 {
        let held = granted(&holder, &claim("n", MINUTE)).await;
        // Stands in line, and is never heard of again.
        let ghost = claim("n", MINUTE).with_mode(Mode::Queue);
        let seen = denied(&dead, &ghost).await;
        let _ = tokio::time::timeout(Duration::from_millis(300), dead.wait(&ghost, &seen)).await;
        let mine = claim("n", MINUTE).with_mode(Mode::Queue);
        let seen = denied(&live, &mine).await;
        let waiting = {
            let (live, mine) = (Arc::clone(&live), mine.clone());
            tokio::spawn(async move { live.wait(&mine, &seen).await })
        };
        eventually("both stand in line", MINUTE, || async {
            waiters_in_line(&server, &table).await == 2
        })
        .await;
        holder.release(&held).await.unwrap();
        let freed = Instant::now();
        denied(&holder, &claim("n", MINUTE)).await;
        tokio::time::timeout(Duration::from_secs(2), waiting)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        let Attempt::Granted(lease) = live.try_acquire(&mine).await.unwrap() else {
            panic!("the second in line is denied after the time of the first")
        };
        let gap = freed.elapsed();
        assert!(
            gap >= Duration::from_millis(90) && gap < Duration::from_secs(1),
            "after {gap:?}"
        );
        live.release(&lease).await.unwrap();
    }
}

/// 90: what a standby costs while nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_costs_little() {
    let Some(server) = own(&[("log_statement", "all")]).await else {
        return;
    };
    let (holder, table) = store(&server).await;
    let held = granted(&holder, &claim("n", MINUTE)).await;
    let standby = store_at(server.url(), &table);
    let waiting = {
        let provider = Provider::new(Arc::clone(&standby) as _);
        tokio::spawn(async move { provider.acquire("n").await.unwrap() })
    };
    let statements = async || {
        let log = crate::support::on(&server, conformance_tests::servers::Server::logs).await;
        let sent = |l: &&str| l.contains("LOG:  execute") || l.contains("LOG:  statement:");
        log.lines().filter(sent).count()
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = statements().await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let spent = statements().await - before;
    println!(
        "a standby: {} statements a minute at a poll of 5 s",
        spent * 4
    );
    assert!((1..=10).contains(&spent), "{spent} statements in 15 s");
    let started = Instant::now();
    holder.release(&held).await.unwrap();
    let guard = tokio::time::timeout(MINUTE, waiting)
        .await
        .unwrap()
        .unwrap();
    println!("and has it {:?} after the release", started.elapsed());
    guard.release().await.unwrap();
}
