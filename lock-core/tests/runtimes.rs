//! Runtimes that block, end, or are not run any more. Real time and real threads.

#![allow(clippy::unwrap_used, reason = "a test program")]

use std::sync::Arc;
use std::time::Duration;

use lock_core::memory::MemoryStore;
use lock_core::{LeaseState, LockGuard, LockName, LockPersistence, LockProvider as _, Provider};
use lock_core::{Timing, dedicated_runtime};
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_millis(1500);

fn store() -> Arc<dyn LockPersistence> {
    Arc::new(MemoryStore::new())
}

fn provider(store: &Arc<dyn LockPersistence>) -> Provider {
    Provider::new(Arc::clone(store)).with_timing(Timing::for_ttl(TTL).unwrap())
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread(workers: usize) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .unwrap()
}

fn is_free(store: &Arc<dyn LockPersistence>) -> bool {
    let name = LockName::new("n").unwrap();
    let seen = current_thread().block_on(store.observe(&name)).unwrap();
    matches!(seen.state, LeaseState::Free { .. } | LeaseState::Absent)
}

/// Waits until the name is free without having expired: well before the ttl.
fn freed_soon(store: &Arc<dyn LockPersistence>) {
    for _ in 0..100 {
        if is_free(store) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not released within a second");
}

fn acquire(runtime: &Runtime, provider: &Provider) -> LockGuard {
    let guard = runtime.block_on(provider.acquire("n")).unwrap();
    assert!(guard.check());
    guard
}

#[test]
fn a_guard_in_an_aborted_task_is_released() {
    let (runtime, store) = (multi_thread(2), store());
    let provider = provider(&store);
    let (held, is_held) = std::sync::mpsc::channel();
    let task = runtime.spawn(async move {
        let _guard = provider.acquire("n").await.unwrap();
        held.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    is_held.recv().unwrap();
    task.abort();
    freed_soon(&store);
}

#[test]
fn a_guard_dropped_after_block_on_has_returned_is_released() {
    for runtime in [current_thread(), multi_thread(1)] {
        let store = store();
        let guard = acquire(&runtime, &provider(&store));
        drop(guard); // outside the runtime; a current-thread one is not run any more
        freed_soon(&store);
    }
}

#[test]
fn a_guard_dropped_in_another_runtime_while_its_own_is_not_run_is_released() {
    let (first, store) = (current_thread(), store());
    let guard = acquire(&first, &provider(&store));
    let second = current_thread();
    second.block_on(async move { drop(guard) });
    freed_soon(&store);
    drop(first);
}

#[test]
fn a_guard_dropped_during_the_shutdown_of_its_runtime_is_released() {
    for runtime in [current_thread(), multi_thread(2)] {
        let store = store();
        let provider = provider(&store);
        let (held, is_held) = tokio::sync::oneshot::channel();
        runtime.spawn(async move {
            let _guard = provider.acquire("n").await.unwrap();
            held.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        runtime.block_on(is_held).unwrap();
        runtime.shutdown_timeout(Duration::from_millis(100));
        freed_soon(&store);
    }
}

#[test]
fn a_guard_dropped_after_its_runtime_has_ended_is_released() {
    let (runtime, store) = (multi_thread(1), store());
    let guard = acquire(&runtime, &provider(&store));
    drop(runtime);
    std::thread::spawn(move || drop(guard)).join().unwrap();
    freed_soon(&store);
}

#[test]
fn a_guard_that_outlives_its_runtime_is_not_renewed_and_ends_at_its_deadline() {
    let (runtime, store) = (multi_thread(1), store());
    let guard = acquire(&runtime, &provider(&store));
    drop(runtime);
    let left = guard.remaining();
    assert!(guard.check(), "the lease still stands");
    current_thread().block_on(guard.lost());
    assert!(!guard.check());
    assert!(left <= TTL);
}

#[test]
fn a_guard_dropped_by_a_panic_is_released() {
    let (runtime, store) = (multi_thread(1), store());
    let provider = provider(&store);
    let task = runtime.spawn(async move {
        let _guard = provider.acquire("n").await.unwrap();
        panic!("on purpose");
    });
    assert!(runtime.block_on(task).unwrap_err().is_panic());
    freed_soon(&store);
}

#[test]
fn a_guard_may_move_between_runtimes() {
    let (first, store) = (multi_thread(1), store());
    let guard = acquire(&first, &provider(&store));
    let moved = std::thread::spawn(move || current_thread().block_on(guard.release()).unwrap());
    moved.join().unwrap();
    freed_soon(&store);
}

#[test]
fn a_provider_may_move_to_another_runtime() {
    let store = store();
    let provider = provider(&store);
    let first = current_thread();
    first
        .block_on(acquire(&first, &provider).release())
        .unwrap();
    drop(first);
    let second = current_thread();
    let guard = acquire(&second, &provider);
    second.block_on(guard.release()).unwrap();
}

#[test]
fn after_a_blocked_executor_the_first_check_is_false() {
    let (runtime, store) = (current_thread(), store());
    let provider = provider(&store);
    runtime.block_on(async {
        let guard = provider.acquire("n").await.unwrap();
        std::thread::sleep(TTL);
        assert!(!guard.check(), "before anything else runs");
        tokio::time::sleep(TTL / 10).await;
        assert!(!guard.check(), "and for ever");
    });
}

#[test]
fn on_a_runtime_of_its_own_renewals_go_on_while_the_executor_is_blocked() {
    for runtime in [current_thread(), multi_thread(1)] {
        let store = store();
        let provider = provider(&store).on_runtime(dedicated_runtime());
        runtime.block_on(async {
            let guard = provider.acquire("n").await.unwrap();
            std::thread::sleep(TTL * 3);
            assert!(guard.check());
            guard.release().await.unwrap();
        });
    }
}

#[test]
fn without_a_runtime_the_error_says_what_to_do() {
    let provider = provider(&store());
    let error = futures_util::FutureExt::now_or_never(provider.acquire("n"))
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("on_runtime"), "{error}");
}
