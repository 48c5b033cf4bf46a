//! Every scenario for the store of a [`Harness`], as one test.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Launch, NoMutants, Plan, Report, Scenario, Site, Stage, candidate, run};
use crate::case::Tier;
use crate::harness::{Answer, Harness, Stop};

/// Several runs at once: each is idle for most of its time.
const LANES: usize = 7;

/// What a child process runs.
///
/// # Panics
/// When the candidate cannot go on; the run then tells so.
#[doc(hidden)]
pub fn candidate_of<H: Harness>() {
    let open =
        |locator: String| -> super::Opening { Box::pin(async move { H::open_at(&locator).await }) };
    match candidate(open, &NoMutants) {
        Ok(true) => {}
        Ok(false) => println!("not armed: this test is a part of others"),
        Err(stop) => panic!("the candidate could not go on: {stop}"),
    }
}

/// Every scenario that needs no server of ours; faults of links are made at the calls of the candidates.
///
/// # Panics
/// When an invariant is broken, or a run could not be had.
#[doc(hidden)]
pub fn elections_of<H: Harness>(module: &str) {
    let seed = crate::case::seed();
    println!("LOCK_TEST_SEED={seed}");
    let scenarios = Scenario::ALL.into_iter().filter(|one| !one.needs_server());
    let waiting = Mutex::new(scenarios.collect::<Vec<_>>());
    let (wrong, late) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let Some(scenario) = lock(&waiting).pop() else {
                        return;
                    };
                    match play::<H>(module, scenario, seed) {
                        Ok(report) if report.violations().next().is_none() => {}
                        Ok(report) if is_only_late(&report) => lock(&late).push(scenario),
                        Ok(report) => lock(&wrong).push(report.to_string()),
                        Err(stop) => lock(&wrong).push(format!("{scenario}: {stop}")),
                    }
                }
            });
        }
    });
    // Beside others a machine may be too busy to be in time. Alone it must be.
    for scenario in lock(&late).drain(..) {
        println!("again, alone: {scenario}");
        match play::<H>(module, scenario, seed) {
            Ok(report) if report.violations().next().is_none() => {}
            Ok(report) => lock(&wrong).push(report.to_string()),
            Err(stop) => lock(&wrong).push(format!("{scenario}: {stop}")),
        }
    }
    let wrong = lock(&wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether nothing was wrong but that somebody was late.
fn is_only_late(report: &Report) -> bool {
    let mut names = report.violations().map(|broken| broken.invariant.as_str());
    names.all(|name| name.starts_with("I6") || name.starts_with("I7"))
}

fn play<H: Harness>(module: &str, scenario: Scenario, seed: u64) -> Answer<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Stop::failed)?;
    let harness = runtime.block_on(H::new())?;
    let module = module.split_once("::").map(|(_, rest)| rest);
    let test = module.map_or_else(|| "candidate".to_owned(), |m| format!("{m}::candidate"));
    let words = [test.as_str(), "--exact", "--ignored", "--nocapture"];
    let stage = Stage::new(
        Site::plain(harness.backend(), harness.locator()?),
        Launch::this_program(words)?,
        |locator| Box::pin(async move { H::open_at(&locator).await }),
    );
    let seconds = match Tier::of_this_run() {
        Tier::Ci => 10,
        Tier::Full => 60,
    };
    let ttl = Duration::from_secs(2);
    let plan = Plan::new(scenario, seed, Duration::from_secs(seconds), ttl)?;
    let folder = tempfile::tempdir().map_err(Stop::failed)?;
    let report = run(&stage, &plan, folder.path())?;
    match runtime.block_on(harness.residue()) {
        Ok(0) | Err(Stop::NotApplicable(_)) => Ok(report),
        Ok(left) => Err(Stop::failed(format!("{left} entries are left behind"))),
        Err(stop) => Err(stop),
    }
}
