//! One candidate of an election.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use crate::claim::{Holder, Observation};
use crate::error::{Error, Result};
use crate::event::{Event, LossReason};
use crate::guard::Leadership;
use crate::name::LockName;
use crate::token::Token;

/// Where a candidate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// It does not run.
    Idle,
    /// It runs and does not lead; who does, when known.
    Standby(Option<Holder>),
    /// It leads.
    Leading(Token),
    /// It leads, and its work has been told to stop.
    Stopping(Token),
    /// It has lost its term and waits for the work to end.
    Ending(Token),
}

/// How well a candidate gets on with its store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// Where it stands.
    pub status: Status,
    /// How long ago the store last answered; `None` before the first answer.
    pub answered: Option<Duration>,
    /// Requests that have failed since.
    pub failures: u32,
    /// The last of their errors.
    pub last_error: Option<Error>,
}

/// What came of [`Elector::run_once`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The work ended by itself or after being told to stop, inside its term.
    Finished(T),
    /// The term was lost; what the work returned if it ended before it was aborted.
    Lost(LossReason, Option<T>),
    /// It was aborted because it had not ended in time after being told to stop.
    Aborted,
    /// The candidate was shut down before it ever led.
    NeverLed,
}

/// One candidate of an election. Cheap to clone; clones are the same candidate.
#[derive(Clone, Debug)]
pub struct Elector {}

impl Elector {
    /// The name of the election.
    #[must_use]
    pub fn name(&self) -> &LockName {
        todo!()
    }

    /// Runs `work` whenever this candidate leads, until [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    /// Settings that can never work. Everything else is retried.
    pub async fn run<F, Fut, E>(&self, _work: F) -> Result<()>
    where
        F: FnMut(Leadership) -> Fut,
        Fut: Future<Output = std::result::Result<(), E>>,
        E: fmt::Display,
    {
        todo!()
    }

    /// Waits to lead, runs `work` for one term and returns what came of it.
    ///
    /// # Errors
    /// Settings that can never work. Everything else is retried.
    pub async fn run_once<F, Fut, T>(&self, _work: F) -> Result<Outcome<T>>
    where
        F: FnOnce(Leadership) -> Fut,
        Fut: Future<Output = T>,
    {
        todo!()
    }

    /// Stops the work, releases, and does not contend for `hold_off`. Does nothing on a standby.
    pub fn resign(&self, _hold_off: Duration) {
        todo!()
    }

    /// Stops the work, releases, and ends [`run`](Self::run).
    pub fn shutdown(&self) {
        todo!()
    }

    /// Where it stands, and each change. A reader that is slow sees only the newest.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        todo!()
    }

    /// Every event from now on, in order.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        todo!()
    }

    /// How well it gets on with its store.
    #[must_use]
    pub fn health(&self) -> Health {
        todo!()
    }

    /// Looks at the election as the store sees it.
    ///
    /// # Errors
    /// Why the store could not be read.
    pub async fn observe(&self) -> Result<Observation> {
        todo!()
    }
}
