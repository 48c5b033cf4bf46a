//! What differs between the databases: statements, connections, and how a change is noticed.
//!
//! [`SqlPersistence`](crate::SqlPersistence) does what is alike (chunks, repeats after a lost race, waiting, closing, the
//! words of errors), so that a new database is one file here. Each method is one statement of the
//! database, judged by its clock.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, Holder, Lease, LeaseState, LockName, Metadata, Observation, Renewal,
    Result, Token,
};

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod opening;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

/// The answer of the one statement of a try.
#[derive(Debug)]
pub(crate) enum Tried {
    Granted(Lease),
    /// Not granted, and what the statement saw of the row: a race may have left it free.
    Denied(LeaseState),
}

#[async_trait]
pub(crate) trait Dialect: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> &Capabilities;
    async fn prepare(&self) -> Result<()>;
    async fn try_acquire(&self, claim: &Claim) -> Result<Tried>;
    /// At most [`CHUNK`] leases; same length and order. An entry that is locked by another is its own
    /// error.
    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Result<Renewal>>>;
    async fn release(&self, lease: &Lease) -> Result<bool>;
    async fn withdraw(&self, claim: &Claim) -> Result<()>;
    async fn read(&self, name: &LockName) -> Result<LeaseState>;
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>>;
    async fn revoke(&self, name: &LockName, note: &Metadata) -> Result<Option<Token>>;
    async fn request(&self, name: &LockName, request: &str) -> Result<bool>;
    async fn server_time(&self) -> Result<SystemTime>;
    async fn sweep(&self, unused_for: Duration) -> Result<u64>;
    /// Waits in its own way, where waiters are told one by one; `None` where they are told by
    /// [`subscribe`](Self::subscribe).
    async fn wait(&self, _claim: &Claim, _seen: &Holder) -> Option<Result<()>> {
        None
    }
    /// From when this has answered, no change is missed. `name` is for databases that listen by name.
    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Changes>>;
    async fn close(&self);
}

/// A subscription, ended by dropping it.
#[async_trait]
pub(crate) trait Changes: Send {
    /// Resolves when reading again may show something new.
    async fn changed(&mut self) -> Result<()>;
}

/// The most leases that one statement renews.
pub(crate) const CHUNK: usize = 500;
