//! The process between wrapper and command: see the [module](super).

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use lockkit::clock::Moment;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::broadcast;

use super::alarm::{Alarm, now};
use super::reaper::{adopt_orphans, reap};
use super::tree::signal_descendants;
use super::wire::{Channel, Order, Report};
use super::{SHIM, Status, own_program, signals};
use crate::exit::Exit;
use crate::output::complain;

/// How often a kill is repeated until nothing is left: between the look at the process list and the
/// kill, a process may have started another.
const KILL_AGAIN: Duration = Duration::from_millis(20);

/// How long after `stop_at` the keeper tells the command by itself. The wrapper does it on time and
/// for its own reasons; this is for a wrapper that is stopped or starved.
const TELL_SLACK: Duration = Duration::from_millis(100);

/// Runs the keeper. `arguments` are `fg` or `bg`, and the command. Standard input is the socket to the
/// wrapper, over which the command's own standard input comes first.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let foreground = arguments.next().unwrap_or_default();
    let command: Vec<OsString> = arguments.collect();
    let started = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .and_then(|control| {
            let control = UnixStream::from(control);
            let stdin = receive_descriptor(&control)?;
            Ok((control, stdin))
        });
    let (control, stdin) = match started {
        Ok((control, Some(stdin))) => (control, stdin),
        // The wrapper died before it could say anything; so nothing was started.
        Ok((_, None)) => return Exit::Lost.into(),
        Err(_) => {
            complain("this is an internal command; try `lockctl --help`");
            return Exit::Usage.into();
        }
    };
    adopt_orphans();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let kept = runtime.and_then(|runtime| {
        runtime.block_on(async {
            // Signals to a whole control group or session reach this process too. Passing them on
            // is the wrapper's part.
            let signals = signals::listen()?;
            let changes = signals.subscribe();
            let keeper = Keeper {
                channel: Some(Channel::new(control)?),
                foreground,
                command,
                group: None,
                ended: None,
                stop_at: Moment::NEVER,
                deadline: Moment::NEVER,
                told: false,
                stopped: false,
                leftovers: false,
                killing: false,
            };
            keeper.run(stdin, changes).await
        })
    });
    match kept {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("the keeper of the command failed: {error}"));
            Exit::Internal.into()
        }
    }
}

/// One byte and a descriptor; `None` at the end of the stream.
fn receive_descriptor(control: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(
        control,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        close_on_exec(),
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor
        .map(Some)
        .ok_or_else(|| io::Error::other("no descriptor came"))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn close_on_exec() -> RecvFlags {
    RecvFlags::CMSG_CLOEXEC
}

/// Elsewhere the descriptor is dropped right after the command has started; it gets it twice.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn close_on_exec() -> RecvFlags {
    RecvFlags::empty()
}

struct Keeper {
    /// `None` once the wrapper is gone.
    channel: Option<Channel>,
    foreground: OsString,
    command: Vec<OsString>,
    /// The command's process, which leads its group; reaped when `ended` is set.
    group: Option<Pid>,
    ended: Option<Status>,
    stop_at: Moment,
    deadline: Moment,
    told: bool,
    stopped: bool,
    leftovers: bool,
    killing: bool,
}

impl Keeper {
    async fn run(
        mut self,
        stdin: OwnedFd,
        mut changes: broadcast::Receiver<Signal>,
    ) -> io::Result<()> {
        let alarm = Alarm::new()?;
        let mut stdin = Some(stdin);
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                () = alarm.at(due) => self.on_time().await,
                signal = changes.recv() => {
                    // A lagging receiver has missed nothing that the next look does not show.
                    if matches!(signal, Ok(Signal::CHILD) | Err(broadcast::error::RecvError::Lagged(_)))
                        && self.on_change().await
                    {
                        return Ok(());
                    }
                }
                order = receive(&mut self.channel) => match order {
                    Some(order) => {
                        self.obey(&order);
                        if let Some(stdin) = stdin.take()
                            && let Err(error) = self.start(stdin).await
                        {
                            let why = error.to_string();
                            self.report(&Report::Failed { why }).await;
                            return Ok(());
                        }
                    }
                    None => {
                        // The wrapper is gone: nobody renews the lease.
                        self.channel = None;
                        if self.group.is_none() {
                            return Ok(());
                        }
                        self.kill();
                        if self.on_change().await {
                            return Ok(());
                        }
                    }
                },
            }
        }
    }

    /// When something must be done without being asked.
    fn due(&self) -> Moment {
        if self.group.is_none() {
            return Moment::NEVER;
        }
        if self.killing {
            return now().after(KILL_AGAIN);
        }
        if self.told {
            return self.deadline;
        }
        let slack = TELL_SLACK.min(self.deadline.since(self.stop_at) / 4);
        self.stop_at.after(slack).min(self.deadline)
    }

    async fn on_time(&mut self) {
        if !self.told && !self.killing {
            self.tell();
            self.report(&Report::Overdue).await;
        }
        if self.killing || now() >= self.deadline {
            self.kill();
        }
    }

    fn obey(&mut self, order: &Order) {
        match *order {
            Order::Lease { stop_at, deadline } => {
                // A command that was told to stop, or whose leftovers were, gets no more time.
                if !self.told {
                    self.stop_at = Moment::from_nanos(stop_at);
                    self.deadline = Moment::from_nanos(deadline);
                }
            }
            Order::Signal { number } => {
                if let (Some(group), None, Some(signal)) =
                    (self.group, self.ended, Signal::from_named_raw(number))
                {
                    self.told |= signal == Signal::TERM;
                    let _ = kill_process_group(group, signal);
                    if signal == Signal::TERM && self.stopped {
                        // A stopped process cannot act on it.
                        let _ = kill_process_group(group, Signal::CONT);
                    }
                    self.stopped &= !matches!(signal, Signal::CONT | Signal::TERM);
                }
            }
            Order::Stop { kill_at } => {
                self.deadline = self.deadline.min(Moment::from_nanos(kill_at));
                self.tell();
            }
            Order::Kill => self.kill(),
        }
    }

    async fn start(&mut self, stdin: OwnedFd) -> io::Result<()> {
        let child = Command::new(own_program()?)
            .arg0("lockctl")
            .arg(SHIM)
            .arg(std::process::id().to_string())
            .arg(&self.foreground)
            .args(&self.command)
            .stdin(Stdio::from(stdin))
            .process_group(0)
            .spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        self.group = pid;
        if let Some(pid) = pid {
            let pid = pid.as_raw_nonzero().get();
            self.report(&Report::Started { pid }).await;
        }
        Ok(())
    }

    /// Tells the command to stop, once.
    fn tell(&mut self) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        self.signal_all(Signal::TERM);
        if std::mem::take(&mut self.stopped) {
            // A stopped process cannot act on it.
            self.signal_all(Signal::CONT);
        }
    }

    fn kill(&mut self) {
        self.killing = true;
        self.signal_all(Signal::KILL);
    }

    fn signal_all(&self, signal: Signal) {
        // Once the leader is reaped the number of its group may belong to others.
        if let (Some(group), None) = (self.group, self.ended) {
            let _ = kill_process_group(group, signal);
            if signal != Signal::KILL {
                return;
            }
        }
        if self.group.is_some() {
            signal_descendants(signal);
        }
    }

    /// Looks at what has become of the children; true when all is over.
    async fn on_change(&mut self) -> bool {
        let reaped = reap();
        for (pid, status) in reaped.changed {
            if Some(pid) != self.group {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                self.stopped = true;
                self.report(&Report::Stopped { signal }).await;
            } else if let Some(code) = status.exit_status() {
                self.ended = Some(Status::Exited(code));
            } else if let Some(signal) = status.terminating_signal() {
                self.ended = Some(Status::Killed(signal));
            }
        }
        let Some(ended) = self.ended else {
            return false;
        };
        if reaped.none_left {
            let (code, signal) = match ended {
                Status::Exited(code) => (Some(code), None),
                Status::Killed(signal) => (None, Some(signal)),
            };
            self.report(&Report::Ended { code, signal }).await;
            return true;
        }
        if !self.leftovers {
            self.leftovers = true;
            self.report(&Report::Leftovers).await;
            if !self.killing {
                // They get the time that the command itself would have got.
                let drain = self.deadline.since(self.stop_at);
                self.deadline = self.deadline.min(now().after(drain));
                self.told = true;
                signal_descendants(Signal::TERM);
                signal_descendants(Signal::CONT);
            }
        }
        false
    }

    async fn report(&mut self, report: &Report) {
        if let Some(channel) = &mut self.channel {
            // A wrapper that is gone is noticed by the end of what it sends.
            let _ = channel.send(report).await;
        }
    }
}

/// The wrapper's next order; `None` when it is gone; pends when that is known.
async fn receive(channel: &mut Option<Channel>) -> Option<Order> {
    match channel {
        Some(channel) => channel.receive().await.unwrap_or(None),
        None => std::future::pending().await,
    }
}
