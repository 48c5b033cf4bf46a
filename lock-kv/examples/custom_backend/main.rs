//! A lock over an in-house key-value store: `kv.rs` is that store and its three methods,
//! `tests/conformance.rs` proves it. Run this twice at once: the second waits for the first.
//!
//! `cargo run -p lock-kv --example custom_backend -- FOLDER`

mod kv;

use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockProvider as _, Provider};
use lock_kv::KvPersistence;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(folder) = std::env::args_os().nth(1) else {
        return Err("give it a folder that the processes share".into());
    };
    let store = KvPersistence::new(kv::Kv::new(folder.into()));
    let provider = Provider::new(Arc::new(store));
    let guard = provider.acquire("invoice-42").await?;
    println!("held, with the token {}", guard.token());
    tokio::time::sleep(Duration::from_secs(5)).await;
    println!("released: {:?}", guard.release().await?);
    Ok(())
}
