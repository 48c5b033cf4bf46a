//! What befalls the world, and how it heals.

use super::*;

impl World {
    pub(super) fn excuse_holder(&mut self) {
        let now = self.store_clock.at(self.now);
        self.excused.extend(self.store.holder(now));
        for host in 0..self.hosts.len() {
            self.excused.extend(self.holds(host));
        }
    }

    pub(super) fn befall(&mut self, fault: Fault) -> Verdict {
        let ttl = nanos(self.timing.ttl());
        match fault {
            Fault::Start(host) => {
                let ended = self.hosts[host]
                    .subject
                    .as_ref()
                    .is_none_or(Subject::is_ended);
                if ended && !self.closing {
                    self.start(host)?;
                }
            }
            Fault::Crash(host) => {
                self.report.crashes += 1;
                self.hosts[host].subject = None;
                self.hosts[host].life += 1;
                self.hosts[host].work = None;
                self.hosts[host].wait = None;
                self.hosts[host].session = 0;
                self.hosts[host].live.clear();
                self.soon(0, 2 * ttl, Happening::Befall(Fault::Start(host)));
            }
            Fault::Pause(host) => {
                self.report.pauses += 1;
                let long = if self.rng.chance(500) {
                    2 * ttl
                } else {
                    ttl / 2
                };
                let until = self.now + self.rng.below(long);
                let h = &mut self.hosts[host];
                h.paused_until = h.paused_until.max(until);
                self.at(until, Happening::Sample { host });
            }
            Fault::Down => {
                self.store_down = true;
                self.soon(0, ttl, Happening::Befall(Fault::Up));
            }
            Fault::Up => self.store_down = false,
            Fault::Step => {
                let step = if self.rng.chance(700) && !self.stepped {
                    // The largest that the margin covers, once.
                    self.stepped = true;
                    i64::try_from(nanos(self.timing.margin())).expect("short")
                } else {
                    -i64::try_from(self.rng.below(ttl / 2)).expect("short")
                };
                if matches!(self.store, Store::Row(_)) {
                    self.store_clock.offset = self.store_clock.offset.saturating_add_signed(step);
                }
            }
            Fault::Revoke => {
                self.excuse_holder();
                self.store.revoke(self.store_clock.at(self.now));
                self.hint_all();
            }
            Fault::StepDown => self
                .store
                .ask(Duration::from_nanos(self.rng.below(5) * SEC)),
            Fault::Wipe => {
                self.excuse_holder();
                self.store.wipe();
                self.hint_all();
            }
            Fault::Steal => {
                self.excuse_holder();
                self.store
                    .steal(self.store_clock.at(self.now), self.timing.ttl());
                self.hint_all();
            }
            Fault::Resign(host) => {
                let hold_off = Duration::from_nanos(self.rng.below(5) * SEC);
                self.input(host, Input::Resign { hold_off })?;
            }
            Fault::ShutDown(host) => {
                self.input(host, Input::Shutdown)?;
                self.soon(SEC, 2 * ttl, Happening::Befall(Fault::Start(host)));
            }
        }
        Ok(())
    }

    pub(super) fn heal(&mut self) -> Verdict {
        self.healed = true;
        self.store_down = false;
        for host in 0..self.hosts.len() {
            // What the pause has held back is delivered now, and again later to nobody.
            self.hosts[host].paused_until = self.hosts[host].paused_until.min(self.now);
            self.ends(host, 0, SEC);
            let ended = self.hosts[host]
                .subject
                .as_ref()
                .is_none_or(Subject::is_ended);
            if ended {
                self.start(host)?;
            } else {
                self.turn(host)?;
            }
        }
        Ok(())
    }
}
