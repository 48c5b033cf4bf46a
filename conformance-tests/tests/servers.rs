//! The server harness: real servers that start, suffer and leave nothing behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Kind, Server};

const PATIENCE: Duration = Duration::from_secs(20);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

/// The processes whose command line names this folder or word.
fn processes_naming(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let pid = entry.file_name().into_string().unwrap_or_default();
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) || pid == std::process::id().to_string() {
            continue;
        }
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(word) {
            found.push(format!("{pid} {line}"));
        }
    }
    found
}

/// Processes of the family of a server: those whose parent it is. Their own command lines may name no folder.
fn children_of(pid: u32) -> Vec<u32> {
    let parent = format!("PPid:\t{pid}");
    fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|child: &u32| {
            let status = fs::read_to_string(format!("/proc/{child}/status"));
            status.is_ok_and(|status| status.lines().any(|line| line == parent))
        })
        .collect()
}

fn is_there(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

// --- every kind goes through the same life ------------------------------------------------------

fn life(kind: Kind) {
    let Some(server) = servers::or_skip(Server::builder(kind).start_program()) else {
        return;
    };
    let (url, pid) = (server.url().to_owned(), server.pid().expect("it runs"));
    assert!(url.contains("127.0.0.1"));
    only_loopback(pid);

    // Paused: the port still takes connections, and nobody serves.
    let port = server.port().expect("ours");
    server.pause().expect("pause");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the kernel answers");
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("timeout");
    stream.write_all(b"srvr\r\n").expect("the kernel takes it");
    let silent = stream
        .read(&mut [0; 64])
        .expect_err("a stopped server is silent");
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock, "{silent}");
    drop(stream);
    server.resume().expect("resume");
    server.wait_ready().expect("serves again");

    // Killed, also while paused: nothing answers, and it comes back at the same place.
    let children = children_of(pid);
    server.pause().expect("pause");
    server.kill().expect("kill");
    for pid in children.into_iter().chain([pid]) {
        assert!(!is_there(pid), "{pid} is still there");
    }
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("nobody listens");
    server.pause().expect_err("nothing to pause");
    server.restart().expect("restart after kill");
    assert_eq!(server.url(), url);

    server.stop().expect("stop");
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("nobody listens");
    server.stop().expect("stopping twice is fine");
    server.restart().expect("restart after stop");
    server.restart().expect("restart of a running one");
    let pid = server.pid().expect("it runs");
    drop(server);
    assert!(!is_there(pid), "it outlives its last handle");
}

/// No socket of the process or its children listens at anything but 127.0.0.1 or ::1.
fn only_loopback(pid: u32) {
    let mut inodes = Vec::new();
    for pid in children_of(pid).into_iter().chain([pid]) {
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let link = fs::read_link(entry.path()).unwrap_or_default();
            let link = link.display().to_string();
            inodes.extend(
                link.strip_prefix("socket:[")
                    .map(|rest| rest.trim_end_matches(']').to_owned()),
            );
        }
    }
    let mut listening = 0;
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in table.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields[3] != "0A" || !inodes.iter().any(|inode| inode == fields[9]) {
                continue;
            }
            listening += 1;
            let address = fields[1].split(':').next().unwrap_or_default();
            let loopback = [
                "0100007F",
                "00000000000000000000000001000000",
                "0000000000000000FFFF00000100007F",
            ];
            assert!(
                loopback.contains(&address),
                "{pid} listens at {}",
                fields[1]
            );
        }
    }
    assert!(
        listening > 0,
        "{pid} listens nowhere: this look sees nothing"
    );
}

#[test]
fn postgres_lives() {
    life(Kind::Postgres);
}

#[test]
fn mariadb_lives() {
    life(Kind::MariaDb);
}

#[test]
fn redis_lives() {
    life(Kind::Redis);
}

#[test]
fn etcd_lives() {
    life(Kind::Etcd);
}

#[test]
fn zookeeper_lives() {
    life(Kind::ZooKeeper);
}

#[test]
fn durable_servers_start() {
    for kind in Kind::ALL {
        if let Some(server) = servers::or_skip(Server::builder(kind).durable().start_program()) {
            server.wait_ready().expect("serves");
        }
    }
}

#[test]
fn two_callers_share_one_server() {
    let first = servers::or_skip(servers::shared(Kind::Redis));
    let second = servers::or_skip(servers::shared(Kind::Redis));
    let (Some(first), Some(second)) = (first, second) else {
        return;
    };
    assert_eq!(first.url(), second.url());
    assert_eq!(first.pid(), second.pid());
}

#[test]
fn data_outlives_a_kill_and_settings_arrive() {
    let Some(server) = servers::or_skip(
        Server::redis()
            .durable()
            .with_setting("maxmemory", "7340032")
            .start_program(),
    ) else {
        return;
    };
    let port = server.port().expect("ours");
    assert_eq!(redis(port, "SET k v"), "+OK");
    server.kill().expect("kill");
    server.restart().expect("restart");
    assert_eq!(redis(port, "GET k"), "$1 v");
    assert_eq!(
        redis(port, "CONFIG GET maxmemory"),
        "*2 $9 maxmemory $7 7340032"
    );
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let wrong = Server::postgres().with_setting("no_such_setting", "1");
    match wrong.start_program() {
        Ok(_) => panic!("it took a setting that there is not"),
        Err(error) if error.is_missing() => {}
        Err(error) => assert!(error.to_string().contains("no_such_setting"), "{error}"),
    }
}

#[test]
fn the_log_is_there_to_look_at() {
    let Some(server) = servers::or_skip(Server::postgres().start_program()) else {
        return;
    };
    let log = server.logs().expect("log");
    assert!(log.contains("ready to accept connections"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

/// One command, its answer on one line.
fn redis(port: u16, command: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    write!(stream, "{command}\r\nQUIT\r\n").expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer");
    let lines: Vec<&str> = answer.trim_end().lines().map(str::trim).collect();
    let (quit, lines) = lines.split_last().expect("an answer");
    assert_eq!(*quit, "+OK");
    lines.join(" ")
}

/// Not a test: the program that has no server, run by the one below.
#[test]
fn without() {
    if std::env::var_os("LOCK_TEST_WITHOUT").is_some() {
        let none = servers::or_skip(Server::redis().start());
        assert!(none.is_none());
    }
}

#[test]
fn a_missing_server_is_told_and_fails_where_it_is_required() {
    let run = |required: &str| {
        // The runner's capture is on: the line must pass it.
        Command::new(std::env::current_exe().expect("this program"))
            .args(["without", "--exact"])
            .env("LOCK_TEST_WITHOUT", "1")
            .env("LOCK_TEST_SERVERS", "container")
            .env("LOCK_TEST_REDIS_IMAGE", "no-such-image:at-all")
            .env("LOCK_TEST_REQUIRE", required)
            .output()
            .expect("run")
    };
    let free = run("");
    let said = String::from_utf8_lossy(&free.stdout).into_owned();
    assert!(free.status.success(), "{said}");
    assert!(
        said.lines().any(|line| line.starts_with("SKIPPED redis: ")),
        "{said}"
    );
    let required = run("1");
    let said = String::from_utf8_lossy(&required.stdout).into_owned();
    assert!(!required.status.success(), "{said}");
    assert!(said.contains("redis: "), "{said}");
}

/// Not a test: the program whose environment names a server, run by the one below.
#[test]
fn named() {
    if let Some(url) = std::env::var_os("LOCK_TEST_NAMED") {
        let server = servers::shared(Kind::Redis).expect("named");
        assert_eq!(server.url(), url);
        assert_eq!((server.port(), server.pid()), (None, None));
        for disturb in [
            Server::stop,
            Server::kill,
            Server::pause,
            Server::resume,
            Server::restart,
        ] {
            let error = disturb(&server).expect_err("it is not ours");
            assert!(error.to_string().contains("Server::builder"), "{error}");
        }
    }
}

#[test]
fn the_environment_names_a_server_and_its_password_is_not_told() {
    let url = "redis://:hidden-word@127.0.0.1:1";
    let out = Command::new(std::env::current_exe().expect("this program"))
        .args(["named", "--exact", "--nocapture"])
        .env("LOCK_TEST_NAMED", url)
        .env("LOCK_TEST_REDIS_URL", url)
        .output()
        .expect("run");
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{said}");
    assert!(said.contains("USED redis: LOCK_TEST_REDIS_URL"), "{said}");
    assert!(!said.contains("hidden-word"), "{said}");
}

// --- nothing is left ----------------------------------------------------------------------------

/// Not a test: the program that is to die, run by the tests below.
#[test]
fn victim() {
    let Ok(end) = std::env::var("LOCK_TEST_VICTIM") else {
        return;
    };
    let kinds: &[Kind] = match end.as_str() {
        "kill" => &Kind::ALL,
        _ => &[Kind::Postgres, Kind::Redis],
    };
    let servers: Vec<Server> = kinds
        .iter()
        .copied()
        .filter_map(|kind| servers::or_skip(Server::builder(kind).start_program()))
        .collect();
    let pids: Vec<u32> = servers.iter().filter_map(Server::pid).collect();
    // One of them paused: it must go as well.
    servers.last().expect("a server").pause().expect("pause");
    println!("\nVICTIM {pids:?}");
    match end.as_str() {
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(3),
        "abort" => std::process::abort(),
        _ => thread::sleep(3 * PATIENCE), // until it is killed
    }
}

fn die(end: &str) {
    // All that the victim starts names this folder in its command line.
    let temp = tempfile::tempdir().expect("a folder");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(temp.path(), open).expect("the servers' accounts must reach it");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["victim", "--exact", "--nocapture"])
        .env("LOCK_TEST_VICTIM", end)
        .env("TMPDIR", temp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawn");
    let pids = pids_of(&mut child);
    assert!(!pids.is_empty(), "the victim started nothing");
    let children: Vec<u32> = pids.iter().flat_map(|pid| children_of(*pid)).collect();
    if end == "kill" {
        child.kill().expect("kill");
    }
    let status = child.wait().expect("wait");
    assert!(!status.success(), "the victim ended well");
    for pid in pids.into_iter().chain(children) {
        eventually(&format!("server {pid} is gone after {end}"), || {
            !is_there(pid)
        });
    }
    let folder = temp.path().display().to_string();
    eventually("no process names the folder", || {
        processes_naming(&folder).is_empty()
    });
    eventually("the folders are removed", || {
        fs::read_dir(temp.path())
            .expect("the folder")
            .next()
            .is_none()
    });
}

fn pids_of(child: &mut Child) -> Vec<u32> {
    let out = BufReader::new(child.stdout.take().expect("piped"));
    let line = out
        .lines()
        .map_while(Result::ok)
        .find(|line| line.starts_with("VICTIM "));
    let line = line.expect("the victim tells its servers");
    let pids = line.trim_start_matches("VICTIM [").trim_end_matches(']');
    pids.split(", ")
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

#[test]
fn nothing_is_left_by_a_panic() {
    die("panic");
}

#[test]
fn nothing_is_left_by_a_kill() {
    die("kill");
}

#[test]
fn nothing_is_left_by_an_exit() {
    die("exit");
}

#[test]
fn nothing_is_left_by_an_abort() {
    die("abort");
}
