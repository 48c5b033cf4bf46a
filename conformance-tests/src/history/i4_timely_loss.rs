//! I4: nobody acts past the deadline, and the loss is told by then, whatever the store does.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Bounds, Entry, Violation, What};

pub(super) fn check(history: &[Entry], end: Duration, bounds: &Bounds) -> Option<Violation> {
    // The last deadline of each term that has not ended.
    let mut open: BTreeMap<_, (Duration, Entry)> = BTreeMap::new();
    let violation = |why: &str, piece: Vec<Entry>| {
        Some(Violation {
            invariant: "I4 timely loss",
            why: why.into(),
            piece,
        })
    };
    for entry in history {
        let term = (entry.who, entry.token);
        let late = open
            .get(&term)
            .filter(|(deadline, _)| entry.at > *deadline + bounds.slack);
        match (entry.what, late) {
            (What::Checked(true), Some((_, set))) => {
                return violation("a holder acts past its deadline", vec![*set, *entry]);
            }
            (What::Lost, Some((_, set))) => {
                return violation("the loss was told after the deadline", vec![*set, *entry]);
            }
            (What::Lost | What::Released, None) => drop(open.remove(&term)),
            (What::Released, Some((_, set))) => {
                return violation("the term ended after its deadline", vec![*set, *entry]);
            }
            (What::Deadline(deadline), _) => drop(open.insert(term, (deadline, *entry))),
            _ => {}
        }
    }
    open.into_values()
        .find(|(deadline, _)| end > *deadline + bounds.slack)
        .and_then(|(_, set)| violation("the loss was never told", vec![set]))
}
