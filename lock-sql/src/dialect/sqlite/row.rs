//! Between our types and the columns of a row.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Holder, Lease, LeaseState, LockName, Metadata, Nonce, Owner, Result, Token};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::Handle;

/// The name under which the store keeps this lease: a wrapper may show another.
pub(super) fn stored_name(lease: &Lease) -> String {
    let handle = lease.handle().get::<Arc<Handle>>();
    handle
        .map_or_else(|| lease.name(), |h| &h.name)
        .as_str()
        .to_owned()
}

pub(super) fn nonce(nonce: Nonce) -> Vec<u8> {
    nonce.as_u128().to_be_bytes().to_vec()
}

/// The nonce that [`nonce`] has written.
pub(super) fn nonce_from(bytes: &[u8]) -> Option<Nonce> {
    Some(Nonce::from_u128(u128::from_be_bytes(
        bytes.try_into().ok()?,
    )))
}

/// Milliseconds, rounded up, and small enough to be added to the time of day.
pub(super) fn millis(span: Duration) -> i64 {
    const MOST: u128 = (i64::MAX / 4) as u128;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "bounded in the line itself"
    )]
    let millis = span.as_nanos().div_ceil(1_000_000).min(MOST) as i64;
    millis
}

pub(super) fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn natural(row: &SqliteRow, column: &str) -> Result<u64, sqlx::Error> {
    u64::try_from(row.try_get::<i64, _>(column)?).map_err(|e| sqlx::Error::Decode(e.into()))
}

fn ours<T>(value: Result<T>) -> Result<T, sqlx::Error> {
    value.map_err(|e| sqlx::Error::Decode(e.into()))
}

pub(super) fn token(row: &SqliteRow) -> Result<Token, sqlx::Error> {
    ours(Token::new(natural(row, "token")?))
}

/// The name in a row; `None` when it is not one that a lock can have.
pub(super) fn name(row: &SqliteRow) -> Result<Option<LockName>, sqlx::Error> {
    Ok(LockName::new(row.try_get::<String, _>("name")?).ok())
}

pub(super) fn state(row: &SqliteRow) -> Result<LeaseState, sqlx::Error> {
    let token = token(row)?;
    if row.try_get::<Vec<u8>, _>("nonce")?.is_empty() {
        let note = ours(Metadata::new(row.try_get::<String, _>("note")?))?;
        return Ok(LeaseState::Free { token, note });
    }
    let ttl = Duration::from_millis(natural(row, "ttl")?);
    let remaining: i64 = row.try_get("remaining")?;
    let holder = Holder::new(
        ours(Owner::new(row.try_get::<String, _>("owner")?))?,
        token,
        // The millisecond that an expiry has on top of the ttl is nobody's business.
        Duration::from_millis(u64::try_from(remaining).unwrap_or(0)).min(ttl),
        ttl,
        natural(row, "version")?,
    )
    .with_metadata(ours(Metadata::new(row.try_get::<String, _>("metadata")?))?);
    Ok(if remaining > 0 {
        LeaseState::Held(holder)
    } else {
        LeaseState::Expired(holder)
    })
}
