#![doc = include_str!("docs.md")]

mod config;
mod dialect;
mod error;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod fence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod layout;
mod persistence;

#[cfg(feature = "postgres")]
pub use config::PostgresConfig;
#[cfg(feature = "sqlite")]
pub use config::SqliteConfig;
pub use config::{DEFAULT_TABLE, TableName};
#[cfg(feature = "mysql")]
pub use config::{MySqlConfig, MySqlTls};
#[cfg(feature = "postgres")]
pub use fence::EarlyFence;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use fence::Fence;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use layout::{PeerLayout, PeerTable, PeerZone};
pub use persistence::SqlPersistence;
/// The driver, for the types in named constructors and in [`Fence`].
pub use sqlx;
