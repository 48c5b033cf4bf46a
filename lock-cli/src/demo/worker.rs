//! The work of the demonstration: it says every few milliseconds that it is at work.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use lockkit::clock::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

use crate::exit::Exit;

/// How often it says so.
pub(crate) const EVERY: Duration = Duration::from_millis(10);

/// One sign of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    /// The token of the term it works in.
    pub(crate) token: u64,
    /// When, in nanoseconds since the machine was booted.
    pub(crate) boot_ns: u64,
}

/// Works until it is killed.
pub(crate) fn main() -> ExitCode {
    let token = std::env::var("LOCKCTL_TOKEN")
        .ok()
        .and_then(|token| token.parse().ok());
    let Some(token) = token else {
        return Exit::Usage.into();
    };
    let mut out = io::stdout().lock();
    loop {
        let beat = Beat {
            token,
            boot_ns: SystemClock.now().as_nanos(),
        };
        let written = serde_json::to_writer(&mut out, &beat)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush());
        if written.is_err() {
            // Nobody listens any more.
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(EVERY);
    }
}
