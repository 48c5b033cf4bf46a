//! `watch`: who holds a name, as it changes; live on a terminal, lines elsewhere.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use lockkit::clock::{Clock as _, Moment, SystemClock};
use lockkit::{LeaseState, LockName, LockProvider as _, Observation, Provider};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, Format, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Level, Reporter, print, stamped};
use crate::redact::redact;
use crate::{span, state, store};

/// How often the live view is drawn.
const DRAW: Duration = Duration::from_millis(200);
/// How often the live view asks how long the lease still lasts.
const ASK: Duration = Duration::from_secs(1);

/// Runs `watch`.
pub(crate) async fn main(global: &Global, args: args::Name) -> Result<ExitCode, Failure> {
    let name = LockName::new(&args.name)?;
    // It waits for the first use of the default store, and so makes that.
    let provider = match store::open_to_look(global).await? {
        Some(provider) => provider,
        None => store::open_to_follow(global).await?,
    };
    let live = global.format == Format::Text && rustix::termios::isatty(io::stdout());
    let report = Reporter::new(global, Level::Warn);
    let mut view = View {
        live,
        format: global.format,
        seen: None,
        asked: Moment::START,
        since: SystemClock.now(),
    };
    let mut outage = false;
    let mut interrupts = signal(SignalKind::interrupt())?;
    loop {
        let seen = tokio::select! {
            biased;
            _ = interrupts.recv() => {
                if view.live {
                    // The shell's prompt begins a line of its own.
                    print("")?;
                }
                return Ok(ExitCode::from(130));
            }
            seen = next(&provider, &name, &mut view) => seen,
        };
        let seen = match seen {
            Ok(seen) => seen,
            Err(error) if error.is_retryable() => {
                if !std::mem::replace(&mut outage, true) {
                    let failure = Failure::from(error);
                    report.event(
                        Level::Warn,
                        "failed",
                        &[("why", failure.message().into())],
                        &format!("{}; trying again", failure.message()),
                    );
                }
                tokio::time::sleep(ASK).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if std::mem::take(&mut outage) {
            report.event(Level::Warn, "recovered", &[], "the store answers again");
        }
        match view.show(seen) {
            Ok(()) => {}
            // Whoever reads this has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => return Err(Failure::new(Exit::Internal, error.to_string())),
        }
    }
}

/// The next observation worth showing: a change, or for the live view a fresh look.
async fn next(
    provider: &Provider,
    name: &LockName,
    view: &mut View,
) -> lockkit::Result<Observation> {
    let Some(seen) = view.seen.clone() else {
        return provider.observe(name.as_str()).await;
    };
    let ask_at = tokio::time::Instant::now() + ASK;
    let mut changed = std::pin::pin!(provider.watch(&seen));
    loop {
        tokio::select! {
            biased;
            changed = &mut changed => return changed,
            () = tokio::time::sleep_until(ask_at), if view.live => {
                return provider.observe(name.as_str()).await;
            }
            () = tokio::time::sleep(DRAW), if view.live => {
                // A terminal that is gone is noticed at the next change.
                let _ = view.draw();
            }
        }
    }
}

struct View {
    live: bool,
    format: Format,
    seen: Option<Observation>,
    /// When that was asked for.
    asked: Moment,
    /// Since when the state is what it is, as far as was seen.
    since: Moment,
}

impl View {
    fn show(&mut self, seen: Observation) -> io::Result<()> {
        let now = SystemClock.now();
        let changed = self
            .seen
            .as_ref()
            .is_none_or(|before| term_of(&before.state) != term_of(&seen.state));
        if changed && self.live && self.seen.is_some() {
            // What was stays in view above.
            io::stdout().write_all(b"\n")?;
        }
        if changed {
            self.since = now;
        }
        self.asked = now;
        if self.live {
            self.seen = Some(seen);
            return self.draw();
        }
        if changed {
            match self.format {
                Format::Text => print(&format!("{}  {}", clock(), state::describe(&seen.state)))?,
                Format::Json => {
                    let mut object = stamped("state");
                    object.extend(state::json(&seen));
                    print(&Value::Object(object).to_string())?;
                }
            }
        }
        self.seen = Some(seen);
        Ok(())
    }

    fn draw(&self) -> io::Result<()> {
        let Some(seen) = &self.seen else {
            return Ok(());
        };
        let age = SystemClock.now().since(self.asked);
        let state = match &seen.state {
            LeaseState::Held(holder) => {
                let mut holder = holder.clone();
                holder.remaining = holder.remaining.saturating_sub(age);
                LeaseState::Held(holder)
            }
            other => other.clone(),
        };
        let line = format!(
            "{}  {}, seen so for {}",
            seen.name,
            state::describe(&state),
            span::show(SystemClock.now().since(self.since))
        );
        let line: String = redact(&line).chars().take(width()).collect();
        let mut out = io::stdout().lock();
        write!(out, "\r\x1b[K{line}")?;
        out.flush()
    }
}

/// The columns of the terminal that a line may fill without being wrapped.
fn width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .and_then(|size| usize::from(size.ws_col).checked_sub(1))
        .filter(|width| *width > 0)
        .unwrap_or(79)
}

/// What a state has in common with the same state some renewals later.
fn term_of(state: &LeaseState) -> (u8, u64) {
    match state {
        LeaseState::Absent => (0, 0),
        LeaseState::Free { token, .. } => (1, token.get()),
        LeaseState::Expired(holder) => (2, holder.token.get()),
        LeaseState::Held(holder) => (3, holder.token.get()),
        _ => (4, 0),
    }
}

/// The time of day in UTC, for lines.
fn clock() -> String {
    let seconds = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
        % 86_400;
    format!(
        "{:02}:{:02}:{:02}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}
