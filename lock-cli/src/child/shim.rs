//! The last process before the command: see the [module](super).

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::Pid;

use super::terminal;
use crate::exit;
use crate::output::complain;

/// Becomes the command. `arguments` are the keeper's process id, `fg` or `bg`, and the command.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let keeper = arguments.next().and_then(|a| a.to_str()?.parse().ok());
    let foreground = arguments.next().is_some_and(|a| a == "fg");
    let (Some(keeper), Some(program)) = (keeper.and_then(Pid::from_raw), arguments.next()) else {
        complain("this is an internal command; try `lockctl --help`");
        return exit::Exit::Usage.into();
    };
    if !dies_with(keeper) {
        // The keeper is gone: nobody is left who would end the command in time.
        return exit::Exit::Lost.into();
    }
    if foreground {
        terminal::take_foreground();
    }
    let error = Command::new(&program).args(arguments).exec();
    complain(&format!("cannot run {}: {error}", program.display()));
    ExitCode::from(exit::of_exec_error(&error))
}

/// Asks the kernel to kill this process, and what it becomes, when `parent` dies.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn dies_with(parent: Pid) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    // In this order: a parent that died before the call sends nothing, but is seen by the look.
    set_parent_process_death_signal(Some(Signal::KILL)).is_ok() && getppid() == Some(parent)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn dies_with(parent: Pid) -> bool {
    rustix::process::getppid() == Some(parent)
}
