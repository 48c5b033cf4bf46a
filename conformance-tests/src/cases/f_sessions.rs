//! F. Entries that vanish under a leader.

use std::time::Duration;

use lock_core::{LockProvider as _, LossReason};

use crate::cx::{Cx, ensure, name, timing, within};
use crate::harness::Answer;

pub(crate) async fn a_wiped_leader_is_told(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref()) * 3;
    let provider = cx.provider(&store, ttl);
    let guard = provider.acquire("n").await?;
    cx.harness().wipe(&name("n")).await?;
    let times = timing(ttl);
    let limit = times.renew_every() * 2 + times.request_timeout() + Duration::from_millis(400);
    let reason = within("the loss is told", limit, guard.lost()).await?;
    ensure!(
        reason == LossReason::Gone,
        "deleted by hand, and lost because {reason}"
    );
    ensure!(!guard.check(), "lost, and check() is true");
    let other = cx.provider(&cx.open().await?, ttl);
    let next = other.acquire("n").await?;
    ensure!(next.check(), "a wiped name was not really taken");
    let seen = store.observe(&name("n")).await?;
    ensure!(seen.holder().is_some(), "taken without an entry: {seen:?}");
    crate::cx::let_go(&next).await?;
    Ok(())
}
