//! What a healthy standby, an outage and a loss write to the log and to the metrics.

#![allow(clippy::unwrap_used, reason = "a test program")]

mod support;

use std::future::pending;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::{ErrorKind, LockProvider as _, Operation, Status};
use metrics::{SharedString, Unit};
use metrics_util::CompositeKey;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshot, Snapshotter};
use support::{TTL, World, ms};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// The lines of this level since the last look.
    fn take(&self, level: &str) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        let of_level = |line: &&str| line.trim_start().starts_with(level);
        text.lines().filter(of_level).map(str::to_owned).collect()
    }
}

/// Runs a test in virtual time under a log and a recorder of its own.
fn observed<F: Future<Output = ()>>(test: impl FnOnce(Log, Snapshotter) -> F) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone())
        .finish();
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tracing::subscriber::with_default(subscriber, || {
        metrics::with_local_recorder(&recorder, || runtime.block_on(test(log, snapshotter)));
    });
}

type Sample = (CompositeKey, Option<Unit>, Option<SharedString>, DebugValue);

fn number(value: &DebugValue) -> f64 {
    match value {
        DebugValue::Gauge(value) => value.into_inner(),
        DebugValue::Counter(count) => *count as f64,
        DebugValue::Histogram(values) => values.len() as f64,
    }
}

/// The values of a metric, with their labels.
fn of(snapshot: Snapshot, metric: &str) -> Vec<(String, f64)> {
    let of_metric = |(key, _, _, value): &Sample| {
        let key = key.key();
        let labels: Vec<_> = key.labels().map(|l| l.value().to_owned()).collect();
        (key.name() == metric).then(|| (labels.join(" "), number(value)))
    };
    snapshot.into_vec().iter().filter_map(of_metric).collect()
}

async fn leads(elector: &lock_core::Elector) {
    elector
        .status()
        .wait_for(|s| matches!(s, Status::Leading(_)))
        .await
        .unwrap();
}

fn run(elector: &lock_core::Elector) -> tokio::task::JoinHandle<lock_core::Result<()>> {
    let elector = elector.clone();
    tokio::spawn(async move {
        elector
            .run(|leadership| async move {
                leadership.stopping().await;
                Ok::<(), String>(())
            })
            .await
    })
}

#[test]
fn the_log_has_a_line_for_each_change_and_no_more() {
    observed(|log, _| async move {
        let world = World::new();
        let leader = world.provider().elector("n").unwrap();
        run(&leader);
        leads(&leader).await;
        let standby = world.provider().elector("n").unwrap();
        run(&standby);
        tokio::time::sleep(TTL).await;
        let lines = log.take("INFO");
        assert_eq!(lines.len(), 2, "one gained, one standing by: {lines:?}");

        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(log.take(""), Vec::<String>::new(), "ten healthy minutes");

        world.fail(Operation::TryAcquire, ErrorKind::Unavailable);
        tokio::time::sleep(Duration::from_secs(600)).await;
        let lines = log.take("WARN");
        assert!(
            (5..=11).contains(&lines.len()),
            "ten minutes of outage: {lines:#?}"
        );
        assert!(
            lines[0].contains("on purpose"),
            "the first says why: {}",
            lines[0]
        );
        world.heal();
        tokio::time::sleep(TTL).await;
        let lines = log.take("INFO");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("answers again"), "{lines:?}");
    });
}

#[test]
fn every_kind_of_error_is_in_the_log() {
    for kind in [
        ErrorKind::Backend,
        ErrorKind::Conflict,
        ErrorKind::PermissionDenied,
        ErrorKind::Schema,
        ErrorKind::Timeout,
        ErrorKind::Tls,
        ErrorKind::Unavailable,
    ] {
        observed(|log, _| async move {
            let world = World::new();
            world.fail(Operation::TryAcquire, kind);
            let elector = world.provider().elector("n").unwrap();
            run(&elector);
            tokio::time::sleep(TTL).await;
            let lines = log.take("WARN");
            assert_eq!(lines.len(), 1, "{kind}: {lines:?}");
            assert_eq!(elector.health().last_error.unwrap().kind(), kind);
        });
    }
}

#[test]
fn the_gauge_is_down_by_the_deadline_without_any_answer() {
    observed(|_, metrics| async move {
        let world = World::new();
        let elector = world.provider().elector("n").unwrap();
        let run = {
            let elector = elector.clone();
            // Work that does not listen.
            tokio::spawn(async move { elector.run(|_| pending::<Result<(), String>>()).await })
        };
        leads(&elector).await;
        // Taking a snapshot sets the recorder's gauges to 0; the next renewal sets them again.
        let up = metrics.snapshot();
        assert_eq!(of(up, "lock_is_leader"), [("n".to_owned(), 1.0)]);
        tokio::time::sleep(TTL).await;
        let seen = world.provider().observe("n").await.unwrap();
        let expires = world.now().after(seen.holder().unwrap().remaining);
        for operation in [Operation::Renew, Operation::TryAcquire, Operation::Release] {
            world.hang(operation);
        }
        while world.now() < expires {
            tokio::time::sleep(ms(100)).await;
        }
        let down = metrics.snapshot().into_vec();
        let value = |metric: &str, label: &str| {
            let named = |(key, _, _, _): &&Sample| {
                let key = key.key();
                key.name() == metric && key.labels().any(|l| l.value() == label)
            };
            number(&down.iter().find(named).expect("it was set").3)
        };
        assert_eq!(value("lock_is_leader", "n"), 0.0);
        assert_eq!(value("lock_deadline_seconds", "n"), 0.0);
        assert!(
            value("lock_events_total", "lost") == 1.0 && value("lock_events_total", "failed") > 0.0
        );
        assert!(value("lock_requests_total", "timeout") > 0.0);
        world.heal();
        leads(&elector).await;
        let healed = metrics.snapshot();
        assert_eq!(
            of(healed, "lock_leaderless_seconds"),
            [("n".to_owned(), 1.0)]
        );
        run.abort();
    });
}

#[test]
fn guards_put_no_names_into_metrics() {
    observed(|log, metrics| async move {
        let world = World::new();
        let guard = world.provider().acquire("invoice-42").await.unwrap();
        guard.release().await.unwrap();
        assert!(of(metrics.snapshot(), "lock_is_leader").is_empty());
        assert!(log.take("").is_empty(), "nor lines into the log");
    });
}
