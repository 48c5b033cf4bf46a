//! The times of an election: checked before any I/O, and explained.

use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

const PPM: u128 = 1_000_000;

/// The times of a lock or an election. A value of this type has passed the rule of
/// [`TimingBuilder::build`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    ttl: Duration,
    renew_every: Duration,
    request_timeout: Duration,
    first_backoff: Duration,
    poll_every: Duration,
    drain: Duration,
    margin: Duration,
    drift_ppm: u32,
}

impl Default for Timing {
    /// ttl 15 s, renew 5 s, request timeout 2 s, drain 4 s, margin 0.5 s, drift 1 %.
    fn default() -> Self {
        Self::scaled(Duration::from_secs(15))
    }
}

impl Timing {
    /// The default times stretched or shrunk to this ttl.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the ttl is below 100 ms or above 24 h.
    pub fn for_ttl(ttl: Duration) -> Result<Self> {
        Self::builder(ttl).build()
    }

    /// Starts from [`for_ttl`](Self::for_ttl) and lets each time be set.
    #[must_use]
    pub fn builder(ttl: Duration) -> TimingBuilder {
        TimingBuilder {
            timing: Self::scaled(ttl),
            poll_set: false,
        }
    }

    /// The times of Dubbo Admin's election: lease 30 s, renewal each 10 s, retry each 5 s; the rest
    /// in the proportions of the default.
    #[must_use]
    pub fn dubbo_admin() -> Self {
        let mut timing = Self::scaled(Duration::from_secs(30));
        timing.renew_every = Duration::from_secs(10);
        timing.poll_every = Duration::from_secs(5);
        timing
    }

    /// The times of ServiceComb Pack's master lock: lease 5 s, tick 1 s; the rest in the
    /// proportions of the default.
    #[must_use]
    pub fn servicecomb_pack() -> Self {
        let mut timing = Self::scaled(Duration::from_secs(5));
        timing.renew_every = Duration::from_secs(1);
        timing.poll_every = Duration::from_secs(1);
        timing
    }

    /// The proportions of the default. They keep the rule at every ttl, because they are fractions
    /// of it that sum to 0.92, cut off to whole milliseconds.
    fn scaled(ttl: Duration) -> Self {
        // Whole milliseconds, cut off: nobody wants to read the rest.
        let whole = |span: Duration| {
            let millis = Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
            millis.max(Duration::from_millis(1))
        };
        Self {
            ttl,
            renew_every: whole(ttl / 3),
            request_timeout: whole(ttl / 15 * 2),
            first_backoff: whole(ttl / 75),
            poll_every: whole(ttl / 3),
            drain: whole(ttl / 15 * 4),
            margin: whole(ttl / 30),
            drift_ppm: 10_000,
        }
    }

    /// How long the store keeps a lease after the last renewal it saw.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// From the send of one renewal to the send of the next.
    #[must_use]
    pub fn renew_every(&self) -> Duration {
        self.renew_every
    }

    /// How long one request may take.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The pause after the first failed request; it doubles with each further one, up to
    /// [`poll_every`](Self::poll_every).
    #[must_use]
    pub fn first_backoff(&self) -> Duration {
        self.first_backoff
    }

    /// How often a standby looks when no push comes.
    #[must_use]
    pub fn poll_every(&self) -> Duration {
        self.poll_every
    }

    /// How long the work has between being told to stop and the deadline.
    #[must_use]
    pub fn drain(&self) -> Duration {
        self.drain
    }

    /// The largest forward step of the store's clock that is covered.
    #[must_use]
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// The largest relative difference of the rates of two clocks, in parts per million.
    #[must_use]
    pub fn drift_ppm(&self) -> u32 {
        self.drift_ppm
    }

    /// The local instant after which the holder must not act:
    /// `sent + min(ttl, granted) × (1 − drift) − margin`.
    ///
    /// `sent` is when the request that restarted the store's countdown was handed to the driver.
    #[must_use]
    pub fn deadline(&self, sent: Moment, granted: Duration) -> Moment {
        let ttl = self.ttl.min(granted);
        sent.after(
            ttl.saturating_sub(self.share_of(ttl))
                .saturating_sub(self.margin),
        )
    }

    /// `deadline − drain`: when the work is told to stop.
    #[must_use]
    pub fn stop_at(&self, deadline: Moment) -> Moment {
        deadline.before(self.drain)
    }

    /// `span × drift`, rounded up.
    fn share_of(&self, span: Duration) -> Duration {
        let nanos = (span.as_nanos().saturating_mul(u128::from(self.drift_ppm))).div_ceil(PPM);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// `span × (1 + drift)`: how long a span of the store's clock may take on the local one.
    pub(crate) fn stretched(&self, span: Duration) -> Duration {
        span.saturating_add(self.share_of(span))
    }

    /// How long a lease that was last renewed by a request sent now may still stand in the store,
    /// on the local clock: `request_timeout + ttl × (1 + drift) + margin`.
    pub(crate) fn surely_expired_after(&self) -> Duration {
        self.request_timeout
            .saturating_add(self.stretched(self.ttl))
            .saturating_add(self.margin)
    }

    /// The pause after the `failures`-th failed request in a row.
    pub(crate) fn backoff(&self, failures: u32) -> Duration {
        let factor = 1_u32 << failures.saturating_sub(1).min(16);
        self.first_backoff
            .saturating_mul(factor)
            .min(self.poll_every.max(self.first_backoff))
    }

    /// Whether the rule of [`TimingBuilder::build`] still holds when the store grants only this much.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the rule and both numbers.
    pub fn check_granted(&self, granted: Duration) -> Result<()> {
        if granted >= self.ttl {
            return Ok(());
        }
        let mut shorter = *self;
        shorter.ttl = granted;
        shorter.check_rule("the ttl granted by the store")
    }

    fn check_rule(&self, which: &str) -> Result<()> {
        let needed = [
            self.renew_every,
            self.request_timeout,
            self.request_timeout,
            self.first_backoff,
            self.drain,
            self.margin,
            self.share_of(self.ttl),
        ]
        .into_iter()
        .try_fold(Duration::ZERO, Duration::checked_add);
        let Some(needed) = needed else {
            return Err(invalid(
                "the times are too large to add up; use shorter ones",
            ));
        };
        if needed > self.ttl {
            let ms = |span: Duration| {
                Duration::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
            };
            return Err(invalid(format!(
                "unsafe timing: renew_every {:?} + 2 × request_timeout {:?} + first_backoff {:?} + drain {:?} + \
                 margin {:?} + drift {:?} = {:?} must be at most {which} = {:?}; make one of them shorter or \
                 the ttl longer",
                ms(self.renew_every),
                ms(self.request_timeout),
                ms(self.first_backoff),
                ms(self.drain),
                ms(self.margin),
                ms(self.share_of(self.ttl)),
                // Rounded up, so that a little too much does not read like enough.
                ms(needed.saturating_add(Duration::from_micros(999))),
                self.ttl
            )));
        }
        Ok(())
    }

    /// What these times mean, with `candidates` processes in all.
    #[must_use]
    pub fn explain(&self, candidates: u32) -> Explanation {
        let usable = self
            .ttl
            .saturating_sub(self.share_of(self.ttl))
            .saturating_sub(self.margin)
            .saturating_sub(self.drain);
        let mut attempts = 0;
        let mut at = self.renew_every;
        while at.saturating_add(self.request_timeout) <= usable && attempts < 1000 {
            attempts += 1;
            at = at
                .saturating_add(self.request_timeout)
                .saturating_add(self.backoff(attempts));
        }
        let per_hour = |every: Duration| (3600.0 / every.as_secs_f64()).ceil() as u64;
        let standby = per_hour(self.poll_every.min(self.ttl));
        Explanation {
            timing: *self,
            candidates,
            crash_takeover: self
                .ttl
                .saturating_add(takeover_spread(candidates.saturating_sub(1))),
            polled_takeover: self.poll_every,
            attempts_before_loss: attempts,
            longest_pause: usable.saturating_sub(self.renew_every),
            leader_requests_per_hour: per_hour(self.renew_every),
            standby_requests_per_hour: standby,
        }
    }
}

/// The window over which `standbys` spread their attempts when a lease expires: 50 ms for up to ten,
/// 5 ms for each further one.
pub(crate) fn takeover_spread(standbys: u32) -> Duration {
    Duration::from_millis(50 + 5 * u64::from(standbys.saturating_sub(10)))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

/// Sets the times of a [`Timing`]. What is not set keeps the proportion of the default.
#[derive(Clone, Copy, Debug)]
pub struct TimingBuilder {
    timing: Timing,
    poll_set: bool,
}

impl TimingBuilder {
    /// From the send of one renewal to the send of the next; also how often a standby polls, unless
    /// that is set too.
    #[must_use]
    pub fn renew_every(mut self, span: Duration) -> Self {
        self.timing.renew_every = span;
        if !self.poll_set {
            self.timing.poll_every = span;
        }
        self
    }

    /// How long one request may take.
    #[must_use]
    pub fn request_timeout(mut self, span: Duration) -> Self {
        self.timing.request_timeout = span;
        self
    }

    /// The pause after the first failed request.
    #[must_use]
    pub fn first_backoff(mut self, span: Duration) -> Self {
        self.timing.first_backoff = span;
        self
    }

    /// How often a standby looks when no push comes.
    #[must_use]
    pub fn poll_every(mut self, span: Duration) -> Self {
        self.timing.poll_every = span;
        self.poll_set = true;
        self
    }

    /// How long the work has between being told to stop and the deadline.
    #[must_use]
    pub fn drain(mut self, span: Duration) -> Self {
        self.timing.drain = span;
        self
    }

    /// The largest forward step of the store's clock to cover.
    #[must_use]
    pub fn margin(mut self, span: Duration) -> Self {
        self.timing.margin = span;
        self
    }

    /// The largest relative difference of the rates of two clocks, in parts per million.
    #[must_use]
    pub fn drift_ppm(mut self, ppm: u32) -> Self {
        self.timing.drift_ppm = ppm;
        self
    }

    /// Checks the rule and gives the times.
    ///
    /// The rule: `renew_every + 2 × request_timeout + first_backoff + drain + margin + ttl × drift ≤
    /// ttl`. It leaves room for one renewal that hangs, a pause, and a second one that succeeds,
    /// before the work must be told to stop.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names what is wrong with both numbers.
    pub fn build(self) -> Result<Timing> {
        let t = self.timing;
        const MIN: Duration = Duration::from_millis(100);
        const MAX: Duration = Duration::from_secs(24 * 60 * 60);
        if t.ttl < MIN || t.ttl > MAX {
            return Err(invalid(format!(
                "the ttl is {:?}; it must be from {MIN:?} to 24h",
                t.ttl
            )));
        }
        if t.drift_ppm >= 1_000_000 {
            return Err(invalid(format!(
                "the drift is {} ppm; it must be below 1000000 (100 %)",
                t.drift_ppm
            )));
        }
        for (what, span) in [
            ("renew_every", t.renew_every),
            ("request_timeout", t.request_timeout),
            ("first_backoff", t.first_backoff),
            ("poll_every", t.poll_every),
        ] {
            if span < Duration::from_millis(1) {
                return Err(invalid(format!(
                    "{what} is {span:?}; it must be at least 1ms"
                )));
            }
        }
        t.check_rule("the ttl")?;
        Ok(t)
    }
}

/// What a [`Timing`] means in practice; `Display` writes it as a short text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The times explained.
    pub timing: Timing,
    /// Leader and standbys together.
    pub candidates: u32,
    /// From the last renewal that the store saw to the next leader, after a crash.
    pub crash_takeover: Duration,
    /// From a release to the next leader, where the store has no push or the push was lost.
    pub polled_takeover: Duration,
    /// How many renewals in a row may hang before the term is lost.
    pub attempts_before_loss: u32,
    /// The longest stop of the holder, just before a renewal is due, that costs no term.
    pub longest_pause: Duration,
    /// Requests of the leader per hour.
    pub leader_requests_per_hour: u64,
    /// Requests of one standby per hour, at most.
    pub standby_requests_per_hour: u64,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.timing;
        let standbys = u64::from(self.candidates.saturating_sub(1));
        let total = self.leader_requests_per_hour + standbys * self.standby_requests_per_hour;
        writeln!(
            f,
            "lease             {:?}, renewed every {:?}",
            t.ttl, t.renew_every
        )?;
        writeln!(
            f,
            "crash takeover    at most {:?} after the last renewal the store saw",
            self.crash_takeover
        )?;
        writeln!(
            f,
            "clean takeover    one request after the push; at most {:?} where no push arrives",
            self.polled_takeover
        )?;
        writeln!(
            f,
            "before loss       {} renewals in a row may hang for {:?} each",
            self.attempts_before_loss, t.request_timeout
        )?;
        writeln!(
            f,
            "longest pause     {:?} of the holder, just before a renewal, costs no term",
            self.longest_pause
        )?;
        writeln!(
            f,
            "clock drift       {} % between holder and store, and a step of {:?}",
            f64::from(t.drift_ppm) / 10_000.0,
            t.margin
        )?;
        writeln!(
            f,
            "the work          is told to stop {:?} before the deadline",
            t.drain
        )?;
        writeln!(
            f,
            "requests per hour {} by the leader, at most {} by each standby; {total} with {} candidates",
            self.leader_requests_per_hour, self.standby_requests_per_hour, self.candidates
        )?;
        write!(
            f,
            "assumed           no failover of the store, no larger step of its clock, no open fenced transaction"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn presets_keep_the_rule() {
        for timing in [
            Timing::default(),
            Timing::dubbo_admin(),
            Timing::servicecomb_pack(),
        ] {
            assert!(timing.check_rule("the ttl").is_ok(), "{timing:?}");
        }
        for ttl in [100, 101, 250, 999, 1000, 15_000, 86_400_000] {
            assert!(Timing::for_ttl(ms(ttl)).is_ok(), "{ttl} ms");
        }
        let t = Timing::default();
        assert_eq!(t.renew_every(), ms(5000));
        assert_eq!(t.request_timeout(), ms(2000));
        assert_eq!(t.drain(), ms(4000));
        assert_eq!(t.margin(), ms(500));
    }

    #[test]
    fn the_rule_is_exact() {
        let exact = Timing::builder(ms(4000))
            .renew_every(ms(1000))
            .request_timeout(ms(500))
            .first_backoff(ms(100))
            .drain(ms(1460))
            .margin(ms(400));
        assert!(exact.build().is_ok(), "equal is accepted");
        let error = exact
            .drain(ms(1461))
            .build()
            .expect_err("1 ms over is refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let text = error.to_string();
        assert!(text.contains("4.001s") && text.contains("4s"), "{text}");
    }

    #[test]
    fn nonsense_is_refused_without_overflow() {
        let d = Timing::builder;
        for bad in [
            d(Duration::ZERO),
            d(Duration::MAX),
            d(Duration::from_secs(u64::MAX)),
            d(ms(4000)).renew_every(Duration::ZERO),
            d(ms(4000)).renew_every(ms(4000)),
            d(ms(4000)).request_timeout(Duration::MAX),
            d(ms(4000)).request_timeout(Duration::ZERO),
            d(ms(4000)).drain(ms(3900)),
            d(ms(4000)).drift_ppm(1_000_000),
            d(ms(4000)).drift_ppm(u32::MAX),
        ] {
            let error = bad.build().expect_err("must be refused");
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn the_deadline_counts_from_the_send() {
        let t = Timing::builder(ms(10_000))
            .margin(ms(400))
            .build()
            .expect("valid");
        let sent = Moment::from_nanos(7);
        assert_eq!(t.deadline(sent, ms(10_000)), sent.after(ms(9500)));
        assert_eq!(
            t.deadline(sent, ms(20_000)),
            sent.after(ms(9500)),
            "never more than asked"
        );
        assert_eq!(
            t.deadline(sent, ms(1000)),
            sent.after(ms(590)),
            "never more than granted"
        );
        assert_eq!(t.deadline(sent, ms(100)), sent, "never before the send");
    }

    #[test]
    fn a_short_grant_is_checked_again() {
        let t = Timing::default();
        assert!(t.check_granted(ms(15_000)).is_ok());
        assert!(t.check_granted(ms(60_000)).is_ok());
        let text = t
            .check_granted(ms(9000))
            .expect_err("infeasible")
            .to_string();
        assert!(text.contains("granted by the store"), "{text}");
    }
}
