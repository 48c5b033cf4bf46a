//! A store that fails on demand.

use std::collections::BTreeMap;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::claim::{Attempt, Claim, Holder, Lease, Observation, Release, Renewal, Request};
use crate::error::{Error, Operation, Result};
use crate::name::LockName;
use crate::persistence::LockPersistence;
use crate::token::Token;

/// What goes wrong with one call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It fails with this error before the store has heard of it.
    FailBefore(Error),
    /// It takes effect, then its answer is lost: it fails with this error, marked
    /// [indeterminate](Error::is_indeterminate).
    FailAfter(Error),
    /// It reaches the store this much later.
    DelayBefore(Duration),
    /// It takes effect, and its answer comes this much later.
    DelayAfter(Duration),
    /// It never reaches the store and never returns.
    HangBefore,
    /// It takes effect and never returns.
    HangAfter,
    /// It reaches the store this much later, and its thread is blocked until then.
    Block(Duration),
    /// It panics before the store has heard of it.
    Panic,
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Times {
    /// At every call, until it is taken back.
    Always,
    /// At the next so many calls.
    Next(u64),
    /// At each call with this probability, from the seed of the [`Faults`].
    Chance(f64),
}

/// A store whose calls fail as its [`Faults`] say. For tests.
///
/// A fault of `renew` strikes the whole batch: each of its leases gets the error.
/// Delays are those of the tokio runtime, so virtual time works.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<dyn LockPersistence>,
    faults: Faults,
}

impl Faulty {
    /// `inner`, without any fault yet.
    #[must_use]
    pub fn new(inner: Arc<dyn LockPersistence>) -> Self {
        Self::with_faults(inner, Faults::default())
    }

    /// `inner`, under these faults. Several stores may share one control.
    #[must_use]
    pub fn with_faults(inner: Arc<dyn LockPersistence>, faults: Faults) -> Self {
        Self { inner, faults }
    }

    /// The control of its faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    async fn through<T, F>(&self, operation: Operation, call: F) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
    {
        match self.faults.strike(operation) {
            None => call.await,
            Some(Fault::FailBefore(error)) => Err(error.with_operation(operation)),
            Some(Fault::FailAfter(error)) => {
                // What the store said is lost on purpose, an error of its own too.
                let _lost = call.await;
                Err(error.with_operation(operation).with_indeterminate(true))
            }
            Some(Fault::DelayBefore(delay)) => {
                tokio::time::sleep(delay).await;
                call.await
            }
            Some(Fault::DelayAfter(delay)) => {
                let answer = call.await;
                tokio::time::sleep(delay).await;
                answer
            }
            Some(Fault::Block(delay)) => {
                std::thread::sleep(delay);
                call.await
            }
            Some(Fault::HangBefore) => pending().await,
            Some(Fault::HangAfter) => {
                let _lost = call.await;
                pending().await
            }
            Some(Fault::Panic) => panic!("{operation} panics, as its faults say"),
        }
    }
}

/// The control of a [`Faulty`] store. Clones control the same one.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    rules: BTreeMap<&'static str, Vec<(Fault, Times)>>,
    calls: BTreeMap<&'static str, u64>,
    struck: u64,
    random: u64,
}

impl Faults {
    /// No fault yet; [`Times::Chance`] draws from this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let plan = Plan {
            random: seed,
            ..Plan::default()
        };
        Self(Arc::new(Mutex::new(plan)))
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `fault` strike calls of `operation`. Of several faults the first that is due strikes.
    pub fn inject(&self, operation: Operation, fault: Fault, times: Times) {
        self.plan()
            .rules
            .entry(operation.as_str())
            .or_default()
            .push((fault, times));
    }

    /// Takes the faults of one operation back. A call that hangs goes on hanging.
    pub fn clear(&self, operation: Operation) {
        self.plan().rules.remove(operation.as_str());
    }

    /// Takes all faults back. A call that hangs goes on hanging.
    pub fn heal(&self) {
        self.plan().rules.clear();
    }

    /// How many calls of `operation` have begun, struck or not. A batch of renewals is one call.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> u64 {
        self.plan()
            .calls
            .get(operation.as_str())
            .copied()
            .unwrap_or(0)
    }

    /// How many calls have been struck.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.plan().struck
    }

    /// Counts a call and draws its fault.
    fn strike(&self, operation: Operation) -> Option<Fault> {
        let plan = &mut *self.plan();
        *plan.calls.entry(operation.as_str()).or_default() += 1;
        let rules = plan.rules.get_mut(operation.as_str())?;
        let mut due = None;
        for (at, (_, times)) in rules.iter_mut().enumerate() {
            let strikes = match times {
                Times::Always => true,
                Times::Next(left) => {
                    let strikes = *left > 0;
                    *left = left.saturating_sub(1);
                    strikes
                }
                Times::Chance(probability) => draw(&mut plan.random) < *probability,
            };
            if strikes {
                due = Some(at);
                break;
            }
        }
        plan.struck += u64::from(due.is_some());
        due.and_then(|at| rules.get(at))
            .map(|(fault, _)| fault.clone())
    }
}

/// The next number from 0 to 1 of a SplitMix64 sequence.
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    #[allow(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
    let fraction = (z >> 11) as f64 / (1_u64 << 53) as f64;
    fraction
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockPersistence for Faulty {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn prepare(&self) -> Result<()> {
        self.through(Operation::Prepare, self.inner.prepare()).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.through(Operation::TryAcquire, self.inner.try_acquire(claim))
            .await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let batch = async { Ok(self.inner.renew(leases).await) };
        match self.through(Operation::Renew, batch).await {
            Ok(answers) => answers,
            Err(error) => leases
                .iter()
                .map(|lease| Err(error.clone().with_name(lease.name().clone())))
                .collect(),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        self.through(Operation::Release, self.inner.release(lease))
            .await
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.through(Operation::Withdraw, self.inner.withdraw(claim))
            .await
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        self.through(Operation::Wait, self.inner.wait(claim, seen))
            .await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.through(Operation::Observe, self.inner.observe(name))
            .await
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.through(Operation::Watch, self.inner.watch(seen)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.through(Operation::List, self.inner.list(prefix)).await
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.through(Operation::Revoke, self.inner.revoke(name, reason))
            .await
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.through(Operation::Request, self.inner.request(name, request))
            .await
    }

    async fn server_time(&self) -> Result<SystemTime> {
        self.through(Operation::ServerTime, self.inner.server_time())
            .await
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.through(Operation::Sweep, self.inner.sweep(unused_for))
            .await
    }

    async fn close(&self) -> Result<()> {
        self.through(Operation::Close, self.inner.close()).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::error::ErrorKind;
    use crate::memory::MemoryStore;
    use crate::name::{Nonce, Owner};

    const TTL: Duration = Duration::from_secs(9);

    fn name() -> LockName {
        LockName::new("n").unwrap()
    }

    fn claim() -> Claim {
        Claim::new(name(), Owner::new("o").unwrap(), Nonce::random(), TTL)
    }

    fn down() -> Error {
        Error::new(ErrorKind::Unavailable, "down")
    }

    fn store() -> (Faulty, Faults, MemoryStore) {
        let memory = MemoryStore::new();
        let faults = Faults::seeded(7);
        let faulty = Faulty::with_faults(Arc::new(memory.clone()), faults.clone());
        (faulty, faults, memory)
    }

    async fn is_held(memory: &MemoryStore) -> bool {
        memory.observe(&name()).await.unwrap().holder().is_some()
    }

    #[tokio::test]
    async fn before_and_after_differ_in_the_store_and_in_the_error() {
        let (faulty, faults, memory) = store();
        faults.inject(
            Operation::TryAcquire,
            Fault::FailBefore(down().with_indeterminate(false)),
            Times::Next(1),
        );
        faults.inject(
            Operation::TryAcquire,
            Fault::FailAfter(down()),
            Times::Next(1),
        );
        let claim = claim();
        let error = faulty.try_acquire(&claim).await.unwrap_err();
        assert!(!error.is_indeterminate() && !is_held(&memory).await);
        assert_eq!(error.operation(), Some(Operation::TryAcquire));
        let error = faulty.try_acquire(&claim).await.unwrap_err();
        assert!(error.is_indeterminate() && is_held(&memory).await);
        assert!(matches!(
            faulty.try_acquire(&claim).await,
            Ok(Attempt::Granted(_))
        ));
        assert_eq!(faults.calls(Operation::TryAcquire), 3);
        assert_eq!(faults.struck(), 2);
    }

    #[tokio::test]
    async fn a_failed_renewal_answers_each_lease() {
        let (faulty, faults, _) = store();
        let Attempt::Granted(lease) = faulty.try_acquire(&claim()).await.unwrap() else {
            panic!("held");
        };
        faults.inject(Operation::Renew, Fault::FailBefore(down()), Times::Always);
        let answers = faulty.renew(&[lease.clone(), lease.clone()]).await;
        assert_eq!(answers.len(), 2);
        assert!(answers.iter().all(Result::is_err));
        faults.heal();
        assert!(matches!(
            faulty.renew(&[lease]).await.as_slice(),
            [Ok(Renewal::Renewed { .. })]
        ));
        assert_eq!(faults.calls(Operation::Renew), 2, "a batch is one call");
    }

    #[tokio::test(start_paused = true)]
    async fn delays_and_hangs() {
        let (faulty, faults, memory) = store();
        let second = Duration::from_secs(1);
        let start = tokio::time::Instant::now();
        faults.inject(
            Operation::Observe,
            Fault::DelayBefore(second),
            Times::Next(1),
        );
        faults.inject(
            Operation::Observe,
            Fault::DelayAfter(second),
            Times::Next(1),
        );
        faulty.observe(&name()).await.unwrap();
        faulty.observe(&name()).await.unwrap();
        assert_eq!(start.elapsed(), second * 2);

        let mut cx = Context::from_waker(Waker::noop());
        faults.inject(Operation::TryAcquire, Fault::HangBefore, Times::Next(1));
        faults.inject(Operation::TryAcquire, Fault::HangAfter, Times::Next(1));
        let claim = claim();
        assert!(
            pin!(faulty.try_acquire(&claim))
                .as_mut()
                .poll(&mut cx)
                .is_pending()
        );
        assert!(!is_held(&memory).await);
        assert!(
            pin!(faulty.try_acquire(&claim))
                .as_mut()
                .poll(&mut cx)
                .is_pending()
        );
        assert!(is_held(&memory).await);
    }

    #[tokio::test]
    #[should_panic(expected = "sweep panics")]
    async fn a_panic_is_a_panic() {
        let (faulty, faults, _) = store();
        faults.inject(Operation::Sweep, Fault::Panic, Times::Always);
        let _ = faulty.sweep(TTL).await;
    }

    #[tokio::test]
    async fn chance_is_seeded_and_clear_takes_one_operation_back() {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let (faulty, faults, _) = store();
            faults.inject(
                Operation::Observe,
                Fault::FailBefore(down()),
                Times::Chance(0.3),
            );
            let mut run = Vec::new();
            for _ in 0..200 {
                run.push(faulty.observe(&name()).await.is_err());
            }
            faults.clear(Operation::Observe);
            assert!(faulty.observe(&name()).await.is_ok());
            runs.push(run);
        }
        assert_eq!(runs[0], runs[1], "one seed, one run");
        let failed = runs[0].iter().filter(|f| **f).count();
        assert!((30..=90).contains(&failed), "{failed} of 200 at 0.3");
    }

    #[tokio::test]
    async fn every_method_is_counted_and_can_fail() {
        let (faulty, faults, _) = store();
        let held = claim();
        let Attempt::Granted(lease) = faulty.try_acquire(&held).await.unwrap() else {
            panic!("held");
        };
        let Attempt::Held(holder) = faulty.try_acquire(&claim()).await.unwrap() else {
            panic!("granted");
        };
        let seen = faulty.observe(&name()).await.unwrap();
        let all = [
            Operation::Prepare,
            Operation::TryAcquire,
            Operation::Renew,
            Operation::Release,
            Operation::Withdraw,
            Operation::Wait,
            Operation::Observe,
            Operation::Watch,
            Operation::List,
            Operation::Revoke,
            Operation::Request,
            Operation::ServerTime,
            Operation::Sweep,
            Operation::Close,
        ];
        let before: Vec<u64> = all.iter().map(|o| faults.calls(*o)).collect();
        for operation in all {
            faults.inject(operation, Fault::FailBefore(down()), Times::Always);
        }
        let wish = Request::StepDown { hold_off: TTL };
        let failed = [
            faulty.prepare().await.is_err(),
            faulty.try_acquire(&held).await.is_err(),
            faulty.renew(std::slice::from_ref(&lease)).await[0].is_err(),
            faulty.release(&lease).await.is_err(),
            faulty.withdraw(&held).await.is_err(),
            faulty.wait(&held, &holder).await.is_err(),
            faulty.observe(&name()).await.is_err(),
            faulty.watch(&seen).await.is_err(),
            faulty.list("").await.is_err(),
            faulty.revoke(&name(), "r").await.is_err(),
            faulty.request(&name(), &wish).await.is_err(),
            faulty.server_time().await.is_err(),
            faulty.sweep(TTL).await.is_err(),
            faulty.close().await.is_err(),
        ];
        assert_eq!(failed, [true; 14]);
        for (operation, before) in all.into_iter().zip(before) {
            assert_eq!(faults.calls(operation), before + 1, "{operation}");
        }
    }
}
