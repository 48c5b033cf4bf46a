//! How `lockctl` fails: one line and a code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use lockkit::{Error, ErrorKind};

use crate::exit::{self, Exit};

/// Why it ends, for people and for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// A failure with one of our codes.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::with_code(exit as u8, message)
    }

    /// A failure with any code.
    pub(crate) fn with_code(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The message, one line without a full stop.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Whether it is this one of our codes.
    pub(crate) fn is(&self, exit: Exit) -> bool {
        self.code == exit as u8
    }

    /// The exit code as a number.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// The library says what and where; this adds how to mend it, and the cause.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = exit::of_error(&error);
        Self::new(exit, describe(&error))
    }
}

/// An error with what to do about it, and with its cause where the library cannot say more itself.
pub(crate) fn describe(error: &Error) -> String {
    let mut message = error.to_string();
    let remedy = match error.kind() {
        // It names the very statement.
        ErrorKind::PermissionDenied if message.contains("run: ") => return message,
        ErrorKind::Unavailable | ErrorKind::Timeout => {
            "; check that the store of --store or LOCKCTL_STORE is there and can be reached"
        }
        // The rights to a file: the message says all.
        ErrorKind::PermissionDenied if error.backend() == Some("sqlite") => return message,
        ErrorKind::PermissionDenied => {
            "; check the credentials in --store or LOCKCTL_STORE and their rights"
        }
        ErrorKind::Tls => "; check the certificates and the TLS settings of the store's URL",
        ErrorKind::Backend => "",
        // How to prepare it here.
        ErrorKind::Schema => {
            return message.replace("prepare the store", "`lockctl exec` or `run` makes it");
        }
        // The message says what is wrong, and how to mend it.
        _ => return message,
    };
    let mut causes = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    // Where the message has the deepest cause, the layers between add nothing. PostgreSQL's names a line of
    // the server's source.
    let root = causes
        .last()
        .and_then(|root| root.split(" at line ").next());
    if root.is_some_and(|root| message.contains(root)) {
        causes.clear();
    }
    for text in causes {
        // Many drivers repeat the cause in their own text.
        if !message.contains(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
    }
    message.push_str(remedy);
    message
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(Exit::Internal, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
