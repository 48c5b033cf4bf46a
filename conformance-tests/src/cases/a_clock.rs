//! A. Clock, time zone, precision.

use std::time::{Duration, Instant};

use lock_core::{Attempt, ErrorKind, LockPersistence};

use crate::cx::{Cx, SOON, claim, denied, ensure, granted, holder, name, within};
use crate::harness::Answer;

pub(crate) async fn lease_lasts_as_long_as_granted(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let range = store.capabilities().ttl;
    let rounds = cx.rounds(2, 40);
    for round in 0..rounds {
        // Begin anywhere inside a second: rounding shows only at some offsets.
        let offset = Duration::from_millis(cx.random() % 1000);
        tokio::time::sleep(offset).await;
        let mut running = Vec::new();
        for millis in [250, 999, 1000, 1500, 2999] {
            let ttl = Duration::from_millis(millis);
            if ttl < range.min || ttl > range.max {
                continue;
            }
            let (cx, store) = (cx.clone(), cx.open().await?);
            running.push(tokio::spawn(async move {
                one_lease(&cx, store.as_ref(), &format!("{millis}-{round}"), ttl).await
            }));
        }
        ensure!(
            !running.is_empty() || range.min > Duration::from_secs(3),
            "the range of ttls {range:?} is empty"
        );
        for case in running {
            case.await.map_err(crate::Stop::failed)??;
        }
    }
    Ok(())
}

async fn one_lease(cx: &Cx, store: &dyn LockPersistence, text: &str, ttl: Duration) -> Answer<()> {
    let name = name(text);
    let asked = Instant::now();
    let lease = granted(store, &claim(&name, ttl)).await?;
    let answered = Instant::now();
    let slack = cx.slack(store);
    ensure!(
        lease.ttl() <= ttl + slack,
        "{ttl:?} was asked, and {:?} granted: more than one step of the store more",
        lease.ttl()
    );
    let latest = ttl + slack + SOON;
    // When the last try that was denied had been sent.
    let mut denied_at = asked;
    let taken = within("somebody else gets in", latest, async {
        loop {
            let sent = Instant::now();
            if let Attempt::Granted(next) = store.try_acquire(&claim(&name, ttl)).await? {
                return Answer::Ok((next, Instant::now()));
            }
            denied_at = sent;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let (next, at) = taken.await??;
    let lasted = at.duration_since(asked);
    ensure!(
        lasted >= lease.ttl().min(ttl),
        "a lease of {ttl:?} (granted {:?}) was taken after {lasted:?}",
        lease.ttl()
    );
    // From the send of a denied try, so that a slow machine is not taken for a slow store; the rest is
    // for the rates of two clocks.
    let late = denied_at.saturating_duration_since(answered + ttl + slack);
    ensure!(
        late <= Duration::from_millis(50),
        "a try sent {late:?} after the end of a lease of {ttl:?} was denied"
    );
    ensure!(next.token() > lease.token(), "the token went back");
    Ok(())
}

pub(crate) async fn ttl_out_of_range_is_refused_or_kept(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let range = store.capabilities().ttl;
    let zero = Duration::ZERO;
    for (text, ttl) in [
        ("zero", zero),
        ("low", range.min / 2),
        ("high", range.max * 2),
    ] {
        let name = name(text);
        match store.try_acquire(&claim(&name, ttl)).await {
            Err(error) => {
                ensure!(
                    error.kind() == ErrorKind::InvalidConfig,
                    "a ttl of {ttl:?} should be an invalid config, and is: {error}"
                );
                let seen = store.observe(&name).await?;
                ensure!(seen.holder().is_none(), "refused, and yet stored: {seen:?}");
            }
            Ok(Attempt::Granted(lease)) => {
                ensure!(
                    lease.ttl() >= ttl.min(range.max) && !lease.ttl().is_zero(),
                    "a ttl of {ttl:?} was cut to {:?}",
                    lease.ttl()
                );
                let holder = holder(store.as_ref(), &name).await?;
                ensure!(
                    !holder.remaining.is_zero(),
                    "granted and expired: {holder:?}"
                );
            }
            Ok(Attempt::Held(holder)) => {
                ensure!(false, "a fresh name is held: {holder:?}");
            }
        }
    }
    Ok(())
}

pub(crate) async fn remaining_is_what_is_left(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let other = cx.open().await?;
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let asked = Instant::now();
    granted(store.as_ref(), &claim(&name, ttl)).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = asked.elapsed();
    let told = denied(other.as_ref(), &claim(&name, ttl)).await?;
    let seen = holder(other.as_ref(), &name).await?;
    let after = asked.elapsed();
    let slack = cx.slack(store.as_ref());
    for holder in [told, seen] {
        ensure!(
            holder.ttl == ttl,
            "the holder asked for {ttl:?}: {holder:?}"
        );
        ensure!(
            holder.remaining + after >= ttl,
            "{holder:?} is told to have less than is left of {ttl:?} after {after:?}"
        );
        // A store with push may answer the whole ttl instead of asking for what is left of it.
        let whole = store.capabilities().push && holder.remaining == ttl;
        ensure!(
            whole || holder.remaining + before <= ttl + slack + Duration::from_millis(250),
            "{holder:?} is told to have more than is left of {ttl:?} after {before:?}"
        );
    }
    Ok(())
}
