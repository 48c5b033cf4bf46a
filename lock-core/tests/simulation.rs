//! Many machines, one name, one store, and everything that can go wrong, from one seed per run.
//!
//! `LOCK_TEST_SEED=n` runs one seed and prints its trace; `LOCK_TEST_TIER=full` runs more of them.

mod sim;

use std::sync::atomic::{AtomicU64, Ordering};

use sim::{Mutation, Report, run};

const CI: u64 = 12_000;
const FULL: u64 = 400_000;

fn add(sum: &mut Report, one: &Report) {
    sum.gained += one.gained;
    sum.renewed += one.renewed;
    sum.expired += one.expired;
    sum.gone += one.gone;
    sum.stopped += one.stopped;
    sum.aborted += one.aborted;
    sum.released += one.released;
    sum.overlaps_excused += one.overlaps_excused;
    sum.refused += one.refused;
    sum.crashes += one.crashes;
    sum.pauses += one.pauses;
    sum.steps += one.steps;
}

#[test]
fn every_seed_is_safe_and_live() {
    if let Ok(seed) = std::env::var("LOCK_TEST_SEED") {
        let seed = seed.parse().expect("LOCK_TEST_SEED is a number");
        match run(seed, Mutation::None, true) {
            Ok(report) => report.trace.iter().for_each(|line| println!("{line}")),
            Err(why) => panic!("{why}"),
        }
        return;
    }
    let seeds = match std::env::var("LOCK_TEST_TIER").as_deref() {
        Ok("full") => FULL,
        _ => CI,
    };
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let work = || {
            let mut sum = Report::default();
            let mut broken = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds || broken.len() >= 5 {
                    return (sum, broken);
                }
                match run(seed, Mutation::None, false) {
                    Ok(report) => add(&mut sum, &report),
                    Err(why) => broken.push(why),
                }
            }
        };
        let mut handles = Vec::new();
        handles.resize_with(threads, || scope.spawn(work));
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| handle.join().expect("no panic");
        handles.into_iter().map(join).collect()
    });
    let mut sum = Report::default();
    let mut broken = Vec::new();
    for (part, why) in results {
        add(&mut sum, &part);
        broken.extend(why);
    }
    println!("{seeds} seeds: {sum:?}");
    assert!(
        broken.is_empty(),
        "LOCK_TEST_SEED=n shows one:\n{}",
        broken.join("\n")
    );
    // A simulation in which little happens proves little.
    for (what, count) in [
        ("gained", sum.gained),
        ("renewed", sum.renewed),
        ("expired", sum.expired),
        ("gone", sum.gone),
        ("stopped", sum.stopped),
        ("aborted", sum.aborted),
        ("released", sum.released),
        ("overlaps excused", sum.overlaps_excused),
        ("refused", sum.refused),
    ] {
        assert!(
            count > seeds / 100,
            "only {count} times {what} in {seeds} seeds"
        );
    }
}

#[test]
fn one_seed_twice_is_one_run() {
    for seed in 0..50 {
        let first = run(seed, Mutation::None, true);
        assert_eq!(first, run(seed, Mutation::None, true), "seed {seed}");
    }
}
