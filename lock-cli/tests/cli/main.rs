//! `lockctl` as its users meet it: real processes, a real SQLite file, a real PostgreSQL.

#![cfg(unix)]

mod support;

mod elections;
mod exit_codes;
mod fixture;
mod life_and_death;
#[cfg(feature = "postgres")]
mod network;
mod partition;
mod recipes;
mod secrets;
mod signals;
mod terminal;
