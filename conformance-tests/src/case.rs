//! The table of cases and the run of one of them.

use std::fmt;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use lock_core::Nonce;

use crate::catalogue::Catalogue;
use crate::cx::Cx;
use crate::harness::{Answer, Harness, Stop};
use crate::runner::{Real, Runner};

/// How much time a round may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Short rounds, for every change.
    Ci,
    /// Long rounds; `LOCK_TEST_TIER=full`.
    Full,
}

impl Tier {
    /// The tier of this run, from `LOCK_TEST_TIER`.
    ///
    /// # Panics
    /// When the variable is neither `ci` nor `full`.
    #[must_use]
    pub fn of_this_run() -> Self {
        match std::env::var("LOCK_TEST_TIER").as_deref() {
            Err(_) | Ok("" | "ci") => Self::Ci,
            Ok("full") => Self::Full,
            Ok(other) => panic!("LOCK_TEST_TIER is {other:?}; set it to ci or full"),
        }
    }
}

type Run = fn(Cx) -> Pin<Box<dyn Future<Output = Answer<()>> + Send>>;

/// One case.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// `section::name`, the path of its test.
    pub name: &'static str,
    /// The field cases that it covers, wholly or in part; empty for a rule of the trait alone.
    pub numbers: &'static [u16],
    /// The least tier in which it runs.
    pub tier: Tier,
    /// What it proves, in one line.
    pub proves: &'static str,
    /// The case itself.
    run: Run,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("numbers", &self.numbers)
            .field("tier", &self.tier)
            .finish_non_exhaustive()
    }
}

impl Case {
    pub(crate) const fn new(
        name: &'static str,
        numbers: &'static [u16],
        tier: Tier,
        proves: &'static str,
        run: Run,
    ) -> Self {
        Self {
            name,
            numbers,
            tier,
            proves,
            run,
        }
    }

    /// The case with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        crate::CASES.iter().find(|case| case.name == name)
    }
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It ran to its end.
    Passed,
    /// It does not apply to this store, for a reason that the list has too.
    NotApplicable(String),
    /// It belongs to a longer tier.
    Skipped,
    /// The store is wrong, or the list of what applies is.
    Failed(String),
}

/// Runs one case on a fresh namespace and says what came of it. For tests of the suite itself;
/// [`suite!`](crate::suite) makes a `#[test]` of each case.
#[must_use]
pub fn judge<H: Harness>(case: &'static Case, test_path: &'static str) -> Verdict {
    judge_runner::<H>(case, test_path, Arc::new(Real))
}

/// Runs one case with candidates of another kind than the elector of `lock-core`.
#[must_use]
pub fn judge_runner<H: Harness>(
    case: &'static Case,
    test_path: &'static str,
    runner: Arc<dyn Runner>,
) -> Verdict {
    if case.tier > Tier::of_this_run() {
        return Verdict::Skipped;
    }
    let seed = seed();
    // Shown by the test runner when the case fails.
    println!("case {}, seed {seed} (LOCK_TEST_SEED)", case.name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return Verdict::Failed(format!("no runtime: {error}")),
    };
    let started = Instant::now();
    let verdict = runtime.block_on(async {
        let harness = match H::new().await {
            Ok(harness) => harness,
            // There is no such server here; whoever looked for it has told, and judged whether that may be.
            Err(Stop::NotApplicable(reason)) => return Verdict::NotApplicable(reason),
            Err(stop) => return Verdict::Failed(format!("the harness could not start: {stop}")),
        };
        let backend = harness.backend();
        let exempt = harness
            .exemptions()
            .iter()
            .find(|(name, _)| *name == case.name)
            .map(|(_, reason)| (*reason).to_owned())
            .or_else(|| Catalogue::shared().exemption(case.name, backend));
        let cx = Cx::new(Arc::new(harness), seed, test_path, runner);
        let run = std::panic::AssertUnwindSafe((case.run)(cx)).catch_unwind();
        match tokio::time::timeout(LIMIT, run).await {
            Err(_) => Verdict::Failed(format!("it did not end within {LIMIT:?}")),
            Ok(Err(panic)) => Verdict::Failed(text_of(panic.as_ref())),
            Ok(Ok(Err(Stop::Failed(reason)))) => Verdict::Failed(reason),
            Ok(Ok(Err(Stop::NotApplicable(reason)))) => match exempt {
                Some(listed) => Verdict::NotApplicable(listed),
                None => Verdict::Failed(format!(
                    "it stopped with \"not applicable: {reason}\", but the list says that it runs on \
                     {backend}; list it (Harness::exemptions or cases.toml) or mend the store"
                )),
            },
            Ok(Ok(Ok(()))) => match exempt {
                None => Verdict::Passed,
                Some(reason) => Verdict::Failed(format!(
                    "it passed, but the list says that it does not apply to {backend} ({reason}); \
                     take it off the list"
                )),
            },
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    note_time(started.elapsed(), case.name);
    verdict
}

/// The longest that a case may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The body of each test that [`suite!`](crate::suite) makes.
///
/// # Panics
/// When the case fails.
#[doc(hidden)]
pub fn run<H: Harness>(name: &str, test_path: &'static str) {
    let Some(case) = Case::named(name) else {
        panic!("there is no case {name:?}");
    };
    match judge::<H>(case, test_path) {
        Verdict::Passed => {}
        Verdict::NotApplicable(reason) => println!("not applicable: {reason}"),
        Verdict::Skipped => println!("belongs to LOCK_TEST_TIER=full"),
        Verdict::Failed(reason) => panic!("{name}: {reason}\n  it proves: {}", case.proves),
    }
}

/// Where several threads write their times, one line each.
fn note_time(took: Duration, name: &str) {
    let Some(path) = std::env::var_os("LOCK_TEST_TIMES") else {
        return;
    };
    let line = format!("{:.3}\tcase {name}\n", took.as_secs_f64());
    let written = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        println!("the time could not be noted in LOCK_TEST_TIMES: {error}");
    }
}

pub(crate) fn seed() -> u64 {
    match std::env::var("LOCK_TEST_SEED") {
        Err(_) => u64::try_from(Nonce::random().as_u128() >> 64).unwrap_or(0),
        Ok(text) => match text.parse() {
            Ok(seed) => seed,
            Err(_) => panic!("LOCK_TEST_SEED is {text:?}; set it to a whole number"),
        },
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}
