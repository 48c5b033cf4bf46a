//! One candidate of an election.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use crate::claim::{Holder, Observation};
use crate::driver::{Board, Candidacy, Notice, Phase, Remote, Term};
use crate::election::{Input, Scope};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::event::{Event, LossReason};
use crate::guard::Leadership;
use crate::name::LockName;
use crate::provider::{LockProvider as _, Provider};
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome<T> {
    /// The work ended inside its term, by itself or after it was told to stop.
    Finished(T),
    /// The term was lost; what the work returned if it ended before it was aborted.
    Lost(LossReason, Option<T>),
    /// The work was told to stop, did not end in time, and was aborted inside its term.
    Aborted,
    /// The candidate was shut down before it led.
    NeverLed,
}

/// One candidate of an election. Cheap to clone; clones are the same candidate.
///
/// What is promised: the work runs only while this candidate holds the lease on the local clock, is
/// told to stop before the deadline, and is aborted at the deadline at the latest; the lease is
/// released only after the work has ended. What is not: an abort acts at an await point, so work
/// that blocks its thread runs on. It must ask [`Leadership::check`], and what it writes to must
/// check the token.
#[derive(Clone, Debug)]
pub struct Elector {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    provider: Provider,
    name: LockName,
    board: Arc<Board>,
    running: Mutex<Option<Remote>>,
    shut_down: AtomicBool,
}

impl Elector {
    pub(crate) fn new(provider: Provider, name: LockName) -> Result<Self> {
        // Says at once what is wrong with the settings.
        provider.machine(&name, Scope::ManyTerms)?;
        let board = Arc::new(Board::new());
        let shared = Shared {
            provider,
            name,
            board,
            running: Mutex::new(None),
            shut_down: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The name of the election.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.shared.name
    }

    /// Runs `work` whenever this candidate leads, until [`shutdown`](Self::shutdown).
    ///
    /// In each term `work` is called once and polled here, so it may borrow from its surroundings.
    /// When [`Leadership::stopping`] resolves it should return; what still runs at the end of the drain,
    /// or when the term is lost, is dropped. Work that returns by itself resigns; the candidate
    /// contends again after a short pause, and after a growing one while the work keeps failing.
    /// A panic of the work releases the lease and goes on up.
    ///
    /// # Errors
    /// Settings that can never work, also with what the store grants (a much shorter ttl), a candidate
    /// that already runs, or a driver whose runtime has ended. Everything else is retried.
    ///
    /// # Cancel safety
    /// Dropping it drops the work, then releases in the background.
    pub async fn run<F, Fut, E>(&self, mut work: F) -> Result<()>
    where
        F: FnMut(Leadership) -> Fut,
        Fut: Future<Output = std::result::Result<(), E>>,
        E: fmt::Display,
    {
        let timing = *self.shared.provider.timing();
        let Some(mut running) = self.begin(Scope::ManyTerms)? else {
            return Ok(());
        };
        let mut failures = 0_u32;
        while let Some(term) = running.next_term().await? {
            let began = self.shared.provider.driver().clock().now();
            let ended = work_under(&term, work(Leadership::new(Arc::clone(&term)))).await;
            let lasted = self.shared.provider.driver().clock().now().since(began);
            let told = term.phase() != Phase::Running;
            let hold_off = match ended {
                Some(Err(error)) => {
                    failures = if lasted > timing.ttl() {
                        1
                    } else {
                        failures.saturating_add(1)
                    };
                    let hold_off = timing.backoff(failures);
                    let name = self.shared.name.as_str();
                    tracing::warn!(name, %error, ?hold_off, "the work failed; resigning");
                    hold_off
                }
                Some(Ok(())) if !told => timing.first_backoff(),
                Some(Ok(())) | None => {
                    failures = 0;
                    Duration::ZERO
                }
            };
            running.candidacy.end_term(hold_off);
        }
        Ok(())
    }

    /// Waits to lead, runs `work` for one term, releases, and returns what came of it.
    ///
    /// The work is told, dropped and joined as in [`run`](Self::run).
    ///
    /// # Errors
    /// Settings that can never work, also with what the store grants (a much shorter ttl), a candidate
    /// that already runs, or a driver whose runtime has ended. Everything else is retried.
    ///
    /// # Cancel safety
    /// Dropping it drops the work, then releases in the background.
    pub async fn run_once<F, Fut, T>(&self, work: F) -> Result<Outcome<T>>
    where
        F: FnOnce(Leadership) -> Fut,
        Fut: Future<Output = T>,
    {
        let (mut running, term) = loop {
            let Some(mut running) = self.begin(Scope::OneTerm)? else {
                return Ok(Outcome::NeverLed);
            };
            if let Some(term) = running.next_term().await? {
                break (running, term);
            }
            // Shut down, or the grant was taken back because this future was polled too late; then it
            // starts over.
        };
        let ended = work_under(&term, work(Leadership::new(Arc::clone(&term)))).await;
        // Asked before the term is ended from here.
        let lost = match term.phase() {
            Phase::Lost(reason) => Some(reason),
            _ if !term.check() => Some(term.expired()),
            _ => None,
        };
        running.candidacy.end_term(Duration::ZERO);
        running.drained().await;
        Ok(match (lost, ended) {
            (Some(reason), value) => Outcome::Lost(reason, value),
            (None, Some(value)) => Outcome::Finished(value),
            (None, None) => Outcome::Aborted,
        })
    }

    /// Stops the work, releases, and does not contend for `hold_off`. Does nothing on a standby.
    pub fn resign(&self, hold_off: Duration) {
        self.tell(Input::Resign { hold_off });
    }

    /// Stops the work, releases, and ends [`run`](Self::run). For good: an elector that was shut down
    /// does not run again.
    pub fn shutdown(&self) {
        self.shared.shut_down.store(true, Ordering::SeqCst);
        self.tell(Input::Shutdown);
    }

    fn tell(&self, input: Input) {
        let running = self
            .shared
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(remote) = running.as_ref() {
            remote.tell(input);
        }
    }

    /// Where it stands, and each change. A reader that is slow sees only the newest; another token
    /// means that the term between was lost.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.shared.board.status.subscribe()
    }

    /// Every event from now on, in order. A reader that lags far behind is told how many it missed.
    ///
    /// The clean-up of a run that was dropped is told here too, also when the next one has begun.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.shared.board.events.subscribe()
    }

    /// How well it gets on with its store.
    #[must_use]
    pub fn health(&self) -> Health {
        let answers = self.shared.board.answers();
        let now = self.shared.provider.driver().clock().now();
        Health {
            status: self.shared.board.status.borrow().clone(),
            answered: answers.answered.map(|at| now.since(at)),
            failures: answers.failures,
            last_error: answers.last_error,
        }
    }

    /// Looks at the election as the store sees it.
    ///
    /// # Errors
    /// Why the store could not be read.
    pub async fn observe(&self) -> Result<Observation> {
        self.shared
            .provider
            .observe(self.shared.name.as_str())
            .await
    }

    /// Starts the machine; `None` when it was shut down before.
    fn begin(&self, scope: Scope) -> Result<Option<Running<'_>>> {
        let shared = &*self.shared;
        let mut running = shared
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if running.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "this elector already runs; build another one for a second candidate",
            )
            .with_name(shared.name.clone()));
        }
        if shared.shut_down.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let machine = shared.provider.machine(&shared.name, scope)?;
        // Before the driver can have news.
        let run = shared.board.begin_run();
        let seat = (Arc::clone(&shared.board), run);
        let candidacy = match shared.provider.driver().start(machine, Some(seat)) {
            Ok(candidacy) => candidacy,
            Err(error) => {
                shared.board.end_run();
                return Err(error);
            }
        };
        *running = Some(candidacy.remote());
        Ok(Some(Running { candidacy, shared }))
    }
}

/// A run of the elector; frees its place when it is dropped.
struct Running<'a> {
    candidacy: Candidacy,
    shared: &'a Shared,
}

impl Running<'_> {
    /// The next term, or `None` when the candidate has ended.
    async fn next_term(&mut self) -> Result<Option<Arc<Term>>> {
        loop {
            match self.candidacy.next().await {
                Some(Notice::Offer(term)) => {
                    if self.candidacy.take(&term) {
                        return Ok(Some(term));
                    }
                }
                Some(Notice::Ended(None)) => return Ok(None),
                Some(Notice::Ended(Some(error))) => return Err(error),
                // The store cannot be told now; the driver goes on trying, the caller need not wait.
                Some(Notice::Failed(error))
                    if is_of_the_end(&error) && self.shared.shut_down.load(Ordering::SeqCst) =>
                {
                    return Ok(None);
                }
                Some(
                    Notice::Denied | Notice::Failed(_) | Notice::Recovered | Notice::Released(_),
                ) => {}
                None => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        "the runtime of the driver has ended",
                    )
                    .with_name(self.shared.name.clone()));
                }
            }
        }
    }

    /// Waits until the store has answered the release, or has failed to once: the driver then goes on
    /// trying, and the caller need not wait.
    async fn drained(&mut self) {
        while let Some(notice) = self.candidacy.next().await {
            match notice {
                Notice::Ended(_) | Notice::Released(_) => return,
                Notice::Failed(error) if is_of_the_end(&error) => return,
                Notice::Failed(_) | Notice::Offer(_) | Notice::Denied | Notice::Recovered => {}
            }
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Before another run may begin.
        self.shared.board.end_run();
        *self
            .shared
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whether the error came from cleaning up after a candidate.
fn is_of_the_end(error: &Error) -> bool {
    matches!(
        error.operation(),
        Some(Operation::Release | Operation::Withdraw)
    )
}

/// Polls the work until it ends or is to be dropped. The term is looked at before each poll: after a
/// pause of the process the work does not take one more step.
async fn work_under<T>(term: &Term, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut aborted = pin!(term.aborted());
    std::future::poll_fn(|cx| {
        if aborted.as_mut().poll(cx).is_ready() || !term.check() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}
