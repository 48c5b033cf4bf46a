//! The commands that the tests run under `lockctl`: this test program, run again by itself.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::Duration;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::support::boot_ns;

/// Says what the fixture is to do; without it, it does nothing.
pub(crate) const WHAT: &str = "LOCKCTL_FIXTURE";
/// The file it writes to.
pub(crate) const FILE: &str = "LOCKCTL_FIXTURE_FILE";

/// How often a stamp is written.
pub(crate) const STAMP_EVERY: Duration = Duration::from_millis(10);

/// Not a test but the victim of some: it does what [`WHAT`] says.
#[test]
fn fixture() {
    let Ok(what) = std::env::var(WHAT) else {
        return;
    };
    let path = std::env::var(FILE).expect("a file to write to");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("the file can be written");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let code = runtime.block_on(async {
        match what.as_str() {
            "signals" => record_signals(file).await,
            "stamps" => stamp(file, None, false).await,
            "stubborn-stamps" => stamp(file, None, true).await,
            "tidy-stamps" => stamp(file, Some(Duration::from_millis(600)), true).await,
            other => panic!("unknown fixture {other:?}"),
        }
    });
    std::process::exit(code);
}

fn line(mut file: &File, text: &str) {
    // One write for a line: appended whole, also beside other writers.
    file.write_all(format!("{text}\n").as_bytes())
        .expect("the file can be written");
}

/// Writes the name of every signal that comes; ends a moment after SIGTERM.
async fn record_signals(file: File) -> i32 {
    let names = [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::TSTP, "TSTP"),
        (Signal::CONT, "CONT"),
    ];
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    for (number, name) in names {
        let mut stream = signal(SignalKind::from_raw(number.as_raw())).expect("a handler");
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                sender.send(name).expect("the other end waits");
            }
        });
    }
    line(&file, "ready");
    while let Some(name) = received.recv().await {
        line(&file, name);
        if name == "TERM" {
            // A second one, or another, would still be seen.
            while let Ok(Some(name)) =
                tokio::time::timeout(Duration::from_millis(200), received.recv()).await
            {
                line(&file, name);
            }
            return 7;
        }
    }
    1
}

/// Writes the time and the token, again and again. `stubborn`: SIGTERM does not end it at once, but
/// after `tidy_up`, or never.
async fn stamp(file: File, tidy_up: Option<Duration>, stubborn: bool) -> i32 {
    let token = std::env::var("LOCKCTL_TOKEN").expect("lockctl gives a token");
    let mut told = stubborn.then(|| signal(SignalKind::terminate()).expect("a handler"));
    let mut end = None;
    loop {
        line(&file, &format!("{token} {}", boot_ns()));
        tokio::select! {
            () = tokio::time::sleep(STAMP_EVERY) => {}
            _ = async { told.as_mut().expect("only when stubborn").recv().await }, if stubborn => {
                line(&file, &format!("{token} {} told", boot_ns()));
                end = tidy_up.map(|span| tokio::time::Instant::now() + span);
            }
        }
        if end.is_some_and(|end| tokio::time::Instant::now() >= end) {
            return 0;
        }
    }
}
