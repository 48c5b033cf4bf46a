//! A write that only the holder of the lock can commit: the lease and the data in one SQLite file.
//!
//! ```sh
//! cargo run -p lock-sql --example fenced_write
//! ```

use std::error::Error;
use std::sync::Arc;

use lock_core::{ErrorKind, LockPersistence, LockProvider, Provider};
use lock_sql::sqlx::sqlite::SqliteConnectOptions;
use lock_sql::sqlx::{self, ConnectOptions as _, Connection as _};
use lock_sql::{Fence, SqlPersistence, TableName};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true);

    // The store opens connections of its own with the application's options.
    let store = SqlPersistence::from_sqlite_options(options.clone(), TableName::default())?;
    store.prepare().await?;
    let provider = Provider::new(Arc::new(store));

    let mut app = options.connect().await?;
    sqlx::query("CREATE TABLE invoices (number INTEGER PRIMARY KEY)")
        .execute(&mut app)
        .await?;

    let guard = provider.acquire("invoices").await?;
    let mut tx = app.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO invoices VALUES (1)")
        .execute(&mut *tx)
        .await?;
    guard.lease().commit(tx).await?;
    println!("invoice 1 is written under token {}", guard.token());

    // An operator ends the lease while the holder is busy; its next commit is refused by the database.
    provider.revoke("invoices", "maintenance").await?;
    let mut tx = app.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO invoices VALUES (2)")
        .execute(&mut *tx)
        .await?;
    match guard.lease().commit(tx).await {
        Err(error) if error.kind() == ErrorKind::LeaseLost => {
            println!("invoice 2 is refused: {error}")
        }
        Err(error) => return Err(error.into()),
        Ok(()) => return Err("a write after the revocation was committed".into()),
    }
    let written: i64 = sqlx::query_scalar("SELECT count(*) FROM invoices")
        .fetch_one(&mut app)
        .await?;
    println!("invoices in the database: {written}");
    Ok(())
}
