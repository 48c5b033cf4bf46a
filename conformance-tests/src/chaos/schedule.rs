//! What goes wrong, when and for how long: a pure function of scenario, seed and length.

use std::time::Duration;

use lock_core::Timing;

use super::Plan;
use super::scenario::Scenario;

/// Whom a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Whoever leads when it begins.
    Leader,
    /// This one, counted from 1.
    Candidate(u32),
    /// The store, or the way of everybody to it.
    Store,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ended in good order, and started again at the end.
    Restart,
    /// Killed, and started again at the end.
    Kill,
    /// Stopped by a signal until the end.
    Pause,
    /// Nothing goes through.
    Partition,
    /// Bytes take this much longer, each way.
    Slow(Duration),
    /// Answers take this much longer.
    SlowAnswers(Duration),
    /// Requests take effect, and their answers are lost for good.
    LoseAnswers,
    /// Requests are lost for good.
    LoseRequests,
    /// Connections are cut, and new ones refused until the end.
    Refuse,
    /// Connections are reset, or closed, once.
    Cut { reset: bool },
    /// The wall clock steps by so many milliseconds, for good.
    Step(i64),
    /// Runs for 10 of 100 ms.
    Quota,
    /// Can open nothing.
    NoDescriptors,
    /// An operator ends the lease.
    Revoke,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Slow(_) => "slow",
            Self::SlowAnswers(_) => "slow answers",
            Self::LoseAnswers => "lost answers",
            Self::LoseRequests => "lost requests",
            Self::Refuse => "refused",
            Self::Cut { reset: true } => "reset",
            Self::Cut { reset: false } => "cut",
            Self::Step(by) if by < 0 => "clock back",
            Self::Step(_) => "clock forward",
            Self::Quota => "starved",
            Self::NoDescriptors => "no descriptors",
            Self::Revoke => "revoked",
        }
    }

    /// Whether a candidate that suffers it may take longer to lead. `of_store`: the store suffers it.
    pub(super) fn disturbs(self, of_store: bool, timing: &Timing) -> bool {
        match self {
            Self::Slow(by) => by * 8 >= timing.request_timeout(),
            Self::SlowAnswers(by) => by * 4 >= timing.request_timeout(),
            // A candidate's own wall clock decides nothing. A lease of a store that steps back lives longer.
            Self::Step(by) => of_store && by < 0,
            Self::Revoke => false,
            _ => true,
        }
    }

    /// Whether it is one of the process, of which a candidate or server can suffer one at a time.
    pub(super) const fn is_of_process(self) -> bool {
        matches!(
            self,
            Self::Restart | Self::Kill | Self::Pause | Self::Quota | Self::NoDescriptors
        )
    }

    /// Whether the process stands still for a while.
    pub(super) const fn stops(self) -> bool {
        matches!(self, Self::Pause | Self::Quota)
    }
}

/// One fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) kind: Kind,
    pub(super) on: Target,
}

/// A SplitMix64 sequence: one seed, one run.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    const fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// A span from `low` to `high` thousandths of `unit`.
    fn share(&mut self, unit: Duration, low: u64, high: u64) -> Duration {
        let thousandths = low + self.below(high - low);
        let nanos = unit.as_nanos() * u128::from(thousandths) / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn candidate(&mut self, of: u32) -> Target {
        let one = self.below(u64::from(of));
        Target::Candidate(u32::try_from(one).unwrap_or(0) + 1)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        of[at]
    }
}

/// The faults of a run, by their instants. The last `2 × ttl` are without one, so that the run ends healed.
/// `server`: whether there is a server of ours to disturb.
pub(super) fn schedule(plan: &Plan, server: bool) -> Vec<Fault> {
    let ttl = plan.timing.ttl();
    let end = plan.length.saturating_sub(ttl * 2);
    let mut maker = Maker {
        dice: Dice(plan.seed ^ (plan.scenario as u64).wrapping_mul(0x5851_f42d_4c95_7f2d)),
        candidates: plan.candidates,
        timing: plan.timing,
        faults: Vec::new(),
    };
    if plan.scenario == Scenario::Mixed {
        let kinds = |one: &Scenario| *one != Scenario::Mixed && !one.steps_the_store();
        let all = Scenario::ALL.into_iter().filter(kinds);
        // The wall clocks of candidates are theirs only where a server has another.
        let all: Vec<Scenario> = all.filter(|one| server || !one.needs_server()).collect();
        for _ in 0..2 {
            maker.fill(end, |dice| dice.one(&all));
        }
    } else {
        maker.fill(end, |_| plan.scenario);
    }
    let mut faults = maker.faults;
    faults.retain(|fault| fault.at + fault.lasts <= end + ttl / 2);
    faults.sort_by_key(|fault| fault.at);
    faults
}

struct Maker {
    dice: Dice,
    candidates: u32,
    timing: Timing,
    faults: Vec<Fault>,
}

impl Maker {
    fn fill(&mut self, end: Duration, mut next: impl FnMut(&mut Dice) -> Scenario) {
        let ttl = self.timing.ttl();
        // The first leader gets time to settle.
        let mut at = self.dice.share(ttl, 700, 1000);
        let mut turn = 0;
        while at < end {
            let scenario = next(&mut self.dice);
            let over = self.strike(scenario, at, turn);
            turn += 1;
            at = over
                + match scenario {
                    Scenario::RollingRestarts => self.dice.share(ttl, 200, 500),
                    _ => self.dice.share(ttl, 500, 1500),
                };
        }
    }

    fn add(&mut self, at: Duration, lasts: Duration, kind: Kind, on: Target) -> Duration {
        self.faults.push(Fault {
            at,
            lasts,
            kind,
            on,
        });
        at + lasts
    }

    /// The faults of one turn; when they are over.
    fn strike(&mut self, scenario: Scenario, at: Duration, turn: u32) -> Duration {
        let (ttl, timeout) = (self.timing.ttl(), self.timing.request_timeout());
        // Mostly longer than a lease.
        let long = turn % 3 != 2;
        let lasts = if long {
            self.dice.share(ttl, 1200, 2200)
        } else {
            self.dice.share(ttl, 200, 900)
        };
        let leader_or_all = if turn.is_multiple_of(2) {
            Target::Leader
        } else {
            Target::Store
        };
        match scenario {
            Scenario::RollingRestarts => {
                let on = Target::Candidate(turn % self.candidates + 1);
                let lasts = self.dice.share(ttl, 50, 400);
                self.add(at, lasts, Kind::Restart, on)
            }
            Scenario::KillLeader => {
                let lasts = self.dice.share(ttl, 50, 1500);
                self.add(at, lasts, Kind::Kill, Target::Leader)
            }
            Scenario::PartitionLeader => {
                // The link gets slow before it is cut: a deadline that counts from the answer is too late then.
                let by = self.dice.share(timeout, 700, 950);
                let slow = self.dice.share(ttl, 400, 600);
                let cut = self.add(at, slow, Kind::SlowAnswers(by), Target::Leader);
                self.add(cut, lasts, Kind::Partition, Target::Leader)
            }
            Scenario::PauseLeader => self.add(at, lasts, Kind::Pause, Target::Leader),
            Scenario::PauseStore => self.add(at, lasts, Kind::Pause, Target::Store),
            Scenario::RestartStore => {
                let kind = self.dice.one(&[Kind::Kill, Kind::Restart]);
                let lasts = self.dice.share(ttl, 50, 2000);
                self.add(at, lasts, kind, Target::Store)
            }
            Scenario::FlappingNetwork => {
                let mut at = at;
                for _ in 0..4 + self.dice.below(8) {
                    let on = self.dice.one(&[0, 1, 2]);
                    let on = match on {
                        0 => Target::Leader,
                        1 => Target::Store,
                        _ => self.dice.candidate(self.candidates),
                    };
                    let kinds = [
                        Kind::Refuse,
                        Kind::Partition,
                        Kind::Cut { reset: true },
                        Kind::Cut { reset: false },
                    ];
                    let kind = self.dice.one(&kinds);
                    let lasts = self.dice.share(ttl, 20, 150);
                    at = self.add(at, lasts, kind, on) + self.dice.share(ttl, 10, 100);
                }
                at
            }
            Scenario::SlowStore => {
                let by = self.dice.share(timeout, 20, 600);
                self.add(at, lasts, Kind::Slow(by), Target::Store)
            }
            Scenario::LostAnswers => self.add(at, lasts, Kind::LoseAnswers, leader_or_all),
            Scenario::LostRequests => self.add(at, lasts, Kind::LoseRequests, leader_or_all),
            Scenario::CandidateClocks => {
                let by = self
                    .dice
                    .one(&[-7_200_000, -5_000, -300, 300, 5_000, 7_200_000]);
                let on = self.dice.one(&[Target::Leader, Target::Candidate(1)]);
                self.add(at, Duration::ZERO, Kind::Step(by), on)
            }
            Scenario::StoreClock => {
                let ms = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
                let step = match turn % 3 {
                    0 => ms(self.timing.margin()) * 3 / 4,
                    1 => -ms(self.dice.share(ttl, 300, 1500)),
                    _ => ms(self.dice.share(ttl, 1000, 3000)),
                };
                // A lease that is there when the clock steps back lives so much longer.
                let lasts = Duration::from_millis(step.min(0).unsigned_abs());
                self.add(at, lasts, Kind::Step(step), Target::Store)
            }
            Scenario::Starved => self.add(at, lasts, Kind::Quota, Target::Leader),
            Scenario::NoDescriptors => {
                let on = self.dice.candidate(self.candidates);
                let on = self.dice.one(&[on, Target::Leader]);
                self.add(at, lasts, Kind::NoDescriptors, on)
            }
            Scenario::Revoked => self.add(at, Duration::ZERO, Kind::Revoke, Target::Store),
            Scenario::Mixed => at,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_schedule_and_each_name_reads_back() {
        for scenario in Scenario::ALL {
            let plan = |seed| {
                let (length, ttl) = (Duration::from_secs(30), Duration::from_millis(1500));
                schedule(&Plan::new(scenario, seed, length, ttl).unwrap(), true)
            };
            assert_eq!(plan(7), plan(7));
            assert_ne!(plan(7), plan(8), "{scenario}");
            assert!(plan(7).len() > 3, "{scenario}");
            assert!(plan(7).windows(2).all(|two| two[0].at <= two[1].at));
            assert_eq!(scenario.name().parse::<Scenario>().unwrap(), scenario);
        }
    }
}
