//! The seam by which the cases drive a candidate: the real elector, or a broken one that a case must
//! catch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use lock_core::clock::Moment;
use lock_core::{
    Elector, Leadership, LockName, LockPersistence, LockProvider as _, Owner, Provider, Status,
    Timing, Token,
};
use tokio::task::JoinHandle;

use crate::harness::{Answer, Stop};

/// What the work sees of its term.
#[async_trait]
pub trait Term: fmt::Debug + Send + Sync {
    /// The fencing token.
    fn token(&self) -> Token;
    /// Whether the work may act now.
    fn check(&self) -> bool;
    /// An instant that moves with each renewal.
    fn deadline(&self) -> Moment;
    /// Time left to it.
    fn remaining(&self) -> Duration;
    /// Resolves when the work is to stop.
    async fn stopping(&self);
    /// Resolves when the term is lost; never when it was released.
    async fn lost(&self);
}

/// What a candidate runs in each of its terms.
pub type Work = Arc<dyn Fn(Arc<dyn Term>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// All that a candidate needs.
#[non_exhaustive]
pub struct Seat {
    /// A client of its own.
    pub store: Arc<dyn LockPersistence>,
    /// The published identity; not unique.
    pub owner: Owner,
    /// The name of the election.
    pub name: LockName,
    /// The times to keep.
    pub timing: Timing,
    /// The work.
    pub work: Work,
}

impl Seat {
    pub(crate) fn new(
        store: Arc<dyn LockPersistence>,
        owner: Owner,
        name: LockName,
        timing: Timing,
        work: Work,
    ) -> Self {
        Self {
            store,
            owner,
            name,
            timing,
            work,
        }
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat")
            .field("owner", &self.owner)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A candidate that runs.
#[async_trait]
pub trait Running: fmt::Debug + Send + Sync {
    /// Resolves when it leads.
    async fn leads(&self);
    /// Resolves when the store has told it that somebody else leads.
    async fn stands_by(&self);
    /// Gives the lead away and does not claim for `hold_off`.
    fn resign(&self, hold_off: Duration);
    /// Shuts it down and waits for its end.
    async fn stop(self: Box<Self>) -> Answer<()>;
}

/// Starts candidates on the current runtime.
pub trait Runner: fmt::Debug + Send + Sync {
    /// Starts one.
    ///
    /// # Errors
    /// Settings that cannot work.
    fn start(&self, seat: Seat) -> Answer<Box<dyn Running>>;
}

/// The elector of `lock-core`: a candidate without a fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

#[derive(Debug)]
struct RealCandidate {
    elector: Elector,
    task: JoinHandle<lock_core::Result<()>>,
}

#[async_trait]
impl Term for Leadership {
    fn token(&self) -> Token {
        Self::token(self)
    }
    fn check(&self) -> bool {
        Self::check(self)
    }
    fn deadline(&self) -> Moment {
        Self::deadline(self)
    }
    fn remaining(&self) -> Duration {
        Self::remaining(self)
    }
    async fn stopping(&self) {
        Self::stopping(self).await;
    }
    async fn lost(&self) {
        Self::lost(self).await;
    }
}

impl Runner for Real {
    fn start(&self, seat: Seat) -> Answer<Box<dyn Running>> {
        let provider = Provider::new(seat.store)
            .with_timing(seat.timing)
            .with_owner(seat.owner);
        let elector = provider.elector(seat.name.as_str())?;
        let (running, work) = (elector.clone(), seat.work);
        let task = tokio::spawn(async move { running.run(move |l| work(Arc::new(l))).await });
        Ok(Box::new(RealCandidate { elector, task }))
    }
}

impl RealCandidate {
    async fn until(&self, is: fn(&Status) -> bool) {
        let mut status = self.elector.status();
        // The sender lives in the elector.
        if status.wait_for(is).await.is_err() {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Running for RealCandidate {
    async fn leads(&self) {
        self.until(|s| matches!(s, Status::Leading(_))).await;
    }
    async fn stands_by(&self) {
        self.until(|s| matches!(s, Status::Standby(Some(_)))).await;
    }
    fn resign(&self, hold_off: Duration) {
        self.elector.resign(hold_off);
    }
    async fn stop(self: Box<Self>) -> Answer<()> {
        self.elector.shutdown();
        self.task.await.map_err(Stop::failed)?.map_err(Stop::from)
    }
}
