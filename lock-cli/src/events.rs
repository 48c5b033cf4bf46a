//! The events of an election, reported.

use lockkit::{Event, Release};
use serde_json::Value;
use tokio::sync::broadcast;

use crate::failure::describe;
use crate::output::{Level, Reporter};

/// How often a failure that goes on is reported again.
const REPEAT: std::time::Duration = std::time::Duration::from_secs(60);

/// Reports until the election ends: one line for each change of state; during an outage one at its
/// start, one a minute, and one at its end.
pub(crate) async fn follow(mut events: broadcast::Receiver<Event>, report: Reporter) {
    let mut last_holder = None;
    let mut next_failure: Option<tokio::time::Instant> = None;
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(broadcast::error::RecvError::Lagged(missed)) => {
                report.event(
                    Level::Detail,
                    "missed",
                    &[("events", missed.into())],
                    &format!("{missed} events were missed"),
                );
                continue;
            }
            Err(broadcast::error::RecvError::Closed) => return,
        };
        let answered = matches!(
            event,
            Event::Recovered { .. }
                | Event::Standby { .. }
                | Event::Gained { .. }
                | Event::Renewed { .. }
                | Event::Released { .. }
        );
        if answered && next_failure.take().is_some() {
            report.event(Level::Info, "recovered", &[], "the store answers again");
        }
        match event {
            Event::Standby { holder } => {
                let seen = (holder.owner.clone(), holder.token);
                if last_holder.as_ref() != Some(&seen) {
                    let text = format!("standing by: {} leads (token {})", seen.0, seen.1);
                    let fields: [(&str, Value); 2] = [
                        ("holder", seen.0.as_str().into()),
                        ("token", seen.1.get().into()),
                    ];
                    report.event(Level::Info, "standby", &fields, &text);
                    last_holder = Some(seen);
                }
            }
            Event::Failed {
                error,
                failures,
                retry_in,
            } => {
                let now = tokio::time::Instant::now();
                if next_failure.is_none_or(|at| now >= at) {
                    next_failure = Some(now + REPEAT);
                    let why = describe(&error);
                    let text = format!(
                        "{why}; {failures} failed so far, next try in {}",
                        crate::span::show(retry_in)
                    );
                    let fields: [(&str, Value); 2] =
                        [("why", why.into()), ("failures", failures.into())];
                    report.event(Level::Warn, "failed", &fields, &text);
                }
            }
            // The end is told by the exit code and its message.
            Event::Ended { .. } => return,
            other => {
                if matches!(other, Event::Gained { .. }) {
                    last_holder = None;
                }
                one(&other, &report);
            }
        }
    }
}

fn one(event: &Event, report: &Reporter) {
    match event {
        Event::Gained { token, deadline } => report.event(
            Level::Info,
            "gained",
            &[
                ("token", token.get().into()),
                ("deadline", deadline.as_nanos().into()),
            ],
            &format!("leading, with token {token}"),
        ),
        Event::Renewed { token, deadline } => report.event(
            Level::Detail,
            "renewed",
            &[
                ("token", token.get().into()),
                ("deadline", deadline.as_nanos().into()),
            ],
            "renewed",
        ),
        Event::Stopping { token, reason, .. } => report.event(
            Level::Detail,
            "resigning",
            &[
                ("token", token.get().into()),
                ("reason", reason.to_string().into()),
            ],
            &format!("stopping: {reason}"),
        ),
        Event::Aborting { token } => report.event(
            Level::Warn,
            "aborting",
            &[("token", token.get().into())],
            "the command did not end in time",
        ),
        Event::Lost { token, reason } => report.event(
            Level::Warn,
            "lost",
            &[
                ("token", token.get().into()),
                ("reason", reason.to_string().into()),
            ],
            &format!("lost the lead: {reason}"),
        ),
        Event::Released { token, outcome } => {
            let word = match outcome {
                Release::Released => "released",
                Release::NotHeld => "not-held",
            };
            report.event(
                Level::Info,
                word,
                &[("token", token.get().into())],
                match outcome {
                    Release::Released => "released the lead",
                    Release::NotHeld => "the lease was over before it was released",
                },
            );
        }
        // Kinds of later versions.
        _ => {}
    }
}
