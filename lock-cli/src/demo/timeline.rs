//! The timeline of the demonstration: lines, and on a terminal a live one below them.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use lockkit::clock::{Clock as _, Moment, SystemClock};

/// How often the live line is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// Where a candidate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Starts,
    Waits,
    Leads(u64),
    Killed,
    Stopped,
}

#[derive(Debug)]
pub(super) struct Timeline {
    shown: bool,
    live: bool,
    began: Moment,
    drawn: Moment,
    candidates: Vec<(Where, u64)>,
}

impl Timeline {
    pub(super) fn new(shown: bool, candidates: usize) -> Self {
        Self {
            shown,
            live: shown && io::stdout().is_terminal(),
            began: SystemClock.now(),
            drawn: Moment::START,
            candidates: vec![(Where::Starts, 0); candidates],
        }
    }

    /// Writes a line that stays.
    pub(super) fn line(&self, text: &str) -> io::Result<()> {
        if !self.shown {
            return Ok(());
        }
        let wipe = if self.live { "\r\x1b[K" } else { "" };
        let at = SystemClock.now().since(self.began).as_secs_f64();
        let mut out = io::stdout().lock();
        writeln!(out, "{wipe}{at:6.2} s  {text}")?;
        out.flush()
    }

    pub(super) fn set(&mut self, number: usize, to: Where) {
        self.candidates[number] = (to, 0);
    }

    pub(super) fn beats(&mut self, number: usize, beats: u64) {
        self.candidates[number].1 = beats;
    }

    /// Draws the live line, if it is due.
    pub(super) fn draw(&mut self) -> io::Result<()> {
        let now = SystemClock.now();
        if !self.live || now.since(self.drawn) < DRAW {
            return Ok(());
        }
        self.drawn = now;
        let at = now.since(self.began).as_secs_f64();
        let mut line = format!("\r\x1b[K{at:6.2} s ");
        for (label, (place, beats)) in ('A'..).zip(&self.candidates) {
            line.push_str(&match place {
                Where::Starts => format!("  {label} starts"),
                Where::Waits => format!("  {label} stands by"),
                Where::Leads(_) => format!("  \x1b[1m{label} leads, {beats} signs of work\x1b[0m"),
                Where::Killed => format!("  {label} killed"),
                Where::Stopped => format!("  {label} stopped"),
            });
        }
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())?;
        out.flush()
    }

    /// Wipes the live line.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.live {
            let mut out = io::stdout().lock();
            out.write_all(b"\r\x1b[K")?;
            out.flush()?;
        }
        Ok(())
    }
}
