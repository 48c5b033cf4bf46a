//! The sessions, our own claims, and what lies in a line.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{
    Claim, Error, ErrorKind, Handle, Holder, LockName, Nonce, Result, dedicated_runtime,
};
use zookeeper_client::{self as zk, Acls, CreateMode};

use crate::config::ZooKeeperConfig;
use crate::entry::Entry;
use crate::error;
use crate::node::{self, Data};
use crate::session::Session;

/// How often a try or a look begins again when the line changed under it, before it says so.
pub(crate) const REPEATS: usize = 10;

/// The session of those who only look.
pub(crate) const ONLOOKER: Duration = Duration::from_secs(5);

pub(crate) type Slot = Arc<tokio::sync::Mutex<Option<Session>>>;

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) closed: AtomicBool,
    pub(crate) sessions: Mutex<HashMap<Duration, Slot>>,
    pub(crate) claims: Mutex<Claims>,
}

/// What is known of our own claims.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) entries: HashMap<Nonce, Arc<Entry>>,
    /// Tries on their way, and whether their claim was withdrawn meanwhile: they then leave nothing.
    pub(crate) trying: HashMap<Nonce, Tries>,
    /// Nonces of a create whose outcome is unknown.
    pub(crate) unsure: HashSet<Nonce>,
}

#[derive(Debug, Default)]
pub(crate) struct Tries {
    pub(crate) running: u32,
    pub(crate) withdrawn: bool,
}

/// The driver's connection does not outlive the runtime that it began on, so it has one of its own.
pub(crate) async fn on_own_runtime<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match dedicated_runtime().spawn(future).await {
        Ok(answer) => answer,
        Err(error) => {
            let text = "a request ended without an answer";
            Err(Error::new(ErrorKind::Backend, text).with_source(error))
        }
    }
}

pub(crate) fn changing() -> Error {
    let text = "the line of this name changes too fast to be read";
    Error::new(ErrorKind::Unavailable, text)
}

/// The path of the node whose end a waiter waits for.
#[derive(Debug)]
pub(crate) struct Watched(pub(crate) String);

impl Inner {
    pub(crate) fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            let error = Error::new(ErrorKind::Unavailable, "the store was closed");
            return Err(error.with_indeterminate(false));
        }
        Ok(())
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sessions(&self) -> MutexGuard<'_, HashMap<Duration, Slot>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn folder_of(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.folder, node::escape(name))
    }

    /// One claim in one folder of one ensemble.
    pub(crate) fn place_of(&self, claim: &Claim) -> String {
        let folder = self.folder_of(&claim.name);
        format!("{}{folder}/{}", self.config.servers, claim.nonce)
    }

    /// The session for leases of this ttl: a new one when the last has ended.
    pub(crate) async fn session(&self, ttl: Duration) -> Result<Session> {
        let slot = Arc::clone(self.sessions().entry(ttl).or_default());
        let mut slot = slot.lock().await;
        self.open()?;
        match &*slot {
            Some(session) if !session.is_over() => Ok(session.clone()),
            _ => {
                let session = Session::open(&self.config, ttl).await?;
                self.open()?;
                Ok(slot.insert(session).clone())
            }
        }
    }

    /// Any session: one that is there already, or a new one.
    pub(crate) async fn any_session(&self) -> Result<Session> {
        let slots: Vec<Slot> = self.sessions().values().cloned().collect();
        for slot in slots {
            if let Ok(slot) = slot.try_lock()
                && let Some(session) = &*slot
                && !session.is_over()
            {
                return Ok(session.clone());
            }
        }
        self.session(ONLOOKER).await
    }

    pub(crate) async fn prepare(&self) -> Result<()> {
        let session = self.any_session().await?;
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let made = session.client.mkdir(&self.config.folder, &options).await;
        made.map_err(|error| match error {
            zk::Error::NoAuth => Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "the folder of the locks cannot be made; an administrator may run: create {0}",
                    self.config.folder
                ),
            ),
            error => error::map(error),
        })
    }

    /// Those in the line of a name, the first one first.
    pub(crate) async fn line(session: &Session, folder: &str) -> Result<Vec<String>> {
        match session.client.list_children(folder).await {
            Ok(children) => Ok(node::line(children)),
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error::map(error)),
        }
    }

    /// What an entry says; `None` when it is gone. `watched` is what a waiter is to watch.
    pub(crate) async fn read(
        session: &Session,
        path: &str,
        watched: String,
    ) -> Result<Option<Holder>> {
        match session.client.get_data(path).await {
            Ok((bytes, stat)) => {
                let holder = Data::read(&bytes)?.holder(&stat, Handle::new(Watched(watched)))?;
                Ok(Some(holder))
            }
            Err(zk::Error::NoNode) => Ok(None),
            Err(error) => Err(error::map(error)),
        }
    }

    /// Who holds a name.
    pub(crate) async fn holder(
        session: &Session,
        folder: &str,
    ) -> Result<Option<(String, Holder)>> {
        for _ in 0..REPEATS {
            let line = Self::line(session, folder).await?;
            let Some(first) = line.first() else {
                return Ok(None);
            };
            let path = format!("{folder}/{first}");
            if let Some(holder) = Self::read(session, &path, path.clone()).await? {
                return Ok(Some((path, holder)));
            }
        }
        Err(changing())
    }

    /// The nodes of a nonce, as the leader of the ensemble has them.
    pub(crate) async fn nodes_of(
        session: &Session,
        folder: &str,
        nonce: Nonce,
    ) -> Result<Vec<String>> {
        match session.client.sync(folder).await {
            Ok(()) => {}
            Err(zk::Error::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(error::map(error)),
        }
        let prefix = node::prefix(nonce);
        let line = Self::line(session, folder).await?;
        let ours = line.into_iter().filter(|child| child.starts_with(&prefix));
        Ok(ours.map(|child| format!("{folder}/{child}")).collect())
    }

    pub(crate) async fn delete_all(session: &Session, paths: Vec<String>) -> Result<()> {
        for path in paths {
            match session.client.delete(&path, None).await {
                Ok(()) | Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error::map(error)),
            }
        }
        Ok(())
    }
}
