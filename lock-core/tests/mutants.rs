//! Planted faults: each must be caught by the simulation, for the reason that it breaks, within a few
//! thousand seeds.
//!
//! The faults are planted around the machine, not in it; see `sim/subject.rs`.

mod sim;

use sim::{Mutation, run};

const SEEDS: u64 = 6_000;

/// What each breaks, in the words of the check that must catch it.
const CAUGHT_BY: [(Mutation, &str); 12] = [
    (Mutation::DeadlineFromAnswer, "while host"),
    (Mutation::DriftIgnored, "while host"),
    (Mutation::MarginIgnored, "while host"),
    (Mutation::StopAtIgnored, "was not told"),
    (Mutation::LostOnlyOnError, "is held after its deadline"),
    (Mutation::LateRenewalRevives, "after its deadline"),
    (Mutation::ClaimBeforeSettled, "is not settled"),
    (Mutation::NonceReused, "was dead"),
    (Mutation::LowerTokenAccepted, "gained"),
    (Mutation::ReleaseWhileWorking, "while the work runs"),
    (Mutation::StaleRenewalForgotten, "is not settled"),
    (Mutation::HintIsGrant, "while host"),
];

#[test]
fn every_mutant_is_caught() {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let survivors = std::sync::Mutex::new(Vec::new());
    let work = || {
        loop {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some((mutation, reason)) = CAUGHT_BY.get(n) else {
                return;
            };
            let caught = |seed| {
                let why = run(seed, *mutation, false).err()?;
                why.contains(reason).then_some(why)
            };
            match (0..SEEDS).find_map(caught) {
                Some(why) => println!("{mutation:?}: {why}"),
                None => survivors.lock().expect("no panic").push(*mutation),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let survivors = survivors.into_inner().expect("no panic");
    assert!(
        survivors.is_empty(),
        "not caught in {SEEDS} seeds: {survivors:?}"
    );
}
