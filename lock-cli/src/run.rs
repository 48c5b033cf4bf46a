//! `run`: an election; the command runs while this candidate leads.

use std::ffi::OsString;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use lockkit::{Elector, Leadership, LockName, LockProvider as _, StopReason, Timing};
use rustix::process::Signal;
use tokio::sync::{Mutex, broadcast};
use tokio::task::JoinHandle;

use crate::args::{self, Global};
use crate::child::Status;
use crate::child::signals;
use crate::child::supervise::{self, Cause, Job, Outcome, stop_self, supervise};
use crate::exec::{environment, tell};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Level, Reporter};
use crate::{events, program, store};

/// The signals that are passed on. Those that end `run` are not among them: it tells the command
/// to stop in its own way.
const FORWARDED: [Signal; 6] = [
    Signal::HUP,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::TSTP,
    Signal::CONT,
];

/// How long the last events are waited for.
const LAST_EVENTS: Duration = Duration::from_millis(200);

/// Runs `run`.
pub(crate) async fn main(global: &Global, args: args::Run) -> Result<ExitCode, Failure> {
    let name = LockName::new(&args.name)?;
    let timing = args.candidate.times.checked(global.request_timeout)?;
    let owner = args.candidate.owner()?;
    program::check(&args.command[0])?;
    let report = Reporter::new(global, Level::Info)
        .with("name", name.as_str())
        .with("owner", owner.as_str());

    let signals = signals::listen()?;
    supervise::prepare(&signals);
    let mut received = signals.subscribe();
    let hangs_up = rustix::termios::isatty(io::stderr());

    let connecting = store::open_patiently(global, &args.candidate, timing, &report, || true);
    let provider = tokio::select! {
        biased;
        provider = connecting => provider?,
        () = told_to_end(&mut received, hangs_up, || true) => return Err(never_led(&name)),
    };
    let candidate = Candidate {
        elector: provider.elector(name.as_str())?,
        command: args.command,
        timing,
        report,
        signals,
        running: Mutex::new(None),
        last: StdMutex::new(None),
        led: AtomicBool::new(false),
    };
    candidate.run(&name, received, hangs_up).await
}

fn never_led(name: &LockName) -> Failure {
    Failure::new(
        Exit::NeverLed,
        format!("told to end before it led {name:?}; the command was not started"),
    )
}

/// What the terms of one candidate share.
struct Candidate {
    elector: Elector,
    command: Vec<OsString>,
    timing: Timing,
    report: Reporter,
    signals: broadcast::Sender<Signal>,
    /// The command of the last term. It is awaited before another is started, also when the work that
    /// started it was dropped because its term was lost.
    running: Mutex<Option<JoinHandle<io::Result<Outcome>>>>,
    /// What came of the command that ran when `run` was told to end.
    last: StdMutex<Option<Status>>,
    led: AtomicBool,
}

impl Candidate {
    async fn run(
        &self,
        name: &LockName,
        mut received: broadcast::Receiver<Signal>,
        hangs_up: bool,
    ) -> Result<ExitCode, Failure> {
        let events = events::follow(self.elector.events(), self.report.clone());
        let events = tokio::spawn(events);
        let ended = {
            let mut running = pin!(self.elector.run(|term| self.term(term)));
            let idle = || {
                self.running
                    .try_lock()
                    .is_ok_and(|running| running.is_none())
            };
            tokio::select! {
                biased;
                ended = &mut running => ended,
                () = told_to_end(&mut received, hangs_up, idle) => {
                    self.elector.shutdown();
                    running.await
                }
            }
        };
        // The command of a term that was lost on the way out.
        if let Some(running) = self.running.lock().await.take() {
            let _ = running.await;
        }
        // What has happened is told before the end. Without an answer of the store there is no end.
        let _ = tokio::time::timeout(LAST_EVENTS, events).await;
        ended?;
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(status) => Ok(ExitCode::from(status.code())),
            None if self.led.load(Ordering::Relaxed) => Ok(ExitCode::SUCCESS),
            None => Err(never_led(name)),
        }
    }

    /// One term: runs the command until it ends.
    async fn term(&self, term: Leadership) -> Result<(), String> {
        let mut running = self.running.lock().await;
        if let Some(earlier) = running.as_mut() {
            let _ = earlier.await;
            *running = None;
        }
        if !term.check() {
            return Ok(());
        }
        self.led.store(true, Ordering::Relaxed);
        let job = Job {
            command: self.command.clone(),
            environment: environment(&term),
            interactive: false,
            forwarded: FORWARDED.to_vec(),
            timing: self.timing,
        };
        let token = term.token().get();
        let report = self.report.clone();
        let notes = move |note| tell(&report, &note);
        // A task of its own: dropping the work, which the loss of a term does, must not lose sight of
        // a command that is still dying.
        let task = tokio::spawn(supervise(job, term, self.signals.subscribe(), notes));
        let outcome = running.insert(task).await;
        *running = None;
        let outcome = outcome
            .map_err(|error| error.to_string())?
            .map_err(|error| format!("cannot run the command: {error}"))?;
        let Some(status) = outcome.status else {
            return Ok(());
        };
        self.report.event(
            Level::Info,
            "ended",
            &[("token", token.into()), ("code", status.code().into())],
            &match outcome.cause {
                Some(_) => format!("the command {status}"),
                None => format!(
                    "the command {status}; giving the lead up, and trying again after a pause"
                ),
            },
        );
        match outcome.cause {
            Some(Cause::Stopping(StopReason::Shutdown)) => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                Ok(())
            }
            Some(_) => Ok(()),
            None if status == Status::Exited(0) => Ok(()),
            None => Err(format!("the command {status}")),
        }
    }
}

/// Resolves when a signal says that `run` is to end. While no command runs it also stops for the
/// shell's job control.
async fn told_to_end(
    received: &mut broadcast::Receiver<Signal>,
    hangs_up: bool,
    idle: impl Fn() -> bool,
) {
    loop {
        match received.recv().await {
            Ok(Signal::INT | Signal::TERM | Signal::QUIT) => return,
            // With a terminal it means that the terminal is gone; else, by custom, "read your settings
            // again", which is for the command.
            Ok(Signal::HUP) if hangs_up => return,
            Ok(Signal::TSTP) if idle() => {
                stop_self();
            }
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
