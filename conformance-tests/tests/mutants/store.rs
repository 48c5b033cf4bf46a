//! A store in memory that can be wrong in one way. Without a fault it is right.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Fencing, Handle, Holder, Lease, LeaseState,
    LockName, LockPersistence, Metadata, Nonce, Observation, Owner, Release, Renewal, Request,
    Result, Token,
};
use tokio::sync::watch;

use crate::Fault;

#[derive(Debug)]
struct Entry {
    token: u64,
    version: u64,
    note: Metadata,
    held: Option<Held>,
    /// What a fault keeps of an earlier term.
    old_request: Option<Request>,
    queued: Vec<Claim>,
}

#[derive(Clone, Debug)]
struct Held {
    claim: Claim,
    granted: Instant,
    expires: Instant,
    request: Option<Request>,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<String, Entry>,
    names: BTreeMap<String, LockName>,
    version: u64,
    floor: u64,
    down: bool,
    blocked: BTreeMap<String, Instant>,
}

/// One client. `FAULT` is the place of its fault in the list, 0 for none.
#[derive(Debug)]
pub(crate) struct Broken<const FAULT: usize> {
    table: Arc<Mutex<Table>>,
    changed: Arc<watch::Sender<u64>>,
    busy: Arc<AtomicBool>,
    clients: Arc<AtomicUsize>,
    skew: Duration,
    closed: AtomicBool,
    capabilities: Capabilities,
}

impl<const FAULT: usize> Broken<FAULT> {
    fn is(fault: Fault) -> bool {
        fault as usize == FAULT
    }

    fn client(&self) -> Self {
        let n = self.clients.fetch_add(1, Ordering::SeqCst);
        Self {
            table: Arc::clone(&self.table),
            changed: Arc::clone(&self.changed),
            busy: Arc::clone(&self.busy),
            clients: Arc::clone(&self.clients),
            skew: if Self::is(Fault::ClientClockDecides) && n > 0 {
                Duration::from_secs(3600)
            } else {
                Duration::ZERO
            },
            closed: AtomicBool::new(false),
            capabilities: self.capabilities.clone(),
        }
    }

    fn now(&self) -> Instant {
        Instant::now() + self.skew
    }

    fn key(name: &LockName) -> String {
        let text = name.as_str();
        if Self::is(Fault::NamesFoldCase) {
            return text.to_lowercase();
        }
        if Self::is(Fault::NamesAreTruncated) {
            let mut end = text.len().min(64);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            return text[..end].to_owned();
        }
        text.to_owned()
    }

    fn open<T>(&self, act: impl FnOnce(&mut Table, Instant) -> T) -> Result<T> {
        if self.closed.load(Ordering::SeqCst) && !Self::is(Fault::CloseIsIgnored) {
            return Err(Error::new(ErrorKind::Unavailable, "closed"));
        }
        let mut table = self.table.lock().unwrap();
        if table.down {
            return Err(Error::new(ErrorKind::Unavailable, "the server is down"));
        }
        Ok(act(&mut table, self.now()))
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    /// A call takes a moment in which it can be dropped.
    async fn enter(&self) -> Result<()> {
        if Self::is(Fault::DroppedCallBlocksTheNext) {
            while self.busy.swap(true, Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::task::yield_now().await;
            self.busy.store(false, Ordering::SeqCst);
        } else {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn owns(nonce: Nonce, owner: &Owner, held: &Held) -> bool {
        if Self::is(Fault::OwnerTextDecides) {
            return *owner == held.claim.owner;
        }
        nonce == held.claim.nonce
    }

    fn alive(entry: &Entry, claim_ttl: Option<Duration>, now: Instant) -> bool {
        entry.held.as_ref().is_some_and(|held| {
            if Self::is(Fault::NeverExpires) {
                return true;
            }
            let expires = match claim_ttl {
                Some(ttl) if Self::is(Fault::TakersTtlCounts) => held.granted + ttl,
                _ => held.expires,
            };
            now < expires
        })
    }

    fn holder(entry: &Entry, held: &Held, now: Instant) -> Holder {
        let mut remaining = held.expires.saturating_duration_since(now);
        if Self::is(Fault::RemainingIsRoundedDown) {
            remaining = Duration::from_secs(remaining.as_secs());
        }
        let version = if Self::is(Fault::VersionNeverChanges) {
            1
        } else {
            entry.version
        };
        let token = Token::new(entry.token).unwrap();
        let holder = Holder::new(
            held.claim.owner.clone(),
            token,
            remaining,
            held.claim.ttl,
            version,
        );
        if Self::is(Fault::MetadataIsLost) {
            return holder;
        }
        holder.with_metadata(held.claim.metadata.clone())
    }

    fn state(entry: Option<&Entry>, now: Instant) -> LeaseState {
        let Some(entry) = entry else {
            return LeaseState::Absent;
        };
        match &entry.held {
            None => LeaseState::Free {
                token: Token::new(entry.token).unwrap(),
                note: entry.note.clone(),
            },
            Some(held) if Self::alive(entry, None, now) => {
                LeaseState::Held(Self::holder(entry, held, now))
            }
            Some(held) => LeaseState::Expired(Self::holder(entry, held, now)),
        }
    }

    fn free(&self, table: &mut Table, key: &str, now: Instant) {
        table.version += 1;
        let version = table.version;
        if let Some(entry) = table.entries.get_mut(key) {
            entry.old_request = entry.held.take().and_then(|h| h.request);
            entry.version = version;
            entry.note = Metadata::default();
            if Self::is(Fault::TokenStartsAgainAfterRelease) {
                entry.token = 0;
            }
            if let Some(next) = entry.queued.pop() {
                entry.token += 1;
                entry.held = Some(Held {
                    expires: now + next.ttl,
                    granted: now,
                    claim: next,
                    request: None,
                });
            }
        }
    }

    async fn until(
        &self,
        stale: impl Fn(LeaseState) -> bool + Sync,
        name: &LockName,
    ) -> Result<()> {
        let look =
            || self.open(|table, now| stale(Self::state(table.entries.get(&Self::key(name)), now)));
        if Self::is(Fault::WaitLooksBeforeItListens) {
            if !look()? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            let _missed = self.changed.subscribe().changed().await;
            return Ok(());
        }
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if !Self::is(Fault::WaitNeverLooks) && !look()? {
                return Ok(());
            }
            let _told = changed.changed().await;
            if Self::is(Fault::WaitNeverLooks) {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl<const FAULT: usize> LockPersistence for Broken<FAULT> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.open(|_, _| ())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        self.enter().await?;
        let range = self.capabilities.ttl;
        let mut ttl = claim.ttl;
        if ttl < range.min || ttl > range.max {
            if !Self::is(Fault::TtlIsCutSilently) {
                return Err(Error::new(ErrorKind::InvalidConfig, "the ttl"));
            }
            ttl = ttl.min(range.max / 2);
        }
        let key = Self::key(&claim.name);
        if Self::is(Fault::AcquireReadsThenWrites) {
            let held = self.open(|table, now| {
                let entry = table.entries.get(&key)?;
                let held = entry.held.as_ref()?;
                let theirs = Self::alive(entry, None, now) && held.claim.nonce != claim.nonce;
                theirs.then(|| Self::holder(entry, held, now))
            })?;
            if let Some(holder) = held {
                return Ok(Attempt::Held(holder));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let attempt = self.open(|table, now| {
            table.names.insert(key.clone(), claim.name.clone());
            table.version += 1;
            let (version, floor) = (table.version, table.floor);
            let entry = table.entries.entry(key).or_insert_with(|| Entry {
                token: floor,
                version,
                note: Metadata::default(),
                held: None,
                old_request: None,
                queued: Vec::new(),
            });
            let alive = Self::alive(entry, Some(claim.ttl), now)
                && !Self::is(Fault::AcquireReadsThenWrites);
            let mut token = entry.token + 1;
            let mut request = None;
            let mut expires = now + ttl;
            if Self::is(Fault::ExpiryIsRoundedDown) {
                expires = now + Duration::from_secs(ttl.as_secs());
            }
            if let Some(held) = entry.held.clone() {
                let ours = Self::owns(claim.nonce, &claim.owner, &held);
                if alive && !ours {
                    if Self::is(Fault::DeniedTryBurnsAToken) {
                        entry.token += 1;
                    }
                    if Self::is(Fault::OnceStaysInTheQueue) {
                        entry.queued.push(claim.clone());
                    }
                    return Attempt::Held(Self::holder(entry, &held, now));
                }
                if alive && !Self::is(Fault::RepeatedTryGetsANewToken) {
                    token = entry.token;
                    request = held.request.clone();
                    if Self::is(Fault::RepeatedTryKeepsTheOldExpiry) {
                        expires = held.expires;
                    }
                }
                let same_term = held.claim.nonce == claim.nonce;
                if !alive && same_term && Self::is(Fault::OldNonceRevivesItsTerm) {
                    token = entry.token;
                }
                let changed = claim.if_unchanged.is_some_and(|v| v != entry.version);
                if !alive && changed && !Self::is(Fault::IfUnchangedIsIgnored) {
                    return Attempt::Held(Self::holder(entry, &held, now));
                }
            }
            if Self::is(Fault::TokenRepeats) {
                token = 1;
            }
            if let Some(min) = claim.min_token
                && !Self::is(Fault::MinTokenIsIgnored)
            {
                token = token.max(min.get());
            }
            if Self::is(Fault::RequestReachesTheNextTerm) && request.is_none() {
                request = entry.old_request.take();
            }
            entry.token = token;
            entry.version = version;
            entry.held = Some(Held {
                claim: claim.clone(),
                granted: now,
                expires,
                request,
            });
            let token = Token::new(token).unwrap();
            Attempt::Granted(Lease::new(claim, token, ttl, Handle::none()))
        })?;
        self.tell();
        Ok(attempt)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        if let Err(error) = self.enter().await {
            return vec![Err(error); leases.len()];
        }
        let mut order: Vec<&Lease> = leases.iter().collect();
        if Self::is(Fault::BatchIsAnsweredInTheOrderOfNames) {
            order.sort_by_key(|l| l.name().clone());
        }
        if Self::is(Fault::BlockedEntryDelaysTheBatch) {
            let until = self.table.lock().unwrap().blocked.values().max().copied();
            tokio::time::sleep_until(until.unwrap_or_else(Instant::now).into()).await;
        }
        let answers: Vec<Result<Renewal>> = order
            .into_iter()
            .map(|lease| {
                self.open(|table, now| {
                    let blocked = table.blocked.get(&Self::key(lease.name()));
                    if blocked.is_some_and(|until| now < *until) {
                        return Err(Error::new(ErrorKind::Timeout, "the entry is locked"));
                    }
                    table.version += 1;
                    let version = table.version;
                    let Some(entry) = table.entries.get_mut(&Self::key(lease.name())) else {
                        return Ok(Renewal::Gone);
                    };
                    let alive =
                        Self::alive(entry, None, now) || Self::is(Fault::RenewRevivesTheExpired);
                    let token = entry.token == lease.token().get()
                        || Self::is(Fault::RenewIgnoresTheToken)
                        || Self::is(Fault::RenewalChangesTheToken);
                    let Some(held) = entry.held.as_mut().filter(|held| {
                        let ours = Self::owns(lease.nonce(), lease.owner(), held)
                            || Self::is(Fault::RenewIgnoresTheNonce);
                        alive && token && ours
                    }) else {
                        return Ok(Renewal::Gone);
                    };
                    if !Self::is(Fault::RenewalDoesNotExtend) {
                        held.expires = now + lease.claim().ttl;
                    }
                    let request = held.request.clone();
                    if Self::is(Fault::RequestIsToldOnce) {
                        held.request = None;
                    }
                    entry.version = version;
                    if Self::is(Fault::RenewalChangesTheToken) {
                        entry.token += 1;
                    }
                    Ok(Renewal::Renewed {
                        ttl: lease.claim().ttl,
                        request,
                    })
                })
                .flatten()
            })
            .collect();
        if Self::is(Fault::OneBadEntryFailsTheBatch) && answers.contains(&Ok(Renewal::Gone)) {
            return vec![Ok(Renewal::Gone); leases.len()];
        }
        answers
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        self.enter().await?;
        let key = Self::key(lease.name());
        let answer = self.open(|table, now| {
            let Some(entry) = table.entries.get_mut(&key) else {
                return Release::NotHeld;
            };
            let unchecked = Self::is(Fault::ReleaseChecksNoOwner);
            let ours =
                Self::alive(entry, None, now) && (unchecked || entry.token == lease.token().get());
            let Some(held) = entry.held.as_mut().filter(|held| {
                ours && (unchecked || Self::owns(lease.nonce(), lease.owner(), held))
            }) else {
                return Release::NotHeld;
            };
            if Self::is(Fault::ReleaseExtends) {
                held.expires = now + held.claim.ttl;
                return Release::Released;
            }
            self.free(table, &key, now);
            Release::Released
        })?;
        if !Self::is(Fault::ReleaseWakesNobody) {
            self.tell();
        }
        Ok(answer)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.enter().await?;
        let key = Self::key(&claim.name);
        self.open(|table, now| {
            let Some(entry) = table.entries.get_mut(&key) else {
                return;
            };
            let ours = |held: &Held| Self::owns(claim.nonce, &claim.owner, held);
            if entry.held.as_ref().is_some_and(ours) && !Self::is(Fault::WithdrawLeavesTheEntry) {
                self.free(table, &key, now);
            }
        })?;
        self.tell();
        Ok(())
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let same = |state| matches!(state, LeaseState::Held(h) if h.token == seen.token);
        self.until(same, &claim.name).await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.enter().await?;
        let state = self.open(|table, now| Self::state(table.entries.get(&Self::key(name)), now));
        Ok(Observation::new(name.clone(), state?))
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        if Self::is(Fault::WatchTellsNothing) {
            std::future::pending::<()>().await;
        }
        let same = |state: LeaseState| match (&state, &seen.state) {
            (LeaseState::Held(a), LeaseState::Held(b)) => a.token == b.token,
            (LeaseState::Expired(a), LeaseState::Expired(b)) => a.token == b.token,
            (a, b) => a == b,
        };
        self.until(same, &seen.name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.open(|table, now| {
            table
                .names
                .iter()
                .filter(|(_, name)| {
                    if Self::is(Fault::ListFoldsCase) {
                        return name
                            .as_str()
                            .to_lowercase()
                            .starts_with(&prefix.to_lowercase());
                    }
                    name.as_str().starts_with(prefix)
                })
                .filter_map(|(key, name)| {
                    let state = Self::state(Some(table.entries.get(key)?), now);
                    Some(Observation::new(name.clone(), state))
                })
                .collect()
        })
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.enter().await?;
        let note = Metadata::new(reason)?;
        let key = Self::key(name);
        let burnt = self.open(|table, now| {
            let entry = table.entries.get_mut(&key)?;
            if !Self::alive(entry, None, now) {
                return None;
            }
            if !Self::is(Fault::RevokeBurnsNoToken) {
                entry.token += 1;
            }
            let token = entry.token;
            self.free(table, &key, now);
            let entry = table.entries.get_mut(&key)?;
            entry.note = note;
            Token::new(token).ok()
        })?;
        self.tell();
        Ok(burnt)
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.open(|table, now| {
            let Some(entry) = table.entries.get_mut(&Self::key(name)) else {
                return false;
            };
            if !Self::alive(entry, None, now) {
                return false;
            }
            entry.held.as_mut().is_some_and(|held| {
                held.request = Some(request.clone());
                true
            })
        })
    }

    async fn server_time(&self) -> Result<SystemTime> {
        Ok(SystemTime::now())
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.open(|table, now| {
            let before = table.entries.len();
            if unused_for.is_zero() {
                let floor = table.entries.values().map(|e| e.token).max().unwrap_or(0);
                if !Self::is(Fault::SweepForgetsTheTokens) {
                    table.floor = floor;
                }
                table.entries.retain(|_, entry| {
                    Self::alive(entry, None, now) && !Self::is(Fault::SweepRemovesTheHeld)
                });
            }
            (before - table.entries.len()) as u64
        })
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

#[async_trait]
impl<const FAULT: usize> Harness for Broken<FAULT> {
    async fn new() -> Answer<Self> {
        let mut capabilities = Capabilities::new("mutant", Fencing::Monotone);
        capabilities.push = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        Ok(Self {
            table: Arc::default(),
            changed: Arc::new(watch::Sender::new(0)),
            busy: Arc::default(),
            clients: Arc::default(),
            skew: Duration::ZERO,
            closed: AtomicBool::new(false),
            capabilities,
        })
    }
    fn backend(&self) -> &'static str {
        "mutant"
    }
    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(self.client()))
    }
    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }
    fn locator(&self) -> Answer<String> {
        Err(Stop::not_applicable("in memory"))
    }
    async fn open_at(_: &str) -> Answer<Arc<dyn LockPersistence>> {
        Err(Stop::not_applicable("in memory"))
    }
    async fn wipe(&self, name: &LockName) -> Answer<()> {
        let mut table = self.table.lock().unwrap();
        let floor = table
            .entries
            .remove(&Self::key(name))
            .map_or(0, |e| e.token);
        table.floor = table.floor.max(floor);
        Ok(())
    }
    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let mut table = self.table.lock().unwrap();
        if let Some(held) = table
            .entries
            .get_mut(&Self::key(name))
            .and_then(|e| e.held.as_mut())
        {
            held.claim.owner = owner.clone();
            held.claim.nonce = Nonce::random();
        }
        Ok(())
    }
    async fn block(&self, name: &LockName, span: Duration) -> Answer<()> {
        let mut table = self.table.lock().unwrap();
        let until = Instant::now() + span;
        table.blocked.insert(Self::key(name), until);
        Ok(())
    }
    async fn residue(&self) -> Answer<u64> {
        let table = self.table.lock().unwrap();
        Ok(table.entries.values().map(|e| e.queued.len() as u64).sum())
    }
    async fn stop_server(&self) -> Answer<()> {
        self.table.lock().unwrap().down = true;
        // Whoever waits loses the connection.
        self.tell();
        Ok(())
    }
    async fn start_server(&self) -> Answer<()> {
        let mut table = self.table.lock().unwrap();
        table.down = false;
        if Self::is(Fault::RestartForgetsTheLeases) {
            table.floor = table.entries.values().map(|e| e.token).max().unwrap_or(0);
            table.entries.clear();
        }
        Ok(())
    }
    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[
            (
                "d_pause::a_stopped_process_finds_its_term_over",
                "in memory",
            ),
            (
                "e_release::a_killed_process_blocks_for_its_ttl_only",
                "in memory",
            ),
            ("contract::processes_exclude_each_other", "in memory"),
        ]
    }
}
