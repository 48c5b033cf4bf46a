//! How an onlooker learns of a change, and a waiter of a release where there is no [line](super::line): somebody
//! looks, for all that wait.
//!
//! The server tells nobody of a change, so it is asked: one statement for all names that this store waits for,
//! sent by whichever waiter has the seat; when that one leaves, the next takes it. Nothing runs
//! when nobody waits. For each look that finds a name free, one waiter is told, in the order in which they came:
//! a release sets off no crowd.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{LockName, Result};
use sqlx::Row as _;
use tokio::sync::{Mutex as Seat, oneshot};
use tokio::time::sleep;

use super::connection::Slot;
use super::{Place, row};
use crate::dialect::Changes;

/// Between two looks while nothing changes: the most that a release stays unseen.
const SLOW: Duration = Duration::from_millis(25);

/// After a change, since one seldom comes alone; doubled with each look.
const FAST: Duration = Duration::from_millis(1);

/// The last token of a name, and whether somebody holds it. Nothing where there is no row.
type Seen = Option<(u64, bool)>;

/// All that wait in one store.
#[derive(Debug)]
pub(super) struct Waiters {
    place: Arc<Place>,
    slot: Slot,
    list: Mutex<List>,
    /// Whoever has it looks for all.
    seat: Seat<()>,
}

#[derive(Debug)]
struct List {
    entries: VecDeque<Entry>,
    pace: Duration,
}

#[derive(Debug)]
struct Entry {
    name: LockName,
    /// An onlooker is told of each change, a waiter when the name can be had.
    onlooker: bool,
    /// What it saw last; an onlooker that has seen nothing yet is told by the first look.
    seen: Option<Seen>,
    tell: oneshot::Sender<Seen>,
}

impl Entry {
    fn is_news(&self, now: Seen) -> bool {
        if self.onlooker {
            self.seen != Some(now)
        } else {
            !matches!(now, Some((_, true)))
        }
    }
}

impl List {
    /// Tells each onlooker of a change and one waiter of each free name.
    fn tell(&mut self, now: &BTreeMap<LockName, (u64, bool)>) {
        let mut had = BTreeSet::new();
        let mut told = false;
        for entry in std::mem::take(&mut self.entries) {
            let seen = now.get(&entry.name).copied();
            if entry.tell.is_closed() {
                continue;
            }
            if !entry.is_news(seen) || (!entry.onlooker && had.contains(&entry.name)) {
                self.entries.push_back(entry);
                continue;
            }
            // Whoever left just now is not the one that this name goes to.
            if entry.tell.send(seen).is_ok() {
                told = true;
                if !entry.onlooker {
                    had.insert(entry.name);
                }
            }
        }
        self.pace = if told {
            FAST
        } else {
            (self.pace * 2).min(SLOW)
        };
    }
}

impl Waiters {
    pub(super) fn new(place: Arc<Place>) -> Self {
        Self {
            place,
            slot: Slot::default(),
            list: Mutex::new(List {
                entries: VecDeque::new(),
                pace: FAST,
            }),
            seat: Seat::default(),
        }
    }

    pub(super) fn subscribe(self: &Arc<Self>, name: &LockName, onlooker: bool) -> Subscription {
        Subscription {
            waiters: Arc::clone(self),
            name: name.clone(),
            onlooker,
            seen: None,
        }
    }

    pub(super) async fn close(&self) {
        self.slot.close().await;
    }

    fn list(&self) -> std::sync::MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for all until it fails.
    async fn look(&self) -> Result<()> {
        let _seat = self.seat.lock().await;
        loop {
            let pace = self.list().pace;
            sleep(pace).await;
            let names: BTreeSet<_> = {
                let list = self.list();
                list.entries.iter().map(|e| e.name.clone()).collect()
            };
            let sql = self.place.statements.look_at(&names);
            let answers = self
                .slot
                .run(&self.place.server, |_| sql.clone().into())
                .await?;
            let mut now = BTreeMap::new();
            for shown in answers.iter().flat_map(|a| &a.rows) {
                let read = || {
                    let held: i64 = shown.try_get("held")?;
                    Ok((
                        row::name(shown)?,
                        (row::natural(shown, "token")?, held != 0),
                    ))
                };
                let (name, state) = read().map_err(|e| self.place.server.undecodable(e))?;
                now.extend(name.map(|name| (name, state)));
            }
            self.list().tell(&now);
        }
    }
}

/// One that waits or watches; ended by dropping it.
pub(super) struct Subscription {
    waiters: Arc<Waiters>,
    name: LockName,
    onlooker: bool,
    seen: Option<Seen>,
}

#[async_trait]
impl Changes for Subscription {
    async fn changed(&mut self) -> Result<()> {
        let (tell, told) = oneshot::channel();
        self.waiters.list().entries.push_back(Entry {
            name: self.name.clone(),
            onlooker: self.onlooker,
            seen: self.seen,
            tell,
        });
        tokio::select! {
            biased;
            seen = told => self.seen = seen.ok(),
            failed = self.waiters.look() => failed?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_of(entries: &[(&str, bool)]) -> (List, Vec<oneshot::Receiver<Seen>>) {
        let mut receivers = Vec::new();
        let entries = entries.iter().map(|(name, onlooker)| {
            let (tell, told) = oneshot::channel();
            receivers.push(told);
            Entry {
                name: LockName::new(name).expect("valid"),
                onlooker: *onlooker,
                seen: None,
                tell,
            }
        });
        let list = List {
            entries: entries.collect(),
            pace: SLOW,
        };
        (list, receivers)
    }

    fn told(receivers: &mut [oneshot::Receiver<Seen>]) -> Vec<bool> {
        receivers.iter_mut().map(|r| r.try_recv().is_ok()).collect()
    }

    #[test]
    fn one_waiter_of_a_free_name_is_told_at_a_time_and_in_order() {
        let (mut list, mut waiting) = list_of(&[
            ("a", false),
            ("b", false),
            ("a", false),
            ("a", true),
            ("a", false),
        ]);
        let now = |held| {
            let name = |text| LockName::new(text).expect("valid");
            BTreeMap::from([(name("a"), (7, held)), (name("b"), (1, true))])
        };
        list.tell(&now(false));
        assert_eq!(told(&mut waiting), [true, false, false, true, false]);
        assert_eq!(list.pace, FAST);
        // The next one has gone: the one after it is told instead.
        waiting[2].close();
        list.tell(&now(true));
        assert_eq!(told(&mut waiting), [false; 5]);
        assert_eq!(list.pace, FAST * 2);
        list.tell(&now(false));
        assert_eq!(told(&mut waiting), [false, false, false, false, true]);
        assert_eq!(list.entries.len(), 1);
    }

    #[test]
    fn an_onlooker_is_told_of_what_it_has_not_seen() {
        let (mut list, mut waiting) = list_of(&[("a", true)]);
        list.entries[0].seen = Some(None);
        list.tell(&BTreeMap::new());
        assert_eq!(told(&mut waiting), [false]);
        let name = LockName::new("a").expect("valid");
        list.tell(&BTreeMap::from([(name, (1, true))]));
        assert_eq!(told(&mut waiting), [true]);
    }
}
