//! The demonstration, in a test program of its own: what it measures must not suffer from other tests.

#![cfg(unix)]

#[path = "../cli/support.rs"]
#[allow(dead_code, reason = "what the other test program needs")]
mod support;

use std::time::{Duration, Instant};

use rustix::process::Signal;

use support::{Said, Site, until, within};

/// How the command lines of the demonstration's work begin.
const WORKER: &str = concat!(env!("CARGO_BIN_EXE_lockctl"), " __lockctl-demo-worker");

#[test]
fn the_demonstration_shows_what_it_promises() {
    let site = Site::new();
    let began = Instant::now();
    let said = site.run(["demo"]);
    let took = began.elapsed();
    assert_eq!(said.code(), 0, "{}\n{}", said.out(), said.err());
    assert!(took < Duration::from_secs(25), "about 20 s, not {took:?}");
    let last = said.out().lines().last().expect("a summary").to_owned();
    println!("{}", said.out());
    assert!(
        last.contains("crash takeover") && last.contains("clean takeover"),
        "{last}"
    );
    assert!(site.processes().is_empty(), "nothing is left");
}

#[test]
fn the_candidates_die_with_the_demonstration() {
    let site = Site::new();
    let mut demo = site.start(["demo"]);
    until("work is done", || !site.running(WORKER).is_empty());
    demo.signal(Signal::KILL);
    within(Duration::from_secs(1), "everything is gone", || {
        site.processes().is_empty().then_some(())
    });
}

#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    let site = Site::new();
    std::fs::create_dir(site.path("tmp")).expect("a folder");
    let mut command = site.lockctl(["demo"]);
    command.env("TMPDIR", site.path("tmp"));
    let mut demo = support::Running::start(&mut command);
    until("work is done", || !site.running(WORKER).is_empty());
    demo.signal(Signal::INT);
    let said = demo.wait_with_output();
    assert_eq!(said.code(), 130, "{}", said.err());
    assert!(
        site.path("tmp")
            .read_dir()
            .expect("readable")
            .next()
            .is_none()
    );
    within(Duration::from_secs(1), "everything is gone", || {
        site.processes().is_empty().then_some(())
    });
}
