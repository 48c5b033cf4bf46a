//! What a lease costs beside the floor: a read that does nothing, and one durable write through the same
//! kind of connection. All in one loop, so that the disk's moods meet all alike; trust the ratio.
//!
//! ```sh
//! cargo bench -p lock-sql --bench sqlite            # rounds: LOCK_BENCH_ROUNDS, folder: TMPDIR
//! ```

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use lock_core::{Attempt, Claim, Lease, LockName, LockPersistence, Nonce, Owner, Release, Renewal};
use lock_sql::sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous,
};
use lock_sql::sqlx::{self, ConnectOptions as _, Executor as _};
use lock_sql::{SqlPersistence, SqliteConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Default)]
struct Series(Vec<Duration>);

impl Series {
    fn percentile(&mut self, part: usize) -> f64 {
        self.0.sort_unstable();
        let at = (self.0.len() * part / 100).min(self.0.len() - 1);
        self.0[at].as_secs_f64() * 1e6
    }
}

/// Bytes of the write-ahead log.
fn log_size(path: &Path) -> u64 {
    let mut log = path.as_os_str().to_os_string();
    log.push("-wal");
    std::fs::metadata(log).map_or(0, |m| m.len())
}

async fn floor_connection(path: &Path) -> Result<SqliteConnection> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await?;
    connection
        .execute(
            "CREATE TABLE floor (name TEXT PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID; \
             INSERT INTO floor VALUES ('x', 0)",
        )
        .await?;
    Ok(connection)
}

async fn granted(store: &SqlPersistence, name: &LockName) -> Result<Lease> {
    let ttl = Duration::from_secs(60);
    let claim = Claim::new(name.clone(), Owner::new("bench")?, Nonce::random(), ttl);
    match store.try_acquire(&claim).await? {
        Attempt::Granted(lease) => Ok(lease),
        Attempt::Held(holder) => Err(format!("held by {holder:?}").into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let rounds: usize = std::env::var("LOCK_BENCH_ROUNDS").map_or(Ok(3000), |r| r.parse())?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let store = SqlPersistence::sqlite(SqliteConfig::new(&path))?;
    store.prepare().await?;
    // A file of its own: two connections to one file would push each other out of the cache.
    let mut floor = floor_connection(&folder.path().join("floor.db")).await?;
    let name = LockName::new("bench")?;

    let names = ["no-op read", "durable write", "acquire", "renew", "release"];
    let mut series: [Series; 5] = Default::default();
    let mut both = Series::default();
    for round in 0..rounds + 100 {
        let mut times = [Duration::ZERO; 5];
        let mut lap = {
            let mut last = Instant::now();
            move |slot: &mut Duration| {
                let now = Instant::now();
                *slot = now - last;
                last = Instant::now();
            }
        };
        sqlx::query("SELECT n FROM floor WHERE name = ?1")
            .bind("x")
            .fetch_all(&mut floor)
            .await?;
        lap(&mut times[0]);
        sqlx::query("UPDATE floor SET n = n + 1 WHERE name = ?1")
            .bind("x")
            .execute(&mut floor)
            .await?;
        lap(&mut times[1]);
        let lease = granted(&store, &name).await?;
        lap(&mut times[2]);
        let renewed = store.renew(std::slice::from_ref(&lease)).await;
        lap(&mut times[3]);
        let released = store.release(&lease).await?;
        lap(&mut times[4]);
        if !matches!(renewed[..], [Ok(Renewal::Renewed { .. })]) || released != Release::Released {
            return Err(format!("round {round}: {renewed:?}, {released:?}").into());
        }
        // The first rounds prepare the statements.
        if round >= 100 {
            for (series, time) in series.iter_mut().zip(times) {
                series.0.push(time);
            }
            both.0.push(times[2] + times[4]);
        }
    }

    println!("{rounds} rounds, µs        p50       p99");
    for (name, series) in names.iter().zip(&mut series) {
        println!(
            "{name:<18} {:9.1} {:9.1}",
            series.percentile(50),
            series.percentile(99)
        );
    }
    println!(
        "{:<18} {:9.1} {:9.1}",
        "acquire + release",
        both.percentile(50),
        both.percentile(99)
    );
    let ratio = both.percentile(50) / (2.0 * series[1].percentile(50));
    println!("acquire + release = {ratio:.2} x two durable writes (p50; goal 1.15)");

    // Each durable write is one page in the log here: the table fits in one.
    let mut connection = SqliteConnectOptions::new()
        .filename(&path)
        .connect()
        .await?;
    const FRAME: f64 = 4096.0 + 24.0;
    #[allow(clippy::cast_precision_loss, reason = "a few hundred kilobytes")]
    let frames = |bytes: u64| bytes as f64 / FRAME;
    const SAMPLE: u32 = 50;
    let mut growth = Vec::new();
    for what in ["acquire", "renew", "release"] {
        connection
            .execute("PRAGMA wal_checkpoint(TRUNCATE)")
            .await?;
        let mut grown = 0;
        for _ in 0..SAMPLE {
            let at = log_size(&path);
            let lease = granted(&store, &name).await?;
            let acquired = log_size(&path);
            store.renew(std::slice::from_ref(&lease)).await.remove(0)?;
            let renewed = log_size(&path);
            store.release(&lease).await?;
            grown += match what {
                "acquire" => acquired - at,
                "renew" => renewed - acquired,
                _ => log_size(&path) - renewed,
            };
        }
        growth.push(format!("{what} {:.1}", frames(grown) / f64::from(SAMPLE)));
    }
    println!("pages written per operation: {}", growth.join(", "));
    println!(
        "statements per operation: one, in one round trip (a try has a second, which reads who holds it)"
    );
    Ok(())
}
