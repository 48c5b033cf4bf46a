//! Whole elections under faults: real processes, real stores, recorded histories and a judge.
//!
//! [`run`] starts candidates, each a process of its own, lets a seeded schedule of faults strike them and their
//! store, and judges afterwards, from what the candidates wrote down, by seven invariants:
//!
//! * **I1 exclusion**: when the store has granted a newer term, no older one believes that it may act.
//! * **I2 token order**: each grant has a larger token than every grant before it was asked for.
//! * **I3 stale writes**: after a write under some token, none under a lower one is taken.
//! * **I4 timely loss**: by the deadline the work has ended or the loss is told, whatever the store does.
//! * **I5 work overlap**: the work of two terms never runs at once.
//! * **I6 liveness**: a candidate that nothing disturbs leads within the bound if nobody else does.
//! * **I7 nothing left behind**: in the end the lease is released, the name free, and no connection open.
//!
//! A candidate is the calling program run again: it calls [`candidate`] first thing. What this module knows of
//! a store is a [`Site`]: a text that leads to it, or a server before which each candidate gets a proxy of its own.

mod candidate;
mod cast;
mod engine;
mod gate;
mod html;
mod judge;
mod record;
mod report;
mod scenario;
mod schedule;
mod suite;
mod trace;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock_core::Timing;

pub use candidate::{Mutants, NAME, NoMutants, Opening, candidate};
pub use judge::{Broken, Excuses};
pub use report::{Report, Takeovers};
pub use scenario::Scenario;
#[doc(hidden)]
pub use suite::{candidate_of, elections_of};

use crate::harness::{Answer, Stop};
use crate::servers::{Proxy, Server, SteppedClock};

/// Where the store is, and what can be done to it.
#[derive(Clone, Debug)]
pub struct Site {
    backend: String,
    locator: String,
    server: Option<Server>,
    clock: Option<SteppedClock>,
    lingers: Duration,
}

impl Site {
    /// A store that this text leads to, without a server that could be disturbed. Faults of links and of the store
    /// are made in the candidates, at their calls.
    pub fn plain(backend: impl Into<String>, locator: impl Into<String>) -> Self {
        Self {
            backend: backend.into(),
            locator: locator.into(),
            server: None,
            clock: None,
            lingers: Duration::ZERO,
        }
    }

    /// A server of our own. Each candidate gets a proxy before it; the server is paused as a process.
    #[must_use]
    pub fn server(server: Server) -> Self {
        Self {
            backend: server.kind().name().to_owned(),
            locator: server.url().to_owned(),
            server: Some(server),
            clock: None,
            lingers: Duration::ZERO,
        }
    }

    /// The same, with the wall clock that the server sees.
    #[must_use]
    pub fn with_clock(mut self, clock: SteppedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The same, where an entry outlives its ttl by this much when its process falls silent: the rest of a session. A
    /// takeover may take as much longer.
    #[must_use]
    pub fn with_lingering(mut self, lingers: Duration) -> Self {
        self.lingers = lingers;
        self
    }

    /// Why this scenario cannot take place here, if it cannot.
    fn lacks(&self, scenario: Scenario) -> Option<&'static str> {
        if scenario.needs_server() && self.server.is_none() {
            Some("there is no server of ours that could be disturbed")
        } else if scenario.steps_the_store() && self.clock.is_none() {
            Some("the server has no wall clock of its own that could be stepped")
        } else {
            None
        }
    }

    const fn own_server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// A way to the store that can be disturbed by itself.
    fn way(&self) -> Answer<(String, Option<Proxy>)> {
        let Some(server) = &self.server else {
            return Ok((self.locator.clone(), None));
        };
        let port = server.port();
        let port = port.ok_or_else(|| Stop::failed("the server is not on this machine"))?;
        let proxy = Proxy::start(port).map_err(Stop::failed)?;
        Ok((server.url_at(proxy.port()), Some(proxy)))
    }
}

/// How a process is started that calls [`candidate`] first.
#[derive(Clone, Debug)]
pub struct Launch {
    program: PathBuf,
    words: Vec<String>,
    /// The variable that tells the work its token, where the candidate is a command of its own.
    token: Option<String>,
}

/// Stands in the words of a [`Launch::command`] for the text that leads to the store.
pub const LOCATOR: &str = "{locator}";

impl Launch {
    /// This program again, with these words.
    ///
    /// # Errors
    /// The system does not tell which program this is.
    pub fn this_program<'w>(words: impl IntoIterator<Item = &'w str>) -> Answer<Self> {
        Ok(Self {
            program: std::env::current_exe().map_err(Stop::failed)?,
            words: words.into_iter().map(str::to_owned).collect(),
            token: None,
        })
    }

    /// A command that takes part by itself and starts its last words in each of its terms: a program that calls
    /// [`candidate`] first thing, with the token in this variable of the environment. [`LOCATOR`] in a word becomes
    /// the way to the store. It is ended by SIGTERM. What it believes cannot be asked, so I2 and I4 have nothing to
    /// judge; I5 takes the last sign of the work as its end. Links can be disturbed only before a server of ours.
    pub fn command(
        program: impl Into<PathBuf>,
        words: impl IntoIterator<Item = String>,
        token: impl Into<String>,
    ) -> Self {
        Self {
            program: program.into(),
            words: words.into_iter().collect(),
            token: Some(token.into()),
        }
    }
}

/// Where a run takes place.
pub struct Stage {
    site: Site,
    launch: Launch,
    open: Arc<dyn Fn(String) -> Opening + Send + Sync>,
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("backend", &self.site.backend)
            .finish_non_exhaustive()
    }
}

impl Stage {
    /// A stage. `open` makes a client of the store that a locator of the site names.
    pub fn new(
        site: Site,
        launch: Launch,
        open: impl Fn(String) -> Opening + Send + Sync + 'static,
    ) -> Self {
        Self {
            site,
            launch,
            open: Arc::new(open),
        }
    }

    /// What the store is, how its faults are made, and who takes part.
    fn told(&self) -> String {
        let how = match self.site.server {
            Some(_) => "faults by proxies and signals",
            None => "faults of the link made at the calls",
        };
        let who = self
            .launch
            .token
            .as_ref()
            .map_or("", |_| "; candidates are commands");
        format!("{} ({how}{who})", self.site.backend)
    }
}

/// What is run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// What goes wrong.
    pub scenario: Scenario,
    /// Decides when and for how long.
    pub seed: u64,
    /// How long it goes on.
    pub length: Duration,
    /// Candidates at once, two at least.
    pub candidates: u32,
    /// The times of the candidates.
    pub timing: Timing,
    /// A fault of the program that is to be found: a name that the program's [`Mutants`] know.
    pub mutant: Option<String>,
}

impl Plan {
    /// Three candidates with the default proportions at this ttl.
    ///
    /// # Errors
    /// A ttl for which there are none.
    pub fn new(scenario: Scenario, seed: u64, length: Duration, ttl: Duration) -> Answer<Self> {
        Ok(Self {
            scenario,
            seed,
            length,
            candidates: 3,
            timing: Timing::for_ttl(ttl)?,
            mutant: None,
        })
    }

    /// The same with so many candidates.
    #[must_use]
    pub const fn with_candidates(mut self, candidates: u32) -> Self {
        self.candidates = candidates;
        self
    }

    /// The same with this fault in the program.
    #[must_use]
    pub fn with_mutant(mut self, mutant: Option<String>) -> Self {
        self.mutant = mutant;
        self
    }
}

/// Runs a scenario and judges it. The folder gets `report.html`, `report.json`, and what the candidates wrote: their
/// histories and errors.
///
/// # Errors
/// [`Stop::NotApplicable`] for a scenario that this site cannot show. Else the stage or the plan cannot be had: no process, no server, no answer of the store before or after the faults.
/// That an invariant is broken is no error: the [`Report`] says it.
pub fn run(stage: &Stage, plan: &Plan, folder: &Path) -> Answer<Report> {
    if plan.candidates < 2 {
        return Err(Stop::failed("an election needs two candidates at least"));
    }
    if plan.length < plan.timing.ttl() * 4 {
        return Err(Stop::failed(format!(
            "a run of {:?} is too short for a ttl of {:?}: it needs four of them",
            plan.length,
            plan.timing.ttl()
        )));
    }
    let lacks = stage.site.lacks(plan.scenario).or_else(|| {
        let command = stage.launch.token.is_some() && stage.site.server.is_none();
        let why = "a command's calls to the store cannot be disturbed without a server of ours";
        (command && plan.scenario.disturbs_links()).then_some(why)
    });
    if let Some(why) = lacks {
        return Err(Stop::not_applicable(format!("{}: {why}", plan.scenario)));
    }
    let evidence = engine::run(stage, plan, folder)?;
    let trial = judge::Trial::new(&evidence, &plan.timing);
    let report = Report::of(stage, plan, &trial);
    let text = serde_json::to_string_pretty(&report).map_err(Stop::failed)?;
    std::fs::write(folder.join("report.json"), text).map_err(Stop::failed)?;
    let page = html::page(&report, &trial).map_err(Stop::failed)?;
    std::fs::write(folder.join("report.html"), page).map_err(Stop::failed)?;
    Ok(report)
}
