//! The network and the store at its end: what gets lost, late, or there twice.

use super::*;

impl World {
    pub(super) fn act(&mut self, host: usize, action: Action) {
        let op = match &action {
            Action::TryAcquire { op, claim } => {
                self.hosts[host].live.insert(claim.nonce);
                *op
            }
            Action::Renew { op, .. } => {
                // The worst moment to be stopped in.
                if !self.healed && self.rng.chance(3) {
                    self.soon(0, 5 * MS, Happening::Befall(Fault::Pause(host)));
                }
                *op
            }
            Action::Release { op, lease } => {
                self.hosts[host].live.remove(&lease.nonce());
                *op
            }
            Action::Withdraw { op, claim } => {
                self.hosts[host].live.remove(&claim.nonce);
                *op
            }
            Action::Wait { claim, seen } => {
                self.next_wait += 1;
                let wait = self.next_wait;
                self.hosts[host].wait = Some((wait, claim.clone(), seen.clone()));
                let holder = self.store.holder(self.store_clock.at(self.now));
                let vain = !self.healed && self.rng.chance(50);
                if holder != Some(seen.token.get()) || vain {
                    self.soon(MS, 20 * MS, Happening::Hint { host, wait });
                }
                return;
            }
            Action::StopWaiting => {
                self.hosts[host].wait = None;
                return;
            }
        };
        let call = self.calls.len();
        let h = &self.hosts[host];
        let sent = h.clock.moment(self.now);
        let timeout = h
            .clock
            .when(sent.after(self.timing.request_timeout()).as_nanos());
        self.calls.push(Call {
            host,
            life: h.life,
            action,
            op,
            sent,
            session: h.session,
            answered: false,
        });
        self.at(timeout, Happening::Timeout { call });
        let luck = if self.healed {
            1000
        } else {
            self.rng.below(1000)
        };
        match luck {
            0..=39 => {}
            40..=79 => self.soon(0, LATEST, Happening::Arrive { call }),
            80..=109 => {
                self.soon(0, LATEST, Happening::Arrive { call });
                self.soon(0, 30 * MS, Happening::Arrive { call });
            }
            110..=179 => self.soon(0, 2 * SEC, Happening::Arrive { call }),
            _ => self.soon(MS, 20 * MS, Happening::Arrive { call }),
        }
    }

    pub(super) fn arrive(&mut self, call: usize) {
        let host = self.calls[call].host;
        if self.store_down {
            if self.rng.chance(500) {
                let reply = failed(&self.calls[call].action, ErrorKind::Unavailable);
                self.soon(MS, 20 * MS, Happening::Answer { call, reply });
            }
            return;
        }
        let now = self.store_clock.at(self.now);
        let before = self.store.holder(now);
        let none = BTreeSet::new();
        let h = &self.hosts[host];
        let caller = Caller {
            session: self.calls[call].session,
            live: if h.session == self.calls[call].session {
                &h.live
            } else {
                &none
            },
        };
        let reply = match &self.calls[call].action {
            Action::TryAcquire { claim, .. } => {
                Reply::TryAcquire(self.store.try_acquire(now, &caller, claim))
            }
            Action::Renew { lease, .. } => Reply::Renew(Ok(self.store.renew(now, &caller, lease))),
            Action::Release { lease, .. } => Reply::Release(Ok(self.store.release(now, lease))),
            Action::Withdraw { claim, .. } => {
                self.store.withdraw(now, claim);
                Reply::Withdraw(Ok(()))
            }
            Action::Wait { .. } | Action::StopWaiting => return,
        };
        if self.store.session_is_dead(self.calls[call].session)
            && self.hosts[host].session == self.calls[call].session
        {
            self.next_session += 1;
            self.hosts[host].session = self.next_session;
        }
        if self.store.holder(now) != before {
            self.hint_all();
        }
        let luck = if self.healed {
            1000
        } else {
            self.rng.below(1000)
        };
        match luck {
            0..=49 => {}
            50..=129 => self.soon(0, 4 * SEC, Happening::Answer { call, reply }),
            130..=159 => {
                let again = reply.clone();
                self.soon(MS, 2 * SEC, Happening::Answer { call, reply });
                self.soon(MS, LATEST, Happening::Answer { call, reply: again });
            }
            _ => self.soon(MS, 20 * MS, Happening::Answer { call, reply }),
        }
    }

    pub(super) fn hint_all(&mut self) {
        for host in 0..self.hosts.len() {
            let Some((wait, ..)) = self.hosts[host].wait else {
                continue;
            };
            if self.healed || self.rng.chance(800) {
                self.soon(MS, 20 * MS, Happening::Hint { host, wait });
            }
        }
    }

    /// The first answer is the answer; later ones are repetitions, which must do nothing.
    pub(super) fn answer(&mut self, call: usize, reply: Reply) -> Verdict {
        let c = &mut self.calls[call];
        let (host, op, sent) = (c.host, c.op, c.sent);
        let first = !std::mem::replace(&mut c.answered, true);
        if let (Reply::TryAcquire(answer), Action::TryAcquire { claim, .. }) = (&reply, &c.action)
            && claim.mode == Mode::Once
        {
            // One try that is surely not granted: should its request be executed once more, the next
            // round of renewals finds an entry without a claim.
            let denied = match answer {
                Ok(Attempt::Granted(_)) => false,
                Ok(Attempt::Held(_)) => true,
                Err(error) => !error.is_indeterminate(),
            };
            if denied {
                self.hosts[host].live.remove(&claim.nonce);
            }
        }
        if self.hosts[host].life != c.life {
            return Ok(());
        }
        let h = &mut self.hosts[host];
        h.watch
            .answered(h.clock.moment(self.now), op, &reply, first);
        self.input(host, Input::Replied { op, sent, reply })
    }

    pub(super) fn keep_alive(&mut self, host: usize) {
        if self.hosts[host].subject.is_some() && !self.store_down {
            let now = self.store_clock.at(self.now);
            let h = &self.hosts[host];
            let caller = Caller {
                session: h.session,
                live: &h.live,
            };
            self.store.keep_alive(now, &caller, self.timing.ttl());
        }
        if self.siblings {
            let every = nanos(self.timing.renew_every());
            self.soon(every, every, Happening::KeepAlive { host });
        }
    }
}

/// The answer when there is none.
pub(super) fn failed(action: &Action, kind: ErrorKind) -> Reply {
    let error = |operation| {
        Error::new(kind, "no answer")
            .with_operation(operation)
            .with_indeterminate(true)
    };
    match action {
        Action::Renew { .. } => Reply::Renew(Err(error(Operation::Renew))),
        Action::Release { .. } => Reply::Release(Err(error(Operation::Release))),
        Action::Withdraw { .. } => Reply::Withdraw(Err(error(Operation::Withdraw))),
        _ => Reply::TryAcquire(Err(error(Operation::TryAcquire))),
    }
}
