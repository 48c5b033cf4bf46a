//! One leader at a time, over any store.
//!
//! This crate holds the vocabulary, the two traits, the election machine and its driver. It knows no
//! store but [`memory`]. Applications use it through the facade `lockkit`; store authors implement
//! [`LockPersistence`] and prove it with `conformance-tests`.

mod capabilities;
mod claim;
pub mod clock;
mod driver;
#[cfg(feature = "unstable-machine")]
pub mod election;
#[cfg(not(feature = "unstable-machine"))]
#[allow(
    unreachable_pub,
    dead_code,
    reason = "public behind the feature; parts are for tests only"
)]
mod election;
mod elector;
mod error;
mod event;
mod guard;
pub mod memory;
mod name;
mod persistence;
mod provider;
pub mod quorum;
mod telemetry;
mod timing;
mod token;
pub mod wrap;

pub use capabilities::{Capabilities, Fencing, TtlRange};
pub use claim::{
    Attempt, Claim, Handle, Holder, Lease, LeaseState, Mode, Observation, Release, Renewal, Request,
};
pub use driver::dedicated_runtime;
pub use elector::{Elector, Health, Outcome, Status};
pub use error::{Error, ErrorKind, Operation, Result};
pub use event::{Event, LossReason, StopReason};
pub use guard::{Leadership, LockGuard};
pub use name::{LockName, MAX_METADATA_BYTES, MAX_NAME_BYTES, Metadata, Nonce, Owner};
pub use persistence::LockPersistence;
pub use provider::{LockProvider, Provider};
pub use timing::{Explanation, Timing, TimingBuilder};
pub use token::{FenceGate, Token};
