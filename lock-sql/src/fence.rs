//! Writes that only the holder of a lease can commit.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use async_trait::async_trait;
use lock_core::Result;
use sqlx::{Database, Transaction};

#[cfg(feature = "postgres")]
pub use self::postgres::EarlyFence;

/// Fenced writes: an extension of [`Lease`](lock_core::Lease).
///
/// The transaction is on the *same database* as the lease, so that one commit decides both. Where a
/// holder was paused past the end of its term, what it then writes is rolled back.
#[async_trait]
pub trait Fence<DB: Database> {
    /// Locks, verifies that the lease is still ours and has not expired, and commits; else rolls back.
    ///
    /// It comes last, so that the lock lives one round trip. On PostgreSQL the lock keeps takeovers out, and
    /// no renewal. Any isolation level will do; above read committed a lease that ended during the transaction
    /// still commits as long as nobody has taken over.
    ///
    /// On SQLite begin the transaction with
    /// `BEGIN IMMEDIATE`: one that has read first and then finds that others have written must be
    /// repeated (`Unavailable`, retryable, nothing committed). While it is open, no lease in the same
    /// file can be renewed: keep it far below `renew_every`, or give the locks a file of their own.
    ///
    /// After a refusal [`check`](lock_core::Leadership::check) may answer true until the next renewal has
    /// been refused too: end the work on the error.
    ///
    /// On MySQL and MariaDB the account of the transaction needs the right to update the table of the leases.
    /// Where the server compares each row with the transaction's snapshot (`innodb_snapshot_isolation`, on by
    /// default from MariaDB 11.6), use READ COMMITTED: under REPEATABLE READ a renewal since the transaction's
    /// first read makes it be refused (`Unavailable`, retryable, nothing committed).
    ///
    /// # Errors
    /// [`LeaseLost`](lock_core::ErrorKind::LeaseLost): rolled back. [`Unsupported`](lock_core::ErrorKind::Unsupported): a lease
    /// of another store, or a transaction on another database; rolled back. Others: why the database
    /// could not decide; `is_indeterminate` when it may have committed.
    ///
    /// # Cancel safety
    /// Dropped midway it either rolls back or has committed; which of them is then unknown.
    async fn commit(&self, tx: Transaction<'_, DB>) -> Result<()>;
}
