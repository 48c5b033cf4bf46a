//! Q. Several locks, re-entrancy.

use std::time::Duration;

use lock_core::LockProvider as _;

use crate::cx::{Cx, ensure, soon};
use crate::harness::{Answer, Stop};

pub(crate) async fn a_second_acquire_waits(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let ttl = cx.brisk(store.as_ref());
    let provider = cx.provider(&store, ttl);
    let first = provider.acquire("n").await?;
    let again = provider.try_acquire("n").await?;
    ensure!(
        again.is_none(),
        "one provider got {again:?} beside {first:?}"
    );
    let other = provider.acquire("m").await?;
    let limit = Duration::from_millis(200);
    ensure!(
        provider.acquire_within("n", limit).await?.is_none(),
        "it did not wait"
    );
    let waiter = {
        let provider = provider.clone();
        tokio::spawn(async move { provider.acquire("n").await })
    };
    crate::cx::let_go(&first).await?;
    let second = soon("the waiter gets it", waiter)
        .await?
        .map_err(Stop::failed)??;
    ensure!(second.token() > first.token(), "the token went back");
    ensure!(
        second.check() && other.check() && !first.check(),
        "the wrong guard counts"
    );
    crate::cx::let_go(&second).await?;
    crate::cx::let_go(&other).await?;
    Ok(())
}
