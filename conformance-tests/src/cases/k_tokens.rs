//! K. Fencing tokens.

use lock_core::{Lease, Token};

use crate::cx::{Cx, claim, denied, ensure, granted, holder, name, renewed};
use crate::harness::Answer;

fn grows(last: &mut u64, token: Token, over: &str) -> Answer<()> {
    ensure!(
        token.get() > *last && token <= Token::MAX,
        "over {over} the token {token} follows {last}"
    );
    *last = token.get();
    Ok(())
}

pub(crate) async fn tokens_grow_over_everything(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let (short, long) = (cx.short(store.as_ref()), cx.long(store.as_ref()));
    let mut last = 0;
    for _ in 0..cx.rounds(5, 200) {
        let lease: Lease = granted(store.as_ref(), &claim(&name, long)).await?;
        grows(&mut last, lease.token(), "a release")?;
        store.release(&lease).await?;
    }
    let lapsing = granted(store.as_ref(), &claim(&name, short)).await?;
    grows(&mut last, lapsing.token(), "a release")?;
    cx.until_free(store.as_ref(), &name).await?;
    let lease = granted(store.as_ref(), &claim(&name, long)).await?;
    grows(&mut last, lease.token(), "an expiry")?;
    if let Some(token) = store.revoke(&name, "test").await? {
        grows(&mut last, token, "a revocation")?;
    } else {
        ensure!(false, "a held name could not be revoked");
    }
    let lease = granted(store.as_ref(), &claim(&name, long)).await?;
    grows(&mut last, lease.token(), "a revocation's own token")?;
    store.withdraw(lease.claim()).await?;
    let lease = granted(store.as_ref(), &claim(&name, long)).await?;
    grows(&mut last, lease.token(), "a withdrawal")?;
    store.release(&lease).await?;
    store.close().await?;
    let again = cx.open().await?;
    let lease = granted(again.as_ref(), &claim(&name, long)).await?;
    grows(&mut last, lease.token(), "closing and opening the store")
}

pub(crate) async fn renewals_keep_the_token(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let name = name("n");
    let lease = granted(store.as_ref(), &claim(&name, cx.long(store.as_ref()))).await?;
    for _ in 0..cx.rounds(50, 1000) {
        renewed(store.as_ref(), &lease).await?;
    }
    let held = holder(store.as_ref(), &name).await?;
    ensure!(
        held.token == lease.token(),
        "renewals changed the token: {held:?}"
    );
    Ok(())
}

pub(crate) async fn denied_tries_change_nothing(cx: Cx) -> Answer<()> {
    let (store, other) = (cx.open().await?, cx.open().await?);
    let name = name("n");
    let ttl = cx.long(store.as_ref());
    let lease = granted(store.as_ref(), &claim(&name, ttl)).await?;
    let before = holder(store.as_ref(), &name).await?;
    for _ in 0..cx.rounds(50, 1000) {
        let met = denied(other.as_ref(), &claim(&name, ttl)).await?;
        ensure!(
            met.token == lease.token(),
            "a denied try changed the token: {met:?}"
        );
    }
    let after = holder(store.as_ref(), &name).await?;
    ensure!(
        (before.version, before.token) == (after.version, after.token)
            && after.remaining <= before.remaining,
        "denied tries touched the holder: {before:?} became {after:?}"
    );
    renewed(store.as_ref(), &lease).await
}
