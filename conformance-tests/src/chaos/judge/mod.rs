//! Decides from the records alone whether a run was right: seven invariants, one file each.
//!
//! Excuses are few, named and counted ([`Excuses`]): nothing that is forgiven is hidden.

mod exclusion;
mod left_behind;
pub(super) mod liveness;
mod overlap;
mod stale_writes;
mod timely_loss;
mod token_order;

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::Timing;
use lock_core::clock::Moment;
use serde::{Deserialize, Serialize};

use super::engine::{ENGINE, Evidence, Window};
use super::record::{Fact, Nanos, Record};
use super::schedule::Kind;

/// What a busy machine may add to an instant that a thread of a running process is to keep, beyond the stalls
/// that were seen.
pub(super) const SLACK: Duration = Duration::from_millis(150);

/// A broken invariant, with the smallest piece of the history that shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Broken {
    /// Which: `I1 exclusion` to `I7 nothing left behind`.
    pub invariant: String,
    /// What is wrong with the piece.
    pub why: String,
    /// The records that show it, one line each.
    pub piece: Vec<String>,
}

/// What was forgiven, and how often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Excuses {
    /// Work that stood still with its process while the next leader's began, and ended soon after it went on.
    pub frozen_work: u64,
    /// The longest time that such work ran after its process went on, in milliseconds.
    pub frozen_work_longest_ms: u64,
    /// Terms that an operator, or a step of the store's clock beyond the margin, ended in the store before the holder
    /// could know: it may believe in the deadline that it had then, and no later one.
    pub ended_in_the_store: u64,
    /// Runs at whose end the name was held, until its expiry, by a try that was on its way when its process ended.
    pub late_tries: u64,
    /// Runs at whose end the last lease stood until its expiry: its release was sent, and not carried out in time.
    pub late_releases: u64,
    /// How often a process was kept from running for longer than 20 ms without a fault of ours.
    pub machine_stalls: u64,
    /// The longest such stall, in milliseconds.
    pub machine_stall_longest_ms: u64,
    /// All of them together, in milliseconds.
    pub machine_stalls_total_ms: u64,
}

/// One term, from all that its candidate wrote of it.
#[derive(Debug, Default)]
pub(super) struct Term {
    pub(super) token: u64,
    pub(super) who: u32,
    pub(super) life: u32,
    /// When the store's grant was known.
    pub(super) granted: Option<Record>,
    pub(super) began: Option<Record>,
    pub(super) ended: Option<Record>,
    pub(super) lost: Option<Record>,
    /// When its release was first sent.
    pub(super) released: Option<Record>,
    /// When a request that may have restarted its countdown was last sent.
    pub(super) renewed: Option<Nanos>,
    /// The checks, with what each believed.
    pub(super) checks: Vec<Record>,
    /// When its process was killed.
    pub(super) killed: Option<Record>,
}

impl Term {
    /// The last deadline that it believed in.
    pub(super) fn deadline(&self) -> Option<(Nanos, &Record)> {
        let believed = self.checks.iter().filter_map(|check| match check.fact {
            Fact::Check {
                until: Some(until), ..
            } => Some((until, check)),
            _ => None,
        });
        believed.max_by_key(|(until, _)| *until)
    }

    /// The last time that it was allowed to act.
    pub(super) fn last_allowed(&self) -> Option<&Record> {
        let allowed = |check: &&Record| matches!(check.fact, Fact::Check { may: true, .. });
        self.checks.iter().rev().find(allowed)
    }

    /// When it was first there.
    pub(super) fn first(&self) -> Option<&Record> {
        [&self.granted, &self.began]
            .into_iter()
            .flatten()
            .min_by_key(|record| record.at)
    }

    /// When it was over by itself: its work had ended, or its loss was told.
    pub(super) fn over(&self) -> Option<Nanos> {
        [&self.ended, &self.lost, &self.released]
            .into_iter()
            .flatten()
            .map(|record| record.at)
            .min()
    }
}

/// The case before the judge.
pub(super) struct Trial<'a> {
    pub(super) evidence: &'a Evidence,
    pub(super) timing: &'a Timing,
    /// By their tokens; two of one token by their candidates.
    pub(super) terms: Vec<Term>,
    /// When a process did not run.
    stalls: BTreeMap<(u32, u32), Vec<(Nanos, Nanos)>>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(evidence: &'a Evidence, timing: &'a Timing) -> Self {
        let mut terms: BTreeMap<(u64, u32, u32), Term> = BTreeMap::new();
        let mut stalls: BTreeMap<(u32, u32), Vec<(Nanos, Nanos)>> = BTreeMap::new();
        for record in &evidence.records {
            let life = (record.who, record.life);
            let mut note = |token: u64, into: fn(&mut Term, &Record)| {
                let term = terms.entry((token, life.0, life.1)).or_default();
                (term.token, term.who, term.life) = (token, life.0, life.1);
                into(term, record);
            };
            match &record.fact {
                Fact::Granted { token, .. } => note(*token, |term, record| {
                    let Fact::Granted { since, .. } = record.fact else {
                        return;
                    };
                    term.granted.get_or_insert_with(|| record.clone());
                    term.renewed = term.renewed.max(Some(since));
                }),
                Fact::Began { token } => {
                    note(*token, |term, record| term.began = Some(record.clone()));
                }
                Fact::Check { token, .. } => {
                    note(*token, |term, record| term.checks.push(record.clone()));
                }
                Fact::Lost { token } => {
                    note(*token, |term, record| term.lost = Some(record.clone()));
                }
                Fact::Ended { token } => {
                    note(*token, |term, record| term.ended = Some(record.clone()));
                }
                Fact::Sent { op, tokens } if op == "release" => {
                    for token in tokens {
                        note(*token, |term, record| {
                            term.released.get_or_insert_with(|| record.clone());
                        });
                    }
                }
                Fact::Sent { op, tokens } if op == "renew" => {
                    for token in tokens {
                        note(*token, |term, record| term.renewed = Some(record.at));
                    }
                }
                Fact::Stalled { from } => {
                    stalls.entry(life).or_default().push((*from, record.at));
                }
                Fact::Killed => {
                    for term in terms.values_mut() {
                        if (term.who, term.life) == life && term.ended.is_none() {
                            term.killed = Some(record.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        Self {
            evidence,
            timing,
            terms: terms.into_values().collect(),
            stalls,
        }
    }

    /// When processes of this candidate were there.
    pub(super) fn lives(&self, who: u32) -> Vec<(Nanos, Nanos)> {
        let mut lives: Vec<(Nanos, Nanos)> = Vec::new();
        for record in self.evidence.records.iter().filter(|r| r.who == who) {
            match record.fact {
                Fact::Up => lives.push((record.at, self.evidence.to)),
                Fact::Down | Fact::Killed => {
                    if let Some(life) = lives.last_mut() {
                        life.1 = life.1.min(record.at);
                    }
                }
                _ => {}
            }
        }
        lives
    }

    /// How long this process ran from one instant to another, without the time in which it stood still.
    pub(super) fn ran(&self, who: u32, life: u32, from: Nanos, to: Nanos) -> Duration {
        let stalls = self.stalls.get(&(who, life));
        let still: u64 = stalls
            .into_iter()
            .flatten()
            .map(|(begin, end)| (*end).min(to).saturating_sub((*begin).max(from)))
            .sum();
        Duration::from_nanos(to.saturating_sub(from).saturating_sub(still))
    }

    /// When this candidate, in whatever life, or the engine did not run although it could have.
    fn stalls_of(&self, who: u32) -> impl Iterator<Item = (Nanos, Nanos)> {
        let of = move |(it, _): &(u32, u32)| *it == who || *it == ENGINE;
        let keys = self.stalls.iter().filter(move |(key, _)| of(key));
        keys.flat_map(|(_, spans)| spans.iter().copied())
    }

    /// When a record's piece is to be shown: since the beginning of the run.
    pub(super) fn show(&self, record: &Record) -> String {
        let at = record.at.saturating_sub(self.evidence.from);
        let seconds = Duration::from_nanos(at).as_secs_f64();
        let who = if record.who == ENGINE {
            "engine".to_owned()
        } else {
            format!("candidate {} (life {})", record.who, record.life)
        };
        let mut what = record.fact.clone();
        // Instants inside a fact, too.
        let from = self.evidence.from;
        match &mut what {
            Fact::Check { until, .. } => *until = until.map(|at| at.saturating_sub(from)),
            Fact::Granted { since: at, .. } | Fact::Stalled { from: at } => {
                *at = at.saturating_sub(from);
            }
            _ => {}
        }
        format!("{seconds:>12.6} s  {who}  {what}")
    }

    pub(super) fn broken<'r>(
        &self,
        invariant: &str,
        why: impl Into<String>,
        piece: impl IntoIterator<Item = &'r Record>,
    ) -> Broken {
        Broken {
            invariant: invariant.to_owned(),
            why: why.into(),
            piece: piece.into_iter().map(|record| self.show(record)).collect(),
        }
    }

    /// When an operator, or a step of the store's clock that is larger than the margin, ended the lease that was
    /// there: from the order to its end. And what a holder of that time may still believe, having asked before.
    pub(super) fn upset_within(&self, older: Nanos, newer: Nanos) -> Option<Nanos> {
        let margin = self.timing.margin().as_millis();
        let ends = |kind: Kind| match kind {
            Kind::Revoke => true,
            Kind::Step(by) => by > 0 && by.unsigned_abs() as u128 > margin,
            _ => false,
        };
        let windows = self.windows(None).filter(|window| ends(window.kind));
        let within = windows.filter(|window| older < window.to && window.from < newer);
        let usable = self.timing.deadline(Moment::START, self.timing.ttl());
        // The last one: an order that was still under way when the older term began had ended the one before it.
        within.map(|window| window.to + usable.as_nanos()).max()
    }

    /// The windows of this candidate, or of the store (`None`).
    fn windows(&self, on: Option<u32>) -> impl Iterator<Item = &Window> {
        self.evidence.windows.iter().filter(move |w| w.on == on)
    }
}

/// Judges a run: at most one violation per invariant, and what was forgiven.
pub(super) fn judge(trial: &Trial<'_>) -> (Vec<Broken>, Excuses) {
    let mut excuses = Excuses {
        late_tries: trial.evidence.late_try.into(),
        late_releases: trial.evidence.late_release.into(),
        ..Excuses::default()
    };
    let found = [
        exclusion::check(trial, &mut excuses),
        token_order::check(trial),
        stale_writes::check(trial),
        timely_loss::check(trial),
        overlap::check(trial, &mut excuses),
        liveness::check(trial),
        left_behind::check(trial),
    ];
    for ((who, _), spans) in &trial.stalls {
        for (from, to) in spans {
            let ours = trial
                .windows(Some(*who))
                .any(|window| window.kind.stops() && window.from <= *to && *from <= window.to);
            if !ours {
                let ms = Duration::from_nanos(to - from).as_millis() as u64;
                excuses.machine_stalls += 1;
                excuses.machine_stalls_total_ms += ms;
                excuses.machine_stall_longest_ms = excuses.machine_stall_longest_ms.max(ms);
            }
        }
    }
    (found.into_iter().flatten().collect(), excuses)
}

/// The names of the invariants, in the order of [`judge`].
pub(super) const INVARIANTS: [&str; 7] = [
    exclusion::NAME,
    token_order::NAME,
    stale_writes::NAME,
    timely_loss::NAME,
    overlap::NAME,
    liveness::NAME,
    left_behind::NAME,
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn record(at: u64, who: u32, fact: Fact) -> Record {
        let at = at * MS;
        Record {
            at,
            who,
            life: 1,
            fact,
        }
    }

    fn granted(at: u64, who: u32, token: u64) -> Record {
        let (since, nonce) = ((at - 1) * MS, token.to_string());
        record(
            at,
            who,
            Fact::Granted {
                token,
                nonce,
                since,
            },
        )
    }

    fn acts(at: u64, who: u32, token: u64, until: u64) -> Record {
        let until = Some(until * MS);
        record(
            at,
            who,
            Fact::Check {
                token,
                may: true,
                until,
            },
        )
    }

    fn revoked(from: u64, to: u64) -> Window {
        Window {
            on: None,
            kind: Kind::Revoke,
            from: from * MS,
            to: to * MS,
        }
    }

    fn exclusion(records: Vec<Record>, windows: Vec<Window>) -> Option<Broken> {
        let evidence = Evidence {
            records,
            windows,
            from: 0,
            to: 9000 * MS,
            left: Vec::new(),
            lingers: Duration::ZERO,
            command: false,
            late_try: false,
            late_release: false,
            broken: Vec::new(),
        };
        let timing = Timing::for_ttl(Duration::from_millis(1500)).unwrap();
        let trial = Trial::new(&evidence, &timing);
        exclusion::check(&trial, &mut Excuses::default())
    }

    #[test]
    fn a_revoked_holder_may_believe_what_it_could_and_no_more() {
        // The first order is still under way when the holder's term begins: it ended the one before.
        let windows = vec![revoked(90, 110), revoked(3000, 3005)];
        let early = vec![
            granted(100, 1, 5),
            acts(2900, 1, 5, 4000),
            granted(3004, 2, 6),
            acts(3300, 1, 5, 4000),
        ];
        assert_eq!(exclusion(early.clone(), windows.clone()), None);
        let mut late = early.clone();
        late.push(acts(4600, 1, 5, 5000));
        assert!(exclusion(late, windows).is_some(), "renewed after its end");
        assert!(exclusion(early, Vec::new()).is_some(), "nobody ended it");
    }
}
