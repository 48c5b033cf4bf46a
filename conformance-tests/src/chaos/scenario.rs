//! The kinds of runs.

use std::fmt;
use std::str::FromStr;

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
    /// The server is killed or ended in good order, and started again. Needs a server of our own.
    RestartStore,
    /// The links of candidates are cut, reset and refused in quick succession.
    FlappingNetwork,
    /// Everybody's requests and answers are late, also later than the request timeout.
    SlowStore,
    /// Answers to the leader, or to everybody, get lost after the store has acted.
    LostAnswers,
    /// Requests of the leader, or of everybody, get lost.
    LostRequests,
    /// The wall clocks of candidates step by up to hours. Needs a server: it must not be the store's clock.
    CandidateClocks,
    /// The wall clock of the store steps: forward by less than the margin, back, and forward by more than a ttl.
    /// Needs a server of our own.
    StoreClock,
    /// The leader gets little of the processor, as under a quota.
    Starved,
    /// A candidate can open no file and no connection, and loses those it has.
    NoDescriptors,
    /// An operator ends the lease of the leader.
    Revoked,
    /// All of it, also two faults at a time.
    Mixed,
}

impl Scenario {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::RollingRestarts,
        Self::KillLeader,
        Self::PartitionLeader,
        Self::PauseLeader,
        Self::PauseStore,
        Self::RestartStore,
        Self::FlappingNetwork,
        Self::SlowStore,
        Self::LostAnswers,
        Self::LostRequests,
        Self::CandidateClocks,
        Self::StoreClock,
        Self::Starved,
        Self::NoDescriptors,
        Self::Revoked,
        Self::Mixed,
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
            Self::RestartStore => "restart-store",
            Self::FlappingNetwork => "flapping-network",
            Self::SlowStore => "slow-store",
            Self::LostAnswers => "lost-answers",
            Self::LostRequests => "lost-requests",
            Self::CandidateClocks => "candidate-clocks",
            Self::StoreClock => "store-clock",
            Self::Starved => "starved",
            Self::NoDescriptors => "no-descriptors",
            Self::Revoked => "revoked",
            Self::Mixed => "mixed",
        }
    }

    /// Whether it needs a server that is ours, and not only a way to a store.
    #[must_use]
    pub const fn needs_server(self) -> bool {
        matches!(
            self,
            Self::RestartStore | Self::CandidateClocks | Self::StoreClock
        )
    }

    /// Whether it disturbs the ways of candidates to the store.
    #[must_use]
    pub const fn disturbs_links(self) -> bool {
        matches!(
            self,
            Self::PartitionLeader
                | Self::PauseStore
                | Self::FlappingNetwork
                | Self::SlowStore
                | Self::LostAnswers
                | Self::LostRequests
                | Self::Mixed
        )
    }

    /// Whether the server must see a wall clock that can be stepped.
    #[must_use]
    pub const fn steps_the_store(self) -> bool {
        matches!(self, Self::StoreClock)
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
