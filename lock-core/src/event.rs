//! What an election tells its onlookers.

use std::fmt;
use std::time::Duration;

use crate::claim::{Holder, Release};
use crate::clock::Moment;
use crate::error::Error;
use crate::token::Token;

/// Something that happened to one candidate. `Lost(t1)` always comes before `Gained(t2)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// The claim was granted: a term begins.
    Gained {
        /// The token of the term.
        token: Token,
        /// Until when `check()` holds unless it is renewed.
        deadline: Moment,
    },
    /// A renewal has moved the deadline.
    Renewed {
        /// The token of the term.
        token: Token,
        /// The new deadline.
        deadline: Moment,
    },
    /// The work is told to stop, irrevocably for this term.
    Stopping {
        /// The token of the term.
        token: Token,
        /// Why.
        reason: StopReason,
        /// When work that has not ended is aborted.
        abort_at: Moment,
    },
    /// The work has not ended by `abort_at` and is aborted at its next await point.
    Aborting {
        /// The token of the term.
        token: Token,
    },
    /// The term is over although it was not released.
    Lost {
        /// The token of the term.
        token: Token,
        /// Why.
        reason: LossReason,
    },
    /// Nothing of the work runs any more: the candidate does not lead, and the release goes out.
    WorkEnded {
        /// The token of the term.
        token: Token,
    },
    /// The store has answered the release. It also comes after a loss, as the end of the clean-up.
    Released {
        /// The token of the term.
        token: Token,
        /// What the store said; `NotHeld` means the lease was lost before it was released.
        outcome: Release,
    },
    /// Somebody else holds the name.
    Standby {
        /// Who.
        holder: Holder,
    },
    /// A request failed; the candidate tries again.
    Failed {
        /// Why.
        error: Error,
        /// How many requests in a row have failed.
        failures: u32,
        /// The pause before the next request; after a failed wait, before the next poll.
        retry_in: Duration,
    },
    /// The first answer after failures.
    Recovered {
        /// How many requests in a row had failed.
        failures: u32,
    },
    /// The candidate has given up; nothing of it is left behind, as far as the store could be told.
    Ended {
        /// Why, when it is not because it was told to.
        error: Option<Error>,
    },
}

/// Why the work was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// Renewals have not come through and the deadline is near.
    Deadline,
    /// The holder resigned.
    Resigned,
    /// Somebody left a request to step down.
    Requested,
    /// The candidate is shutting down.
    Shutdown,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "the deadline is near",
            Self::Resigned => "resigned",
            Self::Requested => "asked to step down",
            Self::Shutdown => "shutting down",
        })
    }
}

/// Why a term was lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The deadline passed.
    Expired {
        /// The last error of a renewal since the last one that succeeded.
        last_error: Option<Error>,
    },
    /// The store no longer has the entry: expired there, revoked, or removed by hand.
    Gone,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired { last_error: None } => f.write_str("the deadline passed"),
            Self::Expired {
                last_error: Some(error),
            } => {
                write!(f, "the deadline passed; the last renewal failed: {error}")
            }
            Self::Gone => f.write_str("the store no longer has the lease"),
        }
    }
}
