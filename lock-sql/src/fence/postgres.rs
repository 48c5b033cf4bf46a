//! Fenced writes in a PostgreSQL database.

use std::sync::Arc;

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Lease, Operation, Result};
use sqlx::{AssertSqlSafe, Executor as _, Postgres, Row as _, Transaction};

use super::Fence;
use crate::dialect::postgres::Handle;
use crate::error::postgres::code;

/// Fenced writes whose fence comes first.
#[async_trait]
pub trait EarlyFence<DB: sqlx::Database>: Fence<DB> {
    /// Locks and verifies at the *start* of a transaction: what follows runs only for the holder, and nobody
    /// takes over before the transaction ends, by the ordinary `commit` or otherwise. Renewals go on.
    ///
    /// The transaction may not stand idle for longer than the lease had left: then the server ends it (`idle_in_transaction_session_timeout`, for this transaction).
    /// So a holder that was stopped inside delays a takeover by at most that. A transaction that is kept *busy* is not bounded: keep it short.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost): roll back. [`Unsupported`](ErrorKind::Unsupported): a lease
    /// of another store, or a transaction on another database. Others: why the database could not decide.
    /// After an error the transaction can only be rolled back.
    ///
    /// # Cancel safety
    /// Dropped midway the lock may be held until the transaction ends.
    async fn fence(&self, tx: &mut Transaction<'_, DB>) -> Result<()>;
}

#[async_trait]
impl Fence<Postgres> for Lease {
    async fn commit(&self, tx: Transaction<'_, Postgres>) -> Result<()> {
        commit(self, tx).await.map_err(|error| told(self, error))
    }
}

#[async_trait]
impl EarlyFence<Postgres> for Lease {
    async fn fence(&self, tx: &mut Transaction<'_, Postgres>) -> Result<()> {
        early(self, tx).await.map_err(|error| told(self, error))
    }
}

async fn commit(lease: &Lease, mut tx: Transaction<'_, Postgres>) -> Result<()> {
    // Returning early drops the transaction, which rolls it back.
    let handle = handle(lease)?;
    if let Err(error) = verify(lease, handle, &mut tx).await {
        // The refusal is the answer, whether or not the rollback could be told; dropping does it too.
        if let Err(error) = tx.rollback().await {
            tracing::debug!(%error, "rolling back a refused transaction failed; its connection was dropped");
        }
        return Err(error);
    }
    tx.commit().await.map_err(|e| handle.words.map(e))
}

async fn early(lease: &Lease, tx: &mut Transaction<'_, Postgres>) -> Result<()> {
    let handle = handle(lease)?;
    let left = verify(lease, handle, tx).await?;
    // Zero would mean no limit.
    let limit = format!(
        "SET LOCAL idle_in_transaction_session_timeout = {}",
        left.clamp(1, i64::from(i32::MAX))
    );
    let set = (&mut **tx).execute(AssertSqlSafe(limit)).await;
    set.map(drop)
        .map_err(|e| handle.words.map(e).with_indeterminate(false))
}

/// Locks and looks; answers the milliseconds that the lease has left.
///
/// The lock is on the key `(name, token)`, which only a grant or a revocation changes: from here to the end
/// of the transaction there is neither, and renewals are not kept waiting. What the transaction *sees* of
/// the row may be as old as its snapshot, above read committed; so the expiry counts there only as far
/// as the lock has not already shown that no other has taken over.
async fn verify(lease: &Lease, handle: &Handle, tx: &mut Transaction<'_, Postgres>) -> Result<i64> {
    let sql = format!(
        "WITH mine AS MATERIALIZED (SELECT expires, ttl FROM {} \
           WHERE name = $1::text AND nonce = $2::bytea AND token = $3::bigint FOR KEY SHARE) \
         SELECT CASE WHEN current_setting('transaction_isolation') = 'read committed' \
           THEN ceil(extract(epoch FROM expires - clock_timestamp()) * 1000)::bigint ELSE ttl END AS remaining FROM mine",
        handle.words.table.quoted()
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(handle.name.as_str())
        .bind(lease.nonce().as_u128().to_be_bytes().to_vec())
        .bind(i64::try_from(lease.token().get()).unwrap_or(i64::MAX))
        .fetch_optional(&mut **tx)
        .await;
    let row = match row {
        Ok(row) => row,
        // Above read committed: the key was changed since the transaction began.
        Err(error) if code(&error) == Some("40001") => return Err(lost(lease)),
        Err(error) if code(&error) == Some("42P01") => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the transaction does not see the table {} of the lease, which is in {} on {}; begin it there",
                    handle.words.table, handle.words.database, handle.words.server
                ),
            )
            .with_source(error));
        }
        Err(error) => return Err(handle.words.map(error).with_indeterminate(false)),
    };
    let left: i64 = match row {
        Some(row) => row
            .try_get("remaining")
            .map_err(|e| handle.words.map(e).with_indeterminate(false))?,
        None => 0,
    };
    if left > 0 { Ok(left) } else { Err(lost(lease)) }
}

fn told(lease: &Lease, error: Error) -> Error {
    error
        .with_backend("postgres")
        .with_operation(Operation::Fence)
        .with_name(lease.name().clone())
}

fn handle(lease: &Lease) -> Result<&Arc<Handle>> {
    lease.handle().get::<Arc<Handle>>().ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            "this lease is not one of a PostgreSQL store; commit it where it was granted",
        )
    })
}

fn lost(lease: &Lease) -> Error {
    Error::new(
        ErrorKind::LeaseLost,
        format!(
            "the term with token {} is over; nothing was committed",
            lease.token()
        ),
    )
}
