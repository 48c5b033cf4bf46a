//! The operations of a store over rows of others: read, judge, swap.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, Error, ErrorKind, Fencing, Handle, Lease, LeaseState, LockName, Metadata,
    Nonce, Observation, Renewal, Result, Token, TtlRange,
};

use super::Row;
use super::config::{PeerLayout, PeerTable};
use super::holder::{self, Mine};
use super::judge::{self, Judge, Witness};
use crate::dialect::{Changes, Dialect, Tried};

/// How long after it was judged a row may be written by a try: no later than its caller waits.
const TRY: Duration = Duration::from_millis(1500);

/// What a release sets the expiry back by, as theirs does, where times have fractions.
const BACK: Duration = Duration::from_secs(1);

/// How often an end is repeated that others were faster than.
const RACES: usize = 4;

/// Who sends a request: each has a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    Try,
    Renew,
    Read,
}

/// The new row, in place of the old one if that has not changed by a letter.
#[derive(Debug)]
pub(crate) struct Swap<'a> {
    pub(crate) old: &'a Row,
    pub(crate) new: &'a Row,
    /// Not after this time of the server, in microseconds, read once the row is locked.
    pub(crate) until: i64,
}

/// A table as one database has it. A row that others have locked is not waited for, where the server can
/// tell.
#[async_trait]
pub(crate) trait Rows: fmt::Debug + Send + Sync {
    async fn prepare(&self) -> Result<()>;
    /// The server's clock in microseconds, and the rows of these names, or all.
    async fn read(&self, who: Look, names: Option<&[&str]>) -> Result<(i64, Vec<Row>)>;
    async fn swap(&self, who: Look, swap: Swap<'_>) -> Result<bool>;
    /// False when there is one of that name.
    async fn insert(&self, row: &Row, until: i64) -> Result<bool>;
    /// Waits for tries that were dropped.
    async fn settled(&self) -> Result<()>;
    async fn close(&self);
}

/// What a lease remembers: the name that the row has.
#[derive(Debug)]
struct Stored(LockName);

fn stored(lease: &Lease) -> &LockName {
    lease
        .handle()
        .get::<Stored>()
        .map_or_else(|| lease.name(), |s| &s.0)
}

#[derive(Debug)]
pub(crate) struct Foreign<R> {
    capabilities: Capabilities,
    layout: PeerLayout,
    judge: Judge,
    rows: R,
    seen: Mutex<BTreeMap<String, Witness>>,
}

impl<R: Rows> Foreign<R> {
    /// `step` is what the columns of times round to; `zoned`, whether they know their zone.
    pub(crate) fn new(
        backend: &'static str,
        peers: &PeerTable,
        step: Duration,
        zoned: bool,
        rows: R,
    ) -> Self {
        let judge = Judge::new(peers, step, zoned);
        let fencing = match peers.layout {
            PeerLayout::LeaderLeases => Fencing::Monotone,
            PeerLayout::MasterLock => Fencing::None("master_lock has no column that keeps a token"),
        };
        let mut capabilities = Capabilities::new(backend, fencing);
        capabilities.push = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = peers.layout == PeerLayout::LeaderLeases;
        let range = TtlRange::default();
        capabilities.ttl = TtlRange::new(
            range.min + judge.slack(),
            range.max,
            step.max(range.granularity),
        );
        Self {
            capabilities,
            layout: peers.layout,
            judge,
            rows,
            seen: Mutex::default(),
        }
    }

    fn check(&self, name: &LockName) -> Result<()> {
        let most = self.layout.longest_name();
        let length = name.as_str().chars().count();
        if length > most {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!(
                    "a name of {length} characters does not fit into {}; give it at most {most}",
                    self.layout.table()
                ),
            ));
        }
        Ok(())
    }

    async fn row(&self, who: Look, name: &LockName) -> Result<(i64, Option<Row>)> {
        self.check(name)?;
        let (now, mut rows) = self.rows.read(who, Some(&[name.as_str()])).await?;
        let row = rows.pop();
        // Their column may compare letters without case.
        match row {
            Some(row) if row.name != name.as_str() => Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "their table takes this name for {:?}, which it has; use that",
                    row.name
                ),
            )),
            row => Ok((now, row)),
        }
    }

    fn state(&self, row: &Row, now: i64) -> Result<LeaseState> {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut witness = all.remove(&row.name);
        let state = self.judge.state(row, now, &mut witness);
        if let Some(witness) = witness {
            all.insert(row.name.clone(), witness);
        }
        state
    }

    fn version(&self, token: Token) -> i64 {
        match self.layout {
            PeerLayout::LeaderLeases => i64::try_from(token.get()).unwrap_or(i64::MAX),
            PeerLayout::MasterLock => 0,
        }
    }

    fn after(&self, version: i64) -> i64 {
        match self.layout {
            PeerLayout::LeaderLeases => version + 1,
            PeerLayout::MasterLock => 0,
        }
    }

    fn left(&self, claim: &Claim) -> Duration {
        claim.ttl.saturating_sub(self.judge.slack())
    }

    /// The row of this term from now on.
    fn claimed(&self, claim: &Claim, name: &LockName, token: Token, version: i64, now: i64) -> Row {
        Row {
            name: name.as_str().to_owned(),
            holder: holder::held(claim.nonce, token, &claim.owner),
            acquired: self.judge.written(now),
            expires: self.judge.expiry(now, claim.ttl),
            version,
        }
    }

    fn granted(&self, claim: &Claim, token: Token) -> Tried {
        let handle = Handle::new(Stored(claim.name.clone()));
        Tried::Granted(Lease::new(claim, token, self.left(claim), handle))
    }

    /// Ends what this nonce holds; whether it held.
    async fn end(&self, name: &LockName, nonce: Nonce, token: Option<Token>) -> Result<bool> {
        for _ in 0..RACES {
            let (now, row) = self.row(Look::Renew, name).await?;
            let Some(old) = row else {
                return Ok(false);
            };
            let Some(mine) = Mine::read(&old.holder) else {
                return Ok(false);
            };
            if mine.nonce != Some(nonce) || token.is_some_and(|t| t != mine.token) {
                return Ok(false);
            }
            let back = match self.layout {
                PeerLayout::LeaderLeases => BACK,
                PeerLayout::MasterLock => Duration::ZERO,
            };
            let new = Row {
                holder: holder::free(mine.token),
                expires: self.judge.written(now) - judge::micros(back),
                ..old.clone()
            };
            let swap = Swap {
                old: &old,
                new: &new,
                until: i64::MAX,
            };
            if self.rows.swap(Look::Renew, swap).await? {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(busy())
    }

    async fn renewed(&self, lease: &Lease, now: i64, row: Option<&Row>) -> Result<Renewal> {
        let claim = lease.claim();
        let Some(old) = row else {
            return Ok(Renewal::Gone);
        };
        let ours = |row: &Row| {
            Mine::read(&row.holder)
                .is_some_and(|m| m.nonce == Some(lease.nonce()) && m.token == lease.token())
        };
        let end = self.judge.end(old);
        if !ours(old) || end <= now {
            return Ok(Renewal::Gone);
        }
        let version = self.after(old.version);
        let new = self.claimed(claim, stored(lease), lease.token(), version, now);
        let swap = Swap {
            old,
            new: &new,
            until: end,
        };
        if self.rows.swap(Look::Renew, swap).await? {
            return Ok(Renewal::Renewed {
                ttl: self.left(claim),
                request: None,
            });
        }
        let (now, row) = self.row(Look::Renew, stored(lease)).await?;
        match row {
            Some(row) if ours(&row) && self.judge.end(&row) > now => Err(busy()),
            _ => Ok(Renewal::Gone),
        }
    }

    fn unsupported(what: &str) -> Error {
        Error::new(
            ErrorKind::Unsupported,
            format!("their table has no place for {what}"),
        )
    }
}

fn busy() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "another session has the row locked or changes it; it was left alone",
    )
    .with_indeterminate(false)
}

/// Their nodes tell nobody of a release.
struct Polling(Duration);

#[async_trait]
impl Changes for Polling {
    async fn changed(&mut self) -> Result<()> {
        tokio::time::sleep(self.0).await;
        Ok(())
    }
}

#[async_trait]
impl<R: Rows> Dialect for Foreign<R> {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.rows.prepare().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Tried> {
        holder::check(&claim.owner)?;
        if !claim.metadata.is_empty() {
            return Err(Self::unsupported("metadata"));
        }
        let (now, row) = self.row(Look::Try, &claim.name).await?;
        let until = now + judge::micros(TRY);
        let Some(old) = row else {
            let token = Judge::next(None, now, claim.min_token)?;
            let new = self.claimed(claim, &claim.name, token, self.version(token), now);
            return Ok(if self.rows.insert(&new, until).await? {
                self.granted(claim, token)
            } else {
                Tried::Denied(LeaseState::Absent)
            });
        };
        let state = self.state(&old, now)?;
        let mine = Mine::read(&old.holder).filter(|m| m.nonce == Some(claim.nonce));
        let (token, version, until) = match (&state, mine) {
            (LeaseState::Held(_), Some(mine)) => {
                let token = claim
                    .min_token
                    .map_or(mine.token, |least| least.max(mine.token));
                let version = self.after(old.version).max(self.version(token));
                (token, version, until.min(self.judge.end(&old)))
            }
            (LeaseState::Held(_), None) => return Ok(Tried::Denied(state)),
            (LeaseState::Expired(seen), _)
                if claim
                    .if_unchanged
                    .is_some_and(|version| version != seen.version) =>
            {
                return Ok(Tried::Denied(state));
            }
            _ => {
                let token = Judge::next(Some(&old), now, claim.min_token)?;
                (token, self.version(token), until)
            }
        };
        let new = self.claimed(claim, &claim.name, token, version, now);
        let swap = Swap {
            old: &old,
            new: &new,
            until,
        };
        Ok(if self.rows.swap(Look::Try, swap).await? {
            self.granted(claim, token)
        } else {
            Tried::Denied(state)
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Result<Renewal>>> {
        let names: Vec<&str> = leases.iter().map(|l| stored(l).as_str()).collect();
        let (now, rows) = self.rows.read(Look::Renew, Some(&names)).await?;
        let mut answers = Vec::with_capacity(leases.len());
        for (lease, name) in leases.iter().zip(names) {
            let row = rows.iter().find(|row| row.name == name);
            answers.push(self.renewed(lease, now, row).await);
        }
        Ok(answers)
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        self.end(stored(lease), lease.nonce(), Some(lease.token()))
            .await
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.rows.settled().await?;
        self.end(&claim.name, claim.nonce, None).await.map(drop)
    }

    async fn read(&self, name: &LockName) -> Result<LeaseState> {
        match self.row(Look::Read, name).await? {
            (now, Some(row)) => self.state(&row, now),
            (_, None) => Ok(LeaseState::Absent),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let (now, mut rows) = self.rows.read(Look::Read, None).await?;
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        let mut seen = Vec::new();
        for row in rows.iter().filter(|row| row.name.starts_with(prefix)) {
            if let Ok(name) = LockName::new(&row.name) {
                seen.push(Observation::new(name, self.state(row, now)?));
            }
        }
        Ok(seen)
    }

    async fn revoke(&self, _: &LockName, _: &Metadata) -> Result<Option<Token>> {
        Err(Self::unsupported(
            "a revocation that its nodes would heed before their next renewal",
        ))
    }

    async fn request(&self, _: &LockName, _: &str) -> Result<bool> {
        Err(Self::unsupported("a request to the holder"))
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let (now, _) = self.rows.read(Look::Read, Some(&[])).await?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(now.unsigned_abs()))
    }

    /// Their rows stay.
    async fn sweep(&self, _: Duration) -> Result<u64> {
        Ok(0)
    }

    async fn subscribe(&self, _: &LockName) -> Result<Box<dyn Changes>> {
        let poll = self.judge.slack() / 4;
        let poll = poll.clamp(Duration::from_millis(50), Duration::from_millis(250));
        Ok(Box::new(Polling(poll)))
    }

    async fn close(&self) {
        self.rows.close().await;
    }
}
