//! D. Pauses and faults over a while, judged from the recorded history.

use std::time::Duration;

use lock_core::wrap::{Fault, Times};
use lock_core::{Error, ErrorKind, LockProvider as _, Operation};

use crate::candidate::Election;
use crate::cx::{Cx, ensure, timing, within};
use crate::harness::Answer;
use crate::history::{Bounds, What};
use crate::victim::{Role, Victim};

pub(crate) async fn one_leader_under_faults(cx: Cx) -> Answer<()> {
    let ttl = cx.short(cx.open().await?.as_ref());
    let times = timing(ttl);
    let election = Election::default();
    let mut candidates = Vec::new();
    for who in 1..=3 {
        let candidate = election.start(&cx, who, "n", ttl).await?;
        let lost = Error::new(ErrorKind::Unavailable, "down, as the suite wants it");
        for operation in [
            Operation::TryAcquire,
            Operation::Renew,
            Operation::Release,
            Operation::Withdraw,
            Operation::Wait,
        ] {
            let late = Fault::DelayAfter(times.request_timeout() * 3 / 4);
            let faults = &candidate.faults;
            faults.inject(
                operation,
                Fault::FailBefore(lost.clone()),
                Times::Chance(0.1),
            );
            faults.inject(
                operation,
                Fault::FailAfter(lost.clone()),
                Times::Chance(0.1),
            );
            faults.inject(operation, Fault::HangAfter, Times::Chance(0.1));
            faults.inject(operation, late, Times::Chance(0.2));
        }
        candidates.push(candidate);
    }
    let span = Duration::from_secs(if cx.rounds(0, 1) == 0 { 4 } else { 60 });
    let began = election.recorder.now();
    let mut turn = 0;
    while election.recorder.now() < began + span {
        // Somebody resigns now and then, so that there are terms enough to judge.
        tokio::time::sleep(ttl / 2).await;
        candidates[turn % 3].resign(ttl / 4);
        turn += 1;
    }
    for candidate in &candidates {
        candidate.faults.heal();
    }
    for candidate in candidates {
        candidate.stop().await?;
    }
    let history = election.recorder.history();
    let terms = history
        .iter()
        .filter(|e| matches!(e.what, What::Granted { .. }))
        .count();
    // Faults of the chance above bound nothing but safety.
    let slack = Duration::from_millis(400);
    let wrong = election.recorder.violations(&Bounds::new(slack, None));
    ensure!(wrong.is_empty(), "{}", wrong[0]);
    ensure!(
        terms >= 2,
        "only {terms} terms in {span:?}: nothing was tested"
    );
    Ok(())
}

pub(crate) async fn a_stopped_process_finds_its_term_over(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref());
    let provider = cx.provider(&store, ttl);
    for _ in 0..cx.rounds(2, 100) {
        let mut victim = Victim::start(&cx, Role::Hold, "n", ttl).await?;
        let old: u64 = victim
            .told("held")
            .await?
            .parse()
            .map_err(crate::Stop::failed)?;
        victim.pause()?;
        let limit = ttl * 2 + cx.slack(store.as_ref()) + Duration::from_secs(5);
        let guard = within("another leads", limit, provider.acquire("n")).await??;
        ensure!(
            guard.token().get() > old,
            "the token {} follows {old} of the stopped process",
            guard.token()
        );
        victim.resume()?;
        victim.ask("check").await?;
        let check = victim.told("check").await?;
        ensure!(
            check == "false",
            "after the stop its first check is {check}"
        );
        victim.ask("release").await?;
        let release = victim.told("release").await?;
        ensure!(
            release == "NotHeld",
            "the stopped process released: {release}"
        );
        ensure!(
            guard.check(),
            "the stopped process took the lease of another"
        );
        crate::cx::let_go(&guard).await?;
    }
    Ok(())
}
