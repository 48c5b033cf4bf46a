//! Stub.

pub mod servers;
