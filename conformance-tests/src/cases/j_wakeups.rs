//! J. Herd, polling, fairness, wake-ups: the hints of `wait` and `watch`.

use std::time::Duration;

use lock_core::{Capabilities, Lease, LeaseState, LockProvider as _};

use crate::candidate::Election;

use crate::cx::{Cx, claim, denied, ensure, granted, name, soon};
use crate::harness::{Answer, Stop};

fn needs_push(capabilities: &Capabilities) -> Answer<()> {
    if capabilities.push {
        return Ok(());
    }
    Err(Stop::not_applicable(
        "the store has no push; the core polls",
    ))
}

enum End {
    Release,
    Withdraw,
    Revoke,
}

pub(crate) async fn a_release_ends_the_wait(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    needs_push(store.capabilities())?;
    let ttl = cx.long(store.as_ref());
    for (text, end) in [
        ("r", End::Release),
        ("w", End::Withdraw),
        ("v", End::Revoke),
    ] {
        let name = name(text);
        let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
        let mine = claim(&name, ttl);
        let seen = denied(other.as_ref(), &mine).await?;
        let waiter = {
            let (other, mine) = (std::sync::Arc::clone(&other), mine.clone());
            tokio::spawn(async move { other.wait(&mine, &seen).await })
        };
        // Let it subscribe: what is tested here is the push, not the look after subscribing.
        tokio::time::sleep(Duration::from_millis(100)).await;
        match end {
            End::Release => drop(store.release(&lease).await?),
            End::Withdraw => store.withdraw(lease.claim()).await?,
            End::Revoke => drop(store.revoke(&name, "test").await?),
        }
        soon("the waiter is told", waiter)
            .await?
            .map_err(Stop::failed)??;
        granted(other.as_ref(), &mine).await?;
    }
    Ok(())
}

pub(crate) async fn no_release_falls_between_try_and_wait(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    needs_push(store.capabilities())?;
    let ttl = cx.long(store.as_ref());
    let name = name("n");
    for _ in 0..cx.rounds(20, 500) {
        let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
        let mine = claim(&name, ttl);
        let seen = denied(other.as_ref(), &mine).await?;
        store.release(&lease).await?;
        soon(
            "a wait that begins after the release ends",
            other.wait(&mine, &seen),
        )
        .await??;
        // And a whole term that passed in between is a change as well.
        let passed: Lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
        let waiting = other.wait(&mine, &seen);
        soon("a wait that missed a whole term ends", waiting).await??;
        store.release(&passed).await?;
        // Racing: the release and the wait at once.
        let racing = granted(store.as_ref(), &claim(&name, ttl)).await?;
        let seen = denied(other.as_ref(), &mine).await?;
        let (waited, released) = tokio::join!(
            soon("a wait beside the release ends", other.wait(&mine, &seen)),
            store.release(&racing)
        );
        waited??;
        released?;
    }
    Ok(())
}

pub(crate) async fn watch_tells_of_each_change(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    needs_push(store.capabilities())?;
    let ttl = cx.long(store.as_ref());
    let name = name("n");
    let mut seen = other.observe(&name).await?;
    ensure!(seen.state == LeaseState::Absent, "a fresh name is {seen:?}");
    let mut lease: Option<Lease> = None;
    for step in 0..6 {
        let watcher = {
            let (other, seen) = (std::sync::Arc::clone(&other), seen.clone());
            tokio::spawn(async move { other.watch(&seen).await })
        };
        match (step, lease.take()) {
            (0 | 2 | 4, _) => lease = Some(granted(store.as_ref(), &claim(&name, ttl)).await?),
            (1, Some(held)) => drop(store.release(&held).await?),
            (3, _) => drop(store.revoke(&name, "test").await?),
            (_, Some(held)) => store.withdraw(held.claim()).await?,
            (_, None) => {}
        }
        soon("the onlooker is told", watcher)
            .await?
            .map_err(Stop::failed)??;
        seen = other.observe(&name).await?;
        ensure!(
            seen.holder().is_some() == (step % 2 == 0),
            "after step {step} the onlooker sees {seen:?}"
        );
        // What it has not seen yet ends a watch at once. A store may forget a name that nobody holds.
        let stale = lock_core::Observation::new(name.clone(), LeaseState::Absent);
        if seen != stale {
            soon("a stale look ends at once", other.watch(&stale)).await??;
        }
    }
    Ok(())
}

pub(crate) async fn a_step_down_hands_over(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref()) * 2;
    let election = Election::default();
    let first = election.start(&cx, 1, "n", ttl).await?;
    first.leads(crate::cx::SOON).await?;
    let second = election.start(&cx, 2, "n", ttl).await?;
    let onlooker = cx.provider(&store, ttl);
    let hold_off = ttl * 3;
    ensure!(
        onlooker.step_down("n", hold_off).await?,
        "nobody to step down, and yet one leads"
    );
    let asked = std::time::Instant::now();
    second.leads(hold_off).await?;
    second.stop().await?;
    first.leads(hold_off + ttl * 2).await?;
    ensure!(
        asked.elapsed() >= hold_off,
        "it led again {:?} after it was asked to hold off for {hold_off:?}",
        asked.elapsed()
    );
    first.stop().await
}
