//! A memory store in virtual time whose calls can be made to fail.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a part of test programs"
)]

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::clock::{Clock, Moment, RuntimeClock};
use lock_core::memory::MemoryStore;
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Holder, Lease, LeaseState, LockName,
    LockPersistence, Observation, Operation, Owner, Provider, Release, Renewal, Request, Result,
    Timing, Token,
};

pub const TTL: Duration = Duration::from_secs(3);
pub const HAND_OFF: Duration = Duration::from_millis(100);

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn timing() -> Timing {
    Timing::for_ttl(TTL).unwrap()
}

/// Bounds what must come well before a ttl has passed.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(1), future)
        .await
        .expect("it comes within a second")
}

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Fail(ErrorKind),
    LoseAnswer,
    Hang,
    Panic,
}

#[derive(Debug, Default)]
struct Faults {
    once: BTreeMap<&'static str, Vec<Fault>>,
    always: BTreeMap<&'static str, Fault>,
    delay: Duration,
    calls: BTreeMap<&'static str, usize>,
}

/// One store, one clock, and what goes wrong.
#[derive(Clone, Debug)]
pub struct World {
    store: MemoryStore,
    clock: Arc<dyn Clock>,
    faults: Arc<Mutex<Faults>>,
}

impl World {
    pub fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::start());
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        Self {
            store,
            clock,
            faults: Arc::default(),
        }
    }

    /// A provider as another process would have it.
    pub fn provider(&self) -> Provider {
        Provider::new(Arc::new(self.clone()))
            .with_clock(Arc::clone(&self.clock))
            .with_timing(timing())
            .with_owner(Owner::new("same owner for all").unwrap())
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    pub async fn state(&self, name: &str) -> LeaseState {
        let name = LockName::new(name).unwrap();
        self.store.observe(&name).await.unwrap().state
    }

    /// Waits until the name was released or revoked.
    pub async fn until_free(&self, name: &str) {
        loop {
            if let LeaseState::Absent | LeaseState::Free { .. } = self.state(name).await {
                return;
            }
            tokio::time::sleep(ms(1)).await;
        }
    }

    pub fn calls(&self, operation: Operation) -> usize {
        let faults = self.faults.lock().unwrap();
        faults.calls.get(operation.as_str()).copied().unwrap_or(0)
    }

    pub fn fail(&self, operation: Operation, kind: ErrorKind) {
        self.always(operation, Fault::Fail(kind));
    }

    pub fn hang(&self, operation: Operation) {
        self.always(operation, Fault::Hang);
    }

    pub fn fail_once(&self, operation: Operation, kind: ErrorKind) {
        self.once(operation, Fault::Fail(kind));
    }

    pub fn lose_answer_once(&self, operation: Operation) {
        self.once(operation, Fault::LoseAnswer);
    }

    pub fn panic_once(&self, operation: Operation) {
        self.once(operation, Fault::Panic);
    }

    pub fn delay_all(&self, delay: Duration) {
        self.faults.lock().unwrap().delay = delay;
    }

    pub fn heal(&self) {
        let mut faults = self.faults.lock().unwrap();
        faults.once.clear();
        faults.always.clear();
        faults.delay = Duration::ZERO;
    }

    fn always(&self, operation: Operation, fault: Fault) {
        let mut faults = self.faults.lock().unwrap();
        faults.always.insert(operation.as_str(), fault);
    }

    fn once(&self, operation: Operation, fault: Fault) {
        let mut faults = self.faults.lock().unwrap();
        faults
            .once
            .entry(operation.as_str())
            .or_default()
            .push(fault);
    }

    async fn through<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (fault, delay) = {
            let mut faults = self.faults.lock().unwrap();
            *faults.calls.entry(operation.as_str()).or_default() += 1;
            let always = faults.always.get(operation.as_str()).copied();
            let once = faults
                .once
                .get_mut(operation.as_str())
                .and_then(|once| (!once.is_empty()).then(|| once.remove(0)));
            (once.or(always), faults.delay)
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match fault {
            Some(Fault::Fail(kind)) => {
                Err(Error::new(kind, "on purpose").with_operation(operation))
            }
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Panic) => panic!("on purpose"),
            Some(Fault::LoseAnswer) => {
                call.await?;
                Err(Error::new(ErrorKind::Unavailable, "the answer was lost")
                    .with_operation(operation)
                    .with_indeterminate(true))
            }
            None => {
                let answer = call.await;
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                answer
            }
        }
    }
}

#[async_trait]
impl LockPersistence for World {
    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    async fn prepare(&self) -> Result<()> {
        self.store.prepare().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.through(Operation::TryAcquire, self.store.try_acquire(claim))
            .await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let call = async { Ok(self.store.renew(leases).await) };
        match self.through(Operation::Renew, call).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); leases.len()],
        }
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        self.through(Operation::Release, self.store.release(lease))
            .await
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.through(Operation::Withdraw, self.store.withdraw(claim))
            .await
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        self.store.wait(claim, seen).await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.store.observe(name).await
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.store.watch(seen).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.store.list(prefix).await
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.store.revoke(name, reason).await
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.store.request(name, request).await
    }

    async fn server_time(&self) -> Result<SystemTime> {
        self.store.server_time().await
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.store.sweep(unused_for).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
