//! Two model stores: one row with a server clock, and a queue of entries on sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lock_core::{
    Attempt, Claim, Error, ErrorKind, Handle, Holder, Lease, Nonce, Owner, Release, Renewal,
    Request, Token,
};

use super::clocks::{MS, SEC, nanos};

#[derive(Clone, Debug)]
pub(crate) enum Store {
    Row(Row),
    Queue(Queue),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    held: Option<Held>,
    last_token: u64,
    version: u64,
    request: Option<Request>,
    /// Tokens from a counter that a wipe sets back, instead of a clock.
    pub(crate) counter: bool,
}

#[derive(Clone, Debug)]
struct Held {
    nonce: Nonce,
    owner: Owner,
    token: u64,
    ttl: Duration,
    /// On the server's clock, rounded up to its milliseconds.
    expires: u64,
    version: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    entries: Vec<Entry>,
    sessions: BTreeMap<u64, u64>,
    dead: BTreeSet<u64>,
    sequence: u64,
    renewals: u64,
    request: Option<Request>,
}

#[derive(Clone, Debug)]
struct Entry {
    sequence: u64,
    nonce: Nonce,
    session: u64,
    owner: Owner,
}

fn token(value: u64) -> Token {
    Token::new(value).expect("small")
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the session has expired").with_indeterminate(false)
}

/// Who asks: the session of the process, and the claims that it has not given up.
pub(crate) struct Caller<'a> {
    pub(crate) session: u64,
    pub(crate) live: &'a BTreeSet<Nonce>,
}

impl Store {
    pub(crate) fn try_acquire(
        &mut self,
        now: u64,
        caller: &Caller<'_>,
        claim: &Claim,
    ) -> Result<Attempt, Error> {
        match self {
            Self::Row(row) => Ok(row.try_acquire(now, claim)),
            Self::Queue(queue) => queue.try_acquire(now, caller, claim),
        }
    }

    pub(crate) fn renew(&mut self, now: u64, caller: &Caller<'_>, lease: &Lease) -> Renewal {
        match self {
            Self::Row(row) => row.renew(now, lease),
            Self::Queue(queue) => queue.renew(now, caller, lease),
        }
    }

    pub(crate) fn release(&mut self, now: u64, lease: &Lease) -> Release {
        let ours = match self {
            Self::Row(row) => row.free_if(|held| {
                held.nonce == lease.nonce()
                    && held.token == lease.token().get()
                    && held.expires > now
            }),
            Self::Queue(queue) => {
                queue.prune(now);
                queue.remove(|e| e.nonce == lease.nonce() && e.sequence == lease.token().get())
            }
        };
        if ours {
            Release::Released
        } else {
            Release::NotHeld
        }
    }

    pub(crate) fn withdraw(&mut self, now: u64, claim: &Claim) {
        match self {
            Self::Row(row) => {
                row.free_if(|held| held.nonce == claim.nonce);
            }
            Self::Queue(queue) => {
                queue.prune(now);
                queue.remove(|entry| entry.nonce == claim.nonce);
            }
        }
    }

    /// A renewal round of the sessions's other names.
    pub(crate) fn keep_alive(&mut self, now: u64, caller: &Caller<'_>, ttl: Duration) {
        if let Self::Queue(queue) = self
            && queue.refresh(now, caller.session, ttl)
        {
            queue.sweep(caller);
        }
    }

    pub(crate) fn session_is_dead(&self, session: u64) -> bool {
        matches!(self, Self::Queue(queue) if queue.dead.contains(&session))
    }

    /// The token of the term that the store keeps now.
    pub(crate) fn holder(&mut self, now: u64) -> Option<u64> {
        match self {
            Self::Row(row) => row
                .held
                .as_ref()
                .filter(|h| h.expires > now)
                .map(|h| h.token),
            Self::Queue(queue) => {
                queue.prune(now);
                queue.entries.first().map(|entry| entry.sequence)
            }
        }
    }

    /// Everything that the store still keeps.
    pub(crate) fn residue(&mut self, now: u64) -> usize {
        match self {
            Self::Row(_) => usize::from(self.holder(now).is_some()),
            Self::Queue(queue) => {
                queue.prune(now);
                queue.entries.len()
            }
        }
    }

    pub(crate) fn revoke(&mut self, now: u64) {
        match self {
            Self::Row(row) => {
                if row.free_if(|held| held.expires > now) {
                    row.next_token(now);
                }
            }
            Self::Queue(queue) => {
                queue.prune(now);
                if !queue.entries.is_empty() {
                    queue.entries.remove(0);
                }
            }
        }
    }

    pub(crate) fn ask(&mut self, hold_off: Duration) {
        let request = Some(Request::StepDown { hold_off });
        match self {
            Self::Row(row) => row.request = request,
            Self::Queue(queue) => queue.request = request,
        }
    }

    pub(crate) fn wipe(&mut self) {
        match self {
            Self::Row(row) => {
                row.held = None;
                row.request = None;
                row.last_token = 0;
            }
            Self::Queue(queue) => queue.entries.clear(),
        }
    }

    /// Somebody who is not of ours takes the row for one ttl, without asking.
    pub(crate) fn steal(&mut self, now: u64, ttl: Duration) {
        match self {
            Self::Row(row) => {
                let claim = Claim::new(
                    lock_core::LockName::new("job").expect("valid"),
                    Owner::new("thief").expect("valid"),
                    Nonce::from_u128(u128::from(now)),
                    ttl,
                );
                row.held = None;
                row.try_acquire(now, &claim);
            }
            Self::Queue(_) => self.revoke(now),
        }
    }
}

impl Row {
    pub(crate) fn new(counter: bool) -> Self {
        Self {
            counter,
            ..Self::default()
        }
    }

    fn next_token(&mut self, now: u64) -> u64 {
        self.last_token += 1;
        if !self.counter {
            self.last_token = self.last_token.max(now / 1000);
        }
        self.last_token
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn try_acquire(&mut self, now: u64, claim: &Claim) -> Attempt {
        let version = self.next_version();
        let expires = (now + nanos(claim.ttl)).div_ceil(MS) * MS;
        if let Some(held) = &mut self.held {
            let expired = held.expires <= now;
            if !expired && held.nonce == claim.nonce {
                held.expires = expires;
                held.version = version;
                return Attempt::Granted(Lease::new(
                    claim,
                    token(held.token),
                    claim.ttl,
                    Handle::none(),
                ));
            }
            let unchanged = claim.if_unchanged.is_none_or(|seen| seen == held.version);
            if !expired || !unchanged {
                let left = held.expires.saturating_sub(now).div_ceil(MS) * MS;
                return Attempt::Held(Holder::new(
                    held.owner.clone(),
                    token(held.token),
                    Duration::from_nanos(left),
                    held.ttl,
                    held.version,
                ));
            }
        }
        let value = self.next_token(now);
        self.request = None;
        self.held = Some(Held {
            nonce: claim.nonce,
            owner: claim.owner.clone(),
            token: value,
            ttl: claim.ttl,
            expires,
            version,
        });
        Attempt::Granted(Lease::new(claim, token(value), claim.ttl, Handle::none()))
    }

    fn renew(&mut self, now: u64, lease: &Lease) -> Renewal {
        let version = self.next_version();
        match &mut self.held {
            Some(held)
                if held.nonce == lease.nonce()
                    && held.token == lease.token().get()
                    && held.expires > now =>
            {
                held.expires = (now + nanos(held.ttl)).div_ceil(MS) * MS;
                held.version = version;
                Renewal::Renewed {
                    ttl: held.ttl,
                    request: self.request.clone(),
                }
            }
            _ => Renewal::Gone,
        }
    }

    fn free_if(&mut self, ours: impl FnOnce(&Held) -> bool) -> bool {
        let free = self.held.as_ref().is_some_and(ours);
        if free {
            self.held = None;
            self.request = None;
        }
        free
    }
}

impl Queue {
    fn prune(&mut self, now: u64) {
        let over: Vec<u64> = (self.sessions.iter())
            .filter(|(_, expires)| **expires <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            self.sessions.remove(&id);
            self.dead.insert(id);
            self.remove(|entry| entry.session == id);
        }
    }

    fn remove(&mut self, mut ours: impl FnMut(&Entry) -> bool) -> bool {
        let head = self.entries.first().map(|entry| entry.sequence);
        let before = self.entries.len();
        self.entries.retain(|entry| !ours(entry));
        if self.entries.first().map(|entry| entry.sequence) != head {
            self.request = None;
        }
        self.entries.len() != before
    }

    /// Restarts the countdown of a session; the first use opens it. False when it has expired.
    fn refresh(&mut self, now: u64, session: u64, ttl: Duration) -> bool {
        self.prune(now);
        let alive = !self.dead.contains(&session);
        if alive {
            self.sessions.insert(session, now + nanos(ttl));
        }
        alive
    }

    /// The renewal round deletes the session's own entries without a live claim.
    fn sweep(&mut self, caller: &Caller<'_>) {
        self.remove(|entry| entry.session == caller.session && !caller.live.contains(&entry.nonce));
    }

    fn try_acquire(
        &mut self,
        now: u64,
        caller: &Caller<'_>,
        claim: &Claim,
    ) -> Result<Attempt, Error> {
        if !self.refresh(now, caller.session, claim.ttl) {
            return Err(gone());
        }
        // An attempt keeps the session alive too: without this, an entry whose creation was executed
        // after it was given up would stand as long as its own process goes on trying.
        self.sweep(caller);
        if !self.entries.iter().any(|entry| entry.nonce == claim.nonce) {
            self.sequence += 1;
            self.entries.push(Entry {
                sequence: self.sequence,
                nonce: claim.nonce,
                session: caller.session,
                owner: claim.owner.clone(),
            });
        }
        let head = self.entries[0].clone();
        if head.nonce == claim.nonce {
            let value = token(head.sequence);
            return Ok(Attempt::Granted(Lease::new(
                claim,
                value,
                claim.ttl,
                Handle::none(),
            )));
        }
        if claim.mode == lock_core::Mode::Once {
            self.remove(|entry| entry.nonce == claim.nonce);
        }
        let expires = self
            .sessions
            .get(&head.session)
            .copied()
            .unwrap_or(now + SEC);
        Ok(Attempt::Held(Holder::new(
            head.owner,
            token(head.sequence),
            Duration::from_nanos(expires - now),
            claim.ttl,
            self.renewals + 1,
        )))
    }

    fn renew(&mut self, now: u64, caller: &Caller<'_>, lease: &Lease) -> Renewal {
        self.renewals += 1;
        let ttl = lease.claim().ttl;
        if !self.refresh(now, caller.session, ttl) {
            return Renewal::Gone;
        }
        self.sweep(caller);
        let mine =
            |entry: &&Entry| entry.nonce == lease.nonce() && entry.sequence == lease.token().get();
        match self.entries.first().filter(mine) {
            Some(_) => Renewal::Renewed {
                ttl,
                request: self.request.clone(),
            },
            None => Renewal::Gone,
        }
    }
}
