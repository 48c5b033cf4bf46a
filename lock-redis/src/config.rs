//! Where the server is.

use std::fmt;

use lock_core::{Error, ErrorKind, Result};
use redis::{ClientTlsConfig, IntoConnectionInfo as _, ProtocolVersion, TlsCertificates};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::keys::Prefix;

/// A store on one Redis or Valkey server.
///
/// Its `Debug` form shows neither the password nor any other part of the URL.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RedisConfig {
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or `rediss://` for TLS, or `redis+unix:PATH`, read when the store
    /// is made.
    pub url: String,
    /// What every key begins with.
    #[serde(default)]
    pub prefix: Prefix,
}

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

impl RedisConfig {
    /// Reads `redis://USER:PASSWORD@HOST:PORT/DATABASE` with the parameter `prefix`. With `rediss://` the connection is
    /// encrypted and the server's certificate is verified, against the authorities of the system or those in the
    /// PEM file `ca`; `cert` and `key` are PEM files with which the client proves itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for anything else. No part of the URL is repeated but the name of an unknown
    /// parameter.
    pub fn from_url(url: &str) -> Result<Self> {
        let (mut url, prefix, files) = split(url)?;
        if !files.is_empty() {
            url.query_pairs_mut().extend_pairs(files);
        }
        let config = Self {
            url: url.to_string(),
            prefix: prefix.unwrap_or_default(),
        };
        config.client()?;
        Ok(config)
    }

    /// The same store with this [`prefix`](Self::prefix).
    #[must_use]
    pub fn with_prefix(mut self, prefix: Prefix) -> Self {
        self.prefix = prefix;
        self
    }

    pub(crate) fn client(&self) -> Result<redis::Client> {
        let (url, prefix, files) = split(&self.url)?;
        if prefix.is_some_and(|p| p != self.prefix) {
            return Err(bad(
                "the Redis URL names another prefix than the configuration; leave one of them out",
            ));
        }
        // The driver's own text may repeat a part of the URL.
        let unreadable = |_| {
            bad(
                "the Redis URL cannot be used; write redis://USER:PASSWORD@HOST:PORT/DATABASE, a database by its number",
            )
        };
        let info = url.as_str().into_connection_info().map_err(unreadable)?;
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP2);
        let info = info.set_redis_settings(settings);
        if url.scheme() != "rediss" {
            return redis::Client::open(info).map_err(unreadable);
        }
        // An application that has installed a provider of its own keeps it.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
        redis::Client::build_with_tls(info, certificates(&files)?).map_err(|_| {
            bad("the files ca, cert and key of the Redis URL hold no certificates and key in PEM form")
        })
    }

    /// Host and port.
    pub(crate) fn place(&self) -> Result<String> {
        let (url, ..) = split(&self.url)?;
        let port = url.port().unwrap_or(6379);
        Ok(url
            .host_str()
            .map_or_else(|| url.path().to_owned(), |host| format!("{host}:{port}")))
    }

    /// Whether it is another machine, reached without encryption.
    pub(crate) fn is_exposed(&self) -> Result<bool> {
        let (url, ..) = split(&self.url)?;
        Ok(match url.host() {
            _ if url.scheme() == "rediss" => false,
            None => false,
            Some(url::Host::Domain(name)) => match name.parse::<std::net::IpAddr>() {
                Ok(address) => !address.is_loopback(),
                Err(_) => name != "localhost",
            },
            Some(url::Host::Ipv4(address)) => !address.is_loopback(),
            Some(url::Host::Ipv6(address)) => !address.is_loopback(),
        })
    }
}

/// The parameters that name files, with their paths.
type Files = Vec<(String, String)>;

/// What the parameters for TLS name.
fn certificates(files: &Files) -> Result<TlsCertificates> {
    let read = |key: &str| {
        let Some((_, path)) = files.iter().find(|(k, _)| k == key) else {
            return Ok(None);
        };
        std::fs::read(path).map(Some).map_err(|error| {
            bad(format!("cannot read the file that the parameter {key} of the Redis URL names, {path}: {error}"))
        })
    };
    let client_tls = match (read("cert")?, read("key")?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
            client_cert,
            client_key,
        }),
        (None, None) => None,
        _ => {
            return Err(bad(
                "the Redis URL needs both cert and key, or none of them",
            ));
        }
    };
    Ok(TlsCertificates {
        client_tls,
        root_cert: read("ca")?,
    })
}

/// The URL without our own parameters, the prefix, and the files for TLS.
fn split(url: &str) -> Result<(Url, Option<Prefix>, Files)> {
    if !["redis://", "rediss://", "redis+unix:"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        return Err(bad(
            "not a Redis URL; write redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss:// for TLS",
        ));
    }
    let mut url = Url::parse(url).map_err(|_| {
        bad("the Redis URL cannot be read; percent-encode the special characters of the user and the password")
    })?;
    if url.fragment().is_some() {
        return Err(bad(
            "the Redis URL has a part after #, which it must not have",
        ));
    }
    let mut prefix = None;
    let mut rest = Vec::new();
    let mut files = Vec::new();
    for (key, value) in url.query_pairs() {
        match key.as_ref() {
            "prefix" => prefix = Some(Prefix::new(value.as_ref())?),
            "ca" | "cert" | "key" if url.scheme() == "rediss" => {
                files.push((key.into_owned(), value.into_owned()));
            }
            "user" | "pass" | "db" if url.scheme() == "redis+unix" => {
                rest.push((key.into_owned(), value.into_owned()));
            }
            unknown => {
                return Err(bad(format!(
                    "the Redis URL has an unknown parameter {unknown:?}; known are prefix, and with rediss:// ca, cert, key"
                )));
            }
        }
    }
    url.set_query(None);
    if !rest.is_empty() {
        url.query_pairs_mut().extend_pairs(rest);
    }
    Ok((url, prefix, files))
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("url", &"(hidden)")
            .field("prefix", &self.prefix)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_bad_ones_are_not_repeated() {
        let config = RedisConfig::from_url("redis://me:hunter2@[::1]:6380/3?prefix=app:").unwrap();
        assert_eq!(config.prefix.as_str(), "app:");
        assert_eq!(config.place().unwrap(), "[::1]:6380");
        let exposed = |url: &str| RedisConfig::from_url(url).unwrap().is_exposed().unwrap();
        assert!(exposed("redis://db.example") && exposed("redis://10.0.0.1"));
        assert!(!exposed("redis://localhost") && !exposed("redis://127.0.0.1:1"));
        assert!(!exposed("rediss://db.example?prefix=a"));
        let client = config.client().unwrap();
        assert_eq!(client.get_connection_info().redis_settings().db(), 3);
        assert!(!format!("{config:?}").contains("hunter2"));
        let mut other = config;
        other.url.push_str("?prefix=b");
        assert!(other.client().is_err());
        for bad in [
            "mysql://me:hunter2@h/x",
            "redis:hunter2",
            "redis://me:hunter2@h:x/0",
            "redis://me:hunter2@h/hunter2",
            "redis://me:hunter2@h/0?prefix=a*",
            "redis://me:hunter2@h/0?db=hunter2",
            "rediss://me:hunter2@h/0#insecure",
            "rediss://me:hunter2@h/0?cert=/dev/null",
            "rediss://me:hunter2@h/0?ca=/no/such/file",
            "redis://me:hunter2@h/0?ca=/dev/null",
        ] {
            let error = RedisConfig::from_url(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
