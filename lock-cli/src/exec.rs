//! `exec`: acquire, run once, release.

use std::io;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkit::clock::{Clock, Moment, SystemClock, sleep_until};
use lockkit::{
    LeaseState, LockGuard, LockName, LockProvider as _, Provider, Release, StopReason, Timing,
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::broadcast;

use crate::args::{self, Global, Wait};
use crate::child::signals::{self, FORWARDED};
use crate::child::supervise::{self, Cause, Job, Note, Outcome, stop_self, supervise};
use crate::exit::Exit;
use crate::failure::{Failure, describe};
use crate::output::{Level, Reporter, complain};
use crate::{library_log, program, span, state, store};

/// Runs `exec`.
pub(crate) async fn main(global: &Global, args: args::Exec) -> Result<ExitCode, Failure> {
    let name = LockName::new(&args.name)?;
    let timing = args.candidate.times.checked(global.request_timeout)?;
    program::check(&args.command[0])?;
    let report = Reporter::new(global, Level::Warn).with("name", name.as_str());

    let signals = signals::listen()?;
    supervise::prepare(&signals);
    // From here on no signal is missed: what comes before the command runs ends the wait.
    let mut received = signals.subscribe();

    let opened = OnceLock::new();
    let claimed = tokio::select! {
        biased;
        claimed = claim(global, &args, timing, &report, &opened) => claimed,
        signal = interrupted(&mut received) => Err(Failure::with_code(
            128 + u8::try_from(signal.as_raw()).unwrap_or(0),
            format!("{} while waiting for {name:?}; the command was not started", signals::name(signal.as_raw())),
        )),
    };
    let guard = match claimed {
        Ok(Claimed::Ours(guard)) => guard,
        Ok(Claimed::Theirs(provider)) => {
            let (who, fields) = holder(provider, name.as_str()).await;
            let text = format!("not acquired: {name:?} is {who}");
            report.event(Level::Warn, "not-acquired", &fields, &text);
            settle(&opened, timing, &mut received).await;
            return Ok(ExitCode::from(args.conflict_exit_code));
        }
        Err(failure) => {
            settle(&opened, timing, &mut received).await;
            return Err(failure);
        }
    };

    let term = guard.leadership().clone();
    let token = term.token().get();
    library_log::show_troubles(global, &report);
    report.event(
        Level::Detail,
        "gained",
        &[
            ("token", token.into()),
            ("owner", term.lease().owner().as_str().into()),
        ],
        &format!("acquired {name:?} with token {token}"),
    );
    let job = job(&args, &guard, timing);
    let began = SystemClock.now();
    let notes = report.clone();
    let outcome = supervise(job, term, received, move |note| tell(&notes, &note)).await;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            give_back(&guard, timing, &report).await;
            return Err(Failure::new(
                Exit::Internal,
                format!("cannot run the command: {error}"),
            ));
        }
    };
    if outcome.cause.is_none() {
        let until = began.after(args.at_least);
        hold(&guard, until, &mut signals.subscribe()).await;
    }
    finish(&name, &guard, timing, &report, &outcome).await
}

/// Keeps the lock until then, unless a signal or the loss of the term comes first.
async fn hold(guard: &LockGuard, until: Moment, received: &mut broadcast::Receiver<Signal>) {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    tokio::select! {
        () = sleep_until(&clock, until) => {}
        _ = interrupted(received) => {}
        _ = guard.stopping() => {}
    }
}

/// Releases and says what came of it all.
async fn finish(
    name: &LockName,
    guard: &LockGuard,
    timing: Timing,
    report: &Reporter,
    outcome: &Outcome,
) -> Result<ExitCode, Failure> {
    if let Some(status) = outcome.status {
        report.event(
            Level::Detail,
            "ended",
            &[("code", status.code().into())],
            &format!("the command {status}"),
        );
    }
    give_back(guard, timing, report).await;
    let ended = outcome.status.map_or_else(
        || "was not started".to_owned(),
        |status| format!("{status}"),
    );
    match (&outcome.cause, outcome.status) {
        (Some(Cause::Lost(reason)), _) => Err(Failure::new(
            Exit::Lost,
            format!("lost {name:?}: {reason}; the command {ended}"),
        )),
        (Some(Cause::Stopping(StopReason::Deadline)), _) => Err(Failure::new(
            Exit::Lost,
            format!("lost {name:?}: the lease could not be renewed in time; the command {ended}"),
        )),
        (Some(Cause::Stopping(reason)), _) => Err(Failure::new(
            Exit::Lost,
            format!("gave up {name:?}: {reason}; the command {ended}"),
        )),
        (Some(Cause::Terminated) | None, Some(status)) => Ok(ExitCode::from(status.code())),
        (Some(Cause::Terminated) | None, None) => Err(Failure::new(
            Exit::Lost,
            format!("lost {name:?} before the command was started"),
        )),
    }
}

/// Waits until a try that was given up while the store worked on it has left nothing behind, but not for a
/// store that does not answer, and not after another signal.
async fn settle(
    opened: &OnceLock<Provider>,
    timing: Timing,
    received: &mut broadcast::Receiver<Signal>,
) {
    let Some(provider) = opened.get() else {
        return;
    };
    tokio::select! {
        // What is left then expires by itself, as after a crash.
        _ = tokio::time::timeout(timing.request_timeout(), provider.settled()) => {}
        _ = interrupted(received) => {}
    }
}

enum Claimed<'a> {
    Ours(LockGuard),
    Theirs(&'a Provider),
}

/// Connects and acquires, as `--wait` and `--no-wait` say. What it has connected to stays in `opened`.
async fn claim<'a>(
    global: &Global,
    args: &args::Exec,
    timing: Timing,
    report: &Reporter,
    opened: &'a OnceLock<Provider>,
) -> Result<Claimed<'a>, Failure> {
    let name = args.name.as_str();
    let until = match args.wait {
        Some(Wait::AtMost(limit)) => Some(SystemClock.now().after(limit)),
        Some(Wait::Forever) | None => None,
    };
    let left = || until.map(|until| until.since(SystemClock.now()));
    let provider = store::open_patiently(global, &args.candidate, timing, report, || {
        args.wait.is_some() && left() != Some(Duration::ZERO)
    })
    .await?;
    let provider = opened.get_or_init(|| provider);
    match provider.try_acquire(name).await {
        Ok(Some(guard)) => return Ok(Claimed::Ours(guard)),
        Ok(None) if args.no_wait => return Ok(Claimed::Theirs(provider)),
        Ok(None) => {
            // Whoever looks on wonders why nothing happens; a log does not.
            let level = if rustix::termios::isatty(io::stderr()) {
                Level::Warn
            } else {
                Level::Detail
            };
            let (who, fields) = holder(provider, name).await;
            let text = format!("waiting for {name:?}, {who}");
            report.event(level, "waiting", &fields, &text);
        }
        Err(error) if args.wait.is_some() && error.is_retryable() => {}
        Err(error) => return Err(error.into()),
    }
    library_log::show_troubles(global, report);
    let Some(limit) = left() else {
        return Ok(Claimed::Ours(provider.acquire(name).await?));
    };
    Ok(match provider.acquire_within(name, limit).await? {
        Some(guard) => Claimed::Ours(guard),
        None => Claimed::Theirs(provider),
    })
}

/// A signal that ends the wait.
async fn interrupted(received: &mut broadcast::Receiver<Signal>) -> Signal {
    loop {
        match received.recv().await {
            Ok(signal @ (Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)) => {
                return signal;
            }
            Ok(Signal::TSTP) => {
                stop_self();
            }
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn job(args: &args::Exec, guard: &LockGuard, timing: Timing) -> Job {
    Job {
        command: args.command.clone(),
        environment: environment(guard.leadership()),
        interactive: true,
        forwarded: FORWARDED.to_vec(),
        timing,
    }
}

/// What the command is told of its term.
pub(crate) fn environment(term: &lockkit::Leadership) -> Vec<(&'static str, String)> {
    let lease = term.lease();
    vec![
        ("LOCKCTL_NAME", lease.name().to_string()),
        ("LOCKCTL_TOKEN", lease.token().to_string()),
        ("LOCKCTL_OWNER", lease.owner().to_string()),
        ("LOCKCTL_DEADLINE", term.deadline().as_nanos().to_string()),
    ]
}

/// Reports what happens to a command.
pub(crate) fn tell(report: &Reporter, note: &Note) {
    match note {
        Note::Started(pid) => report.event(
            Level::Detail,
            "started",
            &[("pid", (*pid).into())],
            &format!("the command runs as process {pid}"),
        ),
        Note::Told(Cause::Terminated) => {
            report.event(
                Level::Detail,
                "stopping",
                &[("reason", "SIGTERM".into())],
                "SIGTERM: passed on to the command",
            );
        }
        Note::Told(Cause::Stopping(reason)) => report.event(
            Level::Info,
            "stopping",
            &[("reason", reason.to_string().into())],
            &format!("{reason}: the command is told to stop"),
        ),
        Note::Told(Cause::Lost(reason)) => report.event(
            Level::Warn,
            "killing",
            &[("reason", reason.to_string().into())],
            &format!("lost: {reason}; what still runs is killed"),
        ),
        Note::Leftovers => report.event(
            Level::Warn,
            "leftovers",
            &[],
            "the command has ended, but not all that it had started; that is told to stop too",
        ),
        Note::Unkillable => complain(
            "what is left of the command was killed but is not gone; waiting for the kernel",
        ),
    }
}

/// Who holds the name, as text and as the fields of an event. It may have been released meanwhile.
async fn holder(provider: &Provider, name: &str) -> (String, Vec<(&'static str, Value)>) {
    let seen = provider.observe(name).await;
    match seen.as_ref().map(|seen| &seen.state) {
        Ok(state @ LeaseState::Held(holder)) => (state::describe(state), state::of_holder(holder)),
        _ => ("held by somebody else".into(), Vec::new()),
    }
}

/// Frees the name, but does not wait for a store that does not answer.
async fn give_back(guard: &LockGuard, timing: Timing, report: &Reporter) {
    let left = guard.remaining();
    let limit = timing.request_timeout();
    let why = match tokio::time::timeout(limit, guard.release()).await {
        Ok(Ok(Release::Released)) => {
            report.event(Level::Detail, "released", &[], "released");
            return;
        }
        Ok(Ok(Release::NotHeld)) => {
            report.event(
                Level::Warn,
                "not-held",
                &[],
                "the lease had been lost before it was released",
            );
            return;
        }
        Ok(Err(error)) => describe(&error),
        Err(_) => format!("no answer within {}", span::show(limit)),
    };
    let left = span::show(left.max(timing.margin()));
    report.event(
        Level::Warn,
        "unreleased",
        &[("why", why.clone().into())],
        &format!(
            "the release is not confirmed; the lease expires by itself, in about {left}: {why}"
        ),
    );
}
