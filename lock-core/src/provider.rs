//! What an application holds: guards, elections and observation over any persistence.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::claim::{LeaseState, Observation, Request};
use crate::clock::{Clock, Moment, SystemClock, sleep_until};
use crate::driver::{Driver, Notice, runtime_here};
use crate::election::{Machine, MachineConfig, Scope};
use crate::elector::Elector;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guard::LockGuard;
use crate::memory::MemoryStore;
use crate::name::{LockName, Metadata, Nonce, Owner};
use crate::persistence::LockPersistence;
use crate::timing::Timing;
use crate::token::Token;
use crate::{Capabilities, Fencing};

/// The trait that applications depend on. [`Provider`] implements it over any store.
///
/// A name that breaks the rule of [`LockName`] is refused with
/// [`InvalidName`](ErrorKind::InvalidName) before anything is sent.
#[async_trait]
pub trait LockProvider: fmt::Debug + Send + Sync {
    /// Tries once; `Ok(None)` when somebody holds it. Not reentrant: also when that is this process.
    ///
    /// # Errors
    /// Why the store could not decide.
    ///
    /// # Cancel safety
    /// Dropped at any point it leaves nothing that outlives the ttl; what was granted is released.
    async fn try_acquire(&self, name: &str) -> Result<Option<LockGuard>>;

    /// Waits until the name is ours, over outages of the store.
    ///
    /// # Errors
    /// Settings that can never work, also with what the store grants (a much shorter ttl), or a driver
    /// whose runtime has ended. Everything else is retried.
    ///
    /// # Cancel safety
    /// As [`try_acquire`](Self::try_acquire); the place in a queue is given up.
    async fn acquire(&self, name: &str) -> Result<LockGuard>;

    /// Waits at most `limit`; `Ok(None)` when somebody else held it at the end. A limit of zero tries
    /// once.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); or why the store could not decide at the end of the limit, which
    /// is a [`Timeout`](ErrorKind::Timeout) when it had not answered at all.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    async fn acquire_within(&self, name: &str, limit: Duration) -> Result<Option<LockGuard>>;

    /// A candidate for `name`. Cheap: nothing is sent before it runs.
    ///
    /// # Errors
    /// A name or settings that cannot work.
    fn elector(&self, name: &str) -> Result<Elector>;

    /// Looks at one name without being a candidate.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn observe(&self, name: &str) -> Result<Observation>;

    /// Resolves with the new observation when it differs from `seen` in more than a renewal, at
    /// once where the store has push, else within [`Timing::poll_every`].
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn watch(&self, seen: &Observation) -> Result<Observation>;

    /// The names that begin with `prefix`, in byte order.
    ///
    /// # Errors
    /// Why the store could not be read.
    async fn list(&self, prefix: &str) -> Result<Vec<Observation>>;

    /// Asks the holder to step down at its next renewal, and not to claim for `hold_off`; `false`
    /// when nobody holds the name.
    ///
    /// # Errors
    /// Why the store could not decide.
    async fn step_down(&self, name: &str, hold_off: Duration) -> Result<bool>;

    /// Ends the lease of whoever holds the name, now, with a larger token; `None` when nobody does.
    /// The holder learns of it at its next renewal: until then only fencing stops it.
    ///
    /// # Errors
    /// Why the store could not decide.
    async fn revoke(&self, name: &str, reason: &str) -> Result<Option<Token>>;
}

/// A [`LockProvider`] over one [`LockPersistence`].
///
/// Cheap to clone; clones share one driver task and its batches of renewals. Each `with_…` gives a
/// provider with other settings that still shares it.
#[derive(Clone, Debug)]
pub struct Provider {
    driver: Arc<Driver>,
    settings: Settings,
}

#[derive(Clone, Debug)]
struct Settings {
    owner: Owner,
    timing: Timing,
    metadata: Metadata,
    priority: i32,
    guarded_takeover: bool,
}

impl Provider {
    /// A provider with the default owner (`host/pid`) and the default times.
    #[must_use]
    pub fn new(persistence: Arc<dyn LockPersistence>) -> Self {
        Self {
            driver: Arc::new(Driver::new(persistence, Arc::new(SystemClock), None)),
            settings: Settings {
                owner: Owner::default(),
                timing: Timing::default(),
                metadata: Metadata::default(),
                priority: 0,
                guarded_takeover: false,
            },
        }
    }

    /// Single-node mode: the same API with every lease in this process, so that a lone process leads
    /// at once.
    #[must_use]
    pub fn single_node() -> Self {
        Self::new(Arc::new(MemoryStore::new()))
    }

    /// The same provider with this published identity. It need not be unique.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.settings.owner = owner;
        self
    }

    /// The same provider with these times.
    #[must_use]
    pub fn with_timing(mut self, timing: Timing) -> Self {
        self.settings.timing = timing;
        self
    }

    /// The same provider with this text published beside the owner.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.settings.metadata = metadata;
        self
    }

    /// The same provider with this priority, for stores that queue by priority.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.settings.priority = priority;
        self
    }

    /// The same provider taking over an expired lease only after having seen it unchanged for the
    /// holder's `ttl × (1 + drift)` on its own clock: a forward step of the store's clock then costs
    /// nobody the lease, and a takeover after a crash takes up to one ttl longer. A single try has not
    /// seen anything before, so it never takes an expired lease over.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the store cannot make a takeover conditional.
    pub fn with_guarded_takeover(mut self, guarded: bool) -> Result<Self> {
        let capabilities = self.capabilities();
        if guarded && !capabilities.conditional_takeover {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this store cannot make a takeover conditional; leave guarded takeover off",
            )
            .with_backend(capabilities.backend));
        }
        self.settings.guarded_takeover = guarded;
        Ok(self)
    }

    /// The same store on another clock, with a driver of its own; for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        let driver = &self.driver;
        let runtime = driver.runtime().cloned();
        self.driver = Arc::new(Driver::new(
            Arc::clone(driver.persistence()),
            clock,
            runtime,
        ));
        self
    }

    /// The same store with a driver of its own on this runtime, where every call to the store is
    /// made; see [`dedicated_runtime`](crate::dedicated_runtime).
    #[must_use]
    pub fn on_runtime(mut self, runtime: Handle) -> Self {
        let driver = &self.driver;
        let (store, clock) = (Arc::clone(driver.persistence()), Arc::clone(driver.clock()));
        self.driver = Arc::new(Driver::new(store, clock, Some(runtime)));
        self
    }

    /// The store.
    #[must_use]
    pub fn persistence(&self) -> &Arc<dyn LockPersistence> {
        self.driver.persistence()
    }

    /// What the store can do.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.persistence().capabilities()
    }

    /// The times in use.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.settings.timing
    }

    /// The published identity in use.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.settings.owner
    }

    /// Resolves when no guard, no wait and no election of this provider and its clones is left, and the
    /// store has been told of the end of each: what to await, with a limit of your own, before a process
    /// exits. What was dropped just before is then released and not left to expire.
    ///
    /// # Cancel safety
    /// It only looks; call it again as often as you like.
    pub async fn settled(&self) {
        self.driver.settled().await;
    }

    pub(crate) fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// A machine for one candidate, after all checks that need no I/O.
    pub(crate) fn machine(&self, name: &LockName, scope: Scope) -> Result<Machine> {
        let s = &self.settings;
        let capabilities = self.capabilities();
        let ttl = s.timing.ttl();
        if ttl < capabilities.ttl.min || ttl > capabilities.ttl.max {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the ttl is {ttl:?}; this store takes {:?} to {:?}",
                    capabilities.ttl.min, capabilities.ttl.max
                ),
            )
            .with_backend(capabilities.backend)
            .with_name(name.clone()));
        }
        let first_nonce = Nonce::random();
        let seed = Nonce::random().as_u128();
        Ok(Machine::new(MachineConfig {
            name: name.clone(),
            owner: s.owner.clone(),
            metadata: s.metadata.clone(),
            priority: s.priority,
            timing: s.timing,
            scope,
            first_nonce,
            seed: u64::try_from(seed >> 64).unwrap_or(0),
            queueing: capabilities.queueing,
            monotone: !matches!(capabilities.fencing, Fencing::None(_)),
            guarded_takeover: s.guarded_takeover,
        }))
    }

    async fn claim(
        &self,
        name: &str,
        scope: Scope,
        until: Option<Moment>,
    ) -> Result<Option<LockGuard>> {
        let name = LockName::new(name)?;
        // Whether the store has said that somebody else holds it.
        let mut denied = false;
        loop {
            // Made before the first await: dropping this future at any point drops it.
            let mut candidacy = self.driver.start(self.machine(&name, scope)?, None)?;
            let mut last_error = None;
            loop {
                let limit = async {
                    match until {
                        Some(until) => sleep_until(self.driver.clock(), until).await,
                        None => std::future::pending().await,
                    }
                };
                let notice = tokio::select! {
                    biased;
                    notice = candidacy.next() => notice,
                    () = limit => return match last_error {
                        Some(error) => Err(error),
                        None if denied => Ok(None),
                        None => Err(self.unanswered(&name)),
                    },
                };
                match notice {
                    Some(Notice::Offer(term)) => {
                        if candidacy.take(&term) && term.check() {
                            return Ok(Some(LockGuard::new(term, candidacy)));
                        }
                        // It was polled too late. Start over, once the old lease is gone: a single try
                        // must not be denied by it.
                        candidacy.end_term(Duration::ZERO);
                        while !matches!(
                            candidacy.next().await,
                            None | Some(Notice::Released(_) | Notice::Failed(_) | Notice::Ended(_))
                        ) {}
                        break;
                    }
                    Some(Notice::Denied) if scope == Scope::OneAttempt => return Ok(None),
                    Some(Notice::Denied) => {
                        denied = true;
                        last_error = None;
                    }
                    Some(Notice::Recovered) => last_error = None,
                    Some(Notice::Failed(error)) if scope == Scope::OneAttempt => return Err(error),
                    // That it cannot listen says nothing about who holds the name.
                    Some(Notice::Failed(error)) if error.operation() == Some(Operation::Wait) => {}
                    Some(Notice::Failed(error)) => last_error = Some(error),
                    Some(Notice::Ended(Some(error))) => return Err(error),
                    Some(Notice::Ended(None)) => return Ok(None),
                    Some(Notice::Released(_)) => {}
                    None => {
                        return Err(Error::new(
                            ErrorKind::Unavailable,
                            "the runtime of the driver has ended",
                        )
                        .with_name(name));
                    }
                }
            }
        }
    }

    /// The limit has ended before the store has said anything.
    fn unanswered(&self, name: &LockName) -> Error {
        Error::new(
            ErrorKind::Timeout,
            "the store did not answer within the limit; allow more than a request takes",
        )
        .with_backend(self.capabilities().backend)
        .with_operation(Operation::TryAcquire)
        .with_name(name.clone())
    }

    /// A call to the store outside any candidacy, under the request timeout, where the driver runs.
    async fn call<T, F, Fut>(&self, operation: Operation, call: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<dyn LockPersistence>) -> Fut,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        let backend = self.capabilities().backend;
        let timeout = self.settings.timing.request_timeout();
        let call = call(Arc::clone(self.persistence()));
        let bounded = async move {
            tokio::time::timeout(timeout, call)
                .await
                .unwrap_or_else(|_| {
                    Err(
                        Error::new(ErrorKind::Timeout, format!("no answer within {timeout:?}"))
                            .with_backend(backend)
                            .with_operation(operation),
                    )
                })
        };
        self.here_or_there(operation, bounded).await
    }

    async fn here_or_there<T, Fut>(&self, operation: Operation, call: Fut) -> Result<T>
    where
        T: Send + 'static,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        match self.driver.runtime() {
            None => {
                runtime_here()?;
                call.await
            }
            Some(runtime) => AbortOnDrop(runtime.spawn(call))
                .await
                .unwrap_or_else(|end| {
                    let error = if end.is_panic() {
                        Error::new(ErrorKind::Backend, "the store's client panicked")
                    } else {
                        Error::new(
                            ErrorKind::Unavailable,
                            "the runtime of the driver has ended",
                        )
                    };
                    Err(error
                        .with_backend(self.capabilities().backend)
                        .with_operation(operation))
                }),
        }
    }
}

/// A task that ends with whoever waits for it.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = std::result::Result<T, tokio::task::JoinError>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(cx)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[async_trait]
impl LockProvider for Provider {
    async fn try_acquire(&self, name: &str) -> Result<Option<LockGuard>> {
        self.claim(name, Scope::OneAttempt, None).await
    }

    async fn acquire(&self, name: &str) -> Result<LockGuard> {
        loop {
            if let Some(guard) = self.claim(name, Scope::OneTerm, None).await? {
                return Ok(guard);
            }
        }
    }

    async fn acquire_within(&self, name: &str, limit: Duration) -> Result<Option<LockGuard>> {
        if limit.is_zero() {
            return self.try_acquire(name).await;
        }
        let until = self.driver.clock().now().after(limit);
        self.claim(name, Scope::OneTerm, Some(until)).await
    }

    fn elector(&self, name: &str) -> Result<Elector> {
        Elector::new(self.clone(), LockName::new(name)?)
    }

    async fn observe(&self, name: &str) -> Result<Observation> {
        let name = LockName::new(name)?;
        self.call(Operation::Observe, |store| async move {
            store.observe(&name).await
        })
        .await
    }

    async fn watch(&self, seen: &Observation) -> Result<Observation> {
        let mut seen = seen.clone();
        let mut vain_hints = 0_u32;
        loop {
            let clock = self.driver.clock();
            let mut at = clock.now().after(self.settings.timing.poll_every());
            if let Some(holder) = seen.holder()
                && !holder.remaining.is_zero()
            {
                at = at.min(clock.now().after(holder.remaining));
            }
            let store = Arc::clone(self.persistence());
            let asked = seen.clone();
            let hint =
                self.here_or_there(Operation::Watch, async move { store.watch(&asked).await });
            tokio::select! {
                hint = hint => match hint {
                    // A store may hint as often as it likes; it is read less often after vain ones.
                    Ok(()) if vain_hints > 1 => {
                        let pause = VAIN_HINT_PAUSE.saturating_mul(1 << vain_hints.min(12));
                        sleep_until(clock, clock.now().after(pause).min(at)).await;
                    }
                    Ok(()) => {}
                    // It can no longer listen; it is asked again after the poll.
                    Err(_) => sleep_until(clock, at).await,
                },
                () = sleep_until(clock, at) => {}
            }
            vain_hints = vain_hints.saturating_add(1);
            let now = self.observe(seen.name.as_str()).await?;
            if !is_same_term(&seen.state, &now.state) {
                return Ok(now);
            }
            seen = now;
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let prefix = prefix.to_owned();
        self.call(
            Operation::List,
            |store| async move { store.list(&prefix).await },
        )
        .await
    }

    async fn step_down(&self, name: &str, hold_off: Duration) -> Result<bool> {
        let name = LockName::new(name)?;
        let request = Request::StepDown { hold_off };
        self.call(Operation::Request, |store| async move {
            store.request(&name, &request).await
        })
        .await
    }

    async fn revoke(&self, name: &str, reason: &str) -> Result<Option<Token>> {
        let name = LockName::new(name)?;
        let reason = Metadata::new(reason)?;
        self.call(Operation::Revoke, |store| async move {
            store.revoke(&name, reason.as_str()).await
        })
        .await
    }
}

/// The shortest pause before the store is read again for a watcher, once hints have been vain.
const VAIN_HINT_PAUSE: Duration = Duration::from_millis(5);

/// Whether two states differ in no more than a renewal.
fn is_same_term(a: &LeaseState, b: &LeaseState) -> bool {
    match (a, b) {
        (LeaseState::Held(a), LeaseState::Held(b))
        | (LeaseState::Expired(a), LeaseState::Expired(b)) => a.token == b.token,
        (a, b) => a == b,
    }
}
