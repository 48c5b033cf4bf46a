//! What only Redis has, on real servers. The number of a field case stands beside each test.

#![allow(clippy::unwrap_used, reason = "a test says by failing")]

mod faults;
mod line;
mod quorum;
mod replies;
mod start;
mod support;
mod tls;
