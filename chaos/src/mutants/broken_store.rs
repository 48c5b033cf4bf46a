//! A store around a right one that is wrong in one way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Attempt, Capabilities, Claim, Holder, Lease, LockName, LockPersistence, Nonce, Observation,
    Release, Renewal, Request, Result, Token,
};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// The tokens of each process begin at one.
    TokensStartAgain,
    /// A release of a term that is gone frees whoever holds the name.
    ReleaseFreesAnybody,
    /// A renewal of a term that is gone is answered as if it were not.
    RenewsWhatIsGone,
    /// Every fifth denied try takes the name from its holder.
    TakesWhatIsHeld,
}

#[derive(Debug)]
pub(crate) struct Broken {
    inner: Arc<dyn LockPersistence>,
    lie: Lie,
    count: AtomicU64,
    real: Mutex<HashMap<Nonce, Lease>>,
}

impl Broken {
    pub(crate) fn new(inner: Arc<dyn LockPersistence>, lie: Lie) -> Self {
        Self {
            inner,
            lie,
            count: AtomicU64::new(0),
            real: Mutex::default(),
        }
    }

    /// The lease of the store behind one that was handed out.
    fn real(&self, lease: &Lease) -> Lease {
        let real = self.real.lock().unwrap_or_else(PoisonError::into_inner);
        real.get(&lease.nonce()).unwrap_or(lease).clone()
    }

    fn next(&self) -> u64 {
        self.count.fetch_add(1, Ordering::SeqCst) + 1
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockPersistence for Broken {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    async fn prepare(&self) -> Result<()> {
        self.inner.prepare().await
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let mut answer = self.inner.try_acquire(claim).await?;
        if self.lie == Lie::TakesWhatIsHeld
            && let Attempt::Held(_) = answer
            && self.next().is_multiple_of(5)
        {
            self.inner.revoke(&claim.name, "taken").await?;
            answer = self.inner.try_acquire(claim).await?;
        }
        let Attempt::Granted(lease) = &answer else {
            return Ok(answer);
        };
        if self.lie != Lie::TokensStartAgain {
            return Ok(answer);
        }
        let mut real = self.real.lock().unwrap_or_else(PoisonError::into_inner);
        real.insert(lease.nonce(), lease.clone());
        let token = Token::new(self.next())?;
        let small = Lease::new(claim, token, lease.ttl(), lease.handle().clone());
        Ok(Attempt::Granted(small))
    }
    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let real: Vec<Lease> = leases.iter().map(|lease| self.real(lease)).collect();
        let mut answers = self.inner.renew(&real).await;
        if self.lie == Lie::RenewsWhatIsGone {
            for (answer, lease) in answers.iter_mut().zip(leases) {
                if let Ok(Renewal::Gone) = answer {
                    *answer = Ok(Renewal::Renewed {
                        ttl: lease.ttl(),
                        request: None,
                    });
                }
            }
        }
        answers
    }
    async fn release(&self, lease: &Lease) -> Result<Release> {
        let answer = self.inner.release(&self.real(lease)).await?;
        if answer == Release::NotHeld && self.lie == Lie::ReleaseFreesAnybody {
            self.inner.revoke(lease.name(), "freed").await?;
        }
        Ok(answer)
    }
    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.inner.withdraw(claim).await
    }
    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        self.inner.wait(claim, seen).await
    }
    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.inner.observe(name).await
    }
    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.inner.watch(seen).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.inner.list(prefix).await
    }
    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.inner.revoke(name, reason).await
    }
    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.inner.request(name, request).await
    }
    async fn server_time(&self) -> Result<SystemTime> {
        self.inner.server_time().await
    }
    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.inner.sweep(unused_for).await
    }
    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
