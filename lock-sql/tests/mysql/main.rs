//! What only MySQL and MariaDB have, on real servers.

#![allow(clippy::unwrap_used, reason = "a test says by failing")]

mod cost;
mod faults;
mod fence;
mod layout;
#[cfg(target_os = "linux")]
mod line;
#[path = "../peer/mod.rs"]
mod peer;
mod rows;
mod server;
mod support;
mod tls;
mod wake;
