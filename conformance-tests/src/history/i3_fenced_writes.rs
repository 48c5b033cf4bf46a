//! I3: after a write with some token no write with a lower one is accepted.

use super::{Entry, Violation, What};

pub(super) fn check(history: &[Entry]) -> Option<Violation> {
    let mut highest: Option<Entry> = None;
    for entry in history {
        if entry.what != (What::Wrote { accepted: true }) {
            continue;
        }
        match highest {
            Some(h) if entry.token < h.token => {
                return Some(Violation {
                    invariant: "I3 fenced writes",
                    why: "a stale write was accepted after a newer one".into(),
                    piece: vec![h, *entry],
                });
            }
            _ => highest = Some(*entry),
        }
    }
    None
}
