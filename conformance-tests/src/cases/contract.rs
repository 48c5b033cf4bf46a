//! The rules of the trait itself, beyond the field cases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{
    Attempt, ErrorKind, LeaseState, LockName, Metadata, Mode, Renewal, Request, Token,
};
use tokio::sync::Barrier;

use crate::cx::{
    Cx, claim, denied, ensure, gone, granted, holder, is_free, name, owner, renew, renewed, soon,
};
use crate::harness::{Answer, Stop};
use crate::victim::{Role, Victim};

pub(crate) async fn one_of_many_racing_claims_wins(cx: Cx) -> Answer<()> {
    const CLIENTS: usize = 8;
    let rounds = cx.rounds(25, 500);
    let first = cx.open().await?;
    let ttl = cx.long(first.as_ref());
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (store, barrier) = (cx.open().await?, Arc::clone(&barrier));
        clients.push(tokio::spawn(async move {
            let mut wins = Vec::new();
            let mut failure = None;
            for round in 0..rounds {
                // Every fifth round a new name, else the one that was freed.
                let name = name(&format!("n{}", round / 5));
                let mine = claim(&name, ttl);
                barrier.wait().await;
                let attempt = store.try_acquire(&mine).await;
                barrier.wait().await;
                let ended = match attempt {
                    Ok(Attempt::Granted(lease)) => {
                        wins.push((round, lease.token()));
                        store.release(&lease).await.map(drop)
                    }
                    Ok(Attempt::Held(_)) => store.withdraw(&mine).await,
                    Err(error) => Err(error),
                };
                // The others wait at the barrier for this one too.
                failure = failure.or_else(|| ended.err());
                barrier.wait().await;
            }
            match failure {
                Some(error) => Err(Stop::from(error)),
                None => Answer::Ok(wins),
            }
        }));
    }
    let mut wins: Vec<(usize, Token)> = Vec::new();
    for client in clients {
        let of_one = soon("a client of the race ends", client).await?;
        wins.extend(of_one.map_err(Stop::failed)??);
    }
    wins.sort_unstable();
    for round in 0..rounds {
        let of_round = wins.iter().filter(|(r, _)| *r == round).count();
        ensure!(
            of_round == 1,
            "{of_round} of {CLIENTS} racing claims were granted in round {round}"
        );
    }
    for pair in wins.windows(2) {
        let same_name = pair[0].0 / 5 == pair[1].0 / 5;
        ensure!(
            !same_name || pair[1].1 > pair[0].1,
            "tokens went back: {pair:?}"
        );
    }
    Ok(())
}

pub(crate) async fn same_nonce_same_token(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let ttl = cx.short(store.as_ref()) * 2;
    let mine = claim(&name, ttl);
    let first = granted(store.as_ref(), &mine).await?;
    tokio::time::sleep(ttl / 2).await;
    let repeated = Instant::now();
    let again = granted(other.as_ref(), &mine).await?;
    ensure!(
        again.token() == first.token(),
        "{first:?} was repeated as {again:?}"
    );
    ensure!(
        again.ttl() >= ttl / 2,
        "a repeated grant has only {:?}",
        again.ttl()
    );
    // A full ttl again: it outlives the first one.
    tokio::time::sleep(ttl * 3 / 4).await;
    match renew(store.as_ref(), &first).await? {
        Renewal::Renewed { .. } => {}
        Renewal::Gone => ensure!(
            repeated.elapsed() >= ttl,
            "a repeated grant did not get a full ttl again"
        ),
    }
    Ok(())
}

pub(crate) async fn same_nonce_after_expiry_is_a_new_term(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let (short, long) = (cx.short(store.as_ref()), cx.long(store.as_ref()));
    let mine = claim(&name, short);
    let first = granted(store.as_ref(), &mine).await?;
    cx.until_free(store.as_ref(), &name).await?;
    let second = granted(store.as_ref(), &mine).await?;
    ensure!(
        second.token() > first.token(),
        "{first:?} went on as {second:?} after its expiry"
    );
    gone(store.as_ref(), &first).await?;
    cx.until_free(store.as_ref(), &name).await?;
    let theirs = granted(other.as_ref(), &claim(&name, long)).await?;
    let met = denied(store.as_ref(), &mine).await?;
    ensure!(met.token == theirs.token(), "an old nonce met {met:?}");
    store.withdraw(&mine).await?;
    renewed(other.as_ref(), &theirs).await
}

pub(crate) async fn once_leaves_no_entry(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let name = name("n");
    let held = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let losers: Vec<_> = (0..5)
        .map(|_| claim(&name, ttl).with_mode(Mode::Once))
        .collect();
    for loser in &losers {
        denied(other.as_ref(), loser).await?;
    }
    store.release(&held).await?;
    let seen = other.observe(&name).await?;
    ensure!(
        is_free(&seen),
        "a denied claim was granted after all: {seen:?}"
    );
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    ensure!(next.token() > held.token(), "the token went back");
    store.release(&next).await?;
    match cx.harness().residue().await {
        Ok(left) => ensure!(left == 0, "{left} entries of denied claims are left"),
        Err(Stop::NotApplicable(_)) => {}
        Err(stop) => return Err(stop),
    }
    Ok(())
}

pub(crate) async fn observe_tells_each_state(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let short = cx.short(store.as_ref());
    let seen = other.observe(&name).await?;
    ensure!(
        seen.name == name && seen.state == LeaseState::Absent,
        "a fresh name is {seen:?}"
    );

    let metadata = Metadata::new("http://[::1]:80/ä\n")?;
    let mut mine = claim(&name, short).with_metadata(metadata.clone());
    mine.owner = owner("host ä/1");
    let lease = granted(store.as_ref(), &mine).await?;
    let held = holder(other.as_ref(), &name).await?;
    ensure!(
        held.owner == mine.owner
            && held.metadata == metadata
            && held.token == lease.token()
            && held.ttl == short
            && !held.remaining.is_zero(),
        "{lease:?} is shown as {held:?}"
    );
    cx.until_free(other.as_ref(), &name).await?;
    let seen = other.observe(&name).await?;
    match &seen.state {
        LeaseState::Expired(holder) => ensure!(
            holder.token == lease.token() && holder.remaining.is_zero(),
            "expired, and shown as {holder:?}"
        ),
        // A store that removes what has expired knows no more.
        LeaseState::Absent | LeaseState::Free { .. } => {}
        other => ensure!(false, "after the expiry: {other:?}"),
    }
    let lease = granted(store.as_ref(), &mine).await?;
    store.release(&lease).await?;
    let seen = other.observe(&name).await?;
    match &seen.state {
        LeaseState::Free { token, note } => {
            ensure!(
                *token >= lease.token() && note.is_empty(),
                "after a release: {seen:?}"
            );
        }
        LeaseState::Absent => {}
        other => ensure!(false, "after a release: {other:?}"),
    }
    Ok(())
}

pub(crate) async fn list_is_exact_and_ordered(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.long(store.as_ref());
    let names = [
        "b", "a/2", "a/10", "a", "A/1", "a/ä", "a%", "a_", "ab", "a/", "z",
    ];
    for text in names {
        granted(store.as_ref(), &claim(&name(text), ttl)).await?;
    }
    for prefix in [
        "", "a", "a/", "a/1", "A", "a%", "a_", "%", "_", "*", "?", "nothing", "a/ä",
    ] {
        let mut expected: Vec<LockName> = names
            .iter()
            .filter(|n| n.starts_with(prefix))
            .map(|n| name(n))
            .collect();
        expected.sort();
        let listed = store.list(prefix).await?;
        ensure!(
            listed.iter().all(|o| o.holder().is_some()),
            "held names are listed as {listed:?}"
        );
        let listed: Vec<LockName> = listed.into_iter().map(|o| o.name).collect();
        ensure!(listed == expected, "the prefix {prefix:?} lists {listed:?}");
    }
    Ok(())
}

pub(crate) async fn revoke_burns_a_token(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let name = name("n");
    let nobody = other.revoke(&name, "nobody").await?;
    ensure!(nobody.is_none(), "a free name was revoked: {nobody:?}");
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let Some(burnt) = other.revoke(&name, "maintenance ä'").await? else {
        return Err(Stop::failed("a held name could not be revoked"));
    };
    ensure!(
        burnt > lease.token(),
        "the burnt token {burnt} fences nobody: {lease:?}"
    );
    gone(store.as_ref(), &lease).await?;
    let seen = other.observe(&name).await?;
    match &seen.state {
        LeaseState::Free { token, note } => ensure!(
            *token >= burnt && note.as_str() == "maintenance ä'",
            "after a revocation: {seen:?}"
        ),
        LeaseState::Absent => {}
        other => ensure!(false, "after a revocation: {other:?}"),
    }
    let again = other.revoke(&name, "again").await?;
    ensure!(again.is_none(), "revoked twice: {again:?}");
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    ensure!(
        next.token() >= burnt,
        "the token {} follows the burnt {burnt}",
        next.token()
    );
    Ok(())
}

pub(crate) async fn requests_reach_the_holder(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let ttl = cx.long(store.as_ref());
    let name = name("n");
    let wish = Request::StepDown {
        hold_off: Duration::from_millis(12_345),
    };
    ensure!(
        !other.request(&name, &wish).await?,
        "nobody holds it, and a wish was left"
    );
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    renewed(store.as_ref(), &lease).await?;
    ensure!(
        other.request(&name, &wish).await?,
        "a wish could not be left for a holder"
    );
    // Twice: an answer that is lost loses no wish.
    for _ in 0..2 {
        let answer = renew(store.as_ref(), &lease).await?;
        let Renewal::Renewed { request, .. } = &answer else {
            return Err(Stop::failed("a wish ended the term"));
        };
        ensure!(
            request.as_ref() == Some(&wish),
            "the holder was told {answer:?}"
        );
    }
    store.release(&lease).await?;
    ensure!(
        !other.request(&name, &wish).await?,
        "released, and a wish was left"
    );
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let answer = renew(store.as_ref(), &next).await?;
    ensure!(
        matches!(answer, Renewal::Renewed { request: None, .. }),
        "the next term was told an old wish: {answer:?}"
    );
    Ok(())
}

pub(crate) async fn if_unchanged_is_tested_in_the_store(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    if !store.capabilities().conditional_takeover {
        return Err(Stop::not_applicable(
            "the store cannot make a takeover conditional",
        ));
    }
    let name = name("n");
    let ttl = cx.short(store.as_ref());
    let first = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let seen = denied(other.as_ref(), &claim(&name, ttl)).await?;
    renewed(store.as_ref(), &first).await?;
    let after = holder(other.as_ref(), &name).await?;
    ensure!(
        after.version != seen.version,
        "a renewal kept the version: {after:?}"
    );
    cx.until_free(other.as_ref(), &name).await?;
    let late = claim(&name, ttl).with_if_unchanged(Some(seen.version));
    let met = denied(other.as_ref(), &late).await?;
    ensure!(
        met.version == after.version && met.remaining.is_zero(),
        "an expired entry that had changed is shown as {met:?}"
    );
    let unchanged = claim(&name, ttl).with_if_unchanged(Some(after.version));
    let next = granted(other.as_ref(), &unchanged).await?;
    store.release(&next).await?;
    // A free entry is not conditional.
    let free = claim(&name, ttl).with_if_unchanged(Some(seen.version));
    granted(store.as_ref(), &free).await?;
    Ok(())
}

pub(crate) async fn min_token_is_kept(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    if !store.capabilities().min_token {
        return Err(Stop::not_applicable(
            "the store does not take a least token",
        ));
    }
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let first = granted(store.as_ref(), &claim(&name, ttl)).await?;
    store.release(&first).await?;
    let least = Token::new(first.token().get() + 1_000_000_000)?;
    let mine = claim(&name, ttl).with_min_token(Some(least));
    let second = granted(store.as_ref(), &mine).await?;
    ensure!(second.token() >= least, "{second:?} is below {least}");
    let higher = Token::new(second.token().get() + 5)?;
    let raised = granted(store.as_ref(), &mine.clone().with_min_token(Some(higher))).await?;
    ensure!(
        raised.token() == higher,
        "raised to {higher}, and is {raised:?}"
    );
    let same = granted(store.as_ref(), &mine).await?;
    ensure!(same.token() == higher, "a lower wish lowered it: {same:?}");
    gone(store.as_ref(), &second).await?;
    renewed(store.as_ref(), &raised).await?;
    store.release(&raised).await?;
    let next = granted(store.as_ref(), &claim(&name, ttl)).await?;
    ensure!(next.token() > higher, "after {higher} follows {next:?}");
    Ok(())
}

pub(crate) async fn prepare_sixteen_at_once(cx: Cx) -> Answer<()> {
    let barrier = Arc::new(Barrier::new(16));
    let mut starting = Vec::new();
    for _ in 0..16 {
        let (cx, barrier) = (cx.clone(), Arc::clone(&barrier));
        starting.push(tokio::spawn(async move {
            let store = cx.harness().open().await?;
            barrier.wait().await;
            store.prepare().await?;
            store.prepare().await?;
            Answer::Ok(store)
        }));
    }
    let mut stores = Vec::new();
    for one in starting {
        let store = soon("a start ends", one).await?.map_err(Stop::failed)??;
        stores.push(store);
    }
    let name = name("n");
    let ttl = cx.long(stores[0].as_ref());
    let lease = granted(stores[0].as_ref(), &claim(&name, ttl)).await?;
    stores[1].prepare().await?;
    for store in &stores {
        let held = holder(store.as_ref(), &name).await?;
        ensure!(held.token == lease.token(), "a client sees {held:?}");
    }
    Ok(())
}

pub(crate) async fn closed_is_closed(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let theirs = granted(other.as_ref(), &claim(&name, ttl)).await?;
    let lease = granted(store.as_ref(), &claim(&crate::cx::name("m"), ttl)).await?;
    soon("closing ends", store.close()).await??;
    let mine = claim(&name, ttl);
    let answers = [
        soon("a closed store answers", store.try_acquire(&mine))
            .await?
            .err(),
        soon("a closed store answers", store.release(&lease))
            .await?
            .err(),
        soon("a closed store answers", store.withdraw(&mine))
            .await?
            .err(),
        soon("a closed store answers", store.observe(&name))
            .await?
            .err(),
        soon("a closed store answers", store.list("")).await?.err(),
        soon("a closed store answers", store.prepare()).await?.err(),
    ];
    for answer in answers {
        let kind = answer.as_ref().map(lock_core::Error::kind);
        ensure!(
            kind == Some(ErrorKind::Unavailable),
            "a closed store answers {answer:?}"
        );
    }
    let renewals = soon(
        "a closed store answers",
        store.renew(std::slice::from_ref(&lease)),
    )
    .await?;
    ensure!(
        matches!(&renewals[..], [Err(error)] if error.kind() == ErrorKind::Unavailable),
        "a closed store renews: {renewals:?}"
    );
    renewed(other.as_ref(), &theirs).await
}

pub(crate) async fn versions_change(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let mut seen = Vec::new();
    for _ in 0..4 {
        let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
        let held = holder(store.as_ref(), &name).await?;
        ensure!(held.version != 0, "a version is zero: {held:?}");
        ensure!(
            !seen.contains(&held.version),
            "a version came again: {held:?}"
        );
        let met = denied(store.as_ref(), &claim(&name, ttl)).await?;
        ensure!(
            met.version == held.version,
            "two versions of one state: {met:?}, {held:?}"
        );
        seen.push(held.version);
        store.release(&lease).await?;
    }
    Ok(())
}

pub(crate) async fn processes_exclude_each_other(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.brisk(store.as_ref());
    let mut victims = Vec::new();
    for _ in 0..3 {
        victims.push(Victim::start(&cx, Role::TakeTurns, "n", ttl).await?);
    }
    let mut turns = Vec::new();
    for victim in &mut victims {
        for _ in 0..cx.rounds(5, 100) {
            // "token from to": when it was granted, and when it was about to release it, in
            // nanoseconds of the clock of this machine.
            let turn = victim.told("granted").await?;
            let mut words = turn.split(' ').map(str::parse::<u64>);
            let (Some(Ok(token)), Some(Ok(from)), Some(Ok(to))) =
                (words.next(), words.next(), words.next())
            else {
                return Err(Stop::failed(format!("a process told {turn:?}")));
            };
            turns.push((from, to, token));
        }
    }
    for victim in victims {
        victim.kill().await?;
    }
    turns.sort_unstable();
    for pair in turns.windows(2) {
        ensure!(
            pair[0].1 <= pair[1].0 && pair[0].2 < pair[1].2,
            "two turns (from, to, token) overlap or their tokens go back: {pair:?}"
        );
    }
    Ok(())
}
