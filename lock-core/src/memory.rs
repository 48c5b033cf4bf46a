//! A store in the memory of one process: the reference for every rule of [`LockPersistence`], and the
//! single-node mode.
//!
//! Where one process is all there is, an application keeps its election code and hands it this store:
//! it then always leads. Two processes do not see each other's memory store and would *both* lead, so
//! choose it explicitly, never as a fallback for a store that cannot be reached.
//!
//! A lease here expires like any other: a process that is suspended for longer than the ttl finds its
//! own lease expired and takes a new term with a new token.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::capabilities::{Capabilities, Fencing, TtlRange};
use crate::claim::{
    Attempt, Claim, Handle, Holder, Lease, LeaseState, Observation, Release, Renewal, Request,
};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::{LockName, Metadata, Nonce, Owner};
use crate::persistence::LockPersistence;
use crate::quorum::{Vouch, Witness};
use crate::token::Token;

const BACKEND: &str = "memory";

/// Names share this many bells. A waiter that was woken for another name looks and sleeps again.
const BELLS: usize = 64;

/// A store in memory. Clones are further clients of the same entries; [`close`](LockPersistence::close)
/// ends one client only.
///
/// **Tokens** count up per name from the wall clock in microseconds at the making of the store, so
/// they normally also grow over a restart of the process; after a sweep a name goes on above every
/// token that was swept. A wall clock that was set back between two runs can break the growth over
/// that restart, and [`with_first_token`](Self::with_first_token) mends it.
///
/// Claims of mode [`Queue`](crate::Mode::Queue) keep no place in line.
pub struct MemoryStore {
    shared: Arc<Shared>,
    open: AtomicBool,
}

struct Shared {
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    /// The wall clock at `born`.
    wall: SystemTime,
    born: Moment,
    table: Mutex<Table>,
    bells: [Notify; BELLS],
}

#[derive(Debug)]
struct Table {
    entries: BTreeMap<LockName, Entry>,
    /// No new name gets a token up to this.
    floor: u64,
    last_version: u64,
}

#[derive(Debug)]
struct Entry {
    /// The last token of this name.
    token: Token,
    version: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Free { since: Moment, note: Metadata },
    Leased(Leased),
}

#[derive(Debug)]
struct Leased {
    owner: Owner,
    nonce: Nonce,
    metadata: Metadata,
    ttl: Duration,
    expires: Moment,
    request: Option<Request>,
}

impl Leased {
    fn new(claim: &Claim, now: Moment) -> Self {
        Self {
            owner: claim.owner.clone(),
            nonce: claim.nonce,
            metadata: claim.metadata.clone(),
            ttl: claim.ttl,
            expires: now.after(claim.ttl),
            request: None,
        }
    }
}

impl Entry {
    /// The unexpired lease, if there is one.
    fn live(&self, now: Moment) -> Option<&Leased> {
        match &self.state {
            State::Leased(leased) if now < leased.expires => Some(leased),
            State::Leased(_) | State::Free { .. } => None,
        }
    }

    /// Whether the unexpired lease is this term.
    fn is_term(&self, lease: &Lease, now: Moment) -> bool {
        self.token == lease.token() && self.live(now).is_some_and(|l| l.nonce == lease.nonce())
    }

    fn holder(&self, leased: &Leased, now: Moment) -> Holder {
        Holder::new(
            leased.owner.clone(),
            self.token,
            leased.expires.since(now),
            leased.ttl,
            self.version,
        )
        .with_metadata(leased.metadata.clone())
    }

    fn observed(&self, now: Moment) -> LeaseState {
        match &self.state {
            State::Free { note, .. } => LeaseState::Free {
                token: self.token,
                note: note.clone(),
            },
            State::Leased(leased) if now < leased.expires => {
                LeaseState::Held(self.holder(leased, now))
            }
            State::Leased(leased) => LeaseState::Expired(self.holder(leased, now)),
        }
    }

    /// Since when nobody holds it.
    fn unused_since(&self) -> Moment {
        match &self.state {
            State::Free { since, .. } => *since,
            State::Leased(leased) => leased.expires,
        }
    }
}

impl Table {
    fn version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    fn free(&mut self, name: &LockName, note: Metadata, now: Moment) {
        let version = self.version();
        if let Some(entry) = self.entries.get_mut(name) {
            entry.version = version;
            entry.state = State::Free { since: now, note };
        }
    }
}

impl MemoryStore {
    /// An empty store on the clock of the operating system.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store that judges expiry by this clock.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "the floor of the tokens and the server time are wall time by definition; nothing \
                  is compared with them"
    )]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let wall = SystemTime::now();
        let micros = wall
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(0));
        let mut capabilities = Capabilities::new(BACKEND, Fencing::Monotone);
        capabilities.push = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        capabilities.ttl = TtlRange::new(
            Duration::from_millis(1),
            Duration::from_secs(24 * 60 * 60),
            Duration::from_nanos(1),
        );
        Self {
            shared: Arc::new(Shared {
                born: clock.now(),
                clock,
                capabilities,
                wall,
                table: Mutex::new(Table {
                    entries: BTreeMap::new(),
                    floor: micros,
                    last_version: 0,
                }),
                bells: std::array::from_fn(|_| Notify::new()),
            }),
            open: AtomicBool::new(true),
        }
    }

    /// The same store, whose names that have no token yet begin with this one.
    #[must_use]
    pub fn with_first_token(self, first: Token) -> Self {
        self.table().floor = first.get().saturating_sub(1);
        self
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is consistent between any two statements that could panic.
        self.shared
            .table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The present and the table, while this client is open.
    fn enter(&self, operation: Operation) -> Result<(Moment, MutexGuard<'_, Table>)> {
        if !self.open.load(Ordering::Acquire) {
            return Err(error(ErrorKind::Unavailable, "the store was closed")
                .with_retryable(false)
                .with_operation(operation));
        }
        let table = self.table();
        // Read under the lock: what is judged later is judged at a later moment.
        Ok((self.shared.clock.now(), table))
    }

    /// What waiters of `name` listen to.
    fn bell(&self, name: &LockName) -> &Notify {
        let hash = name
            .as_str()
            .bytes()
            .fold(0_usize, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        &self.shared.bells[hash % BELLS]
    }

    /// Returns once `done` says so, looking again whenever something changes around `name`.
    async fn until(
        &self,
        operation: Operation,
        name: &LockName,
        done: impl Fn(Option<&Entry>, Moment) -> bool + Send,
    ) -> Result<()> {
        loop {
            let mut rung = pin!(self.bell(name).notified());
            // Listen first, look second: no change falls between.
            rung.as_mut().enable();
            {
                let (now, table) = self.enter(operation)?;
                if done(table.entries.get(name), now) {
                    return Ok(());
                }
            }
            rung.await;
        }
    }
}

fn error(kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message).with_backend(BACKEND)
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Another client of the same entries, which is open.
impl Clone for MemoryStore {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            open: AtomicBool::new(true),
        }
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("entries", &self.table().entries.len())
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockPersistence for MemoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.enter(Operation::Prepare).map(drop)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let range = self.shared.capabilities.ttl;
        if claim.ttl < range.min || claim.ttl > range.max {
            return Err(error(
                ErrorKind::InvalidConfig,
                format!(
                    "the ttl is {:?}; this store takes {:?} to {:?}",
                    claim.ttl, range.min, range.max
                ),
            )
            .with_operation(Operation::TryAcquire)
            .with_name(claim.name.clone()));
        }
        let (now, mut table) = self.enter(Operation::TryAcquire)?;
        let mut next = table.floor.saturating_add(1);
        if let Some(entry) = table.entries.get(&claim.name) {
            next = entry.token.get().saturating_add(1);
            if let State::Leased(leased) = &entry.state {
                let live = now < leased.expires;
                if live && leased.nonce == claim.nonce {
                    next = entry.token.get();
                } else if live || claim.if_unchanged.is_some_and(|v| v != entry.version) {
                    return Ok(Attempt::Held(entry.holder(leased, now)));
                }
            }
        }
        if let Some(min) = claim.min_token {
            next = next.max(min.get());
        }
        let token = Token::new(next).map_err(|e| {
            e.with_backend(BACKEND)
                .with_operation(Operation::TryAcquire)
                .with_name(claim.name.clone())
                .with_retryable(false)
        })?;
        let mut leased = Leased::new(claim, now);
        if let Some(entry) = table.entries.get_mut(&claim.name)
            && let State::Leased(before) = &mut entry.state
            && before.nonce == claim.nonce
            && now < before.expires
        {
            // The same term: a wish that was left for it stays.
            leased.request = before.request.take();
        }
        let version = table.version();
        let entry = Entry {
            token,
            version,
            state: State::Leased(leased),
        };
        table.entries.insert(claim.name.clone(), entry);
        drop(table);
        self.bell(&claim.name).notify_waiters();
        Ok(Attempt::Granted(Lease::new(
            claim,
            token,
            claim.ttl,
            Handle::none(),
        )))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        leases
            .iter()
            .map(|lease| {
                let (now, mut table) = self.enter(Operation::Renew)?;
                let version = table.version();
                let entry = table.entries.get_mut(lease.name());
                let Some(entry) = entry.filter(|e| e.is_term(lease, now)) else {
                    return Ok(Renewal::Gone);
                };
                let State::Leased(leased) = &mut entry.state else {
                    return Ok(Renewal::Gone);
                };
                leased.ttl = lease.claim().ttl;
                leased.expires = now.after(leased.ttl);
                entry.version = version;
                Ok(Renewal::Renewed {
                    ttl: leased.ttl,
                    request: leased.request.clone(),
                })
            })
            .collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let (now, mut table) = self.enter(Operation::Release)?;
        let entry = table.entries.get(lease.name());
        if !entry.is_some_and(|e| e.is_term(lease, now)) {
            return Ok(Release::NotHeld);
        }
        table.free(lease.name(), Metadata::default(), now);
        drop(table);
        self.bell(lease.name()).notify_waiters();
        Ok(Release::Released)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let (now, mut table) = self.enter(Operation::Withdraw)?;
        let ours = table.entries.get(&claim.name).is_some_and(
            |e| matches!(&e.state, State::Leased(leased) if leased.nonce == claim.nonce),
        );
        if ours {
            table.free(&claim.name, Metadata::default(), now);
            drop(table);
            self.bell(&claim.name).notify_waiters();
        }
        Ok(())
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let other_than_seen = |entry: Option<&Entry>, now| {
            entry.is_none_or(|e| e.live(now).is_none() || e.token != seen.token)
        };
        self.until(Operation::Wait, &claim.name, other_than_seen)
            .await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let (now, table) = self.enter(Operation::Observe)?;
        let state = table
            .entries
            .get(name)
            .map_or(LeaseState::Absent, |e| e.observed(now));
        Ok(Observation::new(name.clone(), state))
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        let other_than_seen = |entry: Option<&Entry>, now| {
            let state = entry.map_or(LeaseState::Absent, |e| e.observed(now));
            !same_but_for_renewals(&state, &seen.state)
        };
        self.until(Operation::Watch, &seen.name, other_than_seen)
            .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let (now, table) = self.enter(Operation::List)?;
        Ok(table
            .entries
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(prefix))
            .map(|(name, entry)| Observation::new(name.clone(), entry.observed(now)))
            .collect())
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let note = Metadata::new(reason).map_err(|e| {
            e.with_backend(BACKEND)
                .with_operation(Operation::Revoke)
                .with_name(name.clone())
        })?;
        let (now, mut table) = self.enter(Operation::Revoke)?;
        let Some(entry) = table.entries.get_mut(name) else {
            return Ok(None);
        };
        if entry.live(now).is_none() {
            return Ok(None);
        }
        let token = Token::new(entry.token.get().saturating_add(1)).map_err(|e| {
            e.with_backend(BACKEND)
                .with_operation(Operation::Revoke)
                .with_name(name.clone())
        })?;
        entry.token = token;
        table.free(name, note, now);
        drop(table);
        self.bell(name).notify_waiters();
        Ok(Some(token))
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let (now, mut table) = self.enter(Operation::Request)?;
        let Some(entry) = table.entries.get_mut(name) else {
            return Ok(false);
        };
        match &mut entry.state {
            State::Leased(leased) if now < leased.expires => {
                leased.request = Some(request.clone());
                Ok(true)
            }
            State::Leased(_) | State::Free { .. } => Ok(false),
        }
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let (now, table) = self.enter(Operation::ServerTime)?;
        drop(table);
        Ok(self.shared.wall + now.since(self.shared.born))
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let (now, mut table) = self.enter(Operation::Sweep)?;
        let mut floor = table.floor;
        let before = table.entries.len();
        table.entries.retain(|_, entry| {
            let since = entry.unused_since();
            let stays = now < since.after(unused_for) || now < since;
            if !stays {
                floor = floor.max(entry.token.get());
            }
            stays
        });
        table.floor = floor;
        Ok((before - table.entries.len()) as u64)
    }

    async fn close(&self) -> Result<()> {
        self.open.store(false, Ordering::Release);
        for bell in &self.shared.bells {
            bell.notify_waiters();
        }
        Ok(())
    }
}

/// It is there as long as its process is, and so are those who hold its leases.
#[async_trait]
impl Witness for MemoryStore {
    async fn vouch(&self) -> Result<Vouch> {
        self.enter(Operation::Prepare).map(drop)?;
        let server = format!("{:p}", Arc::as_ptr(&self.shared));
        Ok(Vouch::new(server, Duration::MAX))
    }
}

/// Whether an onlooker has nothing new to tell: the same term, or the same end of it.
fn same_but_for_renewals(a: &LeaseState, b: &LeaseState) -> bool {
    match (a, b) {
        (LeaseState::Absent, LeaseState::Absent) => true,
        (
            LeaseState::Free { token, note },
            LeaseState::Free {
                token: other,
                note: other_note,
            },
        ) => token == other && note == other_note,
        (LeaseState::Expired(a), LeaseState::Expired(b))
        | (LeaseState::Held(a), LeaseState::Held(b)) => {
            a.token == b.token && a.owner == b.owner && a.metadata == b.metadata
        }
        _ => false,
    }
}
