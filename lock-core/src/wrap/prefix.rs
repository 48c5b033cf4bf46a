//! A namespace in a store.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::claim::{Attempt, Claim, Holder, Lease, Observation, Release, Renewal, Request};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::{LockName, MAX_NAME_BYTES};
use crate::persistence::LockPersistence;
use crate::token::Token;

/// A store whose names all begin with a prefix that its users do not see.
///
/// Two applications with different prefixes share a store without meeting, unless one prefix is the
/// beginning of the other: end it with a separator, such as `billing/`. [`sweep`](LockPersistence::sweep),
/// [`prepare`](LockPersistence::prepare) and [`close`](LockPersistence::close) act on the whole store.
///
/// A name that is too long together with the prefix is refused with
/// [`InvalidName`](ErrorKind::InvalidName).
#[derive(Clone, Debug)]
pub struct Prefixed {
    inner: Arc<dyn LockPersistence>,
    prefix: LockName,
}

impl Prefixed {
    /// `inner`, seen through `prefix`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the prefix is empty, too long, or has a control character.
    pub fn new(inner: Arc<dyn LockPersistence>, prefix: &str) -> Result<Self> {
        let prefix = LockName::new(prefix).map_err(|e| {
            let rule = e.message().replace("the lock name", "the name prefix");
            Error::new(ErrorKind::InvalidConfig, rule)
        })?;
        Ok(Self { inner, prefix })
    }

    fn stored(&self, name: &LockName, operation: Operation) -> Result<LockName> {
        LockName::new(format!("{}{}", self.prefix, name)).map_err(|_| {
            Error::new(
                ErrorKind::InvalidName,
                format!(
                    "the lock name has {} bytes and its prefix {}; together at most {MAX_NAME_BYTES} are \
                     allowed",
                    name.as_str().len(),
                    self.prefix.as_str().len()
                ),
            )
            .with_operation(operation)
            .with_name(name.clone())
        })
    }

    /// The name that a stored one stands for; `None` when it has another prefix or nothing after it.
    fn shown(&self, stored: &LockName) -> Option<LockName> {
        let rest = stored.as_str().strip_prefix(self.prefix.as_str())?;
        LockName::new(rest).ok()
    }

    /// The same error about the name its reader knows.
    fn shown_error(&self, error: Error) -> Error {
        match error.name().and_then(|n| self.shown(n)) {
            Some(name) => error.with_name(name),
            None => error,
        }
    }

    fn shown_all<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|e| self.shown_error(e))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockPersistence for Prefixed {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn prepare(&self) -> Result<()> {
        self.inner.prepare().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let stored = self.stored(&claim.name, Operation::TryAcquire)?;
        let attempt = self
            .inner
            .try_acquire(&claim.clone().with_name(stored))
            .await;
        self.shown_all(attempt).map(|attempt| match attempt {
            Attempt::Granted(lease) => Attempt::Granted(lease.with_name(claim.name.clone())),
            Attempt::Held(holder) => Attempt::Held(holder),
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let stored: Vec<Result<Lease>> = leases
            .iter()
            .map(|lease| {
                self.stored(lease.name(), Operation::Renew)
                    .map(|name| lease.with_name(name))
            })
            .collect();
        let sent: Vec<Lease> = stored.iter().flatten().cloned().collect();
        let mut answers = self.inner.renew(&sent).await.into_iter();
        stored
            .into_iter()
            .map(|lease| {
                lease?;
                let answer = answers.next().unwrap_or_else(|| {
                    Err(Error::new(
                        ErrorKind::Backend,
                        "the store answered fewer renewals than it was asked for",
                    )
                    .with_operation(Operation::Renew))
                });
                self.shown_all(answer)
            })
            .collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let stored = lease.with_name(self.stored(lease.name(), Operation::Release)?);
        self.shown_all(self.inner.release(&stored).await)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let name = self.stored(&claim.name, Operation::Withdraw)?;
        self.shown_all(self.inner.withdraw(&claim.clone().with_name(name)).await)
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let name = self.stored(&claim.name, Operation::Wait)?;
        self.shown_all(self.inner.wait(&claim.clone().with_name(name), seen).await)
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let stored = self.stored(name, Operation::Observe)?;
        let mut seen = self.shown_all(self.inner.observe(&stored).await)?;
        seen.name = name.clone();
        Ok(seen)
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        let mut stored = seen.clone();
        stored.name = self.stored(&seen.name, Operation::Watch)?;
        self.shown_all(self.inner.watch(&stored).await)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let listed = self.inner.list(&format!("{}{prefix}", self.prefix)).await;
        Ok(self
            .shown_all(listed)?
            .into_iter()
            .filter_map(|mut seen| {
                seen.name = self.shown(&seen.name)?;
                Some(seen)
            })
            .collect())
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let stored = self.stored(name, Operation::Revoke)?;
        self.shown_all(self.inner.revoke(&stored, reason).await)
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let stored = self.stored(name, Operation::Request)?;
        self.shown_all(self.inner.request(&stored, request).await)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use crate::name::{Nonce, Owner};

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn claim(text: &str) -> Claim {
        let owner = Owner::new("o").unwrap();
        Claim::new(name(text), owner, Nonce::random(), Duration::from_secs(9))
    }

    async fn grant(store: &dyn LockPersistence, claim: &Claim) -> Lease {
        match store.try_acquire(claim).await.unwrap() {
            Attempt::Granted(lease) => lease,
            Attempt::Held(holder) => panic!("held by {holder:?}"),
        }
    }

    #[tokio::test]
    async fn names_are_mapped_in_and_out_by_every_method() {
        let memory = MemoryStore::new();
        let a = Prefixed::new(Arc::new(memory.clone()), "a/").unwrap();
        let b = Prefixed::new(Arc::new(memory.clone()), "b/").unwrap();
        a.prepare().await.unwrap();
        assert_eq!(a.capabilities(), memory.capabilities());

        let ours = claim("n");
        let lease = grant(&a, &ours).await;
        assert_eq!(lease.name(), &name("n"));
        let theirs = grant(&b, &claim("n")).await;
        assert!(
            memory
                .observe(&name("a/n"))
                .await
                .unwrap()
                .holder()
                .is_some()
        );

        let seen = a.observe(&name("n")).await.unwrap();
        assert_eq!(seen.name, name("n"));
        let listed = a.list("").await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].name, name("n"));
        assert!(a.list("m").await.unwrap().is_empty());

        assert!(matches!(
            a.renew(std::slice::from_ref(&lease)).await.as_slice(),
            [Ok(Renewal::Renewed { .. })]
        ));
        let wish = Request::StepDown {
            hold_off: Duration::ZERO,
        };
        assert!(a.request(&name("n"), &wish).await.unwrap());
        let Attempt::Held(holder) = a.try_acquire(&claim("n")).await.unwrap() else {
            panic!("granted twice");
        };
        let waiting = claim("n");
        let (waited, watched, released) =
            tokio::join!(a.wait(&waiting, &holder), a.watch(&seen), async {
                a.release(&lease).await
            });
        waited.unwrap();
        watched.unwrap();
        assert_eq!(released.unwrap(), Release::Released);

        grant(&a, &waiting).await;
        a.withdraw(&waiting).await.unwrap();
        assert!(a.observe(&name("n")).await.unwrap().holder().is_none());
        assert_eq!(a.revoke(&name("n"), "r").await.unwrap(), None);
        assert!(b.revoke(&name("n"), "r").await.unwrap() > Some(theirs.token()));
        assert_eq!(
            a.sweep(Duration::ZERO).await.unwrap(),
            2,
            "of the whole store"
        );
        a.server_time().await.unwrap();
        a.close().await.unwrap();
        assert_eq!(
            b.observe(&name("n")).await.unwrap().name,
            name("n"),
            "another client"
        );
    }

    #[tokio::test]
    async fn a_name_too_long_is_refused_and_holds_nobody_up() {
        let memory: Arc<dyn LockPersistence> = Arc::new(MemoryStore::new());
        let store = Prefixed::new(Arc::clone(&memory), "0123456789").unwrap();
        let long = "x".repeat(246);
        let error = store.try_acquire(&claim(&long)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName);
        assert_eq!(error.name(), Some(&name(&long)));
        assert!(
            error.to_string().contains("246 bytes and its prefix 10"),
            "{error}"
        );

        let fits = grant(&store, &claim(&"x".repeat(245))).await;
        let foreign = grant(memory.as_ref(), &claim(&long)).await;
        let answers = store.renew(&[foreign, fits]).await;
        assert_eq!(answers.len(), 2);
        assert_eq!(
            answers[0].as_ref().unwrap_err().kind(),
            ErrorKind::InvalidName
        );
        assert!(matches!(answers[1], Ok(Renewal::Renewed { .. })));
    }

    #[tokio::test]
    async fn errors_name_the_lock_that_the_caller_knows() {
        let store = Prefixed::new(Arc::new(MemoryStore::new()), "p/").unwrap();
        let mut claim = claim("n");
        claim.ttl = Duration::ZERO;
        let error = store.try_acquire(&claim).await.unwrap_err();
        assert_eq!(error.name(), Some(&name("n")));
    }

    #[test]
    fn the_prefix_is_checked() {
        for bad in ["", "a\nb", &"x".repeat(256)] {
            let error = Prefixed::new(Arc::new(MemoryStore::new()), bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().starts_with("the name prefix"), "{error}");
        }
    }
}
