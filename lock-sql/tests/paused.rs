//! A holder that is stopped (SIGSTOP) between its check and its commit, for longer than the ttl, while
//! another takes over and writes. Resumed, its first check is false and its commit is refused.
//!
//! The holder is this test program again, as a process of its own.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test says by failing")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, LockProvider as _, Provider, Timing};
use lock_sql::sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use lock_sql::sqlx::{self, ConnectOptions as _, Connection as _};
use lock_sql::{Fence as _, SqlPersistence, SqliteConfig};
use rustix::process::{Pid, Signal, kill_process};

const TTL: Duration = Duration::from_secs(2);
const VICTIM_FILE: &str = "LOCK_SQL_PAUSED_FILE";

/// Rounds: so many at once, so many times.
const AT_ONCE: usize = 20;
const TIMES: usize = 5;

fn provider(path: &Path) -> Provider {
    let store = SqlPersistence::sqlite(SqliteConfig::new(path)).unwrap();
    // Many rounds run at once: patient with a busy machine, at the cost of the drain.
    let timing = Timing::builder(TTL)
        .renew_every(Duration::from_millis(400))
        .request_timeout(Duration::from_millis(500))
        .drain(Duration::from_millis(300));
    Provider::new(Arc::new(store)).with_timing(timing.build().unwrap())
}

async fn app(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap()
}

/// Not a test by itself: the holder.
#[tokio::test]
async fn victim() {
    let Ok(path) = std::env::var(VICTIM_FILE) else {
        return;
    };
    let path = PathBuf::from(path);
    let mut app = app(&path).await;
    let guard = provider(&path).acquire("n").await.unwrap();
    assert!(guard.check(), "just acquired");
    println!("READY");
    // Stopped in here, with its thread blocked, so that nothing of it runs before its own next step.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let first = guard.check();
    let token = i64::try_from(guard.token().get()).unwrap();
    let mut tx = app.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO writes VALUES (?1)")
        .bind(token)
        .execute(&mut *tx)
        .await
        .unwrap();
    let committed = match guard.lease().commit(tx).await {
        Ok(()) => "committed".to_owned(),
        Err(error) => error.kind().to_string(),
    };
    println!("RESULT token={token} check={first} commit={committed}");
}

/// Kills what still runs when a round fails.
struct Victim {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Victim {
    fn spawn(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
            .env(VICTIM_FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// What it prints after this word.
    fn says(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "it ended before {word}"
            );
            // The harness may have begun the line.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn go_on(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(call).await.unwrap()
}

async fn round() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let provider = provider(&path);
    provider.persistence().prepare().await.unwrap();
    let mut app = app(&path).await;
    sqlx::query("CREATE TABLE writes (token INTEGER)")
        .execute(&mut app)
        .await
        .unwrap();

    let mut victim = Victim::spawn(&path);
    let mut victim = blocking(move || {
        victim.says("READY");
        victim.signal(Signal::STOP);
        victim
    })
    .await;
    let stopped = tokio::time::Instant::now();
    let next = provider
        .acquire_within("n", TTL * 10)
        .await
        .unwrap()
        .expect("it expires");
    let token = i64::try_from(next.token().get()).unwrap();
    let mut tx = app.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO writes VALUES (?1)")
        .bind(token)
        .execute(&mut *tx)
        .await
        .unwrap();
    next.lease().commit(tx).await.unwrap();
    tokio::time::sleep_until(stopped + TTL + Duration::from_secs(2)).await;

    let result = blocking(move || {
        victim.signal(Signal::CONT);
        victim.go_on();
        victim.says("RESULT")
    })
    .await;
    assert!(
        result.ends_with(&format!("check=false commit={}", ErrorKind::LeaseLost)),
        "{result}"
    );
    assert!(next.check(), "the next holder is not disturbed");
    let written: Vec<i64> = sqlx::query_scalar("SELECT token FROM writes")
        .fetch_all(&mut app)
        .await
        .unwrap();
    assert_eq!(written, [token], "only the next holder has written");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_checks_false_and_cannot_commit() {
    for _ in 0..TIMES {
        let rounds: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(round())).collect();
        for round in rounds {
            round.await.unwrap();
        }
    }
}

#[tokio::test]
async fn after_a_blocked_executor_the_commit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let provider = provider(&path);
    provider.persistence().prepare().await.unwrap();
    let mut app = app(&path).await;
    sqlx::query("CREATE TABLE writes (token INTEGER)")
        .execute(&mut app)
        .await
        .unwrap();
    let guard = provider.acquire("n").await.unwrap();
    std::thread::sleep(TTL + Duration::from_millis(100));
    // No await in between: nothing else has run on this thread.
    assert!(!guard.check());
    let mut tx = app.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO writes VALUES (1)")
        .execute(&mut *tx)
        .await
        .unwrap();
    let error = guard.lease().commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost, "{error}");
}
