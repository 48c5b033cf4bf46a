#![doc = include_str!("docs.md")]

mod attempt;
mod config;
mod entry;
mod error;
mod inner;
mod look;
mod node;
mod persistence;
mod session;

pub use config::ZooKeeperConfig;
pub use persistence::ZooKeeperPersistence;
