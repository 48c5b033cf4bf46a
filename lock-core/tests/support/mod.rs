//! A memory store in virtual time whose calls can be made to fail.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a part of test programs"
)]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::{Clock, Moment, RuntimeClock};
use lock_core::memory::MemoryStore;
use lock_core::wrap::{Fault, Faults, Faulty, Times};
use lock_core::{
    Error, ErrorKind, LeaseState, LockName, LockPersistence as _, Operation, Owner, Provider,
    Timing,
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

/// One store, one clock, and what goes wrong.
#[derive(Clone, Debug)]
pub struct World {
    store: MemoryStore,
    clock: Arc<dyn Clock>,
    faults: Faults,
}

impl World {
    pub fn new() -> Self {
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::start());
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        Self {
            store,
            clock,
            faults: Faults::default(),
        }
    }

    /// A provider as another process would have it.
    pub fn provider(&self) -> Provider {
        let store = Faulty::with_faults(Arc::new(self.store.clone()), self.faults.clone());
        Provider::new(Arc::new(store))
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

    pub fn calls(&self, operation: Operation) -> u64 {
        self.faults.calls(operation)
    }

    pub fn inject(&self, operation: Operation, fault: Fault, times: Times) {
        self.faults.inject(operation, fault, times);
    }

    pub fn fail(&self, operation: Operation, kind: ErrorKind) {
        self.inject(
            operation,
            Fault::FailBefore(on_purpose(kind)),
            Times::Always,
        );
    }

    pub fn hang(&self, operation: Operation) {
        self.inject(operation, Fault::HangBefore, Times::Always);
    }

    pub fn fail_once(&self, operation: Operation, kind: ErrorKind) {
        self.inject(
            operation,
            Fault::FailBefore(on_purpose(kind)),
            Times::Next(1),
        );
    }

    pub fn lose_answer_once(&self, operation: Operation) {
        let fault = Fault::FailAfter(on_purpose(ErrorKind::Unavailable));
        self.inject(operation, fault, Times::Next(1));
    }

    pub fn panic_once(&self, operation: Operation) {
        self.inject(operation, Fault::Panic, Times::Next(1));
    }

    pub fn heal(&self) {
        self.faults.heal();
    }
}

fn on_purpose(kind: ErrorKind) -> Error {
    Error::new(kind, "on purpose")
}
