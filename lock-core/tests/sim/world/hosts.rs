//! The processes: their machines, the work of these, and what `check()` says.

use super::*;

impl World {
    pub(super) fn start(&mut self, host: usize) -> Verdict {
        let nonce = Nonce::from_u128(self.next_nonce << 32);
        self.next_nonce += 1;
        let row = matches!(self.store, Store::Row(_));
        let config = MachineConfig {
            name: LockName::new("job").expect("valid"),
            owner: Owner::new(format!("host-{host}")).expect("valid"),
            metadata: Metadata::default(),
            priority: 0,
            timing: self.timing,
            scope: self.hosts[host].scope,
            first_nonce: nonce,
            seed: self.rng.next(),
            queueing: !row,
            monotone: true,
            guarded_takeover: self.guarded,
        };
        let h = &mut self.hosts[host];
        h.life += 1;
        h.subject = Some(Subject::new(config, self.mutation));
        h.watch = Watch::new(self.timing, !row);
        h.work = None;
        h.cell = 0;
        if h.session == 0 {
            self.next_session += 1;
            h.session = self.next_session;
        }
        h.wait = None;
        self.input(host, Input::Start)
    }

    pub(super) fn input(&mut self, host: usize, input: Input) -> Verdict {
        let now = self.hosts[host].clock.moment(self.now);
        if let Some(subject) = &mut self.hosts[host].subject {
            subject.handle(now, input);
            self.turn(host)?;
        }
        Ok(())
    }

    pub(super) fn turn(&mut self, host: usize) -> Verdict {
        let now = self.hosts[host].clock.moment(self.now);
        loop {
            let Some(subject) = &mut self.hosts[host].subject else {
                return Ok(());
            };
            match subject.poll(now) {
                Output::Action(action) => {
                    if self.tracing {
                        self.report.trace.push(format!("{host}: {action:?}"));
                    }
                    let h = &mut self.hosts[host];
                    h.watch.action(now, &action, h.work.is_some())?;
                    self.act(host, action);
                }
                Output::Event(event) => {
                    if self.tracing {
                        self.report.trace.push(format!("{host}: {event:?}"));
                    }
                    let nonce = subject.lease().map(lock_core::Lease::nonce);
                    self.hosts[host].watch.event(now, &event, nonce)?;
                    self.event(host, &event)?;
                }
                Output::Wait(at) => {
                    let held = subject.held();
                    let h = &mut self.hosts[host];
                    h.watch.turned(now, held, at)?;
                    h.turn += 1;
                    let turn = h.turn;
                    if at < Moment::NEVER {
                        let when = h.clock.when(at.as_nanos());
                        must!(
                            when > self.now,
                            "host {host} asks to be woken at once, for ever"
                        );
                        // A timer is late by up to a few milliseconds.
                        let late = if self.rng.chance(100) {
                            self.rng.below(5 * MS)
                        } else {
                            0
                        };
                        self.at(when + late, Happening::Wake { host, turn });
                    }
                    return Ok(());
                }
            }
        }
    }

    pub(super) fn holds(&self, host: usize) -> Option<u64> {
        let h = &self.hosts[host];
        let (token, deadline) = h.subject.as_ref()?.held()?;
        (h.clock.moment(self.now) < deadline).then_some(token.get())
    }

    pub(super) fn event(&mut self, host: usize, event: &Event) -> Verdict {
        match event {
            Event::Gained { token, deadline } => {
                self.report.gained += 1;
                let token = token.get();
                for other in 0..self.hosts.len() {
                    let Some(held) = self.holds(other).filter(|_| other != host) else {
                        continue;
                    };
                    let excused = self.excused.contains(&held) || self.excused.contains(&token);
                    must!(
                        excused,
                        "host {other} holds {held} while host {host} gains {token}"
                    );
                    self.report.overlaps_excused += 1;
                }
                let fresh = self.highest < token;
                must!(
                    fresh || self.excused.contains(&token) || self.counter_store(),
                    "gained {token} after {}",
                    self.highest
                );
                self.highest = self.highest.max(token);
                self.led_since_heal |= self.healed;
                self.hosts[host].cell = deadline.as_nanos();
                self.hosts[host].seen_over = false;
                self.begin_work(host, token);
            }
            Event::Renewed { deadline, .. } => {
                self.report.renewed += 1;
                self.led_since_heal |= self.healed;
                let now = self.hosts[host].clock.at(self.now);
                let h = &mut self.hosts[host];
                if h.seen_over || now >= h.cell {
                    // As the driver does when its cell says that it is over.
                    h.cell = 0;
                    if let Some(subject) = &mut h.subject {
                        subject.handle(Moment::from_nanos(now), Input::Lapsed);
                    }
                } else {
                    h.cell = deadline.as_nanos();
                }
            }
            Event::Stopping { .. } => {
                self.report.stopped += 1;
                self.tell_work(host);
            }
            Event::Aborting { .. } => {
                self.report.aborted += 1;
                self.abort_work(host);
            }
            Event::Lost { reason, .. } => {
                match reason {
                    lock_core::LossReason::Gone => self.report.gone += 1,
                    _ => self.report.expired += 1,
                }
                self.hosts[host].cell = 0;
                self.abort_work(host);
            }
            Event::Released { .. } => self.report.released += 1,
            Event::Failed { error, .. } if error.kind() == ErrorKind::Backend => {
                self.report.refused += 1;
            }
            Event::Ended { .. } => {
                self.hosts[host].wait = None;
                if self.hosts[host].scope != Scope::ManyTerms {
                    self.soon(MS, 2 * SEC, Happening::Befall(Fault::Start(host)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn ends(&mut self, host: usize, low: u64, high: u64) {
        let life = self.hosts[host].life;
        if let Some(work) = &self.hosts[host].work {
            let term = work.term;
            self.soon(low, high, Happening::WorkEnds { host, life, term });
        }
    }

    pub(super) fn begin_work(&mut self, host: usize, term: u64) {
        self.hosts[host].work = Some(Work {
            term,
            told: false,
            overruns: !self.healed && self.rng.chance(150),
        });
        // Some work ends, or fails, by itself.
        if !self.healed && self.rng.chance(250) {
            self.ends(host, 0, 3 * nanos(self.timing.ttl()));
        }
    }

    pub(super) fn tell_work(&mut self, host: usize) {
        let drain = nanos(self.timing.drain());
        let Some(work) = &mut self.hosts[host].work else {
            return;
        };
        work.told = true;
        if !work.overruns {
            let slow = self.rng.chance(300);
            self.ends(host, 0, if slow { drain } else { 50 * MS });
        }
    }

    /// Work that runs on past its abort blocks its thread.
    pub(super) fn abort_work(&mut self, host: usize) {
        let Some(work) = &self.hosts[host].work else {
            return;
        };
        let long = if work.overruns {
            2 * nanos(self.timing.ttl())
        } else {
            MS
        };
        self.ends(host, 0, long);
    }

    /// The application asks `check()`, perhaps in the moment after a pause and before any input.
    pub(super) fn sample(&mut self, host: usize) {
        if self.hosts[host].paused_until > self.now {
            return;
        }
        let now = self.hosts[host].clock.at(self.now);
        let h = &mut self.hosts[host];
        if h.cell != 0 && now >= h.cell {
            h.seen_over = true;
        }
    }
}
