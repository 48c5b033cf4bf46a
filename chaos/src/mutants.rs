//! Programs and stores with one planted fault: what the judge is tried on.

// The same hand-written loop that the cases of the suite are tried on.
#[path = "../../conformance-tests/tests/mutants/runner.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "a test program shared with the suite; not every fault of it is planted here"
)]
mod runner;

mod broken_store;

use std::sync::Arc;

use conformance_tests::chaos::{Mutants, Scenario};
use conformance_tests::runner::{Real, Runner};
use conformance_tests::{Answer, Stop};
use lock_core::LockPersistence;

use broken_store::{Broken, Lie};
use runner::{Flaw, Plain};

/// A fault, and where it is to show.
#[derive(Debug)]
pub(crate) struct Mutant {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) scenario: Scenario,
    /// The invariant that must catch it; nothing may be broken where there is none.
    pub(crate) caught_by: Option<&'static str>,
    plant: Plant,
}

#[derive(Clone, Copy, Debug)]
enum Plant {
    Loop(Flaw),
    Store(Lie),
}

const fn mutant(
    name: &'static str,
    what: &'static str,
    scenario: Scenario,
    caught_by: &'static str,
    plant: Plant,
) -> Mutant {
    Mutant {
        name,
        what,
        scenario,
        caught_by: Some(caught_by),
        plant,
    }
}

/// Every fault.
pub(crate) const LIST: &[Mutant] = &[
    Mutant {
        name: "none",
        what: "none: the same hand-written loop without a fault",
        scenario: Scenario::PartitionLeader,
        caught_by: None,
        plant: Plant::Loop(Flaw::None),
    },
    mutant(
        "deadline-from-answer",
        "the deadline counts from the answer",
        Scenario::PartitionLeader,
        "I1 exclusion",
        Plant::Loop(Flaw::DeadlineFromTheAnswer),
    ),
    mutant(
        "loss-needs-answer",
        "only an answer of the store ends a term, no error and no deadline",
        Scenario::PartitionLeader,
        "I4 timely loss",
        Plant::Loop(Flaw::LossNeedsAnAnswer),
    ),
    mutant(
        "renewer-dies",
        "the renewer dies of an error and the flag stays on",
        Scenario::PartitionLeader,
        "I4 timely loss",
        Plant::Loop(Flaw::RenewerDies),
    ),
    mutant(
        "renewal-hangs",
        "a renewal that hangs keeps the leader from looking at the time",
        Scenario::PauseStore,
        "I4 timely loss",
        Plant::Loop(Flaw::RenewalHangsWithTheTimer),
    ),
    mutant(
        "released-before-drain",
        "the lease is released before the work has stopped",
        Scenario::RollingRestarts,
        "I5 work overlap",
        Plant::Loop(Flaw::ReleasedBeforeTheWorkStops),
    ),
    mutant(
        "work-goes-on",
        "the work is not stopped on loss and runs twice after the next election",
        Scenario::PauseStore,
        "I5 work overlap",
        Plant::Loop(Flaw::WorkGoesOnAfterTheTerm),
    ),
    mutant(
        "no-store-no-election",
        "the work runs without an election when the store cannot be used",
        Scenario::PauseStore,
        "I3 stale writes",
        Plant::Loop(Flaw::NoStoreRunsWithoutElection),
    ),
    mutant(
        "first-failure-for-ever",
        "after a first failure there is no leader until a restart",
        Scenario::PauseStore,
        "I6 liveness",
        Plant::Loop(Flaw::FirstFailureIsForEver),
    ),
    mutant(
        "no-release-at-shutdown",
        "a shutdown releases nothing",
        Scenario::RollingRestarts,
        "I7 nothing left behind",
        Plant::Loop(Flaw::NoReleaseAtShutdown),
    ),
    mutant(
        "shared-nonce",
        "an identity that all share makes everybody leader",
        Scenario::KillLeader,
        "I2 token order",
        Plant::Loop(Flaw::SharedIdentity),
    ),
    mutant(
        "token-reset",
        "the tokens of each process start again",
        Scenario::RollingRestarts,
        "I2 token order",
        Plant::Store(Lie::TokensStartAgain),
    ),
    mutant(
        "release-frees-anybody",
        "a release frees whoever holds the name",
        Scenario::PauseLeader,
        "I1 exclusion",
        Plant::Store(Lie::ReleaseFreesAnybody),
    ),
    mutant(
        "renews-what-is-gone",
        "a renewal does not test who owns the entry",
        Scenario::Revoked,
        "I1 exclusion",
        Plant::Store(Lie::RenewsWhatIsGone),
    ),
    mutant(
        "client-clock",
        "a contender decides by its own impatience that a lease has expired",
        Scenario::KillLeader,
        "I1 exclusion",
        Plant::Store(Lie::TakesWhatIsHeld),
    ),
];

/// Makes them.
#[derive(Debug)]
pub(crate) struct All;

impl Mutants for All {
    fn make(
        &self,
        name: &str,
        store: Arc<dyn LockPersistence>,
    ) -> Answer<(Arc<dyn Runner>, Arc<dyn LockPersistence>)> {
        let found = LIST.iter().find(|mutant| mutant.name == name);
        let Some(mutant) = found else {
            let names: Vec<&str> = LIST.iter().map(|mutant| mutant.name).collect();
            let names = names.join(", ");
            return Err(Stop::failed(format!(
                "there is no mutant {name:?}; there are {names}"
            )));
        };
        Ok(match mutant.plant {
            Plant::Loop(flaw) => (Arc::new(Plain(flaw)), store),
            Plant::Store(lie) => (Arc::new(Real), Arc::new(Broken::new(store, lie))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list in the README of the suite is this one.
    #[test]
    fn the_readme_lists_every_mutant() {
        let mut rows =
            String::from("| fault in the program | scenario | caught by |\n|---|---|---|\n");
        for mutant in LIST {
            if let Some(invariant) = mutant.caught_by {
                rows.push_str(&format!(
                    "| {} | `{}` | {invariant} |\n",
                    mutant.what, mutant.scenario
                ));
            }
        }
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../conformance-tests/README.md"
        );
        let text = std::fs::read_to_string(path).expect("the README of the suite");
        let (begin, end) = (
            "<!-- system mutants: made by chaos/src/mutants.rs -->\n",
            "<!-- end of system mutants -->",
        );
        let (head, rest) = text.split_once(begin).expect("the mark at the beginning");
        let (list, tail) = rest.split_once(end).expect("the mark at the end");
        if std::env::var_os("LOCK_TEST_REWRITE").is_some() {
            std::fs::write(path, format!("{head}{begin}{rows}{end}{tail}")).expect("written");
        } else {
            assert_eq!(list, rows, "LOCK_TEST_REWRITE=1 writes the list anew");
        }
    }
}
