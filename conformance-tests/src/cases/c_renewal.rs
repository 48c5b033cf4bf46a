//! C. Renewal.

use std::time::{Duration, Instant};

use lock_core::{Claim, Handle, Lease, Nonce, Release, Renewal, Token};

use crate::cx::{
    Cx, claim, denied, ensure, gone, granted, holder, name, owner, renewed, soon, within,
};
use crate::harness::Answer;

pub(crate) async fn renewal_restarts_the_countdown(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let other = cx.open().await?;
    let name = name("n");
    let ttl = cx.short(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let started = Instant::now();
    let mut sent = started;
    while started.elapsed() < ttl * 3 {
        tokio::time::sleep(ttl / 4).await;
        let paused = sent.elapsed();
        sent = Instant::now();
        match crate::cx::renew(store.as_ref(), &lease).await? {
            Renewal::Renewed { ttl: left, request } => {
                ensure!(left >= ttl / 2, "a renewal of {ttl:?} gave {left:?}");
                ensure!(request.is_none(), "a wish that nobody left: {request:?}");
            }
            // On a machine this busy the lease has truly expired.
            Renewal::Gone => ensure!(paused >= ttl, "gone {paused:?} after the last renewal"),
        }
        let met = denied(other.as_ref(), &claim(&name, ttl)).await?;
        ensure!(met.token == lease.token(), "another holder: {met:?}");
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
