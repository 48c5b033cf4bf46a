#![doc = include_str!("docs.md")]

mod config;
mod dialect;
mod error;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod fence;
mod persistence;

#[cfg(feature = "postgres")]
pub use config::PostgresConfig;
#[cfg(feature = "sqlite")]
pub use config::SqliteConfig;
pub use config::{DEFAULT_TABLE, TableName};
#[cfg(feature = "postgres")]
pub use fence::EarlyFence;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use fence::Fence;
pub use persistence::SqlPersistence;
/// The driver, for the types in named constructors and in [`Fence`].
pub use sqlx;
