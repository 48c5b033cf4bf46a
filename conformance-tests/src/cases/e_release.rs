//! E. Release semantics and leaking entries.

use std::time::Duration;

use lock_core::{LeaseState, Release};

use crate::cx::{Cx, claim, denied, ensure, gone, granted, holder, is_free, name, renewed};
use crate::harness::Answer;

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

pub(crate) async fn release_after_expiry_is_not_held(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.short(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    cx.until_free(store.as_ref(), &name).await?;
    let answer = store.release(&lease).await?;
    ensure!(
        answer == Release::NotHeld,
        "a release after the expiry: {answer:?}"
    );
    let seen = store.observe(&name).await?;
    ensure!(seen.holder().is_none(), "the release extended it: {seen:?}");
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    ensure!(next.token() > lease.token(), "the token went back");
    Ok(())
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

    store.sweep(Duration::ZERO).await?;
    for gone_name in [&freed, &expired] {
        let seen = store.observe(gone_name).await?;
        ensure!(seen.state == LeaseState::Absent, "swept, and yet {seen:?}");
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
