//! The foreground's side of one machine.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::mpsc;

use crate::claim::Release;
use crate::clock;
use crate::driver::{Command, Term, rescue};
use crate::election::{Debt, Input};
use crate::error::{Error, Result};
use crate::persistence::LockPersistence;

/// News for the foreground.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A grant, to be taken within the hand-off.
    Offer(Arc<Term>),
    /// Somebody else holds it.
    Denied,
    /// A request failed.
    Failed(Error),
    /// The store answers again.
    Recovered,
    /// The store has answered the release of the last term.
    Released(Release),
    /// Nothing more will come.
    Ended(Option<Error>),
}

/// A machine in the driver, from the foreground. Dropping it, after any number of polls of anything,
/// stops the machine: what the store has of it is released or withdrawn, and nothing is renewed.
#[derive(Debug)]
pub(crate) struct Candidacy {
    id: u64,
    commands: mpsc::UnboundedSender<Command>,
    /// The runtime of the driver.
    home: runtime::Id,
    notices: mpsc::UnboundedReceiver<Notice>,
    persistence: Arc<dyn LockPersistence>,
    /// The term that was taken and whose end has not been told.
    term: Option<Arc<Term>>,
    /// The last term whose end the driver was told.
    ended: Option<Arc<Term>>,
}

impl Candidacy {
    pub(crate) fn new(
        id: u64,
        commands: mpsc::UnboundedSender<Command>,
        home: runtime::Id,
        notices: mpsc::UnboundedReceiver<Notice>,
        persistence: Arc<dyn LockPersistence>,
    ) -> Self {
        Self {
            id,
            commands,
            home,
            notices,
            persistence,
            term: None,
            ended: None,
        }
    }

    /// The next news, or `None` when the driver is gone. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }

    /// The news that has come, if any.
    pub(crate) fn try_next(&mut self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }

    /// Releases the lease without the driver, once it has had time to begin and has not: its runtime is
    /// not run any more. Pends for ever when it has begun.
    pub(crate) fn release_without_driver(
        &self,
        term: &Arc<Term>,
    ) -> impl Future<Output = Result<Release>> + Send + use<> {
        let (persistence, term) = (Arc::clone(&self.persistence), Arc::clone(term));
        async move {
            clock::sleep(rescue::GRACE).await;
            if term.cleaning.load(Ordering::Acquire) {
                return std::future::pending().await;
            }
            rescue::release(persistence, term.lease().clone()).await
        }
    }

    /// Takes an offer; false when it came too late.
    pub(crate) fn take(&mut self, term: &Arc<Term>) -> bool {
        let taken = term.take();
        if taken {
            self.term = Some(Arc::clone(term));
        }
        taken
    }

    /// Says that nothing of the work runs any more.
    pub(crate) fn end_term(&mut self, hold_off: Duration) {
        let Some(term) = self.term.take() else { return };
        term.end();
        let input = Input::WorkEnded { hold_off };
        if self
            .commands
            .send(Command::Input { id: self.id, input })
            .is_err()
        {
            let debt = Debt::Release(term.lease().clone());
            rescue::settle(Arc::clone(&self.persistence), vec![debt]);
        } else {
            self.ended = Some(term);
        }
    }

    pub(crate) fn shutdown(&self) {
        self.tell(Input::Shutdown);
    }

    /// Has what is owed to the store tried again at once.
    pub(crate) fn hurry(&self) {
        self.tell(Input::Hint);
    }

    /// A way to resign or shut down from elsewhere.
    pub(crate) fn remote(&self) -> Remote {
        Remote {
            id: self.id,
            commands: self.commands.clone(),
        }
    }

    fn tell(&self, input: Input) {
        // A driver that is gone has handed its debts over already.
        let _ = self.commands.send(Command::Input { id: self.id, input });
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        // An offer that nobody will look at any more.
        self.notices.close();
        while let Ok(notice) = self.notices.try_recv() {
            if let Notice::Offer(term) = notice {
                self.take(&term);
            }
        }
        self.end_term(Duration::ZERO);
        self.shutdown();
        // Not inside the driver's runtime: it may be one that nobody runs any more.
        let inside = Handle::try_current().is_ok_and(|here| here.id() == self.home);
        if let Some(term) = self.ended.take()
            && !inside
            && !term.cleaning.load(Ordering::Acquire)
        {
            let debt = Debt::Release(term.lease().clone());
            let done = move || term.cleaning.load(Ordering::Acquire);
            rescue::settle_unless(Arc::clone(&self.persistence), debt, done);
        }
    }
}

/// A machine in the driver, from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    id: u64,
    commands: mpsc::UnboundedSender<Command>,
}

impl Remote {
    pub(crate) fn tell(&self, input: Input) {
        let _ = self.commands.send(Command::Input { id: self.id, input });
    }
}
