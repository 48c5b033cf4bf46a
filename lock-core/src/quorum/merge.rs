//! From what the nodes show to what the quorum shows.

use std::collections::BTreeMap;
use std::time::Duration;

use super::term::{Term, unwrap};
use crate::claim::{Holder, LeaseState};
use crate::name::Metadata;
use crate::token::Token;

/// The holder whom a majority of the nodes shows.
pub(super) fn holder(holders: &[&Holder], majority: usize) -> Option<Holder> {
    let mut terms: BTreeMap<Term, Vec<&Holder>> = BTreeMap::new();
    for holder in holders {
        terms.entry(Term::of(holder)).or_default().push(holder);
    }
    let of = terms.values().find(|of| of.len() >= majority)?;
    Some(combine(of, majority))
}

/// The state of a name, of which `states` are those of the nodes that answered.
pub(super) fn merge(states: &[&LeaseState], majority: usize) -> LeaseState {
    let mut held = Vec::new();
    let mut known = Vec::new();
    for state in states {
        match state {
            LeaseState::Held(holder) => {
                held.push(holder);
                known.push(holder);
            }
            LeaseState::Expired(holder) => known.push(holder),
            LeaseState::Absent | LeaseState::Free { .. } => {}
        }
    }
    if let Some(holder) = holder(&held, majority) {
        return LeaseState::Held(holder);
    }
    if let Some(mut holder) = holder(&known, majority) {
        holder.remaining = Duration::ZERO;
        return LeaseState::Expired(holder);
    }
    // A minority's entry is nobody's term: what it was is what the others remember.
    let free = states.iter().filter_map(|state| match state {
        LeaseState::Free { token, note } => Some((*token, note)),
        _ => None,
    });
    let Some((last, _)) = free.clone().max_by_key(|(token, _)| *token) else {
        let lapsed = states.iter().find_map(|state| match state {
            LeaseState::Expired(holder) => Some(holder.token),
            _ => None,
        });
        return lapsed.map_or(LeaseState::Absent, |token| LeaseState::Free {
            token,
            note: Metadata::default(),
        });
    };
    // A release has no note, and only the latest end counts.
    let notes = free.filter(|(_, note)| !note.is_empty());
    let note = notes.max_by_key(|(token, _)| *token);
    let note = note
        .filter(|(token, _)| *token == last)
        .map(|(_, note)| note.clone());
    LeaseState::Free {
        token: last,
        note: note.unwrap_or_default(),
    }
}

/// What the nodes of one term show together.
pub(super) fn combine(of: &[&Holder], majority: usize) -> Holder {
    let mut left: Vec<Duration> = of.iter().map(|holder| holder.remaining).collect();
    left.sort_unstable();
    // It ends when so many are left that they are no majority.
    let remaining = left[of.len() - majority];
    let latest = of
        .iter()
        .max_by_key(|holder| holder.token)
        .expect("a majority is not empty");
    let ours = |holder: &&Holder| unwrap(&holder.metadata);
    let written = of
        .iter()
        .filter_map(ours)
        .max_by_key(|(_, token, _)| *token);
    let (token, metadata) = match written {
        // An entry whose own token was large enough was not written again.
        Some((_, 0, metadata)) => (latest.token, metadata),
        Some((_, token, metadata)) => (Token::new(token).unwrap_or(latest.token), metadata),
        None => (latest.token, latest.metadata.clone()),
    };
    // Those of the nodes differ with whom one has heard first.
    let version = token.get().max(1);
    Holder::new(latest.owner.clone(), token, remaining, latest.ttl, version).with_metadata(metadata)
}

/// Whether an onlooker has nothing new to tell.
pub(super) fn alike(a: &LeaseState, b: &LeaseState) -> bool {
    match (a, b) {
        (LeaseState::Held(a), LeaseState::Held(b))
        | (LeaseState::Expired(a), LeaseState::Expired(b)) => {
            a.token == b.token && a.owner == b.owner && a.metadata == b.metadata
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::super::term::{Id, wrap};
    use super::*;
    use crate::name::{Nonce, Owner};

    fn holder(id: Id, node_token: u64, token: u64, left: u64) -> Holder {
        let owner = Owner::new("o").unwrap();
        let left = Duration::from_secs(left);
        let metadata = wrap(id, token, &Metadata::new("m").unwrap()).unwrap();
        Holder::new(owner, Token::new(node_token).unwrap(), left, left, 1).with_metadata(metadata)
    }

    #[test]
    fn a_majority_decides_and_a_minority_is_nobody() {
        let (a, b) = (Id::of(Nonce::random()), Id::of(Nonce::random()));
        let held = |id, node, token, left| LeaseState::Held(holder(id, node, token, left));
        let free = |token| LeaseState::Free {
            token: Token::new(token).unwrap(),
            note: Metadata::default(),
        };
        // An entry that was put back has a larger token of its own; the term's is the written one.
        let states = [held(a, 51, 0, 5), held(a, 101, 51, 9), held(b, 7, 7, 9)];
        let LeaseState::Held(seen) = merge(&states.each_ref(), 2) else {
            panic!("not held")
        };
        assert_eq!(
            (seen.token.get(), seen.remaining),
            (51, Duration::from_secs(5))
        );
        assert_eq!(seen.metadata.as_str(), "m");
        // Of three, the second longest is the end of the majority.
        let states = [held(a, 1, 1, 3), held(a, 1, 1, 9), held(a, 1, 1, 6)];
        let LeaseState::Held(seen) = merge(&states.each_ref(), 2) else {
            panic!("not held")
        };
        assert_eq!(seen.remaining, Duration::from_secs(6));
        let states = [held(a, 9, 9, 3), free(4), free(6)];
        assert_eq!(merge(&states.each_ref(), 2), free(6));
        let states = [held(a, 9, 9, 3), held(b, 8, 8, 3), LeaseState::Absent];
        assert_eq!(merge(&states.each_ref(), 2), LeaseState::Absent);
        let states = [
            held(a, 9, 9, 3),
            LeaseState::Expired(holder(a, 9, 9, 0)),
            LeaseState::Absent,
        ];
        assert!(matches!(
            merge(&states.each_ref(), 2),
            LeaseState::Expired(_)
        ));
    }
}
