//! What a row means, by the server's clock and what is known of the peers'. No I/O.
//!
//! As contender: a row of a peer is free once its expiry is over by all that may be wrong with it (`slack`:
//! the skew and what the column rounds away), and only if the peer's clock is known not to be slow. That is
//! shown by a write that was seen while it was still fresh. Without it the row must have stood
//! still for as long as a lease of theirs, in which a peer that lives would have renewed it. As holder: an expiry
//! that no clock on a wall within the skew reads as past before the time granted is over, also when
//! clocks are put back meanwhile.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use lock_core::{Error, ErrorKind, Holder, LeaseState, Metadata, Owner, Result, Token};

use super::Row;
use super::config::PeerTable;
use super::holder::Mine;

pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// What was seen of a row of a peer.
#[derive(Debug)]
pub(super) struct Witness {
    row: Row,
    /// The server's clock when it was seen like this first, and last.
    first: i64,
    last: i64,
    /// The holder's clock is known not to be slow.
    trusted: bool,
    /// It is known to be.
    slow: bool,
}

#[derive(Debug)]
pub(super) struct Judge {
    slack: i64,
    /// What the columns round to.
    step: i64,
    lease: i64,
    /// `None` where the columns know their zone.
    zone: Option<TimeZone>,
}

impl Judge {
    pub(super) fn new(peers: &PeerTable, step: Duration, zoned: bool) -> Self {
        Self {
            slack: micros(peers.skew) + micros(step),
            step: micros(step),
            lease: micros(peers.lease),
            zone: (!zoned).then(|| peers.zone.zone.clone()),
        }
    }

    /// By how much a grant is shorter than what was asked.
    pub(super) fn slack(&self) -> Duration {
        span(self.slack)
    }

    fn at(&self, instant: i64) -> Timestamp {
        Timestamp::from_microsecond(instant).unwrap_or(Timestamp::MAX)
    }

    /// What a clock on the peers' wall shows at this instant.
    fn wall(&self, instant: i64) -> i64 {
        let zone = self.zone.as_ref();
        let offset = zone.map_or(0, |z| z.to_offset(self.at(instant)).seconds());
        instant + i64::from(offset) * 1_000_000
    }

    /// The first and the last instant at which it shows this.
    fn instants(&self, wall: i64) -> (i64, i64) {
        let Some(zone) = &self.zone else {
            return (wall, wall);
        };
        let shown = zone.to_ambiguous_timestamp(TimeZone::UTC.to_datetime(self.at(wall)));
        // Out of the calendar's range: as it is written.
        let micros = |t: Result<Timestamp, _>| t.map_or(wall, Timestamp::as_microsecond);
        let (a, b) = (micros(shown.earlier()), micros(shown.later()));
        (a.min(b), a.max(b))
    }

    /// A time that is not after this one.
    pub(super) fn written(&self, instant: i64) -> i64 {
        let wall = self.wall(instant);
        wall - wall.rem_euclid(self.step)
    }

    /// What to write so that nobody reads a lease of `ttl` as expired earlier.
    pub(super) fn expiry(&self, now: i64, ttl: Duration) -> i64 {
        let end = now + micros(ttl);
        let mut latest = self.wall(end);
        if let Some(zone) = &self.zone {
            // A slow clock is put back later.
            let changes = zone.following(self.at(now - self.slack));
            for change in changes.map(|c| c.timestamp().as_microsecond()) {
                if change > end + self.slack {
                    break;
                }
                latest = latest.max(self.wall(change - 1) + 1);
            }
        }
        latest + (self.step - latest.rem_euclid(self.step)) % self.step
    }

    /// Until when a row of ours counts.
    pub(super) fn end(&self, row: &Row) -> i64 {
        self.instants(row.expires).1
    }

    /// The token of a new term that takes this row over.
    pub(super) fn next(row: Option<&Row>, now: i64, least: Option<Token>) -> Result<Token> {
        let mine = row.and_then(|r| Mine::read(&r.holder));
        let before = row.map_or(0, |r| r.version);
        let token = u64::try_from(now.max(before.saturating_add(1))).unwrap_or(1);
        let token = token.max(mine.map_or(1, |m| m.token.get() + 1));
        Token::new(token.max(least.map_or(1, Token::get)))
    }

    /// The state of a row: expired is what may be taken.
    pub(super) fn state(
        &self,
        row: &Row,
        now: i64,
        witness: &mut Option<Witness>,
    ) -> Result<LeaseState> {
        if let Some(mine) = Mine::read(&row.holder) {
            *witness = None;
            if mine.nonce.is_none() {
                return Ok(LeaseState::Free {
                    token: mine.token,
                    note: Metadata::default(),
                });
            }
            let holder = self.holder(row, &mine.owner, mine.token, self.end(row) - now);
            return Ok(told(holder));
        }
        let witness = self.saw(row, now, witness);
        if self.instants(row.acquired).0 > now + self.slack {
            return Err(conflict(row, "ahead of"));
        }
        if witness.slow {
            return Err(conflict(row, "behind"));
        }
        let mut free = self.end(row) + self.slack;
        if !witness.trusted {
            free = free.max(witness.first + self.lease);
        }
        let none = Token::new(0)?;
        Ok(told(self.holder(row, &row.holder, none, free + 1 - now)))
    }

    /// When the row was written at the earliest and at the latest, by the peer's clock.
    fn write(&self, row: &Row) -> (i64, i64) {
        let (acquired, expires) = (self.instants(row.acquired), self.instants(row.expires));
        (
            acquired.0.max(expires.0 - self.lease),
            acquired.1.max(expires.1 - self.lease),
        )
    }

    fn saw<'a>(&self, row: &Row, now: i64, seen: &'a mut Option<Witness>) -> &'a Witness {
        let (earliest, latest) = self.write(row);
        let new = Witness {
            row: row.clone(),
            first: now,
            last: now,
            trusted: false,
            slow: false,
        };
        let was = seen.replace(new);
        let witness = seen.get_or_insert_with(|| unreachable!("put there above"));
        if let Some(was) = was {
            if was.row == *row {
                (witness.first, witness.slow) = (was.first, was.slow);
            } else if was.row.version != row.version || was.row.acquired != row.acquired {
                // Written since the last look, by a clock that shows a time before that.
                witness.slow = latest + self.slack < was.last;
            }
            witness.trusted = was.trusted && was.row.holder == row.holder;
            witness.last = witness.last.max(was.last);
        }
        witness.trusted = (witness.trusted || now - earliest <= self.slack) && !witness.slow;
        witness
    }

    fn holder(&self, row: &Row, owner: &str, token: Token, remaining: i64) -> Holder {
        let owner = Owner::new(owner).or_else(|_| Owner::new("(unreadable)"));
        let ttl = span(row.expires - row.acquired);
        let version = match row.version {
            0 => row.expires,
            version => version,
        };
        Holder::new(
            owner.expect("a plain word is an owner"),
            token,
            span(remaining),
            ttl,
            version.unsigned_abs().max(1),
        )
    }
}

fn told(holder: Holder) -> LeaseState {
    if holder.remaining.is_zero() {
        LeaseState::Expired(holder)
    } else {
        LeaseState::Held(holder)
    }
}

fn conflict(row: &Row, how: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the clock of {:?} is {how} the server's by more than peer_skew, or its zone is not peer_zone; nobody of \
             ours leads until that is set right",
            row.holder
        ),
    )
    .with_retryable(true)
}

#[cfg(test)]
mod tests {
    use super::super::config::{PeerLayout, PeerZone};
    use super::*;

    const SECOND: i64 = 1_000_000;
    const LEASE: Duration = Duration::from_secs(5);

    fn judge(zone: &str, step: Duration) -> Judge {
        let peers = PeerTable::new(PeerLayout::MasterLock).with_zone(PeerZone::new(zone).unwrap());
        Judge::new(&peers, step, false)
    }

    /// An instant, in microseconds.
    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_microsecond()
    }

    fn row(judge: &Judge, written: i64) -> Row {
        Row {
            name: "a".into(),
            holder: "[host]:1".into(),
            acquired: judge.written(written),
            expires: judge.written(written + 5 * SECOND),
            version: 0,
        }
    }

    /// Whatever a peer's clock within the skew shows while a lease of ours counts, it is not past what was
    /// written: also when clocks are put back or forward meanwhile.
    #[test]
    fn no_peer_reads_a_lease_of_ours_as_expired() {
        for (zone, around) in [
            ("Europe/Berlin", "2026-10-25T01:00:00Z"),
            ("Europe/Berlin", "2026-03-29T01:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
            ("-03:30", "2026-01-01T00:00:00Z"),
        ] {
            for step in [Duration::from_millis(1), Duration::from_secs(1)] {
                let judge = judge(zone, step);
                let skew = judge.slack - judge.step;
                for tenth in -100..100 {
                    let now = at(around) + tenth * SECOND / 10 + 12_345;
                    let expires = judge.expiry(now, LEASE);
                    let end = now + micros(LEASE) - judge.slack;
                    let mut t = now;
                    while t <= end {
                        for clock in [t - skew, t, t + skew] {
                            let shown = judge.wall(clock);
                            assert!(shown <= expires, "{zone} {tenth} {shown} {expires}");
                        }
                        t += SECOND / 10;
                    }
                }
            }
        }
    }

    /// A peer's lease is not taken before it ends by its own clock, in the hour that comes twice as well.
    #[test]
    fn no_lease_of_a_peer_is_taken_early() {
        let judge = judge("Europe/Berlin", Duration::from_secs(1));
        for ahead in [-SECOND, 0, SECOND] {
            for minutes in -70..70 {
                let written = at("2026-10-25T01:00:00Z") + minutes * 60 * SECOND + 700_000;
                let row = row(&judge, written + ahead);
                let mut witness = None;
                for tenth in 0..200 {
                    let now = written + tenth * SECOND / 10;
                    let state = judge.state(&row, now, &mut witness).unwrap();
                    if now < written + 5 * SECOND {
                        assert!(matches!(state, LeaseState::Held(_)), "{minutes} {tenth}");
                    }
                }
                // Outside that hour it is taken when it is over.
                let late = written + 20 * SECOND;
                let state = judge.state(&row, late, &mut witness).unwrap();
                let twice = (-60..0).contains(&minutes);
                assert_eq!(matches!(state, LeaseState::Held(_)), twice, "{minutes}");
            }
        }
    }

    #[test]
    fn a_wrong_zone_is_a_wrong_clock() {
        let [theirs, ours] = ["Europe/Berlin", "UTC"].map(|z| judge(z, Duration::from_millis(1)));
        let now = at("2026-12-01T00:00:00Z");
        let error = ours.state(&row(&theirs, now), now, &mut None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let mut witness = None;
        let late = |now: i64, witness: &mut _| theirs.state(&row(&ours, now), now, witness);
        let first = late(now, &mut witness).unwrap();
        assert!(matches!(first, LeaseState::Held(_)), "not known to be slow");
        let error = late(now + SECOND, &mut witness).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
    }
}
