//! One leader at a time, over the store you already run.
//!
//! This is the crate for applications: everything of `lock-core`, one Cargo feature for each family of
//! stores, and [`connect`], which picks the store by the scheme of a URL.
//!
//! ```
//! use lockkit::{LockProvider, connect};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkit::Result<()> {
//! let provider = connect("memory:").await?; // or sqlite:/var/lib/app/locks.db
//! if let Some(guard) = provider.try_acquire("invoice-42").await? {
//!     println!("token {}", guard.token());
//!     guard.release().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | feature | scheme | store |
//! |---|---|---|
//! | (always) | `memory:` | this process: the single-node mode |
//! | `postgres` | `postgres://USER:PASSWORD@HOST/DATABASE` | a PostgreSQL table |
//! | `redis` | `redis://USER:PASSWORD@HOST/DATABASE`, `rediss://` | a Redis or Valkey server |
//! | `redis` | `quorum+redis://HOST,HOST,HOST/DATABASE`, `quorum+rediss://` | a majority of independent servers |
//! | `sqlite` (default) | `sqlite:PATH` | one file, several processes of one host |
//! | `mysql` | `mysql://`, `mariadb://` | a table in a MySQL or MariaDB database |
//! | `zookeeper` | `zookeeper://HOST,HOST,HOST/FOLDER?tick=MILLISECONDS` | a ZooKeeper ensemble |

mod connect;

pub use connect::{ConnectOptions, connect};
pub use lock_core::*;
#[cfg(feature = "redis")]
pub use lock_redis as redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use lock_sql as sql;
#[cfg(feature = "zookeeper")]
pub use lock_zk as zookeeper;

/// The examples of the README, run as tests.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../README.md")]
struct Readme;
