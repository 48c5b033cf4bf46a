//! The machine itself.

use std::collections::VecDeque;
use std::time::Duration;

use crate::claim::{Attempt, Claim, Holder, Lease, Mode, Release, Renewal, Request};
use crate::clock::Moment;
use crate::election::duty::{Duty, Owed};
use crate::election::{Action, Input, OpId, Output, Reply};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, LossReason, StopReason};
use crate::name::{LockName, Metadata, Nonce, Owner};
use crate::timing::{Timing, takeover_spread};
use crate::token::Token;

/// How long a candidate goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One attempt; a denial or an error ends it.
    OneAttempt,
    /// Until one term has ended.
    OneTerm,
    /// Until it is shut down.
    ManyTerms,
}

/// Everything a machine is told at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MachineConfig {
    /// What is wanted.
    pub name: LockName,
    /// Who wants it.
    pub owner: Owner,
    /// Published beside the owner.
    pub metadata: Metadata,
    /// Larger comes first where a store queues by priority.
    pub priority: i32,
    /// The times.
    pub timing: Timing,
    /// How long it goes on.
    pub scope: Scope,
    /// The nonce of the first term; the next ones count up from it.
    pub first_nonce: Nonce,
    /// Where the spread of its attempts comes from.
    pub seed: u64,
    /// Whether a denied claim may stand in a queue of the store.
    pub queueing: bool,
    /// Whether the store promises growing tokens, so that a smaller one is refused.
    pub monotone: bool,
    /// Whether to take over an expired lease only after having seen it unchanged for
    /// `ttl × (1 + drift)` on the own clock.
    pub guarded_takeover: bool,
}

/// Something that the store may still have; see [`Machine::debts`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Debt {
    /// A lease to release.
    Release(Lease),
    /// A claim to withdraw.
    Withdraw(Claim),
}

/// One candidate for one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Machine {
    config: MachineConfig,
    state: State,
    next_nonce: Nonce,
    next_op: u64,
    random: u64,
    /// The claim under way; kept over attempts until it is granted or withdrawn.
    claim: Option<OpenClaim>,
    duties: Vec<Duty>,
    outputs: VecDeque<Output>,
    /// The highest token granted so far.
    highest: Option<Token>,
    /// Failed requests in a row, outside a term.
    failures: u32,
    /// The holder last told to the onlookers.
    told: Option<Token>,
    /// The record last seen, and since when it has looked so.
    record: Option<(u64, Moment)>,
    /// Attempts in a row that a hint caused and that found nothing new.
    vain_hints: u32,
    /// No attempt before this.
    not_before: Moment,
    hold_off: Duration,
    finishing: bool,
    fatal: Option<Error>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct OpenClaim {
    claim: Claim,
    /// Whether the store may have an entry of it.
    exposed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    Resting {
        until: Moment,
    },
    Claiming {
        op: OpId,
        hinted: bool,
    },
    Standby {
        retry_at: Moment,
        hinted: bool,
    },
    Holding(Term),
    Stopping {
        term: Term,
        abort_at: Moment,
        aborting: bool,
    },
    /// The term is lost and its work has not ended yet.
    Ending(Term),
    Clearing,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    lease: Lease,
    deadline: Moment,
    renew_at: Moment,
    renewing: Option<OpId>,
    failures: u32,
    last_error: Option<Error>,
}

/// The shortest pause before acting on a hint once hints have been vain.
const VAIN_HINT_PAUSE: Duration = Duration::from_millis(5);

impl Machine {
    /// A machine that has not begun.
    #[must_use]
    pub fn new(config: MachineConfig) -> Self {
        Self {
            state: State::Idle,
            next_nonce: config.first_nonce,
            next_op: 0,
            random: config.seed,
            claim: None,
            duties: Vec::new(),
            outputs: VecDeque::new(),
            highest: None,
            failures: 0,
            told: None,
            record: None,
            vain_hints: 0,
            not_before: Moment::START,
            hold_off: Duration::ZERO,
            finishing: false,
            fatal: None,
            config,
        }
    }

    /// What it was told at its start.
    #[must_use]
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// Takes note of something that happened.
    pub fn handle(&mut self, now: Moment, input: Input) {
        self.advance(now);
        match input {
            Input::Start => {
                if self.state == State::Idle {
                    self.state = State::Clearing;
                }
            }
            Input::Replied { op, sent, reply } => self.on_reply(now, op, sent, reply),
            Input::Hint => self.on_hint(now),
            Input::WaitFailed(error) => self.on_wait_failed(now, error),
            Input::RideAlong => self.on_ride_along(now),
            Input::Lapsed => match std::mem::replace(&mut self.state, State::Idle) {
                State::Holding(term) | State::Stopping { term, .. } => self.expire(term),
                other => self.state = other,
            },
            Input::Resign { hold_off } => {
                self.leave_alone_for(hold_off);
                if let State::Holding(_) = self.state {
                    self.stop(now, StopReason::Resigned);
                }
            }
            Input::Shutdown => self.on_shutdown(now),
            Input::WorkEnded { hold_off } => self.on_work_ended(now, hold_off),
        }
        self.advance(now);
    }

    /// The next thing it wants. Call until it answers [`Output::Wait`].
    pub fn poll(&mut self, now: Moment) -> Output {
        self.advance(now);
        self.outputs
            .pop_front()
            .unwrap_or_else(|| Output::Wait(self.wake_at()))
    }

    /// What the store may still have of it although nobody uses it any more: for whoever must clean
    /// up when this machine can no longer be driven.
    #[must_use]
    pub fn debts(&self) -> Vec<Debt> {
        let owed = self.duties.iter().map(|duty| match &duty.what {
            Owed::Release { lease, .. } => Debt::Release(lease.clone()),
            Owed::Withdraw(claim) => Debt::Withdraw(claim.clone()),
        });
        let open = self
            .claim
            .iter()
            .map(|open| Debt::Withdraw(open.claim.clone()));
        owed.chain(open).collect()
    }

    /// Whether nothing more will come of it.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.state == State::Ended && self.outputs.is_empty()
    }

    /// When its next renewal is due, while one is to be made.
    #[must_use]
    pub fn renewal_due(&self) -> Option<Moment> {
        match &self.state {
            State::Holding(term) if term.renewing.is_none() => Some(term.renew_at),
            _ => None,
        }
    }

    /// The lease of the current term, also when it is lost and its work has not ended yet.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Holding(term) | State::Stopping { term, .. } | State::Ending(term) => {
                Some(&term.lease)
            }
            _ => None,
        }
    }

    /// The term that counts, with its deadline: what a check of exclusion looks at.
    #[must_use]
    pub fn held(&self) -> Option<(Token, Moment)> {
        match &self.state {
            State::Holding(term) | State::Stopping { term, .. } => {
                Some((term.lease.token(), term.deadline))
            }
            _ => None,
        }
    }

    // ---- time ----

    /// Does everything that is due at `now`.
    fn advance(&mut self, now: Moment) {
        // Each turn either changes the state or ends the loop.
        loop {
            match &mut self.state {
                State::Holding(term) if now >= term.deadline => self.take_term_and(Self::expire),
                State::Holding(term) if now >= self.config.timing.stop_at(term.deadline) => {
                    self.stop(now, StopReason::Deadline);
                }
                State::Holding(term) if term.renewing.is_none() && now >= term.renew_at => {
                    let op = OpId(self.next_op);
                    self.next_op += 1;
                    term.renewing = Some(op);
                    let lease = term.lease.clone();
                    self.act(Action::Renew { op, lease });
                }
                State::Stopping { term, .. } if now >= term.deadline => {
                    self.take_term_and(Self::expire);
                }
                State::Stopping {
                    term,
                    abort_at,
                    aborting,
                } if !*aborting && now >= *abort_at => {
                    *aborting = true;
                    let token = term.lease.token();
                    self.tell(Event::Aborting { token });
                }
                State::Standby { retry_at, hinted } if now >= *retry_at => {
                    let hinted = *hinted;
                    self.act(Action::StopWaiting);
                    self.attempt(now, hinted);
                }
                State::Resting { until } if now >= *until => self.state = State::Clearing,
                State::Clearing if self.duties.is_empty() => self.cleared(now),
                _ => break,
            }
        }
        self.pay(now);
    }

    /// Makes the requests that are owed and due, and forgets what is done.
    fn pay(&mut self, now: Moment) {
        let mut n = 0;
        while n < self.duties.len() {
            if self.duties[n].is_done(now) {
                self.duties.remove(n);
                continue;
            }
            let op = OpId(self.next_op);
            if let Some(action) = self.duties[n].request(now, op) {
                self.next_op += 1;
                self.act(action);
            }
            n += 1;
        }
        if self.duties.is_empty() && self.state == State::Clearing {
            self.cleared(now);
        }
    }

    /// Nothing is owed: end, rest, or try.
    fn cleared(&mut self, now: Moment) {
        if self.finishing {
            self.state = State::Ended;
            let error = self.fatal.take();
            self.tell(Event::Ended { error });
        } else if now < self.not_before {
            self.state = State::Resting {
                until: self.not_before,
            };
        } else {
            self.attempt(now, false);
        }
    }

    fn wake_at(&self) -> Moment {
        let timing = &self.config.timing;
        let state = match &self.state {
            State::Idle
            | State::Claiming { .. }
            | State::Ending(_)
            | State::Clearing
            | State::Ended => Moment::NEVER,
            State::Resting { until } => *until,
            State::Standby { retry_at, .. } => *retry_at,
            State::Holding(term) => {
                let stop_at = timing.stop_at(term.deadline);
                if term.renewing.is_some() {
                    stop_at
                } else {
                    stop_at.min(term.renew_at)
                }
            }
            State::Stopping {
                term,
                aborting: true,
                ..
            } => term.deadline,
            State::Stopping { term, abort_at, .. } => term.deadline.min(*abort_at),
        };
        self.duties
            .iter()
            .map(Duty::wake_at)
            .fold(state, Moment::min)
    }

    // ---- claiming ----

    fn attempt(&mut self, now: Moment, hinted: bool) {
        let open = match self.claim.take() {
            Some(open) => open,
            None => {
                let nonce = self.next_nonce;
                self.next_nonce = nonce.next();
                let c = &self.config;
                let mode = if c.scope == Scope::OneAttempt {
                    Mode::Once
                } else {
                    Mode::Queue
                };
                let claim = Claim::new(c.name.clone(), c.owner.clone(), nonce, c.timing.ttl())
                    .with_metadata(c.metadata.clone())
                    .with_priority(c.priority)
                    .with_mode(mode);
                OpenClaim {
                    claim,
                    exposed: false,
                }
            }
        };
        let condition = self.takeover_condition(now);
        let claim = open.claim.with_if_unchanged(condition);
        self.claim = Some(OpenClaim {
            claim: claim.clone(),
            exposed: open.exposed,
        });
        let op = self.new_op();
        self.state = State::Claiming { op, hinted };
        self.act(Action::TryAcquire { op, claim });
    }

    /// With guarded takeover: the version an expired entry must have, which is one that no entry has
    /// until the record has stood still long enough.
    fn takeover_condition(&self, now: Moment) -> Option<u64> {
        if !self.config.guarded_takeover {
            return None;
        }
        match self.record {
            Some((version, ripe_at)) if now >= ripe_at => Some(version),
            _ => Some(0),
        }
    }

    fn on_attempt(&mut self, now: Moment, sent: Moment, hinted: bool, answer: Result<Attempt>) {
        match answer {
            Ok(Attempt::Granted(lease)) => self.on_granted(now, sent, lease),
            Ok(Attempt::Held(holder)) => {
                self.recovered();
                self.on_denied(now, hinted, holder);
            }
            Err(error) => self.on_attempt_failed(now, error),
        }
    }

    fn on_granted(&mut self, now: Moment, sent: Moment, lease: Lease) {
        self.claim = None;
        self.told = None;
        self.record = None;
        self.vain_hints = 0;
        let timing = self.config.timing;
        let stale = self.config.monotone && self.highest.is_some_and(|h| lease.token() <= h);
        let refusal = if stale {
            let highest = self.highest.map_or(0, Token::get);
            Some(Error::new(
                ErrorKind::Backend,
                format!("the store granted token {} after {highest}", lease.token()),
            ))
        } else {
            timing.check_granted(lease.ttl()).err()
        };
        if let Some(error) = refusal {
            return self.refuse(now, lease, error);
        }
        if self.finishing {
            return self.give_back(now, lease);
        }
        let deadline = timing.deadline(sent, lease.ttl());
        if now >= timing.stop_at(deadline) {
            let error = Error::new(
                ErrorKind::Timeout,
                "the grant arrived too late to be of use",
            );
            return self.refuse(now, lease, error);
        }
        self.recovered();
        let token = lease.token();
        self.highest = Some(token);
        self.tell(Event::Gained { token, deadline });
        let renew_at = self.next_renewal(sent);
        self.state = State::Holding(Term {
            lease,
            deadline,
            renew_at,
            renewing: None,
            failures: 0,
            last_error: None,
        });
    }

    /// Gives a grant back that cannot be used, and ends where trying again cannot help.
    fn refuse(&mut self, now: Moment, lease: Lease, error: Error) {
        if error.kind() == ErrorKind::InvalidConfig || self.config.scope == Scope::OneAttempt {
            self.fatal = Some(error);
            self.finishing = true;
        } else {
            self.note_failure(now, error);
        }
        self.give_back(now, lease);
    }

    /// Releases a grant that never became a term.
    fn give_back(&mut self, now: Moment, lease: Lease) {
        self.owe(
            now,
            Owed::Release {
                lease,
                report: false,
            },
            None,
        );
        self.state = State::Clearing;
    }

    fn on_denied(&mut self, now: Moment, hinted: bool, holder: Holder) {
        let news = self.told != Some(holder.token);
        if news {
            self.told = Some(holder.token);
            self.tell(Event::Standby {
                holder: holder.clone(),
            });
        }
        self.vain_hints = if hinted && !news {
            self.vain_hints.saturating_add(1)
        } else {
            0
        };
        let still = self
            .record
            .is_some_and(|(version, _)| version == holder.version);
        if !still {
            let ripe_at = now.after(self.config.timing.stretched(holder.ttl));
            self.record = Some((holder.version, ripe_at));
        }
        if self.finishing || self.config.scope == Scope::OneAttempt {
            self.finishing = true;
            return self.withdraw_and_clear(now);
        }
        let timing = self.config.timing;
        let spread = self.random_part(takeover_spread(0));
        let poll = timing
            .poll_every()
            .saturating_sub(self.random_part(timing.poll_every() / 10));
        let mut retry_at = now.after(poll);
        if !holder.remaining.is_zero() {
            retry_at = retry_at.min(now.after(holder.remaining.saturating_add(spread)));
        } else if self.config.guarded_takeover
            && let Some((_, ripe_at)) = self.record
            && ripe_at > now
        {
            retry_at = retry_at.min(ripe_at.after(spread));
        }
        if let Some(OpenClaim { claim, .. }) = &self.claim {
            let claim = claim.clone();
            self.act(Action::Wait {
                claim,
                seen: holder,
            });
        }
        self.state = State::Standby {
            retry_at,
            hinted: false,
        };
    }

    fn on_attempt_failed(&mut self, now: Moment, error: Error) {
        if error.is_indeterminate()
            && let Some(open) = &mut self.claim
        {
            open.exposed = true;
        }
        let hopeless = matches!(
            error.kind(),
            ErrorKind::InvalidConfig | ErrorKind::InvalidName | ErrorKind::Unsupported
        );
        if self.finishing || hopeless || self.config.scope == Scope::OneAttempt {
            if !self.finishing {
                self.fatal = Some(error);
                self.finishing = true;
            }
            return self.withdraw_and_clear(now);
        }
        self.note_failure(now, error);
        self.state = State::Resting {
            until: self.not_before,
        };
    }

    fn note_failure(&mut self, now: Moment, error: Error) {
        self.failures = self.failures.saturating_add(1);
        let base = self.config.timing.backoff(self.failures);
        let retry_in = base + self.random_part(base / 4);
        self.not_before = self.not_before.max(now.after(retry_in));
        let failures = self.failures;
        self.tell(Event::Failed {
            error,
            failures,
            retry_in,
        });
    }

    fn recovered(&mut self) {
        let failures = std::mem::take(&mut self.failures);
        if failures > 0 {
            self.tell(Event::Recovered { failures });
        }
    }

    fn on_hint(&mut self, now: Moment) {
        for duty in &mut self.duties {
            duty.hurry(now);
        }
        if let State::Standby { retry_at, hinted } = &mut self.state {
            let pause = match self.vain_hints {
                0 | 1 => Duration::ZERO,
                n => VAIN_HINT_PAUSE
                    .saturating_mul(1 << n.min(12))
                    .min(self.config.timing.poll_every()),
            };
            let at = now.after(pause);
            if at < *retry_at {
                *retry_at = at;
                *hinted = true;
            }
        }
    }

    fn on_wait_failed(&mut self, now: Moment, error: Error) {
        if let State::Standby { retry_at, .. } = self.state {
            self.tell(Event::Failed {
                error,
                failures: 1,
                retry_in: retry_at.since(now),
            });
        }
    }

    /// Forgets the open claim in the store, if the store may know it.
    fn withdraw_and_clear(&mut self, now: Moment) {
        if let Some(OpenClaim { claim, exposed }) = self.claim.take() {
            let queued = self.config.queueing && claim.mode == Mode::Queue;
            if exposed || queued {
                self.owe(now, Owed::Withdraw(claim), None);
            }
        }
        self.state = State::Clearing;
    }

    // ---- holding ----

    fn next_renewal(&mut self, sent: Moment) -> Moment {
        let every = self.config.timing.renew_every();
        sent.after(every.saturating_sub(self.random_part(every / 10)))
    }

    fn on_ride_along(&mut self, now: Moment) {
        let early = self.config.timing.renew_every() / 8;
        if let State::Holding(term) = &mut self.state
            && term.renewing.is_none()
            && term.failures == 0
            && term.renew_at <= now.after(early)
        {
            term.renew_at = now;
        }
    }

    fn on_renewal(&mut self, now: Moment, sent: Moment, answer: Result<Renewal>) {
        let timing = self.config.timing;
        match answer {
            Ok(Renewal::Gone) => self.take_term_and(|machine, mut term| {
                term.renewing = None;
                machine.lose(term, LossReason::Gone);
            }),
            Ok(Renewal::Renewed { ttl, request }) => {
                let renew_at = self.next_renewal(sent);
                let (State::Holding(term) | State::Stopping { term, .. }) = &mut self.state else {
                    return;
                };
                term.renewing = None;
                term.renew_at = renew_at;
                let failures = std::mem::take(&mut term.failures);
                term.last_error = None;
                let token = term.lease.token();
                if let Some(Request::StepDown { hold_off }) = request {
                    self.leave_alone_for(hold_off);
                }
                if let State::Holding(term) = &mut self.state {
                    // Earlier than before when the store has granted less than before.
                    let deadline = timing.deadline(sent, ttl);
                    term.deadline = deadline;
                    self.tell(Event::Renewed { token, deadline });
                    if failures > 0 {
                        self.tell(Event::Recovered { failures });
                    }
                    if let Some(Request::StepDown { .. }) = request {
                        self.stop(now, StopReason::Requested);
                    }
                }
            }
            Err(error) => {
                let (State::Holding(term) | State::Stopping { term, .. }) = &mut self.state else {
                    return;
                };
                term.renewing = None;
                term.failures = term.failures.saturating_add(1);
                term.last_error = Some(error.clone());
                let failures = term.failures;
                let retry_in = timing.backoff(failures).min(timing.renew_every());
                term.renew_at = now.after(retry_in);
                self.tell(Event::Failed {
                    error,
                    failures,
                    retry_in,
                });
            }
        }
    }

    /// After this term, which has been told to stop or will be, does not claim for this long.
    fn leave_alone_for(&mut self, hold_off: Duration) {
        if self.lease().is_some() {
            self.hold_off = self.hold_off.max(hold_off);
        }
    }

    fn stop(&mut self, now: Moment, reason: StopReason) {
        self.take_term_and(|machine, term| {
            let abort_at = now.after(machine.config.timing.drain()).min(term.deadline);
            let token = term.lease.token();
            machine.tell(Event::Stopping {
                token,
                reason,
                abort_at,
            });
            machine.state = State::Stopping {
                term,
                abort_at,
                aborting: false,
            };
        });
    }

    fn expire(&mut self, term: Term) {
        let last_error = term.last_error.clone();
        self.lose(term, LossReason::Expired { last_error });
    }

    fn lose(&mut self, term: Term, reason: LossReason) {
        self.tell(Event::Lost {
            token: term.lease.token(),
            reason,
        });
        self.state = State::Ending(term);
    }

    /// Takes the term out of the state; `then` sets the next state.
    fn take_term_and(&mut self, then: impl FnOnce(&mut Self, Term)) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Holding(term) | State::Stopping { term, .. } => then(self, term),
            other => self.state = other,
        }
    }

    fn on_work_ended(&mut self, now: Moment, hold_off: Duration) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Holding(term) | State::Stopping { term, .. } | State::Ending(term) => {
                self.tell(Event::WorkEnded {
                    token: term.lease.token(),
                });
                let hold_off = hold_off.max(std::mem::take(&mut self.hold_off));
                self.not_before = self.not_before.max(now.after(hold_off));
                self.owe(
                    now,
                    Owed::Release {
                        lease: term.lease,
                        report: true,
                    },
                    term.renewing,
                );
                if self.config.scope != Scope::ManyTerms {
                    self.finishing = true;
                }
                self.state = State::Clearing;
            }
            other => self.state = other,
        }
    }

    // ---- ending ----

    fn on_shutdown(&mut self, now: Moment) {
        self.finishing = true;
        match &self.state {
            State::Holding(_) => self.stop(now, StopReason::Shutdown),
            State::Standby { .. } => {
                self.act(Action::StopWaiting);
                self.withdraw_and_clear(now);
            }
            State::Idle | State::Resting { .. } => self.withdraw_and_clear(now),
            State::Claiming { .. }
            | State::Stopping { .. }
            | State::Ending(_)
            | State::Clearing
            | State::Ended => {}
        }
    }

    fn owe(&mut self, now: Moment, what: Owed, stale: Option<OpId>) {
        self.duties
            .push(Duty::new(now, &self.config.timing, what, stale));
    }

    // ---- replies ----

    fn on_reply(&mut self, now: Moment, op: OpId, sent: Moment, reply: Reply) {
        match (&self.state, reply) {
            (State::Claiming { op: open, hinted }, Reply::TryAcquire(answer)) if *open == op => {
                let hinted = *hinted;
                self.on_attempt(now, sent, hinted, answer);
            }
            (State::Holding(term) | State::Stopping { term, .. }, Reply::Renew(answer))
                if term.renewing == Some(op) =>
            {
                self.on_renewal(now, sent, answer)
            }
            (_, Reply::Renew(answer)) => self.on_stale_renewal(now, op, &answer),
            (_, Reply::Release(answer)) => self.on_paid(now, op, answer),
            (_, Reply::Withdraw(answer)) => {
                self.on_paid(now, op, answer.map(|()| Release::Released))
            }
            // An answer that nobody waits for: late or duplicated.
            (_, Reply::TryAcquire(_)) => {}
        }
    }

    /// A renewal of a term that has ended was answered.
    fn on_stale_renewal(&mut self, now: Moment, op: OpId, answer: &Result<Renewal>) {
        if let State::Ending(term) = &mut self.state
            && term.renewing == Some(op)
        {
            term.renewing = None;
        }
        let gone = matches!(answer, Ok(Renewal::Gone));
        if let Some(duty) = self.duties.iter_mut().find(|d| d.stale_renewal == Some(op)) {
            duty.stale_renewal_answered(now, gone);
        }
    }

    fn on_paid(&mut self, now: Moment, op: OpId, answer: Result<Release>) {
        let timing = self.config.timing;
        let Some(duty) = self.duties.iter_mut().find(|d| d.op == Some(op)) else {
            return;
        };
        match answer {
            Ok(outcome) => {
                if let Some((lease, outcome)) = duty.answered(now, outcome) {
                    self.tell(Event::Released {
                        token: lease.token(),
                        outcome,
                    });
                }
            }
            Err(error) => {
                let failures = duty.failed(now, &timing);
                let retry_in = timing.backoff(failures);
                self.tell(Event::Failed {
                    error,
                    failures,
                    retry_in,
                });
            }
        }
    }

    // ---- small things ----

    fn new_op(&mut self) -> OpId {
        let op = OpId(self.next_op);
        self.next_op += 1;
        op
    }

    fn act(&mut self, action: Action) {
        self.outputs.push_back(Output::Action(action));
    }

    fn tell(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// A span below `span`, from the seed (splitmix64).
    fn random_part(&mut self, span: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let nanos = (span.as_nanos() * u128::from(z >> 32)) >> 32;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}
