//! TLS.

use conformance_tests::servers::{Authority, Server};
use lock_core::{ErrorKind, LockPersistence as _};
use lock_sql::{MySqlConfig, SqlPersistence};

use crate::support::Place;

/// Real handshakes: a right certificate, a wrong host, an expired one, an unknown authority; and no plain text
/// where TLS was asked for.
#[tokio::test]
async fn tls_is_what_the_url_says() {
    let Some(plain) = Place::own(&[]).await else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(at, everybody).unwrap();
    let ca = Authority::new(at, "ca").unwrap();
    Authority::new(at, "stranger").unwrap();
    let mut servers = std::collections::BTreeMap::new();
    for (cert, host, days) in [
        ("right", "IP:127.0.0.1,DNS:localhost", 2),
        ("wrong", "DNS:elsewhere.example", 2),
        ("expired", "IP:127.0.0.1", -1),
    ] {
        ca.sign(cert, host, days).unwrap();
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(at.join(format!("{cert}.key")), everybody).unwrap();
        let files = [("ssl-cert", "crt"), ("ssl-key", "key")]
            .map(|(name, end)| (name, at.join(format!("{cert}.{end}")).display().to_string()));
        let server = tokio::task::spawn_blocking(move || {
            let [cert, key] = files;
            Server::mariadb()
                .with_setting(cert.0, cert.1)
                .with_setting(key.0, key.1)
                .start_program()
        });
        servers.insert(cert, Place::at(server.await.unwrap().unwrap()));
    }
    let none = "plain";
    servers.insert(none, plain);
    let ca = at.join("ca.crt").display().to_string();
    let stranger = at.join("stranger.crt").display().to_string();
    for (cert, parameters, good) in [
        (
            "right",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
            true,
        ),
        (
            "right",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={stranger}"),
            false,
        ),
        ("right", "ssl-mode=REQUIRED".into(), true),
        (
            "wrong",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
            false,
        ),
        ("wrong", format!("ssl-mode=VERIFY_CA&ssl-ca={ca}"), true),
        (
            "expired",
            format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
            false,
        ),
        (none, "ssl-mode=REQUIRED".into(), false),
        (none, format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"), false),
        (none, "ssl-mode=PREFERRED".into(), true),
    ] {
        let url = format!("{}?{parameters}", servers[cert].url);
        let config = MySqlConfig::from_url(&url).unwrap();
        let answer = SqlPersistence::mysql(&config).unwrap().prepare().await;
        match answer {
            Ok(()) => assert!(good, "{cert} {parameters} was taken"),
            Err(error) => {
                assert!(!good, "{cert} {parameters}: {error:?}");
                assert_eq!(
                    error.kind(),
                    ErrorKind::Tls,
                    "{cert} {parameters}: {error:?}"
                );
            }
        }
    }
}
