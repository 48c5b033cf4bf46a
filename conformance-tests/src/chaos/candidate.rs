//! One candidate: a process that takes part in the election and writes down what it believes.

use std::fmt;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lock_core::wrap::{Fault, Faults, Faulty, Times};
use lock_core::{Error, ErrorKind, LockName, LockPersistence, Operation, Owner, Timing};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::gate::Pen;
use super::record::{Diary, Fact, now};
use super::trace::Traced;
use crate::harness::{Answer, Stop};
use crate::runner::{Real, Runner, Seat, Term, Work};

/// The variable of the environment that arms a process as a candidate.
const ORDER: &str = "LOCK_CHAOS_CANDIDATE";

/// All that a candidate is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) folder: PathBuf,
    pub(super) locator: String,
    pub(super) who: u32,
    pub(super) life: u32,
    pub(super) ttl: Duration,
    pub(super) mutant: Option<String>,
    /// It is no candidate itself but what a command starts in each of its terms; the variable that holds the token.
    pub(super) command: Option<String>,
}

/// The name that all candidates of a run want.
pub const NAME: &str = "chaos/leader";

/// The file of this life.
pub(super) fn diary_of(folder: &Path, who: u32, life: u32) -> PathBuf {
    folder.join(format!("candidate-{who}-{life}.jsonl"))
}

/// The socket of the resource.
pub(super) fn gate_of(folder: &Path) -> PathBuf {
    folder.join("gate")
}

impl Order {
    /// The variable that carries it to a process.
    pub(super) fn variable(&self) -> Answer<(&'static str, String)> {
        let text = serde_json::to_string(self).map_err(Stop::failed)?;
        Ok((ORDER, text))
    }
}

/// What a link does to the calls of a candidate, where no proxy stands before the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Link {
    /// Nothing: what holds is taken back.
    Heal,
    /// Calls never reach the store and never return.
    DropRequests,
    /// Calls take effect, and never return.
    DropAnswers,
    /// Calls take effect, and fail.
    FailAfter,
    /// Calls fail before they reach the store.
    Refuse,
    /// Calls reach the store this many milliseconds later.
    Slow(u64),
    /// Answers come this many milliseconds later.
    SlowAnswers(u64),
}

impl Link {
    fn apply(self, faults: &Faults) {
        faults.heal();
        let down = || Error::new(ErrorKind::Unavailable, "the link is cut").with_retryable(true);
        let fault = match self {
            Self::Heal => return,
            Self::DropRequests => Fault::HangBefore,
            Self::DropAnswers => Fault::HangAfter,
            Self::FailAfter => Fault::FailAfter(down()),
            Self::Refuse => Fault::FailBefore(down()),
            Self::Slow(ms) => Fault::DelayBefore(Duration::from_millis(ms)),
            Self::SlowAnswers(ms) => Fault::DelayAfter(Duration::from_millis(ms)),
        };
        for operation in [
            Operation::TryAcquire,
            Operation::Renew,
            Operation::Release,
            Operation::Withdraw,
            Operation::Wait,
        ] {
            faults.inject(operation, fault.clone(), Times::Always);
        }
    }
}

/// What the engine tells a candidate over its standard input, one JSON line each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    Link(Link),
    /// End in good order.
    Stop,
}

/// What a store's name leads to.
pub type Opening = BoxFuture<'static, Answer<Arc<dyn LockPersistence>>>;

/// A fault of the program that a run must find: another loop, or another store.
///
/// The suite gives none: a name without one is an error of the candidate.
pub trait Mutants: fmt::Debug + Send + Sync {
    /// The loop of this name, and the store it uses.
    ///
    /// # Errors
    /// There is no mutant of this name.
    fn make(
        &self,
        name: &str,
        store: Arc<dyn LockPersistence>,
    ) -> Answer<(Arc<dyn Runner>, Arc<dyn LockPersistence>)>;
}

/// Candidates without a fault.
#[derive(Clone, Copy, Debug)]
pub struct NoMutants;

impl Mutants for NoMutants {
    fn make(
        &self,
        name: &str,
        _: Arc<dyn LockPersistence>,
    ) -> Answer<(Arc<dyn Runner>, Arc<dyn LockPersistence>)> {
        Err(Stop::failed(format!("there is no mutant {name:?}")))
    }
}

/// Runs this process as a candidate if it was started as one, and says whether it was.
///
/// Call it first in a program that starts candidates as itself. `open` makes a client of the store that
/// a locator names, without preparing it.
///
/// # Errors
/// What kept the candidate from running.
pub fn candidate(open: impl FnOnce(String) -> Opening, mutants: &dyn Mutants) -> Answer<bool> {
    let Ok(order) = std::env::var(ORDER) else {
        return Ok(false);
    };
    let order: Order = serde_json::from_str(&order).map_err(Stop::failed)?;
    // Dies with the engine, however that ends.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Stop::failed)?;
    let diary =
        Diary::open(&diary_of(&order.folder, order.who, order.life)).map_err(Stop::failed)?;
    let diary = Arc::new(diary);
    if let Some(variable) = &order.command {
        labour(&order, &diary, variable)?;
        return Ok(true);
    }
    diary.note(Fact::Up);
    watch_for_stalls(&diary);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Stop::failed)?;
    runtime.block_on(act(&order, &diary, open(order.locator.clone()), mutants))?;
    diary.note(Fact::Down);
    Ok(true)
}

/// How long a thread that wants to run may be kept from it before that is written down.
pub(super) const STALL: Duration = Duration::from_millis(20);

/// Writes down when the process did not run: stopped by a signal, or the machine was busy.
pub(super) fn watch_for_stalls(diary: &Arc<Diary>) {
    let diary = Arc::clone(diary);
    std::thread::spawn(move || {
        loop {
            let from = now();
            std::thread::sleep(Duration::from_millis(5));
            if Duration::from_nanos(now() - from) > STALL {
                diary.note(Fact::Stalled { from });
            }
        }
    });
}

async fn act(
    order: &Order,
    diary: &Arc<Diary>,
    open: Opening,
    mutants: &dyn Mutants,
) -> Answer<()> {
    let faulty = Faulty::new(open.await?);
    let faults = faulty.faults().clone();
    let mut store: Arc<dyn LockPersistence> = Arc::new(faulty);
    let mut runner: Arc<dyn Runner> = Arc::new(Real);
    if let Some(mutant) = &order.mutant {
        (runner, store) = mutants.make(mutant, store)?;
    }
    let store = Arc::new(Traced {
        inner: store,
        diary: Arc::clone(diary),
    });
    let pen = Pen::connect(&gate_of(&order.folder), order.who, order.life).map_err(Stop::failed)?;
    let pen = Arc::new(Mutex::new(pen));
    let work: Work = {
        let (diary, terms) = (Arc::clone(diary), AtomicU32::new(order.who));
        Arc::new(move |term| {
            // In two of three terms it does not heed that it is told to stop, and is dropped at the deadline.
            let heeds = terms.fetch_add(1, Ordering::Relaxed) % 3 == 2;
            Box::pin(work(term, heeds, Arc::clone(&diary), Arc::clone(&pen)))
        })
    };
    let seat = Seat::new(
        store,
        Owner::new("same")?,
        LockName::new(NAME)?,
        Timing::for_ttl(order.ttl)?,
        work,
    );
    let running = runner.start(seat)?;
    let (told, mut words) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(word) => {
                    if told.send(word).is_err() {
                        return;
                    }
                }
                Err(error) => eprintln!("told {line:?}, which means nothing: {error}"),
            }
        }
    });
    while let Some(word) = words.recv().await {
        match word {
            Word::Link(link) => link.apply(&faults),
            Word::Stop => break,
        }
    }
    running.stop().await
}

/// The work of one term as a command does it: it cannot ask whether it may act. It must be told to stop, or be killed.
fn labour(order: &Order, diary: &Diary, variable: &str) -> Answer<()> {
    let token = std::env::var(variable).map_err(Stop::failed)?;
    let token: u64 = token.parse().map_err(Stop::failed)?;
    let told = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(Stop::failed)?;
    let handler = runtime.block_on(async { signal(SignalKind::terminate()) });
    let mut handler = handler.map_err(Stop::failed)?;
    runtime.spawn({
        let told = Arc::clone(&told);
        async move {
            handler.recv().await;
            told.store(true, Ordering::SeqCst);
        }
    });
    diary.note(Fact::Began { token });
    let mut pen =
        Pen::connect(&gate_of(&order.folder), order.who, order.life).map_err(Stop::failed)?;
    // In two of three terms it does not heed that it is told to stop, and is killed.
    let heeds = token % 3 == 2;
    while !(heeds && told.load(Ordering::SeqCst)) {
        diary.note(Fact::Check {
            token,
            may: true,
            until: None,
        });
        pen.write(token).map_err(Stop::failed)?;
        std::thread::sleep(Duration::from_millis(3));
    }
    diary.note(Fact::Ended { token });
    Ok(())
}

/// Ends the writer with the work, also when the work is dropped, and writes that down.
struct Writer {
    token: u64,
    diary: Arc<Diary>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the writer panicked");
        }
        self.diary.note(Fact::Ended { token: self.token });
    }
}

/// The work of one term: a thread that asks, computes a little, and writes under its token.
async fn work(
    term: Arc<dyn Term>,
    heeds: bool,
    diary: Arc<Diary>,
    pen: Arc<Mutex<Pen>>,
) -> Result<(), String> {
    let token = term.token().get();
    diary.note(Fact::Began { token });
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (term, diary, stop) = (Arc::clone(&term), Arc::clone(&diary), Arc::clone(&stop));
        move || write(&*term, &diary, &stop, &pen)
    });
    let _writer = Writer {
        token,
        diary: Arc::clone(&diary),
        stop,
        thread: Some(writer),
    };
    tokio::spawn({
        let (term, diary) = (Arc::clone(&term), Arc::clone(&diary));
        async move {
            term.lost().await;
            diary.note(Fact::Lost { token });
        }
    });
    term.stopping().await;
    diary.note(Fact::Stopping { token });
    if !heeds {
        return std::future::pending().await;
    }
    // It takes a moment to come to an end.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

fn write(term: &dyn Term, diary: &Diary, stop: &AtomicBool, pen: &Mutex<Pen>) {
    let token = term.token().get();
    let mut pen = pen.lock().unwrap_or_else(PoisonError::into_inner);
    while !stop.load(Ordering::SeqCst) {
        let at = now();
        let left = term.remaining();
        let may = term.check();
        // Read before it was asked: a pause in between makes it earlier, never later.
        let until = (!left.is_zero())
            .then(|| at.saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)));
        diary.note_at(at, Fact::Check { token, may, until });
        if may {
            // What is between a check and the write that it allows is what fencing is for.
            std::thread::sleep(Duration::from_millis(3));
            if let Err(error) = pen.write(token) {
                eprintln!("the resource cannot be reached: {error}");
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}
