//! The cases, a module per section of the field cases. Each is an async function that the table in
//! `table.rs` names.

pub(crate) mod a_clock;
pub(crate) mod b_lease;
pub(crate) mod c_renewal;
pub(crate) mod contract;
pub(crate) mod d_pause;
pub(crate) mod e_release;
pub(crate) mod f_sessions;
pub(crate) mod g_cancellation;
pub(crate) mod h_restart;
pub(crate) mod i_names;
pub(crate) mod j_wakeups;
pub(crate) mod k_tokens;
pub(crate) mod n_start;
pub(crate) mod q_several;
pub(crate) mod r_long_runs;
