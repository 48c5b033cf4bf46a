//! The wrapper's side: runs a command for one term.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::time::Duration;

use lockkit::clock::Moment;
use lockkit::{Leadership, LossReason, StopReason, Timing};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal};
use tokio::sync::broadcast;

use super::alarm::{Alarm, now};
use super::reaper::{adopt_orphans, collect, reap};
use super::terminal::Terminal;
use super::tree::{alone_in_group, signal_descendants};
use super::wire::{Channel, Order, Report};
use super::{KEEPER, Status, own_program};

/// How long after the moment of the kill the wrapper kills by itself: the keeper may be stopped.
const KEEPER_SLACK: Duration = Duration::from_millis(150);

/// How long killed processes may take to be gone before it is worth a word.
const DEATH: Duration = Duration::from_secs(5);

/// A command and how it is to run.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// What is put into its environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Whether it is the command at the terminal: gets its keys, and standard input even from there.
    pub(crate) interactive: bool,
    /// The signals that are passed on.
    pub(crate) forwarded: Vec<Signal>,
    /// The times of the lease.
    pub(crate) timing: Timing,
}

/// Why a command was told to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// SIGTERM came, and was passed on.
    Terminated,
    /// The library said so.
    Stopping(StopReason),
    /// The term was lost.
    Lost(LossReason),
}

/// What came of a command.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// How it ended; `None` when it was not started.
    pub(crate) status: Option<Status>,
    /// Why it was told to stop, if it was.
    pub(crate) cause: Option<Cause>,
}

/// Something that happened while a command ran.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    /// It runs as this process.
    Started(i32),
    /// It is told to stop.
    Told(Cause),
    /// It has ended but what it had started has not.
    Leftovers,
    /// Processes have been killed but are not gone.
    Unkillable,
}

/// Makes this process ready to run commands: call it once, inside the runtime.
pub(crate) fn prepare(signals: &broadcast::Sender<Signal>) {
    adopt_orphans();
    collect(signals.subscribe());
}

/// Runs the command until it has ended, and everything it has started too.
///
/// # Errors
/// Why no process could be made.
///
/// # Cancel safety
/// Dropping it kills the command, but does not wait until it is gone.
pub(crate) async fn supervise(
    job: Job,
    term: Leadership,
    mut received: broadcast::Receiver<Signal>,
    note: impl Fn(Note) + Send,
) -> io::Result<Outcome> {
    let terminal = Terminal::open();
    // A pipeline's other programs share this process's group, and one of them may need the terminal:
    // then the command gets it when it asks, by being stopped for it.
    let at_terminal =
        job.interactive && terminal.as_ref().is_some_and(Terminal::is_ours) && alone_in_group();
    let alarm = Alarm::new()?;
    let channel = start(&job, at_terminal)?;
    let mut run = Run {
        channel,
        job,
        terminal,
        group: None,
        sent: Moment::START,
        cause: None,
        kill_at: Moment::NEVER,
        note,
    };
    let outcome = run.watch(&term, &mut received, &alarm).await;
    run.give_terminal_back(matches!(
        outcome,
        Ok(Outcome {
            status: Some(Status::Killed(_)),
            ..
        })
    ));
    outcome
}

/// Starts the keeper and hands it the command's standard input.
fn start(job: &Job, at_terminal: bool) -> io::Result<Channel> {
    let (ours, theirs) = UnixStream::pair()?;
    Command::new(own_program()?)
        .arg0("lockctl")
        .arg(KEEPER)
        .arg(if at_terminal { "fg" } else { "bg" })
        .args(&job.command)
        .envs(job.environment.iter().map(|(k, v)| (k, v)))
        .env_remove(crate::args::STORE_VARIABLE)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        // Keys at the terminal and signals to the wrapper's group are not for the keeper.
        .process_group(0)
        .spawn()?;
    let inherited = io::stdin();
    let null;
    let stdin = if job.interactive || !rustix::termios::isatty(&inherited) {
        inherited.as_fd()
    } else {
        null = File::open("/dev/null")?;
        null.as_fd()
    };
    let descriptors = [stdin];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        &ours,
        &[IoSlice::new(b"i")],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Channel::new(ours)
}

struct Run<N> {
    channel: Channel,
    job: Job,
    terminal: Option<Terminal>,
    group: Option<Pid>,
    /// The deadline that the keeper knows.
    sent: Moment,
    cause: Option<Cause>,
    /// When the keeper has killed the command.
    kill_at: Moment,
    note: N,
}

impl<N: Fn(Note)> Run<N> {
    async fn watch(
        &mut self,
        term: &Leadership,
        received: &mut broadcast::Receiver<Signal>,
        alarm: &Alarm,
    ) -> io::Result<Outcome> {
        let mut stopping = pin!(term.stopping());
        let mut lost = pin!(term.lost());
        let mut is_stopping = false;
        let mut is_lost = false;
        // The first deadline starts the command.
        if !term.check() {
            return Ok(self.outcome(None));
        }
        if self.tell_deadline(term).await.is_err() {
            return self.without_keeper().await;
        }
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                reason = &mut lost, if !is_lost => {
                    is_lost = true;
                    // It may have been the deadline that the command was told of before.
                    self.cause = Some(Cause::Lost(reason.clone()));
                    self.kill_at = now();
                    (self.note)(Note::Told(Cause::Lost(reason)));
                    if self.channel.send(&Order::Kill).await.is_err() {
                        return self.without_keeper().await;
                    }
                }
                report = self.channel.receive() => match report {
                    Ok(Some(report)) => {
                        if let Some(outcome) = self.on_report(&report, term).await? {
                            return Ok(outcome);
                        }
                    }
                    Ok(None) | Err(_) => return self.without_keeper().await,
                },
                reason = &mut stopping, if !is_stopping => {
                    is_stopping = true;
                    if self.cause.is_none() {
                        self.stop(Cause::Stopping(reason)).await;
                    }
                }
                signal = received.recv() => {
                    if let Ok(signal) = signal {
                        self.on_signal(signal, term).await;
                    }
                }
                () = alarm.at(due) => {
                    if now() >= self.kill_at.after(KEEPER_SLACK) {
                        return self.without_keeper().await;
                    }
                    if self.tell_deadline(term).await.is_err() {
                        return self.without_keeper().await;
                    }
                }
            }
        }
    }

    fn outcome(&self, status: Option<Status>) -> Outcome {
        Outcome {
            status,
            cause: self.cause.clone(),
        }
    }

    /// How much before the deadline the command is killed, so that it is gone at the deadline.
    fn lead(&self) -> Duration {
        (self.job.timing.drain() / 8).min(Duration::from_millis(100))
    }

    /// Tells the keeper the deadline if a renewal has moved it.
    async fn tell_deadline(&mut self, term: &Leadership) -> io::Result<()> {
        let deadline = term.deadline();
        if self.cause.is_some() || deadline <= self.sent {
            return Ok(());
        }
        self.sent = deadline;
        let killed = deadline.before(self.lead());
        self.kill_at = killed;
        let order = Order::Lease {
            stop_at: self.job.timing.stop_at(deadline).as_nanos(),
            deadline: killed.as_nanos(),
        };
        self.channel.send(&order).await
    }

    /// When to look at the deadline again. A renewal moves it well before `stop_at`; the last look is
    /// just before.
    fn due(&self) -> Moment {
        if self.cause.is_some() {
            return self.kill_at.after(KEEPER_SLACK);
        }
        let every = (self.job.timing.renew_every() / 4)
            .clamp(Duration::from_millis(5), Duration::from_secs(1));
        let last = self
            .job
            .timing
            .stop_at(self.sent)
            .before(Duration::from_millis(5));
        let next = now().after(every);
        if last > now() { next.min(last) } else { next }
    }

    async fn stop(&mut self, cause: Cause) {
        self.cause = Some(cause.clone());
        let drain = self.job.timing.drain().saturating_sub(self.lead());
        self.kill_at = self.kill_at.min(now().after(drain));
        (self.note)(Note::Told(cause));
        let kill_at = self.kill_at.as_nanos();
        // A keeper that cannot be told has ended, which the next turn notices, or is stopped, and
        // then the slack runs out.
        let _ = self.channel.send(&Order::Stop { kill_at }).await;
    }

    async fn on_signal(&mut self, signal: Signal, term: &Leadership) {
        if !self.job.forwarded.contains(&signal) {
            return;
        }
        if signal == Signal::CONT {
            if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
                && self.job.interactive
                && terminal.is_ours()
            {
                terminal.give_to(group);
            }
            if !term.check() {
                return;
            }
        }
        let number = signal.as_raw();
        let _ = self.channel.send(&Order::Signal { number }).await;
        if signal == Signal::TERM && self.cause.is_none() {
            self.stop(Cause::Terminated).await;
        }
    }

    async fn on_report(
        &mut self,
        report: &Report,
        term: &Leadership,
    ) -> io::Result<Option<Outcome>> {
        match report {
            Report::Started { pid } => {
                self.group = Pid::from_raw(*pid);
                (self.note)(Note::Started(*pid));
            }
            Report::Failed { why } => return Err(io::Error::other(why.clone())),
            Report::Stopped { signal } => self.on_stopped(*signal, term).await,
            Report::Overdue => {
                if self.cause.is_none() {
                    let cause = Cause::Stopping(StopReason::Deadline);
                    self.cause = Some(cause.clone());
                    (self.note)(Note::Told(cause));
                }
            }
            Report::Leftovers => (self.note)(Note::Leftovers),
            Report::Ended { code, signal } => {
                let status = match (code, signal) {
                    (Some(code), _) => Status::Exited(*code),
                    (None, Some(signal)) => Status::Killed(*signal),
                    (None, None) => Status::Killed(Signal::KILL.as_raw()),
                };
                return Ok(Some(self.outcome(Some(status))));
            }
        }
        Ok(None)
    }

    /// The command was stopped, by a key or because it read the terminal in the background: the shell
    /// must see this process stop too. The lease is not renewed then; the keeper goes on.
    async fn on_stopped(&mut self, signal: i32, term: &Leadership) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else {
            return;
        };
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        if self.job.interactive && wants_terminal && terminal.is_ours() {
            terminal.give_to(group);
        } else {
            let at_terminal = terminal.take_back_from(group);
            if stop_self() {
                return;
            }
            if at_terminal {
                terminal.give_to(group);
            }
        }
        if term.check() {
            let number = Signal::CONT.as_raw();
            let _ = self.channel.send(&Order::Signal { number }).await;
        }
    }

    fn give_terminal_back(&self, killed: bool) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            terminal.take_back_from(group);
            if killed {
                terminal.restore_modes();
            }
        }
    }

    /// The keeper is dead or does not act: this process is now the parent of all that is left, and
    /// ends it.
    async fn without_keeper(&mut self) -> io::Result<Outcome> {
        let mut overdue = now().after(DEATH);
        loop {
            signal_descendants(Signal::KILL);
            #[cfg(not(target_os = "linux"))]
            if let Some(group) = self.group {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            if reap().none_left {
                break;
            }
            // Only the kernel can hold a killed process. While one is left nothing is released.
            if now() >= overdue {
                overdue = Moment::NEVER;
                (self.note)(Note::Unkillable);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let status = self.group.map(|_| Status::Killed(Signal::KILL.as_raw()));
        Ok(self.outcome(status))
    }
}

/// Stops this process where a shell does job control over it, and returns when it was continued;
/// SIGCONT then also comes in as a signal. False where nobody would continue it.
pub(crate) fn stop_self() -> bool {
    Terminal::has_job_control()
        && rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).is_ok()
}
