//! H. A store whose server goes away and comes back.

use std::time::Duration;

use lock_core::{LockProvider as _, Release};

use crate::candidate::Election;
use crate::cx::{Cx, SOON, ensure, eventually, holder, name};
use crate::harness::{Answer, Stop};
use crate::history::{Bounds, What};

pub(crate) async fn a_short_restart_costs_no_term(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    // So long that a server may take its time to come back before the work is told to stop.
    let ttl = (cx.short(store.as_ref()) * 15).min(cx.long(store.as_ref()));
    let provider = cx.provider(&store, ttl);
    let guard = provider.acquire("n").await?;
    let token = guard.token();
    cx.harness().stop_server().await?;
    // The outage itself.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cx.harness().start_server().await?;
    let deadline = guard.deadline();
    let renewed = || async { Ok(!guard.check() || guard.deadline() > deadline) };
    eventually("it is renewed after the restart", ttl + SOON, renewed).await?;
    ensure!(
        guard.check(),
        "a restart of a second ended a term of {ttl:?}"
    );
    let held = holder(store.as_ref(), &name("n")).await?;
    ensure!(
        held.token == token,
        "after the restart the token {token} has become {held:?}"
    );
    let answer = guard.release().await?;
    ensure!(answer == Release::Released, "after a restart: {answer:?}");
    Ok(())
}

pub(crate) async fn a_long_outage_ends_the_term(cx: Cx) -> Answer<()> {
    let ttl = cx.short(cx.open().await?.as_ref()) * 2;
    let election = Election::default();
    let first = election.start(&cx, 1, "n", ttl).await?;
    first.leads(SOON).await?;
    let second = election.start(&cx, 2, "n", ttl).await?;
    second.stands_by().await?;
    cx.harness().stop_server().await?;
    // The outage itself: longer than any term lives without a renewal.
    tokio::time::sleep(ttl * 2).await;
    let at_the_end = election.recorder.history();
    cx.harness().start_server().await?;
    ensure!(
        at_the_end
            .iter()
            .any(|e| matches!(e.what, What::Lost | What::Released)),
        "no renewal for {:?}, and the term goes on",
        ttl * 2
    );
    let again = async {
        tokio::select! {
            led = first.leads(ttl * 2 + SOON) => led,
            led = second.leads(ttl * 2 + SOON) => led,
        }
    };
    again.await?;
    first.stop().await?;
    second.stop().await?;
    let history = election.recorder.history();
    let terms = |e: &&crate::history::Entry| matches!(e.what, What::Granted { .. });
    if history.iter().filter(terms).count() < 2 {
        return Err(Stop::failed("nobody led after the outage"));
    }
    // The slack of a busy machine.
    let bounds = Bounds::new(Duration::from_millis(400), None);
    let wrong = election.recorder.violations(&bounds);
    ensure!(wrong.is_empty(), "{}", wrong[0]);
    Ok(())
}
