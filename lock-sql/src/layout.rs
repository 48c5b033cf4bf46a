//! Tables of other systems, whose elections ours take part in.
//!
//! Their nodes write times by clocks of their own. So a row is *read*, together with the server's clock,
//! then judged here, and then *swapped*: written only if it is still, to the letter, the row that was
//! judged. `docs/design/0010-foreign-tables.md` says why that is two round trips and not one.

mod config;
mod holder;
mod judge;
mod store;

pub(crate) use config::Parameters;
pub use config::{PeerLayout, PeerTable, PeerZone};
pub(crate) use store::{Foreign, Look, Rows, Swap};

/// One row, with times as its columns have them: microseconds since 1970 on the peers' own clock on the
/// wall, or since the epoch where the column knows its zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) holder: String,
    pub(crate) acquired: i64,
    pub(crate) expires: i64,
    /// 0 where the table has no such column.
    pub(crate) version: i64,
}
