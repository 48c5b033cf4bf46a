//! TLS.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use conformance_tests::servers::{self, Authority, Server};
use lock_core::{ErrorKind, LockPersistence as _};
use lock_redis::{RedisConfig, RedisPersistence};

/// 139: real handshakes with a right certificate, one for another host, an expired one and an unknown authority; no plain
/// text where TLS was asked for; a client that must prove itself.
#[tokio::test]
async fn tls_is_what_the_url_says() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
    let authority = Authority::new(at, "ca").unwrap();
    Authority::new(at, "stranger").unwrap();
    let path = |file: String| at.join(file).display().to_string();
    let mut ports = BTreeMap::new();
    let mut running = Vec::new();
    for (cert, host, days, clients) in [
        ("right", "IP:127.0.0.1,DNS:localhost", 2, "no"),
        ("wrong", "DNS:elsewhere.example", 2, "no"),
        ("expired", "IP:127.0.0.1", -1, "no"),
        ("strict", "IP:127.0.0.1", 2, "yes"),
    ] {
        authority.sign(cert, host, days).unwrap();
        std::fs::set_permissions(
            at.join(format!("{cert}.key")),
            PermissionsExt::from_mode(0o644),
        )
        .unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let builder = Server::redis()
            .with_setting("tls-port", port.to_string())
            .with_setting("tls-cert-file", path(format!("{cert}.crt")))
            .with_setting("tls-key-file", path(format!("{cert}.key")))
            .with_setting("tls-ca-cert-file", path("ca.crt".into()))
            .with_setting("tls-auth-clients", clients);
        let server = tokio::task::spawn_blocking(|| servers::or_skip(builder.start_program()));
        let Some(server) = server.await.unwrap() else {
            return;
        };
        ports.insert(cert, port);
        ports.insert("plain", server.port().unwrap());
        running.push(server);
    }
    let ca = format!("ca={}", path("ca.crt".into()));
    let me = format!(
        "cert={}&key={}",
        path("right.crt".into()),
        path("right.key".into())
    );
    for (server, parameters, good) in [
        ("right", ca.clone(), true),
        (
            "right",
            format!("ca={}", path("stranger.crt".into())),
            false,
        ),
        ("right", String::new(), false),
        ("wrong", ca.clone(), false),
        ("expired", ca.clone(), false),
        ("strict", format!("{ca}&{me}"), true),
        ("plain", ca.clone(), false),
    ] {
        let url = format!("rediss://127.0.0.1:{}/?{parameters}", ports[server]);
        let store = RedisPersistence::new(&RedisConfig::from_url(&url).unwrap()).unwrap();
        match store.prepare().await {
            Ok(()) => assert!(good, "{server} {parameters} was taken"),
            Err(error) => {
                assert!(!good, "{server} {parameters}: {error:?}");
                // A plain port says nothing at all.
                let kind = if server == "plain" {
                    ErrorKind::Unavailable
                } else {
                    ErrorKind::Tls
                };
                assert_eq!(error.kind(), kind, "{server} {parameters}: {error:?}");
            }
        }
    }
    // Without proving itself: refused, whether in the handshake or after it.
    let url = format!("rediss://127.0.0.1:{}/?{ca}", ports["strict"]);
    let store = RedisPersistence::new(&RedisConfig::from_url(&url).unwrap()).unwrap();
    store.prepare().await.unwrap_err();
    drop(running);
}
