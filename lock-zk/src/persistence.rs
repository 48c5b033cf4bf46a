//! Leases in ZooKeeper.

use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Fencing, Holder, Lease, LockName,
    LockPersistence, Observation, Release, Renewal, Request, Result, Token,
};

use crate::config::ZooKeeperConfig;
use crate::inner::{Inner, Slot, on_own_runtime};

/// Leases in ZooKeeper: one session for each ttl, one node for each claim.
#[derive(Debug)]
pub struct ZooKeeperPersistence {
    inner: Arc<Inner>,
    capabilities: Capabilities,
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
