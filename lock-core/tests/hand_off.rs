//! Where the driver and the foreground meet: offers polled late, notices read late.

#![allow(clippy::unwrap_used, reason = "a test program")]

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use lock_core::clock::{Clock, Moment, RuntimeClock};
use lock_core::memory::MemoryStore;
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Holder, Lease, LockName, LockPersistence,
    LockProvider as _, Observation, Operation, Outcome, Provider, Release, Renewal, Request,
    Result, Token,
};
use support::{HAND_OFF, TTL, World, ms, soon, timing};

fn poll_once<T>(future: &mut Pin<Box<impl Future<Output = T>>>) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
}

/// The clock of the runtime, with jumps.
#[derive(Debug)]
struct Jumping(RuntimeClock, AtomicU64);

impl Clock for Jumping {
    fn now(&self) -> Moment {
        self.0.now().after(ms(self.1.load(Ordering::SeqCst)))
    }
}

#[tokio::test(start_paused = true)]
async fn a_term_that_ended_before_it_was_taken_is_not_handed_out() {
    let clock = Arc::new(Jumping(RuntimeClock::start(), AtomicU64::new(0)));
    let shared: Arc<dyn Clock> = Arc::<Jumping>::clone(&clock);
    let store = MemoryStore::with_clock(Arc::clone(&shared));
    let provider = Provider::new(Arc::new(store))
        .with_clock(shared)
        .with_timing(timing());
    let mut acquire = Box::pin(provider.acquire("n"));
    poll_once(&mut acquire);
    tokio::time::sleep(HAND_OFF / 2).await;
    // The machine was suspended while the offer lay there.
    clock.1.store(
        2 * u64::try_from(TTL.as_millis()).unwrap(),
        Ordering::SeqCst,
    );
    let guard = soon(acquire).await.unwrap();
    assert!(guard.check(), "a guard that is handed out holds");
}

#[tokio::test(start_paused = true)]
async fn run_once_that_was_polled_too_late_starts_over() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let mut run = Box::pin(elector.run_once(|leadership| async move { leadership.check() }));
    poll_once(&mut run);
    tokio::time::sleep(HAND_OFF * 3).await;
    let outcome = soon(run).await.unwrap();
    assert!(matches!(outcome, Outcome::Finished(true)), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_second_release_is_not_answered_with_old_failures() {
    let world = World::new();
    let guard = world.provider().acquire("n").await.unwrap();
    world.fail(Operation::Release, ErrorKind::Unavailable);
    guard.release().await.unwrap_err();
    // The driver goes on trying, and fails.
    tokio::time::sleep(TTL / 2).await;
    world.heal();
    assert_eq!(soon(guard.release()).await.unwrap(), Release::Released);
}

/// A store of somebody's own, whose errors say nothing but what they must.
#[derive(Debug)]
struct Terse(MemoryStore);

#[async_trait::async_trait]
impl LockPersistence for Terse {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    async fn prepare(&self) -> Result<()> {
        self.0.prepare().await
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.0.try_acquire(claim).await
    }
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.0.renew(leases).await
    }
    async fn release(&self, _: &Lease) -> Result<Release> {
        Err(Error::new(ErrorKind::Unavailable, "no"))
    }
    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.0.withdraw(claim).await
    }
    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        self.0.wait(claim, seen).await
    }
    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.0.observe(name).await
    }
    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.0.watch(seen).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.0.list(prefix).await
    }
    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.0.revoke(name, reason).await
    }
    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.0.request(name, request).await
    }
    async fn server_time(&self) -> Result<SystemTime> {
        self.0.server_time().await
    }
    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.0.sweep(unused_for).await
    }
    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_told_also_when_the_store_does_not_name_the_operation() {
    let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::start());
    let store = Terse(MemoryStore::with_clock(Arc::clone(&clock)));
    let provider = Provider::new(Arc::new(store))
        .with_clock(clock)
        .with_timing(timing());
    let guard = provider.acquire("n").await.unwrap();
    let error = soon(guard.release()).await.unwrap_err();
    assert_eq!(error.operation(), Some(Operation::Release), "{error}");
}
