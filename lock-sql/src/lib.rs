#![doc = include_str!("docs.md")]

mod config;
mod dialect;
mod error;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod fence;
mod persistence;

#[cfg(feature = "sqlite")]
pub use config::SqliteConfig;
pub use config::{DEFAULT_TABLE, TableName};
#[cfg(feature = "mysql")]
pub use config::{MySqlConfig, MySqlTls};
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub use fence::Fence;
pub use persistence::SqlPersistence;
/// The driver, for the types in named constructors and in [`Fence`].
pub use sqlx;
