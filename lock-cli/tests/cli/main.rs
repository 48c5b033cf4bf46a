//! `lockctl` as its users meet it: real processes, a real SQLite file.

#![cfg(unix)]

mod support;

mod demo;
mod elections;
mod exit_codes;
mod fixture;
mod life_and_death;
mod partition;
mod recipes;
mod secrets;
mod signals;
mod terminal;
