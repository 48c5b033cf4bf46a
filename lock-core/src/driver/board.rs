//! What onlookers of an elector see.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{broadcast, watch};

use crate::clock::Moment;
use crate::elector::Status;
use crate::error::Error;
use crate::event::Event;

/// Events that a slow reader may lag behind before it loses the oldest.
const EVENTS: usize = 256;

#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) status: watch::Sender<Status>,
    pub(crate) events: broadcast::Sender<Event>,
    answers: Mutex<Answers>,
    /// The present run. Changed, and compared, under the lock of the status only.
    run: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) answered: Option<Moment>,
    pub(crate) failures: u32,
    pub(crate) last_error: Option<Error>,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            status: watch::Sender::new(Status::Idle),
            events: broadcast::Sender::new(EVENTS),
            answers: Mutex::default(),
            run: AtomicU64::new(0),
        }
    }

    /// A run begins: what is published of earlier ones no longer changes the status.
    pub(crate) fn begin_run(&self) -> u64 {
        self.next_run(Status::Standby(None))
    }

    /// The present run has ended, though the driver may still clean up after it.
    pub(crate) fn end_run(&self) {
        self.next_run(Status::Idle);
    }

    fn next_run(&self, status: Status) -> u64 {
        let mut run = 0;
        self.status.send_modify(|old| {
            run = self.run.fetch_add(1, Ordering::Relaxed) + 1;
            *old = status;
        });
        run
    }

    pub(crate) fn answers(&self) -> Answers {
        self.answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The store has answered.
    pub(crate) fn answered(&self, now: Moment) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers = Answers {
            answered: Some(now),
            failures: 0,
            last_error: None,
        };
    }

    /// A request to the store has failed.
    pub(crate) fn failed(&self, error: &Error) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.failures = answers.failures.saturating_add(1);
        answers.last_error = Some(error.clone());
    }

    pub(crate) fn publish(&self, run: u64, event: &Event) {
        let status = match event {
            Event::Gained { token, .. } => Some(Status::Leading(*token)),
            Event::Stopping { token, .. } => Some(Status::Stopping(*token)),
            Event::Lost { token, .. } => Some(Status::Ending(*token)),
            Event::WorkEnded { .. } => Some(Status::Standby(None)),
            Event::Standby { holder } => Some(Status::Standby(Some(holder.clone()))),
            Event::Ended { .. } => Some(Status::Idle),
            Event::Renewed { .. }
            | Event::Aborting { .. }
            | Event::Released { .. }
            | Event::Failed { .. }
            | Event::Recovered { .. } => None,
        };
        if let Some(status) = status {
            self.status.send_if_modified(|old| {
                let changed = self.run.load(Ordering::Relaxed) == run && *old != status;
                if changed {
                    *old = status;
                }
                changed
            });
        }
        // Nobody needs to listen.
        let _ = self.events.send(event.clone());
    }
}
