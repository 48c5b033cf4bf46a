//! Everything `lockctl` itself writes, without secrets.
//!
//! Results go to standard output. Messages and events go to standard error: standard output belongs
//! to the command that is run.

use std::io::{self, Write};
use std::time::SystemTime;

use lockkit::clock::{Clock as _, SystemClock};
use serde_json::{Map, Value};

use crate::args::{Format, Global};
use crate::redact::redact;

/// Writes one line to standard error.
pub(crate) fn complain(message: &str) {
    let line = format!("lockctl: {}\n", one_line(&redact(message)));
    // With standard error closed there is nobody to tell.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Joins the lines of a text, so that one message stays one line in every log.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join("; ")
}

/// Writes a result to standard output.
///
/// # Errors
/// When standard output is closed or full.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(redact(text).as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// How loud a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Something needs attention; hidden by `--quiet`.
    Warn,
    /// What a service says by default.
    Info,
    /// Only with `--verbose`.
    Detail,
}

/// Reports what happens, as text or as JSON events.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    format: Format,
    loudest: Option<Level>,
    base: Map<String, Value>,
}

impl Reporter {
    /// A reporter that by default says what is at least this important.
    pub(crate) fn new(global: &Global, default: Level) -> Self {
        let loudest = match (global.quiet, global.verbose) {
            (true, _) => None,
            (false, 0) => Some(default),
            (false, _) => Some(Level::Detail),
        };
        Self {
            format: global.format,
            loudest,
            base: Map::new(),
        }
    }

    /// The same reporter with this field in every JSON event.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.base.insert(key.to_owned(), value.into());
        self
    }

    /// Reports one event. JSON carries all of them unless `--quiet`; text those that are loud enough.
    pub(crate) fn event(&self, level: Level, event: &str, fields: &[(&str, Value)], text: &str) {
        match self.format {
            Format::Text => {
                if self.loudest.is_some_and(|loudest| level <= loudest) {
                    complain(text);
                }
            }
            Format::Json => {
                if self.loudest.is_none() {
                    return;
                }
                let mut object = stamped(event);
                object.extend(self.base.clone());
                for (key, value) in fields {
                    object.insert((*key).to_owned(), value.clone());
                }
                let line = format!("{}\n", redact(&Value::Object(object).to_string()));
                // With standard error closed there is nobody to tell.
                let _ = io::stderr().write_all(line.as_bytes());
            }
        }
    }
}

/// An object with the name of an event and the present on both clocks.
pub(crate) fn stamped(event: &str) -> Map<String, Value> {
    let wall = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
    let mut object = Map::new();
    object.insert("event".into(), event.into());
    object.insert("unix_ms".into(), wall.into());
    // Comparable between the processes of one machine since its boot.
    object.insert("boot_ns".into(), SystemClock.now().as_nanos().into());
    object
}
