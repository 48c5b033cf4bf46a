//! I7: when all candidates have ended, nothing of them is left: the lease is released, the name can be taken at once
//! with a larger token, no connection is open, and every process ended as it was told to.
//!
//! A try that was on its way when its process ended may be carried out after its withdrawal; then nobody knows of the
//! grant. And a release that was sent may not be carried out in time on a busy machine. Either is forgiven, and
//! counted, if it is gone with its ttl.

use super::{Broken, Trial};

pub(super) const NAME: &str = "I7 nothing left behind";

pub(super) fn check(trial: &Trial<'_>) -> Option<Broken> {
    let found: Vec<&str> = trial
        .evidence
        .broken
        .iter()
        .chain(&trial.evidence.left)
        .map(String::as_str)
        .collect();
    (!found.is_empty()).then(|| trial.broken(NAME, found.join("; "), None))
}
