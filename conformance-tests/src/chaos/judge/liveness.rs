//! I6: while nobody leads, a candidate that nothing has disturbed for the bound, with a store that nothing has
//! disturbed for it either, leads.
//!
//! The time in which the machine kept that candidate or the engine from running does not count.

use std::time::Duration;

use super::{Broken, Trial};
use crate::chaos::record::{Fact, Nanos, Record};
use crate::chaos::schedule::Kind;

pub(super) const NAME: &str = "I6 liveness";

/// What a healthy candidate may need at most: the rest of a lease whose holder is gone (a whole one, when the store
/// renewed it as the last thing before it was paused), a poll or a backoff, a request that fails and one that succeeds.
pub(in crate::chaos) fn bound(trial: &Trial<'_>) -> Duration {
    let t = trial.timing;
    let stands = t.ttl() + trial.evidence.lingers;
    stands + t.ttl() / 100 + t.poll_every() + t.request_timeout() * 2 + t.margin() + super::SLACK
}

pub(in crate::chaos) fn check(trial: &Trial<'_>) -> Option<Broken> {
    let bound = bound(trial);
    for (from, to, last) in vacancies(trial) {
        for who in candidates(trial) {
            for (begin, end) in undisturbed(trial, who) {
                let (begin, end) = (begin.max(from), end.min(to));
                let still: u64 = union(trial.stalls_of(who))
                    .into_iter()
                    .map(|(a, b)| b.min(end).saturating_sub(a.max(begin)))
                    .sum();
                let waited = Duration::from_nanos(end.saturating_sub(begin).saturating_sub(still));
                if waited > bound {
                    let why = format!(
                        "nobody led for {waited:?} although nothing disturbed candidate {who}; the bound is {bound:?}"
                    );
                    return Some(trial.broken(NAME, why, last));
                }
            }
        }
    }
    None
}

/// Spans of a run in which nobody led, with the last sign of the leader before.
pub(in crate::chaos) fn vacancies<'t>(
    trial: &'t Trial<'_>,
) -> Vec<(Nanos, Nanos, Option<&'t Record>)> {
    let mut reigns: Vec<(Nanos, &Record)> = trial
        .terms
        .iter()
        .filter_map(|term| Some((term.began.as_ref()?.at, term.last_allowed()?)))
        .collect();
    reigns.sort_by_key(|(began, _)| *began);
    let mut spans = Vec::new();
    let mut last: (Nanos, Option<&Record>) = (trial.evidence.from, None);
    for (began, until) in reigns {
        if began > last.0 {
            spans.push((last.0, began, last.1));
        }
        if until.at > last.0 {
            last = (until.at, Some(until));
        }
    }
    if last.0 < trial.evidence.to {
        spans.push((last.0, trial.evidence.to, last.1));
    }
    spans
}

fn candidates(trial: &Trial<'_>) -> std::collections::BTreeSet<u32> {
    let ups = trial.evidence.records.iter();
    let up = ups.filter(|record| record.fact == Fact::Up);
    up.map(|record| record.who).collect()
}

/// When this candidate ran, and neither it nor the store suffered anything that may make it late.
fn undisturbed(trial: &Trial<'_>, who: u32) -> Vec<(Nanos, Nanos)> {
    let mut lives = trial.lives(who);
    let windows = trial.windows(Some(who)).chain(trial.windows(None));
    for window in windows.filter(|window| window.kind.disturbs(window.on.is_none(), trial.timing)) {
        lives = lives
            .into_iter()
            .flat_map(|(a, b)| [(a, b.min(window.from)), (a.max(window.to), b)])
            .filter(|(a, b)| a < b)
            .collect();
    }
    lives
}

/// Spans without what two of them share.
fn union(spans: impl Iterator<Item = (Nanos, Nanos)>) -> Vec<(Nanos, Nanos)> {
    let mut spans: Vec<(Nanos, Nanos)> = spans.collect();
    spans.sort_unstable();
    let mut whole: Vec<(Nanos, Nanos)> = Vec::new();
    for (from, to) in spans {
        match whole.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => whole.push((from, to)),
        }
    }
    whole
}

/// Whether some candidate was undisturbed over this span; and whether nothing but its own end kept the one that
/// released from the store.
pub(in crate::chaos) fn calm(
    trial: &Trial<'_>,
    from: Nanos,
    to: Nanos,
    released: Option<u32>,
) -> bool {
    let cut_off = |who: u32| {
        trial.windows(Some(who)).any(|window| {
            window.kind != Kind::Restart
                && window.kind.disturbs(window.on.is_none(), trial.timing)
                && window.from <= from
                && from <= window.to
        })
    };
    let calm = |who: u32| {
        undisturbed(trial, who)
            .iter()
            .any(|(a, b)| *a <= from && to <= *b)
    };
    !released.is_some_and(cut_off) && candidates(trial).into_iter().any(calm)
}
