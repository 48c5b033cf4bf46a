//! A plain election loop over a store, of the kind that services write by hand, which can be wrong in
//! one way. Without a flaw it is right.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::runner::{Runner, Running, Seat, Term};
use conformance_tests::{Answer, Stop};
use lock_core::clock::Moment;
use lock_core::{Attempt, Claim, Handle, Lease, Nonce, Renewal, Token};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// What is wrong with the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    RenewalHangsWithTheTimer,
    RenewerDies,
    LossNeedsAnAnswer,
    OneFailureDropsTheLease,
    WorkGoesOnAfterTheTerm,
    ReleasedBeforeTheWorkStops,
    NoReleaseAtShutdown,
    NoStoreRunsWithoutElection,
    SharedIdentity,
    FirstFailureIsForEver,
    FailedWorkKeepsTheLead,
    FirstTryAfterAnInterval,
    DeadlineFromTheAnswer,
    StandbyRunsTheWorkAtShutdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Standby,
    Leading,
}

/// What its user wants of it.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    shutdown: bool,
    resigned: u32,
    hold_off: Duration,
}

#[derive(Debug)]
pub(crate) struct Plain(pub(crate) Flaw);

#[derive(Debug)]
struct Candidate {
    phase: watch::Receiver<Phase>,
    orders: watch::Sender<Orders>,
    task: JoinHandle<()>,
}

impl Runner for Plain {
    fn start(&self, seat: Seat) -> Answer<Box<dyn Running>> {
        let (told, phase) = watch::channel(Phase::Idle);
        let (orders, given) = watch::channel(Orders::default());
        let looping = Loop {
            flaw: self.0,
            seat,
            phase: told,
            orders: given,
        };
        let task = tokio::spawn(looping.run());
        Ok(Box::new(Candidate {
            phase,
            orders,
            task,
        }))
    }
}

#[async_trait]
impl Running for Candidate {
    async fn leads(&self) {
        let mut phase = self.phase.clone();
        drop(phase.wait_for(|p| *p == Phase::Leading).await);
    }
    async fn stands_by(&self) {
        let mut phase = self.phase.clone();
        drop(phase.wait_for(|p| *p == Phase::Standby).await);
    }
    fn resign(&self, hold_off: Duration) {
        self.orders.send_modify(|orders| {
            orders.resigned += 1;
            orders.hold_off = hold_off;
        });
    }
    async fn stop(self: Box<Self>) -> Answer<()> {
        self.orders.send_modify(|orders| orders.shutdown = true);
        self.task.await.map_err(Stop::failed)
    }
}

/// One term as its work sees it.
#[derive(Debug)]
struct Lead {
    token: Token,
    began: Instant,
    deadline: Mutex<Instant>,
    /// Whether the deadline decides; a flaw trusts its own renewer instead.
    by_deadline: bool,
    over: AtomicBool,
    stop: watch::Sender<bool>,
    lost: watch::Sender<bool>,
}

async fn until_true(of: &watch::Sender<bool>) {
    let mut seen = of.subscribe();
    drop(seen.wait_for(|yes| *yes).await);
}

#[async_trait]
impl Term for Lead {
    fn token(&self) -> Token {
        self.token
    }
    fn check(&self) -> bool {
        let in_time = Instant::now() < *self.deadline.lock().unwrap();
        !self.over.load(Ordering::SeqCst) && (in_time || !self.by_deadline)
    }
    fn deadline(&self) -> Moment {
        let since = self.deadline.lock().unwrap().duration_since(self.began);
        Moment::START.after(since)
    }
    fn remaining(&self) -> Duration {
        let deadline = *self.deadline.lock().unwrap();
        deadline.saturating_duration_since(Instant::now())
    }
    async fn stopping(&self) {
        until_true(&self.stop).await;
    }
    async fn lost(&self) {
        until_true(&self.lost).await;
    }
}

struct Loop {
    flaw: Flaw,
    seat: Seat,
    phase: watch::Sender<Phase>,
    orders: watch::Receiver<Orders>,
}

impl Loop {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn shut_down(&self) -> bool {
        self.orders.borrow().shutdown
    }

    async fn run(mut self) {
        let times = self.seat.timing;
        if self.is(Flaw::FirstTryAfterAnInterval) {
            sleep(times.renew_every()).await;
        }
        while !self.shut_down() {
            let nonce = if self.is(Flaw::SharedIdentity) {
                Nonce::from_u128(1)
            } else {
                Nonce::random()
            };
            let (name, owner) = (self.seat.name.clone(), self.seat.owner.clone());
            let claim = Claim::new(name, owner, nonce, times.ttl());
            let sent = Instant::now();
            let store = Arc::clone(&self.seat.store);
            match timeout(times.request_timeout(), store.try_acquire(&claim)).await {
                Ok(Ok(Attempt::Granted(lease))) => {
                    let counted = if self.is(Flaw::DeadlineFromTheAnswer) {
                        Instant::now()
                    } else {
                        sent
                    };
                    self.lead(lease, counted).await;
                }
                Ok(Ok(Attempt::Held(holder))) => {
                    self.phase.send_replace(Phase::Standby);
                    let limit = holder.remaining.min(times.poll_every());
                    tokio::select! {
                        _ = self.orders.changed() => {}
                        _ = timeout(limit, store.wait(&claim, &holder)) => {}
                    }
                    if self.shut_down() && self.is(Flaw::StandbyRunsTheWorkAtShutdown) {
                        self.lead_without_the_store(&claim).await;
                    }
                }
                Ok(Err(_)) | Err(_) if self.is(Flaw::NoStoreRunsWithoutElection) => {
                    self.lead_without_the_store(&claim).await;
                }
                Ok(Err(_)) | Err(_) if self.is(Flaw::FirstFailureIsForEver) => {
                    let _told = self.orders.wait_for(|orders| orders.shutdown).await;
                }
                Ok(Err(_)) | Err(_) => {
                    let _answer = timeout(times.request_timeout(), store.withdraw(&claim)).await;
                    sleep(times.first_backoff()).await;
                }
            }
        }
    }

    async fn lead_without_the_store(&mut self, claim: &Claim) {
        let token = Token::new(Token::MAX.get() - 1).unwrap();
        let lease = Lease::new(claim, token, claim.ttl, Handle::none());
        self.lead(lease, Instant::now()).await;
    }

    /// One term, from the grant to the release.
    async fn lead(&mut self, lease: Lease, sent: Instant) {
        let times = self.seat.timing;
        let store = Arc::clone(&self.seat.store);
        let whole = times.deadline(Moment::START, times.ttl());
        let from = |sent: Instant| sent + whole.since(Moment::START);
        let trusts_itself = matches!(
            self.flaw,
            Flaw::RenewalHangsWithTheTimer | Flaw::RenewerDies | Flaw::LossNeedsAnAnswer
        );
        let term = Arc::new(Lead {
            token: lease.token(),
            began: sent,
            deadline: Mutex::new(from(sent)),
            by_deadline: !trusts_itself,
            over: AtomicBool::new(false),
            stop: watch::Sender::new(false),
            lost: watch::Sender::new(false),
        });
        let resigned = self.orders.borrow().resigned;
        self.phase.send_replace(Phase::Leading);
        let mut work = tokio::spawn((self.seat.work)(Arc::clone(&term) as _));
        let (mut ended, mut gone, mut dead, mut failed) = (false, false, false, false);
        let mut renew_at = sent + times.renew_every();
        while !(ended || gone || failed || self.shut_down())
            && self.orders.borrow().resigned == resigned
        {
            let deadline = *term.deadline.lock().unwrap();
            let stop_at = deadline - times.drain();
            if !trusts_itself && Instant::now() >= stop_at {
                break;
            }
            tokio::select! {
                end = &mut work, if !dead => {
                    let well = matches!(end, Ok(Ok(())));
                    dead = true;
                    ended = well || !self.is(Flaw::FailedWorkKeepsTheLead);
                }
                _ = self.orders.changed() => {}
                () = sleep_until(stop_at), if !trusts_itself => {}
                () = sleep_until(renew_at) => {
                    let sent = Instant::now();
                    let renewal = store.renew(std::slice::from_ref(&lease));
                    let answer = if self.is(Flaw::RenewalHangsWithTheTimer) {
                        // No limit, in the task that also looks at the time.
                        tokio::select! {
                            mut answers = renewal => answers.pop(),
                            _ = self.orders.wait_for(|orders| orders.shutdown) => None,
                        }
                    } else {
                        let limit = sent + times.request_timeout();
                        let limit = if trusts_itself { limit } else { limit.min(stop_at) };
                        timeout_at(limit, renewal).await.ok().and_then(|mut a| a.pop())
                    };
                    renew_at = Instant::now() + times.first_backoff();
                    match answer {
                        Some(Ok(Renewal::Renewed { .. })) => {
                            let answered = self.is(Flaw::DeadlineFromTheAnswer);
                            let counted = if answered { Instant::now() } else { sent };
                            *term.deadline.lock().unwrap() = from(counted);
                            renew_at = sent + times.renew_every();
                        }
                        Some(Ok(Renewal::Gone)) => gone = true,
                        _ if self.is(Flaw::OneFailureDropsTheLease) => failed = true,
                        _ if self.is(Flaw::RenewerDies) => renew_at += Duration::from_secs(3600),
                        _ => {}
                    }
                }
            }
        }
        if gone {
            term.over.store(true, Ordering::SeqCst);
            term.lost.send_replace(true);
        }
        self.phase.send_replace(Phase::Idle);
        if self.is(Flaw::ReleasedBeforeTheWorkStops) {
            let _answer = timeout(times.request_timeout(), store.release(&lease)).await;
            sleep(Duration::from_millis(300)).await;
        }
        if self.is(Flaw::WorkGoesOnAfterTheTerm) {
            // Nobody joins it: it runs on by itself.
            dead = true;
        } else {
            term.stop.send_replace(true);
        }
        let deadline = *term.deadline.lock().unwrap();
        if !dead && timeout_at(deadline, &mut work).await.is_err() {
            work.abort();
            let _joined = work.await;
        }
        if Instant::now() >= deadline {
            term.lost.send_replace(true);
        }
        term.over.store(true, Ordering::SeqCst);
        if !(self.shut_down() && self.is(Flaw::NoReleaseAtShutdown)) {
            let _answer = timeout(times.request_timeout(), store.release(&lease)).await;
        }
        let orders = *self.orders.borrow();
        let pause = if orders.resigned == resigned {
            times.first_backoff()
        } else {
            orders.hold_off
        };
        let _told = timeout(pause, self.orders.wait_for(|orders| orders.shutdown)).await;
    }
}
