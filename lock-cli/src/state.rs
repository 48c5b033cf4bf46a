//! The state of a name, as text and as JSON.

use std::time::Duration;

use lockkit::{Holder, LeaseState, Observation};
use serde_json::{Map, Value};

use crate::span;

/// The state in one line.
pub(crate) fn describe(state: &LeaseState) -> String {
    match state {
        LeaseState::Absent => "absent".into(),
        LeaseState::Free { token, note } if note.is_empty() => format!("free (last token {token})"),
        LeaseState::Free { token, note } => {
            format!(
                "free (last token {token}; revoked: {})",
                crate::output::one_line(note.as_str())
            )
        }
        LeaseState::Expired(holder) => {
            format!(
                "expired (was held by {}, token {})",
                holder.owner, holder.token
            )
        }
        LeaseState::Held(holder) => format!(
            "held by {} (token {}), expires in {}",
            holder.owner,
            holder.token,
            span::show(holder.remaining)
        ),
        _ => "in a state that this version does not know".into(),
    }
}

/// The observation as a JSON object.
pub(crate) fn json(seen: &Observation) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("name".into(), seen.name.as_str().into());
    let (word, rest) = match &seen.state {
        LeaseState::Absent => ("absent", Vec::new()),
        LeaseState::Free { token, note } => (
            "free",
            vec![
                ("token", token.get().into()),
                ("note", note.as_str().into()),
            ],
        ),
        LeaseState::Expired(holder) => ("expired", of_holder(holder)),
        LeaseState::Held(holder) => ("held", of_holder(holder)),
        _ => ("unknown", Vec::new()),
    };
    object.insert("state".into(), word.into());
    object.extend(rest.into_iter().map(|(key, value)| (key.to_owned(), value)));
    object
}

/// A holder as fields of a JSON object.
pub(crate) fn of_holder(holder: &Holder) -> Vec<(&'static str, Value)> {
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    vec![
        ("owner", holder.owner.as_str().into()),
        ("token", holder.token.get().into()),
        ("remaining_ms", ms(holder.remaining).into()),
        ("ttl_ms", ms(holder.ttl).into()),
        ("metadata", holder.metadata.as_str().into()),
    ]
}
