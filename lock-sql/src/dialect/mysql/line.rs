//! The line of those that wait for a name, over all processes: a named lock of the server.
//!
//! A process that waits blocks in `GET_LOCK`, on a connection for that alone. Whoever is let in is the *first*: it looks at
//! the row until that is free, and tries. Granted, it stays the first until it releases: then the row is freed, and after it
//! the named lock, which the server hands to the one that came next. So a release wakes one, and nobody asks
//! meanwhile. A holder that never stood in the line is looked at by the first alone.
//!
//! It decides nothing: the row does. A free row is left to the first for [`KEPT`], so that whoever releases and asks again does
//! not pass by those that wait; a first that does not come costs the others that long, or until their
//! next poll. Inside a process those that wait for the same name stand in a line of their own behind its connection.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use lock_core::{Claim, Error, ErrorKind, Lease, LeaseState, LockName, Mode, Nonce, Result};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;
use tokio::sync::{Mutex as Seat, Notify};
use tokio::time::{Instant, sleep, sleep_until};

use super::connection::{Open, Server};
use super::statements::Courtesy;
use super::{Place, row};

/// How long a name that is free is left to the first in line; and one that was told or let in, to come.
pub(super) const KEPT: Duration = Duration::from_millis(100);

/// Names that a process stands in line for at most, each with a connection: beyond that it looks from time to time.
const MOST: usize = 16;

/// Connections kept for the next name at most.
const IDLE: usize = 4;

/// One that was idle for longer may have been ended by the server.
const STALE: Duration = Duration::from_secs(1);

/// How long one statement waits in the server. A process that is cut off is forgotten after that.
const WAIT: Duration = Duration::from_secs(5);

/// A statement that took longer has waited for another to leave, who freed the row first.
const WAITED: Duration = Duration::from_millis(2);

/// Between two looks of the first, as in [`wake`](super::wake).
const SLOW: Duration = Duration::from_millis(25);
const FAST: Duration = Duration::from_millis(1);

/// The first gives up its place when it was denied this often: others may come through where it does not.
const DENIALS: u32 = 2;

/// For how long a server may hear nothing from the first before it lets in the next: it must outlast the pause between two
/// renewals, and a stopped process holds up the line for as long.
const SILENCE: std::ops::RangeInclusive<u64> = 3..=60;

/// The lines of one store.
#[derive(Debug)]
pub(super) struct Lines {
    place: Arc<Place>,
    lines: Mutex<BTreeMap<LockName, Arc<Line>>>,
    idle: Mutex<Vec<Session>>,
    /// The server has no such locks for us.
    off: AtomicBool,
}

#[derive(Debug)]
struct Session {
    open: Open,
    /// The server's number of this connection.
    id: i64,
}

#[derive(Debug)]
struct Line {
    name: LockName,
    places: Mutex<Places>,
    /// Somebody came, left, or was told.
    moved: Notify,
    /// Whoever drives the connection.
    seat: Seat<Driven>,
}

/// Those of this process, in the order in which they came.
#[derive(Debug, Default)]
struct Places {
    waiting: VecDeque<Waiting>,
    /// Has the lease, while this process is the first; and until when nothing need be heard of it.
    holder: Option<(Nonce, Instant)>,
    /// The connection that is the first in line; 0 while it is not.
    first: i64,
    /// One of this process has released, which nobody has been told yet.
    freed: bool,
}

#[derive(Debug)]
struct Waiting {
    nonce: Nonce,
    /// Since when it has not asked.
    away: Option<Instant>,
    /// How often it was told in vain.
    told: u32,
}

#[derive(Default)]
struct Driven {
    session: Option<Session>,
    /// What is under way; it outlives the call that began it, so that a claim keeps its place while it tries.
    step: Option<BoxFuture<'static, Result<Option<Step>>>>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Driven").field(&self.session).finish()
    }
}

struct Step {
    session: Session,
    first: bool,
    /// An attempt is worth making.
    worth: bool,
}

enum Turn {
    Mine,
    /// Until somebody moves, or this instant.
    Others(Option<Instant>),
}

impl Places {
    /// Whose turn it is, as `nonce` sees it.
    fn turn(&mut self, nonce: Nonce, now: Instant) -> Turn {
        match self.waiting.iter_mut().find(|w| w.nonce == nonce) {
            Some(own) => own.away = None,
            None => self.waiting.push_back(Waiting {
                nonce,
                away: None,
                told: 0,
            }),
        }
        if self.first == 0 || self.holder.is_some_and(|(_, until)| until <= now) {
            self.holder = None;
        }
        if let Some((_, until)) = self.holder {
            return Turn::Others(Some(until));
        }
        // Own is not away, so this ends.
        while let Some(front) = self.waiting.front() {
            match front.away {
                None => break,
                Some(since) if since + KEPT > now => return Turn::Others(Some(since + KEPT)),
                Some(_) => drop(self.waiting.pop_front()),
            }
        }
        match self.waiting.front() {
            Some(front) if front.nonce == nonce => Turn::Mine,
            _ => Turn::Others(None),
        }
    }

    fn leave(&mut self, nonce: Nonce) {
        self.waiting.retain(|w| w.nonce != nonce);
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && (self.holder.is_none() || self.first == 0)
    }

    /// Nothing was heard of anybody: calls that were dropped and not withdrawn.
    fn is_forgotten(&self, now: Instant) -> bool {
        self.holder.is_none_or(|(_, until)| until <= now)
            && (self.waiting.iter()).all(|w| w.away.is_some_and(|since| since + WAIT <= now))
    }
}

impl Line {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands in line until an attempt is worth making; false where the server has no lines.
    async fn drive(&self, lines: &Lines, claim: &Claim) -> Result<bool> {
        let mut seat = self.seat.lock().await;
        let mut pace = FAST;
        if std::mem::take(&mut self.places().freed) && self.places().first != 0 {
            return Ok(true);
        }
        loop {
            if seat.step.is_none() {
                let session = seat.session.take().or_else(|| lines.idle().pop());
                let first = session.is_some() && self.places().first != 0;
                let (place, claim) = (Arc::clone(&lines.place), claim.clone());
                seat.step = Some(Box::pin(step(place, session, claim, first)));
            }
            let Some(under_way) = &mut seat.step else {
                continue;
            };
            let ended = under_way.await;
            seat.step = None;
            let Ok(Some(step)) = ended else {
                self.places().first = 0;
                return ended.map(|_| false);
            };
            self.places().first = if step.first { step.session.id } else { 0 };
            seat.session = Some(step.session);
            if step.worth {
                return Ok(true);
            }
            if step.first {
                sleep(pace).await;
                pace = (pace * 2).min(SLOW);
            }
        }
    }

    /// Gives the named lock to the next process; where there is none, and `back`, takes it again. Whether somebody is
    /// first now. Gives up a connection that is not idle.
    async fn step_aside(&self, place: &Place, back: bool) -> bool {
        let mut seat = self.seat.lock().await;
        seat.step = None;
        let first = std::mem::take(&mut self.places().first);
        let Some(mut session) = seat.session.take().filter(|_| first != 0) else {
            return false;
        };
        let answers = session.ask(place, place.statements.step_aside(&self.name, back));
        let answers = answers.await.and_then(|rows| {
            let read = |row: &MySqlRow| Ok((row.try_get("followed")?, row.try_get("back")?));
            place.decoded(rows.first().map_or(Ok((0, 0)), read))
        });
        match answers {
            Ok::<(i64, i64), _>((followed, back)) => {
                if back == 1 {
                    let mut places = self.places();
                    (places.first, places.freed) = (session.id, true);
                }
                seat.session = Some(session);
                followed != 0 || back == 1
            }
            Err(error) => {
                tracing::debug!(%error, "leaving the line by hanging up");
                false
            }
        }
    }

    /// Tells the server that the first is still there.
    async fn keep(&self) {
        let Ok(mut seat) = self.seat.try_lock() else {
            return;
        };
        let Some(mut session) = seat.session.take() else {
            return;
        };
        // Dropped midway, the connection goes.
        let first = std::mem::take(&mut self.places().first);
        if session.open.stands(Duration::ZERO).await {
            self.places().first = first;
            seat.session = Some(session);
        }
    }
}

/// One statement on the connection of a line: stands in it, or, where it is `first`, looks.
async fn step(
    place: Arc<Place>,
    session: Option<Session>,
    claim: Claim,
    first: bool,
) -> Result<Option<Step>> {
    let mut usable = session;
    if let Some(idle) = &mut usable
        && !first
        && !idle.open.stands(STALE).await
    {
        usable = None;
    }
    let mut session = match usable {
        Some(session) => session,
        None => match enter(&place.server, claim.ttl).await? {
            Some(session) => session,
            None => return Ok(None),
        },
    };
    let began = Instant::now();
    if !first {
        let stand = place.statements.stand(&claim.name, WAIT);
        let stood = session.ask(&place, stand).await?;
        let stood: Option<i64> = match stood.first() {
            Some(row) => place.decoded(row.try_get("first"))?,
            None => None,
        };
        if stood.is_none() {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the server ended a wait in its line",
            ));
        }
        if stood != Some(1) || began.elapsed() > WAITED {
            let first = stood == Some(1);
            return Ok(Some(Step {
                session,
                first,
                worth: first,
            }));
        }
    }
    let seen = session
        .ask(&place, place.statements.read(&claim.name))
        .await?;
    let state = seen.first().map_or(Ok(LeaseState::Absent), row::state);
    let held = matches!(place.decoded(state)?, LeaseState::Held(_));
    Ok(Some(Step {
        session,
        first: true,
        worth: !held,
    }))
}

/// Opens a connection for a line; nothing where the server's named locks are not for us.
async fn enter(server: &Arc<Server>, ttl: Duration) -> Result<Option<Session>> {
    let opened = Arc::clone(server).open().await;
    let mut open = opened.map_err(|failure| server.error(failure))??;
    if !open.features.named_locks {
        return Ok(None);
    }
    let silence = (ttl.as_secs() + 1).clamp(*SILENCE.start(), *SILENCE.end());
    let sql = format!("SET SESSION wait_timeout = {silence}; SELECT CONCAT(CONNECTION_ID())");
    let answers = open.run(&sql.into()).await;
    let answers = answers.map_err(|error| server.undecodable(error))?;
    let shown = answers.last().and_then(|a| a.rows.first());
    let id = shown.map(|row| row::shown(row, 0)).transpose();
    let id = id.map_err(|error| server.undecodable(error))?;
    Ok(id
        .and_then(|id| id.parse().ok())
        .map(|id| Session { open, id }))
}

impl Session {
    async fn ask(&mut self, place: &Place, sql: String) -> Result<Vec<MySqlRow>> {
        let answers = self.open.run(&sql.into()).await;
        let answers = answers.map_err(|error| place.server.undecodable(error))?;
        Ok(answers.into_iter().flat_map(|a| a.rows).collect())
    }
}

/// A claim that waits; away when dropped, which keeps its place for the attempt that follows.
struct Standing<'a> {
    line: Arc<Line>,
    claim: &'a Claim,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let nonce = self.claim.nonce;
        let mut places = self.line.places();
        if let Some(own) = places.waiting.iter_mut().find(|w| w.nonce == nonce) {
            own.away = Some(Instant::now());
        }
        drop(places);
        self.line.moved.notify_waiters();
    }
}

impl Lines {
    pub(super) fn new(place: Arc<Place>) -> Self {
        Self {
            place,
            lines: Mutex::default(),
            idle: Mutex::default(),
            off: AtomicBool::new(false),
        }
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<LockName, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, name: &LockName) -> Option<Arc<Line>> {
        self.lines().get(name).cloned()
    }

    /// What `claim` leaves to others. Whoever cannot stand in line leaves nothing.
    pub(super) fn courtesy(&self, claim: &Claim) -> Courtesy {
        let lines = self.lines();
        let line = lines.get(&claim.name);
        let outside = line.is_none() && claim.mode == Mode::Queue && lines.len() >= MOST;
        if outside || self.off.load(Ordering::Relaxed) {
            return Courtesy {
                kept: Duration::ZERO,
                own: 0,
            };
        }
        let own = line.map_or(0, |line| {
            let places = line.places();
            let front = places.waiting.front();
            front.map_or(0, |front| {
                if front.nonce == claim.nonce {
                    places.first
                } else {
                    0
                }
            })
        });
        Courtesy { kept: KEPT, own }
    }

    /// Resolves when an attempt is worth making; `None` where there is no line for this name.
    pub(super) async fn wait(&self, claim: &Claim) -> Option<Result<()>> {
        // Only a claim that may stand in line is withdrawn when it is given up.
        if claim.mode == Mode::Once || self.off.load(Ordering::Relaxed) {
            return None;
        }
        let line = {
            let mut lines = self.lines();
            let now = Instant::now();
            if !lines.contains_key(&claim.name) && lines.len() >= MOST {
                lines.retain(|_, line| !line.places().is_forgotten(now));
                if lines.len() >= MOST {
                    return None;
                }
            }
            let line = lines.entry(claim.name.clone()).or_insert_with(|| {
                Arc::new(Line {
                    name: claim.name.clone(),
                    places: Mutex::default(),
                    moved: Notify::new(),
                    seat: Seat::default(),
                })
            });
            // Under the lock of the map, so that the line is not over before it is entered.
            line.places().turn(claim.nonce, now);
            Arc::clone(line)
        };
        let standing = Standing { line, claim };
        let result = self.stand(&standing).await;
        if matches!(result, Ok(false)) {
            self.off.store(true, Ordering::Relaxed);
            standing.line.places().leave(claim.nonce);
            self.tidy(&standing.line);
            return None;
        }
        Some(result.map(drop))
    }

    async fn stand(&self, standing: &Standing<'_>) -> Result<bool> {
        let (line, nonce) = (&standing.line, standing.claim.nonce);
        let in_vain = {
            let mut places = line.places();
            let is_first = places.first != 0;
            let own = places.waiting.iter_mut().find(|w| w.nonce == nonce);
            own.is_some_and(|own| {
                let in_vain = is_first && own.told >= DENIALS;
                if in_vain {
                    own.told = 0;
                }
                in_vain
            })
        };
        if in_vain {
            line.step_aside(&self.place, false).await;
        }
        loop {
            let mut moved = pin!(line.moved.notified());
            moved.as_mut().enable();
            let turn = line.places().turn(nonce, Instant::now());
            match turn {
                Turn::Mine => break,
                Turn::Others(until) => {
                    let late = async {
                        match until {
                            Some(until) => sleep_until(until).await,
                            None => pending().await,
                        }
                    };
                    tokio::select! {
                        () = moved => {}
                        () = late => {}
                    }
                }
            }
        }
        let worth = line.drive(self, standing.claim).await?;
        if worth {
            let mut places = line.places();
            if let Some(own) = places.waiting.iter_mut().find(|w| w.nonce == nonce) {
                own.told += 1;
            }
        }
        Ok(worth)
    }

    /// `claim` has the lease: while this process is the first, it stays so.
    pub(super) fn granted(&self, claim: &Claim) {
        let Some(line) = self.line(&claim.name) else {
            return;
        };
        {
            let mut places = line.places();
            places.leave(claim.nonce);
            if places.first != 0 {
                places.holder = Some((claim.nonce, Instant::now() + claim.ttl));
            }
        }
        line.moved.notify_waiters();
        self.tidy(&line);
    }

    /// `nonce` neither holds nor waits any more; whether somebody of another process is the next, if that is known.
    pub(super) async fn left(&self, name: &LockName, nonce: Nonce) -> bool {
        let Some(line) = self.line(name) else {
            return false;
        };
        let (mine, others) = {
            let mut places = line.places();
            places.leave(nonce);
            let held = places.holder.take_if(|(holder, _)| *holder == nonce);
            let others = !places.waiting.is_empty();
            let mine = places.first != 0 && (held.is_some() || places.holder.is_none() && !others);
            (mine, others)
        };
        let followed = mine && line.step_aside(&self.place, others).await;
        line.moved.notify_waiters();
        self.tidy(&line);
        followed
    }

    /// These are still held.
    pub(super) async fn keep(&self, leases: &[Lease]) {
        if self.lines().is_empty() {
            return;
        }
        let kept = leases.iter().filter_map(|lease| {
            let line = self.line(row::stored_name(lease))?;
            let mut places = line.places();
            let (nonce, until) = places.holder.as_mut()?;
            if *nonce != lease.nonce() {
                return None;
            }
            *until = Instant::now() + lease.claim().ttl;
            drop(places);
            Some(async move { line.keep().await })
        });
        join_all(kept.collect::<Vec<_>>()).await;
    }

    /// Ends a line that nobody of this process stands in.
    fn tidy(&self, line: &Arc<Line>) {
        let mut lines = self.lines();
        if !line.places().is_over() || !lines.get(&line.name).is_some_and(|l| Arc::ptr_eq(l, line))
        {
            return;
        }
        lines.remove(&line.name);
        // One that drives it goes with it.
        let Ok(mut seat) = line.seat.try_lock() else {
            return;
        };
        let left = seat.step.is_none() && line.places().first == 0;
        let Some(session) = seat.session.take().filter(|_| left) else {
            return;
        };
        let mut idle = self.idle();
        if idle.len() < IDLE {
            idle.push(session);
        }
    }

    pub(super) async fn close(&self) {
        let lines = std::mem::take(&mut *self.lines());
        let mut open = std::mem::take(&mut *self.idle());
        for line in lines.into_values() {
            let Ok(mut seat) = line.seat.try_lock() else {
                continue;
            };
            seat.step = None;
            line.places().first = 0;
            open.extend(seat.session.take());
        }
        join_all(open.into_iter().map(|session| session.open.close())).await;
    }
}
