//! I1: no holder may act after a newer term was granted.

use super::{Entry, Violation, What};

/// A grant is recorded after it was made and a check before it is asked, so an answer of true that
/// is recorded after a newer grant was truly given after it.
pub(super) fn check(history: &[Entry]) -> Option<Violation> {
    let mut newest: Option<Entry> = None;
    for entry in history {
        match (entry.what, newest) {
            (What::Granted { .. }, None) => newest = Some(*entry),
            (What::Granted { .. }, Some(n)) if entry.token > n.token => newest = Some(*entry),
            (What::Checked(true), Some(n)) if entry.token < n.token && entry.at > n.at => {
                return Some(Violation {
                    invariant: "I1 exclusion",
                    why: "a holder may act although a newer term was granted".into(),
                    piece: vec![n, *entry],
                });
            }
            _ => {}
        }
    }
    None
}
