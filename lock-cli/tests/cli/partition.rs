//! When the store does not answer, and when the holder stands still.

use std::time::{Duration, Instant};

use lockkit::sql::sqlx::sqlite::SqliteConnectOptions;
use lockkit::sql::sqlx::{self, ConnectOptions as _, SqliteConnection};
use lockkit::{FenceGate, Token};
use rustix::process::Signal;

use crate::support::{Said, Site, boot_ns, copy_program, kill, rounds, until, within};

/// A writer that keeps everybody else from writing: what a store that does not answer is on SQLite.
struct Outage {
    runtime: tokio::runtime::Runtime,
    connection: Option<SqliteConnection>,
}

impl Outage {
    fn begin(site: &Site) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let options = SqliteConnectOptions::new()
            .filename(site.path("locks.db"))
            .busy_timeout(Duration::from_secs(20));
        let connection = runtime.block_on(async {
            let mut connection = options.connect().await.expect("the store is there");
            sqlx::query("BEGIN IMMEDIATE")
                .execute(&mut connection)
                .await
                .expect("no long writer");
            connection
        });
        Self {
            runtime,
            connection: Some(connection),
        }
    }

    fn end(mut self) {
        let mut connection = self.connection.take().expect("it ends once");
        self.runtime.block_on(async {
            sqlx::query("ROLLBACK")
                .execute(&mut connection)
                .await
                .expect("it was begun");
        });
    }
}

pub(crate) fn command(site: &Site, verb: &str, options: &[&str], fixture: &str) -> Vec<String> {
    // A store on a busy disk may let the first request time out.
    let wait: &[&str] = if verb == "exec" { &["--wait"] } else { &[] };
    let mut arguments: Vec<String> = [verb, "job"]
        .iter()
        .chain(options)
        .chain(wait)
        .chain(&["--"])
        .map(|s| (*s).to_owned())
        .collect();
    arguments.extend(site.fixture(fixture, "stamps"));
    arguments
}

/// Token, time, and whether it was the mark of being told, for each stamp in the order of writing.
pub(crate) fn stamps(site: &Site) -> Vec<(u64, u64, bool)> {
    site.lines("stamps")
        .iter()
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let number = |n: usize| words[n].parse().expect("a number");
            (number(0), number(1), words.len() > 2)
        })
        .collect()
}

pub(crate) fn tokens(site: &Site) -> Vec<u64> {
    let mut tokens: Vec<u64> = stamps(site).iter().map(|stamp| stamp.0).collect();
    tokens.dedup();
    tokens
}

#[test]
fn cut_off_from_the_store_the_first_command_ends_before_the_second_begins() {
    for round in 0..rounds(1, 50) {
        let site = Site::new();
        let first = site.start(command(&site, "exec", &["--ttl", "2s"], "stubborn-stamps"));
        until("the first works", || stamps(&site).len() > 3);
        let second = site.start(command(&site, "exec", &["--ttl", "2s"], "stamps"));
        // At any phase between two renewals.
        std::thread::sleep(Duration::from_millis(u64::from(round * 37 % 700)));
        let outage = Outage::begin(&site);
        let said = first.wait_with_output();
        assert_eq!(said.code(), 79, "{}", said.err());
        assert!(said.err().contains("lost \"job\""), "{}", said.err());
        let killed = stamps(&site);
        assert!(killed.iter().any(|stamp| stamp.2), "it was told before");
        outage.end();
        until("the second works", || tokens(&site).len() == 2);
        let tokens = tokens(&site);
        assert!(tokens[0] < tokens[1], "{tokens:?}");
        let last = killed.last().expect("stamps").1;
        let next = stamps(&site)
            .iter()
            .find(|s| s.0 == tokens[1])
            .expect("there")
            .1;
        assert!(last < next, "the first wrote after the second");
        drop(second);
    }
}

#[test]
fn an_elected_command_is_stopped_and_started_again_after_an_outage() {
    let site = Site::new();
    let mut runner = site.start_logged(command(&site, "run", &["--ttl", "2s"], "stamps"), "log");
    until("it works", || stamps(&site).len() > 3);
    let outage = Outage::begin(&site);
    until("it is stopped", || site.fixtures().is_empty());
    let ended = boot_ns();
    // For longer than a few tries.
    std::thread::sleep(Duration::from_secs(2));
    assert!(site.fixtures().is_empty(), "nothing runs without the store");
    outage.end();
    until("it works again", || tokens(&site).len() == 2);
    assert!(tokens(&site)[0] < tokens(&site)[1]);
    assert!(stamps(&site).last().expect("stamps").1 > ended);
    runner.signal(Signal::TERM);
    assert_eq!(runner.status().code(), Some(143));
    let log = site.lines("log");
    let count = |what: &str| log.iter().filter(|line| line.contains(what)).count();
    assert_eq!(
        count("failed so far"),
        1,
        "one warning for one outage: {log:#?}"
    );
    assert_eq!(count("answers again"), 1, "{log:#?}");
    assert_eq!(count("leading, with token"), 2, "{log:#?}");
    assert!(log.len() < 15, "{log:#?}");
}

#[test]
fn an_outage_while_a_lock_is_held_or_waited_for_is_told_once_and_so_is_its_end() {
    let site = Site::new();
    let options = [
        "--ttl",
        "20s",
        "--request-timeout",
        "500ms",
        "--renew-every",
        "500ms",
    ];
    let mut holder = site.start_logged(command(&site, "exec", &options, "stamps"), "holder");
    until("it works", || stamps(&site).len() > 3);
    let mut waiter = site.start_logged(command(&site, "exec", &options, "stamps"), "waiter");
    let outage = Outage::begin(&site);
    until("it is noticed", || !site.lines("holder").is_empty());
    // For a few more failures.
    std::thread::sleep(Duration::from_secs(2));
    outage.end();
    until("its end is noticed", || site.lines("holder").len() == 2);
    let log = site.lines("holder");
    assert!(
        log[0].contains("no answer within") && log[1].contains("answers again"),
        "{log:#?}"
    );
    waiter.signal(Signal::TERM);
    waiter.status();
    holder.signal(Signal::TERM);
    assert_eq!(holder.status().code(), Some(143));
    assert_eq!(site.lines("holder").len(), 2, "{:#?}", site.lines("holder"));
}

#[test]
fn a_stop_during_an_outage_does_not_hang() {
    let site = Site::new();
    let options = ["--ttl", "10s", "--request-timeout", "500ms"];
    let mut wrapper = site.start(command(&site, "exec", &options, "tidy-stamps"));
    until("it works", || stamps(&site).len() > 3);
    let outage = Outage::begin(&site);
    let told = Instant::now();
    wrapper.signal(Signal::TERM);
    let said = wrapper.wait_with_output();
    let took = told.elapsed();
    assert_eq!(said.code(), 0, "the command's own: {}", said.err());
    assert!(
        said.err()
            .contains("not confirmed; the lease expires by itself"),
        "{}",
        said.err()
    );
    assert!(took < Duration::from_secs(3), "{took:?}");
    outage.end();
}

#[test]
fn without_an_answer_nothing_starts() {
    let site = Site::new();
    assert_eq!(site.run(["exec", "job", "--", "true"]).code(), 0);
    let outage = Outage::begin(&site);
    for (options, lines, at_least, at_most) in [
        (vec!["--no-wait"], 1, 0, 1_500),
        (vec![], 1, 0, 1_500),
        // That it waits, and why it has given up.
        (vec!["--wait=2s"], 2, 1_900, 3_500),
    ] {
        let began = Instant::now();
        let mut arguments = vec!["exec", "job", "--request-timeout", "500ms"];
        arguments.extend(options);
        let started = site.path("started");
        arguments.extend(["--", "touch", started.to_str().expect("text")]);
        let said = site.run(&arguments);
        let took = began.elapsed();
        assert_eq!(said.code(), 69, "{}", said.err());
        assert_eq!(said.err().lines().count(), lines, "{}", said.err());
        assert!(took >= Duration::from_millis(at_least), "{took:?}");
        assert!(
            took <= Duration::from_millis(at_most),
            "{took:?}: {arguments:?}"
        );
        assert!(!started.exists());
    }
    outage.end();
    assert_eq!(site.run(["exec", "job", "--", "true"]).code(), 0);
}

#[test]
fn a_wrong_store_is_said_at_once() {
    let site = Site::new();
    std::fs::write(
        site.path("text"),
        "This is no database, it is a long enough text.\n".repeat(40),
    )
    .expect("writable");
    let url = |file: &str| format!("sqlite:{}", site.path(file).display());
    for (store, code) in [
        (url("text"), 76),
        (url("no/such/folder/locks.db"), 76),
        (format!("sqlite:{}", site.path("").display()), 64),
        ("zebra://127.0.0.1:1".into(), 64),
        ("nonsense".into(), 64),
    ] {
        for verb in ["exec", "run"] {
            let started = site.path("started");
            let touch = ["--", "touch", started.to_str().expect("text")];
            let mut arguments = vec![verb, "job", "--store", store.as_str()];
            arguments.extend(touch);
            let began = Instant::now();
            let said = site.run(&arguments);
            assert_eq!(said.code(), code, "{verb} {store}: {}", said.err());
            assert_eq!(said.err().lines().count(), 1, "{}", said.err());
            assert!(began.elapsed() < Duration::from_secs(2));
            assert!(!started.exists());
        }
    }
}

#[test]
fn a_store_that_may_not_be_written_is_a_matter_of_permission() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::new();
    assert_eq!(site.run(["exec", "job", "--", "true"]).code(), 0);
    let set = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    for file in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        if site.path(file).exists() {
            set(&site.path(file), 0o444);
        }
    }
    set(site.mark(), 0o555);
    // Root may write anything: become nobody.
    let root = rustix::process::geteuid().is_root();
    let lockctl = site.path("lockctl");
    set(site.mark(), 0o755);
    copy_program(&lockctl);
    set(&lockctl, 0o755);
    set(site.mark(), 0o555);
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(if root { "setpriv" } else { "env" });
        if root {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command
            .arg(&lockctl)
            .args(["--store", &site.url()])
            .args(arguments)
            .output()
            .expect("it runs")
    };
    let writes = run(&["exec", "job", "--", "true"]);
    let reads = run(&["status", "job"]);
    set(site.mark(), 0o755);
    assert_eq!(writes.code(), 77, "{}", writes.err());
    assert_eq!(writes.err().lines().count(), 1, "{}", writes.err());
    // Without the right to write, SQLite reads a file in WAL mode only while its side files stand.
    match reads.code() {
        0 => assert!(reads.out().starts_with("free"), "{}", reads.out()),
        code => assert_eq!(code, 77, "{}", reads.err()),
    }
}

#[test]
fn after_a_stop_of_everything_the_old_token_is_refused_and_the_old_command_ends() {
    for _ in 0..rounds(1, 50) {
        let site = Site::new();
        let first = site.start(command(&site, "exec", &["--ttl", "2s"], "stubborn-stamps"));
        until("the first works", || stamps(&site).len() > 3);
        let mut frozen: Vec<i32> = site.processes().into_iter().map(|(pid, _)| pid).collect();
        // The wrapper last: it would report the stop of the command.
        frozen.sort_unstable_by_key(|pid| std::cmp::Reverse(*pid));
        for pid in &frozen {
            kill(*pid, Signal::STOP);
        }
        let second = site.start(command(&site, "exec", &["--ttl", "2s"], "stamps"));
        until("the second works", || tokens(&site).len() == 2);
        for pid in &frozen {
            kill(*pid, Signal::CONT);
        }
        within(Duration::from_secs(1), "the first has ended", || {
            site.fixtures().len().le(&1).then_some(())
        });
        let said = first.wait_with_output();
        assert_eq!(said.code(), 79, "{}", said.err());
        // What checks tokens takes nothing of the first any more.
        let gate = FenceGate::new();
        let mut newest = 0;
        let mut refused = 0;
        for (token, _, _) in stamps(&site) {
            let admitted = gate.admit(Token::new(token).expect("a token")).is_ok();
            assert_eq!(admitted, token >= newest);
            refused += usize::from(!admitted);
            newest = newest.max(token);
        }
        println!("{refused} stale writes were refused");
        drop(second);
    }
}
