//! The driver task: all machines of one provider.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot};

use crate::claim::Lease;
use crate::clock::{Clock, Moment, sleep_until};
use crate::driver::{Command, Notice, Phase, Seat, Term, rescue};
use crate::election::{Action, Input, Machine, OpId, Output, Reply, Scope};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::event::Event;
use crate::name::LockName;
use crate::persistence::LockPersistence;
use crate::telemetry::{self, Reporter, Subject};

/// How long a grant waits to be taken by its caller before it is released: a future that is kept but
/// not polled holds nobody up for longer.
pub(crate) const HAND_OFF: Duration = Duration::from_millis(100);

/// Commands taken in one turn: a flood of them must not keep renewals waiting.
const COMMANDS: usize = 1024;

type Calls = FuturesUnordered<Pin<Box<dyn Future<Output = Vec<Answer>> + Send>>>;
type Waits = FuturesUnordered<Pin<Box<dyn Future<Output = Option<(u64, Input)>> + Send>>>;

/// One request answered.
struct Answer {
    id: u64,
    op: OpId,
    sent: Moment,
    reply: Reply,
}

struct Slot {
    machine: Machine,
    seat: Seat,
    subject: Subject,
    timeout: Duration,
    drain: Duration,
    term: Option<Arc<Term>>,
    /// When the grant is taken back if nobody has taken it.
    offer_until: Option<Moment>,
    waiting: Option<AbortHandle>,
    wake: Moment,
    renewal: Option<Moment>,
}

pub(super) struct Core {
    persistence: Arc<dyn LockPersistence>,
    clock: Arc<dyn Clock>,
    backend: &'static str,
    commands: mpsc::UnboundedReceiver<Command>,
    slots: BTreeMap<u64, Slot>,
    wakes: BTreeSet<(Moment, u64)>,
    renewals: BTreeSet<(Moment, u64)>,
    batch: Vec<(u64, OpId, Lease)>,
    calls: Calls,
    waits: Waits,
    reporter: Reporter,
    /// Who waits for a name, where the store does not tell of a release.
    waiters: BTreeMap<LockName, BTreeSet<u64>>,
    /// Who waits until no machine is left.
    settled: Vec<oneshot::Sender<()>>,
}

impl Core {
    pub(super) fn new(
        persistence: Arc<dyn LockPersistence>,
        clock: Arc<dyn Clock>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        Self {
            backend: persistence.capabilities().backend,
            reporter: Reporter::new(persistence.capabilities().backend),
            persistence,
            clock,
            commands,
            slots: BTreeMap::new(),
            wakes: BTreeSet::new(),
            renewals: BTreeSet::new(),
            waiters: BTreeMap::new(),
            settled: Vec::new(),
            batch: Vec::new(),
            calls: Calls::new(),
            waits: Waits::new(),
        }
    }

    /// Drives the machines until no candidate can come any more and none is left.
    pub(super) async fn run(mut self) {
        let mut open = true;
        while open || !self.slots.is_empty() {
            let next = self.wakes.first().map_or(Moment::NEVER, |(at, _)| *at);
            tokio::select! {
                // Time first: a deadline must not wait behind a flood of answers.
                biased;
                () = sleep_until(&self.clock, next), if next < Moment::NEVER => self.on_time(),
                Some(answers) = self.calls.next(), if !self.calls.is_empty() => {
                    self.on_answers(answers);
                }
                command = self.commands.recv(), if open => match command {
                    Some(command) => self.on_commands(command),
                    None => open = false,
                },
                Some(hint) = self.waits.next(), if !self.waits.is_empty() => {
                    if let Some((id, input)) = hint {
                        self.input(id, input);
                    }
                }
            }
            self.send_batch();
            if self.slots.is_empty() {
                for tell in self.settled.drain(..) {
                    // Whoever asked need not wait any more.
                    let _ = tell.send(());
                }
            }
        }
    }

    fn on_time(&mut self) {
        let now = self.clock.now();
        let due: Vec<u64> = self
            .wakes
            .iter()
            .take_while(|(at, _)| *at <= now)
            .map(|(_, id)| *id)
            .collect();
        for id in due {
            self.take_back_offer(now, id);
            self.step(id);
        }
    }

    /// Takes back a grant that its caller has not taken in time.
    fn take_back_offer(&mut self, now: Moment, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        if slot.offer_until.is_some_and(|until| until <= now) {
            slot.offer_until = None;
            if slot.term.as_ref().is_some_and(|term| term.lapse()) {
                slot.machine.handle(
                    now,
                    Input::WorkEnded {
                        hold_off: Duration::ZERO,
                    },
                );
            }
        }
    }

    fn on_commands(&mut self, first: Command) {
        let mut touched = BTreeSet::new();
        touched.extend(self.note(first));
        for _ in 0..COMMANDS {
            let Ok(command) = self.commands.try_recv() else {
                break;
            };
            touched.extend(self.note(command));
        }
        for id in touched {
            self.step(id);
        }
    }

    /// Takes note of a command without acting on it yet. Gives the machine it concerns.
    fn note(&mut self, command: Command) -> Option<u64> {
        let now = self.clock.now();
        match command {
            Command::Start {
                id,
                mut machine,
                seat,
            } => {
                machine.handle(now, Input::Start);
                let config = machine.config();
                let slot = Slot {
                    subject: Subject::new(config.name.clone(), seat.board.is_some()),
                    timeout: config.timing.request_timeout(),
                    drain: config.timing.drain(),
                    machine: *machine,
                    seat,
                    term: None,
                    offer_until: None,
                    waiting: None,
                    wake: Moment::NEVER,
                    renewal: None,
                };
                self.slots.insert(id, slot);
                Some(id)
            }
            Command::Settled(tell) => {
                self.settled.push(tell);
                None
            }
            Command::Input { id, input } => {
                if let Some(slot) = self.slots.get_mut(&id) {
                    if let Input::WorkEnded { .. } = input
                        && let Some(term) = &slot.term
                    {
                        term.cleaning.store(true, Ordering::Release);
                    }
                    slot.machine.handle(now, input);
                }
                Some(id)
            }
        }
    }

    fn on_answers(&mut self, answers: Vec<Answer>) {
        let now = self.clock.now();
        let mut touched = Vec::with_capacity(answers.len());
        let mut freed = BTreeSet::new();
        for Answer {
            id,
            op,
            sent,
            reply,
        } in answers
        {
            let Some(slot) = self.slots.get_mut(&id) else {
                continue;
            };
            let (operation, error) = match &reply {
                Reply::TryAcquire(r) => ("try_acquire", r.as_ref().err()),
                Reply::Renew(r) => ("renew", r.as_ref().err()),
                Reply::Release(r) => ("release", r.as_ref().err()),
                Reply::Withdraw(r) => ("withdraw", r.as_ref().err()),
            };
            telemetry::request(self.backend, operation, error);
            if let Some(board) = &slot.seat.board {
                match error {
                    None => board.0.answered(now),
                    Some(error) => board.0.failed(error),
                }
            }
            if let Reply::TryAcquire(Err(error)) = &reply
                && slot.machine.config().scope == Scope::OneAttempt
            {
                // Who tries once need not wait for the clean-up. A caller that is gone needs no news.
                let _ = slot.seat.notices.send(Notice::Failed(error.clone()));
            }
            if matches!(&reply, Reply::Release(Ok(_)) | Reply::Withdraw(Ok(_))) {
                freed.insert(slot.machine.config().name.clone());
            }
            slot.machine.handle(now, Input::Replied { op, sent, reply });
            touched.push(id);
        }
        for id in touched {
            self.step(id);
        }
        for name in freed {
            self.tell_neighbour(&name);
        }
    }

    /// Where the store does not tell of a release, at least the next in this process need not wait for
    /// the poll.
    fn tell_neighbour(&mut self, name: &LockName) {
        if let Some(id) = self.waiters.get(name).and_then(BTreeSet::first).copied() {
            self.input(id, Input::Hint);
        }
    }

    /// Notes whether this one waits, for [`tell_neighbour`](Self::tell_neighbour).
    fn note_waiting(&mut self, id: u64, slot: &Slot, waits: bool) {
        if self.persistence.capabilities().push {
            return;
        }
        let name = &slot.machine.config().name;
        if waits {
            self.waiters.entry(name.clone()).or_default().insert(id);
        } else if let Some(ids) = self.waiters.get_mut(name) {
            ids.remove(&id);
            if ids.is_empty() {
                self.waiters.remove(name);
            }
        }
    }

    fn input(&mut self, id: u64, input: Input) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.machine.handle(self.clock.now(), input);
            self.step(id);
        }
    }

    /// Does what one machine wants until it waits.
    fn step(&mut self, id: u64) {
        let Some(mut slot) = self.slots.remove(&id) else {
            return;
        };
        self.wakes.remove(&(slot.wake, id));
        if let Some(at) = slot.renewal.take() {
            self.renewals.remove(&(at, id));
        }
        let wake = loop {
            let now = self.clock.now();
            match slot.machine.poll(now) {
                Output::Action(action) => self.act(id, &mut slot, action),
                Output::Event(event) => slot.deliver(&self.clock, &mut self.reporter, now, event),
                Output::Wait(at) => break at,
            }
        };
        if slot.machine.is_ended() {
            slot.stop_waiting();
        }
        self.note_waiting(id, &slot, slot.waiting.is_some());
        if slot.machine.is_ended() {
            return;
        }
        slot.wake = slot.offer_until.map_or(wake, |until| until.min(wake));
        if slot.wake < Moment::NEVER {
            self.wakes.insert((slot.wake, id));
        }
        slot.renewal = slot.machine.renewal_due();
        if let Some(at) = slot.renewal {
            self.renewals.insert((at, id));
        }
        self.slots.insert(id, slot);
    }

    fn act(&mut self, id: u64, slot: &mut Slot, action: Action) {
        let persistence = Arc::clone(&self.persistence);
        let clock = Arc::clone(&self.clock);
        let backend = self.backend;
        let timeout = slot.timeout;
        let answer = move |op, sent, reply| {
            vec![Answer {
                id,
                op,
                sent,
                reply,
            }]
        };
        match action {
            Action::Renew { op, lease } => self.batch.push((id, op, lease)),
            Action::TryAcquire { op, claim } => self.calls.push(Box::pin(async move {
                let sent = clock.now();
                let call = async { persistence.try_acquire(&claim).await };
                let reply = bounded(backend, Operation::TryAcquire, timeout, call).await;
                answer(
                    op,
                    sent,
                    Reply::TryAcquire(reply.map_err(|e| e.with_name(claim.name))),
                )
            })),
            Action::Release { op, lease } => self.calls.push(Box::pin(async move {
                let sent = clock.now();
                let call = async { persistence.release(&lease).await };
                let reply = bounded(backend, Operation::Release, timeout, call).await;
                let named = reply.map_err(|e| e.with_name(lease.name().clone()));
                answer(op, sent, Reply::Release(named))
            })),
            Action::Withdraw { op, claim } => self.calls.push(Box::pin(async move {
                let sent = clock.now();
                let call = async { persistence.withdraw(&claim).await };
                let reply = bounded(backend, Operation::Withdraw, timeout, call).await;
                answer(
                    op,
                    sent,
                    Reply::Withdraw(reply.map_err(|e| e.with_name(claim.name))),
                )
            })),
            Action::Wait { claim, seen } => {
                slot.stop_waiting();
                let (abort, registration) = AbortHandle::new_pair();
                slot.waiting = Some(abort);
                let wait = async move {
                    let call = async { persistence.wait(&claim, &seen).await };
                    let input = match AssertUnwindSafe(call).catch_unwind().await {
                        Ok(Ok(())) => Input::Hint,
                        Ok(Err(error)) => {
                            let error = of(error, backend, Operation::Wait);
                            Input::WaitFailed(error.with_name(claim.name.clone()))
                        }
                        Err(_) => Input::WaitFailed(panicked(backend, Operation::Wait)),
                    };
                    (id, input)
                };
                let wait = Abortable::new(wait, registration);
                self.waits.push(Box::pin(wait.map(std::result::Result::ok)));
            }
            Action::StopWaiting => slot.stop_waiting(),
        }
    }

    /// Sends the renewals that have gathered, with those that are nearly due.
    fn send_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let slots = &self.slots;
        let every = |(id, ..): &(u64, OpId, Lease)| {
            slots
                .get(id)
                .map(|slot| slot.machine.config().timing.renew_every())
        };
        let horizon = self
            .batch
            .iter()
            .filter_map(every)
            .max()
            .unwrap_or_default()
            / 8;
        let horizon = self.clock.now().after(horizon);
        let riders: Vec<u64> = self
            .renewals
            .iter()
            .take_while(|(at, _)| *at <= horizon)
            .map(|(_, id)| *id)
            .collect();
        for id in riders {
            self.input(id, Input::RideAlong);
        }
        let batch = std::mem::take(&mut self.batch);
        let timeout = batch
            .iter()
            .filter_map(|(id, ..)| self.slots.get(id).map(|slot| slot.timeout))
            .min()
            .unwrap_or(Duration::from_secs(1));
        let persistence = Arc::clone(&self.persistence);
        let clock = Arc::clone(&self.clock);
        let backend = self.backend;
        self.calls.push(Box::pin(async move {
            let (keys, leases): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|(id, op, lease)| ((id, op), lease))
                .unzip();
            let sent = clock.now();
            let call = async { Ok(persistence.renew(&leases).await) };
            let results = match bounded(backend, Operation::Renew, timeout, call).await {
                Ok(results) if results.len() == keys.len() => results,
                Ok(results) => {
                    let error = Error::new(
                        ErrorKind::Backend,
                        format!("{} answers to {} renewals", results.len(), keys.len()),
                    );
                    let error = error.with_backend(backend).with_operation(Operation::Renew);
                    vec![Err(error); keys.len()]
                }
                Err(error) => vec![Err(error); keys.len()],
            };
            let named = results.into_iter().zip(leases).map(|(result, lease)| {
                result.map_err(|error| {
                    of(error, backend, Operation::Renew).with_name(lease.name().clone())
                })
            });
            keys.into_iter()
                .zip(named)
                .map(|((id, op), result)| Answer {
                    id,
                    op,
                    sent,
                    reply: Reply::Renew(result),
                })
                .collect()
        }));
    }
}

impl Slot {
    fn stop_waiting(&mut self) {
        if let Some(abort) = self.waiting.take() {
            abort.abort();
        }
    }

    /// Tells the foreground, the board, the log and the metrics.
    fn deliver(
        &mut self,
        clock: &Arc<dyn Clock>,
        reporter: &mut Reporter,
        now: Moment,
        event: Event,
    ) {
        // The term first: `check()` must be false before anybody hears of the loss.
        let notice = match &event {
            Event::Gained { deadline, .. } => {
                let Some(lease) = self.machine.lease().cloned() else {
                    return;
                };
                let term = Arc::new(Term::new(lease, Arc::clone(clock), self.drain, *deadline));
                self.term = Some(Arc::clone(&term));
                self.offer_until = Some(now.after(HAND_OFF));
                Some(Notice::Offer(term))
            }
            Event::Renewed { deadline, .. } => {
                if let Some(term) = &self.term
                    && !term.extend(*deadline)
                    && term.phase() != Phase::Ended
                {
                    self.machine.handle(now, Input::Lapsed);
                    return;
                }
                self.note_error(None);
                None
            }
            Event::Stopping {
                reason, abort_at, ..
            } => {
                self.advance(Phase::Stopping {
                    reason: *reason,
                    abort_at: *abort_at,
                });
                None
            }
            Event::Aborting { .. } => {
                self.advance(Phase::Aborting);
                None
            }
            Event::Lost { reason, .. } => {
                if let Some(term) = &self.term {
                    term.lose(reason.clone());
                }
                None
            }
            Event::WorkEnded { .. } => None,
            Event::Released { outcome, .. } => Some(Notice::Released(*outcome)),
            Event::Standby { .. } => Some(Notice::Denied),
            Event::Failed { error, .. } => {
                self.note_error(Some(error));
                // A holder is not waiting for news of its renewals.
                let renewal = error.operation() == Some(Operation::Renew);
                (!renewal).then(|| Notice::Failed(error.clone()))
            }
            // As above: what a holder does not read must not gather for as long as it holds.
            Event::Recovered { .. } => self.machine.held().is_none().then_some(Notice::Recovered),
            Event::Ended { error } => Some(Notice::Ended(error.clone())),
        };
        reporter.event(now, &mut self.subject, &event);
        if let Some((board, run)) = &self.seat.board {
            board.publish(*run, &event);
        }
        if let Some(notice) = notice {
            let offer = matches!(notice, Notice::Offer(_));
            if self.seat.notices.send(notice).is_err() && offer {
                // The foreground is gone: there is nobody to wait for.
                self.offer_until = Some(now);
            }
        }
    }

    fn note_error(&self, error: Option<&Error>) {
        if let Some(term) = &self.term {
            term.note_error(error.cloned());
        }
    }

    fn advance(&self, phase: Phase) {
        if let Some(term) = &self.term {
            term.advance(phase);
        }
    }
}

/// The runtime has ended, or the last candidate is gone: what is still owed to the store is paid
/// elsewhere. A term whose work may still run is not touched; whoever ends it does that.
impl Drop for Core {
    fn drop(&mut self) {
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.note(command);
        }
        let debts = self.slots.values().flat_map(|slot| {
            let untaken = slot
                .term
                .as_ref()
                .filter(|term| !term.is_taken() && term.lapse());
            let untaken = untaken.map(|term| crate::election::Debt::Release(term.lease().clone()));
            slot.machine.debts().into_iter().chain(untaken)
        });
        rescue::settle(Arc::clone(&self.persistence), debts.collect());
    }
}

/// Runs one call to the store: at most `timeout`, and a panic of the store is an error of that call.
async fn bounded<T>(
    backend: &'static str,
    operation: Operation,
    timeout: Duration,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    // The call is made, and dropped when its time is up, inside: it may panic at either.
    let timed = async move { tokio::time::timeout(timeout, call).await };
    match AssertUnwindSafe(timed).catch_unwind().await {
        Ok(Ok(result)) => result.map_err(|error| of(error, backend, operation)),
        Err(_) => Err(panicked(backend, operation)),
        Ok(Err(_)) => Err(
            Error::new(ErrorKind::Timeout, format!("no answer within {timeout:?}"))
                .with_backend(backend)
                .with_operation(operation),
        ),
    }
}

/// The error as one of this call: what the foreground does with it depends on the operation, and a
/// store need not name it.
fn of(error: Error, backend: &'static str, operation: Operation) -> Error {
    let backend = error.backend().unwrap_or(backend);
    error.with_operation(operation).with_backend(backend)
}

fn panicked(backend: &'static str, operation: Operation) -> Error {
    Error::new(ErrorKind::Backend, "the store's client panicked")
        .with_backend(backend)
        .with_operation(operation)
        .with_indeterminate(true)
}
