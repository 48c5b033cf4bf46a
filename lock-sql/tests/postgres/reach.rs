//! Where a connection leads: replicas are refused, TLS is what the URL says.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use conformance_tests::servers::Authority;
use lock_core::{ErrorKind, LockPersistence as _};

use crate::support::{eventually, own, store, store_at};

/// A server that this file makes by itself, with what the harness does not offer; ended with this value.
struct Made {
    child: Child,
    port: u16,
}

impl Drop for Made {
    fn drop(&mut self) {
        // At once, and whether or not it is still there.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.child.wait();
    }
}

fn programs() -> Option<PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("postgres").exists())
        .collect();
    found.sort();
    found.pop()
}

/// PostgreSQL refuses to run as root.
fn as_user(program: &Path) -> Command {
    if rustix::process::getuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(program);
        command
    } else {
        Command::new(program)
    }
}

fn done(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new()
        .prefix("lock-pg-")
        .tempdir()
        .unwrap();
    if rustix::process::getuid().is_root() {
        done(
            Command::new("chown")
                .arg("postgres:postgres")
                .arg(folder.path()),
        );
    }
    folder
}

fn serve(bin: &Path, folder: &Path, settings: &[String]) -> Made {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = as_user(&bin.join("postgres"));
    command.arg("-D").arg(folder.join("data"));
    command.args([
        "-p",
        &free.to_string(),
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "fsync=off",
    ]);
    command
        .arg("-c")
        .arg(format!("unix_socket_directories={}", folder.display()));
    for setting in settings {
        command.args(["-c", setting]);
    }
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Made { child, port: free }
}

/// 73: a replica is refused at the start and at each connection; after its promotion it serves.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_refused_until_it_is_promoted() {
    let (Some(server), Some(bin)) = (own(&[]).await, programs()) else {
        return;
    };
    let Some(port) = server.port() else { return };
    let (primary, table) = store(&server).await;
    let held = crate::support::granted(
        &primary,
        &crate::support::claim("n", crate::support::MINUTE),
    )
    .await;
    let folder = folder();
    let data = folder.path().join("data");
    done(
        as_user(&bin.join("pg_basebackup"))
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "--no-sync",
            ])
            .args(["-p", &port.to_string()])
            .arg("-D")
            .arg(&data),
    );
    let replica = serve(&bin, folder.path(), &["max_connections=1000".into()]);
    let store = store_at(&server.url_at(replica.port), &table);
    eventually("the replica answers", Duration::from_secs(20), || {
        let store = std::sync::Arc::clone(&store);
        async move {
            !store
                .prepare()
                .await
                .is_err_and(|e| !e.message().contains("is a replica"))
        }
    })
    .await;
    let error = store.prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("is a replica"), "{error}");
    let error = store
        .try_acquire(&crate::support::claim("m", crate::support::MINUTE))
        .await
        .unwrap_err();
    assert!(
        error.message().contains("is a replica") && !error.is_indeterminate(),
        "{error:?}"
    );
    // What was granted before is known there, and what follows has a larger token.
    server_stop(&server).await;
    done(
        as_user(&bin.join("pg_ctl"))
            .arg("promote")
            .arg("-D")
            .arg(&data),
    );
    let seen =
        crate::support::denied(&store, &crate::support::claim("n", crate::support::MINUTE)).await;
    assert_eq!(seen.token, held.token());
    let burnt = store
        .revoke(held.name(), "failover")
        .await
        .unwrap()
        .unwrap();
    assert!(burnt > held.token());
}

async fn server_stop(server: &conformance_tests::servers::Server) {
    crate::support::on(server, conformance_tests::servers::Server::stop).await;
}

/// 139: real handshakes with a right certificate, a wrong host, an expired one and an unknown authority; and
/// no plain text where TLS was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn tls_is_what_the_url_says() {
    let Some(bin) = programs() else { return };
    if own(&[]).await.is_none() {
        return;
    }
    let made = folder();
    let at = made.path();
    let ca = Authority::new(at, "ca").unwrap();
    Authority::new(at, "stranger").unwrap();
    for (cert, hosts, days) in [
        ("right", "IP:127.0.0.1,DNS:localhost", 2),
        ("wrong", "DNS:elsewhere.example", 2),
        ("expired", "IP:127.0.0.1,DNS:localhost", -1),
    ] {
        ca.sign(cert, hosts, days).unwrap();
        if rustix::process::getuid().is_root() {
            done(
                Command::new("chown")
                    .arg("postgres:postgres")
                    .arg(at.join(format!("{cert}.key"))),
            );
        }
    }
    done(
        as_user(&bin.join("initdb"))
            .args([
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg("-D")
            .arg(at.join("data")),
    );
    let path = |file: &str| at.join(file).display().to_string();
    let right = path("ca.crt");
    let stranger = path("stranger.crt");
    let settings = |cert: &str| {
        vec![
            format!("ssl_cert_file={}", path(&format!("{cert}.crt"))),
            format!("ssl_key_file={}", path(&format!("{cert}.key"))),
        ]
    };
    let cases = [
        (
            "right",
            "on",
            format!("sslmode=verify-full&sslrootcert={right}"),
            true,
        ),
        (
            "right",
            "on",
            format!("sslmode=verify-full&sslrootcert={stranger}"),
            false,
        ),
        ("right", "on", "sslmode=require".into(), true),
        (
            "wrong",
            "on",
            format!("sslmode=verify-full&sslrootcert={right}"),
            false,
        ),
        (
            "wrong",
            "on",
            format!("sslmode=verify-ca&sslrootcert={right}"),
            true,
        ),
        (
            "expired",
            "on",
            format!("sslmode=verify-full&sslrootcert={right}"),
            false,
        ),
        ("right", "off", "sslmode=require".into(), false),
        (
            "right",
            "off",
            format!("sslmode=verify-full&sslrootcert={right}"),
            false,
        ),
        ("right", "off", "sslmode=prefer".into(), true),
    ];
    let mut running: Option<(String, Made)> = None;
    for (cert, ssl, parameters, good) in cases {
        let wanted = format!("{cert} {ssl}");
        if running.as_ref().is_none_or(|(is, ..)| *is != wanted) {
            drop(running.take());
            let mut settings = settings(cert);
            settings.push(format!("ssl={ssl}"));
            running = Some((wanted, serve(&bin, at, &settings)));
        }
        let port = running.as_ref().unwrap().1.port;
        let plain = store_at(
            &format!("postgres://postgres@127.0.0.1:{port}/postgres"),
            "t",
        );
        eventually("the server answers", Duration::from_secs(20), || {
            let plain = std::sync::Arc::clone(&plain);
            async move { plain.prepare().await.is_ok() }
        })
        .await;
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?{parameters}");
        let answer = store_at(&url, "t").prepare().await;
        match answer {
            Ok(()) => assert!(good, "{cert} {ssl} {parameters} was taken"),
            Err(error) => {
                assert!(!good, "{cert} {ssl} {parameters}: {error:?}");
                assert_eq!(error.kind(), ErrorKind::Tls, "{parameters}: {error:?}");
            }
        }
    }
}
