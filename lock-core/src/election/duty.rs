//! What a candidate owes the store: the release of a term, the withdrawal of a claim.

use crate::claim::{Claim, Lease, Release};
use crate::clock::Moment;
use crate::election::{Action, OpId};
use crate::timing::Timing;

/// One thing owed. It is asked for again and again until the store has answered, or until nothing of
/// it can be left in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Duty {
    pub(super) what: Owed,
    /// When the ttl has surely passed.
    pub(super) give_up_at: Moment,
    /// The request under way.
    pub(super) op: Option<OpId>,
    /// A renewal of this term that was under way when the term ended. If it is answered late it may
    /// have restarted the countdown, so the release is asked for once more after it.
    pub(super) stale_renewal: Option<OpId>,
    /// The store has answered, but the stale renewal has not been.
    settled: bool,
    /// The request under way was made before the stale renewal was answered, so that its answer does
    /// not settle anything.
    once_more: bool,
    retry_at: Moment,
    failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owed {
    Release {
        lease: Lease,
        /// Whether the onlookers still wait for the outcome.
        report: bool,
    },
    Withdraw(Claim),
}

impl Duty {
    pub(super) fn new(now: Moment, timing: &Timing, what: Owed, stale: Option<OpId>) -> Self {
        Self {
            what,
            give_up_at: now.after(timing.surely_expired_after()),
            op: None,
            stale_renewal: stale,
            settled: false,
            once_more: false,
            retry_at: now,
            failures: 0,
        }
    }

    /// The request to make now, if one is due.
    pub(super) fn request(&mut self, now: Moment, op: OpId) -> Option<Action> {
        if self.op.is_some() || self.settled || now < self.retry_at {
            return None;
        }
        self.op = Some(op);
        Some(match &self.what {
            Owed::Release { lease, .. } => Action::Release {
                op,
                lease: lease.clone(),
            },
            Owed::Withdraw(claim) => Action::Withdraw {
                op,
                claim: claim.clone(),
            },
        })
    }

    /// The store has answered. Gives what to report, the first time.
    pub(super) fn answered(&mut self, now: Moment, outcome: Release) -> Option<(Lease, Release)> {
        self.op = None;
        self.settled = !std::mem::take(&mut self.once_more);
        self.retry_at = now;
        self.failures = 0;
        match &mut self.what {
            Owed::Release { lease, report } => {
                std::mem::take(report).then(|| (lease.clone(), outcome))
            }
            Owed::Withdraw(_) => None,
        }
    }

    /// The request has failed; it is made again after a pause.
    pub(super) fn failed(&mut self, now: Moment, timing: &Timing) -> u32 {
        self.op = None;
        self.once_more = false;
        self.failures += 1;
        self.retry_at = now.after(timing.backoff(self.failures));
        self.failures
    }

    /// The renewal that was under way when the term ended has been answered.
    pub(super) fn stale_renewal_answered(&mut self, now: Moment, gone: bool) {
        self.stale_renewal = None;
        if !gone {
            self.settled = false;
            self.once_more = self.op.is_some();
            self.retry_at = now;
        }
    }

    /// Makes the next request due at once.
    pub(super) fn hurry(&mut self, now: Moment) {
        self.retry_at = self.retry_at.min(now);
    }

    pub(super) fn is_done(&self, now: Moment) -> bool {
        (self.settled && self.stale_renewal.is_none()) || now >= self.give_up_at
    }

    /// When to look at it again.
    pub(super) fn wake_at(&self) -> Moment {
        if self.op.is_some() || self.settled {
            self.give_up_at
        } else {
            self.retry_at.min(self.give_up_at)
        }
    }
}
