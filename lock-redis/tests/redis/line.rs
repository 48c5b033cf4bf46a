//! The line of waiters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_core::{Attempt, LockPersistence as _, LockProvider as _, Owner};
use redis::AsyncCommands as _;

use crate::support::{MINUTE, by_hand, claim, own, queued, shared, store, store_at};

/// Each of many processes gets its turn, and a hand-over costs the same for any number of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_is_served_in_turn_for_five_requests_each() {
    let Some(server) = own(false).await else {
        return;
    };
    let prefix = "line:";
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..16)
        .map(|_| {
            let store = store_at(server.url(), prefix);
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                let provider = store.provider(Duration::from_secs(15));
                let mut turns = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let guard = provider.acquire("n").await.unwrap();
                    guard.release().await.unwrap();
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);
    let mut turns = Vec::new();
    for worker in workers {
        turns.push(worker.await.unwrap());
    }
    let (all, least, most) = (
        turns.iter().sum::<u64>(),
        *turns.iter().min().unwrap(),
        *turns.iter().max().unwrap(),
    );
    let mut admin = by_hand(server.url()).await;
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut admin)
        .await
        .unwrap();
    let calls: BTreeMap<_, u64> = info
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name, rest.split(',').next()?.parse().ok()?))
        })
        .filter(|(name, _)| matches!(*name, "evalsha" | "eval"))
        .collect();
    let requests = calls.values().sum::<u64>();
    println!("{all} turns, {least} to {most} each, {requests} requests");
    assert!(all > 100, "{all}");
    assert!(most <= 2 * least.max(1), "unfair: {turns:?}");
    assert!(
        requests <= all * 5 + 16 * 5,
        "{requests} requests for {all} turns"
    );
}

/// The chosen waiter is dead: the others do not wait for its ttl.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_heir_costs_its_time_only() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let lease = store.granted(&claim("n", MINUTE)).await;
    // Stands in line on a channel that nobody hears.
    let dead = queued("n", MINUTE);
    let mut admin = by_hand(server.url()).await;
    let nonce = dead.nonce.to_string();
    let now: (u64, u64) = redis::cmd("TIME").query_async(&mut admin).await.unwrap();
    let until = (now.0 + 60) * 1_000_000;
    let _: () = admin.zadd(store.key("n", "line"), &nonce, 1).await.unwrap();
    let _: () = admin
        .hset(store.key("n", "waiters"), &nonce, format!("{until} nobody"))
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let other = store_at(server.url(), &store.prefix);
        async move {
            let guard = other
                .provider(Duration::from_secs(15))
                .acquire("n")
                .await
                .unwrap();
            (Instant::now(), guard)
        }
    });
    while admin.zcard::<_, u64>(store.key("n", "line")).await.unwrap() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let released = Instant::now();
    store.leases.release(&lease).await.unwrap();
    let (at, guard) = tokio::time::timeout(Duration::from_secs(10), waiter)
        .await
        .expect("the next goes")
        .unwrap();
    println!("a dead heir cost {:?}", at - released);
    guard.release().await.unwrap();
}

/// 49: nothing is lost while the connection that listens is down: waiters look again when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_listener_costs_no_wake_up() {
    let Some(server) = own(false).await else {
        return;
    };
    let store = store(&server);
    let lease = store.granted(&claim("n", MINUTE)).await;
    let waiter = tokio::spawn({
        let other = store_at(server.url(), &store.prefix);
        async move {
            other
                .provider(Duration::from_secs(15))
                .acquire("n")
                .await
                .unwrap()
        }
    });
    let mut admin = by_hand(server.url()).await;
    while admin.zcard::<_, u64>(store.key("n", "line")).await.unwrap() < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _: u64 = redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "pubsub"])
        .query_async(&mut admin)
        .await
        .unwrap();
    store.leases.release(&lease).await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(3), waiter)
        .await
        .expect("told, or looked")
        .unwrap();
    guard.release().await.unwrap();
}

/// While a name is kept for the first in line, nobody else takes it, and it is not kept for longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_freed_name_is_kept_for_the_first_in_line() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    let lease = store.granted(&claim("n", MINUTE)).await;
    let mut admin = by_hand(server.url()).await;
    let heir = queued("n", MINUTE);
    let now: (u64, u64) = redis::cmd("TIME").query_async(&mut admin).await.unwrap();
    let until = (now.0 + 60) * 1_000_000;
    let nonce = heir.nonce.to_string();
    let _: () = admin.zadd(store.key("n", "line"), &nonce, 1).await.unwrap();
    let _: () = admin
        .hset(store.key("n", "waiters"), &nonce, format!("{until} nobody"))
        .await
        .unwrap();
    store.leases.release(&lease).await.unwrap();
    let kept: f64 = admin.hget(store.key("n", "mark"), "kept").await.unwrap();
    let now: (u64, u64) = redis::cmd("TIME").query_async(&mut admin).await.unwrap();
    let now = now.0 * 1_000_000 + now.1;
    if (now as f64) < kept - 20_000.0 {
        let mut other = claim("n", MINUTE);
        other.owner = Owner::new("other").unwrap();
        let denied = store.leases.try_acquire(&other).await.unwrap();
        // Nobody has it; what is told is whose it was.
        assert!(
            matches!(&denied, Attempt::Held(h) if h.owner == *lease.owner()),
            "{denied:?}"
        );
    }
    assert!(kept <= now as f64 + 100_000.0, "kept too long");
    let lease = store.granted(&heir).await;
    store.leases.release(&lease).await.unwrap();
    store.granted(&claim("n", MINUTE)).await;
}

/// What is carried out late for a claim that was withdrawn puts nobody in line: neither its try nor its wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_claim_stays_out_of_the_line() {
    let Some(server) = shared().await else { return };
    let store = store(&server);
    store.granted(&claim("n", MINUTE)).await;
    let mut admin = by_hand(server.url()).await;
    let mut in_line = async || admin.zcard::<_, u64>(store.key("n", "line")).await.unwrap();
    let late = queued("n", MINUTE);
    let Attempt::Held(seen) = store.leases.try_acquire(&late).await.unwrap() else {
        panic!("granted")
    };
    // It waits, so that its process listens.
    let waiting = tokio::spawn({
        let (leases, late, seen) = (Arc::clone(&store.leases), late.clone(), seen.clone());
        async move { leases.wait(&late, &seen).await }
    });
    while in_line().await < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.leases.withdraw(&late).await.unwrap();
    assert_eq!(in_line().await, 0);
    let tried = store.leases.try_acquire(&late).await;
    assert!(tried.is_err(), "{tried:?}");
    let again = store.leases.wait(&late, &seen);
    tokio::time::timeout(Duration::from_millis(300), again)
        .await
        .expect_err("nothing has changed");
    assert_eq!(in_line().await, 0);
    waiting.abort();
}
