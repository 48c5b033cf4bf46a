//! What a store is told before it connects.

use std::fmt;
use std::str::FromStr;

use lock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The table that leases are kept in unless another is named.
pub const DEFAULT_TABLE: &str = "lock_leases";

/// Longest table name, in bytes: the least limit among the databases.
pub(crate) const MAX_TABLE_BYTES: usize = 63;

/// The name of the table: a letter or `_`, then letters, digits and `_`, all ASCII.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TableName(String);

impl TableName {
    /// Checks `name` and takes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when it has other characters, is empty or longer than 63 bytes.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let first = |c: u8| c.is_ascii_alphabetic() || c == b'_';
        let good = name.bytes().next().is_some_and(first)
            && name.bytes().all(|c| first(c) || c.is_ascii_digit())
            && name.len() <= MAX_TABLE_BYTES
            // SQLite keeps these names for itself.
            && !name.to_ascii_lowercase().starts_with("sqlite_");
        if !good {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the table name {name:?} cannot be used; give it 1 to {MAX_TABLE_BYTES} ASCII letters, \
                     digits and underscores, not starting with a digit or sqlite_"
                ),
            ));
        }
        Ok(Self(name))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as an identifier of standard SQL. The rule above leaves nothing to escape; the quotes
    /// are for names that are words of the language.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        allow(dead_code, reason = "MySQL has quotes of its own")
    )]
    pub(crate) fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self(DEFAULT_TABLE.into())
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TableName {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for TableName {
    type Error = Error;
    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<TableName> for String {
    fn from(name: TableName) -> Self {
        name.0
    }
}

#[cfg(feature = "mysql")]
mod mysql;

#[cfg(feature = "mysql")]
pub use mysql::{MySqlConfig, MySqlTls};

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
pub use postgres::PostgresConfig;

#[cfg(feature = "sqlite")]
pub use sqlite::SqliteConfig;

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::path::PathBuf;
    use std::time::Duration;

    use lock_core::{Error, ErrorKind, Result};
    use percent_encoding::percent_decode_str;
    use serde::{Deserialize, Serialize};

    use super::TableName;

    /// A store in one SQLite file. It has no secrets: `Debug` shows all of it.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[non_exhaustive]
    pub struct SqliteConfig {
        /// The database file, relative to the working directory or absolute. On a local disk: SQLite's
        /// WAL does not work over a network file system.
        pub path: PathBuf,
        /// The table.
        #[serde(default)]
        pub table: TableName,
        /// Whether `prepare` may make the file when it is missing; true by default.
        #[serde(default = "yes")]
        pub create: bool,
        /// How long a call asks again while other writers hold the file, if its caller does not give
        /// up first; a minute by default.
        #[serde(default = "a_minute")]
        pub busy_limit: Duration,
    }

    const fn yes() -> bool {
        true
    }

    const fn a_minute() -> Duration {
        Duration::from_secs(60)
    }

    impl SqliteConfig {
        /// The store in this file, made by `prepare` when it is missing, with the default table.
        #[must_use]
        pub fn new(path: impl Into<PathBuf>) -> Self {
            Self {
                path: path.into(),
                table: TableName::default(),
                create: yes(),
                busy_limit: a_minute(),
            }
        }

        /// The same store in this table.
        #[must_use]
        pub fn with_table(mut self, table: TableName) -> Self {
            self.table = table;
            self
        }

        /// The same store; whether the file may be made.
        #[must_use]
        pub fn with_create(mut self, create: bool) -> Self {
            self.create = create;
            self
        }

        /// The same store with this [`busy_limit`](Self::busy_limit).
        #[must_use]
        pub fn with_busy_limit(mut self, limit: Duration) -> Self {
            self.busy_limit = limit;
            self
        }

        /// Reads `sqlite:PATH`, `sqlite://PATH` or `sqlite:///ABSOLUTE`, with the parameters
        /// `?table=NAME` and `?create=true|false`. Characters of the path may be percent-encoded.
        ///
        /// # Errors
        /// [`ErrorKind::InvalidConfig`] for anything else. No part of the URL that could be a password
        /// is repeated.
        pub fn from_url(url: &str) -> Result<Self> {
            let bad = |text: &str| Err(Error::new(ErrorKind::InvalidConfig, text));
            let Some(rest) = url.strip_prefix("sqlite:") else {
                return bad("not an SQLite URL; write sqlite:PATH");
            };
            let (path, parameters) = rest.split_once('?').unwrap_or((rest, ""));
            let path = match path.strip_prefix("//") {
                Some(path) => {
                    if path
                        .split('/')
                        .next()
                        .is_some_and(|host| host.contains('@'))
                    {
                        return bad(
                            "an SQLite URL has no user, password or host; write sqlite:PATH",
                        );
                    }
                    path
                }
                None => path,
            };
            let Ok(path) = percent_decode_str(path).decode_utf8() else {
                return bad("the path of the SQLite URL is not UTF-8");
            };
            if path.is_empty() {
                return bad("the SQLite URL has no path; write sqlite:PATH");
            }
            if path == ":memory:" {
                return bad(
                    "an SQLite database in memory is seen by one connection only; use memory: instead",
                );
            }
            if path.contains('\0') {
                return bad("the path of the SQLite URL has a NUL character; remove it");
            }
            let mut config = Self::new(path.into_owned());
            for parameter in parameters.split('&').filter(|p| !p.is_empty()) {
                match parameter.split_once('=') {
                    Some(("table", name)) => config.table = TableName::new(name)?,
                    Some(("create", "true")) => config.create = true,
                    Some(("create", "false")) => config.create = false,
                    _ => {
                        return bad(
                            "the SQLite URL has an unknown parameter; known are table=NAME, \
                             create=true and create=false",
                        );
                    }
                }
            }
            Ok(config)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn urls_are_read_and_bad_ones_are_not_repeated() {
            let path = |url: &str| SqliteConfig::from_url(url).unwrap().path;
            assert_eq!(path("sqlite:a.db"), PathBuf::from("a.db"));
            assert_eq!(path("sqlite://a.db"), PathBuf::from("a.db"));
            assert_eq!(path("sqlite:/x/a.db"), PathBuf::from("/x/a.db"));
            assert_eq!(path("sqlite:///x/a%20b.db"), PathBuf::from("/x/a b.db"));
            let full = SqliteConfig::from_url("sqlite:a.db?table=t&create=false").unwrap();
            assert_eq!((full.table.as_str(), full.create), ("t", false));
            for bad in [
                "sqlite:",
                "sqlite://me:hunter2@host/a.db",
                "sqlite::memory:",
                "sqlite:a?mode=hunter2",
                "sqlite:a?table=a\"b",
                "file:a",
            ] {
                let error = SqliteConfig::from_url(bad).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
                assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_are_plain() {
        for good in ["locks", "_x9", "Select"] {
            assert!(TableName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "9a", "a b", "a\"b", "sqlite_x", "é", &"x".repeat(64)] {
            assert!(TableName::new(bad).is_err(), "{bad}");
        }
    }
}
