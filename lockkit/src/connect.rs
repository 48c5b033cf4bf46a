//! From a URL to a store.

use std::sync::Arc;

use lock_core::memory::MemoryStore;
use lock_core::{Error, ErrorKind, LockPersistence, Operation, Provider, Result};

/// A provider over the store that this URL names, prepared: its table is made when it is missing.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for a URL that names no store of this build, else why the store could
/// not be prepared. No part of the URL but its scheme is repeated, since it may hold a password; a path
/// of an SQLite file is no secret and is.
///
/// # Cancel safety
/// Dropped midway it leaves at most what preparing had made so far.
pub async fn connect(url: &str) -> Result<Provider> {
    ConnectOptions::new().connect(url).await
}

/// How to connect, where [`connect`] is not enough.
#[derive(Clone, Debug)]
#[must_use]
pub struct ConnectOptions {
    prepare: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ConnectOptions {
    /// As [`connect`] does it.
    pub const fn new() -> Self {
        Self { prepare: true }
    }

    /// Whether the store is prepared (its table made, its shape checked). Without it nothing is opened
    /// before the first request, and a user without the right to make a table is enough.
    pub const fn with_prepare(mut self, prepare: bool) -> Self {
        self.prepare = prepare;
        self
    }

    /// A provider over the store that this URL names.
    ///
    /// # Errors
    /// As [`connect`].
    ///
    /// # Cancel safety
    /// As [`connect`].
    pub async fn connect(&self, url: &str) -> Result<Provider> {
        Ok(Provider::new(self.persistence(url).await?))
    }

    /// The store that this URL names, for what a provider does not do.
    ///
    /// # Errors
    /// As [`connect`].
    ///
    /// # Cancel safety
    /// As [`connect`].
    pub async fn persistence(&self, url: &str) -> Result<Arc<dyn LockPersistence>> {
        let store = store(url).map_err(|e| e.with_operation(Operation::Connect))?;
        if self.prepare {
            store.prepare().await?;
        }
        Ok(store)
    }
}

/// Every scheme of this project's stores, with the feature that it needs.
const SCHEMES: [(&str, Option<&str>); 11] = [
    ("memory", None),
    ("mysql", Some("mysql")),
    ("mariadb", Some("mysql")),
    ("postgres", Some("postgres")),
    ("postgresql", Some("postgres")),
    ("quorum+redis", Some("redis")),
    ("quorum+rediss", Some("redis")),
    ("redis", Some("redis")),
    ("rediss", Some("redis")),
    ("sqlite", Some("sqlite")),
    ("zookeeper", Some("zookeeper")),
];

fn store(url: &str) -> Result<Arc<dyn LockPersistence>> {
    let bad = |text: String| Error::new(ErrorKind::InvalidConfig, text);
    let scheme = url.split_once(':').map(|(scheme, _)| scheme);
    match scheme {
        Some("memory") => match &url["memory:".len()..] {
            "" | "//" => Ok(Arc::new(MemoryStore::new())),
            _ => Err(bad("the memory store takes nothing after memory:".into())),
        },
        #[cfg(feature = "postgres")]
        Some("postgres" | "postgresql") => {
            let config = lock_sql::PostgresConfig::from_url(url)?;
            Ok(Arc::new(lock_sql::SqlPersistence::postgres(&config)?))
        }
        #[cfg(feature = "redis")]
        Some("redis" | "rediss") => {
            let config = lock_redis::RedisConfig::from_url(url)?;
            Ok(Arc::new(lock_redis::RedisPersistence::new(&config)?))
        }
        #[cfg(feature = "redis")]
        Some("quorum+redis" | "quorum+rediss") => Ok(Arc::new(lock_redis::quorum(url)?)),
        #[cfg(feature = "sqlite")]
        Some("sqlite") => {
            let config = lock_sql::SqliteConfig::from_url(url)?;
            Ok(Arc::new(lock_sql::SqlPersistence::sqlite(config)?))
        }
        #[cfg(feature = "mysql")]
        Some("mysql" | "mariadb") => {
            let config = lock_sql::MySqlConfig::from_url(url)?;
            Ok(Arc::new(lock_sql::SqlPersistence::mysql(&config)?))
        }
        #[cfg(feature = "zookeeper")]
        Some("zookeeper") => {
            let config = lock_zk::ZooKeeperConfig::from_url(url)?;
            Ok(Arc::new(lock_zk::ZooKeeperPersistence::new(config)))
        }
        scheme => Err(bad(refusal(scheme))),
    }
}

fn refusal(scheme: Option<&str>) -> String {
    let known = SCHEMES.map(|(scheme, _)| format!("{scheme}:")).join(", ");
    let feature = SCHEMES
        .iter()
        .find(|(name, _)| Some(*name) == scheme)
        .and_then(|(_, feature)| *feature);
    match (scheme, feature) {
        (Some(scheme), Some(feature)) => format!(
            "the scheme {scheme}: needs the feature `{feature}`, which is off in this build; enable it in \
             Cargo.toml"
        ),
        // A scheme is a word; what is not one may be part of a password.
        (Some(scheme), None)
            if !scheme.is_empty()
                && scheme.len() <= 16
                && scheme.bytes().all(|c| c.is_ascii_lowercase() || c == b'+') =>
        {
            format!("the scheme {scheme}: is not known; known are {known}")
        }
        _ => format!(
            "the store URL has no scheme that is known; known are {known}, as in sqlite:/var/lib/app/locks.db"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_without_its_feature_says_which() {
        assert!(refusal(Some("sqlite")).contains("feature `sqlite`"));
        assert!(refusal(Some("postgresql")).contains("feature `postgres`"));
    }

    #[test]
    fn unknown_schemes_list_what_is_known_and_repeat_nothing_else() {
        for url in [
            "zebra://me:hunter2@host/x",
            "me-hunter2:x@host",
            "hunter2",
            "",
            "memory:hunter2",
            "sqlite://me:hunter2@host/db",
            "mysql://me:hunter2@host",
            "mariadb://me:hunter2@host:hunter2/db",
            "postgres:hunter2",
            "postgresql://me:hunter2@host:hunter2/db",
            "quorum+redis://me:hunter2@host:hunter2/0",
            "redis://me:hunter2@host:hunter2/0",
            "rediss://me:hunter2@host:hunter2/0",
            "zookeeper://me:hunter2@host/x",
        ] {
            let error = store(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
        let error = store("zebra://me:x@host").expect_err("unknown");
        assert!(
            error.to_string().contains(
                "zebra: is not known; known are memory:, mysql:, mariadb:, postgres:, postgresql:, quorum+redis:, quorum+rediss:, redis:, rediss:, sqlite:, zookeeper:"
            ),
            "{error}"
        );
    }
}
