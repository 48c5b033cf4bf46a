//! Stores around stores: each wraps an `Arc<dyn LockPersistence>`, forwards every method and changes
//! one thing.

mod fault;
mod prefix;

pub use fault::{Fault, Faults, Faulty, Times};
pub use prefix::Prefixed;
