//! What the demonstration has seen, and whether it was right.

use std::time::Duration;

use lockkit::Timing;
use lockkit::clock::Moment;

use super::worker::Beat;
use crate::span;

/// How long after the ttl a crash may be taken over.
const CRASH_SLACK: Duration = Duration::from_millis(100);
/// How long a clean hand-over may take.
const CLEAN_LIMIT: Duration = Duration::from_millis(50);
/// How long the work may outlive its killed wrapper.
const ORPHAN_LIMIT: Duration = Duration::from_secs(1);

/// The signs of work of one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    token: u64,
    first: u64,
    last: u64,
    beats: u64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// The tokens in the order in which they were won.
    tokens: Vec<u64>,
    work: Vec<Work>,
    /// The leader's last renewal before it was killed.
    pub(super) renewed: Option<u64>,
    pub(super) killed: Option<u64>,
    pub(super) taken_over: Option<u64>,
    /// When the work of the stopped leader had ended.
    pub(super) ended: Option<u64>,
    pub(super) handed_over: Option<u64>,
}

impl Record {
    pub(super) fn gained(&mut self, token: u64) {
        self.tokens.push(token);
    }

    pub(super) fn beat(&mut self, beat: Beat) {
        match self.work.iter_mut().find(|work| work.token == beat.token) {
            Some(work) => {
                work.first = work.first.min(beat.boot_ns);
                work.last = work.last.max(beat.boot_ns);
                work.beats += 1;
            }
            None => self.work.push(Work {
                token: beat.token,
                first: beat.boot_ns,
                last: beat.boot_ns,
                beats: 1,
            }),
        }
    }

    pub(super) fn beats(&self, token: u64) -> u64 {
        self.work
            .iter()
            .find(|work| work.token == token)
            .map_or(0, |work| work.beats)
    }

    /// From the last renewal that the store saw to the next leader.
    pub(super) fn crash_takeover(&self) -> Option<Duration> {
        between(self.renewed, self.taken_over)
    }

    /// From the end of the stopped leader's work to the next leader.
    pub(super) fn clean_takeover(&self) -> Option<Duration> {
        between(self.ended, self.handed_over)
    }

    /// What was not as promised; nothing, if all is well.
    pub(super) fn faults(&self, timing: Timing) -> Vec<String> {
        let mut faults = Vec::new();
        if self.tokens.len() != 3 || self.tokens.windows(2).any(|pair| pair[0] >= pair[1]) {
            faults.push(format!(
                "the tokens do not grow over three terms: {:?}",
                self.tokens
            ));
        }
        let mut work = self.work.clone();
        work.sort_unstable_by_key(|work| work.token);
        for token in &self.tokens {
            if self.beats(*token) == 0 {
                faults.push(format!("no work was seen under token {token}"));
            }
        }
        for pair in work.windows(2) {
            if pair[0].last >= pair[1].first {
                faults.push(format!(
                    "two worked at once: token {} for {} more after {} had begun",
                    pair[0].token,
                    span::show(Duration::from_nanos(pair[0].last - pair[1].first)),
                    pair[1].token,
                ));
            }
        }
        if let (Some(killed), Some(first)) = (self.killed, work.first()) {
            let outlived = Duration::from_nanos(first.last.saturating_sub(killed));
            if outlived > ORPHAN_LIMIT {
                faults.push(format!(
                    "the work outlived its killed wrapper by {}",
                    span::show(outlived)
                ));
            }
        }
        let limits = [
            (
                "crash takeover",
                self.crash_takeover(),
                timing.ttl() + CRASH_SLACK,
            ),
            ("clean takeover", self.clean_takeover(), CLEAN_LIMIT),
        ];
        for (what, measured, limit) in limits {
            match measured {
                None => faults.push(format!("no {what} was seen")),
                Some(took) if took > limit => faults.push(format!(
                    "the {what} took {}, more than {}",
                    exact(took),
                    exact(limit)
                )),
                Some(_) => {}
            }
        }
        faults
    }
}

/// A span in milliseconds.
pub(super) fn exact(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1000.0)
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<Duration> {
    Some(Moment::from_nanos(to?).since(Moment::from_nanos(from?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn good() -> Record {
        let mut record = Record::default();
        for (token, first, last) in [(3, 0, 100), (5, 5_000, 6_000), (9, 6_010, 7_000)] {
            record.gained(token);
            for at in [first, last] {
                record.beat(Beat {
                    token,
                    boot_ns: at * MS,
                });
            }
        }
        record.renewed = Some(50 * MS);
        record.killed = Some(100 * MS);
        record.taken_over = Some(5_000 * MS);
        record.ended = Some(6_000 * MS);
        record.handed_over = Some(6_005 * MS);
        record
    }

    fn faults(record: &Record) -> Vec<String> {
        record.faults(Timing::for_ttl(Duration::from_secs(5)).expect("valid"))
    }

    #[test]
    fn every_kind_of_fault_is_seen() {
        assert_eq!(faults(&good()), [""; 0]);
        type Spoil = fn(&mut Record);
        let spoils: [(&str, Spoil); 6] = [
            ("tokens", |r| r.tokens.swap(0, 1)),
            ("at once", |r| {
                r.beat(Beat {
                    token: 3,
                    boot_ns: 5_500 * MS,
                })
            }),
            ("outlived", |r| {
                r.beat(Beat {
                    token: 3,
                    boot_ns: 1_200 * MS,
                })
            }),
            ("crash takeover", |r| r.taken_over = Some(5_151 * MS)),
            ("clean takeover", |r| r.handed_over = Some(6_051 * MS)),
            ("no clean takeover", |r| r.handed_over = None),
        ];
        for (what, spoil) in spoils {
            let mut record = good();
            spoil(&mut record);
            let faults = faults(&record);
            assert!(
                faults.iter().any(|f| f.contains(what)),
                "{what}: {faults:?}"
            );
        }
    }
}
