//! A command that runs only while a term lasts.
//!
//! Three processes stand between the term and the command, because no single one can promise all of
//! it:
//!
//! * the **wrapper** (`lockctl exec`, `lockctl run`) holds the lease and tells the keeper its deadline;
//! * the **keeper**, `lockctl` started again, knows no store. It tells the command to stop and kills
//!   it at the deadline by itself, so a wrapper that is stopped or starved changes nothing; when the
//!   wrapper dies it kills at once. It adopts orphans, so it finds everything the command started;
//! * the **shim**, `lockctl` started once more, asks the kernel to be killed when the keeper dies,
//!   looks whether it is too late already, and becomes the command.
//!
//! Should the keeper be killed, the kernel kills the command, and the wrapper what is left.

mod alarm;
pub(crate) mod keeper;
mod reaper;
pub(crate) mod shim;
pub(crate) mod signals;
pub(crate) mod supervise;
mod terminal;
mod tree;
mod wire;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// First argument of a process that is to be the keeper.
pub(crate) const KEEPER: &str = "__lockctl-keeper";
/// First argument of a process that is to be the shim.
pub(crate) const SHIM: &str = "__lockctl-shim";

/// This very program, also when its file was replaced or removed meanwhile.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    let Ok(running) = link.metadata() else {
        return std::env::current_exe();
    };
    // By its path where that still is this program: the process list then shows its name.
    if let Ok(path) = link.read_link()
        && let Ok(there) = path.metadata()
        && (there.dev(), there.ino()) == (running.dev(), running.ino())
    {
        return Ok(path);
    }
    Ok(link.to_owned())
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
}

impl Status {
    /// The code a shell would show: its own, or 128 + n when signal n ended it.
    pub(crate) fn code(self) -> u8 {
        let code = match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Killed(signal) => write!(f, "was ended by signal {signal}"),
        }
    }
}
