//! Local time that counts suspend, and a timer on it.
//!
//! Deadlines must pass while a laptop sleeps or a virtual machine is suspended. On Linux the clock
//! is `CLOCK_BOOTTIME`; `CLOCK_MONOTONIC` (which [`std::time::Instant`] uses there) stands still.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{AbortHandle, abortable};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::driver::rescue;

/// A point on a [`Clock`], in nanoseconds since some start that is the same for one clock.
///
/// Points of two clocks, of two machines or of two boots do not compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The point at which the clock started.
    pub const START: Self = Self(0);
    /// A point that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The point `span` later, at most [`NEVER`](Self::NEVER).
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// The point `span` earlier, at least [`START`](Self::START).
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// How long after `earlier` this is; zero when it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NEVER => f.write_str("never"),
            Self(nanos) => write!(f, "{:?}", Duration::from_nanos(nanos)),
        }
    }
}

/// A source of local time that never goes back and counts suspend.
pub trait Clock: fmt::Debug + Send + Sync {
    /// The present.
    fn now(&self) -> Moment;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Moment {
        system_now()
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn system_now() -> Moment {
    from_timespec(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

/// On Apple's systems and the BSDs `CLOCK_MONOTONIC` goes on during sleep.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
#[inline]
fn system_now() -> Moment {
    from_timespec(rustix::time::clock_gettime(
        rustix::time::ClockId::Monotonic,
    ))
}

#[cfg(unix)]
#[inline]
fn from_timespec(t: rustix::time::Timespec) -> Moment {
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
    Moment(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// On Windows the performance counter behind [`std::time::Instant`] goes on during sleep.
#[cfg(not(unix))]
#[allow(
    clippy::disallowed_methods,
    reason = "the one place; see the comment above"
)]
fn system_now() -> Moment {
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    Moment::START.after(Instant::now().duration_since(start))
}

/// The clock of the tokio runtime: virtual where a test has paused it.
///
/// For tests. It does not count suspend.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock(tokio::time::Instant);

impl RuntimeClock {
    /// A clock that starts now. Call it inside the runtime whose time it shows.
    #[must_use]
    pub fn start() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Moment {
        Moment::START.after(self.0.elapsed())
    }
}

/// The longest single sleep of a timer. A runtime's sleep does not count suspend and would fire late
/// after a resume, so a timer sleeps in pieces and looks at the clock again after each.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Resolves when `clock` has reached `moment`; at most half a second late after a suspend.
///
/// # Cancel safety
/// It holds nothing; dropping it is safe.
pub async fn sleep_until(clock: &Arc<dyn Clock>, moment: Moment) {
    loop {
        let left = moment.since(clock.now());
        if left.is_zero() {
            return;
        }
        sleep(left.min(LONGEST_SLEEP)).await;
    }
}

/// Sleeps, also where no tokio runtime is: then on the thread of the clean-up.
pub(crate) async fn sleep(span: Duration) {
    if Handle::try_current().is_ok() {
        tokio::time::sleep(span).await;
    } else {
        let there = async move { tokio::time::sleep(span).await };
        // It is never aborted and cannot panic; were it so, the caller would look at the time again.
        let _ = rescue::runtime().spawn(there).await;
    }
}

/// Sleeps on a thread that does nothing else. The workers of a tokio runtime share one timer, and a
/// worker that blocks may hold up every sleep of the runtime. Where there is but one worker this pends
/// for ever: nobody could be told.
pub(crate) async fn alarm(span: Duration) {
    let workers = Handle::try_current().map(|here| here.runtime_flavor());
    if matches!(workers, Ok(RuntimeFlavor::CurrentThread)) {
        return std::future::pending().await;
    }
    static THREAD: OnceLock<Handle> = OnceLock::new();
    let thread = THREAD.get_or_init(|| rescue::runtime_on_thread("lock-alarm"));
    let (sleep, abort) = abortable(async move { tokio::time::sleep(span).await });
    let _abort = AbortOnDrop(abort);
    // An end before its time makes the caller look at the clock, no more.
    let _ = thread.spawn(sleep).await;
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_saturate() {
        let m = Moment::from_nanos(5);
        assert_eq!(m.before(Duration::from_secs(1)), Moment::START);
        assert_eq!(m.after(Duration::MAX), Moment::NEVER);
        assert_eq!(Moment::START.since(m), Duration::ZERO);
    }

    #[test]
    fn the_system_clock_advances() {
        let a = SystemClock.now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(SystemClock.now().since(a) >= Duration::from_millis(2));
    }
}
