//! The world around the machines: processes, their work, the network, the store, and what befalls
//! them.

mod faults;
mod hosts;
mod network;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use lock_core::clock::Moment;
use lock_core::election::{Action, Input, MachineConfig, OpId, Output, Reply, Scope};
use lock_core::{
    Attempt, Claim, Error, ErrorKind, Event, Holder, LockName, Metadata, Mode, Nonce, Operation,
    Owner, Timing,
};

use super::check::{Verdict, Watch, must};
use super::clocks::{MS, SEC, Skewed, nanos};
use super::rng::Rng;
use super::store::{Caller, Queue, Row, Store};
use super::subject::{Mutation, Subject};
use network::failed;

/// How late a request may still be executed.
const LATEST: u64 = 20 * SEC;

/// What a run saw; for the test that the simulation is not idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) gained: u64,
    pub(crate) renewed: u64,
    pub(crate) expired: u64,
    pub(crate) gone: u64,
    pub(crate) stopped: u64,
    pub(crate) aborted: u64,
    pub(crate) released: u64,
    pub(crate) overlaps_excused: u64,
    pub(crate) refused: u64,
    pub(crate) crashes: u64,
    pub(crate) pauses: u64,
    pub(crate) steps: u64,
    pub(crate) trace: Vec<String>,
}

#[derive(Debug)]
enum Happening {
    Wake { host: usize, turn: u64 },
    Arrive { call: usize },
    Answer { call: usize, reply: Reply },
    Timeout { call: usize },
    Hint { host: usize, wait: u64 },
    WorkEnds { host: usize, life: u64, term: u64 },
    Sample { host: usize },
    KeepAlive { host: usize },
    Befall(Fault),
    Heal,
    MustLead,
    ShutDown,
    MustBeEmpty,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash(usize),
    Start(usize),
    Pause(usize),
    Down,
    Up,
    Step,
    Revoke,
    StepDown,
    Wipe,
    Steal,
    Resign(usize),
    ShutDown(usize),
}

struct Call {
    host: usize,
    life: u64,
    action: Action,
    op: OpId,
    sent: Moment,
    session: u64,
    answered: bool,
}

struct Work {
    term: u64,
    told: bool,
    overruns: bool,
}

struct Host {
    life: u64,
    /// An elector, a waiting guard, or one try after the other.
    scope: Scope,
    clock: Skewed,
    paused_until: u64,
    subject: Option<Subject>,
    watch: Watch,
    turn: u64,
    work: Option<Work>,
    session: u64,
    live: BTreeSet<Nonce>,
    wait: Option<(u64, Claim, Holder)>,
    /// What the driver's cell of the deadline says: the `check()` of the application.
    cell: u64,
    /// `check()` was seen false with this deadline.
    seen_over: bool,
}

struct World {
    rng: Rng,
    now: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<(u64, u64, u64, usize)>>,
    happenings: Vec<Option<Happening>>,
    hosts: Vec<Host>,
    calls: Vec<Call>,
    store: Store,
    store_clock: Skewed,
    store_down: bool,
    stepped: bool,
    timing: Timing,
    guarded: bool,
    siblings: bool,
    mutation: Mutation,
    healed: bool,
    closing: bool,
    led_since_heal: bool,
    next_wait: u64,
    next_session: u64,
    next_nonce: u128,
    /// Terms that an operator ended in the store: excused until their next renewal.
    excused: BTreeSet<u64>,
    highest: u64,
    tracing: bool,
    report: Report,
}

/// One run.
///
/// # Errors
/// The first thing that must hold and did not.
pub(crate) fn run(seed: u64, mutation: Mutation, tracing: bool) -> Result<Report, String> {
    let mut world = World::new(seed, mutation, tracing);
    world.plan();
    while let Some(Reverse((at, _, _, n))) = world.queue.pop() {
        world.now = at;
        let Some(happening) = world.happenings[n].take() else {
            continue;
        };
        world.report.steps += 1;
        if world.report.steps > 200_000 {
            return Err(format!("seed {seed}: the run does not end"));
        }
        if world.tracing {
            let line = format!("{:>12} {happening:?}", at / 1000);
            world.report.trace.push(line);
        }
        if let Err(why) = world.happen(happening) {
            let trace = world.report.trace.join("\n");
            let at = Duration::from_nanos(at);
            return Err(format!("{trace}\nseed {seed} at {at:?}: {why}")
                .trim()
                .into());
        }
    }
    Ok(world.report)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn timings(choice: u64) -> Timing {
    match choice {
        0 => Timing::default(),
        1 => Timing::servicecomb_pack(),
        // Clocks that differ a lot.
        _ => Timing::builder(ms(10_000))
            .renew_every(ms(2_500))
            .request_timeout(ms(1_000))
            .first_backoff(ms(200))
            .drain(ms(2_000))
            .margin(ms(500))
            .drift_ppm(100_000)
            .build()
            .expect("the rule holds"),
    }
}

impl World {
    fn new(seed: u64, mutation: Mutation, tracing: bool) -> Self {
        let mut rng = Rng::new(seed);
        let timing = timings(rng.below(3));
        // The relative rate of two clocks stays within the drift.
        let half = i64::from(timing.drift_ppm()) * 49 / 100;
        let edge = |rng: &mut Rng| match rng.below(3) {
            0 => -half,
            1 => half,
            _ => {
                i64::try_from(rng.below(u64::try_from(2 * half + 1).expect("small")))
                    .expect("small")
                    - half
            }
        };
        let store = if rng.chance(600) {
            Store::Row(Row::new(rng.chance(200)))
        } else {
            Store::Queue(Queue::default())
        };
        let row = matches!(store, Store::Row(_));
        let guarded = row && rng.chance(150);
        let count = rng.between(2, 5);
        let hosts = (0..count)
            .map(|_| Host {
                life: 0,
                scope: match rng.below(10) {
                    // One attempt never sees a record for long enough.
                    0 if !guarded => Scope::OneAttempt,
                    1..=2 => Scope::OneTerm,
                    _ => Scope::ManyTerms,
                },
                clock: Skewed {
                    offset: rng.below(1 << 50),
                    ppm: edge(&mut rng),
                },
                paused_until: 0,
                subject: None,
                watch: Watch::new(timing, !row),
                turn: 0,
                work: None,
                session: 0,
                live: BTreeSet::new(),
                wait: None,
                cell: 0,
                seen_over: false,
            })
            .collect();
        Self {
            store_clock: Skewed {
                offset: 1_700_000_000 * SEC,
                ppm: edge(&mut rng),
            },
            guarded,
            siblings: rng.chance(500),
            rng,
            now: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
            happenings: Vec::new(),
            hosts,
            calls: Vec::new(),
            store,
            store_down: false,
            stepped: false,
            timing,
            mutation,
            healed: false,
            closing: false,
            led_since_heal: false,
            next_wait: 0,
            next_session: 0,
            next_nonce: 1,
            excused: BTreeSet::new(),
            highest: 0,
            tracing,
            report: Report::default(),
        }
    }

    fn counter_store(&self) -> bool {
        matches!(&self.store, Store::Row(row) if row.counter)
    }

    fn at(&mut self, at: u64, happening: Happening) {
        // What falls together happens in any order.
        let order = self.rng.next();
        self.sequence += 1;
        let n = self.happenings.len();
        self.happenings.push(Some(happening));
        self.queue.push(Reverse((at, order, self.sequence, n)));
    }

    fn soon(&mut self, low: u64, high: u64, happening: Happening) {
        let at = self.now + self.rng.between(low, high);
        self.at(at, happening);
    }

    /// Draws everything that will befall this world.
    fn plan(&mut self) {
        let ttl = nanos(self.timing.ttl());
        let faults_end = 8 * ttl;
        for host in 0..self.hosts.len() {
            self.soon(0, ttl / 2, Happening::Befall(Fault::Start(host)));
            if self.siblings {
                self.soon(0, ttl / 3, Happening::KeepAlive { host });
            }
        }
        for _ in 0..self.rng.below(14) {
            let host = usize::try_from(self.rng.below(self.hosts.len() as u64)).expect("small");
            let fault = match self.rng.below(20) {
                0..=2 => Fault::Crash(host),
                3..=8 => Fault::Pause(host),
                9..=10 => Fault::Down,
                11 => Fault::Step,
                12 => Fault::Revoke,
                13..=14 => Fault::StepDown,
                15 => Fault::Wipe,
                16 => Fault::Steal,
                17 => Fault::ShutDown(host),
                _ => Fault::Resign(host),
            };
            self.soon(0, faults_end, Happening::Befall(fault));
        }
        for host in 0..self.hosts.len() {
            for _ in 0..8 {
                self.soon(0, faults_end, Happening::Sample { host });
            }
        }
        self.at(faults_end, Happening::Heal);
        // A term that began before may take its ttl to expire; a request may be executed late and
        // leave an entry for one ttl; a hold-off and a longest pause may come on top.
        let bound = LATEST
            + 2 * (ttl + nanos(self.timing.ttl()) / 5)
            + 2 * nanos(self.timing.request_timeout())
            + 2 * nanos(self.timing.poll_every())
            + nanos(self.timing.margin())
            + 15 * SEC;
        self.at(faults_end + bound, Happening::MustLead);
        self.at(faults_end + bound, Happening::ShutDown);
        let empty = ttl + ttl / 5 + nanos(self.timing.renew_every()) + SEC;
        self.at(faults_end + bound + empty, Happening::MustBeEmpty);
    }

    fn happen(&mut self, happening: Happening) -> Verdict {
        // A paused process gets its mail when it goes on, in any order.
        let addressee = match &happening {
            Happening::Wake { host, .. }
            | Happening::Hint { host, .. }
            | Happening::WorkEnds { host, .. }
            | Happening::KeepAlive { host }
            | Happening::Befall(Fault::Resign(host) | Fault::ShutDown(host)) => Some(*host),
            Happening::Answer { call, .. } | Happening::Timeout { call } => {
                Some(self.calls[*call].host)
            }
            _ => None,
        };
        if let Some(host) = addressee
            && self.hosts[host].paused_until > self.now
        {
            let until = self.hosts[host].paused_until;
            self.at(until, happening);
            return Ok(());
        }
        match happening {
            Happening::Wake { host, turn } => {
                if self.hosts[host].turn == turn {
                    self.turn(host)?;
                }
            }
            Happening::Arrive { call } => self.arrive(call),
            Happening::Answer { call, reply } => self.answer(call, reply)?,
            Happening::Timeout { call } => {
                if !self.calls[call].answered {
                    let reply = failed(&self.calls[call].action, ErrorKind::Timeout);
                    self.answer(call, reply)?;
                }
            }
            Happening::Hint { host, wait } => {
                let waits = self.hosts[host]
                    .wait
                    .as_ref()
                    .is_some_and(|(id, ..)| *id == wait);
                if waits {
                    self.input(host, Input::Hint)?;
                }
            }
            Happening::WorkEnds { host, life, term } => {
                let h = &mut self.hosts[host];
                if h.life == life && h.work.as_ref().is_some_and(|work| work.term == term) {
                    h.work = None;
                    h.cell = 0;
                    let hold_off = if self.healed {
                        0
                    } else {
                        self.rng.below(3) * SEC
                    };
                    let hold_off = Duration::from_nanos(hold_off);
                    self.input(host, Input::WorkEnded { hold_off })?;
                }
            }
            Happening::Sample { host } => self.sample(host),
            Happening::KeepAlive { host } => self.keep_alive(host),
            Happening::Befall(fault) => {
                if !self.healed || matches!(fault, Fault::Start(_) | Fault::Up) {
                    self.befall(fault)?;
                }
            }
            Happening::Heal => self.heal()?,
            Happening::MustLead => {
                // A store that lost its tokens is one that every candidate refuses for a while.
                must!(
                    self.led_since_heal || self.counter_store(),
                    "nobody led in time after all faults were gone"
                );
            }
            Happening::ShutDown => {
                self.closing = true;
                for host in 0..self.hosts.len() {
                    self.input(host, Input::Shutdown)?;
                }
                self.siblings = false;
            }
            Happening::MustBeEmpty => {
                for (n, host) in self.hosts.iter().enumerate() {
                    let ended = host.subject.as_ref().is_none_or(Subject::is_ended);
                    must!(ended, "host {n} did not end");
                }
                let left = self.store.residue(self.store_clock.at(self.now));
                must!(left == 0, "{left} entries are left behind");
                self.queue.clear();
            }
        }
        Ok(())
    }
}
