//! What happens to a machine.

use std::time::Duration;

use crate::claim::{Attempt, Release, Renewal};
use crate::clock::Moment;
use crate::election::OpId;
use crate::error::Result;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Begin.
    Start,
    /// An action was answered. Exactly one answer is due to each action but the two about waiting.
    Replied {
        /// Which.
        op: OpId,
        /// When its request was handed to the store's client. Not when it was answered.
        sent: Moment,
        /// With what.
        reply: Reply,
    },
    /// Another attempt is worth making, or another try of what is owed.
    Hint,
    /// The store can no longer tell when another attempt is worth making.
    WaitFailed(crate::Error),
    /// A batch of renewals is about to leave: a renewal that is nearly due may ride along.
    RideAlong,
    /// The deadline was seen to have passed before a renewal could move it.
    Lapsed,
    /// Stop the work, release, and do not claim again for this long.
    Resign {
        /// How long to leave the name to others.
        hold_off: Duration,
    },
    /// Stop the work, release or withdraw, and end.
    Shutdown,
    /// The work of the term has ended; nothing of it runs any more.
    WorkEnded {
        /// How long to leave the name to others.
        hold_off: Duration,
    },
}

/// The answer to an action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// To [`Action::TryAcquire`](crate::election::Action::TryAcquire).
    TryAcquire(Result<Attempt>),
    /// To [`Action::Renew`](crate::election::Action::Renew).
    Renew(Result<Renewal>),
    /// To [`Action::Release`](crate::election::Action::Release).
    Release(Result<Release>),
    /// To [`Action::Withdraw`](crate::election::Action::Withdraw).
    Withdraw(Result<()>),
}
