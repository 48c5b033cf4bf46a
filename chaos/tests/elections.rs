//! Every scenario on the stores of this machine, and every planted fault, for a few seconds each. Long runs are made
//! by hand: `cargo run -p chaos -- --help`.

use std::io::Write as _;
use std::process::{Command, Output};
use std::sync::Mutex;

/// Several runs at once: each is idle for most of its time.
const LANES: usize = 4;

fn seed() -> String {
    std::env::var("LOCK_TEST_SEED").unwrap_or_else(|_| "1".to_owned())
}

/// A fault may need several tries to show.
fn seconds(mutants: bool) -> &'static str {
    if std::env::var("LOCK_TEST_TIER").is_ok_and(|tier| tier == "full") {
        "60"
    } else if mutants {
        "13"
    } else {
        "10"
    }
}

fn chaos(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chaos"));
    command.args(words).args(["--seed", &seed()]);
    let mutants = words.contains(&"--mutants");
    command.args(["--seconds", seconds(mutants)]);
    command.args(["--ttl-ms", if mutants { "1500" } else { "2000" }]);
    command.output().expect("the program starts")
}

/// Runs all of them, some at once. Gives what failed, and the runs in which nothing was wrong but that somebody was
/// late (I6, I7).
fn each(runs: Vec<Vec<&str>>) -> (Vec<String>, Vec<Vec<&str>>) {
    let (waiting, failed) = (Mutex::new(runs), Mutex::new(Vec::new()));
    let late = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                loop {
                    let Some(words) = waiting.lock().expect("no panic").pop() else {
                        return;
                    };
                    let output = chaos(&words);
                    let said = String::from_utf8_lossy(&output.stdout);
                    let errors = String::from_utf8_lossy(&output.stderr);
                    tell(said.lines().filter(|line| line.starts_with("USED ")));
                    match output.status.code() {
                        Some(0) => {}
                        Some(3) if std::env::var_os("LOCK_TEST_REQUIRE").is_none() => {
                            tell([format!("SKIPPED {}", errors.trim()).as_str()]);
                        }
                        Some(1) if is_only_late(&said) => {
                            late.lock().expect("no panic").push(words);
                        }
                        _ => failed.lock().expect("no panic").push(format!(
                            "chaos {} --seed {} ended with {}:\n{said}{errors}",
                            words.join(" "),
                            seed(),
                            output.status
                        )),
                    }
                }
            });
        }
    });
    let inner = (failed.into_inner(), late.into_inner());
    (inner.0.expect("no panic"), inner.1.expect("no panic"))
}

fn is_only_late(said: &str) -> bool {
    let broken = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("BROKEN"));
    let mut names = broken.map(str::trim_start).peekable();
    names.peek().is_some() && names.all(|name| name.starts_with("I6") || name.starts_with("I7"))
}

/// The names that there are.
fn list(of: &[&str]) -> String {
    let output = chaos(&[of, &["--list"]].concat());
    let names = String::from_utf8(output.stdout).expect("text");
    assert!(names.lines().count() >= 5, "{names:?}");
    names
}

/// Past the capture of the test runner, for `scripts/test`.
fn tell<'l>(lines: impl IntoIterator<Item = &'l str>) {
    let mut out = std::io::stdout().lock();
    for line in lines {
        writeln!(out, "\n{line}").expect("standard output is open");
    }
}

fn every_promise_holds_on(store: &str) {
    let listed = list(&["--store", store]);
    let run = |scenario| vec!["--store", store, "--scenario", scenario];
    all_hold(listed.lines().map(run).collect());
}

fn all_hold(runs: Vec<Vec<&str>>) {
    let (failed, late) = each(runs);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    // Beside others a machine may be too busy to be in time. Alone it must be; and it is told.
    for words in late {
        tell([format!("again, alone: chaos {}", words.join(" ")).as_str()]);
        let output = chaos(&words);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "chaos {}:\n{said}",
            words.join(" ")
        );
    }
}

#[test]
fn every_promise_holds_on_sqlite() {
    every_promise_holds_on("sqlite");
}

#[test]
fn every_promise_holds_on_postgres() {
    every_promise_holds_on("postgres");
}

#[test]
fn every_promise_holds_on_mariadb() {
    every_promise_holds_on("mariadb");
}

/// The children of `lockctl run`. The program is built by a run of all tests; alone, `cargo build -p lock-cli` first.
#[test]
fn children_of_lockctl_never_overlap() {
    let cast = |scenario| vec!["--cast", "lockctl", "--scenario", scenario];
    let scenarios = ["rolling-restarts", "kill-leader", "pause-leader", "starved"];
    all_hold(scenarios.map(cast).into());
}

#[test]
fn every_planted_fault_is_caught() {
    let listed = list(&["--mutants"]);
    let run = |name| vec!["--mutants", "--mutant", name];
    let (failed, _) = each(listed.lines().map(run).collect());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
