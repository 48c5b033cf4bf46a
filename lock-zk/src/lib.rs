#![doc = include_str!("docs.md")]

mod config;
mod entry;
mod error;
mod node;
mod persistence;
mod session;

pub use config::ZooKeeperConfig;
pub use persistence::ZooKeeperPersistence;
