//! The driver, the guard and the elector over the memory store, in virtual time: a test that waits
//! for a ttl takes no time, and the same run has the same order each time.

#![allow(clippy::unwrap_used, reason = "a test program")]

mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_core::wrap::{Fault, Times};
use lock_core::{
    ErrorKind, Event, LeaseState, LockProvider as _, LossReason, Operation, Outcome, Release,
    Status, StopReason,
};
use support::{HAND_OFF, TTL, World, ms, soon};

#[tokio::test(start_paused = true)]
async fn a_second_acquire_waits_like_any_other() {
    let world = World::new();
    let provider = world.provider();
    let first = provider.acquire("n").await.unwrap();
    assert!(first.check() && first.ensure().is_ok());
    assert!(
        provider.try_acquire("n").await.unwrap().is_none(),
        "not reentrant"
    );
    assert!(
        provider
            .acquire_within("n", ms(200))
            .await
            .unwrap()
            .is_none()
    );
    let waiter = tokio::spawn(async move { provider.acquire("n").await });
    tokio::time::sleep(ms(50)).await;
    assert_eq!(first.release().await.unwrap(), Release::Released);
    assert!(!first.check(), "released");
    assert_eq!(first.ensure().unwrap_err().kind(), ErrorKind::LeaseLost);
    let second = soon(waiter).await.unwrap().unwrap();
    assert!(second.token() > first.token());
    assert_eq!(
        first.release().await.unwrap(),
        Release::Released,
        "the same answer again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_and_a_dropped_one_is_released() {
    let world = World::new();
    let provider = world.provider();
    let guard = provider.acquire("n").await.unwrap();
    let token = guard.token();
    tokio::time::sleep(TTL * 10).await;
    assert!(guard.check());
    assert_eq!(guard.token(), token);
    let renewals = world.calls(Operation::Renew);
    assert!(
        (28..=40).contains(&renewals),
        "{renewals} renewals in ten ttls"
    );
    drop(guard);
    soon(world.until_free("n")).await;
    let renewals = world.calls(Operation::Renew);
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(
        world.calls(Operation::Renew),
        renewals,
        "nothing is renewed afterwards"
    );
}

#[tokio::test(start_paused = true)]
async fn dropping_acquire_after_any_poll_leaves_nothing() {
    let cases = (0..40).flat_map(|polls| [(polls, false), (polls, true)]);
    for (polls, answer_is_late) in cases {
        let world = World::new();
        let late = if answer_is_late {
            Fault::DelayAfter
        } else {
            Fault::DelayBefore
        };
        world.inject(Operation::TryAcquire, late(ms(20)), Times::Next(1));
        let provider = world.provider();
        {
            let mut acquire = pin!(provider.acquire("n"));
            for _ in 0..polls {
                let mut cx = Context::from_waker(Waker::noop());
                if acquire.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
                tokio::time::sleep(ms(3)).await;
            }
        }
        let other = world.provider();
        soon(other.acquire("n"))
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        let renewals = world.calls(Operation::Renew);
        tokio::time::sleep(TTL * 3).await;
        assert_eq!(
            world.calls(Operation::Renew),
            renewals,
            "after {polls} polls"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_is_settled_when_all_that_was_dropped_is_released() {
    let world = World::new();
    let provider = world.provider();
    soon(provider.settled()).await; // nothing was begun
    let guard = provider.acquire("n").await.unwrap();
    let waiting = tokio::time::timeout(ms(50), provider.acquire("n")).await;
    assert!(waiting.is_err());
    let still = tokio::time::timeout(ms(50), provider.settled()).await;
    assert!(still.is_err(), "the guard is alive");
    let late = Fault::DelayBefore(ms(100));
    world.inject(Operation::Release, late, Times::Next(1));
    drop(guard);
    soon(provider.settled()).await;
    assert!(matches!(world.state("n").await, LeaseState::Free { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_kept_but_not_polled_holds_nobody_up() {
    let world = World::new();
    let provider = world.provider();
    let mut kept = Box::pin(provider.acquire("n"));
    assert!(
        kept.as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    let other = world.provider();
    let guard = tokio::time::timeout(HAND_OFF * 2, other.acquire("n"))
        .await
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
    // Polled again, it starts over.
    let late = soon(kept).await.unwrap();
    assert!(late.check() && late.token() > guard.token());
}

#[tokio::test(start_paused = true)]
async fn a_single_try_that_is_polled_late_is_not_denied_by_itself() {
    let world = World::new();
    let provider = world.provider();
    let mut kept = Box::pin(provider.try_acquire("n"));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(kept.as_mut().poll(&mut cx).is_pending());
    world.inject(
        Operation::Release,
        Fault::DelayBefore(ms(200)),
        Times::Next(1),
    );
    tokio::time::sleep(HAND_OFF * 2).await;
    assert!(
        soon(kept)
            .await
            .unwrap()
            .expect("nobody else wants it")
            .check()
    );
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_end_the_term_at_the_deadline() {
    let world = World::new();
    let provider = world.provider();
    let guard = provider.acquire("n").await.unwrap();
    world.hang(Operation::Renew);
    let deadline = guard.deadline();
    assert_eq!(guard.stopping().await, StopReason::Deadline);
    assert!(guard.check(), "told to stop before the deadline");
    let told = world.now();
    let reason = guard.lost().await;
    assert!(!guard.check());
    let LossReason::Expired { last_error } = reason else {
        panic!("{reason:?}")
    };
    assert_eq!(last_error.unwrap().kind(), ErrorKind::Timeout);
    assert!(world.now() >= deadline && world.now().since(deadline) < ms(5));
    assert!(deadline.since(told) >= guard_drain() - ms(5));
    assert_eq!(
        guard.release().await.unwrap(),
        Release::Released,
        "ours until it expires there"
    );
}

fn guard_drain() -> Duration {
    support::timing().drain()
}

#[tokio::test(start_paused = true)]
async fn one_failed_renewal_costs_nothing() {
    for error in [
        ErrorKind::Unavailable,
        ErrorKind::Timeout,
        ErrorKind::PermissionDenied,
    ] {
        let world = World::new();
        let guard = world.provider().acquire("n").await.unwrap();
        world.fail_once(Operation::Renew, error);
        tokio::time::sleep(TTL * 3).await;
        assert!(guard.check(), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_costs_nothing() {
    let world = World::new();
    let guard = world.provider().acquire("n").await.unwrap();
    world.lose_answer_once(Operation::Renew);
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.check());
    world.lose_answer_once(Operation::Release);
    let error = guard.release().await.unwrap_err();
    assert!(
        error.is_indeterminate() && error.to_string().contains("expires"),
        "{error}"
    );
    assert_eq!(
        guard.release().await.unwrap(),
        Release::NotHeld,
        "it had taken effect"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_to_an_acquire_is_asked_again_with_the_same_nonce() {
    let world = World::new();
    world.lose_answer_once(Operation::TryAcquire);
    let guard = soon(world.provider().acquire("n")).await.unwrap();
    assert!(guard.check());
    let seen = world.provider().observe("n").await.unwrap();
    assert_eq!(
        seen.holder().unwrap().token,
        guard.token(),
        "one term, one token"
    );
}

#[tokio::test(start_paused = true)]
async fn a_single_try_with_a_lost_answer_is_withdrawn() {
    let world = World::new();
    world.lose_answer_once(Operation::TryAcquire);
    let error = world.provider().try_acquire("n").await.unwrap_err();
    assert!(error.is_indeterminate());
    soon(world.until_free("n")).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_with_a_limit_tells_contention_from_an_outage() {
    let world = World::new();
    let provider = world.provider();
    let held = provider.acquire("n").await.unwrap();
    let start = world.now();
    assert!(
        provider
            .acquire_within("n", ms(3000))
            .await
            .unwrap()
            .is_none()
    );
    assert!(world.now().since(start) >= ms(3000) && world.now().since(start) < ms(3200));
    held.release().await.unwrap();
    world.fail(Operation::TryAcquire, ErrorKind::Unavailable);
    let start = world.now();
    let error = provider.acquire_within("n", ms(3000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(world.now().since(start) >= ms(3000) && world.now().since(start) < ms(3200));
}

#[tokio::test(start_paused = true)]
async fn an_entry_removed_by_hand_is_noticed_at_the_next_renewal() {
    let world = World::new();
    let guard = world.provider().acquire("n").await.unwrap();
    world
        .provider()
        .revoke("n", "by hand")
        .await
        .unwrap()
        .unwrap();
    let start = world.now();
    assert_eq!(guard.lost().await, LossReason::Gone);
    assert!(world.now().since(start) <= support::timing().renew_every() + ms(5));
    assert!(!guard.check());
}

#[tokio::test(start_paused = true)]
async fn many_leases_are_renewed_in_few_calls() {
    let world = World::new();
    let provider = world.provider();
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(provider.acquire(&format!("n{n}")).await.unwrap());
        if n % 10 == 0 {
            tokio::time::sleep(ms(17)).await;
        }
    }
    tokio::time::sleep(TTL).await;
    let before = world.calls(Operation::Renew);
    tokio::time::sleep(TTL * 10).await;
    let calls = world.calls(Operation::Renew) - before;
    assert!(guards.iter().all(|guard| guard.check()));
    assert!(
        calls <= 10 * 4 * 9,
        "{calls} calls for 1000 leases over ten ttls"
    );
}

#[tokio::test(start_paused = true)]
async fn a_panicking_store_is_an_error_and_not_the_end() {
    let world = World::new();
    let provider = world.provider();
    let guard = provider.acquire("n").await.unwrap();
    world.panic_once(Operation::Renew);
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.check());
    world.panic_once(Operation::TryAcquire);
    let error = provider.try_acquire("m").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
}

// ---- electors ----

#[tokio::test(start_paused = true)]
async fn the_work_ends_before_the_release_and_the_next_leads_after() {
    let world = World::new();
    let working = Arc::new(AtomicBool::new(false));
    let first = world.provider().elector("n").unwrap();
    let work_of_first = {
        let (elector, working) = (first.clone(), Arc::clone(&working));
        tokio::spawn(async move {
            elector
                .run(|leadership| {
                    let working = Arc::clone(&working);
                    async move {
                        working.store(true, Ordering::SeqCst);
                        assert_eq!(leadership.stopping().await, StopReason::Shutdown);
                        tokio::time::sleep(ms(300)).await; // drains
                        assert!(leadership.check(), "still covered while it drains");
                        working.store(false, Ordering::SeqCst);
                        Ok::<(), String>(())
                    }
                })
                .await
        })
    };
    let mut status = first.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
    let second = world.provider().elector("n").unwrap();
    let seen = Arc::new(AtomicU32::new(0));
    let run_of_second = {
        let (elector, working, seen) = (second.clone(), Arc::clone(&working), Arc::clone(&seen));
        tokio::spawn(async move {
            elector
                .run(|leadership| {
                    seen.store(
                        1 + u32::from(working.load(Ordering::SeqCst)),
                        Ordering::SeqCst,
                    );
                    async move {
                        leadership.stopping().await;
                        Ok::<(), String>(())
                    }
                })
                .await
        })
    };
    tokio::time::sleep(ms(100)).await;
    assert!(matches!(
        *second.status().borrow(),
        Status::Standby(Some(_))
    ));
    first.shutdown();
    soon(work_of_first).await.unwrap().unwrap();
    let mut status = second.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
    soon(async {
        while seen.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    assert_eq!(seen.load(Ordering::SeqCst), 1, "the first work had ended");
    second.shutdown();
    soon(run_of_second).await.unwrap().unwrap();
    soon(world.until_free("n")).await;
    assert!(matches!(*second.status().borrow(), Status::Idle));
    // For good.
    soon(second.run(|_| async { Err::<(), _>("ran again") }))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_that_overruns_its_drain_is_dropped_and_then_released() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move {
            elector
                .run_once(|_| async { std::future::pending::<()>().await })
                .await
        })
    };
    let mut status = elector.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
    let start = world.now();
    elector.shutdown();
    let outcome = run.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Aborted), "{outcome:?}");
    let took = world.now().since(start);
    assert!(
        took >= guard_drain() && took < guard_drain() + ms(10),
        "{took:?}"
    );
    assert!(matches!(world.state("n").await, LeaseState::Free { .. }));
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_at_the_deadline_and_leads_again_after() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let mut events = elector.events();
    let terms = Arc::new(AtomicU32::new(0));
    let alive = Arc::new(AtomicU32::new(0));
    let run = {
        let (elector, terms, alive) = (elector.clone(), Arc::clone(&terms), Arc::clone(&alive));
        tokio::spawn(async move {
            elector
                .run(|_| {
                    struct Alive(Arc<AtomicU32>);
                    impl Drop for Alive {
                        fn drop(&mut self) {
                            self.0.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                    terms.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(alive.fetch_add(1, Ordering::SeqCst), 0, "two works at once");
                    let alive = Alive(Arc::clone(&alive));
                    async move {
                        let _alive = alive;
                        std::future::pending::<Result<(), String>>().await
                    }
                })
                .await
        })
    };
    let mut status = elector.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
    world.fail(Operation::Renew, ErrorKind::Unavailable);
    world.fail(Operation::TryAcquire, ErrorKind::Unavailable);
    world.fail(Operation::Release, ErrorKind::Unavailable);
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(alive.load(Ordering::SeqCst), 0, "dropped at the deadline");
    assert!(elector.health().failures > 0 && elector.health().last_error.is_some());
    world.heal();
    tokio::time::sleep(TTL * 3).await;
    assert_eq!(terms.load(Ordering::SeqCst), 2);
    assert_eq!(elector.health().failures, 0);
    elector.shutdown();
    run.await.unwrap().unwrap();
    let mut order = Vec::new();
    while let Ok(event) = events.try_recv() {
        match event {
            Event::Gained { token, .. } => order.push(("gained", token)),
            Event::Lost { token, .. } => order.push(("lost", token)),
            _ => {}
        }
    }
    let names: Vec<_> = order.iter().map(|(what, _)| *what).collect();
    assert_eq!(names, ["gained", "lost", "gained"]);
    assert!(order[0].1 == order[1].1 && order[2].1 > order[0].1);
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_resigns_and_is_tried_again_with_growing_pauses() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let starts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let run = {
        let (elector, starts, clock) = (elector.clone(), Arc::clone(&starts), world.clock());
        tokio::spawn(async move {
            elector
                .run(|_| {
                    starts.lock().unwrap().push(clock.now());
                    async { Err::<(), _>("cannot start") }
                })
                .await
        })
    };
    tokio::time::sleep(TTL * 4).await;
    elector.shutdown();
    run.await.unwrap().unwrap();
    let starts = starts.lock().unwrap();
    let gaps: Vec<_> = starts.windows(2).map(|w| w[1].since(w[0])).collect();
    assert!(gaps.len() >= 4, "{gaps:?}");
    assert!(gaps[1] > gaps[0] && gaps[2] > gaps[1], "{gaps:?}");
    assert!(
        gaps.iter()
            .all(|gap| *gap <= support::timing().poll_every() * 2),
        "{gaps:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_work_releases_and_goes_on_up() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move {
            elector
                .run(|_| async { panic!("work panics") as Result<(), String> })
                .await
        })
    };
    assert!(soon(run).await.unwrap_err().is_panic());
    soon(world.until_free("n")).await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_run_drops_the_work_and_releases() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move {
            elector
                .run(|_| std::future::pending::<Result<(), String>>())
                .await
        })
    };
    let mut status = elector.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
    run.abort();
    soon(world.until_free("n")).await;
    assert!(matches!(*elector.status().borrow(), Status::Idle));
}

#[tokio::test(start_paused = true)]
async fn who_resigns_leaves_the_name_to_others_for_a_while() {
    let world = World::new();
    let provider = world.provider();
    let elector = provider.elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move {
            elector
                .run(|leadership| async move {
                    leadership.stopping().await;
                    Ok::<(), String>(())
                })
                .await
        })
    };
    let mut status = elector.status();
    for ask in 0..2 {
        soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
            .await
            .unwrap();
        let start = world.now();
        if ask == 0 {
            elector.resign(ms(10_000));
        } else {
            assert!(provider.step_down("n", ms(10_000)).await.unwrap());
        }
        status
            .wait_for(|s| matches!(s, Status::Standby(_)))
            .await
            .unwrap();
        status
            .wait_for(|s| matches!(s, Status::Leading(_)))
            .await
            .unwrap();
        let away = world.now().since(start);
        assert!(away >= ms(10_000) && away < ms(10_000) + TTL, "{away:?}");
    }
    elector.shutdown();
    soon(run).await.unwrap().unwrap();
    assert!(
        !provider.step_down("n", ms(1)).await.unwrap(),
        "nobody holds it"
    );
}

#[tokio::test(start_paused = true)]
async fn one_elector_runs_once_at_a_time() {
    let world = World::new();
    let elector = world.provider().elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move {
            elector
                .run(|_| std::future::pending::<Result<(), String>>())
                .await
        })
    };
    let mut status = elector.status();
    soon(status.wait_for(|s| matches!(s, Status::Leading(_))))
        .await
        .unwrap();
    let error = elector
        .run(|_| async { Ok::<(), String>(()) })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    run.abort();
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_is_shut_down_never_leads() {
    let world = World::new();
    let holder = world.provider().acquire("n").await.unwrap();
    let elector = world.provider().elector("n").unwrap();
    let run = {
        let elector = elector.clone();
        tokio::spawn(async move { elector.run_once(|_| async { unreachable!() }).await })
    };
    let mut status = elector.status();
    soon(status.wait_for(|s| matches!(s, Status::Standby(Some(_)))))
        .await
        .unwrap();
    elector.shutdown();
    assert!(matches!(
        soon(run).await.unwrap().unwrap(),
        Outcome::<()>::NeverLed
    ));
    assert!(holder.check());
}

#[tokio::test(start_paused = true)]
async fn watching_tells_of_terms_and_not_of_renewals() {
    let world = World::new();
    let provider = world.provider();
    let absent = provider.observe("n").await.unwrap();
    let watching = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.watch(&absent).await })
    };
    tokio::time::sleep(ms(10)).await;
    let guard = provider.acquire("n").await.unwrap();
    let held = soon(watching).await.unwrap().unwrap();
    assert_eq!(held.holder().unwrap().token, guard.token());
    let still = tokio::time::timeout(TTL * 3, provider.watch(&held)).await;
    assert!(still.is_err(), "renewals are no news");
    guard.release().await.unwrap();
    let free = soon(provider.watch(&held)).await.unwrap();
    assert!(matches!(free.state, LeaseState::Free { .. }), "{free:?}");
}
