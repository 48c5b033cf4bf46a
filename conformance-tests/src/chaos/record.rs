//! What a process of the run writes down, one JSON line each, on the suspend-aware clock of the machine.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use lock_core::clock::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

/// Nanoseconds of the suspend-aware clock.
pub(super) type Nanos = u64;

/// The present.
pub(super) fn now() -> Nanos {
    SystemClock.now().as_nanos()
}

/// What was seen. Tokens are numbers here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(super) enum Fact {
    /// The process has begun.
    Up,
    /// A request is about to go to the store; with the terms that it renews or releases.
    Sent {
        op: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<u64>,
    },
    /// The store answered a try that was begun at `since` with this grant.
    Granted {
        token: u64,
        nonce: String,
        since: Nanos,
    },
    /// The work of a term began.
    Began { token: u64 },
    /// The holder was asked whether it may act, after `at`, and that it believes to have until then.
    Check {
        token: u64,
        may: bool,
        until: Option<Nanos>,
    },
    /// The work was told to stop.
    Stopping { token: u64 },
    /// The holder was told that the term is lost.
    Lost { token: u64 },
    /// The work has ended; nothing of it runs.
    Ended { token: u64 },
    /// The resource that checks tokens was written to, in the order of its own lock.
    Wrote { token: u64, taken: bool },
    /// This process did not run since `from`, although it wanted to.
    Stalled { from: Nanos },
    /// The process was told to end in good order, and has.
    Down,
    /// The process was killed; written by who killed it, once the signal was sent.
    Killed,
}

/// A fact with its instant and its candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) at: Nanos,
    pub(super) who: u32,
    pub(super) life: u32,
    pub(super) fact: Fact,
}

#[derive(Serialize, Deserialize)]
struct Line {
    at: Nanos,
    #[serde(flatten)]
    fact: Fact,
}

/// The file of one life of one candidate. Each line is one write, so that a killed process leaves whole ones.
#[derive(Debug)]
pub(super) struct Diary(File);

impl Diary {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map(Self)
    }

    pub(super) fn note(&self, fact: Fact) {
        self.note_at(now(), fact);
    }

    /// Adds a fact with an instant that was read before it was known.
    ///
    /// Ends the process when it cannot be written: what is not known cannot be judged.
    pub(super) fn note_at(&self, at: Nanos, fact: Fact) {
        let mut line = serde_json::to_string(&Line { at, fact }).unwrap_or_default();
        line.push('\n');
        if let Err(error) = (&self.0).write_all(line.as_bytes()) {
            // Without its history a candidate must not go on: the judge would see less than there was.
            eprintln!("the history cannot be written: {error}");
            std::process::abort();
        }
    }
}

/// Reads a diary. A last line without its end was cut off by a kill and is left out.
pub(super) fn read(path: &Path, who: u32, life: u32) -> io::Result<Vec<Record>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            let Line { at, fact } = serde_json::from_str(line)?;
            Ok(Record {
                at,
                who,
                life,
                fact,
            })
        })
        .collect()
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
