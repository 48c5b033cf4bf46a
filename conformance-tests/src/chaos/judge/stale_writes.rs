//! I3: after a write under some token, none under a lower one is taken; and nobody writes under a token that no
//! store granted.

use super::{Broken, Trial};
use crate::chaos::record::{Fact, Record};

pub(super) const NAME: &str = "I3 stale writes";

pub(super) fn check(trial: &Trial<'_>) -> Option<Broken> {
    let mut highest: Option<(u64, &Record)> = None;
    for record in &trial.evidence.records {
        let Fact::Wrote { token, taken: true } = record.fact else {
            continue;
        };
        match highest {
            Some((before, write)) if token < before => {
                let why = "a stale write was taken after a newer one";
                return Some(trial.broken(NAME, why, [write, record]));
            }
            _ => highest = Some((token, record)),
        }
        let granted = |term: &&super::Term| term.token == token && term.granted.is_some();
        if !trial.evidence.command && !trial.terms.iter().any(|term| granted(&term)) {
            let why = "a write was taken under a token that no store had granted";
            return Some(trial.broken(NAME, why, [record]));
        }
    }
    None
}
