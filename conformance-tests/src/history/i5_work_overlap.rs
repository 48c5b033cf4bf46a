//! I5: the work of two terms never runs at once.

use super::{Entry, Violation, What};

pub(super) fn check(history: &[Entry]) -> Option<Violation> {
    let mut running: Option<Entry> = None;
    for entry in history {
        match (entry.what, running) {
            (What::WorkBegan, Some(other)) => {
                return Some(Violation {
                    invariant: "I5 work never overlaps",
                    why: "work began while that of another term still ran".into(),
                    piece: vec![other, *entry],
                });
            }
            (What::WorkBegan, None) => running = Some(*entry),
            (What::WorkEnded, Some(other))
                if (other.who, other.token) == (entry.who, entry.token) =>
            {
                running = None;
            }
            _ => {}
        }
    }
    None
}
