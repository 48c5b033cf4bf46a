//! 67: through a transaction pooler (pgbouncer), where two statements seldom meet the same session.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use conformance_tests::Tier;
use conformance_tests::servers::Server;
use lock_core::LockPersistence as _;

use crate::processes::{sum, together};
use crate::support::{MINUTE, claim, denied, errors, fresh, granted, own, store_at};

/// A pooler of one's own; ended with this value.
struct Pooler {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

const PROGRAM: &str = "/usr/sbin/pgbouncer";

impl Pooler {
    /// `None` when there is none, which is told.
    fn start(server: &Server, sessions: u16, more: &str) -> Option<Self> {
        let port = server.port()?;
        if !std::path::Path::new(PROGRAM).exists() {
            assert!(
                std::env::var_os("LOCK_TEST_REQUIRE").is_none_or(|v| v.is_empty()),
                "pgbouncer is missing: apt-get install pgbouncer"
            );
            println!("SKIPPED postgres: pgbouncer is missing; apt-get install pgbouncer");
            return None;
        }
        let folder = tempfile::Builder::new()
            .prefix("lock-pooler-")
            .tempdir()
            .unwrap();
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let path = folder.path().join("pgbouncer.ini");
        // `auth_type = any` takes the user from the database's line.
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {free}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = {sessions}\nmax_client_conn = 200\n{more}\n"
        );
        fs::write(&path, config).unwrap();
        let mut open = fs::metadata(folder.path()).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut open, 0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        // It refuses to run as root.
        let root = rustix::process::getuid().is_root();
        let mut command = if root {
            let mut command = Command::new("setpriv");
            command.args([
                "--reuid=postgres",
                "--regid=postgres",
                "--clear-groups",
                PROGRAM,
            ]);
            command
        } else {
            Command::new(PROGRAM)
        };
        let child = command
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pooler = Self {
            child,
            port: free,
            _folder: folder,
        };
        let answers = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            std::net::TcpStream::connect(("127.0.0.1", free)).is_ok()
        });
        assert!(answers, "pgbouncer does not listen");
        Some(pooler)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn through(sessions: u16, more: &str) {
    let Some(server) = own(&[]).await else { return };
    let Some(pooler) = Pooler::start(&server, sessions, more) else {
        return;
    };
    let table = fresh("t");
    let url = server.url_at(pooler.port);
    let first = store_at(&url, &table);
    first.prepare().await.unwrap();
    // Five calls or more each: 10,000 in the long tier.
    let rounds = match Tier::of_this_run() {
        Tier::Ci => 60,
        Tier::Full => 500,
    };
    let started = std::time::Instant::now();
    let outputs = together(4, &format!("work {rounds}"), &url, &table).await;
    let (wins, calls) = (sum(&outputs, "wins "), sum(&outputs, "calls "));
    println!(
        "4 processes over {sessions} sessions: {calls} calls in {:?}, {wins} wins of the shared name",
        started.elapsed()
    );
    assert!(wins > 0 && calls >= 4 * rounds * 5, "{outputs:?}");
    assert_eq!(first.list("w").await.unwrap().len(), 4 * rounds);

    // Nothing to listen on: the waiter polls, and is told all the same.
    let held = granted(&first, &claim("n", MINUTE)).await;
    let other = store_at(&url, &table);
    let mine = claim("n", MINUTE);
    let seen = denied(&other, &mine).await;
    let waiting = tokio::spawn(async move { other.wait(&mine, &seen).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    first.release(&held).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let log = errors(&server).await;
    assert_eq!(log, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_session_for_all() {
    through(1, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_sessions_for_all() {
    through(5, "").await;
}

/// Told to ignore what it does not know, it takes our settings and drops them.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_ignores_settings() {
    through(5, "ignore_startup_parameters = options,extra_float_digits").await;
}
