//! The in-house store: a key-value store with compare-and-swap, as many companies have one. Here it is
//! one file that processes share; think of it as the client of a service. What makes it a lock store is
//! `impl KeyValue` at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Result};
use lock_kv::{Got, KeyValue};
use serde::{Deserialize, Serialize};

/// A client of the key-value store in this folder.
#[derive(Debug)]
pub(crate) struct Kv {
    folder: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct Table {
    version: u64,
    entries: BTreeMap<String, (String, u64)>,
}

/// The clock of the store. Every process of this machine reads the same one.
pub(crate) fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Kv {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// One step, alone among all processes. A process killed in the middle leaves the old table.
    fn alone<T>(&self, act: impl FnOnce(&mut Table) -> (T, bool)) -> Result<T> {
        self.try_alone(act).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the in-house store failed").with_source(error)
        })
    }

    fn try_alone<T>(&self, act: impl FnOnce(&mut Table) -> (T, bool)) -> io::Result<T> {
        fs::create_dir_all(&self.folder)?;
        let lock = File::create(self.folder.join("lock"))?;
        lock.lock()?;
        let (file, fresh) = (self.folder.join("table"), self.folder.join("table.new"));
        let mut table: Table = match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Table::default(),
            Err(error) => return Err(error),
        };
        let (answer, changed) = act(&mut table);
        if changed {
            fs::write(&fresh, serde_json::to_vec(&table)?)?;
            fs::rename(&fresh, &file)?;
        }
        Ok(answer)
    }
}

#[async_trait]
impl KeyValue for Kv {
    fn backend(&self) -> &'static str {
        "in-house"
    }

    async fn get(&self, key: &str) -> Result<Got> {
        self.alone(|table| {
            let (value, version) = table.entries.get(key).cloned().unzip();
            let version = version.unwrap_or(0);
            let now = now();
            (
                Got {
                    value,
                    version,
                    now,
                },
                false,
            )
        })
    }

    async fn cas(
        &self,
        key: &str,
        version: u64,
        before: Option<Duration>,
        value: Option<String>,
    ) -> Result<bool> {
        self.alone(|table| {
            let current = table.entries.get(key).map_or(0, |(_, version)| *version);
            if current != version || before.is_some_and(|before| now() >= before) {
                return (false, false);
            }
            table.version += 1;
            match value {
                Some(value) => drop(table.entries.insert(key.to_owned(), (value, table.version))),
                None => drop(table.entries.remove(key)),
            }
            (true, true)
        })
    }

    async fn keys(&self, prefix: &str) -> Result<Vec<String>> {
        self.alone(|table| {
            let keys = table.entries.keys();
            (
                keys.filter(|key| key.starts_with(prefix))
                    .cloned()
                    .collect(),
                false,
            )
        })
    }
}
