//! R. Threads and long runs.

use lock_core::{LockProvider as _, Release};

use crate::cx::{Cx, ensure, eventually, name, poll_times};
use crate::harness::{Answer, Stop};

pub(crate) async fn a_guard_moves_between_threads(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let provider = cx.provider(&store, cx.long(store.as_ref()));
    let guard = provider.acquire("n").await?;
    let (done, answered) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let held = guard.check();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let answer = runtime.map(|runtime| runtime.block_on(guard.release()));
        drop(done.send((held, answer)));
    });
    let (held, answer) = answered.await.map_err(Stop::failed)?;
    ensure!(held, "a guard does not count on another thread");
    let answer = answer.map_err(Stop::failed)??;
    ensure!(answer == Release::Released, "on another thread: {answer:?}");
    ensure!(thread.join().is_ok(), "the thread panicked");
    Ok(())
}

pub(crate) async fn many_short_terms(cx: Cx) -> Answer<()> {
    let store = cx.open().await?;
    let provider = cx.provider(&store, cx.long(store.as_ref()));
    let mut last = None;
    for round in 0..cx.rounds(60, 3000) {
        if round % 3 == 0 {
            let polls = usize::try_from(cx.random() % 6).unwrap_or(0);
            poll_times(polls, provider.acquire("n")).await;
            continue;
        }
        let guard = crate::cx::soon("a round acquires", provider.acquire("n")).await??;
        ensure!(
            Some(guard.token()) > last,
            "the token went back: {guard:?} after {last:?}"
        );
        last = Some(guard.token());
        crate::cx::let_go(&guard).await?;
    }
    eventually("the name is free", crate::cx::SOON, || async {
        Ok(store.observe(&name("n")).await?.holder().is_none())
    })
    .await?;
    match cx.harness().residue().await {
        Ok(left) => ensure!(left == 0, "{left} entries are left"),
        Err(Stop::NotApplicable(_)) => {}
        Err(stop) => return Err(stop),
    }
    Ok(())
}
