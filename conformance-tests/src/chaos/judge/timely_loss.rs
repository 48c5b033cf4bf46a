//! I4: nobody acts past the deadline; by then the work has ended or the loss is told, whatever the store does.
//!
//! A process that stood still could tell nobody: only the time counts in which it ran.

use super::{Broken, SLACK, Trial};
use crate::chaos::record::{Fact, Record};

pub(super) const NAME: &str = "I4 timely loss";

pub(super) fn check(trial: &Trial<'_>) -> Option<Broken> {
    for term in &trial.terms {
        let mut deadline: Option<(u64, &Record)> = None;
        for check in &term.checks {
            let Fact::Check { may, until, .. } = check.fact else {
                continue;
            };
            match deadline {
                Some((at, set)) if may && check.at > at && until.is_none() => {
                    let why = "a holder acts past its deadline";
                    return Some(trial.broken(NAME, why, [set, check]));
                }
                _ => {}
            }
            if let Some(until) = until {
                deadline = deadline.max_by_until(until, check);
            }
        }
        let Some((deadline, set)) = deadline else {
            continue;
        };
        let end = term.killed.as_ref().map_or(trial.evidence.to, |k| k.at);
        let ran_late = |at: u64| trial.ran(term.who, term.life, deadline, at) > SLACK;
        match (&term.ended, &term.lost) {
            (Some(ended), _) if ran_late(ended.at) => {
                let why = "the work went on after its deadline";
                return Some(trial.broken(NAME, why, [set, ended]));
            }
            (_, Some(lost)) if ran_late(lost.at) => {
                let why = "the loss was told after the deadline";
                return Some(trial.broken(NAME, why, [set, lost]));
            }
            (None, None) if ran_late(end) => {
                let why = "the loss was never told and the work did not end";
                return Some(trial.broken(NAME, why, [set]));
            }
            (None, Some(lost)) if ran_late(end) => {
                let why = "the term was lost and the work did not end";
                return Some(trial.broken(NAME, why, [set, lost]));
            }
            _ => {}
        }
    }
    None
}

/// The later of two beliefs.
trait Later<'r> {
    fn max_by_until(self, until: u64, check: &'r Record) -> Self;
}

impl<'r> Later<'r> for Option<(u64, &'r Record)> {
    fn max_by_until(self, until: u64, check: &'r Record) -> Self {
        match self {
            Some((before, _)) if before >= until => self,
            _ => Some((until, check)),
        }
    }
}
