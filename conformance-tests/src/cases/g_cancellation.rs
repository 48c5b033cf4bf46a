//! G. Cancellation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{Attempt, LockPersistence, LockProvider as _, Observation, Request};

use crate::cx::{
    Cx, SOON, claim, denied, ensure, eventually, granted, is_free, name, poll_times, soon,
};
use crate::harness::Answer;

/// Polls that are tried before a drop; a call that is done earlier ends the row.
const POLLS: usize = 12;

pub(crate) async fn dropped_calls_leave_the_store_usable(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let (free, held) = (name("free"), name("held"));
    let lease = granted(other.as_ref(), &claim(&held, ttl)).await?;
    let seen = other.observe(&held).await?;
    for method in 0..14 {
        for polls in 0..POLLS {
            let mine = claim(&free, ttl);
            let done = drop_after(
                polls,
                method,
                store.as_ref(),
                &mine,
                &held,
                &seen,
                cx.clone(),
            );
            let done = done.await?;
            // The next call of the same client works, and so does forgetting.
            soon("withdraw after a dropped call", store.withdraw(&mine)).await??;
            soon("observe after a dropped call", store.observe(&held)).await??;
            eventually("the withdrawn claim is gone", SOON, || async {
                store.withdraw(&mine).await?;
                Ok(is_free(&other.observe(&free).await?))
            })
            .await?;
            let next = granted(store.as_ref(), &claim(&free, ttl)).await?;
            store.release(&next).await?;
            if done {
                break;
            }
        }
    }
    crate::cx::renewed(other.as_ref(), &lease).await
}

/// Calls one method, drops it after so many polls, and says whether it was done before.
async fn drop_after(
    polls: usize,
    method: usize,
    store: &dyn LockPersistence,
    mine: &lock_core::Claim,
    held: &lock_core::LockName,
    seen: &Observation,
    cx: Cx,
) -> Answer<bool> {
    let holder = denied(store, &claim(held, mine.ttl)).await?;
    let wish = Request::StepDown {
        hold_off: Duration::ZERO,
    };
    Ok(match method {
        0 => poll_times(polls, store.prepare()).await,
        1 => poll_times(polls, store.try_acquire(mine)).await,
        2 => {
            let lease = granted(store, mine).await?;
            poll_times(polls, store.renew(std::slice::from_ref(&lease))).await
        }
        3 => {
            let lease = granted(store, mine).await?;
            poll_times(polls, store.release(&lease)).await
        }
        4 => {
            granted(store, mine).await?;
            poll_times(polls, store.withdraw(mine)).await
        }
        5 => poll_times(polls, store.wait(&claim(held, mine.ttl), &holder)).await,
        6 => poll_times(polls, store.observe(held)).await,
        7 => poll_times(polls, store.watch(seen)).await,
        8 => poll_times(polls, store.list("")).await,
        9 => {
            granted(store, mine).await?;
            poll_times(polls, store.revoke(&mine.name, "test")).await
        }
        10 => {
            granted(store, mine).await?;
            poll_times(polls, store.request(&mine.name, &wish)).await
        }
        11 => poll_times(polls, store.server_time()).await,
        12 => poll_times(polls, store.sweep(Duration::from_secs(3600))).await,
        _ => {
            let closing = cx.open().await?;
            poll_times(polls, closing.close()).await
        }
    })
}

pub(crate) async fn dropped_acquire_leaves_nothing(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let other: Arc<dyn LockPersistence> = cx.open().await?;
    let ttl = cx.long(store.as_ref());
    let provider = cx.provider(&store, ttl);
    let (free, held) = (name("free"), name("held"));
    let lease = granted(other.as_ref(), &claim(&held, ttl)).await?;
    for polls in 0..cx.rounds(20, 200) {
        let took = poll_times(polls, provider.acquire("free")).await;
        poll_times(polls, provider.acquire("held")).await;
        // Its request may still be on its way: what it takes then is given back.
        let mine = claim(&free, ttl);
        eventually("a dropped acquire is gone", SOON, || async {
            let Attempt::Granted(next) = other.try_acquire(&mine).await? else {
                return Ok(false);
            };
            other.release(&next).await?;
            Ok(true)
        })
        .await?;
        if took && polls > 10 {
            break;
        }
    }
    other.release(&lease).await?;
    // None of the dropped waiters stands up to take it.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(300) {
        let seen = other.observe(&held).await?;
        ensure!(is_free(&seen), "a dropped waiter took the name: {seen:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let guard = soon("the same process acquires again", provider.acquire("held")).await??;
    crate::cx::let_go(&guard).await?;
    Ok(())
}

pub(crate) async fn waiting_is_exact(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let provider = cx.provider(&store, ttl);
    granted(other.as_ref(), &claim(&name("n"), ttl)).await?;
    for millis in [0, 300, 1000] {
        let limit = Duration::from_millis(millis);
        let began = Instant::now();
        let got = provider.acquire_within("n", limit).await?;
        let took = began.elapsed();
        ensure!(got.is_none(), "a held name was acquired");
        ensure!(
            took >= limit && took < limit + Duration::from_millis(500),
            "a wait of {limit:?} took {took:?}"
        );
    }
    Ok(())
}
