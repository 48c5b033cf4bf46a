//! What a machine wants done.

use crate::claim::{Claim, Holder, Lease};
use crate::clock::Moment;
use crate::event::Event;

/// The id of one request, by which its answer is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// The next thing that a machine wants. Exhaustive on purpose: a driver that misses a new one must
/// not compile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Carry this out.
    Action(Action),
    /// Tell the onlookers.
    Event(Event),
    /// Nothing more until this moment, or until something happens.
    Wait(Moment),
}

/// A call to the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(
    missing_docs,
    reason = "the fields are what the call takes, and the id of its answer"
)]
pub enum Action {
    TryAcquire {
        op: OpId,
        claim: Claim,
    },
    Renew {
        op: OpId,
        lease: Lease,
    },
    Release {
        op: OpId,
        lease: Lease,
    },
    Withdraw {
        op: OpId,
        claim: Claim,
    },
    /// Listen, and say [`Input::Hint`](crate::election::Input::Hint) when another attempt is worth
    /// making. Replaces an earlier one.
    Wait {
        claim: Claim,
        seen: Holder,
    },
    /// Listen no longer.
    StopWaiting,
}
