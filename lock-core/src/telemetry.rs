//! Logs and metrics, from one place.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `lock_is_leader` | gauge, 0 or 1 | name |
//! | `lock_deadline_seconds` | gauge: time left at the last renewal, 0 when not leading | name |
//! | `lock_leaderless_seconds` | histogram: from a loss or release here to the next grant here | name |
//! | `lock_events_total` | counter | backend, event |
//! | `lock_requests_total` | counter | backend, operation, outcome |
//!
//! Only electors have a name in metrics, and their changes are logged as `INFO`: there are few of them.
//! Guards may have as many names as there are invoices; theirs are logged as `DEBUG`.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::Error;
use crate::event::Event;
use crate::name::LockName;

/// Failures are logged at once and then at most this often, for all candidates of a driver together.
const LOG_FAILURES_EVERY: Duration = Duration::from_secs(60);

/// Whom an event is about.
#[derive(Debug)]
pub(crate) struct Subject {
    name: LockName,
    elector: bool,
    /// When its last term ended.
    ended: Option<Moment>,
}

impl Subject {
    pub(crate) fn new(name: LockName, elector: bool) -> Self {
        Self {
            name,
            elector,
            ended: None,
        }
    }

    fn leader(&self, leads: bool, left: Duration) {
        if self.elector {
            let name = self.name.as_str();
            metrics::gauge!("lock_is_leader", "name" => name.to_owned()).set(if leads {
                1.0
            } else {
                0.0
            });
            metrics::gauge!("lock_deadline_seconds", "name" => name.to_owned())
                .set(left.as_secs_f64());
        }
    }
}

/// Writes the events of the candidates of one driver.
#[derive(Debug)]
pub(crate) struct Reporter {
    backend: &'static str,
    /// When a failure was last logged, while the store does not answer.
    warned: Option<Moment>,
    unlogged: u32,
}

/// A change worth a line: of an elector for everybody, of a guard for who debugs.
macro_rules! change {
    ($subject:expr, $($what:tt)*) => {
        if $subject.elector {
            tracing::info!(name = $subject.name.as_str(), $($what)*)
        } else {
            tracing::debug!(name = $subject.name.as_str(), $($what)*)
        }
    };
}

impl Reporter {
    pub(crate) fn new(backend: &'static str) -> Self {
        Self {
            backend,
            warned: None,
            unlogged: 0,
        }
    }

    pub(crate) fn event(&mut self, now: Moment, subject: &mut Subject, event: &Event) {
        let backend = self.backend;
        let kind = match event {
            Event::Gained { token, deadline } => {
                let left = deadline.since(now);
                change!(subject, backend, %token, ?left, "gained");
                subject.leader(true, left);
                if let Some(ended) = subject.ended.take()
                    && subject.elector
                {
                    let name = subject.name.as_str().to_owned();
                    metrics::histogram!("lock_leaderless_seconds", "name" => name)
                        .record(now.since(ended).as_secs_f64());
                }
                "gained"
            }
            Event::Renewed { token, deadline } => {
                let (name, left) = (subject.name.as_str(), deadline.since(now));
                tracing::trace!(name, backend, %token, ?left, "renewed");
                subject.leader(true, left);
                "renewed"
            }
            Event::Stopping {
                token,
                reason,
                abort_at,
            } => {
                let within = abort_at.since(now);
                change!(subject, backend, %token, %reason, ?within, "stopping");
                "stopping"
            }
            Event::Aborting { token } => {
                let name = subject.name.as_str();
                tracing::warn!(name, backend, %token, "the work has not ended in time; aborting it");
                "aborting"
            }
            Event::Lost { token, reason } => {
                let name = subject.name.as_str();
                tracing::warn!(name, backend, %token, %reason, "lost");
                subject.leader(false, Duration::ZERO);
                subject.ended = Some(now);
                "lost"
            }
            Event::WorkEnded { token } => {
                let name = subject.name.as_str();
                tracing::debug!(name, backend, %token, "the work has ended");
                subject.leader(false, Duration::ZERO);
                subject.ended.get_or_insert(now);
                "work-ended"
            }
            Event::Released { token, outcome } => {
                change!(subject, backend, %token, ?outcome, "released");
                "released"
            }
            Event::Standby { holder } => {
                change!(subject, backend, owner = %holder.owner, token = %holder.token, "standing by");
                "standby"
            }
            Event::Failed {
                error,
                failures,
                retry_in,
            } => {
                self.failed(now, &subject.name, error, *failures, *retry_in);
                "failed"
            }
            Event::Recovered { failures } => {
                if self.warned.take().is_some() {
                    let name = subject.name.as_str();
                    let unlogged = std::mem::take(&mut self.unlogged);
                    tracing::info!(name, backend, failures, unlogged, "the store answers again");
                }
                "recovered"
            }
            Event::Ended { error } => {
                let name = subject.name.as_str();
                tracing::debug!(name, backend, ?error, "ended");
                "ended"
            }
        };
        metrics::counter!("lock_events_total", "backend" => backend, "event" => kind).increment(1);
    }

    fn failed(
        &mut self,
        now: Moment,
        name: &LockName,
        error: &Error,
        failures: u32,
        retry_in: Duration,
    ) {
        let due = self
            .warned
            .is_none_or(|last| now.since(last) >= LOG_FAILURES_EVERY);
        if !due {
            self.unlogged += 1;
            return;
        }
        self.warned = Some(now);
        let unlogged = std::mem::take(&mut self.unlogged);
        let (name, backend) = (name.as_str(), self.backend);
        tracing::warn!(name, backend, %error, failures, ?retry_in, unlogged, "a request failed");
    }
}

/// Counts one request to a store.
pub(crate) fn request(backend: &'static str, operation: &'static str, error: Option<&Error>) {
    let outcome = error.map_or("ok", |e| e.kind().as_str());
    metrics::counter!("lock_requests_total",
        "backend" => backend, "operation" => operation, "outcome" => outcome)
    .increment(1);
}
