//! Cleaning up when the runtime of a driver has ended, or is not run any more: a thread of the
//! process's own releases what is left. A lease that it cannot release expires by itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::claim::{Lease, Release};
use crate::election::Debt;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::persistence::LockPersistence;

/// How long the driver has to begin before it is taken for dead.
pub(super) const GRACE: Duration = Duration::from_millis(100);
/// How long one request may take here.
const TIMEOUT: Duration = Duration::from_secs(2);
const TRIES: u32 = 3;

/// Releases and withdraws, in the background.
pub(super) fn settle(persistence: Arc<dyn LockPersistence>, debts: Vec<Debt>) {
    if !debts.is_empty() {
        runtime().spawn(async move {
            for debt in debts {
                pay(&*persistence, &debt).await;
            }
        });
    }
}

/// Like [`settle`], unless the driver has begun to do it by itself after a short while.
pub(super) fn settle_unless(
    persistence: Arc<dyn LockPersistence>,
    debt: Debt,
    done: impl Fn() -> bool + Send + 'static,
) {
    runtime().spawn(async move {
        tokio::time::sleep(GRACE).await;
        if !done() {
            pay(&*persistence, &debt).await;
        }
    });
}

/// Releases once, on this thread, and says what came of it.
pub(super) async fn release(
    persistence: Arc<dyn LockPersistence>,
    lease: Lease,
) -> Result<Release> {
    let call = async move { tokio::time::timeout(TIMEOUT, persistence.release(&lease)).await };
    match runtime().spawn(call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) | Err(_) => Err(Error::new(
            ErrorKind::Unavailable,
            "the runtime of the driver is not run any more, and the release did not come through \
             without it; the lease expires by itself",
        )
        .with_operation(Operation::Release)),
    }
}

async fn pay(persistence: &dyn LockPersistence, debt: &Debt) {
    for n in 0..TRIES {
        let call = async {
            match debt {
                Debt::Release(lease) => persistence.release(lease).await.map(|_| ()),
                Debt::Withdraw(claim) => persistence.withdraw(claim).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, call).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::debug!(%error, "release after the end of the runtime failed")
            }
            Err(_) => tracing::debug!("release after the end of the runtime timed out"),
        }
        tokio::time::sleep(GRACE * (n + 1)).await;
    }
}

pub(crate) fn runtime() -> Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME
        .get_or_init(|| runtime_on_thread("lock-rescue"))
        .clone()
}

/// A runtime on a thread of its own, for the rest of the process.
pub(crate) fn runtime_on_thread(name: &str) -> Handle {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the operating system gives a timer and a poller");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the operating system starts a thread");
    handle
}
