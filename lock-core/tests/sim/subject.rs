//! The machine under test, or a mutant of it: what goes in and out is bent on the way.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::clock::Moment;
use lock_core::election::{Action, Input, Machine, MachineConfig, Output, Reply};
use lock_core::{
    Attempt, Event, Handle, Lease, Nonce, Release, Renewal, StopReason, Timing, Token,
};

/// A fault planted into the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mutation {
    /// The machine as it is.
    None,
    DeadlineFromAnswer,
    DriftIgnored,
    MarginIgnored,
    StopAtIgnored,
    LostOnlyOnError,
    LateRenewalRevives,
    ClaimBeforeSettled,
    NonceReused,
    LowerTokenAccepted,
    ReleaseWhileWorking,
    StaleRenewalForgotten,
    HintIsGrant,
}

impl Mutation {
    pub(crate) const ALL: [Self; 12] = [
        Self::DeadlineFromAnswer,
        Self::DriftIgnored,
        Self::MarginIgnored,
        Self::StopAtIgnored,
        Self::LostOnlyOnError,
        Self::LateRenewalRevives,
        Self::ClaimBeforeSettled,
        Self::NonceReused,
        Self::LowerTokenAccepted,
        Self::ReleaseWhileWorking,
        Self::StaleRenewalForgotten,
        Self::HintIsGrant,
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Subject {
    machine: Machine,
    mutation: Mutation,
    first_nonce: Nonce,
    hinted: bool,
    seen: Option<Token>,
    fed: VecDeque<Input>,
}

/// The same times with another drift and margin.
fn with(timing: &Timing, drift_ppm: u32, margin: Duration) -> Timing {
    Timing::builder(timing.ttl())
        .renew_every(timing.renew_every())
        .request_timeout(timing.request_timeout())
        .first_backoff(timing.first_backoff())
        .poll_every(timing.poll_every())
        .drain(timing.drain())
        .drift_ppm(drift_ppm)
        .margin(margin)
        .build()
        .expect("easier than before")
}

impl Subject {
    pub(crate) fn new(mut config: MachineConfig, mutation: Mutation) -> Self {
        let timing = config.timing;
        match mutation {
            Mutation::DriftIgnored => config.timing = with(&timing, 0, timing.margin()),
            Mutation::MarginIgnored => {
                config.timing = with(&timing, timing.drift_ppm(), Duration::ZERO);
            }
            Mutation::LowerTokenAccepted => config.monotone = false,
            _ => {}
        }
        Self {
            first_nonce: config.first_nonce,
            machine: Machine::new(config),
            mutation,
            hinted: false,
            seen: None,
            fed: VecDeque::new(),
        }
    }

    pub(crate) fn held(&self) -> Option<(Token, Moment)> {
        self.machine.held()
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.machine.lease()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.machine.is_ended()
    }

    /// The present as the machine is told it.
    fn told(&self, now: Moment) -> Moment {
        match self.machine.held() {
            Some((_, deadline))
                if self.mutation == Mutation::LostOnlyOnError && now >= deadline =>
            {
                deadline.before(Duration::from_nanos(1))
            }
            _ => now,
        }
    }

    pub(crate) fn handle(&mut self, now: Moment, input: Input) {
        let mut told = self.told(now);
        let input = match (self.mutation, input) {
            (Mutation::DeadlineFromAnswer, Input::Replied { op, reply, .. }) => Input::Replied {
                op,
                sent: now,
                reply,
            },
            (Mutation::LateRenewalRevives, input) => {
                if let Input::Replied {
                    reply: Reply::Renew(Ok(Renewal::Renewed { .. })),
                    ..
                } = input
                    && let Some((_, deadline)) = self.machine.held()
                {
                    // As if it had been read before the timers were looked at.
                    let stop_at = self.machine.config().timing.stop_at(deadline);
                    told = now.min(stop_at.before(Duration::from_nanos(1)));
                }
                input
            }
            (Mutation::StaleRenewalForgotten, Input::Replied { op, sent, reply }) => {
                let stale = self.machine.held().is_none();
                let reply = match reply {
                    Reply::Renew(_) if stale => Reply::Renew(Ok(Renewal::Gone)),
                    other => other,
                };
                Input::Replied { op, sent, reply }
            }
            (Mutation::HintIsGrant, Input::Hint) => {
                self.hinted = true;
                Input::Hint
            }
            (_, input) => input,
        };
        self.machine.handle(told, input);
    }

    pub(crate) fn poll(&mut self, now: Moment) -> Output {
        loop {
            let told = self.told(now);
            while let Some(input) = self.fed.pop_front() {
                self.machine.handle(told, input);
            }
            let output = self.machine.poll(told);
            match (self.mutation, output) {
                (
                    Mutation::StopAtIgnored,
                    Output::Event(Event::Stopping {
                        reason: StopReason::Deadline,
                        ..
                    }),
                ) => {}
                (Mutation::NonceReused, Output::Action(Action::TryAcquire { op, mut claim })) => {
                    claim.nonce = self.first_nonce;
                    return Output::Action(Action::TryAcquire { op, claim });
                }
                (Mutation::ClaimBeforeSettled, Output::Action(action)) => {
                    let settled = match &action {
                        Action::Release { op, .. } => {
                            Some((*op, Reply::Release(Ok(Release::Released))))
                        }
                        Action::Withdraw { op, .. } => Some((*op, Reply::Withdraw(Ok(())))),
                        _ => None,
                    };
                    if let Some((op, reply)) = settled {
                        let sent = now;
                        self.fed.push_back(Input::Replied { op, sent, reply });
                    }
                    return Output::Action(action);
                }
                (Mutation::ReleaseWhileWorking, Output::Event(event)) => {
                    if matches!(event, Event::Stopping { .. }) {
                        self.fed.push_back(Input::WorkEnded {
                            hold_off: Duration::ZERO,
                        });
                    }
                    return Output::Event(event);
                }
                (Mutation::HintIsGrant, Output::Action(Action::TryAcquire { op, claim }))
                    if self.hinted && self.seen.is_some() =>
                {
                    self.hinted = false;
                    let next = self.seen.map_or(1, |seen| seen.get() + 1);
                    let token = Token::new(next).expect("small");
                    let lease = Lease::new(&claim, token, claim.ttl, Handle::none());
                    let reply = Reply::TryAcquire(Ok(Attempt::Granted(lease)));
                    let sent = now;
                    self.fed.push_back(Input::Replied { op, sent, reply });
                }
                (_, output) => {
                    if let Output::Action(Action::Wait { seen, .. }) = &output {
                        self.seen = Some(seen.token);
                    }
                    return output;
                }
            }
        }
    }
}
