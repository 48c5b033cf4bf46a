//! What a case works with.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lock_core::{
    Attempt, Claim, Holder, Lease, LeaseState, LockGuard, LockName, LockPersistence, Nonce,
    Observation, Owner, Provider, Release, Renewal, Timing,
};

use crate::case::Tier;
use crate::harness::{Answer, Harness, Stop};
use crate::runner::Runner;

/// One fresh namespace, and helpers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Cx(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    harness: Arc<dyn Harness>,
    seed: u64,
    drawn: AtomicU64,
    test_path: &'static str,
    runner: Arc<dyn Runner>,
}

/// How long anything may take that needs only a few requests. Generous: it is there so that a case
/// fails instead of hanging.
pub(crate) const SOON: Duration = Duration::from_secs(20);

impl Cx {
    pub(crate) fn new(
        harness: Arc<dyn Harness>,
        seed: u64,
        test_path: &'static str,
        runner: Arc<dyn Runner>,
    ) -> Self {
        Self(Arc::new(Inner {
            harness,
            seed,
            drawn: AtomicU64::new(0),
            test_path,
            runner,
        }))
    }

    /// What runs the candidates.
    pub(crate) fn runner(&self) -> &dyn Runner {
        self.0.runner.as_ref()
    }

    pub(crate) fn harness(&self) -> &dyn Harness {
        self.0.harness.as_ref()
    }

    /// The path of the module that the suite was expanded in.
    pub(crate) fn test_path(&self) -> &'static str {
        self.0.test_path
    }

    /// A prepared client of its own.
    pub(crate) async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        let store = self.0.harness.open().await?;
        store.prepare().await?;
        Ok(store)
    }

    /// `ci` rounds in the short tier, `full` in the long one.
    pub(crate) fn rounds(&self, ci: usize, full: usize) -> usize {
        match Tier::of_this_run() {
            Tier::Ci => ci,
            Tier::Full => full,
        }
    }

    /// The next number of this case's seeded sequence.
    pub(crate) fn random(&self) -> u64 {
        let n = self.0.drawn.fetch_add(1, Ordering::Relaxed) + 1;
        let mut z = self
            .0
            .seed
            .wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A ttl that a case can wait for: at least a second, and what the store takes.
    pub(crate) fn short(&self, store: &dyn LockPersistence) -> Duration {
        let range = store.capabilities().ttl;
        Duration::from_secs(1).max(range.min)
    }

    /// A ttl that does not end during a case.
    pub(crate) fn long(&self, store: &dyn LockPersistence) -> Duration {
        Duration::from_secs(60).min(store.capabilities().ttl.max)
    }

    /// A ttl whose polls a case can wait for, and that a busy machine does not lose.
    pub(crate) fn brisk(&self, store: &dyn LockPersistence) -> Duration {
        self.short(store) * 3
    }

    /// How much longer than `ttl` the store may keep a lease.
    pub(crate) fn slack(&self, store: &dyn LockPersistence) -> Duration {
        store.capabilities().ttl.granularity + self.0.harness.expiry_slack()
    }

    /// A provider over this store, with the default proportions at this ttl.
    pub(crate) fn provider(&self, store: &Arc<dyn LockPersistence>, ttl: Duration) -> Provider {
        Provider::new(Arc::clone(store)).with_timing(timing(ttl))
    }

    /// Waits until the store says that nobody holds `name`, for at most its ttl and then some.
    pub(crate) async fn until_free(
        &self,
        store: &dyn LockPersistence,
        name: &LockName,
    ) -> Answer<()> {
        let limit = store.observe(name).await?.holder().map_or(SOON, |h| {
            h.remaining + self.slack(store) + Duration::from_secs(5)
        });
        eventually("the name is free", limit, || async {
            Ok(store.observe(name).await?.holder().is_none())
        })
        .await
    }
}

pub(crate) fn timing(ttl: Duration) -> Timing {
    match Timing::for_ttl(ttl) {
        Ok(timing) => timing,
        Err(error) => panic!("the suite asked for times that are refused: {error}"),
    }
}

pub(crate) fn name(text: &str) -> LockName {
    match LockName::new(text) {
        Ok(name) => name,
        Err(error) => panic!("the suite made the name {text:?}: {error}"),
    }
}

pub(crate) fn owner(text: &str) -> Owner {
    match Owner::new(text) {
        Ok(owner) => owner,
        Err(error) => panic!("the suite made the owner {text:?}: {error}"),
    }
}

/// A new claim with a nonce of its own.
pub(crate) fn claim(name: &LockName, ttl: Duration) -> Claim {
    Claim::new(name.clone(), owner("candidate"), Nonce::random(), ttl)
}

/// The lease of a claim that must be granted.
pub(crate) async fn granted(store: &dyn LockPersistence, claim: &Claim) -> Answer<Lease> {
    match store.try_acquire(claim).await? {
        Attempt::Granted(lease) => Ok(lease),
        Attempt::Held(holder) => Err(Stop::failed(format!(
            "a try for {:?} should be granted, and was denied: {holder:?}",
            claim.name
        ))),
    }
}

/// The holder that a claim meets that must be denied.
pub(crate) async fn denied(store: &dyn LockPersistence, claim: &Claim) -> Answer<Holder> {
    match store.try_acquire(claim).await? {
        Attempt::Held(holder) => Ok(holder),
        Attempt::Granted(lease) => Err(Stop::failed(format!(
            "a try for {:?} should be denied, and was granted: {lease:?}",
            claim.name
        ))),
    }
}

/// The answer to the renewal of one lease.
pub(crate) async fn renew(store: &dyn LockPersistence, lease: &Lease) -> Answer<Renewal> {
    let mut answers = store.renew(std::slice::from_ref(lease)).await;
    if answers.len() != 1 {
        return Err(Stop::failed(format!(
            "a batch of one was answered by {} results",
            answers.len()
        )));
    }
    Ok(answers.remove(0)?)
}

pub(crate) async fn renewed(store: &dyn LockPersistence, lease: &Lease) -> Answer<()> {
    match renew(store, lease).await? {
        Renewal::Renewed { .. } => Ok(()),
        Renewal::Gone => Err(Stop::failed(format!(
            "{lease:?} should be renewed, and is gone"
        ))),
    }
}

pub(crate) async fn gone(store: &dyn LockPersistence, lease: &Lease) -> Answer<()> {
    match renew(store, lease).await? {
        Renewal::Gone => Ok(()),
        renewed @ Renewal::Renewed { .. } => Err(Stop::failed(format!(
            "{lease:?} should be gone, and was answered {renewed:?}"
        ))),
    }
}

/// Who holds the name, which somebody must.
pub(crate) async fn holder(store: &dyn LockPersistence, name: &LockName) -> Answer<Holder> {
    let seen = store.observe(name).await?;
    match seen.state {
        LeaseState::Held(holder) => Ok(holder),
        other => Err(Stop::failed(format!(
            "{name:?} should be held, and is {other:?}"
        ))),
    }
}

pub(crate) fn is_free(seen: &Observation) -> bool {
    matches!(seen.state, LeaseState::Absent | LeaseState::Free { .. })
}

/// Releases a guard, again and again while a busy machine answers too late.
pub(crate) async fn let_go(guard: &LockGuard) -> Answer<Release> {
    let began = Instant::now();
    loop {
        match guard.release().await {
            Err(error) if error.is_retryable() && began.elapsed() < SOON => {}
            answer => return Ok(answer?),
        }
    }
}

/// Asks again until the answer is yes.
pub(crate) async fn eventually<F, Fut>(what: &str, limit: Duration, mut ask: F) -> Answer<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Answer<bool>>,
{
    let started = Instant::now();
    loop {
        if ask().await? {
            return Ok(());
        }
        if started.elapsed() > limit {
            return Err(Stop::failed(format!("not within {limit:?}: {what}")));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The output of a future that must come within [`SOON`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Answer<T> {
    within(what, SOON, future).await
}

/// The output of a future that must come within `limit`.
pub(crate) async fn within<T>(
    what: &str,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Answer<T> {
    tokio::time::timeout(limit, future)
        .await
        .map_err(|_| Stop::failed(format!("not within {limit:?}: {what}")))
}

/// Polls a future at most `polls` times, giving other tasks time in between, then drops it. `true`
/// when it was done before that.
pub(crate) async fn poll_times<T>(polls: usize, future: impl Future<Output = T>) -> bool {
    let mut future: Pin<Box<_>> = Box::pin(future);
    for _ in 0..polls {
        if poll_once(future.as_mut()) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}

fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    matches!(future.poll(&mut cx), Poll::Ready(_))
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Stop::failed(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;
