//! Logs and metrics, from one place.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `lock_is_leader` | gauge, 0 or 1 | name |
//! | `lock_deadline_seconds` | gauge: time left at the last renewal | name |
//! | `lock_events_total` | counter | name, event |
//! | `lock_requests_total` | counter | backend, operation, outcome |
//! | `lock_leaderless_seconds` | histogram: from a loss or release here to the next grant here | name |

use std::time::Duration;

use crate::clock::Moment;
use crate::error::Error;
use crate::event::Event;
use crate::name::LockName;

/// Failures are logged at once and then at most this often.
const LOG_FAILURES_EVERY: Duration = Duration::from_secs(60);

/// Writes the events of one candidate.
#[derive(Debug)]
pub(crate) struct Reporter {
    name: LockName,
    backend: &'static str,
    last_warning: Option<Moment>,
    ended: Option<Moment>,
    unlogged: u32,
}

impl Reporter {
    pub(crate) fn new(name: LockName, backend: &'static str) -> Self {
        Self {
            name,
            backend,
            last_warning: None,
            ended: None,
            unlogged: 0,
        }
    }

    pub(crate) fn event(&mut self, now: Moment, event: &Event) {
        let name = self.name.clone();
        let name = name.as_str();
        let backend = self.backend;
        let kind = match event {
            Event::Gained { token, deadline } => {
                let left = deadline.since(now);
                tracing::info!(name, backend, %token, ?left, "gained");
                self.leader(1.0);
                self.left(left);
                if let Some(ended) = self.ended.take() {
                    metrics::histogram!("lock_leaderless_seconds", "name" => name.to_owned())
                        .record(now.since(ended).as_secs_f64());
                }
                "gained"
            }
            Event::Renewed { token, deadline } => {
                let left = deadline.since(now);
                tracing::trace!(name, backend, %token, ?left, "renewed");
                self.left(left);
                "renewed"
            }
            Event::Stopping {
                token,
                reason,
                abort_at,
            } => {
                let within = abort_at.since(now);
                tracing::info!(name, backend, %token, %reason, ?within, "stopping");
                "stopping"
            }
            Event::Aborting { token } => {
                tracing::warn!(name, backend, %token, "the work has not ended in time and is aborted");
                "aborting"
            }
            Event::Lost { token, reason } => {
                tracing::warn!(name, backend, %token, %reason, "lost");
                self.leader(0.0);
                self.left(Duration::ZERO);
                self.ended = Some(now);
                "lost"
            }
            Event::Released { token, outcome } => {
                tracing::info!(name, backend, %token, ?outcome, "released");
                self.leader(0.0);
                self.left(Duration::ZERO);
                self.ended.get_or_insert(now);
                "released"
            }
            Event::Standby { holder } => {
                tracing::info!(name, backend, owner = %holder.owner, token = %holder.token, "standing by");
                "standby"
            }
            Event::Failed {
                error,
                failures,
                retry_in,
            } => {
                self.failed(now, error, *failures, *retry_in);
                "failed"
            }
            Event::Recovered { failures } => {
                tracing::info!(name, backend, failures, "the store answers again");
                self.last_warning = None;
                self.unlogged = 0;
                "recovered"
            }
            Event::Ended { error: None } => {
                tracing::debug!(name, backend, "ended");
                "ended"
            }
            Event::Ended { error: Some(error) } => {
                tracing::debug!(name, backend, %error, "ended");
                "ended"
            }
        };
        metrics::counter!("lock_events_total", "name" => name.to_owned(), "event" => kind)
            .increment(1);
    }

    fn failed(&mut self, now: Moment, error: &Error, failures: u32, retry_in: Duration) {
        let due = self
            .last_warning
            .is_none_or(|last| now.since(last) >= LOG_FAILURES_EVERY);
        if !due {
            self.unlogged += 1;
            return;
        }
        self.last_warning = Some(now);
        let unlogged = std::mem::take(&mut self.unlogged);
        let (name, backend) = (self.name.as_str(), self.backend);
        tracing::warn!(name, backend, %error, failures, ?retry_in, unlogged, "a request failed");
    }

    fn leader(&self, value: f64) {
        metrics::gauge!("lock_is_leader", "name" => self.name.as_str().to_owned()).set(value);
    }

    fn left(&self, left: Duration) {
        metrics::gauge!("lock_deadline_seconds", "name" => self.name.as_str().to_owned())
            .set(left.as_secs_f64());
    }
}

/// Counts one request to a store.
pub(crate) fn request(backend: &'static str, operation: &'static str, error: Option<&Error>) {
    let outcome = error.map_or("ok", |e| e.kind().as_str());
    metrics::counter!("lock_requests_total",
        "backend" => backend, "operation" => operation, "outcome" => outcome)
    .increment(1);
}
