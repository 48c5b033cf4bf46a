//! `lockctl` as its users meet it: real processes, a real SQLite file.

#![cfg(unix)]

mod support;

mod exit_codes;
mod fixture;
mod life_and_death;
mod signals;
mod terminal;
