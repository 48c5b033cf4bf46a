//! One candidate of the demonstration: a real `lockctl run` in a process of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::WORKER;
use super::worker::Beat;
use crate::args::STORE_VARIABLE;
use crate::child::{SHIM, own_program};

/// The name of the election.
pub(super) const NAME: &str = "demo";

/// How many streams a candidate speaks on: its work on one, itself on the other.
pub(super) const STREAMS: usize = 2;

/// What a candidate or its work says.
#[derive(Clone, Debug)]
pub(super) enum Said {
    /// An event of the election.
    Event(Event),
    /// A sign of work.
    Beat(Beat),
    /// A line that is neither: something is wrong there.
    Noise(String),
    /// One of its streams has ended.
    Gone,
}

/// An event as `lockctl run --format json` writes it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Event {
    pub(super) event: String,
    pub(super) boot_ns: u64,
    pub(super) token: Option<u64>,
    pub(super) deadline: Option<u64>,
    pub(super) why: Option<String>,
}

/// A running candidate. Dropping it kills it; its keeper then kills the work.
#[derive(Debug)]
pub(super) struct Candidate {
    process: Child,
}

impl Candidate {
    /// Starts a candidate, which tells `said` what it sees under its number.
    pub(super) fn start(
        number: usize,
        store: &str,
        ttl: &str,
        said: &mpsc::UnboundedSender<(usize, Said)>,
    ) -> io::Result<Self> {
        let label = char::from(b'A' + u8::try_from(number).unwrap_or(0));
        let program = own_program()?;
        // Started through the shim, it dies with this process.
        let mut process = Command::new(&program)
            .arg0("lockctl")
            .args([SHIM, &std::process::id().to_string(), "bg"])
            .arg(&program)
            .args(["run", NAME, "--format", "json", "--verbose"])
            .args(["--owner", &label.to_string(), "--ttl", ttl, "--"])
            .arg(&program)
            .arg(WORKER)
            .env(STORE_VARIABLE, store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let out = process.stdout.take().map(OwnedFd::from);
        let err = process.stderr.take().map(OwnedFd::from);
        let candidate = Self { process };
        let (Some(out), Some(err)) = (out, err) else {
            return Err(io::Error::other("the candidate has no pipes"));
        };
        let out = pipe::Receiver::from_owned_fd(out)?;
        let err = pipe::Receiver::from_owned_fd(err)?;
        tokio::spawn(listen(number, out, said.clone(), |line| {
            serde_json::from_str(line).ok().map(Said::Beat)
        }));
        tokio::spawn(listen(number, err, said.clone(), |line| {
            serde_json::from_str(line).ok().map(Said::Event)
        }));
        Ok(candidate)
    }

    /// Sends it a signal.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        // It is not reaped before it is dropped, so the number is its own.
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the candidate has no process id"))?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn listen(
    number: usize,
    from: impl AsyncRead + Unpin,
    said: mpsc::UnboundedSender<(usize, Said)>,
    read: impl Fn(&str) -> Option<Said>,
) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let what = read(&line).unwrap_or(Said::Noise(line));
        if said.send((number, what)).is_err() {
            return;
        }
    }
    // Nobody may listen any more.
    let _ = said.send((number, Said::Gone));
}
