//! Stores, clocks and callers that do what they may, at the worst moment, and some that do what they
//! may not. Virtual time, unless a test says otherwise.

#![allow(clippy::unwrap_used, reason = "a test program")]

mod support;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::clock::{Clock, Moment, RuntimeClock};
use lock_core::memory::MemoryStore;
use lock_core::wrap::{Fault, Times};
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Event, Holder, Lease, LockName,
    LockPersistence, LockProvider as _, LossReason, Observation, Operation, Outcome, Provider,
    Release, Renewal, Request, Result, Status, Timing, Token,
};
use support::{TTL, World, ms, soon, timing};

/// A memory store that behaves as a test says.
#[derive(Debug)]
struct Bent {
    store: MemoryStore,
    capabilities: Capabilities,
    calls: Mutex<BTreeMap<&'static str, u64>>,
    /// Operations that fail with an error that says as little as an error can.
    fails: Mutex<Vec<Operation>>,
    /// Operations that panic when they are called, before there is a future.
    panics_when_called: Mutex<Vec<Operation>>,
    /// Try and renewal hang, in a future that panics when it is dropped.
    panics_when_dropped: AtomicBool,
    /// `wait` and `watch` resolve at once.
    hints_at_once: AtomicBool,
    /// What a grant says is left.
    granted_ttl: Mutex<Option<Duration>>,
    /// What a renewal says is left.
    renewed_ttl: Mutex<Option<Duration>>,
    /// How many answers a renewal gives more, or fewer, than it was asked for.
    more_answers: Mutex<isize>,
    token: Mutex<Option<u64>>,
}

impl Bent {
    fn new(clock: &Arc<dyn Clock>) -> Self {
        let store = MemoryStore::with_clock(Arc::clone(clock));
        Self {
            capabilities: store.capabilities().clone(),
            store,
            calls: Mutex::default(),
            fails: Mutex::default(),
            panics_when_called: Mutex::default(),
            panics_when_dropped: AtomicBool::default(),
            hints_at_once: AtomicBool::default(),
            granted_ttl: Mutex::default(),
            renewed_ttl: Mutex::default(),
            more_answers: Mutex::default(),
            token: Mutex::default(),
        }
    }

    fn calls(&self, operation: Operation) -> u64 {
        let calls = self.calls.lock().unwrap();
        calls.get(operation.as_str()).copied().unwrap_or(0)
    }

    fn enter(&self, operation: Operation) -> Result<()> {
        *self
            .calls
            .lock()
            .unwrap()
            .entry(operation.as_str())
            .or_default() += 1;
        if self.fails.lock().unwrap().contains(&operation) {
            return Err(Error::new(ErrorKind::Unavailable, "on purpose"));
        }
        Ok(())
    }

    fn on_call(&self, operation: Operation) {
        let panics = self.panics_when_called.lock().unwrap().contains(&operation);
        assert!(!panics, "on purpose");
    }

    async fn trap(&self) {
        struct Trap;
        impl Drop for Trap {
            fn drop(&mut self) {
                if !std::thread::panicking() {
                    panic!("on purpose");
                }
            }
        }
        if self.panics_when_dropped.load(Ordering::SeqCst) {
            let _trap = Trap;
            std::future::pending::<()>().await;
        }
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

#[async_trait]
impl LockPersistence for Bent {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        self.store.prepare().await
    }

    fn try_acquire<'s, 'c, 'f>(&'s self, claim: &'c Claim) -> Boxed<'f, Result<Attempt>>
    where
        's: 'f,
        'c: 'f,
    {
        self.on_call(Operation::TryAcquire);
        Box::pin(async move {
            self.enter(Operation::TryAcquire)?;
            self.trap().await;
            let answer = self.store.try_acquire(claim).await?;
            Ok(match answer {
                Attempt::Granted(lease) => {
                    let ttl = self.granted_ttl.lock().unwrap().unwrap_or(lease.ttl());
                    let token = match *self.token.lock().unwrap() {
                        Some(token) => Token::new(token)?,
                        None => lease.token(),
                    };
                    Attempt::Granted(Lease::new(claim, token, ttl, lease.handle().clone()))
                }
                held @ Attempt::Held(_) => held,
            })
        })
    }

    fn renew<'s, 'l, 'f>(&'s self, leases: &'l [Lease]) -> Boxed<'f, Vec<Result<Renewal>>>
    where
        's: 'f,
        'l: 'f,
    {
        self.on_call(Operation::Renew);
        Box::pin(async move {
            if let Err(error) = self.enter(Operation::Renew) {
                return vec![Err(error); leases.len()];
            }
            self.trap().await;
            let mut answers = self.store.renew(leases).await;
            if let Some(left) = *self.renewed_ttl.lock().unwrap() {
                for answer in &mut answers {
                    if let Ok(Renewal::Renewed { ttl, .. }) = answer {
                        *ttl = left;
                    }
                }
            }
            let more = *self.more_answers.lock().unwrap();
            let length = answers.len().saturating_add_signed(more);
            answers.resize(length, Ok(Renewal::Gone));
            answers
        })
    }

    fn release<'s, 'l, 'f>(&'s self, lease: &'l Lease) -> Boxed<'f, Result<Release>>
    where
        's: 'f,
        'l: 'f,
    {
        self.on_call(Operation::Release);
        Box::pin(async move {
            self.enter(Operation::Release)?;
            self.store.release(lease).await
        })
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        self.enter(Operation::Withdraw)?;
        self.store.withdraw(claim).await
    }

    fn wait<'s, 'c, 'h, 'f>(&'s self, claim: &'c Claim, seen: &'h Holder) -> Boxed<'f, Result<()>>
    where
        's: 'f,
        'c: 'f,
        'h: 'f,
    {
        self.on_call(Operation::Wait);
        Box::pin(async move {
            self.enter(Operation::Wait)?;
            if self.hints_at_once.load(Ordering::SeqCst) {
                return Ok(());
            }
            if !self.capabilities.push {
                std::future::pending::<()>().await;
            }
            self.store.wait(claim, seen).await
        })
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        self.enter(Operation::Observe)?;
        self.store.observe(name).await
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        self.enter(Operation::Watch)?;
        if self.hints_at_once.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.store.watch(seen).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.store.list(prefix).await
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.store.revoke(name, reason).await
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        self.store.request(name, request).await
    }

    async fn server_time(&self) -> Result<SystemTime> {
        self.store.server_time().await
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        self.store.sweep(unused_for).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}

fn bent() -> (Arc<Bent>, Provider, Arc<dyn Clock>) {
    bent_so(|_| ())
}

fn bent_so(bend: impl FnOnce(&mut Bent)) -> (Arc<Bent>, Provider, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(RuntimeClock::start());
    let mut store = Bent::new(&clock);
    bend(&mut store);
    let store = Arc::new(store);
    let persistence: Arc<dyn LockPersistence> = Arc::<Bent>::clone(&store);
    let provider = Provider::new(persistence)
        .with_clock(Arc::clone(&clock))
        .with_timing(timing());
    (store, provider, clock)
}

fn lead(elector: &lock_core::Elector) -> tokio::task::JoinHandle<Result<()>> {
    let elector = elector.clone();
    tokio::spawn(async move {
        elector
            .run(|leadership| async move {
                leadership.stopping().await;
                Ok::<(), String>(())
            })
            .await
    })
}

async fn until_leading(elector: &lock_core::Elector) {
    let mut status = elector.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
}

// ---- stores that say little, too much, or the wrong thing ----

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_told_though_the_store_does_not_name_the_operation() {
    let (store, provider, _) = bent();
    let guard = provider.acquire("n").await.unwrap();
    *store.fails.lock().unwrap() = vec![Operation::Release];
    let error = soon(guard.release()).await.unwrap_err();
    assert_eq!(error.operation(), Some(Operation::Release));
    assert_eq!(error.backend(), Some("memory"));
    // And who shuts down need not wait for the ttl either.
    let elector = provider.elector("m").unwrap();
    let run = lead(&elector);
    until_leading(&elector).await;
    elector.shutdown();
    soon(run).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_asked_again_does_not_answer_with_an_old_error() {
    let (store, provider, _) = bent();
    let guard = provider.acquire("n").await.unwrap();
    *store.fails.lock().unwrap() = vec![Operation::Release];
    soon(guard.release()).await.unwrap_err();
    tokio::time::sleep(TTL / 3).await;
    assert!(store.calls(Operation::Release) > 2, "it goes on trying");
    store.fails.lock().unwrap().clear();
    assert_eq!(soon(guard.release()).await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_when_it_is_called_is_an_error_of_that_call() {
    let (store, provider, _) = bent();
    let held = provider.acquire("held").await.unwrap();
    *store.panics_when_called.lock().unwrap() = vec![Operation::TryAcquire];
    let error = provider.try_acquire("n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    *store.panics_when_called.lock().unwrap() = vec![Operation::Wait, Operation::Renew];
    assert!(
        provider
            .acquire_within("held", ms(300))
            .await
            .unwrap()
            .is_none()
    );
    tokio::time::sleep(timing().renew_every() + ms(100)).await;
    store.panics_when_called.lock().unwrap().clear();
    tokio::time::sleep(TTL).await;
    assert!(held.check(), "the driver has survived all that");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_when_it_is_dropped_is_an_error_of_that_call() {
    let (store, provider, _) = bent();
    let held = provider.acquire("held").await.unwrap();
    store.panics_when_dropped.store(true, Ordering::SeqCst);
    provider.try_acquire("n").await.unwrap_err();
    store.panics_when_dropped.store(false, Ordering::SeqCst);
    tokio::time::sleep(TTL * 2).await;
    assert!(held.check(), "the driver has survived");
}

#[tokio::test(start_paused = true)]
async fn too_few_or_too_many_answers_renew_nothing() {
    for more in [-1, 1] {
        let (store, provider, clock) = bent();
        let (a, b) = (
            provider.acquire("a").await.unwrap(),
            provider.acquire("b").await.unwrap(),
        );
        *store.more_answers.lock().unwrap() = more;
        let deadline = a.deadline().max(b.deadline());
        let LossReason::Expired { last_error } = a.lost().await else {
            panic!("it expires")
        };
        assert!(last_error.unwrap().to_string().contains("answers to"));
        b.lost().await;
        assert!(!a.check() && !b.check() && clock.now().since(deadline) < ms(500));
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_leaves_less_time_brings_the_deadline_forward() {
    let (store, provider, clock) = bent();
    let guard = provider.acquire("n").await.unwrap();
    *store.renewed_ttl.lock().unwrap() = Some(ms(500));
    let before = store.calls(Operation::Renew);
    while store.calls(Operation::Renew) == before {
        tokio::time::sleep(ms(1)).await;
    }
    let renewed = clock.now();
    guard.lost().await;
    assert!(!guard.check());
    let held = clock.now().since(renewed);
    assert!(
        held <= ms(500),
        "held for {held:?} after a renewal for 500 ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_held_for_no_longer_than_was_asked_or_granted() {
    for granted in [Duration::ZERO, ms(1), TTL / 2] {
        let (store, provider, _) = bent();
        *store.granted_ttl.lock().unwrap() = Some(granted);
        let error = soon(provider.acquire("n")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("granted"), "{error}");
        store.granted_ttl.lock().unwrap().take();
        assert!(soon(provider.acquire("n")).await.unwrap().check());
    }
    let (store, provider, clock) = bent();
    *store.granted_ttl.lock().unwrap() = Some(Duration::MAX);
    *store.renewed_ttl.lock().unwrap() = Some(Duration::MAX);
    let guard = provider.acquire("n").await.unwrap();
    assert!(guard.deadline() <= clock.now().after(TTL));
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.check() && guard.deadline() <= clock.now().after(TTL));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_goes_back_makes_no_leader() {
    let (store, provider, _) = bent();
    let elector = provider.elector("n").unwrap();
    let run = lead(&elector);
    until_leading(&elector).await;
    let Status::Leading(first) = *elector.status().borrow() else {
        panic!("it leads")
    };
    *store.token.lock().unwrap() = Some(first.get());
    let mut events = elector.events();
    elector.resign(Duration::ZERO);
    tokio::time::sleep(TTL * 2).await;
    let mut gained = 0;
    while let Ok(event) = events.try_recv() {
        gained += u32::from(matches!(event, Event::Gained { .. }));
    }
    assert_eq!(gained, 0);
    assert!(
        elector.health().last_error.is_none(),
        "the store answers; it answers nonsense"
    );
    store.token.lock().unwrap().take();
    let mut status = elector.status();
    tokio::time::timeout(
        TTL * 2,
        status.wait_for(|s| matches!(s, Status::Leading(_))),
    )
    .await
    .unwrap()
    .unwrap();
    elector.shutdown();
    soon(run).await.unwrap().unwrap();
}

// ---- hints ----

#[tokio::test(start_paused = true)]
async fn a_store_that_always_hints_is_not_asked_all_the_time() {
    let (store, provider, _) = bent();
    let _held = provider.acquire("n").await.unwrap();
    store.hints_at_once.store(true, Ordering::SeqCst);
    let before = store.calls(Operation::TryAcquire);
    assert!(
        provider
            .acquire_within("n", ms(60_000))
            .await
            .unwrap()
            .is_none()
    );
    let tries = store.calls(Operation::TryAcquire) - before;
    assert!(tries <= 60 * 12, "{tries} tries in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_watch_always_resolves_is_not_read_all_the_time() {
    let (store, provider, _) = bent();
    let guard = provider.acquire("n").await.unwrap();
    let seen = provider.observe("n").await.unwrap();
    store.hints_at_once.store(true, Ordering::SeqCst);
    let before = store.calls(Operation::Observe);
    let minute = ms(60_000);
    tokio::time::timeout(minute, provider.watch(&seen))
        .await
        .unwrap_err();
    let reads = store.calls(Operation::Observe) - before;
    assert!((60..=60 * 12).contains(&reads), "{reads} reads in a minute");
    guard.release().await.unwrap();
    soon(provider.watch(&seen)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_listen_is_contention_and_not_an_error() {
    let (store, provider, _) = bent();
    let _held = provider.acquire("n").await.unwrap();
    *store.fails.lock().unwrap() = vec![Operation::Wait];
    let before = store.calls(Operation::TryAcquire);
    assert!(
        provider
            .acquire_within("n", ms(60_000))
            .await
            .unwrap()
            .is_none()
    );
    let tries = store.calls(Operation::TryAcquire) - before;
    assert!(tries <= 60 * 3, "{tries} tries in a minute");
}

// ---- limits ----

#[tokio::test(start_paused = true)]
async fn a_limit_that_ends_before_the_store_has_answered_is_not_contention() {
    let world = World::new();
    let provider = world.provider();
    world.hang(Operation::TryAcquire);
    for limit in [
        Duration::from_nanos(1),
        ms(1),
        timing().request_timeout() - ms(1),
    ] {
        let start = world.now();
        let error = provider.acquire_within("n", limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(world.now().since(start) <= limit + ms(2));
    }
    world.heal();
    let guard = provider
        .acquire_within("n", Duration::MAX)
        .await
        .unwrap()
        .unwrap();
    assert!(
        provider
            .acquire_within("n", Duration::ZERO)
            .await
            .unwrap()
            .is_none()
    );
    assert!(provider.acquire_within("n", ms(1)).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_single_try_at_a_store_that_is_down_does_not_wait_for_the_ttl() {
    let world = World::new();
    world.hang(Operation::TryAcquire);
    world.hang(Operation::Withdraw);
    let start = world.now();
    let error = world.provider().try_acquire("n").await.unwrap_err();
    assert_eq!(error.operation(), Some(Operation::TryAcquire), "{error}");
    let took = world.now().since(start);
    assert!(took <= timing().request_timeout() + ms(5), "{took:?}");
}

// ---- what onlookers are told ----

#[tokio::test(start_paused = true)]
async fn the_status_is_that_of_the_present_run() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let first = lead(&elector);
    until_leading(&elector).await;
    // The release takes effect, and its answer is never heard.
    world.inject(Operation::Release, Fault::HangAfter, Times::Next(1));
    first.abort();
    first.await.unwrap_err();
    assert_eq!(*elector.status().borrow(), Status::Idle);
    soon(world.until_free("n")).await;
    assert_eq!(*elector.status().borrow(), Status::Idle, "nobody runs it");
    let second = lead(&elector);
    until_leading(&elector).await;
    let mut status = elector.status();
    status.mark_unchanged();
    tokio::time::sleep(TTL * 2).await;
    assert!(
        matches!(*status.borrow(), Status::Leading(_)),
        "the end of the first run is no news of the second: {:?}",
        *status.borrow()
    );
    assert!(!status.has_changed().unwrap());
    elector.shutdown();
    soon(second).await.unwrap().unwrap();
    assert_eq!(*elector.status().borrow(), Status::Idle);
}

/// Real threads: the driver is quicker than who started it.
#[test]
fn a_quick_grant_is_not_overwritten_by_the_start() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let provider = Provider::single_node();
    runtime.block_on(async {
        for round in 0..2000 {
            let elector = provider.elector(&format!("n{}", round % 7)).unwrap();
            let seen = elector.clone();
            let outcome = elector
                .run_once(|_| async move {
                    let seen = seen.status().borrow().clone();
                    assert!(
                        matches!(seen, Status::Leading(_)),
                        "round {round}: {seen:?}"
                    );
                })
                .await
                .unwrap();
            assert!(matches!(outcome, Outcome::Finished(())));
        }
    });
}

// ---- the injected clock ----

#[derive(Debug)]
struct Hand(AtomicU64);

impl Hand {
    fn at(at: Moment) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(at.as_nanos())))
    }

    fn forward(&self, by: Duration) {
        self.0
            .fetch_add(u64::try_from(by.as_nanos()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn an_hour_that_passes_at_once_ends_the_term() {
    let hand = Hand::at(Moment::START);
    let clock: Arc<dyn Clock> = Arc::<Hand>::clone(&hand);
    let provider = Provider::new(Arc::new(MemoryStore::with_clock(Arc::clone(&clock))))
        .with_clock(clock)
        .with_timing(timing());
    let guard = provider.acquire("n").await.unwrap();
    assert!(guard.check(), "at the start of the clock too");
    let elector = provider.elector("m").unwrap();
    let polls = Arc::new(AtomicU64::new(0));
    let run = {
        let (elector, polls) = (elector.clone(), Arc::clone(&polls));
        tokio::spawn(async move {
            elector
                .run_once(|_| async move {
                    loop {
                        polls.fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                    }
                })
                .await
        })
    };
    until_leading(&elector).await;
    let polled = polls.load(Ordering::SeqCst);
    assert!(polled > 0);
    hand.forward(Duration::from_secs(3600));
    assert!(!guard.check());
    assert!(matches!(
        soon(guard.lost()).await,
        LossReason::Expired { .. }
    ));
    let outcome: Outcome<()> = soon(run).await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Lost(..)), "{outcome:?}");
    assert_eq!(polls.load(Ordering::SeqCst), polled, "not one step more");
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    assert!(soon(provider.acquire("n")).await.unwrap().token() > token);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_clock_nothing_is_held_for_ever() {
    let hand = Hand::at(Moment::NEVER.before(ms(1000)));
    let clock: Arc<dyn Clock> = Arc::<Hand>::clone(&hand);
    let provider = Provider::new(Arc::new(MemoryStore::with_clock(Arc::clone(&clock))))
        .with_clock(clock)
        .with_timing(timing());
    let guard = soon(provider.acquire("n")).await.unwrap();
    assert!(guard.check());
    hand.0.store(u64::MAX, Ordering::SeqCst);
    assert!(!guard.check());
    soon(guard.lost()).await;
}

// ---- times at their limits ----

#[tokio::test(start_paused = true)]
async fn extreme_times_work() {
    let day = Duration::from_secs(24 * 60 * 60);
    let drifting = Timing::builder(ms(10_000))
        .drift_ppm(500_000)
        .renew_every(ms(1000))
        .request_timeout(ms(500))
        .drain(ms(1000))
        .build()
        .unwrap();
    for timing in [
        Timing::for_ttl(ms(100)).unwrap(),
        Timing::for_ttl(day).unwrap(),
        drifting,
    ] {
        let world = World::new();
        let guard = world
            .provider()
            .with_timing(timing)
            .acquire("n")
            .await
            .unwrap();
        tokio::time::sleep(timing.ttl() * 4).await;
        assert!(guard.check(), "{timing:?}");
        world.hang(Operation::Renew);
        let last_renewal_before = world.now();
        guard.lost().await;
        let usable = timing
            .deadline(Moment::START, timing.ttl())
            .since(Moment::START);
        assert!(
            world.now().since(last_renewal_before) <= usable + ms(5),
            "{timing:?}"
        );
    }
}

// ---- growth ----

#[tokio::test(start_paused = true)]
async fn a_guard_over_a_flaky_store_is_kept() {
    let (store, provider, _) = bent();
    let guard = provider.acquire("n").await.unwrap();
    for _ in 0..200 {
        *store.fails.lock().unwrap() = vec![Operation::Renew];
        let failed = store.calls(Operation::Renew);
        while store.calls(Operation::Renew) == failed {
            tokio::time::sleep(ms(50)).await;
        }
        store.fails.lock().unwrap().clear();
        tokio::time::sleep(ms(200)).await;
    }
    assert!(guard.check());
    assert_eq!(soon(guard.release()).await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn many_short_terms_leave_nothing_behind() {
    let world = World::new();
    let provider = world.provider();
    for n in 0..20_000_u32 {
        let name = if n % 2 == 0 { "a" } else { "b" };
        let guard = provider.acquire(name).await.unwrap();
        if n % 3 == 0 {
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
    }
    soon(world.until_free("b")).await;
    let renewals = world.calls(Operation::Renew);
    tokio::time::sleep(TTL * 10).await;
    assert_eq!(world.calls(Operation::Renew), renewals);
    assert_eq!(world.calls(Operation::Release), 20_000);
    assert_eq!(world.calls(Operation::Withdraw), 0);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_guards_may_be_dropped_at_once() {
    let world = World::new();
    let provider = world.provider();
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(provider.acquire(&format!("n{n}")).await.unwrap());
    }
    let kept = guards.pop().unwrap();
    drop(guards);
    soon(async {
        while world.calls(Operation::Release) < 9_999 {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    tokio::time::sleep(TTL * 2).await;
    assert!(kept.check());
    assert_eq!(world.calls(Operation::Release), 9_999);
}

#[tokio::test(start_paused = true)]
async fn acquiring_in_a_select_loop_gets_there_and_leaves_nothing() {
    let world = World::new();
    let held = world.provider().acquire("n").await.unwrap();
    let provider = world.provider();
    let looped = tokio::spawn(async move {
        let mut turns = 0_u32;
        loop {
            tokio::select! {
                guard = provider.acquire("n") => return (turns, guard.unwrap()),
                () = tokio::time::sleep(ms(7)) => turns += 1,
            }
        }
    });
    tokio::time::sleep(TTL * 2).await;
    held.release().await.unwrap();
    let (turns, guard) = soon(looped).await.unwrap();
    assert!(turns > 500 && guard.check());
}

// ---- electors in a storm ----

#[tokio::test(start_paused = true)]
async fn two_electors_under_a_storm_of_step_downs_never_overlap() {
    let world = World::new();
    let working = Arc::new(AtomicU64::new(0));
    let terms = Arc::new(AtomicU64::new(0));
    let mut runs = Vec::new();
    let electors: Vec<_> = (0..2)
        .map(|_| world.provider().elector("n").unwrap())
        .collect();
    for elector in &electors {
        let (elector, working, terms) = (elector.clone(), Arc::clone(&working), Arc::clone(&terms));
        runs.push(tokio::spawn(async move {
            elector
                .run(|leadership| {
                    let (working, terms) = (Arc::clone(&working), Arc::clone(&terms));
                    async move {
                        assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0, "two at work");
                        terms.fetch_add(1, Ordering::SeqCst);
                        leadership.stopping().await;
                        tokio::time::sleep(ms(20)).await;
                        assert!(leadership.check());
                        working.fetch_sub(1, Ordering::SeqCst);
                        Ok::<(), String>(())
                    }
                })
                .await
        }));
    }
    let admin = world.provider();
    for n in 0..600_u64 {
        admin.step_down("n", ms(n % 50)).await.unwrap();
        electors[usize::try_from(n % 2).unwrap()].resign(ms(n % 30));
        tokio::time::sleep(ms(n % 90)).await;
    }
    assert!(terms.load(Ordering::SeqCst) > 100);
    for elector in &electors {
        elector.shutdown();
    }
    for run in runs {
        soon(run).await.unwrap().unwrap();
    }
    assert_eq!(working.load(Ordering::SeqCst), 0);
    soon(world.until_free("n")).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_a_run_whatever_the_store_does() {
    let operations = [
        Operation::TryAcquire,
        Operation::Renew,
        Operation::Release,
        Operation::Withdraw,
        Operation::Wait,
    ];
    let faults = [
        Fault::HangBefore,
        Fault::HangAfter,
        Fault::Panic,
        Fault::FailAfter(Error::new(ErrorKind::Unavailable, "on purpose")),
    ];
    for operation in operations {
        for fault in &faults {
            for at in [0, 1, 300, 1100, 2500] {
                let world = World::new();
                world.inject(operation, fault.clone(), Times::Always);
                let elector = world.provider().elector("n").unwrap();
                let run = lead(&elector);
                tokio::time::sleep(ms(at)).await;
                elector.shutdown();
                let bound = timing().drain() + timing().request_timeout() * 3;
                let ended = tokio::time::timeout(bound, run).await;
                assert!(ended.is_ok(), "{operation} {fault:?} after {at} ms");
                ended.unwrap().unwrap().unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn work_whose_drop_panics_frees_the_name() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("on purpose");
            }
        }
    }
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move {
            elector
                .run(|_| async {
                    let _bomb = Bomb;
                    std::future::pending::<std::result::Result<(), String>>().await
                })
                .await
        })
    };
    until_leading(&elector).await;
    elector.resign(Duration::ZERO);
    assert!(run.await.unwrap_err().is_panic());
    soon(world.until_free("n")).await;
    assert_eq!(*elector.status().borrow(), Status::Idle);
    let again = lead(&elector);
    until_leading(&elector).await;
    elector.shutdown();
    soon(again).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_push_a_neighbour_still_hears_of_a_release_at_once() {
    let (_store, provider, clock) = bent_so(|store| store.capabilities.push = false);
    let mut guard = provider.acquire("n").await.unwrap();
    // Each waits while the other holds it; one is given up, in front of the queue.
    let given_up = tokio::time::timeout(ms(10), provider.acquire("n")).await;
    assert!(given_up.is_err());
    for _ in 0..10 {
        let waiter = tokio::spawn({
            let provider = provider.clone();
            async move { provider.acquire("n").await }
        });
        tokio::time::sleep(ms(20)).await;
        let start = clock.now();
        drop(guard);
        guard = soon(waiter).await.unwrap().unwrap();
        assert!(
            clock.now().since(start) < ms(20),
            "that is the poll, not the release"
        );
    }
}
