//! What only MySQL and MariaDB have, on real servers.

#![allow(clippy::unwrap_used, reason = "a test says by failing")]

mod cost;
mod faults;
mod fence;
mod rows;
mod server;
mod support;
mod tls;
mod wake;
