//! One term, shared by the driver and the foreground.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::claim::Lease;
use crate::clock::{Clock, Moment, alarm, sleep_until};
use crate::error::Error;
use crate::event::{LossReason, StopReason};

/// How far a term has come. It only goes forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Stopping {
        reason: StopReason,
        abort_at: Moment,
    },
    Aborting,
    Lost(LossReason),
    /// Ended by the foreground.
    Ended,
}

impl Phase {
    const fn rank(&self) -> u8 {
        match self {
            Self::Running => 0,
            Self::Stopping { .. } => 1,
            Self::Aborting => 2,
            Self::Lost(_) | Self::Ended => 3,
        }
    }
}

const OFFERED: u8 = 0;
const TAKEN: u8 = 1;
const LAPSED: u8 = 2;

/// The deadline value of a term that is over.
const OVER: u64 = 0;

#[derive(Debug)]
pub(crate) struct Term {
    lease: Lease,
    clock: Arc<dyn Clock>,
    drain: Duration,
    /// Nanoseconds on `clock`, or [`OVER`] for ever.
    deadline: AtomicU64,
    offer: AtomicU8,
    phase: watch::Sender<Phase>,
    /// The error of the last renewal, until one succeeds.
    last_error: Mutex<Option<Error>>,
    /// The driver has begun to clean up after this term.
    pub(crate) cleaning: AtomicBool,
}

impl Term {
    pub(crate) fn new(
        lease: Lease,
        clock: Arc<dyn Clock>,
        drain: Duration,
        deadline: Moment,
    ) -> Self {
        Self {
            lease,
            clock,
            drain,
            deadline: AtomicU64::new(deadline.as_nanos()),
            offer: AtomicU8::new(OFFERED),
            phase: watch::Sender::new(Phase::Running),
            last_error: Mutex::new(None),
            cleaning: AtomicBool::new(false),
        }
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Whether the term counts now. Once it has answered false it never answers true again: whoever
    /// sees the deadline passed ends the term by compare-and-swap, and a renewal that would move
    /// the deadline then finds another value than the one it read.
    #[inline]
    pub(crate) fn check(&self) -> bool {
        let now = self.clock.now().as_nanos();
        loop {
            let deadline = self.deadline.load(Ordering::Acquire);
            if now < deadline {
                return true;
            }
            if deadline == OVER || self.swap(deadline, OVER) {
                return false;
            }
        }
    }

    fn swap(&self, from: u64, to: u64) -> bool {
        self.deadline
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Moves the deadline, which is back when a renewal was granted less; false when the term is over.
    pub(crate) fn extend(&self, to: Moment) -> bool {
        loop {
            let deadline = self.deadline.load(Ordering::Acquire);
            if self.clock.now().as_nanos() >= deadline {
                // Over already, or over now.
                if deadline == OVER || self.swap(deadline, OVER) {
                    return false;
                }
            } else if self.swap(deadline, to.as_nanos()) {
                return true;
            }
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline().since(self.clock.now())
    }

    /// The foreground takes the grant; false when the driver has taken it back.
    pub(crate) fn take(&self) -> bool {
        self.offer
            .compare_exchange(OFFERED, TAKEN, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.offer.load(Ordering::Acquire) == TAKEN
    }

    /// The driver takes the grant back; false when the foreground has it.
    pub(crate) fn lapse(&self) -> bool {
        let lapsed = self
            .offer
            .compare_exchange(OFFERED, LAPSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if lapsed {
            self.end();
        }
        lapsed
    }

    /// Ends the term from the foreground's side: it acts no more.
    pub(crate) fn end(&self) {
        self.finish(Phase::Ended);
    }

    /// The term is lost.
    pub(crate) fn lose(&self, reason: LossReason) {
        self.finish(Phase::Lost(reason));
    }

    /// Deadline and phase in one step for whoever waits: one who has found the deadline gone and then
    /// looks at the phase sees this one.
    fn finish(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            self.deadline.store(OVER, Ordering::Release);
            let forward = to.rank() > phase.rank();
            if forward {
                *phase = to;
            }
            forward
        });
    }

    pub(crate) fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let forward = to.rank() > phase.rank();
            if forward {
                *phase = to;
            }
            forward
        });
    }

    pub(crate) fn note_error(&self, error: Option<Error>) {
        *self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The reason of a loss at the deadline.
    pub(crate) fn expired(&self) -> LossReason {
        let last_error = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        LossReason::Expired {
            last_error: last_error.clone(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Resolves when the phase is at least of this rank, or when the term's own clock says that it
    /// must be: the driver may be starved, or gone.
    async fn reached(&self, rank: u8, due: impl Fn(Moment) -> Moment) -> Phase {
        let mut phases = self.phase.subscribe();
        loop {
            let phase = phases.borrow_and_update().clone();
            if phase.rank() >= rank {
                return phase;
            }
            let at = due(self.deadline());
            if self.clock.now() >= at {
                // Looked at again: it may have been ended since, which is why the deadline is gone.
                return phases.borrow().clone();
            }
            tokio::select! {
                biased;
                changed = phases.changed() => if changed.is_err() {
                    // The sender lives in `self`.
                    return phase;
                },
                () = sleep_until(&self.clock, at) => {}
                () = alarm(at.since(self.clock.now())) => {}
            }
        }
    }

    /// Resolves when the work is told to stop.
    pub(crate) async fn stopping(&self) -> StopReason {
        match self
            .reached(1, |deadline| deadline.before(self.drain))
            .await
        {
            Phase::Stopping { reason, .. } => reason,
            Phase::Ended => StopReason::Resigned,
            Phase::Running | Phase::Aborting | Phase::Lost(_) => StopReason::Deadline,
        }
    }

    /// Resolves when work that still runs is to be dropped.
    pub(crate) async fn aborted(&self) {
        self.reached(2, |deadline| deadline).await;
    }

    /// Resolves when the term is lost; never after it was ended by the foreground.
    pub(crate) async fn lost(&self) -> LossReason {
        match self.reached(3, |deadline| deadline).await {
            Phase::Lost(reason) => reason,
            Phase::Ended => std::future::pending().await,
            // The driver has not come to say it.
            Phase::Running | Phase::Stopping { .. } | Phase::Aborting => self.expired(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claim, Handle};
    use crate::{LockName, Nonce, Owner, Token};

    #[derive(Debug, Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now(&self) -> Moment {
            Moment::from_nanos(self.0.load(Ordering::SeqCst))
        }
    }

    fn term(clock: &Arc<Hand>, deadline: u64) -> Term {
        let claim = Claim::new(
            LockName::new("n").expect("valid"),
            Owner::new("o").expect("valid"),
            Nonce::from_u128(1),
            Duration::from_secs(1),
        );
        let token = Token::new(1).expect("small");
        let lease = Lease::new(&claim, token, Duration::from_secs(1), Handle::none());
        let clock: Arc<dyn Clock> = Arc::<Hand>::clone(clock);
        Term::new(lease, clock, Duration::ZERO, Moment::from_nanos(deadline))
    }

    #[test]
    fn a_term_that_was_seen_over_is_never_revived() {
        let clock = Arc::new(Hand::default());
        let term = term(&clock, 100);
        clock.0.store(99, Ordering::SeqCst);
        assert!(term.check() && term.extend(Moment::from_nanos(200)) && term.check());
        clock.0.store(200, Ordering::SeqCst);
        assert!(!term.check(), "at the deadline it is over");
        // As if the renewal had read the clock before the deadline.
        clock.0.store(199, Ordering::SeqCst);
        assert!(!term.extend(Moment::from_nanos(300)));
        assert!(!term.check());
    }

    #[test]
    fn a_renewal_that_granted_less_moves_the_deadline_back() {
        let clock = Arc::new(Hand::default());
        let term = term(&clock, 100);
        assert!(term.extend(Moment::from_nanos(50)));
        clock.0.store(50, Ordering::SeqCst);
        assert!(!term.check());
    }

    #[test]
    fn an_offer_goes_to_one_side() {
        let clock = Arc::new(Hand::default());
        let taken = term(&clock, 100);
        assert!(taken.take() && !taken.lapse() && taken.check());
        let lapsed = term(&clock, 100);
        assert!(lapsed.lapse() && !lapsed.take() && !lapsed.check());
    }

    #[test]
    fn the_phase_only_goes_forward() {
        let clock = Arc::new(Hand::default());
        let term = term(&clock, 100);
        term.lose(LossReason::Gone);
        term.advance(Phase::Aborting);
        term.end();
        assert_eq!(term.phase(), Phase::Lost(LossReason::Gone));
    }
}
