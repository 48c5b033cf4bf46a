//! `demo`: three candidates on a temporary store; the leader is killed, the next stopped cleanly.

mod candidate;
mod record;
mod timeline;
pub(crate) mod worker;

use std::process::ExitCode;
use std::time::Duration;

use lockkit::Timing;
use lockkit::clock::{Clock as _, Moment, SystemClock};
use rustix::process::Signal;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::candidate::{Candidate, Event, Said};
use self::record::{Record, exact};
use self::timeline::{Timeline, Where};
use crate::args::{self, Format, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::print;
use crate::store::sqlite_url;

/// First argument of a process that is the work of the demonstration.
pub(crate) const WORKER: &str = "__lockctl-demo-worker";

const CANDIDATES: usize = 3;

/// Runs the demonstration.
pub(crate) async fn main(global: &Global, args: args::Demo) -> Result<ExitCode, Failure> {
    let timing = Timing::for_ttl(args.ttl)?;
    // From here on a signal does not end this process before it has cleaned up.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    let folder = tempfile::Builder::new()
        .prefix("lockctl-demo-")
        .tempdir()
        .map_err(|error| {
            Failure::new(
                Exit::Internal,
                format!("cannot make a temporary folder: {error}"),
            )
        })?;
    let store = sqlite_url(&folder.path().join("locks.db"));
    let (sender, said) = mpsc::unbounded_channel();
    let ttl = format!("{}ms", args.ttl.as_millis());
    let timeline = Timeline::new(global.format == Format::Text && !global.quiet, CANDIDATES);
    let mut candidates = Vec::new();
    timeline.line(&format!(
        "three candidates for one lease (ttl {ttl}) on a new SQLite file; each is a `lockctl run` process"
    ))?;
    for number in 0..CANDIDATES {
        candidates.push(Some(
            Candidate::start(number, &store, &ttl, &sender).map_err(|error| {
                Failure::new(Exit::Internal, format!("cannot start a candidate: {error}"))
            })?,
        ));
    }
    drop(sender);
    let mut demo = Demo {
        timing,
        candidates,
        said,
        timeline,
        record: Record::default(),
        leader: None,
        silent: [0; CANDIDATES],
    };
    // Candidates are killed, and the folder is removed, also when it is interrupted.
    tokio::select! {
        played = demo.play() => played?,
        _ = interrupts.recv() => {
            return Err(Failure::with_code(130, "the demonstration was interrupted"));
        }
        _ = terminations.recv() => {
            return Err(Failure::with_code(143, "the demonstration was stopped"));
        }
    }
    demo.conclude(global)
}

struct Demo {
    timing: Timing,
    candidates: Vec<Option<Candidate>>,
    said: mpsc::UnboundedReceiver<(usize, Said)>,
    timeline: Timeline,
    record: Record,
    /// Its number, its token and its last renewal.
    leader: Option<Leader>,
    /// How many streams of each candidate have ended.
    silent: [usize; CANDIDATES],
}

#[derive(Clone, Copy, Debug)]
struct Leader {
    number: usize,
    token: u64,
    renewed: u64,
    /// When it said so.
    heard: Moment,
}

impl Demo {
    async fn play(&mut self) -> Result<(), Failure> {
        let patience = self.timing.ttl() * 2 + Duration::from_secs(5);
        let first = self.next_leader(patience).await?;
        self.watch_for(self.timing.ttl() / 2).await?;
        // Right after a renewal, so that none is on its way when it dies.
        self.fresh_renewal(first).await?;

        let leader = self.leading()?;
        self.record.renewed = Some(leader.renewed);
        self.record.killed = Some(SystemClock.now().as_nanos());
        self.signal(first, Signal::KILL)?;
        self.timeline.set(first, Where::Killed);
        let label = self.label(first);
        self.timeline.line(&format!(
            "{label}  is killed (SIGKILL): nobody can release the lease now; waiting until it expires"
        ))?;
        self.leader = None;
        let second = self.next_leader(patience).await?;
        self.record.taken_over = self.leader.map(|leader| leader.heard.as_nanos());
        self.candidates[first] = None;
        if let Some(took) = self.record.crash_takeover() {
            let label = self.label(second);
            self.timeline.line(&format!(
                "{label}  took over {} after the last renewal that the store saw",
                exact(took)
            ))?;
        }
        self.watch_for(Duration::from_secs(3)).await?;

        let label = self.label(second);
        self.timeline.line(&format!(
            "{label}  is stopped cleanly (SIGTERM): its work ends, then it releases the lease"
        ))?;
        self.leader = None;
        self.signal(second, Signal::TERM)?;
        let third = self.next_leader(patience).await?;
        self.record.handed_over = self.leader.map(|leader| leader.heard.as_nanos());
        self.gone(second, patience).await?;
        self.candidates[second] = None;
        self.timeline.set(second, Where::Stopped);
        if let Some(took) = self.record.clean_takeover() {
            let label = self.label(third);
            self.timeline.line(&format!(
                "{label}  took over {} after the work of {} had ended",
                exact(took),
                self.label(second)
            ))?;
        }
        self.watch_for(Duration::from_secs(2)).await?;
        self.signal(third, Signal::TERM)?;
        self.gone(third, patience).await?;
        self.candidates[third] = None;
        Ok(())
    }

    fn label(&self, number: usize) -> char {
        char::from(b'A' + u8::try_from(number).unwrap_or(0))
    }

    fn leading(&self) -> Result<Leader, Failure> {
        self.leader
            .ok_or_else(|| Failure::new(Exit::Internal, "the demonstration lost its leader"))
    }

    fn signal(&self, number: usize, signal: Signal) -> Result<(), Failure> {
        match &self.candidates[number] {
            Some(candidate) => Ok(candidate.signal(signal)?),
            None => Err(Failure::new(Exit::Internal, "a candidate ended too early")),
        }
    }

    /// Follows the candidates until one leads.
    async fn next_leader(&mut self, patience: Duration) -> Result<usize, Failure> {
        self.until(patience, "no candidate took the lead", |demo, _| {
            demo.leader.map(|leader| leader.number)
        })
        .await
    }

    /// Follows the candidates until the leader renews.
    async fn fresh_renewal(&mut self, leader: usize) -> Result<(), Failure> {
        let patience = self.timing.ttl();
        self.until(patience, "the leader did not renew", |_, (number, said)| {
            matches!(said, Said::Event(event) if *number == leader && event.event == "renewed")
                .then_some(())
        })
        .await
    }

    /// Follows the candidates until one has ended, if it has not yet.
    async fn gone(&mut self, which: usize, patience: Duration) -> Result<(), Failure> {
        while self.silent[which] < candidate::STREAMS {
            self.until(patience, "a candidate did not end", |_, (number, said)| {
                matches!(said, Said::Gone if *number == which).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    /// Follows the candidates for a while.
    async fn watch_for(&mut self, span: Duration) -> Result<(), Failure> {
        let end = tokio::time::Instant::now() + span;
        loop {
            tokio::select! {
                said = self.said.recv() => match said {
                    Some(said) => self.hear(&said)?,
                    None => return Ok(()),
                },
                () = tokio::time::sleep_until(end) => return Ok(()),
            }
        }
    }

    async fn until<T>(
        &mut self,
        patience: Duration,
        otherwise: &str,
        found: impl Fn(&Self, &(usize, Said)) -> Option<T>,
    ) -> Result<T, Failure> {
        let end = tokio::time::Instant::now() + patience;
        loop {
            tokio::select! {
                said = self.said.recv() => {
                    let Some(said) = said else {
                        return Err(Failure::new(Exit::Internal, otherwise));
                    };
                    self.hear(&said)?;
                    if let Some(found) = found(self, &said) {
                        return Ok(found);
                    }
                }
                () = tokio::time::sleep_until(end) => {
                    return Err(Failure::new(
                        Exit::Internal,
                        format!("{otherwise} within {}", crate::span::show(patience)),
                    ));
                }
            }
        }
    }

    fn hear(&mut self, (number, said): &(usize, Said)) -> Result<(), Failure> {
        match said {
            Said::Beat(beat) => {
                self.record.beat(*beat);
                self.timeline.beats(*number, self.record.beats(beat.token));
            }
            Said::Event(event) => self.on_event(*number, event)?,
            Said::Noise(line) => {
                let label = self.label(*number);
                self.timeline.line(&format!("{label}  says: {line}"))?;
            }
            Said::Gone => self.silent[*number] += 1,
        }
        self.timeline.draw()?;
        Ok(())
    }

    fn on_event(&mut self, number: usize, event: &Event) -> Result<(), Failure> {
        let label = self.label(number);
        // The request that restarted the store's countdown was sent this long before the deadline.
        let reach = self
            .timing
            .deadline(Moment::START, self.timing.ttl())
            .as_nanos();
        let sent = event
            .deadline
            .map(|deadline| deadline.saturating_sub(reach));
        match (event.event.as_str(), event.token, sent) {
            ("gained", Some(token), Some(renewed)) => {
                self.record.gained(token);
                self.leader = Some(Leader {
                    number,
                    token,
                    renewed,
                    heard: Moment::from_nanos(event.boot_ns),
                });
                self.timeline.set(number, Where::Leads(token));
                self.timeline
                    .line(&format!("{label}  leads, with token {token}"))?;
            }
            ("renewed", Some(token), Some(renewed)) => {
                if let Some(leader) = &mut self.leader
                    && (leader.number, leader.token) == (number, token)
                {
                    leader.renewed = renewed;
                }
            }
            ("standby", _, _) => self.timeline.set(number, Where::Waits),
            ("ended", ..) => self.record.ended = self.record.ended.or(Some(event.boot_ns)),
            ("failed" | "unavailable" | "lost", ..) => {
                let why = event.why.as_deref().unwrap_or("no reason given");
                self.timeline
                    .line(&format!("{label}  {}: {why}", event.event))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn conclude(&mut self, global: &Global) -> Result<ExitCode, Failure> {
        self.timeline.end()?;
        let faults = self.record.faults(self.timing);
        let crash = self.record.crash_takeover().unwrap_or_default();
        let clean = self.record.clean_takeover().unwrap_or_default();
        if global.format == Format::Json {
            let object = json!({
                "ok": faults.is_empty(),
                "crash_takeover_ms": crash.as_secs_f64() * 1000.0,
                "clean_takeover_ms": clean.as_secs_f64() * 1000.0,
                "ttl_ms": self.timing.ttl().as_secs_f64() * 1000.0,
                "faults": faults,
            });
            print(&object.to_string())?;
        }
        if !faults.is_empty() {
            return Err(Failure::new(
                Exit::Internal,
                format!("the demonstration failed: {}", faults.join("; ")),
            ));
        }
        if global.format == Format::Text {
            print(&format!(
                "one leader at a time, tokens grew: crash takeover {} after the last renewal (ttl {}), \
                 clean takeover {}",
                exact(crash),
                exact(self.timing.ttl()),
                exact(clean)
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
