//! A store in the memory of this process: the reference for the contract, and the single-node mode.
//!
//! It excludes tasks and electors of one process from each other. It judges expiry by a local clock
//! that counts suspend, so a process that was suspended has lost its leases here too. Nothing of it
//! survives the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::capabilities::{Capabilities, Fencing};
use crate::claim::{
    Attempt, Claim, Handle, Holder, Lease, LeaseState, Observation, Release, Renewal, Request,
};
use crate::clock::{Clock, Moment, SystemClock};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::{LockName, Metadata, Nonce};
use crate::persistence::LockPersistence;
use crate::token::Token;

/// The memory store. Cheap to clone; clones are the same store.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    state: Mutex<State>,
    /// Changes when anything but a renewal has happened.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<LockName, Entry>,
    /// The highest token of any name; a name that was swept goes on from here.
    highest: u64,
    versions: u64,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    token: Token,
    /// When somebody last had it.
    used: Moment,
    note: Metadata,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    claim: Claim,
    expires: Moment,
    version: u64,
    request: Option<Request>,
}

impl Held {
    fn is_of(&self, nonce: Nonce) -> bool {
        self.claim.nonce == nonce
    }

    fn holder(&self, token: Token, now: Moment) -> Holder {
        Holder::new(
            self.claim.owner.clone(),
            token,
            self.expires.since(now),
            self.claim.ttl,
            self.version,
        )
        .with_metadata(self.claim.metadata.clone())
    }
}

impl State {
    fn next_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// A token above every one given before, and at least `min`.
    fn next_token(&mut self, min: Option<Token>) -> Result<Token> {
        let next = (self.highest + 1).max(min.map_or(0, Token::get));
        let token = Token::new(next)?;
        self.highest = next;
        Ok(token)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store on the clock of the operating system.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on this clock; for tests.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let mut capabilities = Capabilities::new("memory", Fencing::Monotone);
        capabilities.push = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        Self {
            shared: Arc::new(Shared {
                clock,
                capabilities,
                state: Mutex::default(),
                changed: watch::Sender::new(0),
            }),
        }
    }

    fn open(&self, operation: Operation) -> Result<(MutexGuard<'_, State>, Moment)> {
        let state = self
            .shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(Error::new(ErrorKind::Unavailable, "the store was closed")
                .with_retryable(false)
                .with_backend("memory")
                .with_operation(operation));
        }
        // Read under the lock: what is judged is the moment of the change.
        let now = self.shared.clock.now();
        Ok((state, now))
    }

    fn tell(&self) {
        self.shared.changed.send_modify(|n| *n = n.wrapping_add(1));
    }

    fn look(&self, name: &LockName) -> Result<Observation> {
        let (state, now) = self.open(Operation::Observe)?;
        Ok(Observation::new(
            name.clone(),
            state_of(state.entries.get(name), now),
        ))
    }

    /// Resolves when `stale` is false, looking after each change.
    async fn until(&self, stale: impl Fn(&Observation) -> bool, name: &LockName) -> Result<()> {
        let mut changed = self.shared.changed.subscribe();
        loop {
            changed.mark_unchanged();
            if !stale(&self.look(name)?) {
                return Ok(());
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

fn state_of(entry: Option<&Entry>, now: Moment) -> LeaseState {
    match entry {
        None => LeaseState::Absent,
        Some(Entry {
            token,
            note,
            held: None,
            ..
        }) => LeaseState::Free {
            token: *token,
            note: note.clone(),
        },
        Some(Entry {
            token,
            held: Some(held),
            ..
        }) => {
            let holder = held.holder(*token, now);
            if now < held.expires {
                LeaseState::Held(holder)
            } else {
                LeaseState::Expired(holder)
            }
        }
    }
}

#[async_trait]
impl LockPersistence for MemoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.open(Operation::Prepare).map(drop)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let (mut state, now) = self.open(Operation::TryAcquire)?;
        let expires = now.after(claim.ttl);
        let version = state.next_version();
        if let Some(Entry {
            token,
            held: Some(held),
            ..
        }) = state.entries.get_mut(&claim.name)
        {
            let alive = now < held.expires;
            if alive && held.is_of(claim.nonce) {
                *token = (*token).max(claim.min_token.unwrap_or(*token));
                (held.expires, held.version) = (expires, version);
                held.claim = claim.clone();
                let token = *token;
                state.highest = state.highest.max(token.get());
                return Ok(Attempt::Granted(Lease::new(
                    claim,
                    token,
                    claim.ttl,
                    Handle::none(),
                )));
            }
            let changed = claim.if_unchanged.is_some_and(|seen| seen != held.version);
            if alive || changed {
                return Ok(Attempt::Held(held.holder(*token, now)));
            }
        }
        let token = state.next_token(claim.min_token)?;
        let held = Held {
            claim: claim.clone(),
            expires,
            version,
            request: None,
        };
        let entry = Entry {
            token,
            used: now,
            note: Metadata::default(),
            held: Some(held),
        };
        state.entries.insert(claim.name.clone(), entry);
        drop(state);
        self.tell();
        Ok(Attempt::Granted(Lease::new(
            claim,
            token,
            claim.ttl,
            Handle::none(),
        )))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let (mut state, now) = match self.open(Operation::Renew) {
            Ok(open) => open,
            Err(error) => return vec![Err(error); leases.len()],
        };
        leases
            .iter()
            .map(|lease| {
                let version = state.next_version();
                let Some(entry) = state.entries.get_mut(lease.name()) else {
                    return Ok(Renewal::Gone);
                };
                entry.used = now;
                match &mut entry.held {
                    Some(held)
                        if held.is_of(lease.nonce())
                            && entry.token == lease.token()
                            && now < held.expires =>
                    {
                        held.expires = now.after(lease.claim().ttl);
                        held.version = version;
                        Ok(Renewal::Renewed {
                            ttl: lease.claim().ttl,
                            request: held.request.clone(),
                        })
                    }
                    _ => Ok(Renewal::Gone),
                }
            })
            .collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let (mut state, now) = self.open(Operation::Release)?;
        let Some(entry) = state.entries.get_mut(lease.name()) else {
            return Ok(Release::NotHeld);
        };
        let ours = entry
            .held
            .as_ref()
            .is_some_and(|held| held.is_of(lease.nonce()));
        if !ours || entry.token != lease.token() {
            return Ok(Release::NotHeld);
        }
        let alive = entry.held.take().is_some_and(|held| now < held.expires);
        entry.used = now;
        drop(state);
        self.tell();
        Ok(if alive {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let (mut state, now) = self.open(Operation::Withdraw)?;
        if let Some(entry) = state.entries.get_mut(&claim.name)
            && entry
                .held
                .as_ref()
                .is_some_and(|held| held.is_of(claim.nonce))
        {
            entry.held = None;
            entry.used = now;
            drop(state);
            self.tell();
        }
        Ok(())
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let same = |now: &Observation| now.holder().is_some_and(|h| h.token == seen.token);
        self.until(same, &claim.name).await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.look(name)
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        let same = |now: &Observation| match (&now.state, &seen.state) {
            (LeaseState::Held(a), LeaseState::Held(b))
            | (LeaseState::Expired(a), LeaseState::Expired(b)) => a.token == b.token,
            (a, b) => a == b,
        };
        self.until(same, &seen.name).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let (state, now) = self.open(Operation::List)?;
        Ok(state
            .entries
            .iter()
            .filter(|(name, _)| name.as_str().starts_with(prefix))
            .map(|(name, entry)| Observation::new(name.clone(), state_of(Some(entry), now)))
            .collect())
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let note = Metadata::new(reason)?;
        let (mut state, now) = self.open(Operation::Revoke)?;
        let alive = |held: &Held| now < held.expires;
        let held = state
            .entries
            .get(name)
            .and_then(|entry| entry.held.as_ref());
        if !held.is_some_and(alive) {
            return Ok(None);
        }
        let token = state.next_token(None)?;
        let entry = Entry {
            token,
            used: now,
            note,
            held: None,
        };
        state.entries.insert(name.clone(), entry);
        drop(state);
        self.tell();
        Ok(Some(token))
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let (mut state, now) = self.open(Operation::Request)?;
        let held = state
            .entries
            .get_mut(name)
            .and_then(|entry| entry.held.as_mut());
        match held.filter(|held| now < held.expires) {
            Some(held) => {
                held.request = Some(request.clone());
                Ok(true)
            }
            None => Ok(false),
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a report of the wall clock; never compared"
    )]
    async fn server_time(&self) -> Result<SystemTime> {
        drop(self.open(Operation::ServerTime)?);
        Ok(SystemTime::now())
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let (mut state, now) = self.open(Operation::Sweep)?;
        let before = state.entries.len();
        state.entries.retain(|_, entry| {
            let last = entry.held.as_ref().map_or(entry.used, |held| held.expires);
            last > now || now.since(last) < unused_for
        });
        let removed = before - state.entries.len();
        drop(state);
        if removed > 0 {
            self.tell();
        }
        Ok(removed as u64)
    }

    async fn close(&self) -> Result<()> {
        self.open(Operation::Close)?.0.closed = true;
        self.tell();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Owner;

    #[tokio::test]
    async fn a_repeated_try_raises_the_token_and_publishes_anew() {
        let store = MemoryStore::new();
        let name = LockName::new("job").expect("valid");
        let owner = Owner::new("me").expect("valid");
        let claim = Claim::new(
            name.clone(),
            owner,
            Nonce::from_u128(1),
            Duration::from_secs(60),
        );
        let first = store.try_acquire(&claim).await.expect("open");
        let least = Token::new(1000).expect("small");
        let text = Metadata::new("http://10.0.0.1").expect("short");
        let again = claim
            .with_metadata(text.clone())
            .with_min_token(Some(least));
        let second = store.try_acquire(&again).await.expect("open");
        let (Attempt::Granted(first), Attempt::Granted(second)) = (first, second) else {
            panic!("one nonce is one term");
        };
        assert_eq!(second.token(), least);
        let seen = store.observe(&name).await.expect("open");
        let holder = seen.holder().expect("held");
        assert_eq!((holder.token, &holder.metadata), (least, &text));
        // The token of before was never handed out, and is nobody's now.
        assert_eq!(store.renew(&[first]).await, [Ok(Renewal::Gone)]);
    }
}
