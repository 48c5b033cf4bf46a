#![doc = include_str!("docs.md")]

mod answer;
mod config;
mod connection;
mod error;
mod keys;
mod listener;
mod persistence;
mod quorum;
mod scripts;
mod start;

pub use config::RedisConfig;
pub use keys::Prefix;
pub use persistence::RedisPersistence;
pub use quorum::quorum;
