//! Leases in ZooKeeper.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::clock::{Clock as _, SystemClock};
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Fencing, Handle, Holder, Lease, LeaseState,
    LockName, LockPersistence, Mode, Nonce, Observation, Release, Renewal, Request, Result, Token,
    dedicated_runtime,
};
use zookeeper_client::{self as zk, Acls, CreateMode, CreateOptions};

use crate::config::ZooKeeperConfig;
use crate::entry::{Busy, Entry, data_of};
use crate::error;
use crate::node::{self, Data};
use crate::session::Session;

/// How often a try or a look begins again when the line changed under it, before it says so.
const REPEATS: usize = 10;

/// The session of those who only look.
const ONLOOKER: Duration = Duration::from_secs(5);

/// Leases in ZooKeeper: one session for each ttl, one node for each claim.
#[derive(Debug)]
pub struct ZooKeeperPersistence {
    inner: Arc<Inner>,
    capabilities: Capabilities,
}

type Slot = Arc<tokio::sync::Mutex<Option<Session>>>;

#[derive(Debug)]
struct Inner {
    config: ZooKeeperConfig,
    closed: AtomicBool,
    sessions: Mutex<HashMap<Duration, Slot>>,
    claims: Mutex<Claims>,
}

/// What is known of our own claims.
#[derive(Debug, Default)]
struct Claims {
    entries: HashMap<Nonce, Arc<Entry>>,
    /// Tries on their way, and whether their claim was withdrawn meanwhile: they then leave nothing.
    trying: HashMap<Nonce, Tries>,
    /// Nonces of a create whose outcome is unknown.
    unsure: HashSet<Nonce>,
}

#[derive(Debug, Default)]
struct Tries {
    running: u32,
    withdrawn: bool,
}

/// The driver's connection does not outlive the runtime that it began on, so it has one of its own.
async fn on_own_runtime<T: Send + 'static>(
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

fn changing() -> Error {
    let text = "the line of this name changes too fast to be read";
    Error::new(ErrorKind::Unavailable, text)
}

impl ZooKeeperPersistence {
    /// A store of leases on this ensemble. Connects at the first call.
    #[must_use]
    pub fn new(config: ZooKeeperConfig) -> Self {
        let mut capabilities = Capabilities::new("zookeeper", Fencing::Monotone);
        capabilities.queueing = true;
        capabilities.push = true;
        let inner = Inner {
            config,
            closed: AtomicBool::new(false),
            sessions: Mutex::default(),
            claims: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            capabilities,
        }
    }

    async fn run<T, F>(&self, act: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.inner.open()?;
        on_own_runtime(act(Arc::clone(&self.inner))).await
    }
}

impl Inner {
    fn open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            let error = Error::new(ErrorKind::Unavailable, "the store was closed");
            return Err(error.with_indeterminate(false));
        }
        Ok(())
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<Duration, Slot>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn folder_of(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.folder, node::escape(name))
    }

    /// One claim in one folder of one ensemble.
    fn place_of(&self, claim: &Claim) -> String {
        let folder = self.folder_of(&claim.name);
        format!("{}{folder}/{}", self.config.servers, claim.nonce)
    }

    /// The session for leases of this ttl: a new one when the last has ended.
    async fn session(&self, ttl: Duration) -> Result<Session> {
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
    async fn any_session(&self) -> Result<Session> {
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

    async fn prepare(&self) -> Result<()> {
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
    async fn line(session: &Session, folder: &str) -> Result<Vec<String>> {
        match session.client.list_children(folder).await {
            Ok(children) => Ok(node::line(children)),
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error::map(error)),
        }
    }

    /// What an entry says; `None` when it is gone. `watched` is what a waiter is to watch.
    async fn read(session: &Session, path: &str, watched: String) -> Result<Option<Holder>> {
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
    async fn holder(session: &Session, folder: &str) -> Result<Option<(String, Holder)>> {
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
    async fn nodes_of(session: &Session, folder: &str, nonce: Nonce) -> Result<Vec<String>> {
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

    async fn delete_all(session: &Session, paths: Vec<String>) -> Result<()> {
        for path in paths {
            match session.client.delete(&path, None).await {
                Ok(()) | Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error::map(error)),
            }
        }
        Ok(())
    }

    /// Puts a claim at the end of the line. The create is itself the proof of the session.
    async fn create(&self, session: &Session, folder: &str, claim: &Claim) -> Result<Arc<Entry>> {
        let prefix = node::prefix(claim.nonce);
        let path = format!("{folder}/{prefix}");
        let data = data_of(claim, None).write()?;
        let own = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let parent: CreateOptions<'_> = CreateMode::Container.with_acls(Acls::anyone_all());
        for _ in 0..REPEATS {
            self.claims().unsure.insert(claim.nonce);
            let sent = SystemClock.now();
            match session.client.create(&path, &data, &own).await {
                Ok((stat, number)) => {
                    let path = format!("{path}{number}");
                    let deadline = sent.after(claim.ttl.min(session.ttl));
                    let entry =
                        Entry::new(session.clone(), self.place_of(claim), path, &stat, deadline)?;
                    if let Some(twin) = self.keep(claim.nonce, &entry) {
                        twin.delete().await?;
                    }
                    return Ok(entry);
                }
                // The parent vanishes when its line is empty for a while.
                Err(zk::Error::NoNode) => {
                    self.claims().unsure.remove(&claim.nonce);
                    let made = session.client.mkdir(folder, &parent).await;
                    made.map_err(error::map)?;
                }
                Err(error) => {
                    let error = error::map(error);
                    if !error.is_indeterminate() {
                        self.claims().unsure.remove(&claim.nonce);
                    }
                    return Err(error);
                }
            }
        }
        Err(changing())
    }

    /// The entry before it, which a try made that nobody waits for any more.
    fn keep(&self, nonce: Nonce, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut claims = self.claims();
        claims.unsure.remove(&nonce);
        claims.entries.insert(nonce, Arc::clone(entry))
    }

    /// Takes an entry out of what is known, if it is still that one.
    fn forget(&self, nonce: Nonce, entry: &Arc<Entry>) {
        let mut claims = self.claims();
        if claims
            .entries
            .get(&nonce)
            .is_some_and(|e| Arc::ptr_eq(e, entry))
        {
            claims.entries.remove(&nonce);
        }
    }

    /// The entry of a claim with a fresh proof, if it has one that lives.
    async fn proven(&self, session: &Session, folder: &str, claim: &Claim) -> Result<Option<Busy>> {
        let (known, unsure) = {
            let mut claims = self.claims();
            let mut known = claims.entries.get(&claim.nonce).cloned();
            if known.is_none()
                && let Some(entry) = Entry::of_this_process(&self.place_of(claim))
            {
                claims.entries.insert(claim.nonce, Arc::clone(&entry));
                known = Some(entry);
            }
            (known, claims.unsure.contains(&claim.nonce))
        };
        if let Some(entry) = known {
            if let Some(busy) = entry.begin()
                && entry.prove(claim).await?.is_some()
            {
                return Ok(Some(busy));
            }
            // An entry whose time is over is never revived.
            entry.delete().await?;
            self.forget(claim.nonce, &entry);
        }
        if unsure {
            // A create without an answer: what it left is no use, since its age is not known.
            let left = Self::nodes_of(session, folder, claim.nonce).await?;
            Self::delete_all(session, left).await?;
            self.claims().unsure.remove(&claim.nonce);
        }
        Ok(None)
    }

    async fn try_acquire(self: Arc<Self>, claim: Claim) -> Result<Attempt> {
        let nonce = claim.nonce;
        self.claims().trying.entry(nonce).or_default().running += 1;
        let answer = self.attempt(&claim).await;
        if !self.ends_withdrawn(nonce) {
            return answer;
        }
        // The withdrawal found nothing yet, perhaps.
        self.withdraw(&claim).await?;
        let text = "the claim was withdrawn while it was tried";
        Err(Error::new(ErrorKind::Unavailable, text).with_retryable(false))
    }

    /// Takes one try off the list. Whether its claim was withdrawn meanwhile.
    fn ends_withdrawn(&self, nonce: Nonce) -> bool {
        let mut claims = self.claims();
        let Some(tries) = claims.trying.get_mut(&nonce) else {
            return true; // the store was closed meanwhile
        };
        let withdrawn = tries.withdrawn;
        tries.running -= 1;
        if tries.running == 0 {
            claims.trying.remove(&nonce);
        }
        withdrawn
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.session(claim.ttl).await?;
        let folder = self.folder_of(&claim.name);
        for _ in 0..REPEATS {
            let busy = match self.proven(&session, &folder, claim).await? {
                Some(busy) => busy,
                None => {
                    // One try leaves no node where it cannot win: it looks before.
                    if claim.mode == Mode::Once
                        && let Some((_, holder)) = Self::holder(&session, &folder).await?
                    {
                        return Ok(Attempt::Held(holder));
                    }
                    match self.create(&session, &folder, claim).await?.begin() {
                        Some(busy) => busy,
                        None => continue,
                    }
                }
            };
            let entry = busy.entry();
            let line = Self::line(&entry.session, &folder).await?;
            let own = line
                .iter()
                .position(|child| entry.path.ends_with(&format!("/{child}")));
            let Some(place) = own else {
                // Deleted by hand between the proof and the list.
                self.forget(claim.nonce, entry);
                continue;
            };
            if place == 0 {
                let ttl = claim.ttl.min(entry.session.ttl);
                let handle = Handle::new(Watched(entry.path.clone()));
                return Ok(Attempt::Granted(Lease::new(
                    claim,
                    entry.token,
                    ttl,
                    handle,
                )));
            }
            if claim.mode == Mode::Once {
                entry.delete().await?;
                self.forget(claim.nonce, entry);
                continue;
            }
            let first = format!("{folder}/{}", line[0]);
            let before = format!("{folder}/{}", line[place - 1]);
            if let Some(holder) = Self::read(&session, &first, before).await? {
                return Ok(Attempt::Held(holder));
            }
        }
        Err(changing())
    }

    async fn renew(self: Arc<Self>, lease: Lease) -> Result<Renewal> {
        let known = self.claims().entries.get(&lease.nonce()).cloned();
        let same = known.filter(|entry| entry.token == lease.token());
        let Some(entry) = same else {
            return Ok(Renewal::Gone);
        };
        if let Some(_busy) = entry.begin()
            && let Some((ttl, request)) = entry.prove(lease.claim()).await?
        {
            return Ok(Renewal::Renewed { ttl, request });
        }
        // Its time is over, or somebody deleted it. What is left of it is deleted by its own timer.
        Ok(Renewal::Gone)
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let known = self.claims().entries.get(&lease.nonce()).cloned();
        let Some(entry) = known.filter(|entry| entry.token == lease.token()) else {
            return Ok(Release::NotHeld);
        };
        let was_there = entry.delete().await?;
        self.forget(lease.nonce(), &entry);
        Ok(if was_there {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let known = {
            let mut claims = self.claims();
            if let Some(tries) = claims.trying.get_mut(&claim.nonce) {
                tries.withdrawn = true;
            }
            claims.entries.get(&claim.nonce).cloned()
        };
        if let Some(entry) = known {
            entry.delete().await?;
            self.forget(claim.nonce, &entry);
            return Ok(());
        }
        let session = self.session(claim.ttl).await?;
        let folder = self.folder_of(&claim.name);
        let left = Self::nodes_of(&session, &folder, claim.nonce).await?;
        Self::delete_all(&session, left).await?;
        self.claims().unsure.remove(&claim.nonce);
        Ok(())
    }

    /// Ends when the node that `seen` stands behind is gone.
    async fn wait(self: &Arc<Self>, claim: &Claim, seen: &Holder) -> Result<()> {
        let Some(Watched(path)) = seen.handle.get() else {
            let text = "the holder was seen by another kind of store";
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let entry = self.claims().entries.get(&claim.nonce).cloned();
        let place = entry.as_ref().map(Entry::begin);
        let place = match place {
            // The place in the line is lost: another try is worth making.
            Some(None) => return Ok(()),
            Some(Some(busy)) => Some(busy),
            None => None,
        };
        let session = match &place {
            Some(busy) => busy.entry().session.clone(),
            None => {
                let (inner, ttl) = (Arc::clone(self), claim.ttl);
                on_own_runtime(async move { inner.session(ttl).await }).await?
            }
        };
        Self::until_deleted(&session, path).await?;
        if let Some(busy) = place {
            busy.entry().extend(SystemClock.now().after(claim.ttl));
        }
        Ok(())
    }

    /// An entry has no children, so a watch on them tells of its end and of no renewal.
    async fn until_deleted(session: &Session, path: &str) -> Result<()> {
        match session.client.get_and_watch_children(path).await {
            Ok((_, _, watcher)) => {
                watcher.changed().await;
                Ok(())
            }
            Err(zk::Error::NoNode) => Ok(()),
            Err(error) => Err(error::map(error)),
        }
    }

    async fn observe(&self, name: LockName) -> Result<Observation> {
        let session = self.any_session().await?;
        let held = Self::holder(&session, &self.folder_of(&name)).await?;
        // Nothing is remembered of a name that nobody holds.
        let state = held.map_or(LeaseState::Absent, |(_, holder)| LeaseState::Held(holder));
        Ok(Observation::new(name, state))
    }

    async fn watch(self: &Arc<Self>, seen: &Observation) -> Result<()> {
        let inner = Arc::clone(self);
        let session = on_own_runtime(async move { inner.any_session().await }).await?;
        let folder = self.folder_of(&seen.name);
        let token = seen.holder().map(|holder| holder.token);
        loop {
            // Subscribed first, compared then.
            let watcher = match session.client.get_and_watch_children(&folder).await {
                Ok((_, _, watcher)) => watcher,
                Err(zk::Error::NoNode) => {
                    let looked = session.client.check_and_watch_stat(&folder).await;
                    let (stat, watcher) = looked.map_err(error::map)?;
                    if stat.is_some() {
                        continue;
                    }
                    watcher
                }
                Err(error) => return Err(error::map(error)),
            };
            let now = Self::holder(&session, &folder).await?;
            if now.map(|(_, holder)| holder.token) != token {
                return Ok(());
            }
            watcher.changed().await;
            if session.is_over() {
                return Ok(());
            }
        }
    }

    async fn list(self: Arc<Self>, prefix: String) -> Result<Vec<Observation>> {
        let session = self.any_session().await?;
        let nodes = match session.client.list_children(&self.config.folder).await {
            Ok(nodes) => nodes,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(error) => return Err(error::map(error)),
        };
        let mut names: Vec<LockName> = nodes.iter().filter_map(|n| node::unescape(n)).collect();
        names.retain(|name| name.as_str().starts_with(&prefix));
        names.sort();
        let mut listed = Vec::new();
        for name in names {
            let folder = self.folder_of(&name);
            if let Some((_, holder)) = Self::holder(&session, &folder).await? {
                listed.push(Observation::new(name, LeaseState::Held(holder)));
            }
        }
        Ok(listed)
    }

    async fn revoke(&self, name: &LockName) -> Result<Option<Token>> {
        let session = self.any_session().await?;
        let folder = self.folder_of(name);
        for _ in 0..REPEATS {
            let Some((path, holder)) = Self::holder(&session, &folder).await? else {
                return Ok(None);
            };
            match session.client.delete(&path, None).await {
                Ok(()) => return Token::new(holder.token.get() + 1).map(Some),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error::map(error)),
            }
        }
        Err(changing())
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let session = self.any_session().await?;
        let folder = self.folder_of(name);
        for _ in 0..REPEATS {
            let line = Self::line(&session, &folder).await?;
            let Some(first) = line.first() else {
                return Ok(false);
            };
            let path = format!("{folder}/{first}");
            let (bytes, stat) = match session.client.get_data(&path).await {
                Ok(read) => read,
                Err(zk::Error::NoNode) => continue,
                Err(error) => return Err(error::map(error)),
            };
            let mut data = Data::read(&bytes)?;
            data.request = Some(request.to_string());
            let data = data.write()?;
            match session
                .client
                .set_data(&path, &data, Some(stat.version))
                .await
            {
                Ok(_) => return Ok(true),
                Err(zk::Error::NoNode | zk::Error::BadVersion) => {}
                Err(error) => return Err(error::map(error)),
            }
        }
        Err(changing())
    }
}

/// The path of the node whose end a waiter waits for.
#[derive(Debug)]
struct Watched(String);

#[async_trait]
impl LockPersistence for ZooKeeperPersistence {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.run(|inner| async move { inner.prepare().await }).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let range = self.capabilities.ttl;
        if claim.ttl < range.min || claim.ttl > range.max {
            let text = format!("a ttl is {:?} to {:?}", range.min, range.max);
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        let claim = claim.clone();
        self.run(|inner| inner.try_acquire(claim)).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        // All at once: one that is slow delays no other.
        let one = |lease: &Lease| {
            let lease = lease.clone();
            self.run(|inner| inner.renew(lease))
        };
        join_all(leases.iter().map(one)).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let lease = lease.clone();
        self.run(|inner| async move { inner.release(&lease).await })
            .await
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let claim = claim.clone();
        self.run(|inner| async move { inner.withdraw(&claim).await })
            .await
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        self.inner.open()?;
        // Here and not in a task: when it is dropped, its watch and its hold on the place end.
        self.inner.wait(claim, seen).await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let name = name.clone();
        self.run(|inner| async move { inner.observe(name).await })
            .await
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.inner.open()?;
        self.inner.watch(seen).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let prefix = prefix.to_owned();
        self.run(|inner| inner.list(prefix)).await
    }

    /// The reason is not kept: nothing is remembered of a name that nobody holds.
    async fn revoke(&self, name: &LockName, _: &str) -> Result<Option<Token>> {
        let name = name.clone();
        self.run(|inner| async move { inner.revoke(&name).await })
            .await
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let (name, request) = (name.clone(), request.clone());
        self.run(|inner| async move { inner.request(&name, &request).await })
            .await
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let text = "the servers tell their clock to nobody";
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Zero: the servers remove the folder of a name themselves when its line is empty.
    async fn sweep(&self, _: Duration) -> Result<u64> {
        self.inner.open()?;
        Ok(0)
    }

    async fn close(&self) -> Result<()> {
        self.inner.closed.store(true, Ordering::SeqCst);
        let slots: Vec<Slot> = self
            .inner
            .sessions()
            .drain()
            .map(|(_, slot)| slot)
            .collect();
        // Before the sessions: an entry keeps its session until it is deleted.
        let claims = std::mem::take(&mut *self.inner.claims());
        let deleted = claims
            .entries
            .into_values()
            .map(|entry| async move { entry.delete().await });
        let deleted = join_all(deleted).await;
        for slot in slots {
            slot.lock().await.take();
        }
        deleted.into_iter().try_for_each(|answer| answer.map(drop))
    }
}
