//! MySQL and MariaDB.

use std::fmt;
use std::path::PathBuf;

use lock_core::{Error, ErrorKind, Result};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use url::Url;

use super::TableName;
use crate::layout::{Parameters, PeerTable};

/// A store in a MySQL or MariaDB database. `Debug` and serialization leave the password out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct MySqlConfig {
    /// Name or address of the server.
    pub host: String,
    /// Its port; 3306 by default.
    #[serde(default = "default_port")]
    pub port: u16,
    /// The path of its socket, in place of host and port.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// The account.
    pub user: String,
    /// Its password. Not written when this is serialized.
    #[serde(default, skip_serializing)]
    pub password: Option<String>,
    /// The database, which must exist.
    pub database: String,
    /// The table.
    #[serde(default)]
    pub table: TableName,
    /// What is asked of TLS.
    #[serde(default)]
    pub ssl_mode: MySqlTls,
    /// A PEM file with the authorities to trust, beside those of the system.
    #[serde(default)]
    pub ssl_ca: Option<PathBuf>,
    /// A PEM file with a certificate of our own; goes with `ssl_key`.
    #[serde(default)]
    pub ssl_cert: Option<PathBuf>,
    /// A PEM file with its key.
    #[serde(default)]
    pub ssl_key: Option<PathBuf>,
    /// The table of another system, whose election is joined, in place of one of ours.
    #[serde(default)]
    pub peers: Option<PeerTable>,
}

/// What is asked of TLS, in the words of MySQL's own clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum MySqlTls {
    /// Plain text.
    Disabled,
    /// TLS if the server offers it, else plain text: no protection from anybody who can answer in its
    /// place.
    #[default]
    Preferred,
    /// TLS, whoever answers.
    Required,
    /// TLS, with a certificate from an authority that is trusted.
    VerifyCa,
    /// That, and the certificate is for this host.
    VerifyIdentity,
}

const fn default_port() -> u16 {
    3306
}

impl fmt::Debug for MySqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlConfig")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("socket", &self.socket)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .field("table", &self.table)
            .field("ssl_mode", &self.ssl_mode)
            .field("ssl_ca", &self.ssl_ca)
            .field("ssl_cert", &self.ssl_cert)
            .field("ssl_key", &self.ssl_key)
            .field("peers", &self.peers)
            .finish()
    }
}

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

fn decoded(text: &str, what: &str) -> Result<String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| bad(format!("the {what} of the MySQL URL is not UTF-8")))
}

impl MySqlConfig {
    /// The store in this database, on port 3306, without a password and with the default table.
    #[must_use]
    pub fn new(
        host: impl Into<String>,
        user: impl Into<String>,
        database: impl Into<String>,
    ) -> Self {
        Self {
            host: host.into(),
            port: default_port(),
            socket: None,
            user: user.into(),
            password: None,
            database: database.into(),
            table: TableName::default(),
            ssl_mode: MySqlTls::default(),
            ssl_ca: None,
            ssl_cert: None,
            ssl_key: None,
            peers: None,
        }
    }

    /// The same store with this password.
    #[must_use]
    pub fn with_password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The same store on this port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The same store in this table.
    #[must_use]
    pub fn with_table(mut self, table: TableName) -> Self {
        self.table = table;
        self
    }

    /// The same store in a table of another system; in `table`, if another than the default is named.
    #[must_use]
    pub fn with_peers(mut self, peers: PeerTable) -> Self {
        self.peers = Some(peers);
        self
    }

    /// The same store with this demand on TLS.
    #[must_use]
    pub fn with_ssl_mode(mut self, mode: MySqlTls) -> Self {
        self.ssl_mode = mode;
        self
    }

    /// Reads `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE`, or the same with `mariadb:`, with the
    /// parameters `table`, `ssl-mode` (`DISABLED`, `PREFERRED`, `REQUIRED`, `VERIFY_CA`,
    /// `VERIFY_IDENTITY`), `ssl-ca`, `ssl-cert`, `ssl-key` and `socket`; and for a table of another
    /// system `layout` (`leader_leases`, `master_lock`), `peer_skew`, `peer_zone` and `peer_lease`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for anything else. No part of the URL that could be a password is
    /// repeated.
    pub fn from_url(url: &str) -> Result<Self> {
        const FORM: &str = "write mysql://USER:PASSWORD@HOST/DATABASE";
        let url = Url::parse(url).map_err(|e| bad(format!("not a MySQL URL ({e}); {FORM}")))?;
        if !matches!(url.scheme(), "mysql" | "mariadb") {
            return Err(bad(format!("not a MySQL URL; {FORM}")));
        }
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| bad(format!("the MySQL URL has no host; {FORM}")))?;
        let database = decoded(url.path().trim_start_matches('/'), "database")?;
        if database.is_empty() || database.contains(['/', '\0']) {
            return Err(bad(format!("the MySQL URL names no database; {FORM}")));
        }
        let user = decoded(url.username(), "user")?;
        if user.is_empty() {
            return Err(bad(format!("the MySQL URL names no user; {FORM}")));
        }
        // The brackets of an IPv6 address belong to the URL, not to the address.
        let mut config = Self::new(host.trim_matches(['[', ']']), user, database)
            .with_port(url.port().unwrap_or_else(default_port));
        if let Some(password) = url.password() {
            config.password = Some(decoded(password, "password")?);
        }
        let mut peers = Parameters::default();
        for (key, value) in url.query_pairs() {
            match &*key {
                key if peers.take(key, &value)? => {}
                "table" => config.table = TableName::new(value)?,
                "ssl-mode" => {
                    config.ssl_mode = match &*value.to_ascii_uppercase() {
                        "DISABLED" => MySqlTls::Disabled,
                        "PREFERRED" => MySqlTls::Preferred,
                        "REQUIRED" => MySqlTls::Required,
                        "VERIFY_CA" => MySqlTls::VerifyCa,
                        "VERIFY_IDENTITY" => MySqlTls::VerifyIdentity,
                        _ => {
                            return Err(bad(
                                "the ssl-mode of the MySQL URL is not known; known are DISABLED, PREFERRED, \
                                 REQUIRED, VERIFY_CA and VERIFY_IDENTITY",
                            ));
                        }
                    }
                }
                "ssl-ca" => config.ssl_ca = Some(PathBuf::from(&*value)),
                "ssl-cert" => config.ssl_cert = Some(PathBuf::from(&*value)),
                "ssl-key" => config.ssl_key = Some(PathBuf::from(&*value)),
                "socket" => config.socket = Some(PathBuf::from(&*value)),
                _ => {
                    return Err(bad(format!(
                        "the MySQL URL has an unknown parameter; known are table, ssl-mode, ssl-ca, ssl-cert, \
                         ssl-key, socket, {}",
                        Parameters::NAMES
                    )));
                }
            }
        }
        config.peers = peers.table()?;
        if config.ssl_cert.is_some() != config.ssl_key.is_some() {
            return Err(bad(
                "ssl-cert and ssl-key go together; give both or neither",
            ));
        }
        Ok(config)
    }

    pub(crate) fn options(&self) -> MySqlConnectOptions {
        let mut options = MySqlConnectOptions::new()
            .host(&self.host)
            .port(self.port)
            .username(&self.user)
            .database(&self.database)
            .ssl_mode(match self.ssl_mode {
                MySqlTls::Disabled => MySqlSslMode::Disabled,
                MySqlTls::Preferred => MySqlSslMode::Preferred,
                MySqlTls::Required => MySqlSslMode::Required,
                MySqlTls::VerifyCa => MySqlSslMode::VerifyCa,
                MySqlTls::VerifyIdentity => MySqlSslMode::VerifyIdentity,
            });
        if let Some(password) = &self.password {
            options = options.password(password);
        }
        if let Some(socket) = &self.socket {
            options = options.socket(socket);
        }
        if let Some(ca) = &self.ssl_ca {
            options = options.ssl_ca(ca);
        }
        if let (Some(cert), Some(key)) = (&self.ssl_cert, &self.ssl_key) {
            options = options.ssl_client_cert(cert).ssl_client_key(key);
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_bad_ones_are_not_repeated() {
        let config = MySqlConfig::from_url(
            "mariadb://me:p%40ss@[::1]:3307/app?table=t&ssl-mode=verify_ca&ssl-ca=/x/ca.pem",
        )
        .unwrap();
        assert_eq!((config.host.as_str(), config.port), ("::1", 3307));
        assert_eq!(config.password.as_deref(), Some("p@ss"));
        assert_eq!(
            (config.database.as_str(), config.table.as_str()),
            ("app", "t")
        );
        assert_eq!(config.ssl_mode, MySqlTls::VerifyCa);
        assert!(!format!("{config:?}").contains("p@ss"));
        for bad in [
            "mysql:",
            "mysql://me:hunter2@host",
            "mysql://me:hunter2@host/",
            "mysql://:hunter2@host/db",
            "mysql://me:hunter2@host:x/db",
            "mysql://me:hunter2@host/db?ssl-mode=hunter2",
            "mysql://me:hunter2@host/db?hunter2=1",
            "mysql://me:hunter2@host/db?ssl-cert=a",
            "mysql://me:hunter2@host/db?table=a`b",
            "mysql://me:hunter2@host/db?layout=hunter2",
            "mysql://me:hunter2@host/db?layout=master_lock&peer_skew=hunter2",
            "postgres://me:hunter2@host/db",
        ] {
            let error = MySqlConfig::from_url(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
