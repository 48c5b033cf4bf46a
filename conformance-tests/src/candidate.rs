//! A candidate that records its history.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use lock_core::clock::Moment;
use lock_core::wrap::{Faults, Faulty};
use lock_core::{FenceGate, Timing};

use crate::cx::{Cx, name as lock_name, owner, soon, timing};
use crate::harness::{Answer, Stop};
use crate::history::{Recorder, What};
use crate::runner::{Running, Seat, Term, Work};

/// What the candidates of one election share: the history, and a resource that checks tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Election {
    pub(crate) recorder: Recorder,
    gate: Arc<Mutex<FenceGate>>,
}

/// One running candidate.
#[derive(Debug)]
pub(crate) struct Candidate {
    running: Box<dyn Running>,
    /// What goes wrong between it and the store.
    pub(crate) faults: Faults,
}

impl Election {
    /// Starts candidate `who` for `name`, with a client of its own.
    pub(crate) async fn start(
        &self,
        cx: &Cx,
        who: u32,
        name: &str,
        ttl: Duration,
    ) -> Answer<Candidate> {
        let faults = Faults::seeded(cx.random());
        self.start_under(cx, who, name, ttl, faults).await
    }

    /// Starts it under faults that are there from the beginning.
    pub(crate) async fn start_under(
        &self,
        cx: &Cx,
        who: u32,
        name: &str,
        ttl: Duration,
        faults: Faults,
    ) -> Answer<Candidate> {
        let store = Faulty::with_faults(cx.open().await?, faults.clone());
        let (election, times) = (self.clone(), timing(ttl));
        let work: Work = Arc::new(move |term| {
            let election = election.clone();
            async move {
                election.work(who, term, &times).await;
                Ok(())
            }
            .boxed()
        });
        // The same text for all: it decides nothing.
        let (owner, name) = (owner("candidate"), lock_name(name));
        let seat = Seat::new(Arc::new(store), owner, name, times, work);
        let running = cx.runner().start(seat)?;
        Ok(Candidate { running, faults })
    }

    async fn work(&self, who: u32, leadership: Arc<dyn Term>, timing: &Timing) {
        let token = leadership.token();
        let recorder = &self.recorder;
        // The deadline says when the claim was sent.
        let whole = timing
            .deadline(Moment::START, timing.ttl())
            .since(Moment::START);
        let sent_ago = whole.saturating_sub(leadership.remaining());
        let since = recorder.now().saturating_sub(sent_ago);
        recorder.note(who, token, What::Granted { since });
        {
            let (recorder, leadership) = (recorder.clone(), Arc::clone(&leadership));
            tokio::spawn(async move {
                leadership.lost().await;
                recorder.note(who, token, What::Lost);
            });
        }
        let _ended = Ended(recorder, who, leadership.as_ref());
        recorder.note(who, token, What::WorkBegan);
        let mut deadline = Moment::START;
        loop {
            if leadership.deadline() != deadline {
                let remaining = leadership.remaining();
                if !remaining.is_zero() {
                    deadline = leadership.deadline();
                    let at = recorder.now() + remaining;
                    recorder.note(who, token, What::Deadline(at));
                }
            }
            recorder.check(who, token, || leadership.check());
            {
                let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                let accepted = gate.admit(token).is_ok();
                // Under the lock of the resource: the order of the history is its order.
                recorder.note(who, token, What::Wrote { accepted });
            }
            tokio::select! {
                biased;
                () = leadership.stopping() => break,
                () = tokio::time::sleep(Duration::from_millis(2)) => {}
            }
        }
        recorder.note(who, token, What::Stopping);
        // Work takes a moment to end.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Notes the end of the work, also when it is dropped.
struct Ended<'a>(&'a Recorder, u32, &'a dyn Term);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let Self(recorder, who, leadership) = *self;
        recorder.note(who, leadership.token(), What::WorkEnded);
        if leadership.check() {
            recorder.note(who, leadership.token(), What::Released);
        }
    }
}

impl Candidate {
    /// Waits until this one leads.
    pub(crate) async fn leads(&self, limit: Duration) -> Answer<()> {
        tokio::time::timeout(limit, self.running.leads())
            .await
            .map_err(|_| Stop::failed(format!("it does not lead within {limit:?}")))
    }

    /// Waits until the store has told it that somebody else leads.
    pub(crate) async fn stands_by(&self) -> Answer<()> {
        soon("the standby knows who leads", self.running.stands_by()).await
    }

    pub(crate) fn resign(&self, hold_off: Duration) {
        self.running.resign(hold_off);
    }

    /// Shuts it down and waits for its end.
    pub(crate) async fn stop(self) -> Answer<()> {
        soon("a candidate that was shut down ends", self.running.stop()).await?
    }
}
