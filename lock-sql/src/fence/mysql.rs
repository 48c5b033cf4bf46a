//! MySQL and MariaDB.

use std::sync::Arc;

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Lease, Operation, Result};
use sqlx::{MySql, Transaction};

use super::Fence;
use crate::dialect::mysql::Handle;

#[async_trait]
impl Fence<MySql> for Lease {
    async fn commit(&self, tx: Transaction<'_, MySql>) -> Result<()> {
        commit(self, tx).await.map_err(|error| {
            error
                .with_backend("mysql")
                .with_operation(Operation::Fence)
                .with_name(self.name().clone())
        })
    }
}

async fn commit(lease: &Lease, mut tx: Transaction<'_, MySql>) -> Result<()> {
    // Returning early drops the transaction, which rolls it back.
    let Some(handle) = lease.handle().get::<Arc<Handle>>() else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this lease is not one of a MySQL or MariaDB store; commit it where it was granted",
        ));
    };
    // The nonce is random, so a row that has it is ours, on whatever connection it is found.
    let held = handle
        .place
        .lock(&mut tx, lease)
        .await
        .map_err(|e| handle.place.error(e).with_indeterminate(false))?;
    if !held {
        // The loss is the answer, whether or not the rollback could be told; dropping does it too.
        if let Err(error) = tx.rollback().await {
            tracing::debug!(%error, "rolling back a refused transaction failed; its connection was dropped");
        }
        return Err(Error::new(
            ErrorKind::LeaseLost,
            format!(
                "the term with token {} is over, or the transaction is on another server; nothing was committed",
                lease.token()
            ),
        ));
    }
    tx.commit()
        .await
        .map_err(|e| handle.place.error(e).with_indeterminate(true))
}
