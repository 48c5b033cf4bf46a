//! What a lease costs beside the floor of its server: a request that does nothing, and one write; then a takeover, and a lock
//! handed round among many. All floors and costs are measured in one loop, so that the moods of disk and machine meet all
//! alike; trust the ratio.
//!
//! A program in `benches/` implements [`Measured`] and calls [`run`].

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::{
    Attempt, Claim, LockName, LockPersistence, LockProvider as _, Nonce, Owner, Provider, Release,
    Renewal,
};

use crate::servers::{Server, ServerBuilder, or_skip};

/// Whatever goes wrong ends the measurement.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// What is to be measured, and an operator's connection to it.
pub trait Measured: Sized + Send {
    /// What [`write`](Self::write) is.
    const WRITE: &str = "durable write";
    /// The most that acquire and release may cost, in writes.
    const GOAL: f64;

    /// Another process, as far as the store can tell.
    ///
    /// # Errors
    /// The URL cannot be used.
    fn store(url: &str) -> Result<Arc<dyn LockPersistence>>;

    /// Connects, and makes what [`write`](Self::write) changes.
    fn connect(url: &str) -> impl Future<Output = Result<Self>> + Send;

    /// A round trip that does nothing.
    fn noop(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// What each acquisition and each release has to do at least.
    fn write(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Requests of stores that the server has run so far.
    fn requests(&mut self) -> impl Future<Output = Result<u64>> + Send;
}

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
        let at = (self.0.len() * part / 100).min(self.0.len().saturating_sub(1));
        self.0.get(at).map_or(f64::NAN, |d| d.as_secs_f64() * 1e6)
    }

    fn line(&mut self, what: &str) {
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        println!("{what:<34} p50 {p50:>8.0} µs   p99 {p99:>8.0} µs");
    }
}

fn claim(name: &LockName) -> Result<Claim> {
    Ok(Claim::new(
        name.clone(),
        Owner::new("bench")?,
        Nonce::random(),
        // Outlives a run on a slow machine.
        Duration::from_secs(3600),
    ))
}

async fn costs<D: Measured>(url: &str, rounds: usize) -> Result<()> {
    let store = D::store(url)?;
    let other = D::store(url)?;
    store.prepare().await?;
    let mut floor = D::connect(url).await?;
    let held = LockName::new("held")?;
    if let Attempt::Held(holder) = store.try_acquire(&claim(&held)?).await? {
        return Err(format!("somebody holds it: {holder:?}").into());
    }
    let [
        mut noop,
        mut write,
        mut denied,
        mut acquire,
        mut renew,
        mut release,
        mut both,
    ] = [const { Series(Vec::new()) }; 7];
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
        noop.time(floor.noop()).await?;
        write.time(floor.write()).await?;
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
    write.line(D::WRITE);
    denied.line("denied try");
    acquire.line("acquire");
    renew.line("renew");
    release.line("release");
    both.line("acquire + release");
    println!(
        "acquire + release ÷ 2 × {}: {:.2} (goal {:.2});  denied try ÷ {0}: {:.2} (goal below 1)",
        D::WRITE,
        both.percentile(50) / (2.0 * write.percentile(50)),
        D::GOAL,
        denied.percentile(50) / write.percentile(50)
    );
    Ok(())
}

/// From a release to the grant of a standby that has waited for long, and what such a standby costs.
async fn clean_takeover<D: Measured>(url: &str, rounds: usize) -> Result<()> {
    let leader = Provider::new(D::store(url)?);
    let standby = Provider::new(D::store(url)?);
    let mut admin = D::connect(url).await?;
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
            // Both count in whole rounds of their renewals and polls.
            let span = Duration::from_secs(15);
            let before = admin.requests().await?;
            tokio::time::sleep(span).await;
            let spent = admin.requests().await? - before;
            println!(
                "a leader and its standby while nothing changes: {} requests per minute",
                spent * 4
            );
        }
        let released = Instant::now();
        guard.release().await?;
        gap.0.push(waiter.await?? - released);
    }
    gap.line("clean takeover");
    Ok(())
}

/// From the last renewal that the store saw, whose holder is gone without a word, to the grant of a standby.
async fn crash_takeover<D: Measured>(url: &str, rounds: usize) -> Result<()> {
    let ttl = Duration::from_secs(2);
    let timing = lock_core::Timing::for_ttl(ttl)?;
    let leader = D::store(url)?;
    let standby = Provider::new(D::store(url)?).with_timing(timing);
    let name = LockName::new("crashed")?;
    let mut late = Series::default();
    for _ in 0..rounds {
        let claim = Claim::new(name.clone(), Owner::new("bench")?, Nonce::random(), ttl);
        let lease = loop {
            match leader.try_acquire(&claim).await? {
                Attempt::Granted(lease) => break lease,
                // The last round's release came late.
                Attempt::Held(_) => tokio::time::sleep(ttl / 20).await,
            }
        };
        let waiting = standby.clone();
        let waiter = tokio::spawn(async move {
            let guard = waiting.acquire("crashed").await?;
            let at = Instant::now();
            match guard.release().await {
                Err(error) if !error.is_retryable() => Err(error.into()),
                _ => Result::Ok(at),
            }
        });
        tokio::time::sleep(ttl / 4).await;
        // Never renewed again.
        let renewed = Instant::now();
        leader.renew(std::slice::from_ref(&lease)).await;
        late.0.push((waiter.await?? - renewed).saturating_sub(ttl));
    }
    late.line("crash takeover, beyond the ttl");
    Ok(())
}

/// `waiters` in as many processes as `stores` hand one lock round.
async fn hand_over<D: Measured>(
    url: &str,
    waiters: usize,
    stores: usize,
    span: Duration,
) -> Result<()> {
    let mut admin = D::connect(url).await?;
    let name = format!("handed-{waiters}-{stores}");
    let stop = Arc::new(AtomicBool::new(false));
    let counts = Arc::new(AtomicBool::new(false));
    // When the last holder called release, and the time until the next has it.
    let last = Arc::new(Mutex::new((None::<(usize, Instant)>, Series::default())));
    let stores = (0..stores)
        .map(|_| D::store(url))
        .collect::<Result<Vec<_>>>()?;
    let begun = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..waiters)
        .map(|worker| {
            let provider = Provider::new(Arc::clone(&stores[worker % stores.len()]));
            let (stop, last, name) = (Arc::clone(&stop), Arc::clone(&last), name.clone());
            let (begun, counts) = (Arc::clone(&begun), Arc::clone(&counts));
            tokio::spawn(async move {
                let mut own = 0_usize;
                let mut handed = 0_usize;
                let mut first = true;
                while !stop.load(Ordering::Relaxed) {
                    // A crowd in one process may be slower than the limit of one try: it asks again.
                    let wait = provider.acquire_within(&name, Duration::from_secs(2)).await;
                    let wait = match wait {
                        Err(error) if error.is_retryable() => continue,
                        answer => answer?,
                    };
                    let Some(guard) = wait else { continue };
                    let now = Instant::now();
                    if std::mem::take(&mut first) {
                        begun.fetch_add(1, Ordering::Relaxed);
                    }
                    if counts.load(Ordering::Relaxed) {
                        let mut last = last.lock().map_err(|_| "poisoned")?;
                        if let Some((who, at)) = last.0
                            && who != worker
                        {
                            handed += 1;
                            last.1.0.push(now - at);
                        }
                        last.0 = Some((worker, Instant::now()));
                        own += 1;
                    }
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
    // Once all have had it, which takes their connections.
    for _ in 0..3000 {
        if begun.load(Ordering::Relaxed) >= waiters {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before = admin.requests().await?;
    counts.store(true, Ordering::Relaxed);
    tokio::time::sleep(span).await;
    counts.store(false, Ordering::Relaxed);
    let spent = admin.requests().await? - before;
    stop.store(true, Ordering::Relaxed);
    let (mut all, mut handed) = (Vec::new(), 0);
    for worker in workers {
        let (own, others) = worker.await??;
        all.push(own);
        handed += others;
    }
    let mut last = last.lock().map_err(|_| "poisoned")?;
    let total: usize = all.iter().sum();
    let (least, most) = (all.iter().min(), all.iter().max());
    println!(
        "{waiters:>3} waiters in {:>3} processes: {:>5.0} acquisitions/s, {:>5.0} hand-overs/s, gap p50 {:.2} ms p99 \
         {:.2} ms, {:.1} requests per acquisition, per waiter {} to {}",
        stores.len(),
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

/// All of it, on a server that `server` starts. `crowds`: how many waiters, in how many processes.
///
/// `LOCK_BENCH_ROUNDS` sets the rounds; `LOCK_BENCH_ONLY` names one part: `costs`, `takeover` or `crowds`.
///
/// # Errors
/// The first thing that went wrong. A server that is not on this machine is said, and is no error.
pub async fn run<D: Measured>(
    server: fn() -> ServerBuilder,
    crowds: &[(usize, usize)],
) -> Result<()> {
    let rounds = match std::env::var("LOCK_BENCH_ROUNDS") {
        Ok(text) => text.parse()?,
        Err(_) => 1000,
    };
    let only = std::env::var("LOCK_BENCH_ONLY").unwrap_or_default();
    let wanted = |part: &str| only.is_empty() || only == part;
    let start = move || or_skip(server().start());
    let server: Option<Server> = tokio::task::spawn_blocking(start).await?;
    let Some(server) = server else {
        return Ok(());
    };
    let url = server.url();
    D::store(url)?.prepare().await?;
    if wanted("costs") {
        costs::<D>(url, rounds).await?;
    }
    if wanted("takeover") {
        clean_takeover::<D>(url, rounds / 10).await?;
        crash_takeover::<D>(url, rounds / 50).await?;
    }
    if wanted("crowds") {
        for (waiters, stores) in crowds {
            hand_over::<D>(url, *waiters, *stores, Duration::from_secs(4)).await?;
        }
    }
    Ok(())
}
