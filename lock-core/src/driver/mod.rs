//! The tokio driver: the only place that spawns.
//!
//! One task per provider owns all of its machines. It carries out their actions, gathers renewals
//! into batches, bounds every call with the request timeout, and tells the foreground (a guard or an
//! elector) what happened. The foreground holds a [`Candidacy`]; dropping it at any time is safe.

mod board;
mod candidacy;
mod core;
pub(crate) mod rescue;
mod term;

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{self, Handle};
use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::election::{Input, Machine};
use crate::error::{Error, ErrorKind, Result};
use crate::persistence::LockPersistence;

pub(crate) use board::Board;
pub(crate) use candidacy::{Candidacy, Notice, Remote};
pub(crate) use term::{Phase, Term};

/// What the foreground tells the driver task.
pub(crate) enum Command {
    /// Drive this machine under this id.
    Start {
        id: u64,
        machine: Box<Machine>,
        seat: Seat,
    },
    /// Something happened to a machine.
    Input { id: u64, input: Input },
    /// Say when no machine is left.
    Settled(oneshot::Sender<()>),
}

/// Where the news of one machine goes.
pub(crate) struct Seat {
    pub(crate) notices: mpsc::UnboundedSender<Notice>,
    /// Where the onlookers look, and which run of the elector this is.
    pub(crate) board: Option<(Arc<Board>, u64)>,
}

/// The way to the driver task of one provider; starts it when it is first needed, and again when the
/// runtime it ran on is gone.
#[derive(Debug)]
pub(crate) struct Driver {
    persistence: Arc<dyn LockPersistence>,
    clock: Arc<dyn Clock>,
    runtime: Option<Handle>,
    running: Mutex<Option<Running>>,
    next_id: std::sync::atomic::AtomicU64,
}

/// A driver task that was started.
#[derive(Clone, Debug)]
struct Running {
    commands: mpsc::UnboundedSender<Command>,
    /// The runtime it is on.
    home: runtime::Id,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start { id, .. } => write!(f, "Start({id})"),
            Self::Input { id, input } => write!(f, "Input({id}, {input:?})"),
            Self::Settled(_) => f.write_str("Settled"),
        }
    }
}

impl Driver {
    pub(crate) fn new(
        persistence: Arc<dyn LockPersistence>,
        clock: Arc<dyn Clock>,
        runtime: Option<Handle>,
    ) -> Self {
        Self {
            persistence,
            clock,
            runtime,
            running: Mutex::new(None),
            next_id: std::sync::atomic::AtomicU64::new(0),
        }
    }

    pub(crate) fn persistence(&self) -> &Arc<dyn LockPersistence> {
        &self.persistence
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    /// Hands a machine to the driver task and starts it.
    pub(crate) fn start(
        &self,
        machine: Machine,
        board: Option<(Arc<Board>, u64)>,
    ) -> Result<Candidacy> {
        let id = self
            .next_id
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (notices, receiver) = mpsc::unbounded_channel();
        let seat = Seat { notices, board };
        let command = Command::Start {
            id,
            machine: Box::new(machine),
            seat,
        };
        let Running { commands, home } = self.send(command)?;
        let persistence = Arc::clone(&self.persistence);
        Ok(Candidacy::new(id, commands, home, receiver, persistence))
    }

    /// Resolves when no machine is left: all have ended, and what they owed to the store is settled.
    pub(crate) async fn settled(&self) {
        let (tell, told) = oneshot::channel();
        let sent = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let task = running.as_ref();
            task.is_some_and(|task| task.commands.send(Command::Settled(tell)).is_ok())
        };
        if sent {
            // An error means that the driver is gone, and with it every machine.
            let _ = told.await;
        }
    }

    fn send(&self, command: Command) -> Result<Running> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let command = match running.as_ref() {
            Some(task) => match task.commands.send(command) {
                Ok(()) => return Ok(task.clone()),
                Err(mpsc::error::SendError(command)) => command,
            },
            None => command,
        };
        let handle = match &self.runtime {
            Some(handle) => handle.clone(),
            None => runtime_here()?,
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        if sender.send(command).is_err() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the driver could not be started",
            ));
        }
        let core = core::Core::new(
            Arc::clone(&self.persistence),
            Arc::clone(&self.clock),
            receiver,
        );
        handle.spawn(core.run());
        let task = Running {
            commands: sender,
            home: handle.id(),
        };
        *running = Some(task.clone());
        Ok(task)
    }
}

/// The runtime of the caller.
pub(crate) fn runtime_here() -> Result<Handle> {
    Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::InvalidConfig,
            "there is no tokio runtime here; call this inside one, or give the provider one \
             with on_runtime",
        )
    })
}

/// The handle of a runtime on a thread of its own, one per process, for
/// [`Provider::on_runtime`](crate::Provider::on_runtime): renewals then go on while the application
/// blocks its executor, and a guard that is dropped after its runtime has ended is still released.
///
/// # Panics
/// When the operating system cannot start a thread.
#[must_use]
pub fn dedicated_runtime() -> Handle {
    static RUNTIME: std::sync::OnceLock<Handle> = std::sync::OnceLock::new();
    RUNTIME
        .get_or_init(|| rescue::runtime_on_thread("lock-driver"))
        .clone()
}
