//! 67: through a transaction pooler (pgbouncer), where two statements seldom meet the same session.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use conformance_tests::Tier;
use conformance_tests::servers::Server;
use lock_core::{Attempt, LockPersistence as _, Release, Renewal};

use crate::support::{
    MINUTE, claim, denied, errors, eventually, fresh, granted, is_held, own, renew, store_at,
};

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
    // Five statements or more each: 10,000 in the long tier.
    let rounds = match Tier::of_this_run() {
        Tier::Ci => 60,
        Tier::Full => 500,
    };
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let store = store_at(&url, &table);
            tokio::spawn(async move {
                let mut wins = 0;
                for round in 0..rounds {
                    let own =
                        granted(&store, &claim(&format!("w{worker}'\\ ä{round}"), MINUTE)).await;
                    assert!(matches!(
                        renew(&store, &own).await.unwrap(),
                        Renewal::Renewed { .. }
                    ));
                    if let Attempt::Granted(lease) =
                        store.try_acquire(&claim("shared", MINUTE)).await.unwrap()
                    {
                        wins += 1;
                        assert!(is_held(&store, "shared").await);
                        assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
                    }
                    assert_eq!(store.release(&own).await.unwrap(), Release::Released);
                }
                wins
            })
        })
        .collect();
    let mut wins = 0;
    for worker in workers {
        wins += worker.await.unwrap();
    }
    assert!(wins > 0);
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
    eventually(
        "the pooler is still there",
        Duration::from_secs(1),
        || async { true },
    )
    .await;
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
