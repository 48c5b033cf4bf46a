//! The signals that are passed on.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast;

/// What is passed on to the command, each exactly once.
pub(crate) const FORWARDED: [Signal; 9] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// The name of a signal, such as `SIGTERM`.
pub(crate) fn name(number: i32) -> String {
    let known = match Signal::from_named_raw(number) {
        Some(Signal::INT) => "SIGINT",
        Some(Signal::TERM) => "SIGTERM",
        Some(Signal::HUP) => "SIGHUP",
        Some(Signal::QUIT) => "SIGQUIT",
        Some(Signal::KILL) => "SIGKILL",
        Some(Signal::USR1) => "SIGUSR1",
        Some(Signal::USR2) => "SIGUSR2",
        _ => return format!("signal {number}"),
    };
    known.to_owned()
}

/// Takes the forwarded signals, and the end of a child, from now on.
///
/// A signal that was ignored when the program started stays ignored, also in the command: that is
/// what `nohup` and a shell's `&` ask for.
pub(crate) fn listen() -> io::Result<broadcast::Sender<Signal>> {
    let (sender, _) = broadcast::channel(1024);
    let ignored = ignored();
    for forwarded in FORWARDED.into_iter().chain([Signal::CHILD]) {
        let number = forwarded.as_raw();
        if ignored & (1 << (number - 1)) != 0 && forwarded != Signal::CHILD {
            continue;
        }
        let mut stream = signal(SignalKind::from_raw(number))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                // Nobody listens while no command runs and nothing is waited for.
                let _ = sender.send(forwarded);
            }
        });
    }
    Ok(sender)
}

/// The signals that this process ignores, as a bit set; none where the system does not tell.
fn ignored() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|l| l.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0)
}
