//! What a store author tells the suite about a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Error, LockName, LockPersistence, Owner};

/// Why a case stops before its end without having found the store wrong.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The store has no such thing, for this reason. The reason must also stand in the suite's list
    /// (or in [`Harness::exemptions`]): otherwise the case fails.
    NotApplicable(String),
    /// The store or the harness could not do what every store must: the case fails.
    Failed(String),
}

impl Stop {
    /// The store has no such thing, for this reason.
    #[must_use]
    pub fn not_applicable(reason: impl Into<String>) -> Self {
        Self::NotApplicable(reason.into())
    }

    /// The harness could not do what was asked.
    #[must_use]
    pub fn failed(reason: impl fmt::Display) -> Self {
        Self::Failed(reason.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotApplicable(reason) => write!(f, "not applicable: {reason}"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

/// An answer of a harness, and what a case ends with.
pub type Answer<T> = Result<T, Stop>;

/// One fresh namespace in one store, and the means to disturb it.
///
/// The suite makes one value per case, and drops it at the end. There are no default bodies: what
/// your store does not have answers [`Stop::not_applicable`] with the reason, written out.
///
/// # Errors of all methods
/// [`Stop::NotApplicable`] for what the store does not have, [`Stop::Failed`] for what did not work.
///
/// `steal`, `wipe`, `block` and the server methods act *behind the back* of the store: as an operator
/// with the store's own tools would, not through [`LockPersistence`].
#[async_trait]
pub trait Harness: fmt::Debug + Send + Sync + 'static {
    /// A namespace that no other value shares: a temporary file, a table or a key prefix of its own.
    async fn new() -> Answer<Self>
    where
        Self: Sized;

    /// The word for the technology, as in [`Capabilities::backend`](lock_core::Capabilities::backend).
    fn backend(&self) -> &'static str;

    /// An independent client of this namespace, as another process would have it: its own
    /// connections, nothing shared but the store. Not yet prepared.
    async fn open(&self) -> Answer<Arc<dyn LockPersistence>>;

    /// How long after the end of a ttl the store may take to let others in, beyond its granularity:
    /// the period of a reaper, or zero where expiry is judged by each request.
    fn expiry_slack(&self) -> Duration;

    /// A text by which another process reaches this namespace through [`open_at`](Self::open_at).
    ///
    /// # Errors
    /// [`Stop::NotApplicable`] when no other process can.
    fn locator(&self) -> Answer<String>;

    /// A client of the namespace that this text stands for. Called in a child process.
    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>>
    where
        Self: Sized;

    /// Deletes the entry of this name by hand.
    async fn wipe(&self, name: &LockName) -> Answer<()>;

    /// Changes owner and nonce of the held entry of this name by hand, token and expiry as they were.
    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()>;

    /// Keeps the entry of this name locked against writers for `span`, returning once it is locked.
    async fn block(&self, name: &LockName, span: Duration) -> Answer<()>;

    /// Counts what lies in the store for this namespace that belongs to no held lease: queue entries
    /// of waiters, keys without an expiry, subscriptions. A free or expired entry that only keeps the
    /// last token does not count.
    async fn residue(&self) -> Answer<u64>;

    /// Stops the server of this namespace, at once.
    async fn stop_server(&self) -> Answer<()>;

    /// Starts it again with what it had stored, and waits until it answers.
    async fn start_server(&self) -> Answer<()>;

    /// Cases that do not apply to this store, with the reason, beyond the list that the suite keeps
    /// for the backends it knows. A case that is listed and runs all the same fails: the list is stale.
    fn exemptions(&self) -> &'static [(&'static str, &'static str)];
}
