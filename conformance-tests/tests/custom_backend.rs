//! An in-house store in about a hundred lines, and its proof. Copy this to begin with your own.
//!
//! The store here keeps one small file per lock and takes the lock of the operating system on it for
//! each step, so several processes of one host can share it.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "an example in a test program")]

use std::fs::{self, File, OpenOptions};
use std::future::pending;
use std::io::{Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Fencing, Handle, Holder, Lease, LeaseState,
    LockName, LockPersistence, Metadata, Nonce, Observation, Owner, Release, Renewal, Request,
    Result, Token,
};
use serde::{Deserialize, Serialize};

/// A folder with one file per lock.
#[derive(Debug)]
struct FolderStore {
    folder: PathBuf,
    closed: AtomicBool,
    capabilities: Capabilities,
}

/// What a file holds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Entry {
    name: String,
    token: u64,
    version: u64,
    nonce: Option<String>,
    owner: String,
    metadata: String,
    ttl_micros: u64,
    expires_micros: u64,
    request: Option<String>,
    note: String,
}

fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Backend, "the lock file could not be used").with_source(error)
}

impl Entry {
    fn is_held(&self, now: u64) -> bool {
        self.nonce.is_some() && now < self.expires_micros
    }

    fn is_term(&self, lease: &Lease, now: u64) -> bool {
        self.is_held(now)
            && self.token == lease.token().get()
            && self.nonce.as_deref() == Some(lease.nonce().to_string().as_str())
    }

    fn holder(&self, now: u64) -> Result<Holder> {
        let left = Duration::from_micros(self.expires_micros.saturating_sub(now));
        let ttl = Duration::from_micros(self.ttl_micros);
        let token = Token::new(self.token)?;
        Ok(
            Holder::new(Owner::new(&self.owner)?, token, left, ttl, self.version)
                .with_metadata(Metadata::new(&self.metadata)?),
        )
    }

    fn state(&self, now: u64) -> Result<LeaseState> {
        Ok(match (&self.nonce, self.is_held(now)) {
            _ if self.version == 0 => LeaseState::Absent,
            (None, _) => LeaseState::Free {
                token: Token::new(self.token)?,
                note: Metadata::new(&self.note)?,
            },
            (Some(_), true) => LeaseState::Held(self.holder(now)?),
            (Some(_), false) => LeaseState::Expired(self.holder(now)?),
        })
    }

    fn free(&mut self, note: &str) {
        let (name, token) = (std::mem::take(&mut self.name), self.token);
        let (version, note) = (self.version + 1, note.to_owned());
        *self = Self {
            name,
            token,
            version,
            note,
            ..Self::default()
        };
    }
}

impl FolderStore {
    fn new(folder: PathBuf) -> Self {
        let closed = AtomicBool::new(false);
        // No push: the core polls. Tokens grow because a file is never removed.
        let capabilities = Capabilities::new("folder", Fencing::Monotone);
        Self {
            folder,
            closed,
            capabilities,
        }
    }

    /// One step on one entry, alone among all processes. The file is locked for microseconds.
    fn step<T>(&self, name: &LockName, act: impl FnOnce(&mut Entry, u64) -> T) -> Result<T> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store was closed"));
        }
        // Hexadecimal, in pieces that a file system takes: no name is cut, folded or escaped wrongly.
        let hex: String = name.as_str().bytes().map(|b| format!("{b:02x}")).collect();
        let pieces: Vec<&str> = (0..hex.len())
            .step_by(200)
            .map(|i| &hex[i..hex.len().min(i + 200)])
            .collect();
        let path = self.folder.join(pieces.join("/")).join("entry");
        fs::create_dir_all(path.parent().unwrap_or(&self.folder)).map_err(failed)?;
        let mut file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        file.lock().map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let mut entry = if text.is_empty() {
            Entry::default()
        } else {
            serde_json::from_str(&text).map_err(failed)?
        };
        let answer = act(&mut entry, now_micros());
        let fresh = serde_json::to_string(&entry).map_err(failed)?;
        if entry.version > 0 && fresh != text {
            file.set_len(0).map_err(failed)?;
            file.rewind().map_err(failed)?;
            file.write_all(fresh.as_bytes()).map_err(failed)?;
        }
        Ok(answer)
    }
}

#[async_trait]
impl LockPersistence for FolderStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    async fn prepare(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store was closed"));
        }
        fs::create_dir_all(&self.folder).map_err(failed)
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let range = self.capabilities.ttl;
        if claim.ttl < range.min || claim.ttl > range.max {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the ttl is out of range",
            ));
        }
        let nonce = Some(claim.nonce.to_string());
        self.step(&claim.name, |entry, now| {
            if entry.is_held(now) && entry.nonce != nonce {
                return Ok(Attempt::Held(entry.holder(now)?));
            }
            if !entry.is_held(now) {
                entry.token += 1;
                entry.request = None;
            }
            let token = Token::new(entry.token)?;
            entry.name = claim.name.to_string();
            entry.version += 1;
            entry.nonce = nonce;
            entry.owner = claim.owner.to_string();
            entry.metadata = claim.metadata.to_string();
            entry.ttl_micros = micros(claim.ttl);
            entry.expires_micros = now + micros(claim.ttl);
            Ok(Attempt::Granted(Lease::new(
                claim,
                token,
                claim.ttl,
                Handle::none(),
            )))
        })?
    }
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let one = |lease: &Lease| {
            self.step(lease.name(), |entry, now| {
                if !entry.is_term(lease, now) {
                    return Renewal::Gone;
                }
                entry.version += 1;
                entry.expires_micros = now + micros(lease.claim().ttl);
                let request = entry.request.as_deref().and_then(|r| r.parse().ok());
                Renewal::Renewed {
                    ttl: lease.claim().ttl,
                    request,
                }
            })
        };
        leases.iter().map(one).collect()
    }
    async fn release(&self, lease: &Lease) -> Result<Release> {
        self.step(lease.name(), |entry, now| {
            if !entry.is_term(lease, now) {
                return Release::NotHeld;
            }
            entry.free("");
            Release::Released
        })
    }
    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.step(&claim.name, |entry, _| {
            if entry.nonce == Some(claim.nonce.to_string()) {
                entry.free("");
            }
        })
    }
    async fn wait(&self, _: &Claim, _: &Holder) -> Result<()> {
        pending().await
    }
    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let state = self.step(name, |entry, now| entry.state(now))??;
        Ok(Observation::new(name.clone(), state))
    }
    async fn watch(&self, _: &Observation) -> Result<()> {
        pending().await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.prepare().await?;
        let mut found = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for file in fs::read_dir(folder).map_err(failed)? {
                let path = file.map_err(failed)?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Ok(entry) =
                    serde_json::from_str::<Entry>(&fs::read_to_string(path).map_err(failed)?)
                    && entry.name.starts_with(prefix)
                {
                    found.push(LockName::new(&entry.name)?);
                }
            }
        }
        found.sort();
        let mut listed = Vec::new();
        for name in found {
            listed.push(self.observe(&name).await?);
        }
        Ok(listed)
    }
    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.step(name, |entry, now| {
            if !entry.is_held(now) {
                return Ok(None);
            }
            entry.token += 1;
            entry.free(reason);
            Token::new(entry.token).map(Some)
        })?
    }
    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.step(name, |entry, now| {
            let held = entry.is_held(now);
            if held {
                entry.request = Some(request.to_string());
            }
            held
        })
    }
    async fn server_time(&self) -> Result<SystemTime> {
        Ok(SystemTime::now())
    }
    async fn sweep(&self, _: Duration) -> Result<u64> {
        Ok(0)
    }
    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

/// How the suite meets it.
#[derive(Debug)]
struct Folder(tempfile::TempDir);

impl Folder {
    fn edit(&self, name: &LockName, act: impl FnOnce(&mut Entry)) -> Answer<()> {
        let store = FolderStore::new(self.0.path().to_owned());
        store.step(name, |entry, _| act(entry)).map_err(Stop::from)
    }
}

#[async_trait]
impl Harness for Folder {
    async fn new() -> Answer<Self> {
        tempfile::tempdir().map(Self).map_err(Stop::failed)
    }
    fn backend(&self) -> &'static str {
        "folder"
    }
    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(FolderStore::new(self.0.path().to_owned())))
    }
    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }
    fn locator(&self) -> Answer<String> {
        Ok(self.0.path().to_string_lossy().into_owned())
    }
    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(FolderStore::new(locator.into())))
    }
    async fn wipe(&self, name: &LockName) -> Answer<()> {
        // The token must outlive the entry, so an operator empties it.
        self.edit(name, |entry| entry.free(""))
    }
    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        self.edit(name, |entry| {
            entry.owner = owner.to_string();
            entry.nonce = Some(Nonce::random().to_string());
        })
    }
    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable(
            "each step takes the lock for an instant",
        ))
    }
    async fn residue(&self) -> Answer<u64> {
        Ok(0)
    }
    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable("there is no server"))
    }
    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable("there is no server"))
    }
    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[
            (
                "c_renewal::a_blocked_entry_delays_no_other",
                "one file per lock",
            ),
            ("j_wakeups::a_release_ends_the_wait", "no push"),
            (
                "j_wakeups::no_release_falls_between_try_and_wait",
                "no push",
            ),
            ("j_wakeups::watch_tells_of_each_change", "no push"),
            (
                "contract::if_unchanged_is_tested_in_the_store",
                "not offered",
            ),
            ("contract::min_token_is_kept", "not offered"),
        ]
    }
}

conformance_tests::suite!(Folder);
