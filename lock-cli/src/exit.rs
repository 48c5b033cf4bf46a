//! The exit codes: one table, shown by `--help`, checked against the documentation.

use std::io;
use std::process::ExitCode;

use lockkit::{Error, ErrorKind};

/// Why `lockctl` itself ended. What a command returned is passed through beside these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// An argument, a setting or a name is wrong.
    Usage = 64,
    /// The store cannot be reached, or gave no answer in time.
    Unavailable = 69,
    /// Something that should not happen.
    Internal = 70,
    /// Somebody else held the lock.
    NotAcquired = 75,
    /// What the store has there is not ours.
    Schema = 76,
    /// The store refuses us.
    Permission = 77,
    /// The lease ended before the command did.
    Lost = 79,
    /// `run` was told to end before it ever led.
    NeverLed = 80,
}

/// Every exit code with its meaning, in order.
pub(crate) const TABLE: &[(&str, &str)] = &[
    ("0", "the command ended well, or what was asked was done"),
    (
        "64",
        "usage: an argument, a time, a name or the store's URL is wrong; nothing was sent",
    ),
    (
        "69",
        "unavailable: the store cannot be reached or did not answer in time; the command was not started",
    ),
    (
        "70",
        "internal: a fault of lockctl, or an answer of the store that makes no sense",
    ),
    (
        "75",
        "not acquired: somebody else held the lock all the time (change it with --conflict-exit-code)",
    ),
    (
        "76",
        "schema: the table or folder in the store is missing or of another shape",
    ),
    (
        "77",
        "permission: the store does not accept the credentials, or they lack a right",
    ),
    (
        "79",
        "lost: the lease ended before the command did, which was told to stop and then killed",
    ),
    (
        "80",
        "never led: `run` was told to end while it stood by; the command was not started",
    ),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    (
        "128+n",
        "signal n ended the command, or lockctl while it waited for the lock",
    ),
    ("other", "the command's own code"),
];

/// The table as text for `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Exit codes:\n");
    for (code, meaning) in TABLE {
        text.push_str(&format!("  {code:<6} {meaning}\n"));
    }
    text
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The code for an error of the library.
pub(crate) fn of_error(error: &Error) -> Exit {
    match error.kind() {
        ErrorKind::InvalidConfig | ErrorKind::InvalidName | ErrorKind::Unsupported => Exit::Usage,
        ErrorKind::Timeout | ErrorKind::Tls | ErrorKind::Unavailable => Exit::Unavailable,
        ErrorKind::Conflict | ErrorKind::Schema => Exit::Schema,
        ErrorKind::PermissionDenied => Exit::Permission,
        ErrorKind::LeaseLost => Exit::Lost,
        _ => Exit::Internal,
    }
}

/// The shell's code for a command that could not be executed.
pub(crate) fn of_exec_error(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_code_once() {
        let all = [
            Exit::Usage,
            Exit::Unavailable,
            Exit::Internal,
            Exit::NotAcquired,
            Exit::Schema,
            Exit::Permission,
            Exit::Lost,
            Exit::NeverLed,
        ];
        for exit in all {
            let code = (exit as u8).to_string();
            assert_eq!(
                TABLE.iter().filter(|(c, _)| *c == code).count(),
                1,
                "{code}"
            );
        }
        assert_eq!(TABLE.len(), all.len() + 5);
    }
}
