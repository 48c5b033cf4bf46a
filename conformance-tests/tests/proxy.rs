//! The proxy before a server of the test's own, and before a real one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use conformance_tests::servers::{self, Direction, Flow, Proxy, Server};

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

/// A server that sends back what it gets, and counts what it got.
struct Echo {
    port: u16,
    got: Arc<AtomicUsize>,
}

fn echo() -> Echo {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let port = listener.local_addr().expect("address").port();
    let got = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&got);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counted = Arc::clone(&counted);
            thread::spawn(move || {
                let (mut from, mut to) = (&stream, &stream);
                let mut part = [0; 4096];
                while let Ok(n @ 1..) = from.read(&mut part) {
                    counted.fetch_add(n, Ordering::SeqCst);
                    if to.write_all(&part[..n]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    Echo { port, got }
}

impl Echo {
    fn got(&self) -> usize {
        self.got.load(Ordering::SeqCst)
    }
}

fn client(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

/// Sends five bytes and waits for them.
fn round_trip(stream: &mut TcpStream) {
    stream.write_all(b"hello").expect("send");
    assert_eq!(answer(stream), *b"hello");
}

fn answer(stream: &mut TcpStream) -> [u8; 5] {
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).expect("answer");
    answer
}

/// Nothing comes for a while, and the connection stays open.
fn assert_silent(stream: &mut TcpStream) {
    stream
        .set_read_timeout(Some(Duration::from_millis(150)))
        .expect("timeout");
    let silent = stream.read(&mut [0; 8]).expect_err("silence");
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock, "{silent}");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
}

#[test]
fn proxy_passes_and_counts() {
    let echo = echo();
    let proxy = Proxy::start(echo.port).expect("proxy");
    let mut one = client(&proxy);
    let mut two = client(&proxy);
    round_trip(&mut one);
    round_trip(&mut two);
    round_trip(&mut two);
    eventually("the bytes are counted", || {
        proxy.bytes(Direction::ToClient) == 15
    });
    assert_eq!(proxy.bytes(Direction::ToServer), 15);
    assert_eq!((proxy.accepted(), proxy.open()), (2, 2));
    // The end of one direction is passed on, and the other still delivers.
    one.write_all(b"hello").expect("send");
    one.shutdown(std::net::Shutdown::Write).expect("shutdown");
    assert_eq!(answer(&mut one), *b"hello");
    assert_eq!(one.read(&mut [0; 8]).expect("end"), 0);
    eventually("it is counted out", || proxy.open() == 1);
}

#[test]
fn proxy_cuts_and_resets() {
    let echo = echo();
    let proxy = Proxy::start(echo.port).expect("proxy");
    let mut stream = client(&proxy);
    round_trip(&mut stream);
    proxy.cut();
    assert_eq!(stream.read(&mut [0; 8]).expect("a clean end"), 0);
    let mut stream = client(&proxy);
    round_trip(&mut stream);
    proxy.reset();
    let reset = stream.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    // New ones are as before.
    round_trip(&mut client(&proxy));
    proxy.refuse(true);
    let mut stream = client(&proxy);
    assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
    proxy.heal();
    round_trip(&mut client(&proxy));
}

#[test]
fn proxy_holds_each_way_and_delivers_after() {
    let echo = echo();
    let proxy = Proxy::start(echo.port).expect("proxy");
    let mut stream = client(&proxy);
    round_trip(&mut stream);

    proxy.set_flow(Direction::ToServer, Flow::Hold);
    stream.write_all(b"later").expect("send");
    assert_silent(&mut stream);
    assert_eq!(echo.got(), 5, "a held request reached the server");
    proxy.heal();
    assert_eq!(answer(&mut stream), *b"later");

    proxy.set_flow(Direction::ToClient, Flow::Hold);
    stream.write_all(b"heard").expect("send");
    eventually("the request takes effect", || echo.got() == 15);
    assert_silent(&mut stream);
    proxy.heal();
    assert_eq!(answer(&mut stream), *b"heard");

    proxy.black_hole();
    let mut new = client(&proxy);
    new.write_all(b"newer")
        .expect("the proxy's kernel takes it");
    assert_silent(&mut new);
    assert_eq!(echo.got(), 15);
    proxy.cut(); // ends them in the black hole
    proxy.heal();
    assert_eq!(new.read(&mut [0; 8]).unwrap_or(0), 0);
    assert_eq!(echo.got(), 15, "what was cut off never arrives");
}

#[test]
fn proxy_swallows() {
    let echo = echo();
    let proxy = Proxy::start(echo.port).expect("proxy");
    let mut stream = client(&proxy);
    round_trip(&mut stream);
    proxy.set_flow(Direction::ToClient, Flow::Swallow);
    stream.write_all(b"taken").expect("send");
    eventually("the request takes effect", || echo.got() == 10);
    assert_silent(&mut stream);
    proxy.heal();
    round_trip(&mut stream); // the swallowed answer does not come before this one

    proxy.swallow_next_answer();
    assert!(proxy.is_swallowing());
    stream.write_all(b"taken").expect("send");
    assert_eq!(
        stream.read(&mut [0; 8]).expect("a close"),
        0,
        "no answer, and the connection closed"
    );
    assert_eq!(echo.got(), 20, "the request took effect");
    assert!(!proxy.is_swallowing());
    round_trip(&mut client(&proxy));
}

#[test]
fn proxy_half_opens() {
    let echo = echo();
    let proxy = Proxy::start(echo.port).expect("proxy");
    let mut stream = client(&proxy);
    round_trip(&mut stream);
    proxy.forsake(Direction::ToServer);
    let before = echo.got();
    stream
        .write_all(b"alone")
        .expect("the client can still send");
    assert_silent(&mut stream);
    assert_eq!(echo.got(), before, "what it sends reached the server");
    assert_eq!(proxy.open(), 1);
    proxy.cut();
    assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));

    let mut stream = client(&proxy);
    round_trip(&mut stream);
    proxy.forsake(Direction::ToClient);
    assert!(
        matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)),
        "the client's side is closed"
    );
    eventually("only the server's side is open", || proxy.open() == 1);
}

#[test]
fn proxy_delays_without_slowing_the_stream() {
    let echo = echo();
    let proxy = Proxy::start(echo.port).expect("proxy");
    let mut stream = client(&proxy);
    round_trip(&mut stream);
    let delay = Duration::from_millis(100);
    proxy.set_delay(Direction::ToServer, delay);
    let sent = Instant::now();
    round_trip(&mut stream);
    assert!(sent.elapsed() >= delay, "{:?}", sent.elapsed());
    // Twenty in flight are delayed together: one after another would take two seconds.
    let sent = Instant::now();
    for _ in 0..20 {
        stream.write_all(b"hello").expect("send");
        thread::sleep(Duration::from_millis(2)); // so that they are twenty parts
    }
    for _ in 0..20 {
        assert_eq!(answer(&mut stream), *b"hello");
    }
    let took = sent.elapsed();
    assert!(took >= delay && took < 10 * delay, "{took:?}");
}

#[test]
fn proxy_stands_before_a_real_server() {
    let Some(server) = servers::or_skip(Server::redis().start_program()) else {
        return;
    };
    let proxy = Proxy::start(server.port().expect("ours")).expect("proxy");
    assert!(
        server
            .url_at(proxy.port())
            .ends_with(&proxy.port().to_string())
    );
    assert_eq!(redis(proxy.port(), "SET a b"), "+OK");
    proxy.swallow_next_answer();
    let mut stream = client(&proxy);
    stream.write_all(b"INCR n\r\n").expect("ask");
    assert_eq!(stream.read(&mut [0; 8]).expect("a close"), 0);
    assert_eq!(redis(proxy.port(), "GET n"), "$1 1");
}
