//! Between our types and the columns of a row.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Holder, Lease, LeaseState, LockName, Metadata, Nonce, Owner, Result, Token};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Handle;
use super::values::Value;

/// The name under which the store keeps this lease: a wrapper may show another.
pub(super) fn stored_name(lease: &Lease) -> &str {
    let handle = lease.handle().get::<Arc<Handle>>();
    handle.map_or_else(|| lease.name(), |h| &h.name).as_str()
}

pub(super) fn nonce_bytes(nonce: Nonce) -> Vec<u8> {
    nonce.as_u128().to_be_bytes().to_vec()
}

pub(super) fn nonce(nonce: Nonce) -> Value {
    Value::Bytes(nonce_bytes(nonce))
}

/// Milliseconds, rounded up, and small enough to be added to the time of day.
pub(super) fn millis(span: Duration) -> i64 {
    const MOST: u128 = 100 * 365 * 24 * 60 * 60 * 1000;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "bounded in the line itself"
    )]
    let millis = span.as_nanos().div_ceil(1_000_000).min(MOST) as i64;
    millis
}

pub(super) fn integer(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}

fn natural(row: &PgRow, column: &str) -> Result<u64, sqlx::Error> {
    u64::try_from(row.try_get::<i64, _>(column)?).map_err(|e| sqlx::Error::Decode(e.into()))
}

fn ours<T>(value: Result<T>) -> Result<T, sqlx::Error> {
    value.map_err(|e| sqlx::Error::Decode(e.into()))
}

pub(super) fn token(row: &PgRow) -> Result<Token, sqlx::Error> {
    ours(Token::new(natural(row, "token")?))
}

/// What the statement of a try answers.
pub(super) enum Answer {
    Granted(Token),
    /// Held, or expired, by whom; free, and for how long it is kept for another.
    Denied(Holder, Option<Duration>),
    /// Nothing could be decided.
    Nothing,
}

pub(super) fn answer(row: &PgRow) -> Result<Answer, sqlx::Error> {
    let Some(fields) = row.try_get::<Option<Vec<Option<String>>>, _>("answer")? else {
        return Ok(Answer::Nothing);
    };
    // What is left of a time may be negative.
    let natural = |text: &Option<String>| match text.as_deref().unwrap_or_default().parse::<i64>() {
        Ok(number) => Ok(u64::try_from(number).unwrap_or(0)),
        Err(error) => Err(sqlx::Error::Decode(error.into())),
    };
    let token = |text: &Option<String>| natural(text).and_then(|n| ours(Token::new(n)));
    match &fields[..] {
        [granted] => Ok(Answer::Granted(token(granted)?)),
        [
            Some(owner),
            held,
            ttl,
            version,
            Some(metadata),
            remaining,
            kept,
        ] => {
            let holder = Holder::new(
                ours(Owner::new(owner))?,
                token(held)?,
                Duration::from_micros(natural(remaining)?),
                Duration::from_millis(natural(ttl)?),
                natural(version)?,
            );
            let kept = kept.is_some().then(|| natural(kept)).transpose()?;
            let holder = holder.with_metadata(ours(Metadata::new(metadata))?);
            Ok(Answer::Denied(holder, kept.map(Duration::from_micros)))
        }
        other => Err(sqlx::Error::Decode(
            format!("an answer of {} fields", other.len()).into(),
        )),
    }
}

/// The name in a row; `None` when it is not one that a lock can have.
pub(super) fn name(row: &PgRow) -> Result<Option<LockName>, sqlx::Error> {
    Ok(LockName::new(row.try_get::<String, _>("name")?).ok())
}

pub(super) fn state(row: &PgRow) -> Result<LeaseState, sqlx::Error> {
    let token = token(row)?;
    if row.try_get::<Vec<u8>, _>("nonce")?.is_empty() {
        let note = ours(Metadata::new(row.try_get::<String, _>("note")?))?;
        return Ok(LeaseState::Free { token, note });
    }
    let holder = holder(row)?;
    Ok(if holder.remaining.is_zero() {
        LeaseState::Expired(holder)
    } else {
        LeaseState::Held(holder)
    })
}

/// Who holds the name, or held it last.
pub(super) fn holder(row: &PgRow) -> Result<Holder, sqlx::Error> {
    let holder = Holder::new(
        ours(Owner::new(row.try_get::<String, _>("owner")?))?,
        token(row)?,
        micros(row, "remaining")?,
        Duration::from_millis(natural(row, "ttl")?),
        natural(row, "version")?,
    );
    let metadata = ours(Metadata::new(row.try_get::<String, _>("metadata")?))?;
    Ok(holder.with_metadata(metadata))
}

/// How long the name is still kept for another.
pub(super) fn kept(row: &PgRow) -> Result<Option<Duration>, sqlx::Error> {
    let kept = micros(row, "kept")?;
    Ok((!kept.is_zero()).then_some(kept))
}

fn micros(row: &PgRow, column: &str) -> Result<Duration, sqlx::Error> {
    let micros: i64 = row.try_get(column)?;
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}
