//! A term in the hands of an application.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::claim::{Lease, Release};
use crate::clock::Moment;
use crate::driver::{Candidacy, Notice, Phase, Term};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::event::{LossReason, StopReason};
use crate::token::Token;

/// A view of one term: whether it still counts, and its fencing token. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: Arc<Term>,
}

impl Leadership {
    pub(crate) fn new(term: Arc<Term>) -> Self {
        Self { term }
    }

    /// Whether the holder may act now: the present is before the deadline and the term was not lost
    /// or released.
    ///
    /// A clock and an atomic, no I/O. Once it has answered false it never answers true again, also
    /// when the process was stopped or suspended in between. Between this answer and what is done
    /// with it time may pass: what must not happen twice also needs the [`token`](Self::token).
    #[inline]
    #[must_use]
    pub fn check(&self) -> bool {
        self.term.check()
    }

    /// Like [`check`](Self::check), as a result for `?`.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] when the term is over.
    #[inline]
    pub fn ensure(&self) -> Result<()> {
        if self.check() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::LeaseLost,
            format!("the term with token {} is over", self.token()),
        )
        .with_name(self.term.lease().name().clone()))
    }

    /// The fencing token of this term. Hand it to everything the work writes to.
    #[must_use]
    pub fn token(&self) -> Token {
        self.term.lease().token()
    }

    /// The local instant after which [`check`](Self::check) is false, unless a renewal moves it;
    /// [`Moment::START`] once the term has been seen to be over.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.term.deadline()
    }

    /// Time left to the deadline; zero when the term is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.term.remaining()
    }

    /// The lease, for the fenced writes of the store's own extension trait.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.term.lease()
    }

    /// Resolves when the work is to stop, with the reason. What still runs at the deadline is
    /// no longer covered by the lease.
    ///
    /// # Cancel safety
    /// It only looks; call it again as often as you like.
    pub async fn stopping(&self) -> StopReason {
        self.term.stopping().await
    }

    /// Resolves when the term is lost, at the deadline at the latest, whatever the store does. Pends
    /// for ever once the term was released.
    ///
    /// # Cancel safety
    /// It only looks; call it again as often as you like.
    pub async fn lost(&self) -> LossReason {
        self.term.lost().await
    }
}

/// A held lock, renewed in the background. Dropping it stops the renewals and releases it in the
/// background; [`release`](Self::release) also tells what came of that.
///
/// It may be moved between threads and tasks. A binding named `_` drops it at once. Dereferences to its [`Leadership`].
#[must_use = "dropping the guard releases the lock"]
#[derive(Debug)]
pub struct LockGuard {
    leadership: Leadership,
    candidacy: Mutex<Releasing>,
}

#[derive(Debug)]
struct Releasing {
    candidacy: Candidacy,
    answer: Option<Release>,
}

impl LockGuard {
    pub(crate) fn new(term: Arc<Term>, candidacy: Candidacy) -> Self {
        Self {
            leadership: Leadership::new(term),
            candidacy: Mutex::new(Releasing {
                candidacy,
                answer: None,
            }),
        }
    }

    /// A view of the term, to hand to others.
    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Ends the term at once, stops the renewals and frees the name.
    ///
    /// [`Release::NotHeld`] means that the lease had been lost before. After an error the driver goes
    /// on trying; calling it again tries at once. Where nobody runs the driver's runtime any more, the
    /// release is made from a thread of this crate's own.
    ///
    /// # Errors
    /// Why the store could not be told. The lease then expires by itself.
    ///
    /// # Cancel safety
    /// Once it was polled the term is over and the release is on its way, whether or not it is
    /// polled again.
    pub async fn release(&self) -> Result<Release> {
        let remaining = self.leadership.remaining();
        self.leadership.term.end();
        let mut releasing = self.candidacy.lock().await;
        if let Some(answer) = releasing.answer {
            return Ok(answer);
        }
        releasing.candidacy.end_term(Duration::ZERO);
        // What came of earlier tries in the background; this one asks anew.
        while let Some(notice) = releasing.candidacy.try_next() {
            if let Notice::Released(answer) = notice {
                releasing.answer = Some(answer);
                return Ok(answer);
            }
        }
        releasing.candidacy.hurry();
        let term = &self.leadership.term;
        let mut without_driver = pin!(releasing.candidacy.release_without_driver(term));
        loop {
            let notice = tokio::select! {
                biased;
                notice = releasing.candidacy.next() => notice,
                answer = &mut without_driver => {
                    let answer = answer.map_err(|e| e.with_name(term.lease().name().clone()))?;
                    releasing.answer = Some(answer);
                    return Ok(answer);
                }
            };
            match notice {
                Some(Notice::Released(answer)) => {
                    releasing.answer = Some(answer);
                    return Ok(answer);
                }
                Some(Notice::Failed(error)) if error.operation() == Some(Operation::Release) => {
                    let message = format!(
                        "{}; the lease expires by itself within {:?}",
                        error.message(),
                        remaining.max(self.leadership.lease().claim().ttl)
                    );
                    let mut unconfirmed = Error::new(error.kind(), message)
                        .with_operation(Operation::Release)
                        .with_retryable(true)
                        .with_indeterminate(error.is_indeterminate())
                        .with_name(self.leadership.lease().name().clone())
                        .with_source(error.clone());
                    if let Some(backend) = error.backend() {
                        unconfirmed = unconfirmed.with_backend(backend);
                    }
                    return Err(unconfirmed);
                }
                Some(Notice::Ended(_)) | None => {
                    // Nothing can be left of it: the ttl has passed, or the runtime has ended and
                    // the clean-up goes on elsewhere.
                    let lost = matches!(self.leadership.term.phase(), Phase::Lost(_));
                    return if lost {
                        Ok(Release::NotHeld)
                    } else {
                        Err(Error::new(
                            ErrorKind::Unavailable,
                            "the release could not be confirmed",
                        )
                        .with_operation(Operation::Release)
                        .with_name(self.leadership.lease().name().clone()))
                    };
                }
                Some(Notice::Offer(_) | Notice::Denied | Notice::Failed(_) | Notice::Recovered) => {
                }
            }
        }
    }
}

impl Deref for LockGuard {
    type Target = Leadership;

    fn deref(&self) -> &Leadership {
        &self.leadership
    }
}
