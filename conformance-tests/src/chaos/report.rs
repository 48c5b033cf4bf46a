//! What a run showed, as figures.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::judge::{Broken, Excuses, INVARIANTS, SLACK, Trial, judge, liveness};
use super::record::{Fact, Nanos};
use super::{Plan, Stage};

/// A run, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The technology of the store, and how its faults were made.
    pub store: String,
    /// The scenario.
    pub scenario: String,
    /// The seed: the same one gives the same schedule of faults.
    pub seed: u64,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// Candidates at once.
    pub candidates: u32,
    /// The ttl in milliseconds.
    pub ttl_ms: u64,
    /// The fault of the program that was to be found, if any.
    pub mutant: Option<String>,
    /// Every invariant, with what breaks it.
    pub verdict: BTreeMap<String, Option<Broken>>,
    /// What was forgiven.
    pub excuses: Excuses,
    /// Added to each instant that a running process is to keep, in milliseconds.
    pub slack_ms: u64,
    /// Terms with work.
    pub terms: u64,
    /// From a release to the next grant, in a calm moment.
    pub clean: Takeovers,
    /// From the last request that may have restarted the countdown to the next grant, in a calm moment.
    pub crash: Takeovers,
    /// Takeovers in whose time a fault left no candidate undisturbed; no bound holds for them.
    pub disturbed_takeovers: u64,
    /// The longest time without a leader, faults included, in milliseconds.
    pub longest_gap_ms: u64,
    /// What a healthy candidate may need at most to lead, in milliseconds (I6).
    pub liveness_bound_ms: u64,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Writes to the resource that checks tokens.
    pub writes_taken: u64,
    /// Writes that it refused since a newer token had been seen.
    pub writes_refused: u64,
    /// Requests to the store by operation.
    pub requests: BTreeMap<String, u64>,
}

/// Times of takeovers in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Takeovers {
    /// How many.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50_ms: f64,
    /// 99 of 100 took at most this long.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// The goal for one of them.
    pub goal_ms: f64,
    /// How many took longer than the goal.
    pub over_goal: u64,
    /// Each of them, sorted.
    pub all_ms: Vec<f64>,
}

impl Takeovers {
    fn of(mut all: Vec<f64>, goal: Duration) -> Self {
        all.sort_by(f64::total_cmp);
        let at = |share: usize| {
            let last = all.len().saturating_sub(1);
            all.get(
                (all.len() * share)
                    .div_ceil(100)
                    .saturating_sub(1)
                    .min(last),
            )
            .copied()
            .unwrap_or_default()
        };
        let goal_ms = goal.as_secs_f64() * 1e3;
        Self {
            count: all.len() as u64,
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
            goal_ms,
            over_goal: all.iter().filter(|ms| **ms > goal_ms).count() as u64,
            all_ms: all,
        }
    }
}

impl Report {
    /// The invariants that are broken.
    pub fn violations(&self) -> impl Iterator<Item = &Broken> {
        self.verdict.values().flatten()
    }

    pub(super) fn of(stage: &Stage, plan: &Plan, trial: &Trial<'_>) -> Self {
        let (broken, excuses) = judge(trial);
        let verdict = INVARIANTS.map(|name| {
            let found = broken.iter().find(|one| one.invariant == name);
            (name.to_owned(), found.cloned())
        });
        let records = &trial.evidence.records;
        let mut requests = BTreeMap::new();
        let mut writes = [0, 0];
        for record in records {
            match &record.fact {
                Fact::Sent { op, .. } => *requests.entry(op.clone()).or_default() += 1,
                Fact::Wrote { taken, .. } => writes[usize::from(*taken)] += 1,
                _ => {}
            }
        }
        let mut faults = BTreeMap::new();
        for window in &trial.evidence.windows {
            let on = window.on.map_or("store: ", |_| "");
            *faults
                .entry(format!("{on}{}", window.kind.name()))
                .or_default() += 1;
        }
        let (clean, crash, disturbed_takeovers) = takeovers(trial);
        let vacancies = liveness::vacancies(trial);
        // Neither the first election nor the end.
        let gaps = vacancies
            .iter()
            .filter(|(_, to, last)| last.is_some() && *to < trial.evidence.to);
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            store: stage.told(),
            scenario: plan.scenario.to_string(),
            seed: plan.seed,
            seconds: plan.length.as_secs_f64(),
            candidates: plan.candidates,
            ttl_ms: ms(plan.timing.ttl()),
            mutant: plan.mutant.clone(),
            verdict: verdict.into_iter().collect(),
            excuses,
            slack_ms: ms(SLACK),
            terms: trial
                .terms
                .iter()
                .filter(|term| term.began.is_some())
                .count() as u64,
            clean,
            crash,
            disturbed_takeovers,
            longest_gap_ms: gaps
                .map(|(from, to, _)| (to - from) / 1_000_000)
                .max()
                .unwrap_or(0),
            liveness_bound_ms: ms(liveness::bound(trial)),
            faults,
            writes_taken: writes[1],
            writes_refused: writes[0],
            requests,
        }
    }
}

/// Clean ones, those after a crash, and how many more there were.
fn takeovers(trial: &Trial<'_>) -> (Takeovers, Takeovers, u64) {
    let (mut clean, mut crash, mut disturbed) = (Vec::new(), Vec::new(), 0);
    let mut terms: Vec<_> = trial
        .terms
        .iter()
        .filter(|term| term.granted.is_some())
        .collect();
    terms.sort_by_key(|term| term.granted.as_ref().map(|record| record.at));
    let millis =
        |from: Nanos, to: Nanos| Duration::from_nanos(to.saturating_sub(from)).as_secs_f64() * 1e3;
    for pair in terms.windows(2) {
        let (before, next) = (pair[0], pair[1]);
        let Some(granted) = next.granted.as_ref().map(|record| record.at) else {
            continue;
        };
        let released = before.released.as_ref().map(|record| record.at);
        let in_time = |at: &Nanos| {
            before
                .deadline()
                .is_some_and(|(deadline, _)| *at <= deadline)
                && *at <= granted
        };
        let ended = before
            .first()
            .and_then(|first| trial.upset_within(first.at, granted));
        match (released.filter(in_time), before.renewed) {
            // Ended in the store: neither clean nor after a crash.
            _ if ended.is_some() => disturbed += 1,
            (Some(at), _) if liveness::calm(trial, at, granted, Some(before.who)) => {
                clean.push(millis(at, granted));
            }
            // A release that could not get out: to the others a crash.
            (_, Some(at)) if liveness::calm(trial, at, granted, None) => {
                crash.push(millis(at, granted));
            }
            _ => disturbed += 1,
        }
    }
    let ttl = trial.timing.ttl();
    let clean = Takeovers::of(clean, Duration::from_millis(50));
    let stands = ttl + trial.evidence.lingers;
    let crash = Takeovers::of(crash, stands + Duration::from_millis(100));
    (clean, crash, disturbed)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clean,
            crash,
            excuses,
            ..
        } = self;
        writeln!(
            f,
            "{}  {}  seed {}  {:.0} s  {} candidates  ttl {} ms",
            self.store, self.scenario, self.seed, self.seconds, self.candidates, self.ttl_ms
        )?;
        let list = |counts: &BTreeMap<String, u64>| {
            let parts = counts.iter().map(|(what, n)| format!("{what} {n}"));
            parts.collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "  faults        {}", list(&self.faults))?;
        for (what, these) in [("clean", clean), ("after crash", crash)] {
            writeln!(
                f,
                "  {what:<13} {} takeovers, p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms; {} over the goal of {:.0} ms",
                these.count,
                these.p50_ms,
                these.p99_ms,
                these.max_ms,
                these.over_goal,
                these.goal_ms
            )?;
        }
        writeln!(
            f,
            "  in all        {} terms, {} takeovers in the midst of faults, longest gap {} ms",
            self.terms, self.disturbed_takeovers, self.longest_gap_ms
        )?;
        writeln!(
            f,
            "  resource      {} writes taken, {} refused as stale",
            self.writes_taken, self.writes_refused
        )?;
        writeln!(f, "  requests      {}", list(&self.requests))?;
        writeln!(
            f,
            "  forgiven      work frozen over a hand-over {} (ran on for {} ms at most); ended in the store {}; at the end a \
             late try {}, a late release {}; machine stalls {} ({} ms at most)",
            excuses.frozen_work,
            excuses.frozen_work_longest_ms,
            excuses.ended_in_the_store,
            excuses.late_tries,
            excuses.late_releases,
            excuses.machine_stalls,
            excuses.machine_stall_longest_ms
        )?;
        for (name, broken) in &self.verdict {
            match broken {
                None => writeln!(f, "  holds         {name}")?,
                Some(broken) => {
                    writeln!(f, "  BROKEN        {name}: {}", broken.why)?;
                    for line in &broken.piece {
                        writeln!(f, "                {line}")?;
                    }
                }
            }
        }
        Ok(())
    }
}
