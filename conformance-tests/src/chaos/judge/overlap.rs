//! I5: the work of two terms never runs at once.
//!
//! Work whose process stands still when the next leader's begins cannot end before it. It is forgiven, and counted,
//! if its process was still after its deadline and the work ended soon after it went on; what it then did is judged
//! by I1 and I3. So is that of a holder whose lease was ended in the store and who cannot know yet.

use super::{Broken, Excuses, SLACK, Trial};

pub(super) const NAME: &str = "I5 work overlap";

pub(super) fn check(trial: &Trial<'_>, excuses: &mut Excuses) -> Option<Broken> {
    for (n, newer) in trial.terms.iter().enumerate() {
        let Some(began) = &newer.began else { continue };
        for older in trial.terms[..n].iter() {
            let Some(first) = &older.began else { continue };
            let end = [&older.ended, &older.killed];
            let end = end.into_iter().flatten().map(|record| record.at).min();
            // Of the work of a command nobody knows more than its last sign.
            let last = older.checks.last().filter(|_| trial.evidence.command);
            let end = last.map(|record| record.at).or(end).unwrap_or(u64::MAX);
            let newer_end = newer.ended.as_ref().map_or(u64::MAX, |record| record.at);
            if end <= began.at || newer_end <= first.at {
                continue;
            }
            // Ended in the store: the holder learns of it at its next renewal. I1 judges and counts it.
            let upset = trial.upset_within(first.at, began.at);
            if upset.is_some_and(|until| end <= until + SLACK.as_nanos() as u64) {
                continue;
            }
            if let Some((deadline, _)) = older.deadline()
                && began.at > deadline
                && end != u64::MAX
            {
                let ran = trial.ran(older.who, older.life, deadline, end);
                let stood_still = ran.as_nanos() < u128::from(end - deadline);
                if stood_still && ran <= SLACK {
                    excuses.frozen_work += 1;
                    let ms = ran.as_millis() as u64;
                    excuses.frozen_work_longest_ms = excuses.frozen_work_longest_ms.max(ms);
                    continue;
                }
            }
            let why = "work began while that of another term still ran";
            let piece = [Some(first), Some(began), older.ended.as_ref()];
            return Some(trial.broken(NAME, why, piece.into_iter().flatten()));
        }
    }
    None
}
