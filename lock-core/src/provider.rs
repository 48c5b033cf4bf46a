//! What an application holds: guards, elections and observation over any persistence.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::claim::Observation;
use crate::clock::Clock;
use crate::elector::Elector;
use crate::error::Result;
use crate::guard::LockGuard;
use crate::name::{Metadata, Owner};
use crate::persistence::LockPersistence;
use crate::timing::Timing;
use crate::token::Token;

/// The trait that applications depend on.
#[async_trait]
pub trait LockProvider: fmt::Debug + Send + Sync {
    /// Tries once.
    async fn try_acquire(&self, name: &str) -> Result<Option<LockGuard>>;
    /// Waits until the name is ours.
    async fn acquire(&self, name: &str) -> Result<LockGuard>;
    /// Waits at most `limit`; `Ok(None)` when somebody else held it all the time.
    async fn acquire_within(&self, name: &str, limit: Duration) -> Result<Option<LockGuard>>;
    /// A candidate for `name`. Cheap: nothing is sent before it runs.
    fn elector(&self, name: &str) -> Result<Elector>;
    /// Looks at one name without being a candidate.
    async fn observe(&self, name: &str) -> Result<Observation>;
    /// Resolves with the new observation when it differs from `seen` in more than a renewal.
    async fn watch(&self, seen: &Observation) -> Result<Observation>;
    /// The names that begin with `prefix`.
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>>;
    /// Asks the holder to step down at its next renewal; `false` when nobody holds the name.
    async fn step_down(&self, name: &str, hold_off: Duration) -> Result<bool>;
    /// Ends the lease of whoever holds the name.
    async fn revoke(&self, name: &str, reason: &str) -> Result<Option<Token>>;
}

/// A [`LockProvider`] over one [`LockPersistence`]. Cheap to clone; clones share one driver.
#[derive(Clone, Debug)]
pub struct Provider {
    persistence: Arc<dyn LockPersistence>,
}

impl Provider {
    /// A provider with the default owner (`host/pid`) and the default times.
    #[must_use]
    pub fn new(persistence: Arc<dyn LockPersistence>) -> Self {
        Self { persistence }
    }

    /// The same provider with this owner.
    #[must_use]
    pub fn with_owner(self, _owner: Owner) -> Self {
        todo!()
    }

    /// The same provider with these times.
    #[must_use]
    pub fn with_timing(self, _timing: Timing) -> Self {
        todo!()
    }

    /// The same provider with this metadata.
    #[must_use]
    pub fn with_metadata(self, _metadata: Metadata) -> Self {
        todo!()
    }

    /// The same provider with this priority.
    #[must_use]
    pub fn with_priority(self, _priority: i32) -> Self {
        todo!()
    }

    /// The same provider on another clock; for tests.
    #[must_use]
    pub fn with_clock(self, _clock: Arc<dyn Clock>) -> Self {
        todo!()
    }

    /// The same provider with its driver, and so every store call, on this runtime.
    #[must_use]
    pub fn on_runtime(self, _runtime: tokio::runtime::Handle) -> Self {
        todo!()
    }

    /// The store.
    #[must_use]
    pub fn persistence(&self) -> &Arc<dyn LockPersistence> {
        &self.persistence
    }
}

#[async_trait]
impl LockProvider for Provider {
    async fn try_acquire(&self, _name: &str) -> Result<Option<LockGuard>> {
        todo!()
    }
    async fn acquire(&self, _name: &str) -> Result<LockGuard> {
        todo!()
    }
    async fn acquire_within(&self, _name: &str, _limit: Duration) -> Result<Option<LockGuard>> {
        todo!()
    }
    fn elector(&self, _name: &str) -> Result<Elector> {
        todo!()
    }
    async fn observe(&self, _name: &str) -> Result<Observation> {
        todo!()
    }
    async fn watch(&self, _seen: &Observation) -> Result<Observation> {
        todo!()
    }
    async fn list(&self, _prefix: &str) -> Result<Vec<Observation>> {
        todo!()
    }
    async fn step_down(&self, _name: &str, _hold_off: Duration) -> Result<bool> {
        todo!()
    }
    async fn revoke(&self, _name: &str, _reason: &str) -> Result<Option<Token>> {
        todo!()
    }
}
