//! Servers in containers, through testcontainers. Needs the feature `containers`, an engine, and images:
//! `scripts/make-images` makes them where none can be fetched.
#![cfg(feature = "containers")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Kind, Server};

/// Starts, pauses, restarts, is killed, and goes; the port stays.
fn life(kind: Kind) {
    let Some(server) = servers::or_skip(Server::builder(kind).start_container()) else {
        return;
    };
    let (url, port) = (server.url().to_owned(), server.port().expect("ours"));
    assert!(!server.logs().expect("log").is_empty());

    server.pause().expect("pause");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the kernel answers");
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("timeout");
    stream.write_all(b"PING\r\n").expect("the kernel takes it");
    let silent = stream
        .read(&mut [0; 64])
        .expect_err("a paused server is silent");
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock, "{silent}");
    server.resume().expect("resume");
    server.wait_ready().expect("serves again");

    server.restart().expect("restart");
    server.kill().expect("kill");
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("nobody listens");
    server.restart().expect("restart after kill");
    assert_eq!(server.url(), url);

    assert_eq!(containers_of(std::process::id(), kind).len(), 1);
    assert!(
        docker(&[
            "ps",
            "--filter",
            &format!("publish={port}"),
            "--format",
            "{{.Ports}}"
        ])
        .iter()
        .all(|ports| ports.starts_with("127.0.0.1:") && !ports.contains("0.0.0.0")),
        "reachable from elsewhere"
    );
    drop(server);
    assert_eq!(
        containers_of(std::process::id(), kind),
        Vec::<String>::new()
    );
}

fn docker(words: &[&str]) -> Vec<String> {
    let out = Command::new("docker").args(words).output().expect("docker");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

fn containers_of(pid: u32, kind: Kind) -> Vec<String> {
    let name = format!("name=lock-test-{kind}-{pid}-");
    docker(&["ps", "--all", "--filter", &name, "--format", "{{.Names}}"])
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

/// Not a test: the program that is killed by the one below.
#[test]
fn victim() {
    if std::env::var_os("LOCK_TEST_VICTIM").is_some() {
        let server = servers::or_skip(Server::redis().start_container()).expect("a server");
        std::fs::write(
            std::env::var_os("LOCK_TEST_VICTIM").expect("set"),
            server.url(),
        )
        .expect("tell");
        std::thread::sleep(Duration::from_secs(60)); // until it is killed
    }
}

#[test]
fn no_container_is_left_by_a_kill() {
    if servers::or_skip(Server::redis().start_container()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let told = folder.path().join("told");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["victim", "--exact"])
        .env("LOCK_TEST_VICTIM", &told)
        .spawn()
        .expect("spawn");
    let pid = child.id();
    eventually("the victim starts its server", || told.exists());
    assert_eq!(containers_of(pid, Kind::Redis).len(), 1);
    child.kill().expect("kill");
    child.wait().expect("wait");
    eventually("the container is gone", || {
        containers_of(pid, Kind::Redis).is_empty()
    });
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "not within a minute: {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
