//! N. Start-up.

use std::sync::Arc;
use std::time::Duration;

use lock_core::wrap::{Fault, Faults, Faulty, Times};
use lock_core::{Error, ErrorKind, LockProvider as _, Operation};

use crate::candidate::Election;
use crate::cx::{Cx, SOON, claim, ensure, eventually, granted, name, timing};
use crate::harness::Answer;

pub(crate) async fn no_store_no_leader(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref());
    for fault in [
        Fault::FailBefore(Error::new(ErrorKind::Unavailable, "down")),
        Fault::HangBefore,
    ] {
        let faulty = Faulty::new(Arc::clone(&store));
        faulty
            .faults()
            .inject(Operation::TryAcquire, fault.clone(), Times::Always);
        let provider = cx.provider(&(Arc::new(faulty) as _), ttl);
        match provider.try_acquire("n").await {
            Err(error) => ensure!(
                matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout),
                "{fault:?}: {error}"
            ),
            Ok(got) => ensure!(false, "{fault:?}: {got:?} instead of an error"),
        }
    }
    let election = Election::default();
    let faults = Faults::seeded(cx.random());
    faults.inject(
        Operation::TryAcquire,
        Fault::FailBefore(Error::new(ErrorKind::Unavailable, "down")),
        Times::Always,
    );
    let down = election.start_under(&cx, 1, "n", ttl, faults).await?;
    eventually("it tries again and again", SOON, || async {
        Ok(down.faults.calls(Operation::TryAcquire) > 3)
    })
    .await?;
    let worked = election.recorder.history();
    ensure!(worked.is_empty(), "work ran without a store: {worked:?}");
    down.faults.heal();
    down.leads(ttl * 2 + SOON).await?;
    down.stop().await
}

pub(crate) async fn a_standby_that_stops_never_led(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.brisk(store.as_ref());
    let election = Election::default();
    for round in 0..cx.rounds(10, 50) {
        let held = granted(store.as_ref(), &claim(&name("n"), ttl)).await?;
        let standby = election.start(&cx, 1, "n", ttl).await?;
        tokio::time::sleep(Duration::from_micros(cx.random() % 20_000)).await;
        // Every other round exactly when the lock becomes free.
        if round % 2 == 0 {
            standby.stop().await?;
            store.release(&held).await?;
        } else {
            let (stopped, released) = tokio::join!(standby.stop(), store.release(&held));
            stopped?;
            released?;
        }
        eventually("the stopped standby holds nothing", SOON, || async {
            Ok(store.observe(&name("n")).await?.holder().is_none())
        })
        .await?;
        if round % 2 == 0 {
            let history = election.recorder.history();
            let led = history.iter().rev().take_while(|e| e.token > held.token());
            ensure!(
                led.count() == 0,
                "a standby that was shut down has led: {history:?}"
            );
        }
    }
    Ok(())
}

pub(crate) async fn the_first_try_is_at_once(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.long(store.as_ref());
    let first = Election::default().start(&cx, 1, "n", ttl).await?;
    // Far less than one interval of renewals at this ttl, and far more than a busy machine needs.
    let limit = SOON.min(timing(ttl).renew_every() * 3 / 4);
    first.leads(limit).await?;
    first.stop().await
}
