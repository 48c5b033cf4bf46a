//! What a lease costs beside the floor: a statement that does nothing, and one durable write through the same
//! kind of connection; then a lock handed round among many. All floors and costs in one loop, so that the
//! moods of disk and machine meet all alike; trust the ratio.
//!
//! ```sh
//! cargo bench -p lock-sql --features mysql --bench mysql    # rounds: LOCK_BENCH_ROUNDS
//! ```

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use conformance_tests::servers::{Server, or_skip};
use lock_core::{
    Attempt, Claim, LockName, LockPersistence, LockProvider as _, Nonce, Owner, Provider, Release,
    Renewal,
};
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, Connection as _, Executor as _, Row as _};
use lock_sql::{MySqlConfig, SqlPersistence};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Default)]
struct Series(Vec<Duration>);

impl Series {
    async fn time<T>(&mut self, step: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let value = step.await;
        self.0.push(started.elapsed());
        value
    }

    /// In microseconds.
    fn percentile(&mut self, part: usize) -> f64 {
        self.0.sort_unstable();
        let at = (self.0.len() * part / 100).min(self.0.len() - 1);
        self.0[at].as_secs_f64() * 1e6
    }

    fn line(&mut self, what: &str) {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        println!("{what:<34} p50 {p50:>8.0} µs   p99 {p99:>8.0} µs");
    }
}

fn store(server: &Server) -> Result<Arc<SqlPersistence>> {
    let config = MySqlConfig::from_url(server.url())?;
    Ok(Arc::new(SqlPersistence::mysql(&config)?))
}

fn claim(name: &LockName) -> Result<Claim> {
    Ok(Claim::new(
        name.clone(),
        Owner::new("bench")?,
        Nonce::random(),
        Duration::from_secs(60),
    ))
}

async fn costs(server: &Server, rounds: usize) -> Result<()> {
    let store = store(server)?;
    let other = self::store(server)?;
    store.prepare().await?;
    let mut floor = MySqlConnection::connect(server.url()).await?;
    floor
        .execute("CREATE TABLE floor (id int PRIMARY KEY, n bigint) ENGINE=InnoDB")
        .await?;
    floor.execute("INSERT INTO floor VALUES (1, 0)").await?;
    let held = LockName::new("held")?;
    if let Attempt::Held(holder) = store.try_acquire(&claim(&held)?).await? {
        return Err(format!("somebody holds it: {holder:?}").into());
    }
    let (mut noop, mut write, mut denied) =
        (Series::default(), Series::default(), Series::default());
    let (mut acquire, mut renew, mut release) =
        (Series::default(), Series::default(), Series::default());
    let mut both = Series::default();
    for round in 0..rounds + 50 {
        if round == 50 {
            for series in [
                &mut noop,
                &mut write,
                &mut denied,
                &mut acquire,
                &mut renew,
                &mut release,
                &mut both,
            ] {
                series.0.clear();
            }
        }
        noop.time(sqlx::query("SELECT 1").execute(&mut floor))
            .await?;
        let update = sqlx::query("UPDATE floor SET n = n + 1 WHERE id = 1");
        write.time(update.execute(&mut floor)).await?;
        let mine = claim(&held)?;
        let answer = denied.time(other.try_acquire(&mine)).await?;
        assert!(matches!(answer, Attempt::Held(_)), "{answer:?}");
        let mine = claim(&LockName::new("free")?)?;
        let started = Instant::now();
        let Attempt::Granted(lease) = acquire.time(store.try_acquire(&mine)).await? else {
            return Err("a free name was denied".into());
        };
        let taken = started.elapsed();
        let leases = [lease.clone()];
        let answers = renew.time(store.renew(&leases)).await;
        assert!(
            matches!(answers[..], [Ok(Renewal::Renewed { .. })]),
            "{answers:?}"
        );
        let started = Instant::now();
        let answer = release.time(store.release(&lease)).await?;
        assert_eq!(answer, Release::Released);
        both.0.push(taken + started.elapsed());
    }
    println!("{rounds} rounds, interleaved");
    noop.line("no-op");
    write.line("durable write");
    denied.line("denied try");
    acquire.line("acquire");
    renew.line("renew");
    release.line("release");
    both.line("acquire + release");
    println!(
        "acquire + release ÷ 2 writes: {:.2} (goal 1.25);  denied try ÷ write: {:.2} (goal below 1)",
        both.percentile(50) / (2.0 * write.percentile(50)),
        denied.percentile(50) / write.percentile(50)
    );
    Ok(())
}

/// Statements that the server has run so far.
async fn statements(admin: &mut MySqlConnection) -> Result<u64> {
    let row = admin.fetch_one("SHOW GLOBAL STATUS LIKE 'Queries'").await?;
    Ok(row.try_get_unchecked::<String, _>(1)?.parse()?)
}

/// From a release to the grant of a standby that has waited for long, and what such a standby costs.
async fn clean_takeover(server: &Server, rounds: usize) -> Result<()> {
    let (leader, standby) = (store(server)?, store(server)?);
    let (leader, standby) = (Provider::new(leader as _), Provider::new(standby as _));
    let mut admin = MySqlConnection::connect(server.url()).await?;
    let mut gap = Series::default();
    for round in 0..rounds {
        let guard = leader.acquire("led").await?;
        let waiting = standby.clone();
        let waiter = tokio::spawn(async move {
            let guard = waiting.acquire("led").await?;
            let at = Instant::now();
            guard.release().await?;
            Result::Ok(at)
        });
        // Long enough for the slowest pace, and never at the same point of it.
        tokio::time::sleep(Duration::from_millis(150 + (round as u64 * 7) % 40)).await;
        if round == 0 {
            let span = Duration::from_secs(10);
            let before = statements(&mut admin).await?;
            tokio::time::sleep(span).await;
            let spent = statements(&mut admin).await? - before;
            println!(
                "a leader and its standby while nothing changes: {} statements per minute",
                spent * 6
            );
        }
        let released = Instant::now();
        guard.release().await?;
        gap.0.push(waiter.await?? - released);
    }
    gap.line("clean takeover");
    Ok(())
}

async fn hand_over(server: &Server, waiters: usize, shared: bool, span: Duration) -> Result<()> {
    let mut admin = MySqlConnection::connect(server.url()).await?;
    let name = format!("handed{waiters}{shared}");
    let stop = Arc::new(AtomicBool::new(false));
    // When the last holder called release, and the time until the next has it.
    let last = Arc::new(Mutex::new((None::<(usize, Instant)>, Series::default())));
    let mut stores = Vec::new();
    for _ in 0..waiters {
        match stores.first() {
            Some(first) if shared => stores.push(Arc::clone(first)),
            _ => stores.push(store(server)?),
        }
    }
    let before = statements(&mut admin).await?;
    let workers: Vec<_> = stores
        .iter()
        .enumerate()
        .map(|(worker, store)| {
            let provider = Provider::new(Arc::clone(store) as _);
            let (stop, last, name) = (Arc::clone(&stop), Arc::clone(&last), name.clone());
            tokio::spawn(async move {
                let mut own = 0_usize;
                let mut handed = 0_usize;
                while !stop.load(Ordering::Relaxed) {
                    // A crowd in one process may be slower than the limit of one try: it asks again.
                    let wait = provider.acquire_within(&name, Duration::from_secs(2)).await;
                    let wait = match wait {
                        Err(error) if error.is_retryable() => continue,
                        answer => answer?,
                    };
                    let Some(guard) = wait else { continue };
                    let now = Instant::now();
                    {
                        let mut last = last.lock().map_err(|_| "poisoned")?;
                        if let Some((who, at)) = last.0
                            && who != worker
                        {
                            handed += 1;
                            last.1.0.push(now - at);
                        }
                        last.0 = Some((worker, Instant::now()));
                    }
                    own += 1;
                    if let Err(error) = guard.release().await
                        && !error.is_retryable()
                    {
                        return Err(error.into());
                    }
                }
                Result::Ok((own, handed))
            })
        })
        .collect();
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    let (mut all, mut handed) = (Vec::new(), 0);
    for worker in workers {
        let (own, others) = worker.await??;
        all.push(own);
        handed += others;
    }
    let spent = statements(&mut admin).await? - before;
    let mut last = last.lock().map_err(|_| "poisoned")?;
    let total: usize = all.iter().sum();
    let (least, most) = (all.iter().min(), all.iter().max());
    println!(
        "{waiters:>3} waiters in {}: {:>6.0} acquisitions/s, {:>6.0} hand-overs/s, gap p50 {:.2} ms p99 {:.2} ms, \
         {:.1} statements per acquisition, per waiter {} to {}",
        if shared { "one process" } else { "as many" },
        total as f64 / span.as_secs_f64(),
        handed as f64 / span.as_secs_f64(),
        last.1.percentile(50) / 1000.0,
        last.1.percentile(99) / 1000.0,
        spent as f64 / total as f64,
        least.unwrap_or(&0),
        most.unwrap_or(&0)
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let rounds = match std::env::var("LOCK_BENCH_ROUNDS") {
        Ok(text) => text.parse()?,
        Err(_) => 1000,
    };
    let start = || {
        or_skip(
            Server::mariadb()
                .durable()
                .with_setting("max-connections", "900")
                .start(),
        )
    };
    let Some(server) = tokio::task::spawn_blocking(start).await? else {
        return Ok(());
    };
    costs(&server, rounds).await?;
    clean_takeover(&server, rounds / 10).await?;
    for shared in [false, true] {
        for waiters in [8, 32, 200] {
            hand_over(&server, waiters, shared, Duration::from_secs(4)).await?;
        }
    }
    Ok(())
}
