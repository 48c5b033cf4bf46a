//! The command lives no longer than it may.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{
    MARK, PATIENCE, Running, Said, Site, boot_ns, copy_program, kill, rounds, until, within,
};

fn exec(site: &Site, options: &[&str], fixture: &str) -> Vec<String> {
    // A store on a busy disk may let the first request time out.
    let mut arguments: Vec<String> = ["exec", "job", "--wait"]
        .iter()
        .chain(options)
        .chain(&["--"])
        .map(|s| (*s).to_owned())
        .collect();
    arguments.extend(site.fixture(fixture, "stamps"));
    arguments
}

/// Token and time of each stamp.
fn stamps(site: &Site) -> Vec<(u64, u64)> {
    site.lines("stamps")
        .iter()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })
        .collect()
}

fn wait_for_stamps(site: &Site) {
    until("the command works", || stamps(site).len() > 3);
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_after_the_drain() {
    let site = Site::new();
    let options = ["--ttl", "5s", "--drain", "500ms"];
    let mut wrapper = site.start(exec(&site, &options, "stubborn-stamps"));
    wait_for_stamps(&site);
    let told = boot_ns();
    wrapper.signal(Signal::TERM);
    let said = wrapper.wait_with_output();
    assert_eq!(said.code(), 137, "{}", said.err());
    let last = stamps(&site).last().expect("stamps").1;
    let outlived = Duration::from_nanos(last.saturating_sub(told));
    assert!(
        outlived > Duration::from_millis(200),
        "it had time: {outlived:?}"
    );
    assert!(
        outlived < Duration::from_millis(1500),
        "but no more: {outlived:?}"
    );
    assert!(site.lines("stamps").iter().any(|l| l.ends_with("told")));
}

#[test]
fn the_lease_is_released_only_after_the_command_has_ended() {
    let site = Site::new();
    let mut wrapper = site.start(exec(&site, &["--ttl", "5s"], "tidy-stamps"));
    wait_for_stamps(&site);
    let waiter = site.start(["exec", "job", "--", "sh", "-c", "cat /proc/uptime"]);
    wrapper.signal(Signal::TERM);
    let said = wrapper.wait_with_output();
    assert_eq!((said.code(), said.err().as_str()), (0, ""));
    let second = waiter.wait_with_output();
    let uptime: f64 = second
        .out()
        .split(' ')
        .next()
        .expect("a word")
        .parse()
        .expect("a number");
    let last = stamps(&site).last().expect("stamps").1;
    // The file shows hundredths of a second.
    assert!(uptime + 0.01 >= last as f64 / 1e9, "{uptime} {last}");
    let told = site
        .lines("stamps")
        .iter()
        .position(|l| l.ends_with("told"))
        .expect("told");
    assert!(
        stamps(&site).len() > told + 5,
        "it went on after it was told"
    );
}

#[test]
fn the_command_dies_with_a_killed_wrapper_and_so_does_all_it_started() {
    for round in 0..rounds(3, 50) {
        let site = Site::new();
        let script = "setsid sleep 1001 & sh -c 'sleep 1002 & sleep 1003' & sleep 1004";
        let mut wrapper = site.start(["exec", "job", "--", "sh", "-c", script]);
        until("everything runs", || site.running("sleep 100").len() == 4);
        wrapper.signal(Signal::KILL);
        within(
            Duration::from_secs(1),
            &format!("round {round}: all of it is gone"),
            || site.processes().is_empty().then_some(()),
        );
    }
}

#[test]
fn the_command_dies_with_a_wrapper_killed_while_it_starts() {
    // How long a start takes here, on a store that is there.
    let site = Site::new();
    assert_eq!(site.run(["exec", "job", "--", "true"]).code(), 0);
    let began = Instant::now();
    let wrapper = site.start(exec(&site, &[], "stamps"));
    within(PATIENCE, "the command works", || {
        (!stamps(&site).is_empty()).then_some(())
    });
    let start = began.elapsed();
    drop(wrapper);
    until("it is gone", || site.processes().is_empty());

    let mut seen = [0_u32; 2];
    let rounds = rounds(16, 200);
    for round in 0..rounds {
        std::fs::remove_file(site.path("stamps")).unwrap_or_default();
        let mut wrapper = site.start(exec(&site, &["--ttl", "1s"], "stamps"));
        // From before the keeper is started to after the command works.
        let wait = start * round * 3 / 2 / rounds;
        std::thread::sleep(wait);
        wrapper.signal(Signal::KILL);
        let killed = boot_ns();
        let what = format!("killed after {wait:?} of {start:?}: all is gone");
        within(Duration::from_secs(1), &what, || {
            site.processes().is_empty().then_some(())
        });
        seen[usize::from(!stamps(&site).is_empty())] += 1;
        if let Some((_, last)) = stamps(&site).last() {
            assert!(*last < killed + 1_000_000_000);
        }
        // The dead wrapper's lease has to expire, or every later round would only wait for it.
        assert_eq!(site.run(["revoke", "job"]).code(), 0);
    }
    println!(
        "killed before the command worked: {}, after: {}",
        seen[0], seen[1]
    );
    assert!(
        seen[0] > 0 && seen[1] > 0,
        "the kills cover the start: {seen:?}"
    );
}

#[test]
fn the_command_dies_with_a_killed_keeper() {
    for _ in 0..rounds(2, 50) {
        let site = Site::new();
        let script = "setsid sleep 1001 & sleep 1002";
        let wrapper = site.start(["exec", "job", "--", "sh", "-c", script]);
        until("everything runs", || site.running("sleep 100").len() == 2);
        let keeper = site.processes_with("__lockctl-keeper");
        kill(keeper[0], Signal::KILL);
        let said = wrapper.wait_with_output();
        assert_eq!(said.code(), 137, "{}", said.err());
        assert!(site.processes().is_empty(), "{:?}", site.processes());
    }
}

#[test]
fn the_command_dies_when_wrapper_and_keeper_are_killed_at_once() {
    for _ in 0..rounds(2, 50) {
        let site = Site::new();
        let mut wrapper = site.start(exec(&site, &[], "stubborn-stamps"));
        wait_for_stamps(&site);
        let both = [site.processes_with("__lockctl-keeper")[0], wrapper.pid()];
        // Stopped first, so that neither can act on the death of the other.
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in both {
                kill(pid, signal);
            }
        }
        within(
            Duration::from_secs(1),
            "the kernel kills the command",
            || site.processes().is_empty().then_some(()),
        );
    }
}

#[test]
fn a_stopped_wrapper_changes_nothing() {
    for _ in 0..rounds(1, 50) {
        let site = Site::new();
        let mut wrapper = site.start(exec(&site, &["--ttl", "2s"], "stubborn-stamps"));
        wait_for_stamps(&site);
        wrapper.signal(Signal::STOP);
        let stopped = boot_ns();
        // Nobody renews now; the keeper alone ends the command, before the lease can lapse.
        within(Duration::from_secs(3), "the command is killed", || {
            site.fixtures().is_empty().then_some(())
        });
        let last = stamps(&site).last().expect("stamps").1;
        assert!(Duration::from_nanos(last - stopped) < Duration::from_secs(2));
        assert!(
            site.lines("stamps").iter().any(|l| l.ends_with("told")),
            "told before"
        );
        wrapper.signal(Signal::CONT);
        let said = wrapper.wait_with_output();
        assert_eq!(said.code(), 79, "{}", said.err());
    }
}

#[test]
fn a_stopped_keeper_changes_nothing() {
    let site = Site::new();
    let mut wrapper = site.start(exec(
        &site,
        &["--ttl", "2s", "--drain", "400ms"],
        "stubborn-stamps",
    ));
    wait_for_stamps(&site);
    kill(site.processes_with("__lockctl-keeper")[0], Signal::STOP);
    wrapper.signal(Signal::TERM);
    let said = wrapper.wait_with_output();
    assert_eq!(said.code(), 137, "{}", said.err());
    assert!(site.processes().is_empty(), "{:?}", site.processes());
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_release() {
    let site = Site::new();
    let script = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; done' & setsid sleep 1001 & sleep 0.3; exit 4";
    let began = Instant::now();
    let said = site.run([
        "exec", "job", "--wait", "--ttl", "2s", "--", "sh", "-c", script,
    ]);
    assert_eq!(said.code(), 4);
    assert!(
        said.err().contains("not all that it had started"),
        "{}",
        said.err()
    );
    assert!(site.processes().is_empty(), "{:?}", site.processes());
    assert!(
        began.elapsed() > Duration::from_millis(300),
        "it was given time"
    );
}

#[test]
fn the_command_gets_its_term_and_nothing_else_of_ours() {
    let site = Site::new();
    let said = site.run([
        "exec",
        "the job",
        "--owner",
        "me",
        "--",
        "sh",
        "-c",
        "env; ls -l /proc/self/fd",
    ]);
    let out = said.out();
    assert!(out.contains("LOCKCTL_NAME=the job\n"), "{out}");
    assert!(out.contains("LOCKCTL_OWNER=me\n"), "{out}");
    for number in ["LOCKCTL_TOKEN=", "LOCKCTL_DEADLINE="] {
        let value = out
            .lines()
            .find_map(|l| l.strip_prefix(number))
            .expect("there");
        assert!(value.parse::<u64>().is_ok_and(|v| v > 0), "{number}{value}");
    }
    assert!(!out.contains("LOCKCTL_STORE"), "{out}");
    for ours in ["locks.db", "socket:", "timerfd", "eventpoll", "/dev/tty"] {
        assert!(!out.contains(ours), "{ours} was inherited:\n{out}");
    }
}

#[test]
fn standard_input_reaches_the_command() {
    let site = Site::new();
    assert_eq!(site.run(["exec", "job", "--", "cat"]).out(), "");
    for verb in ["exec", "run"] {
        let script = format!("cat >>{}", site.path(verb).display());
        let mut command = site.lockctl([verb, "job", "--", "sh", "-c", &script]);
        let mut wrapper = Running::start(command.stdin(Stdio::piped()));
        wrapper.feed("hi\n");
        until("it has read", || !site.lines(verb).is_empty());
        if verb == "run" {
            // It runs the command again and again; the input is at its end.
            wrapper.signal(Signal::TERM);
        }
        let said = wrapper.wait_with_output();
        assert!([0, 143].contains(&said.code()), "{}", said.err());
        assert_eq!(site.lines(verb), ["hi"], "{}", said.err());
    }
}

#[test]
fn as_process_one_it_leaves_no_zombies_and_ends_on_sigterm() {
    let can = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !can {
        println!("SKIPPED process 1: no right to make a process namespace");
        return;
    }
    let site = Site::new();
    let script = "for i in 1 2 3 4 5; do (sh -c 'sleep 0.05 &' &); done; sleep 0.6; \
                  grep -l '^State:.Z' /proc/[0-9]*/status; echo looked; sleep 1005";
    let mut command = std::process::Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(env!("CARGO_BIN_EXE_lockctl"))
        .args(["exec", "job", "--", "sh", "-c", script])
        .env("LOCKCTL_STORE", site.url())
        .env(MARK, site.mark())
        .stdout(std::fs::File::create(site.path("out")).expect("writable"))
        .stderr(Stdio::piped());
    let unshare = Running::start(&mut command);
    until("it has looked", || {
        site.lines("out").last().is_some_and(|l| l == "looked")
    });
    assert_eq!(site.lines("out"), ["looked"], "no zombie");
    // By its number here; inside it is 1.
    let inner = within(Duration::from_secs(5), "process 1 is found", || {
        site.processes_with("exec job").into_iter().find(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| {
                let line = status.lines().find(|line| line.starts_with("NSpid:"));
                line.and_then(|line| line.split_whitespace().last()) == Some("1")
            })
        })
    });
    kill(inner, Signal::TERM);
    let said = unshare.wait_with_output();
    assert_eq!(said.code(), 143, "{}", said.err());
}

#[test]
fn a_program_file_that_was_replaced_or_removed_does_not_matter() {
    let site = Site::new();
    let copy = site.path("lockctl");
    copy_program(&copy);
    let mut command = std::process::Command::new(&copy);
    command
        .args(["run", "job", "--ttl", "2s", "--", "sh", "-c", "sleep 0.2"])
        .env("LOCKCTL_STORE", site.url())
        .env(MARK, site.mark())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(site.path("log")).expect("writable"));
    let mut runner = Running::start(&mut command);
    let terms = || {
        let log = site.lines("log");
        log.iter()
            .filter(|line| line.contains("exited with code 0"))
            .count()
    };
    until("it has run once", || terms() >= 1);
    std::fs::remove_file(&copy).expect("ours");
    std::fs::write(&copy, "another version").expect("ours");
    let before = terms();
    until("it runs again", || terms() >= before + 2);
    runner.signal(Signal::TERM);
    runner.status();
    let log = site.lines("log");
    assert!(
        !log.iter().any(|line| line.contains("cannot run")),
        "{log:#?}"
    );
}
