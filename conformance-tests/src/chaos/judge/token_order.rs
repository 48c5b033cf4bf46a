//! I2: each grant has a larger token than every grant that was there before it was asked for.

use super::{Broken, Trial};
use crate::chaos::record::{Fact, Record};

pub(super) const NAME: &str = "I2 token order";

pub(super) fn check(trial: &Trial<'_>) -> Option<Broken> {
    let mut earlier: Vec<(u64, &Record)> = Vec::new();
    let mut seen: Vec<(u64, u32, u32, &str)> = Vec::new();
    for record in &trial.evidence.records {
        let Fact::Granted {
            token,
            nonce,
            since,
        } = &record.fact
        else {
            continue;
        };
        // A claim asked about again by the same process: the same term.
        let term = (*token, record.who, record.life, nonce.as_str());
        if seen.contains(&term) {
            continue;
        }
        let wrong = earlier
            .iter()
            .find(|(other, before)| other == token || (before.at <= *since && other > token));
        if let Some((_, before)) = wrong {
            let why = "a grant whose token is not larger than that of an earlier one";
            return Some(trial.broken(NAME, why, [*before, record]));
        }
        seen.push(term);
        earlier.push((*token, record));
    }
    None
}
