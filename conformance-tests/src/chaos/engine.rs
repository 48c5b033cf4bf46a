//! Runs one scenario: starts the candidates, lets happen what the schedule says, and gathers what they wrote.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_core::{Attempt, Claim, LeaseState, LockName, LockPersistence, Nonce, Owner, Release};

use super::candidate::{NAME, gate_of, watch_for_stalls};
use super::cast::{Actor, Quota, Setting};
use super::gate::Gate;
use super::judge::SLACK;
use super::record::{Diary, Fact, Nanos, Record, now, read};
use super::scenario::Scenario;
use super::schedule::{Fault, Kind, Target, schedule};
use super::{Plan, Stage};
use crate::harness::{Answer, Stop};
use crate::servers::SteppedClock;
use tokio::runtime::Runtime;

/// The engine among the candidates of the records.
pub(super) const ENGINE: u32 = u32::MAX;

/// A span in which something was wrong with a candidate, or with the store (`None`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) on: Option<u32>,
    pub(super) kind: Kind,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
}

/// All that a run leaves for the judge.
#[derive(Debug)]
pub(super) struct Evidence {
    /// By their instants.
    pub(super) records: Vec<Record>,
    pub(super) windows: Vec<Window>,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// What was found in the store, and of processes, when all had ended.
    pub(super) left: Vec<String>,
    /// What an entry outlives its ttl by, when its process is silent.
    pub(super) lingers: Duration,
    /// The candidates are commands, whose beliefs are not known.
    pub(super) command: bool,
    /// The name was held for a moment by a try that nobody waited for any more.
    pub(super) late_try: bool,
    /// The last lease stood until its ttl was over: its release was sent, and not carried out in time.
    pub(super) late_release: bool,
    /// Candidates that ended otherwise than they were told to.
    pub(super) broken: Vec<String>,
}

/// Begin and end of the faults that a run is in the midst of.
struct Underway {
    fault: Fault,
    window: usize,
    who: Vec<u32>,
    ends: Duration,
    quota: Option<Quota>,
}

pub(super) fn run(stage: &Stage, plan: &Plan, folder: &Path) -> Answer<Evidence> {
    let diary_path = folder.join("engine.jsonl");
    let diary = Arc::new(Diary::open(&diary_path).map_err(Stop::failed)?);
    watch_for_stalls(&diary);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Stop::failed)?;
    let store = runtime.block_on(async {
        let store = (stage.open)(stage.site.locator.clone()).await?;
        store.prepare().await?;
        Answer::Ok(store)
    })?;
    let gate = Gate::serve(&gate_of(folder)).map_err(Stop::failed)?;
    let setting = Setting {
        folder: folder.to_owned(),
        launch: stage.launch.clone(),
        ttl: plan.timing.ttl(),
        mutant: plan.mutant.clone(),
    };
    let clocks = plan.scenario == Scenario::CandidateClocks
        || plan.scenario == Scenario::Mixed && stage.site.own_server().is_some();
    let actors = (1..=plan.candidates).map(|who| {
        let clock = clocks.then(SteppedClock::new).transpose();
        Actor::new(who, &stage.site, clock.map_err(Stop::failed)?)
    });
    let mut play = Play {
        stage,
        runtime: &runtime,
        store: &*store,
        ahead: 0,
        setting,
        gate,
        actors: actors.collect::<Answer<_>>()?,
        windows: Vec::new(),
        broken: Vec::new(),
    };
    let (from, began) = (now(), Instant::now());
    play.perform(plan, began)?;
    let to = now();
    play.end()?;
    let mut records = play.gate.writes();
    for actor in &play.actors {
        records.extend(actor.history(folder)?);
    }
    records.extend(read(&diary_path, ENGINE, 1).map_err(Stop::failed)?);
    records.sort_by_key(|record| record.at);
    let granted = records.iter().filter_map(|record| match record.fact {
        Fact::Granted { token, .. } | Fact::Began { token } => Some(token),
        _ => None,
    });
    let known: BTreeSet<u64> = granted.collect();
    let sent = records.iter().filter_map(|record| match &record.fact {
        Fact::Sent { op, tokens } if op == "release" => Some(tokens.iter().copied()),
        _ => None,
    });
    let released: BTreeSet<u64> = sent.flatten().collect();
    let look = runtime.block_on(play.look(&*store, &known, &released))?;
    Ok(Evidence {
        records,
        windows: play.windows,
        from,
        to,
        left: look.left,
        lingers: stage.site.lingers,
        command: stage.launch.token.is_some(),
        late_try: look.late_try,
        late_release: look.late_release,
        broken: play.broken,
    })
}

struct Play<'a> {
    stage: &'a Stage,
    runtime: &'a Runtime,
    store: &'a dyn LockPersistence,
    /// How far the clock of the store is ahead, in milliseconds.
    ahead: i64,
    setting: Setting,
    gate: Gate,
    actors: Vec<Actor>,
    windows: Vec<Window>,
    broken: Vec<String>,
}

impl Play<'_> {
    fn perform(&mut self, plan: &Plan, began: Instant) -> Answer<()> {
        for actor in &mut self.actors {
            actor.start(&self.setting)?;
        }
        let faults = schedule(plan, self.stage.site.own_server().is_some());
        let mut coming = faults.into_iter().peekable();
        let mut underway: Vec<Underway> = Vec::new();
        loop {
            let next_end = underway.iter().map(|one| one.ends).min();
            let next = [coming.peek().map(|fault| fault.at), next_end];
            let next = next.into_iter().flatten().min().unwrap_or(plan.length);
            let elapsed = began.elapsed();
            if elapsed < next {
                // In steps, so that a candidate that dies is seen.
                std::thread::sleep((next - elapsed).min(Duration::from_millis(50)));
                self.look_after()?;
                continue;
            }
            if let Some(at) = underway.iter().position(|one| one.ends <= elapsed) {
                let over = underway.remove(at);
                self.finish(over)?;
            } else if let Some(fault) = coming.next_if(|fault| fault.at <= elapsed) {
                underway.extend(self.strike(fault)?);
            } else {
                return Ok(());
            }
        }
    }

    fn actor(&mut self, who: u32) -> &mut Actor {
        &mut self.actors[who as usize - 1]
    }

    fn everybody(&self) -> Vec<u32> {
        (1..=u32::try_from(self.actors.len()).unwrap_or(u32::MAX)).collect()
    }

    /// Begins a fault; `None` when there is nobody to strike.
    fn strike(&mut self, fault: Fault) -> Answer<Option<Underway>> {
        let who = match fault.on {
            Target::Candidate(one) => vec![one],
            Target::Leader => self.gate.last().into_iter().collect(),
            Target::Store => self.everybody(),
        };
        let on = match fault.on {
            Target::Store => None,
            _ => match who.first() {
                Some(one) if self.actor(*one).runs() => Some(*one),
                _ => return Ok(None),
            },
        };
        let taken = |window: &Window| {
            window.on == on && window.to == Nanos::MAX && window.kind.is_of_process()
        };
        if fault.kind.is_of_process() && self.windows.iter().any(taken) {
            return Ok(None);
        }
        self.windows.push(Window {
            on,
            kind: fault.kind,
            from: now(),
            to: Nanos::MAX,
        });
        let window = self.windows.len() - 1;
        let mut quota = None;
        match (fault.kind, on) {
            (Kind::Revoke, _) => {
                let name = LockName::new(NAME)?;
                // A store that is down cannot be told; whether it took effect is not known, and either is judged.
                let revoked = self.runtime.block_on(self.store.revoke(&name, "chaos"));
                match revoked {
                    Err(error) if !error.is_retryable() => return Err(error.into()),
                    _ => {}
                }
            }
            (kind, Some(one)) => match kind {
                Kind::Pause => self.actor(one).pause()?,
                Kind::Kill => self.actor(one).kill()?,
                Kind::Restart => self.actor(one).ask_to_stop()?,
                Kind::Quota => quota = Some(self.actor(one).starve()?),
                Kind::NoDescriptors => self.actor(one).limit_descriptors(true)?,
                Kind::Step(by) => self.actor(one).step(by)?,
                _ => self.ail(&who, kind)?,
            },
            (kind, None) => match (kind, self.stage.site.own_server()) {
                (Kind::Pause, Some(server)) => server.pause().map_err(Stop::failed)?,
                (Kind::Kill, Some(server)) => server.kill().map_err(Stop::failed)?,
                (Kind::Restart, Some(server)) => server.stop().map_err(Stop::failed)?,
                (Kind::Step(by), _) => self.step_the_store(by)?,
                (Kind::Kill | Kind::Restart, None) => return Err(Stop::failed("no server")),
                _ => self.ail(&who, kind)?,
            },
        }
        Ok(Some(Underway {
            fault,
            window,
            who,
            ends: fault.at + fault.lasts,
            quota,
        }))
    }

    fn step_the_store(&mut self, by: i64) -> Answer<()> {
        let clock = self.stage.site.clock.as_ref();
        let clock = clock.ok_or_else(|| Stop::failed("the server has no clock of its own"))?;
        self.ahead += by;
        clock.set_millis(self.ahead).map_err(Stop::failed)
    }

    fn ail(&mut self, who: &[u32], kind: Kind) -> Answer<()> {
        who.iter().try_for_each(|one| self.actor(*one).ail(kind))
    }

    fn finish(&mut self, over: Underway) -> Answer<()> {
        drop(over.quota);
        let on = self.windows[over.window].on;
        match (over.fault.kind, on) {
            (Kind::Revoke | Kind::Step(_) | Kind::Quota, _) => {}
            (kind, Some(one)) => match kind {
                Kind::Pause => self.actor(one).resume()?,
                Kind::Kill => self.start(one)?,
                Kind::Restart => {
                    self.join(one)?;
                    self.start(one)?;
                }
                Kind::NoDescriptors => self.actor(one).limit_descriptors(false)?,
                _ => self.recover(&over.who, kind)?,
            },
            (kind, None) => match (kind, self.stage.site.own_server()) {
                (Kind::Pause, Some(server)) => server.resume().map_err(Stop::failed)?,
                (Kind::Kill | Kind::Restart, Some(server)) => {
                    server.restart().map_err(Stop::failed)?;
                }
                _ => self.recover(&over.who, kind)?,
            },
        }
        self.windows[over.window].to = now();
        Ok(())
    }

    fn recover(&mut self, who: &[u32], kind: Kind) -> Answer<()> {
        let mut all = who.iter();
        all.try_for_each(|one| self.actor(*one).recover(kind))
    }

    fn start(&mut self, who: u32) -> Answer<()> {
        let Self {
            actors, setting, ..
        } = self;
        actors[who as usize - 1].start(setting)
    }

    fn join(&mut self, who: u32) -> Answer<()> {
        let folder = self.setting.folder.clone();
        let patience = self.setting.ttl * 2 + Duration::from_secs(10);
        if let Err(how) = self.actor(who).join(patience, &folder)? {
            self.broken.push(format!("candidate {who}: {how}"));
        }
        Ok(())
    }

    /// One that has ended by itself is told, and started again so that the run goes on.
    fn look_after(&mut self) -> Answer<()> {
        let folder = self.setting.folder.clone();
        for who in self.everybody() {
            let told = self.windows.iter().any(|window| {
                window.to == Nanos::MAX && window.on == Some(who) && window.kind == Kind::Restart
            });
            if !told && self.actor(who).has_died()? {
                self.join(who)?;
                let said = self.actor(who).said(&folder)?;
                self.broken
                    .push(format!("candidate {who} ended by itself: {said}"));
                self.start(who)?;
            }
        }
        Ok(())
    }

    /// Ends all candidates in good order.
    fn end(&mut self) -> Answer<()> {
        for actor in &mut self.actors {
            actor.ask_to_stop()?;
        }
        for who in self.everybody() {
            self.join(who)?;
        }
        Ok(())
    }

    /// What is left when all have ended.
    async fn look(
        &self,
        store: &dyn LockPersistence,
        known: &BTreeSet<u64>,
        released: &BTreeSet<u64>,
    ) -> Answer<Look> {
        let mut look = Look::default();
        let left = &mut look.left;
        let name = LockName::new(NAME)?;
        // Its own connection may have ended with a server that was restarted.
        let mut tries = 0;
        let seen = loop {
            match store.observe(&name).await {
                Err(error) if error.is_retryable() && tries < 5 => tries += 1,
                seen => break seen?,
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        if let LeaseState::Held(holder) | LeaseState::Expired(holder) = &seen.state
            && known.contains(&holder.token.get())
            && !released.contains(&holder.token.get())
        {
            left.push(format!(
                "the lease with the token {} was not released",
                holder.token
            ));
        } else {
            let (owner, ttl) = (Owner::new("after")?, self.setting.ttl);
            let claim = Claim::new(name, owner, Nonce::random(), ttl);
            let mut answer = try_patiently(store, &claim).await?;
            // A try that was on its way when its process ended may be carried out after the withdrawal: nobody knows
            // of its grant. A release may not have been answered in time. Either ends by itself.
            let until = Instant::now() + ttl + SLACK;
            while let Attempt::Held(holder) = &answer
                && Instant::now() < until
            {
                look.late_try |= !known.contains(&holder.token.get());
                look.late_release |= released.contains(&holder.token.get());
                if !(look.late_try || look.late_release) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                answer = try_patiently(store, &claim).await?;
            }
            match answer {
                Attempt::Held(_) => left.push("the name is free and cannot be taken".to_owned()),
                Attempt::Granted(lease) => {
                    let highest = self.gate.highest();
                    if highest.is_some_and(|token| token >= lease.token()) {
                        left.push(format!("the next token is {}, not larger", lease.token()));
                    }
                    if store.release(&lease).await? != Release::Released {
                        left.push("what was taken at the end could not be released".to_owned());
                    }
                }
            }
        }
        for (n, actor) in self.actors.iter().enumerate() {
            // The proxy needs a moment to see that a process is gone.
            let until = Instant::now() + Duration::from_secs(2);
            while actor.open_connections() > 0 && Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            match actor.open_connections() {
                0 => {}
                open => left.push(format!("candidate {}: {open} open connections", n + 1)),
            }
        }
        Ok(look)
    }
}

/// A client of the engine may still have to notice that the server was restarted.
async fn try_patiently(store: &dyn LockPersistence, claim: &Claim) -> Answer<Attempt> {
    let mut tries = 0;
    loop {
        match store.try_acquire(claim).await {
            Err(error) if error.is_retryable() && tries < 5 => tries += 1,
            answer => return Ok(answer?),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What the look at the end saw.
#[derive(Debug, Default)]
struct Look {
    left: Vec<String>,
    late_try: bool,
    late_release: bool,
}
