//! Callers outside a runtime, beside a runtime that nobody runs, and on many threads. Real time.

#![allow(clippy::unwrap_used, reason = "a test program")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::clock::{Clock as _, SystemClock};
use lock_core::memory::MemoryStore;
use lock_core::wrap::{Fault, Faulty, Times};
use lock_core::{
    Elector, Error, ErrorKind, Event, Health, Leadership, LeaseState, LockGuard, LockProvider,
    LossReason, Operation, Outcome, Provider, Release, Status, StopReason, Timing,
    dedicated_runtime,
};
use tokio::runtime::{Builder, Runtime};

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn provider(ttl: Duration) -> Provider {
    Provider::new(Arc::new(MemoryStore::new())).with_timing(Timing::for_ttl(ttl).unwrap())
}

/// An executor that is not tokio.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn on_a_runtime_of_its_own_the_caller_needs_none() {
    let provider = provider(Duration::from_secs(1)).on_runtime(dedicated_runtime());
    block_on(async {
        let limit = Duration::from_millis(200);
        let guard = provider.acquire_within("n", limit).await.unwrap().unwrap();
        let again = provider.acquire_within("n", limit).await.unwrap();
        assert!(again.is_none());
        let seen = provider.observe("n").await.unwrap();
        assert_eq!(seen.holder().unwrap().token, guard.token());
        assert!(provider.step_down("n", Duration::ZERO).await.unwrap());
        assert_eq!(guard.stopping().await, StopReason::Requested);
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let free = provider.watch(&seen).await.unwrap();
        assert!(matches!(free.state, LeaseState::Free { .. }), "{free:?}");
    });
}

#[test]
fn without_any_runtime_looking_is_an_error_and_not_a_panic() {
    let provider = provider(Duration::from_secs(1));
    for error in [
        provider.observe("n").now_or_never().unwrap().unwrap_err(),
        provider.list("").now_or_never().unwrap().unwrap_err(),
    ] {
        assert!(error.to_string().contains("on_runtime"), "{error}");
    }
}

#[test]
fn a_release_returns_though_nobody_runs_the_runtime_of_the_driver() {
    let first = current_thread();
    let provider = provider(Duration::from_secs(60));
    let guard = first.block_on(provider.acquire("n")).unwrap();
    let second = current_thread();
    let bound = Duration::from_secs(10);
    let answer = second.block_on(async { tokio::time::timeout(bound, guard.release()).await });
    assert_eq!(answer.expect("it returns").unwrap(), Release::Released);
    drop(guard);
    let other = provider.on_runtime(second.handle().clone());
    let next = second.block_on(async { tokio::time::timeout(bound, other.acquire("n")).await });
    assert!(next.expect("it is free").unwrap().check());
    drop(first);
}

#[test]
fn a_flood_of_commands_does_not_starve_renewals() {
    let ttl = Duration::from_millis(600);
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let provider = provider(ttl).on_runtime(dedicated_runtime());
    let guard = runtime.block_on(provider.acquire("n")).unwrap();
    let elector = provider.elector("m").unwrap();
    let run = {
        let elector = elector.clone();
        runtime.spawn(async move {
            elector
                .run(|leadership| async move {
                    leadership.stopping().await;
                    Ok::<(), String>(())
                })
                .await
        })
    };
    let stop = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let flood = {
        let (elector, stop, sent) = (elector.clone(), Arc::clone(&stop), Arc::clone(&sent));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                elector.resign(Duration::ZERO);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    std::thread::sleep(ttl * 3);
    let held = guard.check();
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    elector.shutdown();
    assert!(held, "after {} commands", sent.load(Ordering::Relaxed));
    runtime.block_on(run).unwrap().unwrap();
}

/// A store whose client blocks a worker of the runtime, in the turn in which the work is told to stop.
#[test]
fn a_loss_is_told_in_time_while_the_store_blocks_a_worker() {
    let ttl = Duration::from_millis(1000);
    let store = Faulty::new(Arc::new(MemoryStore::new()));
    let faults = store.faults().clone();
    let provider = Provider::new(Arc::new(store)).with_timing(Timing::for_ttl(ttl).unwrap());
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let acquired = runtime.spawn(async move { provider.acquire("n").await });
    let guard = block_on(acquired).unwrap().unwrap();
    let block = Duration::from_secs(3);
    faults.inject(Operation::Renew, Fault::Block(block), Times::Always);
    let leadership = guard.leadership().clone();
    let told = runtime.spawn(async move {
        leadership.stopping().await;
        let stopping = SystemClock.now();
        leadership.lost().await;
        (stopping, SystemClock.now())
    });
    let deadline = guard.deadline();
    let (stopping, lost) = block_on(told).unwrap();
    let slack = Duration::from_secs(1);
    assert!(
        stopping.since(deadline) < slack && lost.since(deadline) < slack,
        "{stopping:?} and {lost:?}, deadline {deadline:?}"
    );
}

#[test]
fn a_release_is_never_told_as_a_loss() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let provider = provider(Duration::from_secs(60));
    let (send, receive) = std::sync::mpsc::channel::<Leadership>();
    let onlooker = std::thread::spawn(move || {
        for leadership in receive {
            // Looks again and again, so that some look falls into the middle of the release.
            while leadership.check() {
                assert_eq!(leadership.lost().now_or_never(), None);
            }
            assert_eq!(leadership.lost().now_or_never(), None);
        }
    });
    runtime.block_on(async {
        for _ in 0..5000 {
            let guard = provider.acquire("n").await.unwrap();
            send.send(guard.leadership().clone()).unwrap();
            guard.release().await.unwrap();
        }
    });
    drop(send);
    onlooker.join().expect("no release was a loss");
}

/// What may cross threads, be cloned and be printed; fails to compile otherwise.
#[test]
fn the_types_are_what_callers_need() {
    fn shared<T: Send + Sync + std::fmt::Debug + 'static>() {}
    fn cheap<T: Clone + Unpin>() {}
    fn sent<T: Send>(_: &T) {}
    shared::<LockGuard>();
    shared::<Leadership>();
    shared::<Provider>();
    shared::<Elector>();
    shared::<Error>();
    shared::<Event>();
    shared::<Health>();
    shared::<Status>();
    shared::<LossReason>();
    shared::<Outcome<()>>();
    shared::<Box<dyn LockProvider>>();
    cheap::<Leadership>();
    cheap::<Provider>();
    cheap::<Elector>();
    cheap::<Error>();
    let provider = provider(Duration::from_secs(1));
    let elector = provider.elector("n").unwrap();
    sent(&provider.acquire("n"));
    sent(&elector.run(|_| async { Ok::<(), String>(()) }));
    sent(&elector.run_once(|leadership| async move { leadership.lost().await }));
    let error = provider.elector("").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
}
