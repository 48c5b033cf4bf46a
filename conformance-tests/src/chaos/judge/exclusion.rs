//! I1: when the store has granted a newer term, no older one believes that it may act.
//!
//! A grant is recorded when its answer came, so it was truly given by then. What an older holder believes, its
//! deadline, is recorded earlier than it is; so no slack is needed, and no check must happen to fall into the overlap.

use super::{Broken, Trial};
use crate::chaos::record::Fact;

pub(super) const NAME: &str = "I1 exclusion";

pub(super) fn check(trial: &Trial<'_>) -> Option<Broken> {
    for (n, newer) in trial.terms.iter().enumerate() {
        let Some(given) = newer.first() else { continue };
        for older in &trial.terms[..n] {
            // A check that was asked later and answered yes; or a belief that reaches beyond.
            let acts = older.checks.iter().find(|check| {
                check.at > given.at && matches!(check.fact, Fact::Check { may: true, .. })
            });
            if let Some(acts) = acts {
                let why = "a holder may act although a newer term was granted";
                return Some(trial.broken(NAME, why, [given, acts]));
            }
            let (Some(first), Some((until, belief))) = (older.first(), older.deadline()) else {
                continue;
            };
            let over = older.over().is_some_and(|over| over <= given.at);
            if first.at < given.at && until > given.at && !over {
                let why = "a newer term was granted before the deadline of the holder";
                return Some(trial.broken(NAME, why, [first, belief, given]));
            }
        }
    }
    None
}
