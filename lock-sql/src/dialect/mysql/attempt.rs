//! Trying to get a lease.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, Lease, LeaseState, Result, Token};
use sqlx::Row as _;

use super::belief::Belief;
use super::statements::{Courtesy, mark};
use super::{Handle, MySql, row};
use crate::dialect::Tried;
use crate::error::mysql as errors;

impl MySql {
    /// A try that was denied although nobody holds the name: a lost race, or a server that is read-only.
    async fn refuse_read_only(&self) -> Result<()> {
        let answers = self
            .run(
                &self.attempts,
                "SELECT CONCAT(@@global.read_only)".to_owned(),
            )
            .await?;
        let shown = answers.first().and_then(|a| a.rows.first());
        match self
            .decoded(shown.map(|r| row::shown(r, 0)).transpose())?
            .as_deref()
        {
            Some("0" | "OFF") => Ok(()),
            _ => {
                // Another server may stand behind the name by now.
                self.attempts.close().await;
                Err(errors::read_only(self.server().host()))
            }
        }
    }

    fn granted(&self, claim: &Claim, token: Token) -> Tried {
        let handle = Arc::new(Handle {
            name: claim.name.clone(),
            place: Arc::clone(&self.place),
        });
        Tried::Granted(Lease::new(
            claim,
            token,
            Duration::from_micros(row::micros(claim.ttl).unsigned_abs()),
            lock_core::Handle::new(handle),
        ))
    }

    /// A try at a name that is believed to be free; `None` when it is not.
    async fn take(&self, claim: &Claim, courtesy: Courtesy) -> Result<Option<Tried>> {
        let sql = self.sql().take(claim, courtesy, mark());
        let answers = self.run(&self.attempts, sql).await?;
        let Some(taken) = answers.first().filter(|a| a.found > 0) else {
            return Ok(None);
        };
        let token =
            self.decoded(Token::new(taken.id).map_err(|e| sqlx::Error::Decode(e.into())))?;
        Ok(Some(self.granted(claim, token)))
    }

    /// A try at a name that is believed to be held by another; `None` when it is not.
    async fn look(&self, claim: &Claim, courtesy: Courtesy) -> Result<Option<Tried>> {
        let sql = self.sql().look_with_line(&claim.name, courtesy);
        let answers = self.run(&self.attempts, sql).await?;
        let Some(seen) = answers.first().and_then(|a| a.rows.first()) else {
            return Ok(None);
        };
        if self.decoded(row::nonce(seen))? == Some(claim.nonce) {
            return Ok(None);
        }
        let state = self.decoded(row::state(seen))?;
        if matches!(state, LeaseState::Held(_)) {
            return Ok(Some(Tried::Denied(state)));
        }
        let kept = self.decoded(row::kept(seen))?;
        Ok(kept.map(|heir| Tried::Denied(LeaseState::Held(heir))))
    }

    /// A try at a name of which nothing is known.
    async fn decide(&self, claim: &Claim, courtesy: Courtesy) -> Result<Tried> {
        let mark = mark();
        let sql = self.sql().try_acquire(claim, courtesy, mark);
        let answers = self.run(&self.attempts, sql).await?;
        let Some(seen) = answers.last().and_then(|a| a.rows.first()) else {
            self.refuse_read_only().await?;
            return Ok(Tried::Denied(LeaseState::Absent));
        };
        if self.decoded(seen.try_get::<i64, _>("version"))? == mark {
            return Ok(self.granted(claim, self.decoded(row::token(seen))?));
        }
        let state = self.decoded(row::state(seen))?;
        if matches!(state, LeaseState::Held(_)) {
            return Ok(Tried::Denied(state));
        }
        if let Some(heir) = self.decoded(row::kept(seen))? {
            return Ok(Tried::Denied(LeaseState::Held(heir)));
        }
        self.refuse_read_only().await?;
        Ok(Tried::Denied(state))
    }

    /// A try: by the statement that most likely settles it, then by the others.
    pub(super) async fn tried(&self, claim: &Claim) -> Result<Tried> {
        let courtesy = self.lines.courtesy(claim);
        let belief = self.beliefs.take(&claim.name);
        let mut tried = None;
        if belief == Some(Belief::Free) {
            tried = self.take(claim, courtesy).await?;
        }
        if tried.is_none() && belief.is_some() {
            tried = self.look(claim, courtesy).await?;
        }
        let tried = match tried {
            Some(tried) => tried,
            None => self.decide(claim, courtesy).await?,
        };
        // Granted, it is held too: by the caller.
        if !matches!(&tried, Tried::Denied(state) if !matches!(state, LeaseState::Held(_))) {
            self.beliefs.set(&claim.name, Belief::Held);
        }
        if matches!(tried, Tried::Granted(_)) {
            self.lines.granted(claim);
        }
        Ok(tried)
    }
}
