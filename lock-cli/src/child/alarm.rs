//! A timer that fires on time also after a suspend.

use std::io;
use std::time::Duration;

use lockkit::clock::{Clock as _, Moment, SystemClock};

/// The present on the clock that all deadlines are on.
pub(super) fn now() -> Moment {
    SystemClock.now()
}

/// The longest sleep between two looks at the clock, where the kernel's timer cannot be had.
const PIECE: Duration = Duration::from_millis(50);

/// The kernel's timer on the clock that counts suspend: it fires on the resume itself.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct Alarm(tokio::net::unix::pipe::Receiver);

#[cfg(target_os = "linux")]
impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // The runtime's type for any descriptor is unsafe to make; a pipe's is read the same way.
        let timer = tokio::net::unix::pipe::Receiver::from_owned_fd_unchecked(timer)?;
        Ok(Self(timer))
    }

    /// Resolves at `at`; never when that is [`Moment::NEVER`].
    pub(super) async fn at(&self, at: Moment) {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        if at == Moment::NEVER {
            return std::future::pending().await;
        }
        const SECOND: u64 = 1_000_000_000;
        // Setting the timer also clears an earlier expiry.
        let when = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(at.as_nanos() / SECOND).unwrap_or(i64::MAX),
                tv_nsec: (at.as_nanos() % SECOND).max(1) as _,
            },
        };
        let set = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &when);
        while now() < at {
            if set.is_err() || self.0.readable().await.is_err() {
                // Without the kernel's timer: a look at the clock after each piece.
                tokio::time::sleep(at.since(now()).min(PIECE)).await;
                continue;
            }
            // Reads the count of expiries, so that the next wait is for another.
            let _ = self.0.try_read(&mut [0; 8]);
        }
    }
}

/// A sleep in pieces, each followed by a look at the clock.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Alarm;

#[cfg(not(target_os = "linux"))]
impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn at(&self, at: Moment) {
        if at == Moment::NEVER {
            return std::future::pending().await;
        }
        while now() < at {
            tokio::time::sleep(at.since(now()).min(PIECE)).await;
        }
    }
}
