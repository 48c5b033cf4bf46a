//! The election machine: one candidate for one name, without I/O, clock or randomness of its own.
//!
//! Call [`Machine::handle`] with what happened and the present, then [`Machine::poll`] until it
//! answers [`Output::Wait`]. The driver carries out each [`Action`] and answers it exactly once,
//! with an error when no answer came in time.
//!
//! ```text
//!            ┌─────────── denied ──────────┐
//!            ▼                             │
//!  idle → claiming ── granted ─→ holding ──┼─ stop ─→ stopping ─ deadline ─→ ending
//!            ▲                     │ gone  │             │                     │
//!            │                     └───────┼─────────────┼──────────────→──────┤
//!            └── resting ←── clearing ←────┴─ work ended ┴────── work ended ───┘
//! ```
//!
//! *Clearing* carries out what is owed to the store (a release, a withdraw) until it has answered or
//! the ttl has surely passed; no claim is made before.

mod duty;
mod input;
mod machine;
mod output;

pub use input::{Input, Reply};
pub use machine::{Debt, Machine, MachineConfig, Scope};
pub use output::{Action, OpId, Output};
