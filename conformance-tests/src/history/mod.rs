//! What happened, and whether it was right.
//!
//! A [`Recorder`] is fed by candidates while faults are injected; afterwards [`Recorder::check`]
//! judges the whole history by six invariants, one per file, and shows the smallest piece of it that
//! breaks one. Nothing is judged by sleeping and looking.

mod i1_exclusion;
mod i2_token_order;
mod i3_fenced_writes;
mod i4_timely_loss;
mod i5_work_overlap;
mod i6_liveness;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_core::Token;

/// One thing that happened to one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// The claim was granted. `since` is when it had been asked for.
    Granted {
        /// When the request that brought the grant cannot have been sent before.
        since: Duration,
    },
    /// The holder's deadline is now this instant.
    Deadline(Duration),
    /// `check()` was asked after this instant and answered this.
    Checked(bool),
    /// The work was told to stop.
    Stopping,
    /// The holder was told that the term is lost.
    Lost,
    /// The holder released it; recorded before the release was sent.
    Released,
    /// The work began.
    WorkBegan,
    /// The work ended, or was dropped.
    WorkEnded,
    /// A resource that checks tokens was written to, in the order of its own lock.
    Wrote {
        /// Whether it took the write.
        accepted: bool,
    },
}

/// What happened, when, to which term of which candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Since the beginning of the history.
    pub at: Duration,
    /// The candidate.
    pub who: u32,
    /// Its term.
    pub token: Token,
    /// What happened.
    pub what: What,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>12.6} s  candidate {}  token {}  {:?}",
            self.at.as_secs_f64(),
            self.who,
            self.token,
            self.what
        )
    }
}

/// A broken invariant and the smallest piece of the history that shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// What is wrong with the piece.
    pub why: String,
    /// The entries that show it.
    pub piece: Vec<Entry>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.why)?;
        for entry in &self.piece {
            write!(f, "\n    {entry}")?;
        }
        Ok(())
    }
}

/// How late things may be.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// What a busy machine may add to any instant.
    pub slack: Duration,
    /// The longest time from the end of a term to the next grant, while somebody wants it; `None`
    /// when the history has faults that nothing bounds.
    pub takeover: Option<Duration>,
}

impl Bounds {
    /// These bounds.
    #[must_use]
    pub const fn new(slack: Duration, takeover: Option<Duration>) -> Self {
        Self { slack, takeover }
    }
}

/// A history in the making. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct Recorder {
    began: Instant,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// A history that begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            entries: Arc::default(),
        }
    }

    /// Since the beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Adds what happens now.
    pub fn note(&self, who: u32, token: Token, what: What) {
        let mut entries = self.entries();
        // Read under the lock, so that the order of the entries is that of their instants.
        let at = self.began.elapsed();
        entries.push(Entry {
            at,
            who,
            token,
            what,
        });
    }

    /// Asks whether a holder may act, and adds the answer with the instant *before* it was asked.
    pub fn check(&self, who: u32, token: Token, ask: impl FnOnce() -> bool) -> bool {
        let at = self.began.elapsed();
        let answer = ask();
        let what = What::Checked(answer);
        self.entries().push(Entry {
            at,
            who,
            token,
            what,
        });
        answer
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries so far, by their instants.
    #[must_use]
    pub fn history(&self) -> Vec<Entry> {
        let mut entries = self.entries().clone();
        entries.sort_by_key(|e| e.at);
        entries
    }

    /// Judges the history so far.
    #[must_use]
    pub fn violations(&self, bounds: &Bounds) -> Vec<Violation> {
        violations(&self.history(), self.now(), bounds)
    }
}

/// Judges a history that is sorted by instants and ended at `end`: at most one violation per invariant.
#[must_use]
pub fn violations(history: &[Entry], end: Duration, bounds: &Bounds) -> Vec<Violation> {
    [
        i1_exclusion::check(history),
        i2_token_order::check(history),
        i3_fenced_writes::check(history),
        i4_timely_loss::check(history, end, bounds),
        i5_work_overlap::check(history),
        i6_liveness::check(history, end, bounds),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at(millis: u64, who: u32, token: u64, what: What) -> Entry {
        Entry {
            at: ms(millis),
            who,
            token: Token::new(token).unwrap(),
            what,
        }
    }

    fn granted(millis: u64, who: u32, token: u64) -> Entry {
        let since = ms(millis.saturating_sub(1));
        at(millis, who, token, What::Granted { since })
    }

    const BOUNDS: Bounds = Bounds::new(ms(10), Some(ms(100)));

    /// Two terms without any fault.
    fn right() -> Vec<Entry> {
        vec![
            granted(1, 1, 5),
            at(1, 1, 5, What::Deadline(ms(500))),
            at(2, 1, 5, What::WorkBegan),
            at(3, 1, 5, What::Checked(true)),
            at(4, 1, 5, What::Wrote { accepted: true }),
            at(20, 1, 5, What::Stopping),
            at(21, 1, 5, What::WorkEnded),
            at(22, 1, 5, What::Released),
            granted(30, 2, 6),
            at(30, 2, 6, What::Deadline(ms(90))),
            at(31, 2, 6, What::WorkBegan),
            at(32, 1, 5, What::Checked(false)),
            at(33, 2, 6, What::Wrote { accepted: true }),
            at(34, 1, 5, What::Wrote { accepted: false }),
            at(89, 2, 6, What::Checked(true)),
            at(90, 2, 6, What::WorkEnded),
            at(90, 2, 6, What::Lost),
        ]
    }

    fn with(mut history: Vec<Entry>, planted: &[Entry]) -> Vec<Violation> {
        history.extend_from_slice(planted);
        history.sort_by_key(|e| e.at);
        violations(&history, ms(95), &BOUNDS)
    }

    #[test]
    fn a_right_history_passes() {
        assert_eq!(with(right(), &[]), []);
    }

    fn only(found: &[Violation], invariant: &str, piece: &[Entry]) {
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].invariant, invariant);
        assert_eq!(found[0].piece, piece);
        assert!(found[0].to_string().contains("candidate"), "it can be read");
    }

    #[test]
    fn a_holder_that_goes_on_breaks_exclusion() {
        let planted = at(40, 1, 5, What::Checked(true));
        only(
            &with(right(), &[planted]),
            "I1 exclusion",
            &[granted(30, 2, 6), planted],
        );
    }

    #[test]
    fn a_token_that_repeats_or_goes_back_breaks_the_order() {
        let mut history = right();
        history.retain(|e| e.who == 1);
        let planted = granted(30, 2, 5);
        only(
            &with(history.clone(), &[planted, at(31, 2, 5, What::Released)]),
            "I2 token order",
            &[granted(1, 1, 5), planted],
        );
        let planted = granted(30, 2, 4);
        only(
            &with(history, &[planted, at(31, 2, 4, What::Released)]),
            "I2 token order",
            &[granted(1, 1, 5), planted],
        );
    }

    #[test]
    fn a_stale_write_that_is_taken_breaks_fencing() {
        let planted = at(35, 1, 5, What::Wrote { accepted: true });
        let newer = at(33, 2, 6, What::Wrote { accepted: true });
        only(
            &with(right(), &[planted]),
            "I3 fenced writes",
            &[newer, planted],
        );
    }

    #[test]
    fn a_late_loss_is_found_and_so_is_a_missing_one() {
        let mut history = right();
        history.pop();
        let late = at(101, 2, 6, What::Lost);
        history.push(late);
        let found = violations(&history, ms(101), &BOUNDS);
        only(
            &found,
            "I4 timely loss",
            &[at(30, 2, 6, What::Deadline(ms(90))), late],
        );
        history.pop();
        let found = violations(&history, ms(101), &BOUNDS);
        only(
            &found,
            "I4 timely loss",
            &[at(30, 2, 6, What::Deadline(ms(90)))],
        );
        let acting = at(101, 2, 6, What::Checked(true));
        history.push(acting);
        let found = violations(&history, ms(101), &BOUNDS);
        only(
            &found,
            "I4 timely loss",
            &[at(30, 2, 6, What::Deadline(ms(90))), acting],
        );
    }

    #[test]
    fn work_that_overlaps_is_found() {
        let mut history = right();
        history.retain(|e| *e != at(21, 1, 5, What::WorkEnded));
        let ended = at(32, 1, 5, What::WorkEnded);
        only(
            &with(history, &[ended]),
            "I5 work never overlaps",
            &[at(2, 1, 5, What::WorkBegan), at(31, 2, 6, What::WorkBegan)],
        );
    }

    #[test]
    fn nobody_taking_over_is_found() {
        let mut history = right();
        history.retain(|e| e.who == 1);
        let found = violations(&history, ms(133), &BOUNDS);
        only(&found, "I6 liveness", &[at(22, 1, 5, What::Released)]);
        assert_eq!(violations(&history, ms(132), &BOUNDS), []);
        let late = granted(140, 2, 6);
        history.push(late);
        let found = violations(&history, ms(140), &BOUNDS);
        only(&found, "I6 liveness", &[at(22, 1, 5, What::Released), late]);
    }
}
