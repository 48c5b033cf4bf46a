//! I2: each grant has a larger token than every grant that was there before it was asked for.

use super::{Entry, Violation, What};

pub(super) fn check(history: &[Entry]) -> Option<Violation> {
    let grants = || {
        history
            .iter()
            .filter(|e| matches!(e.what, What::Granted { .. }))
    };
    for (n, later) in grants().enumerate() {
        let What::Granted { since } = later.what else {
            continue;
        };
        // Two grants with one token are wrong in any order.
        let wrong = grants().take(n).find(|earlier| {
            earlier.token == later.token || (earlier.at <= since && earlier.token > later.token)
        });
        if let Some(earlier) = wrong {
            return Some(Violation {
                invariant: "I2 token order",
                why: "a grant whose token is not larger than that of an earlier one".into(),
                piece: vec![*earlier, *later],
            });
        }
    }
    None
}
