//! `lockctl` over a store behind a network: a real PostgreSQL, alone or behind a proxy.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Direction, Kind, Proxy, Server};
use lockkit::sql::sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use lockkit::{LeaseState, LockProvider as _};
use rustix::process::Signal;

use crate::partition::{command, stamps, tokens};
use crate::support::{Running, Said, Site, rounds, until};

const PASSWORD: &str = "hunter2-s3cret";

/// For a server that answers, if slowly: a password alone takes it a while on a busy machine.
const PATIENT: [&str; 4] = ["--ttl", "60s", "--request-timeout", "10s"];

/// The server of these tests; it asks everybody but `postgres` for a password. `None` when there is none,
/// which is told.
fn server() -> Option<(Server, u16)> {
    static SERVER: OnceLock<Result<Server, servers::Error>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let rules = folder.path().join("rules");
        fs::write(
            &rules,
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
        )
        .expect("writable");
        // The server runs as another user, and reads them at its start only.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        fs::set_permissions(&rules, fs::Permissions::from_mode(0o644)).expect("ours");
        Server::postgres()
            .with_setting("hba_file", rules.display().to_string())
            .with_setting("password_encryption", "scram-sha-256")
            .start_program()
    });
    let server = servers::or_skip(server.clone())?;
    assert_eq!(server.kind(), Kind::Postgres);
    let port = server.port().expect("it is ours");
    Some((server, port))
}

/// A word that no other test uses.
fn fresh(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Runs statements as the owner of everything.
fn sql(server: &Server, statements: &str) {
    block_on(async {
        let mut connection = PgConnection::connect(server.url())
            .await
            .expect("it serves");
        connection
            .execute(AssertSqlSafe(statements.to_owned()))
            .await
            .expect("sound statements");
    });
}

/// A user with [`PASSWORD`] and no rights.
fn user(server: &Server) -> String {
    let user = fresh("user");
    sql(
        server,
        &format!("CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'"),
    );
    user
}

/// A user with [`PASSWORD`] and a database of that name.
fn owner(server: &Server) -> String {
    let user = user(server);
    sql(server, &format!("CREATE DATABASE {user} OWNER {user}"));
    user
}

/// A site whose store is a table of its own.
fn site_at(port: u16) -> Site {
    Site::on(url_at(port, &fresh("leases")))
}

fn url_at(port: u16, table: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres?table={table}")
}

/// Runs `exec` or `run` with a command that must not start.
fn refused(site: &Site, verb: &str, options: &[&str]) -> (Output, Duration) {
    let started = site.path("started");
    let mut arguments = vec![verb, "job"];
    arguments.extend(options);
    arguments.extend(["--", "touch", started.to_str().expect("text")]);
    let began = Instant::now();
    let said = site.run(arguments);
    let took = began.elapsed();
    assert!(!started.exists(), "{}", said.err());
    assert_eq!(said.err().lines().count(), 1, "{}", said.err());
    (said, took)
}

#[test]
fn what_stands_in_the_way_is_said_in_one_line_with_its_remedy() {
    let Some((server, port)) = server() else {
        return;
    };
    let user = user(&server);
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port();
    for (url, code, must_say) in [
        (
            url_at(unused, "t"),
            69,
            vec!["Connection refused", "LOCKCTL_STORE is there"],
        ),
        (
            "postgres://postgres@nowhere.invalid/postgres".into(),
            69,
            vec!["nowhere.invalid", "LOCKCTL_STORE is there"],
        ),
        (
            format!("{}&sslmode=require", url_at(port, "t")),
            69,
            vec!["no secure connection", "TLS settings"],
        ),
        (
            format!("postgres://{user}:wrong-word@127.0.0.1:{port}/postgres"),
            77,
            vec![
                "does not accept",
                user.as_str(),
                "credentials in --store or LOCKCTL_STORE",
            ],
        ),
        (
            format!("postgres://postgres@127.0.0.1:{port}/nothing_there"),
            76,
            vec!["nothing_there", "CREATE DATABASE"],
        ),
    ] {
        let site = Site::on(url.clone());
        // `run` is for ever: it waits for a store that is away.
        let verbs: &[&str] = if code == 69 {
            &["exec"]
        } else {
            &["exec", "run"]
        };
        for verb in verbs {
            let (said, _) = refused(&site, verb, &PATIENT);
            assert_eq!(said.code(), code, "{url}: {}", said.err());
            for words in &must_say {
                assert!(said.err().contains(words), "{words}: {}", said.err());
            }
            assert!(!said.err().contains("wrong-word"), "{}", said.err());
            // The driver's words for the same are left out.
            assert!(!said.err().contains("database: "), "{}", said.err());
        }
    }
}

#[test]
fn a_server_that_takes_connections_and_never_answers_is_given_up_in_time() {
    let Some((_, port)) = server() else {
        return;
    };
    let proxy = Proxy::start(port).expect("a proxy");
    let site = site_at(proxy.port());
    proxy.black_hole();
    for verb in [&["exec"][..], &["exec", "--no-wait"]] {
        let mut options = vec!["--request-timeout", "1s"];
        options.extend(&verb[1..]);
        let (said, took) = refused(&site, verb[0], &options);
        assert_eq!(said.code(), 69, "{}", said.err());
        assert!(
            said.err().contains("did not answer within 1s"),
            "{}",
            said.err()
        );
        assert!(
            (Duration::from_secs(1)..Duration::from_secs(4)).contains(&took),
            "{took:?}"
        );
    }
    for arguments in [
        &["status", "job"][..],
        &["list"],
        &["revoke", "job"],
        &["step-down", "job"],
    ] {
        let said = site.run(arguments.iter().chain(&["--request-timeout", "1s"]));
        assert_eq!(said.code(), 69, "{arguments:?}: {}", said.err());
        assert_eq!(said.err().lines().count(), 1, "{}", said.err());
    }
}

#[test]
fn the_command_starts_when_the_store_is_back() {
    let Some((_, port)) = server() else {
        return;
    };
    for away in [Proxy::black_hole, |proxy: &Proxy| proxy.refuse(true)] {
        let proxy = Proxy::start(port).expect("a proxy");
        let site = site_at(proxy.port());
        away(&proxy);
        let started = site.path("started");
        let touch = ["--", "touch", started.to_str().expect("text")];
        let mut waiter = site.start_logged(
            ["exec", "job", "--request-timeout", "2s", "--wait"]
                .iter()
                .chain(&touch),
            "waiter",
        );
        until("it waits", || {
            site.lines("waiter")
                .iter()
                .any(|line| line.contains("trying again"))
        });
        assert!(!started.exists() && waiter.ended().is_none());
        proxy.heal();
        assert_eq!(
            waiter.status().code(),
            Some(0),
            "{:?}",
            site.lines("waiter")
        );
        assert!(started.exists());
    }
}

#[test]
fn a_missing_right_is_told_with_the_statement_that_gives_it() {
    let Some((server, port)) = server() else {
        return;
    };
    let database = fresh("base");
    sql(&server, &format!("CREATE DATABASE {database}"));
    let as_owner = server
        .url()
        .replace("/postgres", &format!("/{database}"))
        .replace(&format!("//{database}"), "//postgres");
    let user = user(&server);
    let url = |table: &str| {
        format!("postgres://{user}:{PASSWORD}@127.0.0.1:{port}/{database}?table={table}")
    };
    // No right to make the table; then a table that somebody else has made.
    let theirs = fresh("theirs");
    let made =
        Site::on(format!("{as_owner}?table={theirs}")).run(["exec", "job", "--wait", "--", "true"]);
    assert_eq!(made.code(), 0, "{}", made.err());
    for table in [fresh("mine"), theirs] {
        let site = Site::on(url(&table));
        let [said, again] = ["exec", "run"].map(|verb| refused(&site, verb, &PATIENT).0);
        for said in [&said, &again] {
            assert_eq!(said.code(), 77, "{}", said.err());
            assert!(!said.err().contains(PASSWORD), "{}", said.err());
        }
        let line = said.err();
        let remedy = line
            .trim_end()
            .split_once("run: ")
            .unwrap_or_else(|| panic!("no statement: {line}"))
            .1;
        block_on(async {
            let mut connection = PgConnection::connect(&as_owner).await.expect("it serves");
            connection
                .execute(AssertSqlSafe(remedy.to_owned()))
                .await
                .unwrap_or_else(|error| panic!("{remedy}: {error}"));
        });
        let said = site.run(["exec", "job", "--wait", "--", "true"]);
        assert_eq!(said.code(), 0, "after {remedy:?}: {}", said.err());
    }
}

#[test]
fn a_password_is_in_no_output_and_in_no_command_line() {
    let Some((server, port)) = server() else {
        return;
    };
    let user = owner(&server);
    let at = format!("127.0.0.1:{port}/{user}");
    let ways = [
        (format!("postgres://{user}:{PASSWORD}@{at}"), None),
        (
            format!("postgres://{at}?user={user}&password={PASSWORD}"),
            None,
        ),
        (format!("postgres://{user}@{at}"), Some(PASSWORD)),
        // Refused, by the server and by nobody there.
        (format!("postgres://postgres_:{PASSWORD}@{at}"), None),
        (format!("postgres://{user}_:@{at}"), Some(PASSWORD)),
        (format!("postgres://{user}:{PASSWORD}@127.0.0.1:1/x"), None),
        (
            format!("postgres://{user}:{PASSWORD}@{at}?sslmode=require"),
            None,
        ),
        (
            format!("postgres://{user}:{PASSWORD}@{at}?pasword={PASSWORD}"),
            None,
        ),
    ];
    for (n, (url, variable)) in ways.into_iter().enumerate() {
        let site = Site::on(url);
        let with = |mut command: Command| {
            if let Some(password) = variable {
                command.env("PGPASSWORD", password);
            }
            command
        };
        for format in ["text", "json"] {
            for words in [
                &[
                    "exec",
                    "job",
                    "-vv",
                    "--ttl",
                    "60s",
                    "--no-wait",
                    "--",
                    "true",
                ][..],
                &["status", "job", "-vv"],
                &["list", "-vvv"],
                &["revoke", "job", "-vv"],
            ] {
                let arguments = [&["--format", format, "--request-timeout", "10s"], words].concat();
                let said = with(site.lockctl(&arguments)).output().expect("it runs");
                let all = format!("{}{}", said.out(), said.err());
                assert!(!all.contains(PASSWORD), "{words:?}: {all}");
                assert_eq!(said.code() == 0, n < 3, "{words:?}: {all}");
            }
        }
        if n >= 3 {
            continue;
        }
        // As an argument it stands in the command line of lockctl itself, and nowhere else.
        let store = site.url();
        let arguments = [
            "exec", "job", "--wait", "--store", &store, "--", "sleep", "60",
        ];
        let mut holder = Running::start(&mut with(site.lockctl(arguments)));
        until("it holds", || !site.running("sleep 60").is_empty());
        let own = holder.pid();
        let others = site.processes().into_iter().filter(|(pid, _)| *pid != own);
        for (_, line) in others {
            assert!(!line.contains(PASSWORD), "{line}");
        }
        holder.signal(Signal::TERM);
        holder.status();
        for verb in ["exec", "run"] {
            let mut holder = Running::start(&mut with(
                site.lockctl([verb, "job", "-vv", "--", "sleep", "60"]),
            ));
            until("it holds", || !site.running("sleep 60").is_empty());
            let lines = site.processes();
            assert!(lines.len() > 2, "wrapper, keeper and command: {lines:?}");
            assert!(
                lines.iter().all(|(_, line)| !line.contains(PASSWORD)),
                "{lines:?}"
            );
            holder.signal(Signal::TERM);
            let said = holder.wait_with_output();
            let all = format!("{}{}", said.out(), said.err());
            assert!(!all.contains(PASSWORD), "{all}");
        }
    }
}

#[test]
fn every_verb_works() {
    let Some((_, port)) = server() else {
        return;
    };
    let site = site_at(port);
    // Who only looks makes nothing, and hears what does.
    for arguments in [
        &["status", "job"][..],
        &["list"],
        &["watch", "job"],
        &["step-down", "job"],
        &["revoke", "job"],
    ] {
        let said = site.run(arguments.iter().chain(&["--request-timeout", "10s"]));
        assert_eq!(said.code(), 76, "{}", said.err());
        assert!(
            said.err().contains("`lockctl exec` or `run` makes it"),
            "{}",
            said.err()
        );
    }
    let said = site.run([
        "exec",
        "job",
        "--wait",
        "--require-fencing",
        "--",
        "sh",
        "-c",
        "echo token $LOCKCTL_TOKEN",
    ]);
    assert_eq!(said.code(), 0, "{}", said.err());
    assert!(said.out().starts_with("token "), "{}", said.out());

    let out = fs::File::create(site.path("watched")).expect("writable");
    let mut watching = site.lockctl(["watch", "job", "--format", "json"]);
    let mut watcher = Running::start(watching.stdout(out));
    let states = |state: &str| {
        let lines = site.lines("watched");
        let of = |line: &String| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["state"] == state
        };
        lines.iter().filter(|line| of(line)).count()
    };
    until("the present is shown", || states("free") == 1);
    let mut holder = site.start([
        "exec", "job", "--wait", "--owner", "first", "--", "sleep", "60",
    ]);
    until("it holds", || !site.running("sleep 60").is_empty());
    until("the grant is shown", || states("held") >= 1);
    let said = site.run(["status", "job"]);
    assert!(said.out().starts_with("held by first"), "{}", said.out());
    let said = site.run(["list"]);
    assert!(
        said.out().starts_with("job") && said.out().contains("held by first"),
        "{}",
        said.out()
    );
    let said = site.run(["exec", "job", "--no-wait", "--", "true"]);
    assert_eq!(said.code(), 75, "{}", said.err());
    holder.signal(Signal::TERM);
    assert_eq!(holder.status().code(), Some(143));
    until("the release is shown", || states("free") >= 2);
    watcher.signal(Signal::TERM);
    watcher.status();

    // Of two, the leader is asked to go, and the other one is revoked.
    let mut first = site.start_logged(command(&site, "run", &["--ttl", "3s"], "stamps"), "first");
    until("the first leads", || tokens(&site).len() == 1);
    let mut second = site.start_logged(command(&site, "run", &["--ttl", "3s"], "stamps"), "second");
    until("the second stands by", || stands_by(&site, "second"));
    let said = site.run(["step-down", "job", "--for", "1s"]);
    assert_eq!(said.code(), 0, "{}", said.err());
    until("the second leads", || tokens(&site).len() == 2);
    let said = site.run(["revoke", "job", "--reason", "a test"]);
    assert_eq!(said.code(), 0, "{}", said.err());
    assert!(said.out().starts_with("revoked"), "{}", said.out());
    until("somebody leads again", || tokens(&site).len() == 3);
    let tokens = tokens(&site);
    assert!(tokens.is_sorted(), "{tokens:?}");
    for runner in [&mut first, &mut second] {
        runner.signal(Signal::TERM);
        runner.status();
    }
}

fn stands_by(site: &Site, log: &str) -> bool {
    site.lines(log)
        .iter()
        .any(|line| line.contains("standing by"))
}

#[test]
fn of_two_candidates_the_one_cut_off_writes_no_more_when_the_other_begins() {
    let Some((_, port)) = server() else {
        return;
    };
    for round in 0..rounds(3, 50) {
        let table = fresh("leases");
        let proxy = Proxy::start(port).expect("a proxy");
        let site = Site::on(url_at(proxy.port(), &table));
        let options = ["--ttl", "2s"];
        let arguments = command(&site, "run", &options, "stubborn-stamps");
        let mut first = site.start_logged(arguments, "first");
        until("the first works", || stamps(&site).len() > 3);
        let log = fs::File::create(site.path("second")).expect("writable");
        let mut candidate = site.lockctl(command(&site, "run", &options, "stamps"));
        candidate.env("LOCKCTL_STORE", url_at(port, &table));
        let mut second = Running::start(candidate.stderr(log));
        until("the second stands by", || stands_by(&site, "second"));
        // At any phase between two renewals.
        std::thread::sleep(Duration::from_millis(u64::from(round * 37 % 700)));
        proxy.black_hole();
        until("the second works", || tokens(&site).len() == 2);
        proxy.heal();
        until("the first is back", || {
            site.lines("first")
                .iter()
                .any(|line| line.contains("answers again"))
        });
        second.signal(Signal::TERM);
        assert_eq!(second.status().code(), Some(143));
        first.signal(Signal::TERM);
        first.status();
        let stamps = stamps(&site);
        let mut tokens: Vec<u64> = stamps.iter().map(|stamp| stamp.0).collect();
        tokens.dedup();
        assert!(
            tokens.is_sorted(),
            "round {round}: terms overlap: {tokens:?}"
        );
        let times = |token| stamps.iter().filter(move |s| s.0 == token).map(|s| s.1);
        let last = times(tokens[0]).max().expect("stamps");
        let next = times(tokens[1]).min().expect("stamps");
        assert!(
            last < next,
            "round {round}: the first wrote after the second"
        );
        assert!(
            stamps.iter().any(|s| s.0 == tokens[0] && s.2),
            "round {round}: the first was told before it was killed"
        );
    }
}

#[test]
fn a_wait_that_is_interrupted_while_the_store_grants_leaves_nothing_behind() {
    let Some((_, port)) = server() else {
        return;
    };
    let table = fresh("leases");
    let direct = url_at(port, &table);
    // Makes the table.
    assert_eq!(
        Site::on(direct.as_str())
            .run(["exec", "job", "--wait", "--", "true"])
            .code(),
        0
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let onlooker = runtime
        .block_on(lockkit::connect(&direct))
        .expect("it serves");
    let is_held = || {
        let seen = runtime
            .block_on(onlooker.observe("job"))
            .expect("it serves");
        matches!(seen.state, LeaseState::Held(_))
    };
    let proxy = Proxy::start(port).expect("a proxy");
    proxy.set_delay(Direction::ToClient, Duration::from_millis(500));
    let ended_by = |signal: Signal| 128 + signal.as_raw();
    for (verb, signal, code) in [
        ("exec", Signal::INT, ended_by(Signal::INT)),
        ("exec", Signal::TERM, ended_by(Signal::TERM)),
        ("exec", Signal::HUP, ended_by(Signal::HUP)),
        ("run", Signal::TERM, 80),
    ] {
        let site = Site::on(url_at(proxy.port(), &table));
        let started = site.path("started");
        let mut arguments = vec![verb, "job"];
        arguments.extend(PATIENT);
        if verb == "exec" {
            arguments.push("--wait");
        }
        arguments.extend(["--", "touch", started.to_str().expect("text")]);
        let mut waiter = site.start_logged(arguments, "waiter");
        // The store has granted, and the answer is on its way.
        until("it is granted", is_held);
        waiter.signal(signal);
        let ended = waiter.status().code();
        let held = is_held();
        assert_eq!(ended, Some(code), "{verb}: {:?}", site.lines("waiter"));
        assert!(!started.exists(), "{verb}");
        assert!(
            !held,
            "{verb}, {signal:?}: the lease stays for its whole ttl"
        );
    }
    // Without an answer it does not hang, and a second signal ends it at once.
    let site = Site::on(url_at(proxy.port(), &table));
    let arguments = [
        "exec",
        "job",
        "--wait",
        "--ttl",
        "600s",
        "--request-timeout",
        "50s",
        "--",
        "true",
    ];
    let mut waiter = site.start_logged(arguments, "waiter");
    until("it is granted", is_held);
    proxy.black_hole();
    waiter.signal(Signal::INT);
    // As somebody does who presses a key again and again. Patience is less than its request timeout.
    until("it ends", || {
        waiter.signal(Signal::INT);
        waiter.ended().is_some()
    });
    assert_eq!(waiter.status().code(), Some(128 + Signal::INT.as_raw()));
}
