//! Collects children that have ended or stopped, adopted ones too.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::sync::broadcast;

/// What came of a round of collecting.
#[derive(Debug, Default)]
pub(super) struct Reaped {
    /// Each child whose state has changed.
    pub(super) changed: Vec<(Pid, WaitStatus)>,
    /// No child is left.
    pub(super) none_left: bool,
}

/// Collects without waiting.
pub(super) fn reap() -> Reaped {
    let mut reaped = Reaped::default();
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    loop {
        match rustix::process::wait(options) {
            Ok(Some(change)) => reaped.changed.push(change),
            Err(Errno::INTR) => {}
            Ok(None) => return reaped,
            Err(_) => {
                reaped.none_left = true;
                return reaped;
            }
        }
    }
}

/// Makes this process the parent of all its orphaned descendants, where the system can.
pub(super) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    // Kernels have had it since 3.4; without it orphans outside the process group are not found.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

/// Collects whatever ends, from now on: as process 1, and as the parent of orphans, this process is
/// the only one that can.
pub(super) fn collect(mut changes: broadcast::Receiver<Signal>) {
    tokio::spawn(async move {
        loop {
            match changes.recv().await {
                Ok(Signal::CHILD) | Err(broadcast::error::RecvError::Lagged(_)) => {
                    reap();
                }
                Ok(_) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    });
}
