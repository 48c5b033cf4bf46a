//! The state of a name, as text and as JSON.

use lockkit::{Holder, LeaseState, Observation};
use serde_json::{Map, Value, json};

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
        LeaseState::Absent => ("absent", json!({})),
        LeaseState::Free { token, note } => {
            ("free", json!({"token": token.get(), "note": note.as_str()}))
        }
        LeaseState::Expired(holder) => ("expired", of_holder(holder)),
        LeaseState::Held(holder) => ("held", of_holder(holder)),
        _ => ("unknown", json!({})),
    };
    object.insert("state".into(), word.into());
    if let Value::Object(rest) = rest {
        object.extend(rest);
    }
    object
}

fn of_holder(holder: &Holder) -> Value {
    json!({
        "owner": holder.owner.as_str(),
        "token": holder.token.get(),
        "remaining_ms": u64::try_from(holder.remaining.as_millis()).unwrap_or(u64::MAX),
        "ttl_ms": u64::try_from(holder.ttl.as_millis()).unwrap_or(u64::MAX),
        "metadata": holder.metadata.as_str(),
    })
}
