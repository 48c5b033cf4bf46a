//! The demonstration.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Said, Site, until, within};

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
    until("work is done", || {
        !site
            .running("/proc/self/exe __lockctl-demo-worker")
            .is_empty()
    });
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
    let mut demo = crate::support::Running::start(&mut command);
    until("work is done", || {
        !site
            .running("/proc/self/exe __lockctl-demo-worker")
            .is_empty()
    });
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
