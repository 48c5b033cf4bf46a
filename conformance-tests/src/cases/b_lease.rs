//! B. Lease arithmetic and configuration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::wrap::{Fault, Faults, Faulty, Times};
use lock_core::{Attempt, LockProvider as _, Operation};

use crate::candidate::Election;
use crate::cx::{Cx, SOON, claim, ensure, eventually, granted, name, timing, within};
use crate::harness::Answer;
use crate::history::What;

pub(crate) async fn the_holders_ttl_counts(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let short = cx.short(store.as_ref());
    let long = short * 3;
    let asked = Instant::now();
    granted(store.as_ref(), &claim(&name, long)).await?;
    let other = cx.open().await?;
    let limit = long + cx.slack(store.as_ref()) + Duration::from_secs(3);
    within("the taker gets in", limit, async {
        loop {
            if let Attempt::Granted(_) = other.try_acquire(&claim(&name, short)).await? {
                return Answer::Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await??;
    let lasted = asked.elapsed();
    ensure!(
        lasted >= long,
        "a lease of {long:?} was taken after {lasted:?}"
    );
    Ok(())
}

pub(crate) async fn a_lease_long_expired_is_taken_at_once(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.short(store.as_ref());
    let first = granted(store.as_ref(), &claim(&name, ttl)).await?;
    cx.until_free(store.as_ref(), &name).await?;
    let second = granted(store.as_ref(), &claim(&name, ttl * 10)).await?;
    ensure!(second.token() > first.token(), "the token went back");
    Ok(())
}

pub(crate) async fn validity_counts_from_the_send(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref()) * 3;
    let times = timing(ttl);
    let faulty = Faulty::new(store);
    let lag = times.request_timeout() / 2;
    faulty
        .faults()
        .inject(Operation::TryAcquire, Fault::DelayAfter(lag), Times::Always);
    let provider = cx.provider(&(Arc::new(faulty) as _), ttl);
    let Some(guard) = provider.try_acquire("n").await? else {
        return Err(crate::Stop::failed("a free name was denied"));
    };
    let left = guard.remaining();
    ensure!(
        left + lag + times.margin() <= ttl && guard.check(),
        "of a ttl of {ttl:?} {left:?} are left after an answer that took {lag:?}"
    );
    crate::cx::let_go(&guard).await?;
    // The same for a candidate: its answer came `lag` after the send, and its grant is noted later.
    let faults = Faults::seeded(cx.random());
    faults.inject(Operation::TryAcquire, Fault::DelayAfter(lag), Times::Always);
    let election = Election::default();
    let leader = election.start_under(&cx, 1, "m", ttl, faults).await?;
    let noted = || async {
        let history = election.recorder.history();
        Ok(history.iter().any(|e| matches!(e.what, What::Deadline(_))))
    };
    eventually("it has a deadline", SOON, noted).await?;
    let history = election.recorder.history();
    let granted = history
        .iter()
        .find(|e| matches!(e.what, What::Granted { .. }));
    let deadline = history.iter().find_map(|e| match e.what {
        What::Deadline(at) => Some(at),
        _ => None,
    });
    let (Some(granted), Some(deadline)) = (granted, deadline) else {
        return Err(crate::Stop::failed("a deadline without a grant"));
    };
    ensure!(
        deadline + lag + times.margin() <= granted.at + ttl,
        "granted at {:?} after a wait of {lag:?}, and the deadline is {deadline:?}",
        granted.at
    );
    leader.stop().await
}
