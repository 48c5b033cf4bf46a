//! E. Release semantics and leaking entries.

use std::sync::Arc;
use std::time::Duration;

use lock_core::wrap::{Fault, Faulty, Times};
use lock_core::{Error, ErrorKind, LeaseState, LockProvider as _, Operation, Release};

use crate::candidate::Election;

use crate::cx::{Cx, claim, denied, ensure, gone, granted, holder, is_free, name, renewed};
use crate::harness::Answer;
use crate::history::{Bounds, What};
use crate::victim::{Role, Victim};

pub(crate) async fn released_once_then_not_held(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let answer = store.release(&lease).await?;
    ensure!(
        answer == Release::Released,
        "the release of a held lease: {answer:?}"
    );
    let seen = other.observe(&name).await?;
    ensure!(is_free(&seen), "after a release: {seen:?}");
    let answer = store.release(&lease).await?;
    ensure!(answer == Release::NotHeld, "the second release: {answer:?}");
    gone(store.as_ref(), &lease).await?;
    let next = granted(other.as_ref(), &claim(&name, ttl)).await?;
    let answer = store.release(&lease).await?;
    ensure!(
        answer == Release::NotHeld,
        "a release of somebody else's: {answer:?}"
    );
    renewed(other.as_ref(), &next).await
}

pub(crate) async fn release_after_expiry_revives_nothing(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.short(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    cx.until_free(store.as_ref(), &name).await?;
    // Either answer is right for an expired entry that still lies there; reviving it is not.
    store.release(&lease).await?;
    let seen = store.observe(&name).await?;
    ensure!(seen.holder().is_none(), "the release extended it: {seen:?}");
    gone(store.as_ref(), &lease).await?;
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    ensure!(next.token() > lease.token(), "the token went back");
    let answer = store.release(&lease).await?;
    ensure!(
        answer == Release::NotHeld,
        "an old term released the new one"
    );
    renewed(store.as_ref(), &next).await
}

pub(crate) async fn withdraw_leaves_nothing(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    // Never sent: nothing to forget.
    store.withdraw(&claim(&name, ttl)).await?;
    let seen = store.observe(&name).await?;
    ensure!(is_free(&seen), "a withdrawal made {seen:?}");
    // Granted, and the answer lost: the claim is all that is known.
    let lost = claim(&name, ttl);
    let lease = granted(store.as_ref(), &lost).await?;
    store.withdraw(&lost).await?;
    let seen = other.observe(&name).await?;
    ensure!(is_free(&seen), "a withdrawn grant still holds: {seen:?}");
    gone(store.as_ref(), &lease).await?;
    // Denied: the holder is none of its business.
    let held = granted(other.as_ref(), &claim(&name, ttl)).await?;
    ensure!(held.token() > lease.token(), "the token went back");
    let queued = claim(&name, ttl).with_mode(lock_core::Mode::Queue);
    denied(store.as_ref(), &queued).await?;
    store.withdraw(&queued).await?;
    store.withdraw(&queued).await?;
    let still = holder(store.as_ref(), &name).await?;
    ensure!(
        still.token == held.token(),
        "a withdrawal took the holder's: {still:?}"
    );
    other.release(&held).await?;
    let seen = store.observe(&name).await?;
    ensure!(
        is_free(&seen),
        "a withdrawn claim was granted later: {seen:?}"
    );
    Ok(())
}

pub(crate) async fn sweep_removes_the_unused_only(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let short = cx.short(store.as_ref());
    let long = cx.long(store.as_ref());
    let (freed, expired, held) = (name("freed"), name("expired"), name("held"));
    let released = granted(store.as_ref(), &claim(&freed, long)).await?;
    store.release(&released).await?;
    let lapsed = granted(store.as_ref(), &claim(&expired, short)).await?;
    let kept = granted(store.as_ref(), &claim(&held, long)).await?;
    cx.until_free(store.as_ref(), &expired).await?;
    store.sweep(Duration::from_secs(3600)).await?;
    let next = granted(store.as_ref(), &claim(&freed, long)).await?;
    ensure!(next.token() > released.token(), "a sweep took a token back");
    store.release(&next).await?;

    let removed = store.sweep(Duration::ZERO).await?;
    for gone_name in [&freed, &expired] {
        let seen = store.observe(gone_name).await?;
        // A store whose entries expire by themselves has nothing to sweep.
        ensure!(
            seen.holder().is_none() && (removed == 0 || seen.state == LeaseState::Absent),
            "{removed} swept, and yet {seen:?}"
        );
    }
    renewed(store.as_ref(), &kept).await?;
    for (swept, before) in [(&freed, next.token()), (&expired, lapsed.token())] {
        let after = granted(store.as_ref(), &claim(swept, long)).await?;
        ensure!(
            after.token() > before,
            "after a sweep the token {} of {swept:?} follows {before}",
            after.token()
        );
    }
    Ok(())
}

pub(crate) async fn a_failed_release_can_be_repeated(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.long(store.as_ref());
    let faulty = Faulty::new(Arc::clone(&store));
    let faults = faulty.faults().clone();
    let provider = cx.provider(&(Arc::new(faulty) as _), ttl);
    let guard = provider.acquire("n").await?;
    let down = Error::new(ErrorKind::Unavailable, "down").with_indeterminate(false);
    faults.inject(Operation::Release, Fault::FailBefore(down), Times::Always);
    let error = match guard.release().await {
        Ok(answer) => return Err(crate::Stop::failed(format!("nothing was sent: {answer:?}"))),
        Err(error) => error,
    };
    ensure!(
        error.kind() == ErrorKind::Unavailable && error.to_string().contains("expires"),
        "the error does not say that the lease stays: {error}"
    );
    ensure!(!guard.check(), "given up, and check() is true");
    holder(store.as_ref(), &name("n")).await?;
    faults.heal();
    let answer = guard.release().await?;
    ensure!(
        answer == Release::Released,
        "the second release: {answer:?}"
    );
    let seen = store.observe(&name("n")).await?;
    ensure!(is_free(&seen), "released, and {seen:?}");
    ensure!(
        faults.calls(Operation::Renew) == 0,
        "renewed after it was given up"
    );
    Ok(())
}

pub(crate) async fn work_ends_before_the_lease_does(cx: Cx) -> Answer<()> {
    let ttl = cx.brisk(cx.open().await?.as_ref());
    let election = Election::default();
    let mut leader = election.start(&cx, 1, "n", ttl).await?;
    leader.leads(crate::cx::SOON).await?;
    for who in 2..=4 {
        let standby = election.start(&cx, who, "n", ttl).await?;
        // A standby that has been denied once waits to be told.
        standby.stands_by().await?;
        leader.stop().await?;
        standby.leads(ttl / 3 + crate::cx::SOON).await?;
        leader = standby;
    }
    leader.stop().await?;
    let store = cx.open().await?;
    let seen = store.observe(&name("n")).await?;
    ensure!(is_free(&seen), "all have stopped, and {seen:?}");
    // Where there is push a clean stop is no wait for a poll, let alone for the ttl.
    let takeover = if store.capabilities().push {
        Duration::from_secs(2)
    } else {
        ttl / 3 + Duration::from_secs(2)
    };
    let slack = Duration::from_millis(400);
    let mut history = election.recorder.history();
    let last = history.iter().rposition(|e| e.what == What::Released);
    // Nobody is to take over from the last one.
    if let Some(last) = last {
        history.truncate(last);
    }
    let end = history.last().map_or(Duration::ZERO, |e| e.at);
    let wrong = crate::history::violations(&history, end, &Bounds::new(slack, Some(takeover)));
    ensure!(wrong.is_empty(), "{}", wrong[0]);
    Ok(())
}

pub(crate) async fn a_killed_process_blocks_for_its_ttl_only(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref());
    let provider = cx.provider(&store, ttl);
    for _ in 0..cx.rounds(3, 100) {
        let mut victim = Victim::start(&cx, Role::TakeTurns, "n", ttl).await?;
        victim.told("granted").await?;
        tokio::time::sleep(Duration::from_micros(cx.random() % 30_000)).await;
        victim.kill().await?;
        let limit = ttl + cx.slack(store.as_ref()) + Duration::from_millis(1000);
        let guard = crate::cx::within("the name is free", limit, provider.acquire("n"));
        crate::cx::let_go(&guard.await??).await?;
    }
    Ok(())
}
