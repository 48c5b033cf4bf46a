//! Every code of the table.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::support::{Said, Site, until};

#[test]
fn the_code_of_the_command_is_passed_through() {
    let site = Site::new();
    for code in [0, 1, 2, 42, 64, 75, 126, 127, 128, 255] {
        let said = site.run(["exec", "job", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!((said.code(), said.err().as_str()), (code, ""));
    }
    for (signal, code) in [(9, 137), (15, 143), (1, 129), (11, 139)] {
        let said = site.run([
            "exec",
            "job",
            "--",
            "sh",
            "-c",
            &format!("kill -{signal} $$"),
        ]);
        assert_eq!(said.code(), code);
    }
}

#[test]
fn a_command_that_cannot_run_is_seen_before_the_lock_is_taken() {
    let site = Site::new();
    let plain = site.path("plain");
    std::fs::write(&plain, "no program").expect("writable");
    for (command, code) in [
        ("no-such-command-anywhere", 127),
        ("/no/such/command", 127),
        (plain.to_str().expect("text"), 126),
        ("/", 126),
    ] {
        for verb in ["exec", "run"] {
            let said = site.run([verb, "job", "--", command]);
            assert_eq!(said.code(), code, "{command}");
            assert_eq!(said.err().lines().count(), 1, "{}", said.err());
            assert!(said.err().contains(command), "{}", said.err());
        }
    }
    // What only the kernel finds out has the shell's code too.
    std::fs::write(&plain, "#!/no/such/interpreter\n").expect("writable");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let said = site.run(["exec", "job", "--", plain.to_str().expect("text")]);
    assert_eq!(said.code(), 127);
    assert!(said.err().contains("cannot run"), "{}", said.err());
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    let site = Site::new();
    let long = "x".repeat(256);
    for (arguments, must_say) in [
        (
            vec!["exec", "job", "--ttl", "10", "--", "true"],
            "10s or 10ms",
        ),
        (
            vec!["exec", "job", "--ttl", "-5s", "--", "true"],
            "negative",
        ),
        (vec!["exec", "job", "--ttl", "0s", "--", "true"], "0ns"),
        (vec!["explain", "--store", "memory:"], "leave --store out"),
        (
            vec![
                "exec",
                "job",
                "--ttl",
                "99999999999999999999d",
                "--",
                "true",
            ],
            "too long",
        ),
        (
            vec!["exec", "job", "--ttl", "10s", "--drain", "9s", "--", "true"],
            "10s",
        ),
        (
            vec![
                "exec",
                "job",
                "--ttl",
                "10s",
                "--renew-every",
                "10s",
                "--",
                "true",
            ],
            "renew_every",
        ),
        (
            vec!["exec", "job", "--conflict-exit-code", "600", "--", "true"],
            "600",
        ),
        (
            vec!["exec", "job", "--wait=1s", "--no-wait", "--", "true"],
            "--no-wait",
        ),
        (vec!["exec", "job", "--wait=1", "--", "true"], "1s or 1ms"),
        (vec!["exec", "job"], "COMMAND"),
        (vec!["exec", "", "--", "true"], "empty"),
        (vec!["exec", long.as_str(), "--", "true"], "256"),
        (vec!["exec", "a\tb", "--", "true"], "U+0009"),
        (vec!["exec", "job", "--owner", "", "--", "true"], "owner"),
        (
            vec!["exec", "job", "--store", "gopher://x", "--", "true"],
            "gopher",
        ),
        (
            vec!["exec", "job", "--store", "memory:", "--", "true"],
            "one process",
        ),
        (
            vec!["list", "--store", "/var/lib/locks.db"],
            "as in sqlite:",
        ),
        (vec!["run", "job", "--ttl", "1", "--", "true"], "1s or 1ms"),
        (vec!["frobnicate"], "frobnicate"),
        (vec!["status", "a\nb"], "U+000A"),
    ] {
        let said = site.run(&arguments);
        let err = said.err();
        assert_eq!(said.code(), 64, "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(
            err.starts_with("lockctl: ") && err.contains(must_say),
            "{err}"
        );
        assert_eq!(said.out(), "");
    }
    assert!(!site.path("locks.db").exists(), "nothing was touched");
}

#[test]
fn what_tells_a_holder_makes_no_store() {
    let site = Site::new();
    for verb in ["step-down", "revoke", "status", "list"] {
        let said = site.run([verb, "job"]);
        assert_eq!(said.code(), 76, "{verb}: {}", said.err());
        assert!(said.err().contains("check the path"), "{}", said.err());
        assert!(!site.path("locks.db").exists(), "{verb} made it");
    }
}

#[test]
fn a_failure_is_an_event_where_events_were_asked_for() {
    let site = Site::new();
    let said = site.run([
        "exec", "job", "--format", "json", "--ttl", "0s", "--", "true",
    ]);
    assert_eq!(said.code(), 64);
    let event: serde_json::Value = serde_json::from_str(&said.err()).expect("JSON");
    assert_eq!(
        (&event["event"], &event["code"]),
        (&"error".into(), &64.into())
    );
    assert!(
        event["why"].as_str().is_some_and(|why| why.contains("ttl")),
        "{event}"
    );
}

#[test]
fn somebody_else_has_it() {
    let site = Site::new();
    let mut holder = site.start(["exec", "job", "--owner", "the-other", "--", "sleep", "60"]);
    until("it holds", || !site.running("sleep 60").is_empty());
    let said = site.run(["exec", "job", "--no-wait", "--", "true"]);
    assert_eq!(said.code(), 75);
    assert!(said.err().contains("held by the-other"), "{}", said.err());
    let said = site.run(["exec", "job", "--no-wait", "--format", "json", "--", "true"]);
    let event: serde_json::Value = serde_json::from_str(&said.err()).expect("JSON");
    assert_eq!(event["event"], "not-acquired");
    assert_eq!(event["owner"], "the-other");
    assert!(event["remaining_ms"].is_u64(), "{event}");
    let quiet = [
        "exec",
        "job",
        "--no-wait",
        "-q",
        "--conflict-exit-code",
        "0",
        "--",
        "false",
    ];
    let said = site.run(quiet);
    assert_eq!((said.code(), said.err().as_str()), (0, ""));
    let said = site.run(["exec", "job", "--wait=300ms", "--", "true"]);
    assert_eq!(said.code(), 75);
    // Told to end while it waits.
    let mut waiter = site.start_logged(["exec", "job", "-v", "--", "touch", "never"], "waiter");
    until("it waits", || site.lines("waiter").len() == 1);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.status().code(), Some(143));
    assert!(
        site.lines("waiter")[1].contains("not started"),
        "{:?}",
        site.lines("waiter")
    );
    holder.signal(Signal::TERM);
    assert_eq!(holder.status().code(), Some(143));
    assert_eq!(
        site.run(["exec", "job", "--no-wait", "--", "true"]).code(),
        0
    );
}

#[test]
fn a_revoked_lease_is_lost() {
    let site = Site::new();
    let holder = site.start(["exec", "job", "--wait", "--ttl", "1s", "--", "sleep", "60"]);
    until("it holds", || !site.running("sleep 60").is_empty());
    let said = site.run(["revoke", "job", "--reason", "maintenance"]);
    assert_eq!(said.code(), 0, "{}", said.err());
    let said = holder.wait_with_output();
    assert_eq!(said.code(), 79);
    assert!(
        said.err()
            .lines()
            .last()
            .is_some_and(|l| l.contains("lost \"job\"")),
        "{}",
        said.err()
    );
    assert!(site.running("sleep 60").is_empty());
    let said = site.run(["status", "job"]);
    assert!(
        said.out().contains("free") && said.out().contains("maintenance"),
        "{}",
        said.out()
    );
}

#[test]
fn a_standby_that_is_told_to_end_has_never_led() {
    let site = Site::new();
    let holder = site.start(["run", "job", "--owner", "first", "--", "sleep", "60"]);
    until("it leads", || !site.running("sleep 60").is_empty());
    let mut standby = site.start_logged(["run", "job", "--", "sleep", "61"], "standby");
    until("it stands by", || {
        site.lines("standby")
            .iter()
            .any(|line| line.contains("standing by: first leads"))
    });
    standby.signal(Signal::TERM);
    assert_eq!(
        standby.status().code(),
        Some(80),
        "{:?}",
        site.lines("standby")
    );
    assert!(site.running("sleep 61").is_empty());
    drop(holder);
}

#[test]
fn an_answer_that_cannot_be_written_is_an_internal_error() {
    let site = Site::new();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has it");
    let mut command = site.lockctl(["explain"]);
    let said = command.stdout(full).output().expect("it runs");
    assert_eq!(said.code(), 70);
    assert_eq!(said.err().lines().count(), 1, "{}", said.err());
}

#[test]
fn help_shows_the_whole_table() {
    let site = Site::new();
    for verb in ["exec", "run"] {
        let said = site.run([verb, "--help"]);
        assert_eq!(said.code(), 0);
        for code in [
            "64", "69", "70", "75", "76", "77", "79", "80", "126", "127", "128+n",
        ] {
            assert!(
                said.out()
                    .lines()
                    .any(|line| line.trim_start().starts_with(code)),
                "{code} is missing:\n{}",
                said.out()
            );
        }
    }
    let said = site.run::<[&str; 0], _>([]);
    assert_eq!(said.code(), 0);
    assert!(said.out().contains("lockctl demo"), "{}", said.out());
}
