//! A term in the hands of an application.

use std::ops::Deref;
use std::time::Duration;

use crate::claim::{Lease, Release};
use crate::clock::Moment;
use crate::error::Result;
use crate::event::{LossReason, StopReason};
use crate::token::Token;

/// A view of one term: whether it still counts, and its fencing token. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {}

impl Leadership {
    /// Whether the holder may act now. A clock and an atomic; false for ever once it was false.
    #[must_use]
    pub fn check(&self) -> bool {
        todo!()
    }
    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> Token {
        todo!()
    }
    /// The local instant after which `check()` is false, unless a renewal moves it.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        todo!()
    }
    /// Time left to the deadline; zero when the term is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        todo!()
    }
    /// The lease, for fenced writes.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        todo!()
    }
    /// Resolves when the work is told to stop, or the term is lost.
    pub async fn stopping(&self) -> Option<StopReason> {
        todo!()
    }
    /// Resolves when the term is lost; pends for ever after a release.
    pub async fn lost(&self) -> LossReason {
        todo!()
    }
}

/// A held lock. Dropping it releases it; [`release`](Self::release) also tells what came of that.
#[derive(Debug)]
pub struct LockGuard {
    leadership: Leadership,
}

impl LockGuard {
    /// Stops renewing and frees the name. May be called again after an error.
    ///
    /// # Errors
    /// Why the store could not be told; the lease then expires by itself.
    pub async fn release(&self) -> Result<Release> {
        todo!()
    }
}

impl Deref for LockGuard {
    type Target = Leadership;
    fn deref(&self) -> &Leadership {
        &self.leadership
    }
}
