//! Between our types and the columns of a row.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Holder, Lease, LeaseState, LockName, Metadata, Nonce, Owner, Result, Token};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::Handle;

/// The name under which the store keeps this lease: a wrapper may show another.
pub(super) fn stored_name(lease: &Lease) -> &LockName {
    let handle = lease.handle().get::<Arc<Handle>>();
    handle.map_or_else(|| lease.name(), |h| &h.name)
}

/// Microseconds, rounded up, and small enough to be added to the time of day.
pub(super) fn micros(span: Duration) -> i64 {
    const MOST: u128 = (i64::MAX / 4) as u128;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "bounded in the line itself"
    )]
    let micros = span.as_nanos().div_ceil(1_000).min(MOST) as i64;
    micros
}

pub(super) fn natural(row: &MySqlRow, column: &str) -> Result<u64, sqlx::Error> {
    u64::try_from(row.try_get::<i64, _>(column)?).map_err(|e| sqlx::Error::Decode(e.into()))
}

fn ours<T>(value: Result<T>) -> Result<T, sqlx::Error> {
    value.map_err(|e| sqlx::Error::Decode(e.into()))
}

pub(super) fn token(row: &MySqlRow) -> Result<Token, sqlx::Error> {
    ours(Token::new(natural(row, "token")?))
}

/// The nonce in a row; `None` when nobody holds it.
pub(super) fn nonce(row: &MySqlRow) -> Result<Option<Nonce>, sqlx::Error> {
    let bytes: Vec<u8> = row.try_get("nonce")?;
    Ok(bytes
        .try_into()
        .ok()
        .map(|bytes| Nonce::from_u128(u128::from_be_bytes(bytes))))
}

/// The name in a row; `None` when it is not one that a lock can have.
pub(super) fn name(row: &MySqlRow) -> Result<Option<LockName>, sqlx::Error> {
    let bytes: Vec<u8> = row.try_get("name")?;
    Ok(String::from_utf8(bytes)
        .ok()
        .and_then(|name| LockName::new(name).ok()))
}

/// A cell of one of the server's own tables, whose types differ between versions.
pub(super) fn shown(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    let text: Option<String> = row.try_get_unchecked(column)?;
    Ok(text.unwrap_or_default())
}

pub(super) fn state(row: &MySqlRow) -> Result<LeaseState, sqlx::Error> {
    let token = token(row)?;
    if row.try_get::<Vec<u8>, _>("nonce")?.is_empty() {
        let note = ours(Metadata::new(row.try_get::<String, _>("note")?))?;
        return Ok(LeaseState::Free { token, note });
    }
    let ttl = Duration::from_micros(natural(row, "ttl")?);
    let remaining: i64 = row.try_get("remaining")?;
    let holder = Holder::new(
        ours(Owner::new(row.try_get::<String, _>("owner")?))?,
        token,
        Duration::from_micros(u64::try_from(remaining).unwrap_or(0)),
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

/// A free row that is kept for the first in line, shown as if the last holder still had it. For how long the
/// next will have it is not known: for another term.
pub(super) fn kept(row: &MySqlRow) -> Result<Option<Holder>, sqlx::Error> {
    if row.try_get::<i64, _>("kept")? == 0 {
        return Ok(None);
    }
    let ttl = Duration::from_micros(natural(row, "ttl")?);
    let owner = ours(Owner::new(row.try_get::<String, _>("owner")?))?;
    let holder = Holder::new(owner, token(row)?, ttl, ttl, natural(row, "version")?);
    Ok(Some(holder))
}
