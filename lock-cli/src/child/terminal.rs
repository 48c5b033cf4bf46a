//! Whose turn it is at the terminal.
//!
//! The command runs in a process group of its own. On a terminal that group must be in the foreground,
//! or the command is stopped when it reads; and then the keys Ctrl-C, Ctrl-\ and Ctrl-Z reach the
//! command alone, so nothing is delivered twice.

use std::fs::File;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as MaskedSignal};
use rustix::process::{Pid, getpgrp, getppid, getsid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of this process.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    modes: Option<Termios>,
}

impl Terminal {
    /// The controlling terminal, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        tcgetpgrp(&tty).ok()?;
        let modes = tcgetattr(&tty).ok();
        Some(Self { tty, modes })
    }

    /// Whether this process's own group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).ok() == Some(getpgrp())
    }

    /// Puts the group of the command in the foreground.
    pub(crate) fn give_to(&self, group: Pid) {
        set_foreground(&self.tty, group);
    }

    /// Puts this process's own group back in the foreground if the command's group is there; whether
    /// it was.
    pub(crate) fn take_back_from(&self, group: Pid) -> bool {
        let there = tcgetpgrp(&self.tty).ok() == Some(group);
        if there {
            set_foreground(&self.tty, getpgrp());
        }
        there
    }

    /// Sets the modes back that a command has left behind which was killed.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.is_ours()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Now, modes);
        }
    }

    /// Whether there is a terminal with a shell above, which would notice that this process stops and
    /// would continue it.
    pub(crate) fn has_job_control() -> bool {
        let (Some(_), Some(parent)) = (Self::open(), getppid()) else {
            return false;
        };
        matches!((getsid(Some(parent)), getsid(None)), (Ok(theirs), Ok(ours)) if theirs == ours)
    }
}

/// Puts the group of this process in the foreground; for the shim, before it becomes the command.
pub(super) fn take_foreground() {
    if let Some(terminal) = Terminal::open() {
        set_foreground(&terminal.tty, getpgrp());
    }
}

/// From the background this call stops the caller with SIGTTOU, unless that is blocked.
fn set_foreground(tty: &File, group: Pid) {
    let mut set = SigSet::empty();
    set.add(MaskedSignal::SIGTTOU);
    let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    // It fails when the group is gone or the terminal hung up: there is nothing to hand over then.
    let _ = tcsetpgrp(tty, group);
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
}
