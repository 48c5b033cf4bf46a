//! I6: after the end of a term the next one comes within the stated bound.

use std::time::Duration;

use super::{Bounds, Entry, Violation, What};

pub(super) fn check(history: &[Entry], end: Duration, bounds: &Bounds) -> Option<Violation> {
    let limit = bounds.takeover? + bounds.slack;
    let violation = |piece: Vec<Entry>| {
        Some(Violation {
            invariant: "I6 liveness",
            why: format!("no takeover within {limit:?}"),
            piece,
        })
    };
    let mut vacant: Option<Entry> = None;
    for entry in history {
        match (entry.what, vacant) {
            (What::Granted { .. }, Some(since)) if entry.at > since.at + limit => {
                return violation(vec![since, *entry]);
            }
            (What::Granted { .. }, _) => vacant = None,
            (What::Lost | What::Released, None) => vacant = Some(*entry),
            _ => {}
        }
    }
    vacant
        .filter(|since| end > since.at + limit)
        .and_then(|since| violation(vec![since]))
}
