//! What a store can do, said by the store itself.

use std::time::Duration;

/// What a store can do. Exclusion and owner-checked release are not in this list: they are the
/// least that every store does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The technology, such as `"sqlite"`; a stable word for errors, logs and metrics.
    pub backend: &'static str,
    /// What its tokens are worth.
    pub fencing: Fencing,
    /// Whether claims of mode [`Queue`](crate::Mode::Queue) keep a place in line in the store.
    pub queueing: bool,
    /// Whether [`wait`](crate::LockPersistence::wait) is told of a release.
    pub push: bool,
    /// Whether a lease ends when its process is gone, even if no other process ever looks.
    pub server_side_expiry: bool,
    /// Whether [`Claim::if_unchanged`](crate::Claim::if_unchanged) is understood.
    pub conditional_takeover: bool,
    /// Whether [`Claim::min_token`](crate::Claim::min_token) is understood.
    pub min_token: bool,
    /// The lease times it takes.
    pub ttl: TtlRange,
    /// How many names one session of the store carries, where that is limited.
    pub names_per_session: Option<usize>,
}

impl Capabilities {
    /// The capabilities of a store that can do the least: no push, no queue, and this fencing.
    #[must_use]
    pub fn new(backend: &'static str, fencing: Fencing) -> Self {
        Self {
            backend,
            fencing,
            queueing: false,
            push: false,
            server_side_expiry: true,
            conditional_takeover: false,
            min_token: false,
            ttl: TtlRange::default(),
            names_per_session: None,
        }
    }
}

/// What the tokens of a store are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fencing {
    /// Tokens grow, and the store itself can refuse a write that carries a stale one.
    Checked,
    /// Tokens grow; whoever is written to must check them.
    Monotone,
    /// Tokens may go back or repeat, for this reason.
    None(&'static str),
}

/// The lease times a store takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TtlRange {
    /// The shortest.
    pub min: Duration,
    /// The longest.
    pub max: Duration,
    /// The step it is rounded up to.
    pub granularity: Duration,
}

impl TtlRange {
    /// The range from `min` to `max`, both included, in steps of `granularity`.
    #[must_use]
    pub const fn new(min: Duration, max: Duration, granularity: Duration) -> Self {
        Self {
            min,
            max,
            granularity,
        }
    }
}

impl Default for TtlRange {
    /// From 100 ms to 24 h, in milliseconds.
    fn default() -> Self {
        Self::new(
            Duration::from_millis(100),
            Duration::from_secs(24 * 60 * 60),
            Duration::from_millis(1),
        )
    }
}
