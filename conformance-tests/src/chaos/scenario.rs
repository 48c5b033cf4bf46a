//! What goes wrong, when and for how long: a pure function of scenario, seed and length.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lock_core::Timing;
use serde::{Deserialize, Serialize};

use crate::harness::Stop;

/// A kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scenario {
    /// One candidate after another is ended in good order and started again.
    RollingRestarts,
    /// The leader is killed.
    KillLeader,
    /// The leader alone cannot reach the store; its answers were slow before.
    PartitionLeader,
    /// The leader is stopped by a signal, also for longer than the ttl.
    PauseLeader,
    /// The store is stopped, also for longer than the ttl.
    PauseStore,
}

impl Scenario {
    /// Every kind.
    pub const ALL: [Self; 5] = [
        Self::RollingRestarts,
        Self::KillLeader,
        Self::PartitionLeader,
        Self::PauseLeader,
        Self::PauseStore,
    ];

    /// The word for it, as the command line takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RollingRestarts => "rolling-restarts",
            Self::KillLeader => "kill-leader",
            Self::PartitionLeader => "partition-leader",
            Self::PauseLeader => "pause-leader",
            Self::PauseStore => "pause-store",
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = Stop;

    fn from_str(text: &str) -> Result<Self, Stop> {
        let found = Self::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            Stop::failed(format!("there is no scenario {text:?}; there are {all}"))
        })
    }
}

/// Whom a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Whoever leads when it begins.
    Leader,
    Candidate(u32),
    /// The store, and so everybody.
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
    /// Answers take this much longer.
    SlowAnswers(Duration),
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::SlowAnswers(_) => "slow answers",
        }
    }

    /// Whether a candidate that suffers it may take longer to lead.
    pub(super) fn disturbs(self, timing: &Timing) -> bool {
        match self {
            Self::SlowAnswers(by) => by * 4 >= timing.request_timeout(),
            _ => true,
        }
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
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) const fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// A span from `low` to `high` thousandths of `unit`.
    fn share(&mut self, unit: Duration, low: u64, high: u64) -> Duration {
        let thousandths = low + self.below(high - low);
        let nanos = unit.as_nanos() * u128::from(thousandths) / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The faults of a run, by their instants. The last `2 × ttl` are without one, so that the run ends healed.
pub(super) fn schedule(
    scenario: Scenario,
    seed: u64,
    length: Duration,
    candidates: u32,
    timing: &Timing,
) -> Vec<Fault> {
    let mut dice = Dice::new(seed ^ (scenario as u64).wrapping_mul(0x5851_f42d_4c95_7f2d));
    let ttl = timing.ttl();
    let end = length.saturating_sub(ttl * 2);
    let mut faults = Vec::new();
    // The first leader gets time to settle.
    let mut at = dice.share(ttl, 700, 1000);
    let mut turn = 0_u32;
    while at < end {
        // Mostly longer than a lease.
        let (low, high) = if turn % 3 == 2 {
            (200, 900)
        } else {
            (1200, 2200)
        };
        let mut add = |at, lasts, kind, on| {
            faults.push(Fault {
                at,
                lasts,
                kind,
                on,
            });
            at + lasts
        };
        let over = match scenario {
            Scenario::RollingRestarts => {
                let on = Target::Candidate(turn % candidates);
                add(at, dice.share(ttl, 50, 400), Kind::Restart, on)
            }
            Scenario::KillLeader => add(at, dice.share(ttl, 50, 1500), Kind::Kill, Target::Leader),
            Scenario::PartitionLeader => {
                // The link gets slow before it is cut: a deadline that counts from the answer is too late then.
                let by = dice.share(timing.request_timeout(), 700, 950);
                let slow = dice.share(ttl, 400, 600);
                let cut = add(at, slow, Kind::SlowAnswers(by), Target::Leader);
                // By turns shorter and longer than a lease.
                let (low, high) = if turn.is_multiple_of(2) {
                    (1200, 2000)
                } else {
                    (300, 900)
                };
                add(
                    cut,
                    dice.share(ttl, low, high),
                    Kind::Partition,
                    Target::Leader,
                )
            }
            Scenario::PauseLeader => {
                add(at, dice.share(ttl, low, high), Kind::Pause, Target::Leader)
            }
            Scenario::PauseStore => add(at, dice.share(ttl, low, high), Kind::Pause, Target::Store),
        };
        turn += 1;
        let pause = match scenario {
            Scenario::RollingRestarts => dice.share(ttl, 200, 500),
            _ => dice.share(ttl, 500, 1500),
        };
        at = over + pause;
    }
    faults.retain(|fault| fault.at + fault.lasts <= end + ttl / 2);
    faults
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_schedule_and_each_name_reads_back() {
        let timing = Timing::for_ttl(Duration::from_millis(1500)).unwrap();
        for scenario in Scenario::ALL {
            let plan = |seed| schedule(scenario, seed, Duration::from_secs(30), 3, &timing);
            assert_eq!(plan(7), plan(7));
            assert_ne!(plan(7), plan(8), "{scenario}");
            assert!(plan(7).len() > 3, "{scenario}");
            assert!(plan(7).windows(2).all(|two| two[0].at <= two[1].at));
            assert_eq!(scenario.name().parse::<Scenario>().unwrap(), scenario);
        }
    }
}
