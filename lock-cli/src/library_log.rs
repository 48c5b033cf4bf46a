//! What the library logs, on standard error and without secrets.
//!
//! `-vv` shows all of it. Else only the troubles with the store are shown, as messages of `lockctl`:
//! at their start, then once a minute, and at their end; that rhythm is the library's.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::Global;
use crate::output::{self, Reporter};
use crate::redact::redact;

/// Shows all that the library logs, when that was asked for.
pub(crate) fn show_all(global: &Global) {
    let level = match global.verbose {
        0 | 1 => return,
        2 => Level::DEBUG,
        _ => Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(|| Redacting(Vec::new()))
        .init();
}

/// Shows the troubles with the store from now on. For `exec`: what waits for a lock or holds one has no
/// events of its own. May be called again.
pub(crate) fn show_troubles(global: &Global, report: &Reporter) {
    if global.verbose >= 2 {
        return;
    }
    let troubles = Troubles {
        report: report.clone(),
    };
    // It fails when they are shown already.
    let _ = tracing_subscriber::registry().with(troubles).try_init();
}

struct Troubles {
    report: Reporter,
}

impl<S: Subscriber> Layer<S> for Troubles {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("lock_core")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        if said.has_failures {
            // With the error while it lasts, without at the end of it.
            let (word, text) = match said.error {
                Some(error) => ("failed", format!("{error}; trying on")),
                None => ("recovered", said.message),
            };
            self.report.event(
                output::Level::Warn,
                word,
                &[("why", text.clone().into())],
                &text,
            );
        }
    }
}

/// The fields of a record that matter here.
#[derive(Default)]
struct Said {
    message: String,
    error: Option<String>,
    has_failures: bool,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => {
                // Writing to a String cannot fail.
                let _ = write!(self.message, "{value:?}");
            }
            "error" => self.error = Some(format!("{value:?}")),
            "failures" => self.has_failures = true,
            _ => {}
        }
    }
}

/// Collects one record and writes it without secrets.
struct Redacting(Vec<u8>);

impl Write for Redacting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Redacting {
    fn drop(&mut self) {
        let text = redact(&String::from_utf8_lossy(&self.0));
        // With standard error closed there is nobody to tell.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
