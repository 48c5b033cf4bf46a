//! The recipes and tables of the documentation, taken from its text.

use std::time::Duration;

use rustix::process::Signal;

use crate::support::{Said, Site, until};

const PAGE: &str = include_str!("../../../docs/lockctl.md");

/// The first fenced block of this language after a heading.
fn block(heading: &str, language: &str) -> String {
    let section = PAGE
        .split_once(&format!("### {heading}\n"))
        .unwrap_or_else(|| panic!("no heading {heading:?}"))
        .1;
    let section = section.split("\n### ").next().expect("a part");
    let block = section
        .split_once(&format!("```{language}\n"))
        .unwrap_or_else(|| panic!("no block of {language}"))
        .1;
    block.split("```").next().expect("a part").to_owned()
}

/// The words after `lockctl`, with this in the place of the command.
fn arguments(line: &str, command: &[String]) -> Vec<String> {
    let after = line.split_once("lockctl ").expect("it runs lockctl").1;
    let (options, _) = after.split_once(" -- ").expect("it runs a command");
    let mut words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
    words.push("--".into());
    words.extend_from_slice(command);
    words
}

fn setting<'a>(unit: &'a str, key: &str) -> &'a str {
    unit.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
        .unwrap_or_else(|| panic!("no {key}"))
}

#[test]
fn cron_on_three_machines_runs_it_once() {
    let crontab = block("Cron on three machines, once", "crontab");
    let line = crontab.lines().last().expect("a line");
    let site = Site::new();
    let report = [
        "sh".into(),
        "-c".into(),
        format!("echo ran >>{}", site.path("ran").display()),
    ];
    let words = arguments(line, &report);
    // Three machines, whose clocks differ.
    let mut machines = Vec::new();
    for _ in 0..3 {
        machines.push(site.start(&words));
        std::thread::sleep(Duration::from_millis(300));
    }
    let mut first = machines.remove(0);
    for machine in machines {
        let said = machine.wait_with_output();
        assert_eq!((said.code(), said.err().as_str()), (0, ""));
    }
    assert_eq!(site.lines("ran"), ["ran"]);
    assert!(
        site.run(["status", "nightly-report"])
            .out()
            .starts_with("held"),
        "it keeps the lock"
    );
    first.signal(Signal::TERM);
    assert_eq!(first.status().code(), Some(0), "the report's own code");
    assert!(
        site.run(["status", "nightly-report"])
            .out()
            .starts_with("free")
    );
}

#[test]
fn what_the_readme_shows_is_understood() {
    let readme = include_str!("../../../README.md");
    let section = readme.split_once("## Any command").expect("there").1;
    let section = section.split("\n## ").next().expect("a part");
    let site = Site::new();
    let shown: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with("lockctl "))
        .collect();
    assert!(shown.len() > 1, "{section}");
    for line in shown {
        let said = site.run(arguments(line, &["/no/such/command".into()]));
        assert_eq!(said.code(), 127, "{line}: {}", said.err());
    }
}

#[test]
fn a_singleton_worker_under_systemd() {
    let unit = block("A singleton worker under systemd", "ini");
    let line = setting(&unit, "ExecStart");
    assert_eq!(setting(&unit, "KillMode"), "mixed");
    let good: Vec<i32> = setting(&unit, "SuccessExitStatus")
        .split(' ')
        .map(|code| code.parse().expect("a number"))
        .collect();
    let site = Site::new();
    let words = arguments(line, &site.fixture("stamps", "stamps"));
    let log = |file: &str| site.start_logged(&words, file);
    let mut leader = log("leader");
    until("one works", || site.lines("stamps").len() > 3);
    let mut standby = log("standby");
    until("the other stands by", || {
        site.lines("standby")
            .iter()
            .any(|line| line.contains("standing by"))
    });
    // What `systemctl stop` does with KillMode=mixed.
    leader.signal(Signal::TERM);
    assert!(good.contains(&leader.status().code().expect("a code")));
    let taken = || {
        site.lines("standby")
            .iter()
            .any(|line| line.contains("leading, with token"))
    };
    until("the other works", taken);
    let mut third = log("third");
    until("the third stands by", || {
        site.lines("third")
            .iter()
            .any(|line| line.contains("standing by"))
    });
    third.signal(Signal::TERM);
    assert!(good.contains(&third.status().code().expect("a code")));
    standby.signal(Signal::TERM);
    assert!(good.contains(&standby.status().code().expect("a code")));
    // The two times of the unit fit together.
    let stop = setting(&unit, "TimeoutStopSec").trim_end_matches('s');
    let drain = line.split_once("--drain ").expect("given").1;
    let drain = drain.split('s').next().expect("a number");
    let number = |text: &str| text.parse::<u64>().expect("seconds");
    assert!(number(stop) > number(drain) + 2);
}

#[test]
fn the_page_has_the_table_of_exit_codes() {
    let site = Site::new();
    let help = site.run(["exec", "--help"]).out();
    // Help is wrapped to the width of a terminal.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let table = words(help.split_once("Exit codes:\n").expect("the table").1);
    let section = PAGE.split_once("## Exit codes").expect("the section").1;
    let section = section.split("\n## ").next().expect("a part");
    let rows: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| code"))
        .map(|line| words(&line.replace('|', " ")))
        .collect();
    assert_eq!(rows.join(" "), table, "help and page say the same");
}

#[test]
fn the_page_names_every_event() {
    let sources = [
        include_str!("../../src/exec.rs"),
        include_str!("../../src/run.rs"),
        include_str!("../../src/events.rs"),
        include_str!("../../src/store.rs"),
    ];
    let section = PAGE
        .split_once("Events of `exec` and `run`:")
        .expect("there")
        .1;
    let section = section.split_once("\n\n").expect("an end").0;
    let mut seen = 0;
    for source in sources {
        for call in source.split("report.event(").skip(1) {
            let Some(event) = call.split('"').nth(1) else {
                continue;
            };
            // One call takes its word from a variable.
            if event.contains(' ') || event == "token" || event == "missed" {
                continue;
            }
            assert!(
                section.contains(&format!("`{event}`")),
                "{event} is missing on the page"
            );
            seen += 1;
        }
    }
    assert!(seen > 12, "{seen}");
}
