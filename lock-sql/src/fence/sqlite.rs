//! Fenced writes in an SQLite file.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Lease, Operation, Result};
use sqlx::{AssertSqlSafe, Executor as _, Row as _, Sqlite, Transaction};

use super::Fence;
use crate::dialect::sqlite::{Handle, identity};

#[async_trait]
impl Fence<Sqlite> for Lease {
    async fn commit(&self, tx: Transaction<'_, Sqlite>) -> Result<()> {
        commit(self, tx).await.map_err(|error| {
            error
                .with_backend("sqlite")
                .with_operation(Operation::Fence)
                .with_name(self.name().clone())
        })
    }
}

async fn commit(lease: &Lease, mut tx: Transaction<'_, Sqlite>) -> Result<()> {
    // Returning early drops the transaction, which rolls it back.
    let Some(handle) = lease.handle().get::<Arc<Handle>>() else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this lease is not one of an SQLite store; commit it where it was granted",
        ));
    };
    let place = &handle.place;
    let table = place.table().quoted();
    let map = |error| place.error(error);
    // The first statement changes nothing but takes the write lock, unless the transaction has it; the
    // clock of the second is read after that. From here to the commit nobody can take over.
    let sql = format!(
        "UPDATE main.{table} SET token = token WHERE false; \
         SELECT (SELECT file FROM pragma_database_list WHERE name = 'main') AS file, \
         (SELECT count(*) FROM main.{table} WHERE name = ?1 AND nonce = ?2 AND token = ?3 \
          AND expires > CAST(round(unixepoch('subsec') * 1000) AS INTEGER)) AS held"
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(handle.name.as_str())
        .bind(lease.nonce().as_u128().to_be_bytes().to_vec())
        .bind(i64::try_from(lease.token().get()).unwrap_or(i64::MAX))
        .fetch_all(&mut *tx)
        .await;
    let file = match &row {
        Ok(rows) => rows.first().map(|row| row.try_get::<String, _>("file")),
        // Another database need not have our table: find that out first.
        Err(_) => (&mut *tx)
            .fetch_one("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .await
            .ok()
            .map(|row| row.try_get("file")),
    };
    if let Some(Ok(file)) = file
        && identity(Path::new(&file)).is_none_or(|id| identity(place.path()) != Some(id))
    {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the transaction is on another database than the lease, which is in {}; begin it there",
                place.path().display()
            ),
        ));
    }
    let rows = row.map_err(|e| map(e).with_indeterminate(false))?;
    let held: i64 = match rows.first() {
        Some(row) => row.try_get("held").map_err(map)?,
        None => 0,
    };
    if held != 1 {
        // The loss is the answer, whether or not the rollback could be told; dropping does it too.
        if let Err(error) = tx.rollback().await {
            tracing::debug!(%error, "rolling back a refused transaction failed; its connection was dropped");
        }
        return Err(Error::new(
            ErrorKind::LeaseLost,
            format!(
                "the term with token {} is over; nothing was committed",
                lease.token()
            ),
        ));
    }
    tx.commit()
        .await
        .map_err(|e| map(e).with_indeterminate(true))
}
