//! What only PostgreSQL has, on real servers. The number of a field case stands beside each test.

#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used, reason = "a test says by failing")]

mod faults;
mod fence;
mod layout;
mod line;
#[path = "../peer/mod.rs"]
mod peer;
mod pooler;
mod processes;
mod race;
mod reach;
mod schema;
mod sessions;
mod support;
