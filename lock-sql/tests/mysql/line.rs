//! The line of those that wait.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{Attempt, LockPersistence as _, LockProvider as _, Mode, Owner, Provider, Timing};
use lock_sql::MySqlConfig;
use lock_sql::{SqlPersistence, TableName};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use crate::support::{LONG, Place, claim, granted, number};

const URL: &str = "LOCK_SQL_MYSQL_WAITER_URL";
const TABLE: &str = "LOCK_SQL_MYSQL_WAITER_TABLE";

/// Another process, as far as the server can tell. It polls each second; the server would hear nothing of a stopped one
/// for a minute.
fn provider(store: SqlPersistence) -> Provider {
    let timing = Timing::builder(LONG)
        .poll_every(Duration::from_secs(1))
        .build()
        .unwrap();
    Provider::new(Arc::new(store))
        .with_owner(Owner::new("waiter").unwrap())
        .with_timing(timing)
}

/// The connection that is the first in line for `name`; 0 when there is none.
async fn first(place: &Place, name: &str) -> i64 {
    let sql = format!(
        "SELECT CONCAT(COALESCE(IS_USED_LOCK(CONCAT('lockkit:', SHA2(CONCAT('`', DATABASE(), '`.`{}`', '{name}'), \
         224))), 0))",
        place.table
    );
    number(&mut place.by_hand().await, &sql).await
}

/// How many connections stand behind a first one, in all lines of the server.
async fn behind(place: &Place) -> i64 {
    let sql = "SELECT CONCAT(COUNT(*)) FROM information_schema.processlist \
               WHERE info LIKE 'SELECT GET_LOCK%'";
    number(&mut place.by_hand().await, sql).await
}

/// Looks until `seen` is so.
async fn until<F: Future<Output = bool> + Send>(what: &str, seen: impl Fn() -> F + Send + Sync) {
    let wait = async {
        while !seen().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let wait = timeout(Duration::from_secs(20), wait).await;
    wait.unwrap_or_else(|_| panic!("never so: {what}"));
}

/// What a hand-over costs does not grow with those that wait, and all get their share.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_the_same_for_any_number_of_waiters() {
    for (waiters, processes) in [(8_usize, 8), (40, 40), (40, 1)] {
        // Its own server, so that all that it counts is ours.
        let Some(place) = Place::own(&[("max-connections", "400")]).await else {
            return;
        };
        place.prepared().await;
        let (counts, stop) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let providers: Vec<_> = (0..processes).map(|_| provider(place.store())).collect();
        let workers: Vec<_> = (0..waiters)
            .map(|n| {
                let provider = providers[n % processes].clone();
                let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
                tokio::spawn(async move {
                    let (mut warm, mut counted) = (0, 0);
                    while !stop.load(Ordering::Relaxed) {
                        let Ok(guard) = provider.acquire("n").await else {
                            continue;
                        };
                        if counts.load(Ordering::Relaxed) {
                            counted += 1;
                        } else {
                            warm += 1;
                        }
                        guard.release().await.unwrap();
                    }
                    (warm, counted)
                })
            })
            .collect();
        let mut admin = place.by_hand().await;
        until("all stand in line", || async {
            behind(&place).await >= i64::try_from(processes).unwrap() - 3
        })
        .await;
        let sql = "SHOW GLOBAL STATUS LIKE 'Questions'";
        let before = number(&mut admin, sql).await;
        counts.store(true, Ordering::Relaxed);
        sleep(Duration::from_secs(4)).await;
        counts.store(false, Ordering::Relaxed);
        let spent = number(&mut admin, sql).await - before;
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for worker in workers {
            all.push(worker.await.unwrap().1);
        }
        let turns: i64 = all.iter().sum();
        let (least, most) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
        println!(
            "{waiters} waiters in {processes} processes: {turns} turns, {:.2} statements each, {least} to {most} per waiter",
            spent as f64 / turns as f64
        );
        assert!(
            spent <= 7 * turns,
            "{spent} statements for {turns} turns of {waiters}"
        );
        assert!(
            most <= 2 * least + 2,
            "{waiters} waiters had {least} to {most} turns"
        );
    }
}

/// Whoever came first is served first, over all processes, and nobody passes by.
#[tokio::test]
async fn those_that_wait_are_served_in_the_order_in_which_they_came() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let holder = provider(place.prepared().await);
    let mut held = holder.acquire("n").await.unwrap();
    let (told, mut served) = tokio::sync::mpsc::unbounded_channel();
    for nth in 0..6 {
        let (waiter, told) = (provider(place.store()), told.clone());
        tokio::spawn(async move {
            let guard = waiter.acquire("n").await.unwrap();
            told.send((nth, guard)).unwrap();
            // The connections stay.
            sleep(LONG).await;
            drop(waiter);
        });
        until("it stands in line", || async {
            first(&place, "n").await != 0 && behind(&place).await == nth
        })
        .await;
    }
    for nth in 0..6 {
        held.release().await.unwrap();
        // The one that has just released comes last.
        assert!(holder.try_acquire("n").await.unwrap().is_none());
        let (who, guard) = served.recv().await.unwrap();
        assert_eq!(who, nth);
        held = guard;
    }
    held.release().await.unwrap();
}

/// A wait that is dropped leaves nothing in the server, be it the first in line or not.
#[tokio::test]
async fn a_dropped_waiter_leaves_the_line() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("n", LONG)).await;
    let (front, back) = (provider(place.store()), provider(place.store()));
    let wait = |provider: &Provider| {
        let provider = provider.clone();
        tokio::spawn(async move { provider.acquire("n").await.map(drop) })
    };
    let first_wait = wait(&front);
    until("the first is there", || async {
        first(&place, "n").await != 0
    })
    .await;
    let second_wait = wait(&back);
    until("the second is there", || async {
        behind(&place).await == 1
    })
    .await;
    let was = first(&place, "n").await;
    first_wait.abort();
    until("the second is let in", || async {
        let now = first(&place, "n").await;
        now != 0 && now != was
    })
    .await;
    let third_wait = wait(&front);
    until("the third is there", || async { behind(&place).await == 1 }).await;
    third_wait.abort();
    until("the third is gone", || async { behind(&place).await == 0 }).await;
    second_wait.abort();
    until("nobody is there", || async {
        first(&place, "n").await == 0
    })
    .await;
    store.release(&lease).await.unwrap();
    let next = claim("n", LONG);
    granted(&place.store(), &next).await;
}

/// Beyond the connections that a process spends on lines it looks from time to time, and is served all the same.
#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_cap_waiters_are_served_too() {
    const NAMES: usize = 24;
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    let mut leases = Vec::new();
    for n in 0..NAMES {
        leases.push(granted(&store, &claim(&format!("n{n}"), LONG)).await);
    }
    let crowd = provider(place.store());
    let waits: Vec<_> = (0..NAMES)
        .map(|n| {
            let crowd = crowd.clone();
            tokio::spawn(async move { crowd.acquire(&format!("n{n}")).await.unwrap() })
        })
        .collect();
    let lines = || async {
        let mut lines = 0;
        for n in 0..NAMES {
            lines += usize::from(first(&place, &format!("n{n}")).await != 0);
        }
        lines
    };
    until("sixteen lines", || async { lines().await == 16 }).await;
    for lease in &leases {
        store.release(lease).await.unwrap();
    }
    for wait in waits {
        let guard = timeout(Duration::from_secs(20), wait).await;
        guard.expect("served").unwrap().release().await.unwrap();
    }
    until("no line is left", || async { lines().await == 0 }).await;
}

/// Nodes of a Galera cluster do not share such locks: none is asked for, and waiters are served by looking.
#[tokio::test]
async fn a_galera_node_has_no_line() {
    let Some(place) = Place::own(&[("wsrep-on", "ON"), ("binlog-format", "ROW")]).await else {
        return;
    };
    let store = place.prepared().await;
    let lease = granted(&store, &claim("n", LONG)).await;
    let waiter = place.store();
    let waiting = claim("n", LONG).with_mode(Mode::Queue);
    let Attempt::Held(seen) = waiter.try_acquire(&waiting).await.unwrap() else {
        panic!("granted beside another");
    };
    let (waited, released) = tokio::join!(waiter.wait(&waiting, &seen), store.release(&lease));
    waited.unwrap();
    released.unwrap();
    assert_eq!(first(&place, "n").await, 0);
    granted(&waiter, &waiting).await;
}

/// The first in line, as another process; ended with the test.
struct Waiter(Child);

impl Waiter {
    async fn start(place: &Place) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "line::waiter", "--nocapture"])
            .env(URL, &place.url)
            .env(TABLE, &place.table)
            .stdout(Stdio::null())
            .spawn();
        let waiter = Self(child.unwrap());
        until("the process is the first", || async {
            first(place, "n").await != 0
        })
        .await;
        waiter
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test by itself: the process of a [`Waiter`].
#[tokio::test]
async fn waiter() {
    let (Ok(url), Ok(table)) = (std::env::var(URL), std::env::var(TABLE)) else {
        return;
    };
    let config = MySqlConfig::from_url(&url).unwrap();
    let config = config.with_table(TableName::new(&table).unwrap());
    let provider = provider(SqlPersistence::mysql(&config).unwrap());
    let _guard = provider.acquire("n").await.unwrap();
    sleep(LONG).await;
}

/// A first in line that is killed is followed by the next; one that is stopped costs the others their poll, not the time for
/// which the server waits to hear of it.
#[tokio::test]
async fn a_first_that_is_dead_or_stopped_does_not_hold_up_the_line() {
    let Some(place) = Place::own(&[]).await else {
        return;
    };
    let store = place.prepared().await;
    for signal in [Signal::KILL, Signal::STOP] {
        let lease = granted(&store, &claim("n", LONG)).await;
        let process = Waiter::start(&place).await;
        let was = first(&place, "n").await;
        let next = provider(place.store());
        let wait = {
            let next = next.clone();
            tokio::spawn(async move { next.acquire("n").await.unwrap() })
        };
        until("another stands behind it", || async {
            behind(&place).await == 1
        })
        .await;
        process.signal(signal);
        if signal == Signal::KILL {
            until("the other is let in", || async {
                ![0, was].contains(&first(&place, "n").await)
            })
            .await;
        }
        store.release(&lease).await.unwrap();
        let guard = timeout(Duration::from_secs(20), wait).await;
        if signal == Signal::STOP {
            assert_eq!(first(&place, "n").await, was, "it is still the first");
        }
        let guard = guard.expect("served by its poll").unwrap();
        guard.release().await.unwrap();
    }
}
