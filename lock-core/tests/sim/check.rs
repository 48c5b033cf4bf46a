//! What must hold of one machine, from outside: its orders, its events, the times of both.

use std::collections::{BTreeMap, BTreeSet};

use lock_core::clock::Moment;
use lock_core::election::{Action, OpId, Reply};
use lock_core::{Claim, Event, Mode, Nonce, Release, Renewal, Timing, Token};

use super::clocks::nanos;

pub(crate) type Verdict = Result<(), String>;

macro_rules! must {
    ($holds:expr, $($why:tt)*) => {
        if !$holds {
            return Err(format!($($why)*));
        }
    };
}
pub(crate) use must;

#[derive(Clone, Debug)]
struct TermSeen {
    token: Token,
    nonce: Nonce,
    deadline: Moment,
    told: bool,
    lost: bool,
}

/// One life of one machine, watched.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    timing: Timing,
    queueing: bool,
    ops: BTreeMap<OpId, Nonce>,
    /// Nonces of which a release or a withdraw was sent.
    dead: BTreeSet<Nonce>,
    /// The claim that was sent and neither granted nor withdrawn, and whether the store may know it.
    open: Option<(Nonce, bool)>,
    /// What must be settled before the next claim, and since when.
    owed: BTreeMap<Nonce, Moment>,
    /// When each was first owed.
    since: BTreeMap<Nonce, Moment>,
    /// Terms whose renewal was answered after their end; a release must follow.
    release_again: BTreeMap<Nonce, Moment>,
    term: Option<TermSeen>,
    last_token: Option<Token>,
    ended: bool,
}

impl Watch {
    pub(crate) fn new(timing: Timing, queueing: bool) -> Self {
        Self {
            timing,
            queueing,
            ops: BTreeMap::new(),
            dead: BTreeSet::new(),
            open: None,
            owed: BTreeMap::new(),
            since: BTreeMap::new(),
            release_again: BTreeMap::new(),
            term: None,
            last_token: None,
            ended: false,
        }
    }

    /// When nothing of what is owed since then can be left.
    fn surely(&self, since: Moment) -> Moment {
        let t = &self.timing;
        let ttl = nanos(t.ttl());
        let drift = (u128::from(ttl) * u128::from(t.drift_ppm()) / 1_000_000) as u64;
        let span = nanos(t.request_timeout()) + ttl + drift + nanos(t.margin());
        Moment::from_nanos(since.as_nanos() + span)
    }

    fn owe(&mut self, now: Moment, nonce: Nonce) {
        let since = *self.since.entry(nonce).or_insert(now);
        self.owed.insert(nonce, since);
    }

    fn nothing_owed(&mut self, now: Moment, what: &str) -> Verdict {
        for since in [&self.owed, &self.release_again] {
            for (nonce, since) in since {
                must!(
                    now >= self.surely(*since),
                    "{what} although {nonce} is not settled since {since:?}"
                );
            }
        }
        self.owed.clear();
        self.release_again.clear();
        Ok(())
    }

    fn fresh(&mut self, op: OpId, nonce: Nonce) -> Verdict {
        must!(self.ops.insert(op, nonce).is_none(), "{op:?} used twice");
        Ok(())
    }

    fn claimed(&mut self, now: Moment, op: OpId, claim: &Claim) -> Verdict {
        let nonce = claim.nonce;
        self.fresh(op, nonce)?;
        must!(!self.dead.contains(&nonce), "the nonce {nonce} was dead");
        must!(self.term.is_none(), "a claim inside a term");
        self.nothing_owed(now, "a claim")?;
        if let Some((open, exposed)) = self.open {
            must!(open == nonce, "a claim while {open} is open");
            self.open = Some((nonce, exposed));
        } else {
            let queued = self.queueing && claim.mode == Mode::Queue;
            self.open = Some((nonce, queued));
        }
        Ok(())
    }

    fn given_up(&mut self, now: Moment, op: OpId, nonce: Nonce) -> Verdict {
        self.fresh(op, nonce)?;
        if self.open.is_some_and(|(open, _)| open == nonce) {
            self.open = None;
        }
        self.dead.insert(nonce);
        self.owe(now, nonce);
        self.release_again.remove(&nonce);
        Ok(())
    }

    pub(crate) fn action(&mut self, now: Moment, action: &Action, working: bool) -> Verdict {
        must!(!self.ended, "{action:?} after the end");
        match action {
            Action::TryAcquire { op, claim } => self.claimed(now, *op, claim),
            Action::Renew { op, lease } => {
                self.fresh(*op, lease.nonce())?;
                let holds = |t: &TermSeen| t.nonce == lease.nonce() && !t.lost;
                must!(
                    self.term.as_ref().is_some_and(holds),
                    "a renewal outside the term"
                );
                Ok(())
            }
            Action::Release { op, lease } => {
                let current = self.term.as_ref().is_some_and(|t| t.nonce == lease.nonce());
                must!(!current && !working, "a release while the work runs");
                self.given_up(now, *op, lease.nonce())
            }
            Action::Withdraw { op, claim } => self.given_up(now, *op, claim.nonce),
            Action::Wait { .. } | Action::StopWaiting => Ok(()),
        }
    }

    /// An answer reaches the machine; `first` unless it is a repetition.
    pub(crate) fn answered(&mut self, now: Moment, op: OpId, reply: &Reply, first: bool) {
        let Some(nonce) = self.ops.get(&op).copied() else {
            return;
        };
        match reply {
            Reply::Release(Ok(Release::Released | Release::NotHeld)) | Reply::Withdraw(Ok(())) => {
                self.owed.remove(&nonce);
            }
            Reply::Renew(Ok(Renewal::Renewed { .. })) if first => {
                let over = self.term.as_ref().is_none_or(|term| term.nonce != nonce);
                if over && !self.ended {
                    let since = self.since.get(&nonce).copied().unwrap_or(now);
                    self.release_again.insert(nonce, since);
                }
            }
            Reply::TryAcquire(Err(error)) if first && error.is_indeterminate() => {
                if let Some((open, exposed)) = &mut self.open
                    && *open == nonce
                {
                    *exposed = true;
                }
            }
            _ => {}
        }
    }

    pub(crate) fn event(&mut self, now: Moment, event: &Event, nonce: Option<Nonce>) -> Verdict {
        must!(!self.ended, "{event:?} after the end");
        match event {
            Event::Gained { token, deadline } => {
                must!(self.term.is_none(), "gained {token} inside a term");
                must!(
                    self.last_token.is_none_or(|last| last < *token),
                    "gained {token} after {:?}",
                    self.last_token
                );
                must!(now < *deadline, "gained {token} after its deadline");
                let nonce = nonce.ok_or("gained without a lease")?;
                self.last_token = Some(*token);
                self.open = None;
                self.term = Some(TermSeen {
                    token: *token,
                    nonce,
                    deadline: *deadline,
                    told: false,
                    lost: false,
                });
            }
            Event::Renewed { token, deadline } => {
                let term = self.term_of(*token, "renewed")?;
                must!(!term.lost, "renewed {token} after its loss");
                must!(
                    !term.told,
                    "renewed {token} after the work was told to stop"
                );
                must!(now < term.deadline, "renewed {token} after its deadline");
                term.deadline = *deadline;
            }
            Event::Stopping { token, .. } => {
                let term = self.term_of(*token, "stopping")?;
                must!(!term.told && !term.lost, "told to stop twice, or too late");
                term.told = true;
            }
            Event::Aborting { token } => {
                let term = self.term_of(*token, "aborting")?;
                must!(term.told, "aborted without a word");
            }
            Event::Lost { token, .. } => {
                let term = self.term_of(*token, "lost")?;
                must!(!term.lost, "lost {token} twice");
                term.lost = true;
            }
            Event::WorkEnded { token } => {
                let nonce = self.term_of(*token, "work ended")?.nonce;
                self.term = None;
                self.owe(now, nonce);
            }
            Event::Ended { .. } => {
                must!(self.term.is_none(), "ended inside a term");
                self.nothing_owed(now, "ended")?;
                if let Some((nonce, exposed)) = self.open {
                    must!(!exposed, "ended with {nonce} open");
                }
                self.ended = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn term_of(&mut self, token: Token, what: &str) -> Result<&mut TermSeen, String> {
        let is = self.term.as_ref().map(|term| term.token);
        let ours = |term: &&mut TermSeen| term.token == token;
        let wrong = || format!("{what} {token} while the term is {is:?}");
        self.term.as_mut().filter(ours).ok_or_else(wrong)
    }

    /// After each turn: nothing that was due has been left out, and the next turn comes in time.
    pub(crate) fn turned(
        &self,
        now: Moment,
        held: Option<(Token, Moment)>,
        wake: Moment,
    ) -> Verdict {
        let Some((token, deadline)) = held else {
            return Ok(());
        };
        must!(
            now < deadline,
            "{token} is held after its deadline {deadline:?}"
        );
        must!(wake <= deadline, "no wake-up at the deadline of {token}");
        let term = self.term.as_ref().ok_or("held outside a term")?;
        must!(!term.lost, "{token} is held after its loss");
        if !term.told {
            let stop_at = self.timing.stop_at(deadline);
            must!(
                now < stop_at,
                "the work of {token} was not told at {stop_at:?}"
            );
            must!(
                wake <= stop_at,
                "no wake-up when the work of {token} must be told"
            );
        }
        Ok(())
    }
}
