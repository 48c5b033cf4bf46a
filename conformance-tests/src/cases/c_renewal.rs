//! C. Renewal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::wrap::{Fault, Faulty, Times};
use lock_core::{
    Attempt, Claim, Error, ErrorKind, Handle, Lease, LockProvider as _, LossReason, Nonce,
    Operation, Release, Renewal, Token,
};

use crate::candidate::Election;

use crate::cx::{
    Cx, SOON, claim, ensure, eventually, gone, granted, holder, let_go, name, owner, renewed, soon,
    timing, within,
};
use crate::harness::Answer;
use crate::history::{Bounds, What};
use crate::runner::Seat;

pub(crate) async fn renewal_restarts_the_countdown(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let other = cx.open().await?;
    let name = name("n");
    let ttl = cx.short(store.as_ref()) * 2;
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let started = Instant::now();
    let mut sent = started;
    while started.elapsed() < ttl * 2 {
        tokio::time::sleep(ttl / 4).await;
        let paused = sent.elapsed();
        sent = Instant::now();
        match crate::cx::renew(store.as_ref(), &lease).await? {
            Renewal::Renewed { ttl: left, request } => {
                ensure!(left >= ttl / 2, "a renewal of {ttl:?} gave {left:?}");
                ensure!(request.is_none(), "a wish that nobody left: {request:?}");
            }
            Renewal::Gone => {
                ensure!(paused >= ttl, "gone {paused:?} after the last renewal");
                // On a machine this busy the lease has truly expired.
                return Ok(());
            }
        }
        match other.try_acquire(&claim(&name, ttl)).await? {
            Attempt::Held(met) => ensure!(met.token == lease.token(), "another holder: {met:?}"),
            Attempt::Granted(_) => {
                let since = sent.elapsed();
                ensure!(since >= ttl, "taken {since:?} after the last renewal");
                return Ok(());
            }
        }
    }
    Ok(())
}

pub(crate) async fn expired_is_never_revived(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.short(store.as_ref());
    let wanted = claim(&name, ttl);
    let lease = granted(store.as_ref(), &wanted).await?;
    cx.until_free(store.as_ref(), &name).await?;
    gone(store.as_ref(), &lease).await?;
    let seen = store.observe(&name).await?;
    ensure!(
        seen.holder().is_none(),
        "a renewal that answered gone revived {seen:?}"
    );
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    ensure!(next.token() > lease.token(), "the token went back");
    gone(store.as_ref(), &lease).await
}

pub(crate) async fn taken_over_is_gone_and_untouched(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let old = granted(store.as_ref(), &claim(&name, cx.short(store.as_ref()))).await?;
    cx.until_free(other.as_ref(), &name).await?;
    let mut wanted = claim(&name, cx.long(store.as_ref()));
    wanted.owner = owner("the-next");
    let new = granted(other.as_ref(), &wanted).await?;
    let before = holder(other.as_ref(), &name).await?;
    gone(store.as_ref(), &old).await?;
    let answer = store.release(&old).await?;
    ensure!(
        answer == Release::NotHeld,
        "an old term released the new one"
    );
    store.withdraw(old.claim()).await?;
    let after = holder(other.as_ref(), &name).await?;
    ensure!(
        (&before.owner, before.token, before.version, before.ttl)
            == (&after.owner, after.token, after.version, after.ttl),
        "the new term was touched: {before:?} became {after:?}"
    );
    ensure!(
        after.remaining <= before.remaining,
        "extended: {before:?} became {after:?}"
    );
    renewed(other.as_ref(), &new).await
}

pub(crate) async fn nonce_and_token_must_both_match(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let before = holder(store.as_ref(), &name).await?;
    // Another nonce with the right token and the right owner text.
    let mut stranger: Claim = lease.claim().clone();
    stranger.nonce = Nonce::random();
    let stranger = Lease::new(&stranger, lease.token(), ttl, lease.handle().clone());
    // The right nonce with the token of another term.
    let other_token = Token::new(lease.token().get() - 1)?;
    let earlier = Lease::new(lease.claim(), other_token, ttl, lease.handle().clone());
    for forged in [stranger, earlier] {
        gone(store.as_ref(), &forged).await?;
        let answer = store.release(&forged).await?;
        ensure!(answer == Release::NotHeld, "{forged:?} released {lease:?}");
        let after = holder(store.as_ref(), &name).await?;
        ensure!(
            before.version == after.version,
            "{forged:?} touched {after:?}"
        );
    }
    renewed(store.as_ref(), &lease).await
}

pub(crate) async fn stolen_is_gone(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let lease = granted(store.as_ref(), &claim(&name, cx.long(store.as_ref()))).await?;
    let thief = owner("thief");
    cx.harness().steal(&name, &thief).await?;
    let before = holder(store.as_ref(), &name).await?;
    ensure!(
        before.owner == thief,
        "the harness did not steal: {before:?}"
    );
    gone(store.as_ref(), &lease).await?;
    let answer = store.release(&lease).await?;
    ensure!(answer == Release::NotHeld, "what was stolen was released");
    let after = holder(store.as_ref(), &name).await?;
    ensure!(
        (after.owner, after.token, after.version) == (before.owner, before.token, before.version),
        "what was stolen was touched"
    );
    Ok(())
}

pub(crate) async fn wiped_is_gone(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    cx.harness().wipe(&name).await?;
    gone(store.as_ref(), &lease).await?;
    let answer = store.release(&lease).await?;
    ensure!(answer == Release::NotHeld, "what was wiped was released");
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let grows = !matches!(store.capabilities().fencing, lock_core::Fencing::None(_));
    ensure!(
        !grows || next.token() > lease.token(),
        "after a wipe the token {} follows {}",
        next.token(),
        lease.token()
    );
    gone(store.as_ref(), &lease).await?;
    renewed(store.as_ref(), &next).await
}

pub(crate) async fn batch_answers_each_lease_in_order(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.long(store.as_ref());
    let mut batch = Vec::new();
    let mut live = Vec::new();
    for n in 0..7_u64 {
        // Not in the order of the names, and each with a ttl that tells the answers apart.
        let name = name(&format!("{}", (n * 5) % 7));
        let ttl = ttl - Duration::from_secs(n);
        let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
        if n % 3 == 1 {
            store.release(&lease).await?;
        }
        live.push(n % 3 != 1);
        batch.push(lease);
    }
    let never = claim(&name("never"), ttl);
    batch.push(Lease::new(&never, batch[0].token(), ttl, Handle::none()));
    live.push(false);
    let answers = soon("a batch is answered", store.renew(&batch)).await?;
    ensure!(
        answers.len() == batch.len(),
        "{} leases, {} answers",
        batch.len(),
        answers.len()
    );
    for ((lease, live), answer) in batch.iter().zip(live).zip(answers) {
        match (live, answer) {
            (true, Ok(Renewal::Renewed { ttl, .. })) => ensure!(
                ttl >= lease.claim().ttl && ttl <= lease.claim().ttl + cx.slack(store.as_ref()),
                "the answer {ttl:?} is not that of {lease:?}"
            ),
            (false, Ok(Renewal::Gone)) => {}
            (live, answer) => ensure!(false, "{lease:?}, live: {live}, was answered {answer:?}"),
        }
    }
    let answers = store.renew(&[]).await;
    ensure!(
        answers.is_empty(),
        "an empty batch was answered {answers:?}"
    );
    Ok(())
}

pub(crate) async fn a_blocked_entry_delays_no_other(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.long(store.as_ref());
    let mut batch = Vec::new();
    for text in ["a", "b", "c"] {
        batch.push(granted(store.as_ref(), &claim(&name(text), ttl)).await?);
    }
    let span = Duration::from_secs(3);
    cx.harness().block(&name("b"), span).await?;
    let answers = within("the batch is answered", span / 2, store.renew(&batch)).await?;
    ensure!(
        answers.len() == 3,
        "three leases, {} answers",
        answers.len()
    );
    for at in [0, 2] {
        ensure!(
            matches!(answers[at], Ok(Renewal::Renewed { .. })),
            "beside a blocked entry: {:?}",
            answers[at]
        );
    }
    ensure!(
        !matches!(answers[1], Ok(Renewal::Gone)),
        "a blocked entry is not gone"
    );
    Ok(())
}

fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "down, as the suite wants it")
}

/// What a busy machine may add to any instant.
const BUSY: Duration = Duration::from_millis(400);

/// Lets the renewals of the leader go wrong: its term ends in time, the standby leads, and the first
/// leads again once all is well and the other has stopped.
async fn loses_in_time(cx: &Cx, fault: Fault) -> Answer<()> {
    let ttl = cx.short(cx.open().await?.as_ref()) * 2;
    let election = Election::default();
    let first = election.start(cx, 1, "n", ttl).await?;
    first.leads(ttl * 2).await?;
    let second = election.start(cx, 2, "n", ttl).await?;
    first
        .faults
        .inject(Operation::Renew, fault.clone(), Times::Always);
    // It must not come back as soon as it has lost: the other shall lead.
    first
        .faults
        .inject(Operation::TryAcquire, fault, Times::Always);
    let takeover = ttl * 2 + cx.slack(cx.open().await?.as_ref()) + BUSY;
    second.leads(takeover + SOON).await?;
    // Whoever goes on past its deadline is given the time to show it.
    let past = || async {
        let history = election.recorder.history();
        let last = history.iter().rev().find_map(|e| match e.what {
            What::Deadline(at) if e.who == 1 => Some(at),
            _ => None,
        });
        Ok(last.is_some_and(|at| election.recorder.now() > at + BUSY * 2))
    };
    eventually("the deadline of the first is past", ttl + SOON, past).await?;
    first.faults.heal();
    second.stop().await?;
    first.leads(ttl * 3 + SOON).await?;
    // Resigned in good time by its own drain, or lost: both ends of the term are timely.
    let wrong = election
        .recorder
        .violations(&Bounds::new(BUSY, Some(takeover + SOON)));
    ensure!(wrong.is_empty(), "{}", wrong[0]);
    first.stop().await
}

/// The loss of a guard whose renewals all go wrong, told by its deadline.
async fn guard_is_lost(cx: &Cx, fault: Fault) -> Answer<LossReason> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref()) * 2;
    let faulty = Faulty::new(store);
    faulty
        .faults()
        .inject(Operation::Renew, fault, Times::Always);
    let provider = cx.provider(&(Arc::new(faulty) as _), ttl);
    let guard = provider.acquire("guard").await?;
    let deadline = guard.remaining() + BUSY;
    let reason = within("the loss is told", deadline, guard.lost()).await?;
    ensure!(!guard.check(), "lost, and check() is true");
    Ok(reason)
}

pub(crate) async fn hanging_renewals_lose_in_time(cx: Cx) -> Answer<()> {
    let reason = guard_is_lost(&cx, Fault::HangBefore).await?;
    ensure!(
        matches!(reason, LossReason::Expired { .. }),
        "without any answer: {reason:?}"
    );
    loses_in_time(&cx, Fault::HangBefore).await
}

pub(crate) async fn failing_renewals_lose_in_time(cx: Cx) -> Answer<()> {
    let reason = guard_is_lost(&cx, Fault::FailBefore(down())).await?;
    ensure!(
        matches!(&reason, LossReason::Expired { last_error: Some(error) }
            if error.message().contains("as the suite wants it")),
        "the loss does not tell the error of the renewals: {reason:?}"
    );
    loses_in_time(&cx, Fault::FailBefore(down())).await
}

pub(crate) async fn one_bad_renewal_loses_nothing(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref()) * 5;
    let faulty = Faulty::new(store);
    let faults = faulty.faults().clone();
    let provider = cx.provider(&(Arc::new(faulty) as _), ttl);
    let guard = provider.acquire("n").await?;
    let token = guard.token();
    for fault in [
        Fault::FailBefore(down()),
        Fault::FailAfter(down()),
        Fault::HangBefore,
        Fault::HangAfter,
    ] {
        let struck = faults.struck();
        let deadline = guard.deadline();
        faults.inject(Operation::Renew, fault.clone(), Times::Next(1));
        let moved = eventually("the deadline moves again", ttl * 2, || async {
            Ok(faults.struck() > struck && guard.deadline() > deadline)
        });
        moved.await?;
        ensure!(guard.check(), "{fault:?}, once, ended the term");
    }
    ensure!(guard.token() == token, "the token changed");
    let answer = guard.release().await?;
    ensure!(
        answer == Release::Released,
        "after bad renewals: {answer:?}"
    );
    // A candidate keeps its term as well.
    let election = Election::default();
    let leader = election.start(&cx, 1, "candidates", ttl).await?;
    leader.leads(SOON).await?;
    let faults = &leader.faults;
    let before = faults.struck();
    faults.inject(Operation::Renew, Fault::FailBefore(down()), Times::Next(1));
    let struck = || async { Ok(faults.struck() > before) };
    eventually("a renewal fails", ttl, struck).await?;
    let seen = faults.calls(Operation::Renew);
    let went_on = || async { Ok(faults.calls(Operation::Renew) > seen + 1) };
    eventually("it goes on renewing", ttl * 2, went_on).await?;
    let history = election.recorder.history();
    ensure!(
        !history
            .iter()
            .any(|e| matches!(e.what, What::Stopping | What::Lost)),
        "one failed renewal ended the term"
    );
    leader.stop().await
}

pub(crate) async fn work_that_ends_frees_the_lease(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.brisk(store.as_ref());
    let other = cx.provider(&cx.open().await?, ttl);
    for fails in [true, false] {
        let (began, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
        let work: crate::runner::Work = Arc::new(move |term| {
            // Nobody listens any more once the case is done.
            let _told = began.send(term.token());
            Box::pin(async move {
                if fails {
                    Err("it failed".to_owned())
                } else {
                    Ok(())
                }
            })
        });
        let seat = Seat::new(
            Arc::clone(&store),
            owner("one"),
            name("n"),
            timing(ttl),
            work,
        );
        let running = cx.runner().start(seat)?;
        let token = soon("the work begins", has_begun.recv()).await?;
        let guard = soon("another gets the lease", other.acquire("n")).await??;
        ensure!(
            Some(guard.token()) > token,
            "the token {} follows {token:?}",
            guard.token()
        );
        soon("the candidate ends", running.stop()).await??;
        let_go(&guard).await?;
    }
    Ok(())
}

pub(crate) async fn nothing_is_renewed_afterwards(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.short(store.as_ref());
    let faulty = Faulty::new(Arc::clone(&store));
    let faults = faulty.faults().clone();
    let provider = cx.provider(&(Arc::new(faulty) as _), ttl);
    for released in [true, false] {
        let guard = provider.acquire("n").await?;
        let before = faults.calls(Operation::Renew);
        eventually("it is renewed", ttl * 2, || async {
            Ok(faults.calls(Operation::Renew) > before)
        })
        .await?;
        if released {
            let_go(&guard).await?;
        }
        drop(guard);
        cx.until_free(store.as_ref(), &name("n")).await?;
        let before = faults.calls(Operation::Renew);
        // Nothing may happen in this time; there is no condition to wait for.
        tokio::time::sleep(ttl).await;
        let after = faults.calls(Operation::Renew);
        ensure!(after == before, "{} renewals after the end", after - before);
    }
    Ok(())
}
