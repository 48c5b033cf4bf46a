//! A wrapper that notes each request to the store before it goes out, and each grant when it comes back.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Attempt, Capabilities, Claim, Holder, Lease, LockName, LockPersistence, Observation, Operation,
    Release, Renewal, Request, Result, Token,
};

use super::record::{Diary, Fact, now};

#[derive(Debug)]
pub(super) struct Traced {
    pub(super) inner: Arc<dyn LockPersistence>,
    pub(super) diary: Arc<Diary>,
}

impl Traced {
    fn sent(&self, op: Operation, leases: &[Lease]) {
        self.diary.note(Fact::Sent {
            op: op.as_str().to_owned(),
            tokens: leases.iter().map(|lease| lease.token().get()).collect(),
        });
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockPersistence for Traced {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn prepare(&self) -> Result<()> {
        self.sent(Operation::Prepare, &[]);
        self.inner.prepare().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let since = now();
        self.sent(Operation::TryAcquire, &[]);
        let answer = self.inner.try_acquire(claim).await;
        if let Ok(Attempt::Granted(lease)) = &answer {
            self.diary.note(Fact::Granted {
                token: lease.token().get(),
                nonce: lease.nonce().to_string(),
                since,
            });
        }
        answer
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.sent(Operation::Renew, leases);
        self.inner.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        self.sent(Operation::Release, std::slice::from_ref(lease));
        self.inner.release(lease).await
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.sent(Operation::Withdraw, &[]);
        self.inner.withdraw(claim).await
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        self.sent(Operation::Wait, &[]);
        self.inner.wait(claim, seen).await
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.sent(Operation::Observe, &[]);
        self.inner.observe(name).await
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.sent(Operation::Watch, &[]);
        self.inner.watch(seen).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.sent(Operation::List, &[]);
        self.inner.list(prefix).await
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.sent(Operation::Revoke, &[]);
        self.inner.revoke(name, reason).await
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.sent(Operation::Request, &[]);
        self.inner.request(name, request).await
    }

    async fn server_time(&self) -> Result<SystemTime> {
        self.sent(Operation::ServerTime, &[]);
        self.inner.server_time().await
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.sent(Operation::Sweep, &[]);
        self.inner.sweep(unused_for).await
    }

    async fn close(&self) -> Result<()> {
        self.sent(Operation::Close, &[]);
        self.inner.close().await
    }
}
