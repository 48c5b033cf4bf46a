//! An entry of ours in the line of a name, and the end of its time.
//!
//! A session outlives the ttl of an entry that nobody renews, since the driver keeps it alive by
//! itself. So each entry has a time of its own here, and is deleted when that is over: by this process,
//! or, when the process is gone or stands still, by the servers at the end of the session.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::clock::{Clock as _, Moment, SystemClock};
use lock_core::{Claim, Request, Result, Token};
use zookeeper_client as zk;

use crate::error;
use crate::node::{self, Data};
use crate::session::Session;

/// How long the timer sleeps at most: a suspended machine wakes with a sleep that began before.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// How soon the timer looks again when a request for the entry is on its way, or a delete failed.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Session,
    pub(crate) path: String,
    pub(crate) token: Token,
    life: Mutex<Life>,
}

#[derive(Debug)]
struct Life {
    deadline: Moment,
    /// Requests that want it to live, on their way.
    busy: u32,
    /// Its time is over, or it was given up: no request is begun any more.
    over: bool,
    /// It is known to be deleted.
    deleted: bool,
    /// The version of its data as last seen.
    version: i32,
    request: Option<String>,
}

/// Keeps the time of an entry from ending while a request for it is on its way.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Entry>);

impl Busy {
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.life().busy -= 1;
    }
}

impl Entry {
    /// An entry that was made, or proven, by a request sent at `sent`.
    pub(crate) fn new(
        session: Session,
        place: String,
        path: String,
        stat: &zk::Stat,
        deadline: Moment,
    ) -> Result<Arc<Self>> {
        let life = Life {
            deadline,
            busy: 0,
            over: false,
            deleted: false,
            version: stat.version,
            request: None,
        };
        let entry = Arc::new(Self {
            session,
            path,
            token: node::token(stat)?,
            life: Mutex::new(life),
        });
        Self::all().insert(place.clone(), Arc::downgrade(&entry));
        let timed = Arc::clone(&entry);
        tokio::spawn(async move {
            timed.end_in_time().await;
            let mut all = Self::all();
            if all
                .get(&place)
                .is_some_and(|e| e.ptr_eq(&Arc::downgrade(&timed)))
            {
                all.remove(&place);
            }
        });
        Ok(entry)
    }

    /// The entry of a claim that another client in this process made there: only on its own session can it be
    /// proven. A nonce belongs to one process, and may be used on several ensembles at once.
    pub(crate) fn of_this_process(place: &str) -> Option<Arc<Self>> {
        Self::all().get(place).and_then(Weak::upgrade)
    }

    fn all() -> MutexGuard<'static, HashMap<String, Weak<Self>>> {
        static ALL: LazyLock<Mutex<HashMap<String, Weak<Entry>>>> = LazyLock::new(Mutex::default);
        ALL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` when its time is over. What is begun after that could not be kept.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Busy> {
        let mut life = self.life();
        life.over |= life.busy == 0 && SystemClock.now() >= life.deadline;
        if life.over {
            return None;
        }
        life.busy += 1;
        Some(Busy(Arc::clone(self)))
    }

    /// It has this much time from then on, or more.
    pub(crate) fn extend(&self, deadline: Moment) {
        let mut life = self.life();
        life.deadline = life.deadline.max(deadline);
    }

    /// Proves session and entry by one quorum write on the entry. `None` when it is gone. The wish that
    /// somebody left in it comes with it.
    pub(crate) async fn prove(&self, claim: &Claim) -> Result<Option<(Duration, Option<Request>)>> {
        let ttl = claim.ttl.min(self.session.ttl);
        loop {
            let (version, request) = {
                let life = self.life();
                (life.version, life.request.clone())
            };
            let data = data_of(claim, request.clone()).write()?;
            let sent = SystemClock.now();
            match self
                .session
                .client
                .set_data(&self.path, &data, Some(version))
                .await
            {
                Ok(stat) => {
                    let mut life = self.life();
                    life.version = stat.version;
                    life.deadline = life.deadline.max(sent.after(ttl));
                    let request = request.and_then(|r| r.parse().ok());
                    return Ok(Some((ttl, request)));
                }
                // Somebody left a wish, or the answer to a write of ours was lost.
                Err(zk::Error::BadVersion) => {}
                Err(zk::Error::NoNode) => return Ok(None),
                Err(error) if error::is_session_over(&error) => return Ok(None),
                Err(error) => return Err(error::map(error)),
            }
            match self.session.client.get_data(&self.path).await {
                Ok((bytes, stat)) => {
                    let request = Data::read(&bytes)?.request;
                    let mut life = self.life();
                    life.version = stat.version;
                    life.request = request;
                }
                Err(zk::Error::NoNode) => return Ok(None),
                Err(error) if error::is_session_over(&error) => return Ok(None),
                Err(error) => return Err(error::map(error)),
            }
        }
    }

    /// Deletes it. Whether it was there.
    pub(crate) async fn delete(&self) -> Result<bool> {
        self.life().over = true;
        let deleted = match self.session.client.delete(&self.path, None).await {
            Ok(()) => true,
            Err(zk::Error::NoNode) => false,
            Err(error) if error::is_session_over(&error) => false,
            Err(error) => return Err(error::map(error)),
        };
        self.life().deleted = true;
        Ok(deleted)
    }

    async fn end_in_time(&self) {
        loop {
            let rest = {
                let mut life = self.life();
                if life.deleted {
                    return;
                }
                let now = SystemClock.now();
                life.over |= life.busy == 0 && now >= life.deadline;
                match life.over {
                    true => None,
                    false => Some(life.deadline.since(now).clamp(AGAIN, LONGEST_SLEEP)),
                }
            };
            match rest {
                Some(rest) => tokio::time::sleep(rest).await,
                // Without a connection it is tried again until the session is over.
                None if self.delete().await.is_ok() => return,
                None => tokio::time::sleep(AGAIN).await,
            }
        }
    }
}

pub(crate) fn data_of(claim: &Claim, request: Option<String>) -> Data {
    Data {
        owner: claim.owner.to_string(),
        metadata: claim.metadata.to_string(),
        ttl_ms: u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX),
        request,
    }
}
