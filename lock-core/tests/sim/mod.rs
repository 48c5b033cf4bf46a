//! A seeded simulation of many election machines over a model store.
//!
//! Everything that happens comes from one seed: the same seed gives the same run. See `world` for
//! what can go wrong, `check` for what must hold, and `subject` for the planted mutants.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test binary uses a part of it"
)]

mod check;
mod clocks;
mod rng;
mod store;
mod subject;
mod world;

pub(crate) use subject::Mutation;
pub(crate) use world::{Report, run};
