//! The world around the machines: processes, their work, the network, the store, and what befalls
//! them.

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

    // ---- machines ----

    fn start(&mut self, host: usize) -> Verdict {
        let nonce = Nonce::from_u128(self.next_nonce << 32);
        self.next_nonce += 1;
        let row = matches!(self.store, Store::Row(_));
        let config = MachineConfig {
            name: LockName::new("job").expect("valid"),
            owner: Owner::new(format!("host-{host}")).expect("valid"),
            metadata: Metadata::default(),
            priority: 0,
            timing: self.timing,
            scope: self.hosts[host].scope,
            first_nonce: nonce,
            seed: self.rng.next(),
            queueing: !row,
            monotone: true,
            guarded_takeover: self.guarded,
        };
        let h = &mut self.hosts[host];
        h.life += 1;
        h.subject = Some(Subject::new(config, self.mutation));
        h.watch = Watch::new(self.timing, !row);
        h.work = None;
        h.cell = 0;
        if h.session == 0 {
            self.next_session += 1;
            h.session = self.next_session;
        }
        h.wait = None;
        self.input(host, Input::Start)
    }

    fn input(&mut self, host: usize, input: Input) -> Verdict {
        let now = self.hosts[host].clock.moment(self.now);
        if let Some(subject) = &mut self.hosts[host].subject {
            subject.handle(now, input);
            self.turn(host)?;
        }
        Ok(())
    }

    fn turn(&mut self, host: usize) -> Verdict {
        let now = self.hosts[host].clock.moment(self.now);
        loop {
            let Some(subject) = &mut self.hosts[host].subject else {
                return Ok(());
            };
            match subject.poll(now) {
                Output::Action(action) => {
                    if self.tracing {
                        self.report.trace.push(format!("{host}: {action:?}"));
                    }
                    let h = &mut self.hosts[host];
                    h.watch.action(now, &action, h.work.is_some())?;
                    self.act(host, action);
                }
                Output::Event(event) => {
                    if self.tracing {
                        self.report.trace.push(format!("{host}: {event:?}"));
                    }
                    let nonce = subject.lease().map(lock_core::Lease::nonce);
                    self.hosts[host].watch.event(now, &event, nonce)?;
                    self.event(host, &event)?;
                }
                Output::Wait(at) => {
                    let held = subject.held();
                    let h = &mut self.hosts[host];
                    h.watch.turned(now, held, at)?;
                    h.turn += 1;
                    let turn = h.turn;
                    if at < Moment::NEVER {
                        let when = h.clock.when(at.as_nanos());
                        must!(
                            when > self.now,
                            "host {host} asks to be woken at once, for ever"
                        );
                        // A timer is late by up to a few milliseconds.
                        let late = if self.rng.chance(100) {
                            self.rng.below(5 * MS)
                        } else {
                            0
                        };
                        self.at(when + late, Happening::Wake { host, turn });
                    }
                    return Ok(());
                }
            }
        }
    }

    fn holds(&self, host: usize) -> Option<u64> {
        let h = &self.hosts[host];
        let (token, deadline) = h.subject.as_ref()?.held()?;
        (h.clock.moment(self.now) < deadline).then_some(token.get())
    }

    fn event(&mut self, host: usize, event: &Event) -> Verdict {
        match event {
            Event::Gained { token, deadline } => {
                self.report.gained += 1;
                let token = token.get();
                for other in 0..self.hosts.len() {
                    let Some(held) = self.holds(other).filter(|_| other != host) else {
                        continue;
                    };
                    let excused = self.excused.contains(&held) || self.excused.contains(&token);
                    must!(
                        excused,
                        "host {other} holds {held} while host {host} gains {token}"
                    );
                    self.report.overlaps_excused += 1;
                }
                let fresh = self.highest < token;
                must!(
                    fresh || self.excused.contains(&token) || self.counter_store(),
                    "gained {token} after {}",
                    self.highest
                );
                self.highest = self.highest.max(token);
                self.led_since_heal |= self.healed;
                self.hosts[host].cell = deadline.as_nanos();
                self.hosts[host].seen_over = false;
                self.begin_work(host, token);
            }
            Event::Renewed { deadline, .. } => {
                self.report.renewed += 1;
                self.led_since_heal |= self.healed;
                let now = self.hosts[host].clock.at(self.now);
                let h = &mut self.hosts[host];
                if h.seen_over || now >= h.cell {
                    // As the driver does when its cell says that it is over.
                    h.cell = 0;
                    if let Some(subject) = &mut h.subject {
                        subject.handle(Moment::from_nanos(now), Input::Lapsed);
                    }
                } else {
                    h.cell = deadline.as_nanos();
                }
            }
            Event::Stopping { .. } => {
                self.report.stopped += 1;
                self.tell_work(host);
            }
            Event::Aborting { .. } => {
                self.report.aborted += 1;
                self.abort_work(host);
            }
            Event::Lost { reason, .. } => {
                match reason {
                    lock_core::LossReason::Gone => self.report.gone += 1,
                    _ => self.report.expired += 1,
                }
                self.hosts[host].cell = 0;
                self.abort_work(host);
            }
            Event::Released { .. } => self.report.released += 1,
            Event::Failed { error, .. } if error.kind() == ErrorKind::Backend => {
                self.report.refused += 1;
            }
            Event::Ended { .. } => {
                self.hosts[host].wait = None;
                if self.hosts[host].scope != Scope::ManyTerms {
                    self.soon(MS, 2 * SEC, Happening::Befall(Fault::Start(host)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    // ---- work ----

    fn ends(&mut self, host: usize, low: u64, high: u64) {
        let life = self.hosts[host].life;
        if let Some(work) = &self.hosts[host].work {
            let term = work.term;
            self.soon(low, high, Happening::WorkEnds { host, life, term });
        }
    }

    fn begin_work(&mut self, host: usize, term: u64) {
        self.hosts[host].work = Some(Work {
            term,
            told: false,
            overruns: !self.healed && self.rng.chance(150),
        });
        // Some work ends, or fails, by itself.
        if !self.healed && self.rng.chance(250) {
            self.ends(host, 0, 3 * nanos(self.timing.ttl()));
        }
    }

    fn tell_work(&mut self, host: usize) {
        let drain = nanos(self.timing.drain());
        let Some(work) = &mut self.hosts[host].work else {
            return;
        };
        work.told = true;
        if !work.overruns {
            let slow = self.rng.chance(300);
            self.ends(host, 0, if slow { drain } else { 50 * MS });
        }
    }

    /// Work that runs on past its abort blocks its thread.
    fn abort_work(&mut self, host: usize) {
        let Some(work) = &self.hosts[host].work else {
            return;
        };
        let long = if work.overruns {
            2 * nanos(self.timing.ttl())
        } else {
            MS
        };
        self.ends(host, 0, long);
    }

    /// The application asks `check()`, perhaps in the moment after a pause and before any input.
    fn sample(&mut self, host: usize) {
        if self.hosts[host].paused_until > self.now {
            return;
        }
        let now = self.hosts[host].clock.at(self.now);
        let h = &mut self.hosts[host];
        if h.cell != 0 && now >= h.cell {
            h.seen_over = true;
        }
    }

    // ---- network ----

    fn act(&mut self, host: usize, action: Action) {
        let op = match &action {
            Action::TryAcquire { op, claim } => {
                self.hosts[host].live.insert(claim.nonce);
                *op
            }
            Action::Renew { op, .. } => {
                // The worst moment to be stopped in.
                if !self.healed && self.rng.chance(3) {
                    self.soon(0, 5 * MS, Happening::Befall(Fault::Pause(host)));
                }
                *op
            }
            Action::Release { op, lease } => {
                self.hosts[host].live.remove(&lease.nonce());
                *op
            }
            Action::Withdraw { op, claim } => {
                self.hosts[host].live.remove(&claim.nonce);
                *op
            }
            Action::Wait { claim, seen } => {
                self.next_wait += 1;
                let wait = self.next_wait;
                self.hosts[host].wait = Some((wait, claim.clone(), seen.clone()));
                let holder = self.store.holder(self.store_clock.at(self.now));
                let vain = !self.healed && self.rng.chance(50);
                if holder != Some(seen.token.get()) || vain {
                    self.soon(MS, 20 * MS, Happening::Hint { host, wait });
                }
                return;
            }
            Action::StopWaiting => {
                self.hosts[host].wait = None;
                return;
            }
        };
        let call = self.calls.len();
        let h = &self.hosts[host];
        let sent = h.clock.moment(self.now);
        let timeout = h
            .clock
            .when(sent.after(self.timing.request_timeout()).as_nanos());
        self.calls.push(Call {
            host,
            life: h.life,
            action,
            op,
            sent,
            session: h.session,
            answered: false,
        });
        self.at(timeout, Happening::Timeout { call });
        let luck = if self.healed {
            1000
        } else {
            self.rng.below(1000)
        };
        match luck {
            0..=39 => {}
            40..=79 => self.soon(0, LATEST, Happening::Arrive { call }),
            80..=109 => {
                self.soon(0, LATEST, Happening::Arrive { call });
                self.soon(0, 30 * MS, Happening::Arrive { call });
            }
            110..=179 => self.soon(0, 2 * SEC, Happening::Arrive { call }),
            _ => self.soon(MS, 20 * MS, Happening::Arrive { call }),
        }
    }

    fn arrive(&mut self, call: usize) {
        let host = self.calls[call].host;
        if self.store_down {
            if self.rng.chance(500) {
                let reply = failed(&self.calls[call].action, ErrorKind::Unavailable);
                self.soon(MS, 20 * MS, Happening::Answer { call, reply });
            }
            return;
        }
        let now = self.store_clock.at(self.now);
        let before = self.store.holder(now);
        let none = BTreeSet::new();
        let h = &self.hosts[host];
        let caller = Caller {
            session: self.calls[call].session,
            live: if h.session == self.calls[call].session {
                &h.live
            } else {
                &none
            },
        };
        let reply = match &self.calls[call].action {
            Action::TryAcquire { claim, .. } => {
                Reply::TryAcquire(self.store.try_acquire(now, &caller, claim))
            }
            Action::Renew { lease, .. } => Reply::Renew(Ok(self.store.renew(now, &caller, lease))),
            Action::Release { lease, .. } => Reply::Release(Ok(self.store.release(now, lease))),
            Action::Withdraw { claim, .. } => {
                self.store.withdraw(now, claim);
                Reply::Withdraw(Ok(()))
            }
            Action::Wait { .. } | Action::StopWaiting => return,
        };
        if self.store.session_is_dead(self.calls[call].session)
            && self.hosts[host].session == self.calls[call].session
        {
            self.next_session += 1;
            self.hosts[host].session = self.next_session;
        }
        if self.store.holder(now) != before {
            self.hint_all();
        }
        let luck = if self.healed {
            1000
        } else {
            self.rng.below(1000)
        };
        match luck {
            0..=49 => {}
            50..=129 => self.soon(0, 4 * SEC, Happening::Answer { call, reply }),
            130..=159 => {
                let again = reply.clone();
                self.soon(MS, 2 * SEC, Happening::Answer { call, reply });
                self.soon(MS, LATEST, Happening::Answer { call, reply: again });
            }
            _ => self.soon(MS, 20 * MS, Happening::Answer { call, reply }),
        }
    }

    fn hint_all(&mut self) {
        for host in 0..self.hosts.len() {
            let Some((wait, ..)) = self.hosts[host].wait else {
                continue;
            };
            if self.healed || self.rng.chance(800) {
                self.soon(MS, 20 * MS, Happening::Hint { host, wait });
            }
        }
    }

    /// The first answer is the answer; later ones are repetitions, which must do nothing.
    fn answer(&mut self, call: usize, reply: Reply) -> Verdict {
        let c = &mut self.calls[call];
        let (host, op, sent) = (c.host, c.op, c.sent);
        let first = !std::mem::replace(&mut c.answered, true);
        if let (Reply::TryAcquire(answer), Action::TryAcquire { claim, .. }) = (&reply, &c.action)
            && claim.mode == Mode::Once
        {
            // One try that is surely not granted: should its request be executed once more, the next
            // round of renewals finds an entry without a claim.
            let denied = match answer {
                Ok(Attempt::Granted(_)) => false,
                Ok(Attempt::Held(_)) => true,
                Err(error) => !error.is_indeterminate(),
            };
            if denied {
                self.hosts[host].live.remove(&claim.nonce);
            }
        }
        if self.hosts[host].life != c.life {
            return Ok(());
        }
        let h = &mut self.hosts[host];
        h.watch
            .answered(h.clock.moment(self.now), op, &reply, first);
        self.input(host, Input::Replied { op, sent, reply })
    }

    fn keep_alive(&mut self, host: usize) {
        if self.hosts[host].subject.is_some() && !self.store_down {
            let now = self.store_clock.at(self.now);
            let h = &self.hosts[host];
            let caller = Caller {
                session: h.session,
                live: &h.live,
            };
            self.store.keep_alive(now, &caller, self.timing.ttl());
        }
        if self.siblings {
            let every = nanos(self.timing.renew_every());
            self.soon(every, every, Happening::KeepAlive { host });
        }
    }

    // ---- faults ----

    fn excuse_holder(&mut self) {
        let now = self.store_clock.at(self.now);
        self.excused.extend(self.store.holder(now));
        for host in 0..self.hosts.len() {
            self.excused.extend(self.holds(host));
        }
    }

    fn befall(&mut self, fault: Fault) -> Verdict {
        let ttl = nanos(self.timing.ttl());
        match fault {
            Fault::Start(host) => {
                let ended = self.hosts[host]
                    .subject
                    .as_ref()
                    .is_none_or(Subject::is_ended);
                if ended && !self.closing {
                    self.start(host)?;
                }
            }
            Fault::Crash(host) => {
                self.report.crashes += 1;
                self.hosts[host].subject = None;
                self.hosts[host].life += 1;
                self.hosts[host].work = None;
                self.hosts[host].wait = None;
                self.hosts[host].session = 0;
                self.hosts[host].live.clear();
                self.soon(0, 2 * ttl, Happening::Befall(Fault::Start(host)));
            }
            Fault::Pause(host) => {
                self.report.pauses += 1;
                let long = if self.rng.chance(500) {
                    2 * ttl
                } else {
                    ttl / 2
                };
                let until = self.now + self.rng.below(long);
                let h = &mut self.hosts[host];
                h.paused_until = h.paused_until.max(until);
                self.at(until, Happening::Sample { host });
            }
            Fault::Down => {
                self.store_down = true;
                self.soon(0, ttl, Happening::Befall(Fault::Up));
            }
            Fault::Up => self.store_down = false,
            Fault::Step => {
                let step = if self.rng.chance(700) && !self.stepped {
                    // The largest that the margin covers, once.
                    self.stepped = true;
                    i64::try_from(nanos(self.timing.margin())).expect("short")
                } else {
                    -i64::try_from(self.rng.below(ttl / 2)).expect("short")
                };
                if matches!(self.store, Store::Row(_)) {
                    self.store_clock.offset = self.store_clock.offset.saturating_add_signed(step);
                }
            }
            Fault::Revoke => {
                self.excuse_holder();
                self.store.revoke(self.store_clock.at(self.now));
                self.hint_all();
            }
            Fault::StepDown => self
                .store
                .ask(Duration::from_nanos(self.rng.below(5) * SEC)),
            Fault::Wipe => {
                self.excuse_holder();
                self.store.wipe();
                self.hint_all();
            }
            Fault::Steal => {
                self.excuse_holder();
                self.store
                    .steal(self.store_clock.at(self.now), self.timing.ttl());
                self.hint_all();
            }
            Fault::Resign(host) => {
                let hold_off = Duration::from_nanos(self.rng.below(5) * SEC);
                self.input(host, Input::Resign { hold_off })?;
            }
            Fault::ShutDown(host) => {
                self.input(host, Input::Shutdown)?;
                self.soon(SEC, 2 * ttl, Happening::Befall(Fault::Start(host)));
            }
        }
        Ok(())
    }

    fn heal(&mut self) -> Verdict {
        self.healed = true;
        self.store_down = false;
        for host in 0..self.hosts.len() {
            // What the pause has held back is delivered now, and again later to nobody.
            self.hosts[host].paused_until = self.hosts[host].paused_until.min(self.now);
            self.ends(host, 0, SEC);
            let ended = self.hosts[host]
                .subject
                .as_ref()
                .is_none_or(Subject::is_ended);
            if ended {
                self.start(host)?;
            } else {
                self.turn(host)?;
            }
        }
        Ok(())
    }
}

/// The answer when there is none.
fn failed(action: &Action, kind: ErrorKind) -> Reply {
    let error = |operation| {
        Error::new(kind, "no answer")
            .with_operation(operation)
            .with_indeterminate(true)
    };
    match action {
        Action::Renew { .. } => Reply::Renew(Err(error(Operation::Renew))),
        Action::Release { .. } => Reply::Release(Err(error(Operation::Release))),
        Action::Withdraw { .. } => Reply::Withdraw(Err(error(Operation::Withdraw))),
        _ => Reply::TryAcquire(Err(error(Operation::TryAcquire))),
    }
}
