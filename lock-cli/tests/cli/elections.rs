//! `run`, and what looks at it.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Running, Said, Site, kill, until};

fn run(site: &Site, owner: &str, options: &[&str], fixture: &str) -> Running {
    let mut arguments: Vec<String> = ["run", "job", "--owner", owner]
        .iter()
        .chain(options)
        .chain(&["--"])
        .map(|s| (*s).to_owned())
        .collect();
    arguments.extend(site.fixture(fixture, "stamps"));
    site.start(&arguments)
}

/// Checks that no two terms overlap and tokens grow; the tokens in order.
fn terms(site: &Site) -> Vec<u64> {
    let mut terms: Vec<(u64, u64)> = Vec::new();
    let mut last_at = 0;
    for line in site.lines("stamps") {
        let mut words = line.split(' ').filter_map(|w| w.parse::<u64>().ok());
        let (Some(token), Some(at)) = (words.next(), words.next()) else {
            continue;
        };
        match terms.last_mut() {
            Some((latest, _)) if *latest == token => {}
            Some((latest, _)) => {
                assert!(token > *latest, "token {token} after {latest}");
                assert!(at > last_at, "two worked at once");
                terms.push((token, at));
            }
            None => terms.push((token, at)),
        }
        last_at = last_at.max(at);
    }
    terms.into_iter().map(|(token, _)| token).collect()
}

fn status(site: &Site) -> String {
    site.run(["status", "job"]).out()
}

#[test]
fn the_lead_moves_on_a_crash_a_stop_and_a_step_down() {
    let site = Site::new();
    let ttl = ["--ttl", "2s"];
    let mut first = run(&site, "first", &ttl, "stamps");
    until("the first leads", || terms(&site).len() == 1);
    let mut second = run(&site, "second", &ttl, "stamps");
    assert!(
        status(&site).starts_with("held by first (token "),
        "{}",
        status(&site)
    );

    first.signal(Signal::KILL);
    until("the second leads", || terms(&site).len() == 2);
    assert!(
        status(&site).starts_with("held by second"),
        "{}",
        status(&site)
    );

    let third = run(&site, "third", &ttl, "stamps");
    until("the third stands by", || {
        site.processes_with("--owner third").len() == 1
    });
    second.signal(Signal::TERM);
    assert_eq!(second.wait_with_output().code(), 143, "the command's own");
    until("the third leads", || terms(&site).len() == 3);

    let fourth = run(&site, "fourth", &ttl, "stamps");
    let asked = site.run(["step-down", "job", "--for", "1m"]);
    assert!(asked.out().contains("asked"), "{}", asked.out());
    until("the fourth leads", || terms(&site).len() == 4);
    assert!(
        status(&site).starts_with("held by fourth"),
        "{}",
        status(&site)
    );
    for mut candidate in [third, fourth] {
        candidate.signal(Signal::TERM);
        let said = candidate.wait_with_output();
        assert!([0, 143].contains(&said.code()), "{}", said.err());
    }
    assert!(
        status(&site).starts_with("free (last token "),
        "{}",
        status(&site)
    );
    assert_eq!(terms(&site).len(), 4);
}

#[test]
fn a_dead_leader_is_shown_as_expired_and_never_as_held() {
    let site = Site::new();
    let named = site.run(["status", "job"]);
    assert_eq!(
        named.code(),
        76,
        "a named store that is not there may be a wrong name"
    );
    assert!(!site.path("locks.db").exists(), "looking makes nothing");
    let mut leader = run(&site, "gone", &["--ttl", "1s"], "stamps");
    until("it leads", || terms(&site).len() == 1);
    leader.signal(Signal::KILL);
    let killed = Instant::now();
    until("it is expired", || {
        let status = status(&site);
        if status.starts_with("expired (was held by gone") {
            return true;
        }
        assert!(
            status.starts_with("held by gone") && status.contains("expires in"),
            "{status}"
        );
        assert!(
            killed.elapsed() < Duration::from_millis(1500),
            "still shown as held: {status}"
        );
        false
    });
    let json = site.run(["status", "job", "--format", "json"]).out();
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&value["state"], &value["owner"]),
        (&"expired".into(), &"gone".into())
    );
    let list = site.run(["list", "jo"]);
    assert!(list.out().starts_with("job  expired"), "{}", list.out());
    assert_eq!(site.run(["list", "x"]).out(), "");
}

#[test]
fn a_command_that_keeps_failing_is_tried_ever_less_often() {
    let site = Site::new();
    let script = format!("date +%s%N >>{}; exit 3", site.path("starts").display());
    let mut runner = site.start(["run", "job", "--ttl", "5s", "--", "sh", "-c", &script]);
    until("it was tried seven times", || {
        site.lines("starts").len() >= 7
    });
    runner.signal(Signal::TERM);
    let said = runner.wait_with_output();
    let starts: Vec<u64> = site
        .lines("starts")
        .iter()
        .map(|l| l.parse().expect("a number"))
        .collect();
    let pauses: Vec<u64> = starts
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / 1_000_000)
        .collect();
    // Each start costs some time of its own; on a busy machine more.
    let (first, last) = (pauses[0].min(pauses[1]), pauses[4].max(pauses[5]));
    assert!(last > 2 * first, "the pauses grow: {pauses:?} ms");
    assert!(said.err().contains("exited with code 3"), "{}", said.err());
}

#[test]
fn events_are_json_lines() {
    let site = Site::new();
    let mut runner = site.start([
        "run", "job", "--format", "json", "--owner", "me", "--", "sleep", "60",
    ]);
    until("it runs", || !site.running("sleep 60").is_empty());
    runner.signal(Signal::TERM);
    let said = runner.wait_with_output();
    assert_eq!(said.code(), 143);
    let mut events = Vec::new();
    for line in said.err().lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(
            (&value["name"], &value["owner"]),
            (&"job".into(), &"me".into()),
            "{line}"
        );
        assert!(
            value["boot_ns"].is_u64() && value["unix_ms"].is_u64(),
            "{line}"
        );
        events.push(value["event"].as_str().expect("text").to_owned());
    }
    for event in ["gained", "started", "stopping", "ended", "released"] {
        assert!(
            events.iter().any(|e| e == event),
            "{event} is missing: {events:?}"
        );
    }
}

#[test]
fn watch_writes_a_line_for_each_change() {
    let site = Site::new();
    assert_eq!(
        site.run(["exec", "job", "--owner", "a", "--", "true"])
            .code(),
        0
    );
    let out = std::fs::File::create(site.path("watched")).expect("writable");
    let mut watcher = Running::start(site.lockctl(["watch", "job"]).stdout(out));
    until("the present is shown", || site.lines("watched").len() == 1);
    let mut holder = site.start([
        "exec", "job", "--wait", "--owner", "b", "--ttl", "2s", "--", "sleep", "60",
    ]);
    until("the change is shown", || site.lines("watched").len() == 2);
    // Renewals are no changes.
    until("it was renewed", || status(&site).contains("expires in 1."));
    holder.signal(Signal::TERM);
    holder.status();
    until("the release is shown", || site.lines("watched").len() == 3);
    watcher.signal(Signal::TERM);
    watcher.status();
    let lines = site.lines("watched");
    for (line, what) in lines.iter().zip(["free", "held by b", "free"]) {
        assert!(line.contains(what), "{lines:?}");
    }
}

#[test]
fn sigterm_at_any_moment_starts_nothing_on_a_standby() {
    for round in 0..crate::support::rounds(4, 50) {
        let site = Site::new();
        let mut leader = site.start(["run", "job", "--", "sleep", "60"]);
        until("it leads", || !site.running("sleep 60").is_empty());
        let mut standby = site.start(["run", "job", "--", "sleep", "61"]);
        std::thread::sleep(Duration::from_millis(u64::from(round % 10) * 4));
        standby.signal(Signal::TERM);
        let said = standby.wait_with_output();
        // Before its handlers stand, the signal itself ends it.
        assert!(said.status.code().is_none_or(|code| code == 80), "{said:?}");
        assert!(site.running("sleep 61").is_empty());
        kill(leader.pid(), Signal::TERM);
        leader.status();
    }
}

#[test]
fn without_a_store_a_file_in_the_state_folder_is_used() {
    let site = Site::new();
    let lockctl = |arguments: &[&str]| {
        let mut command = site.lockctl(arguments);
        command
            .env_remove("LOCKCTL_STORE")
            .env("XDG_STATE_HOME", site.path("state"));
        Running::start(&mut command).wait_with_output()
    };
    assert_eq!(lockctl(&["status", "job"]).out(), "absent\n");
    assert_eq!(lockctl(&["list"]).code(), 0);
    assert!(!site.path("state").exists(), "looking makes nothing");
    assert_eq!(lockctl(&["exec", "job", "--", "true"]).code(), 0);
    assert!(site.path("state/lockctl/locks.db").exists());
    assert!(lockctl(&["status", "job"]).out().starts_with("free"));
    assert_eq!(lockctl(&["status", "another"]).out(), "absent\n");
    let mut homeless = site.lockctl(["list"]);
    homeless
        .env_remove("LOCKCTL_STORE")
        .env_remove("HOME")
        .env_remove("XDG_STATE_HOME");
    let said = Running::start(&mut homeless).wait_with_output();
    assert_eq!(said.code(), 64);
    assert!(said.err().contains("--store URL"), "{}", said.err());
}

#[test]
fn a_leader_that_stepped_down_keeps_away_for_as_long_as_it_was_asked() {
    let site = Site::new();
    let mut only = run(&site, "only", &["--ttl", "2s"], "stamps");
    until("it leads", || terms(&site).len() == 1);
    assert_eq!(site.run(["step-down", "job", "--for", "3s"]).code(), 0);
    until("it has stopped", || site.fixtures().is_empty());
    let stopped = Instant::now();
    until("it leads again", || terms(&site).len() == 2);
    let away = stopped.elapsed();
    assert!(
        away > Duration::from_millis(2500),
        "it came back after {away:?}"
    );
    assert!(away < Duration::from_secs(8), "it came back after {away:?}");
    only.signal(Signal::TERM);
    assert_eq!(only.status().code(), Some(143));
    // A command that runs once is not run again.
    let holder = site.start(["exec", "job", "--wait", "--ttl", "2s", "--", "sleep", "60"]);
    until("it holds", || !site.running("sleep 60").is_empty());
    assert_eq!(site.run(["step-down", "job"]).code(), 0);
    let said = holder.wait_with_output();
    assert_eq!(said.code(), 79);
    assert!(said.err().contains("asked to step down"), "{}", said.err());
}

#[test]
fn sigterm_just_when_the_lead_becomes_free_starts_nothing_behind_our_back() {
    for _ in 0..crate::support::rounds(4, 50) {
        let site = Site::new();
        let mut leader = site.start(["run", "job", "--", "sleep", "60"]);
        until("it leads", || !site.running("sleep 60").is_empty());
        let mut standby = site.start_logged(["run", "job", "--", "sleep", "61"], "standby");
        until("it stands by", || {
            site.lines("standby")
                .iter()
                .any(|line| line.contains("standing by"))
        });
        leader.signal(Signal::TERM);
        standby.signal(Signal::TERM);
        let code = standby.status().code().expect("a code");
        let log = site.lines("standby");
        let led = log.iter().any(|line| line.contains("leading"));
        // It may have won before it was told; then the command was told too.
        assert!(
            code == 80 && !led || [0, 143].contains(&code) && led,
            "{code}: {log:#?}"
        );
        leader.status();
        assert!(site.processes().is_empty(), "{:?}", site.processes());
        assert!(status(&site).starts_with("free"), "{}", status(&site));
    }
}
