//! Leases on any key-value store with compare-and-swap.
//!
//! For a store that is not among the backends of this project: write the three methods of [`KeyValue`]
//! over its client, hand a [`KvPersistence`] to a [`Provider`](lock_core::Provider), and prove it with
//! `conformance-tests`. `examples/custom_backend` does so for a store of about 100 lines, in 40 more.
//!
//! One JSON record per name. Every decision is one step: read the record, decide, write it with
//! compare-and-swap, and begin again when somebody else was faster. There is no push: waiters poll. A
//! store that can do more (a transaction, a watch) is better served by a
//! [`LockPersistence`] of its own, for which this file is a pattern.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Fencing, Handle, Holder, Lease, LeaseState,
    LockName, LockPersistence, Metadata, Observation, Owner, Release, Renewal, Request, Result,
    Token,
};
use serde::{Deserialize, Serialize};

/// A key-value store with compare-and-swap and a clock.
#[async_trait]
pub trait KeyValue: fmt::Debug + Send + Sync {
    /// The technology: a stable word for errors, logs and metrics.
    fn backend(&self) -> &'static str;

    /// The value of this key, as of the last write that anybody was told of: never from a cache or a
    /// replica that may lag.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn get(&self, key: &str) -> Result<Got>;

    /// Writes the key (`None` deletes it) if its version is still this one *and* the store's clock has not
    /// reached `before`. `false` when it did not write. A store that cannot test its clock in the same
    /// step must not be used: a renewal that is carried out late would revive what has expired.
    ///
    /// # Errors
    /// Why the store could not decide; `is_indeterminate` when it may have written.
    async fn cas(
        &self,
        key: &str,
        version: u64,
        before: Option<Duration>,
        value: Option<String>,
    ) -> Result<bool>;

    /// The keys that begin with `prefix`, in byte order.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn keys(&self, prefix: &str) -> Result<Vec<String>>;
}

/// What [`KeyValue::get`] answers.
#[derive(Clone, Debug)]
pub struct Got {
    /// The value; `None` when there is none.
    pub value: Option<String>,
    /// Changes with each write of the key, and never comes again; 0 when there is no value.
    pub version: u64,
    /// The clock of the store, since the Unix epoch.
    pub now: Duration,
}

/// Leases in a [`KeyValue`] store. It keeps nothing itself but whether it was closed.
#[derive(Debug)]
pub struct KvPersistence<K> {
    kv: K,
    closed: AtomicBool,
    capabilities: Capabilities,
}

/// What lies under the key of a name. Times are the store's, since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    /// 0 means that there is no record.
    token: u64,
    /// The term that holds it; `None` when it is free.
    nonce: Option<String>,
    owner: String,
    metadata: String,
    ttl: Duration,
    /// When the lease ends, or when it was given up.
    expires: Duration,
    request: Option<String>,
    note: String,
    /// Counts withdrawals of what was not there; see `withdraw`.
    #[serde(default)]
    withdrawn: u64,
    #[serde(skip)]
    version: u64,
}

/// A record that is not one of ours.
fn foreign(error: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "what stands under the key is no lease record",
    )
    .with_source(error)
}

impl Record {
    /// Only the store's clock is compared, never that of a client.
    fn is_held(&self, now: Duration) -> bool {
        self.nonce.is_some() && now < self.expires
    }

    /// Nonce, token and expiry: all three, in every renewal and release.
    fn is_term(&self, lease: &Lease, now: Duration) -> bool {
        let nonce = lease.nonce().to_string();
        self.is_held(now) && self.token == lease.token().get() && self.nonce == Some(nonce)
    }

    /// Larger than every one before; the clock makes that true also after the record was deleted.
    fn next_token(&self, now: Duration) -> u64 {
        let micros = u64::try_from(now.as_micros()).unwrap_or(0);
        micros.max(self.token + 1)
    }

    fn free(&mut self, token: u64, now: Duration, note: &str) {
        *self = Self {
            token,
            expires: now,
            note: note.to_owned(),
            ..Self::default()
        };
    }

    fn holder(&self, now: Duration) -> Result<Holder> {
        let (owner, token) = (Owner::new(&self.owner)?, Token::new(self.token)?);
        let left = self.expires.saturating_sub(now);
        let holder = Holder::new(owner, token, left, self.ttl, self.version);
        Ok(holder.with_metadata(Metadata::new(&self.metadata)?))
    }

    fn state(&self, now: Duration) -> Result<LeaseState> {
        Ok(match &self.nonce {
            _ if self.token == 0 => LeaseState::Absent,
            Some(_) if self.is_held(now) => LeaseState::Held(self.holder(now)?),
            Some(_) => LeaseState::Expired(self.holder(now)?),
            None => LeaseState::Free {
                token: Token::new(self.token)?,
                note: Metadata::new(&self.note)?,
            },
        })
    }
}

impl<K: KeyValue> KvPersistence<K> {
    /// A store of leases over this client.
    #[must_use]
    pub fn new(kv: K) -> Self {
        // No push (the core polls), no queue. Whoever is written to must check the tokens.
        let mut capabilities = Capabilities::new(kv.backend(), Fencing::Monotone);
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        let closed = AtomicBool::new(false);
        Self {
            kv,
            closed,
            capabilities,
        }
    }

    fn kv(&self) -> Result<&K> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the store was closed"));
        }
        Ok(&self.kv)
    }

    /// One step on one record, which a read alone leaves as it was. `act` may run several times: it
    /// decides, and does nothing else.
    async fn change<T>(
        &self,
        name: &LockName,
        act: impl Fn(&mut Record, Duration) -> T + Send,
    ) -> Result<T> {
        let key = name.as_str();
        loop {
            let got = self.kv()?.get(key).await?;
            let (text, now) = (got.value.as_deref(), got.now);
            let old = text.map_or_else(|| Ok(Record::default()), serde_json::from_str);
            let mut old: Record = old.map_err(foreign)?;
            old.version = got.version;
            let mut new = old.clone();
            let answer = act(&mut new, now);
            if new == old {
                return Ok(answer);
            }
            let text = serde_json::to_string(&new).map_err(foreign)?;
            let text = (new.token > 0).then_some(text);
            // What was decided because the lease had not expired is written only while it has not.
            let before = old.is_held(now).then_some(old.expires);
            let written = self.kv()?.cas(key, old.version, before, text).await;
            if written? {
                return Ok(answer);
            }
        }
    }
}

#[async_trait]
impl<K: KeyValue> LockPersistence for KvPersistence<K> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.kv()?.keys("").await.map(drop)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let range = self.capabilities.ttl;
        if claim.ttl < range.min || claim.ttl > range.max {
            let text = format!("a ttl is {:?} to {:?}", range.min, range.max);
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        let nonce = Some(claim.nonce.to_string());
        let act = |record: &mut Record, now| {
            let (held, ours) = (record.is_held(now), record.nonce == nonce);
            // Of an expired lease; a free one is not conditional.
            let changed = claim.if_unchanged.is_some_and(|v| v != record.version);
            if (held && !ours) || (!held && record.nonce.is_some() && changed) {
                return record.holder(now).map(Attempt::Held);
            }
            let least = claim.min_token.map_or(0, Token::get);
            let kept = (held && ours).then_some(record.token);
            let token = kept.unwrap_or_else(|| record.next_token(now)).max(least);
            *record = Record {
                token,
                nonce: nonce.clone(),
                owner: claim.owner.to_string(),
                metadata: claim.metadata.to_string(),
                ttl: claim.ttl,
                expires: now + claim.ttl,
                request: kept.and_then(|_| record.request.take()),
                note: String::new(),
                withdrawn: record.withdrawn,
                version: record.version,
            };
            let lease = Lease::new(claim, Token::new(token)?, claim.ttl, Handle::none());
            Ok(Attempt::Granted(lease))
        };
        self.change(&claim.name, act).await?
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let one = |lease: Lease| async move {
            let ttl = lease.claim().ttl;
            let act = |record: &mut Record, now| {
                if !record.is_term(&lease, now) {
                    return Renewal::Gone;
                }
                record.expires = now + ttl;
                let request = record.request.as_deref().and_then(|r| r.parse().ok());
                Renewal::Renewed { ttl, request }
            };
            self.change(lease.name(), act).await
        };
        // All at once: one that is slow delays no other.
        futures_util::future::join_all(leases.iter().cloned().map(one)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let act = |record: &mut Record, now| {
            if !record.is_term(lease, now) {
                return Release::NotHeld;
            }
            record.free(record.token, now, "");
            Release::Released
        };
        self.change(lease.name(), act).await
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let nonce = Some(claim.nonce.to_string());
        let act = |record: &mut Record, now| {
            if record.nonce == nonce {
                record.free(record.token, now, "");
            } else if record.token > 0 && !record.is_held(now) {
                // Written all the same: a try that was dropped and is carried out late finds another
                // version. Where somebody else holds it, it does so anyway.
                record.withdrawn = record.withdrawn.wrapping_add(1);
            }
        };
        self.change(&claim.name, act).await
    }

    async fn wait(&self, _: &Claim, _: &Holder) -> Result<()> {
        pending().await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let state = self.change(name, |record, now| record.state(now)).await??;
        Ok(Observation::new(name.clone(), state))
    }

    async fn watch(&self, _: &Observation) -> Result<()> {
        pending().await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let mut listed = Vec::new();
        for key in self.kv()?.keys(prefix).await? {
            listed.push(self.observe(&LockName::new(&key)?).await?);
        }
        Ok(listed)
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let act = |record: &mut Record, now| {
            if !record.is_held(now) {
                return Ok(None);
            }
            record.free(record.next_token(now), now, reason);
            Token::new(record.token).map(Some)
        };
        self.change(name, act).await?
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let act = |record: &mut Record, now| {
            let held = record.is_held(now);
            if held {
                record.request = Some(request.to_string());
            }
            held
        };
        self.change(name, act).await
    }

    async fn server_time(&self) -> Result<SystemTime> {
        Ok(UNIX_EPOCH + self.kv()?.get("").await?.now)
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let mut removed = 0;
        for key in self.kv()?.keys("").await? {
            let act = |record: &mut Record, now| {
                let unused = record.token > 0 && record.expires + unused_for <= now;
                if unused {
                    *record = Record::default();
                }
                u64::from(unused)
            };
            removed += self.change(&LockName::new(&key)?, act).await?;
        }
        Ok(removed)
    }

    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}
