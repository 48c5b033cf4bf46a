//! I1: when the store has granted a newer term, no older one believes that it may act.
//!
//! A grant is recorded when its answer came, so it was truly given by then. What an older holder believes, its
//! deadline, is recorded earlier than it is; so no slack is needed, and no check must happen to fall into the overlap.
//!
//! A lease that an operator ends, or that a step of the store's clock beyond the margin ends, is over before its holder
//! can know. It may believe in a deadline that it can have had then, and in no later one.

use super::{Broken, Excuses, Trial};
use crate::chaos::record::Fact;

pub(super) const NAME: &str = "I1 exclusion";

pub(super) fn check(trial: &Trial<'_>, excuses: &mut Excuses) -> Option<Broken> {
    for (n, newer) in trial.terms.iter().enumerate() {
        let Some(given) = newer.first() else { continue };
        for older in &trial.terms[..n] {
            let Some(first) = older.first() else { continue };
            let upset = trial.upset_within(first.at, given.at);
            let from = upset.unwrap_or(0).max(given.at);
            // A check that was asked later and answered yes; or a belief that reaches beyond.
            let acts = older.checks.iter().find(|check| {
                check.at > from && matches!(check.fact, Fact::Check { may: true, .. })
            });
            if let Some(acts) = acts {
                let why = "a holder may act although a newer term was granted";
                return Some(trial.broken(NAME, why, [given, acts]));
            }
            let Some((until, belief)) = older.deadline() else {
                continue;
            };
            let over = older.over().is_some_and(|over| over <= given.at);
            if first.at < given.at && until > from && !over {
                let why = "a newer term was granted before the deadline of the holder";
                return Some(trial.broken(NAME, why, [first, belief, given]));
            }
            if upset.is_some() && first.at < given.at && until > given.at && !over {
                excuses.ended_in_the_store += 1;
            }
        }
    }
    None
}
