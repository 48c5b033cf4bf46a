//! One bid: what stands in the nodes for one claim, and how it comes there and goes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::term::{Id, unwrap, wrap};
use super::{Bids, Node, Quorum, Vouch, merge, too_few, within};
use crate::claim::{Attempt, Claim, Handle, Holder, Lease, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, Nonce};
use crate::token::Token;

/// How long a split vote keeps a candidate from the next try, at least and at most: spread, so that they do not
/// split again.
const SPLIT: (u64, u64) = (5, 40);

/// How many claims are remembered, beside those that may have left something in the nodes.
const MOST: usize = 4096;

/// For how long at least the answers of all nodes are awaited when a majority has granted, so that the entries of a
/// term mostly have one token.
const GRACE: Duration = Duration::from_millis(2);

/// How often a try is repeated in one call after a split vote.
const REPEATS: u32 = 3;

/// Marks what the loser of a split vote has seen.
struct Split;

/// The pause before a node that did not answer is told again to forget a bid.
const AGAIN: Duration = Duration::from_millis(200);

/// What stands in the nodes for one claim. The first bid of a claim has its nonce; that of a bid which had to be taken
/// back is dead, so a claim that stands in line goes on with another.
#[derive(Debug)]
pub(super) struct Bid {
    key: (LockName, Nonce),
    id: Id,
    /// What the nodes are asked.
    claim: Claim,
    /// The lease in each node, as far as it is known.
    slots: Vec<Mutex<Option<Lease>>>,
    /// That of the term, once it is granted; 0 before.
    token: AtomicU64,
    /// Nothing may stay of it.
    over: AtomicBool,
    /// How many tasks may still leave something in a node, or take it away.
    ballots: AtomicUsize,
}

impl Bid {
    pub(super) fn key(&self) -> &(LockName, Nonce) {
        &self.key
    }

    pub(super) const fn claim(&self) -> &Claim {
        &self.claim
    }

    pub(super) fn slot(&self, node: usize) -> MutexGuard<'_, Option<Lease>> {
        // A slot is set as a whole.
        self.slots[node]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the term of this token is that of this bid.
    pub(super) fn is_term(&self, token: Token) -> bool {
        self.token.load(Ordering::SeqCst) == token.get() && !self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// What a node is asked once the token is known: it is written with the nonce of the bid, and for onlookers.
    pub(super) fn with_token(&self, outer: &Claim, token: Token) -> Result<Claim> {
        let metadata = wrap(self.id, token.get(), &outer.metadata)?;
        Ok(self
            .claim
            .clone()
            .with_metadata(metadata)
            .with_min_token(Some(token)))
    }

    /// Tells one node to forget this bid, again while it does not answer, until its entry has expired anyway.
    pub(super) async fn forget(&self, node: &Node, limit: Duration) {
        let told = async {
            while within(limit, node.store.withdraw(&self.claim))
                .await
                .is_err()
            {
                tokio::time::sleep(AGAIN).await;
            }
        };
        if tokio::time::timeout(self.claim.ttl, told).await.is_err() {
            tracing::debug!(node = %node.name, name = %self.key.0, "the entry of a bid is left to expire");
        }
    }
}

/// What the tasks of an attempt are told.
#[derive(Clone, Debug)]
enum Order {
    /// Try, and say what came of it.
    Try,
    /// A majority has granted: make this the token, and say whether the node can vouch for itself.
    Raise(Token),
    /// It is won, with this token, by the votes of these nodes.
    Keep(Token, Vec<usize>),
}

/// What the tasks of an attempt say.
#[derive(Debug)]
enum Said {
    Tried(Result<Attempt>),
    Raised(Result<(Lease, Vouch)>),
}

/// One node in one attempt.
struct Ballot {
    bid: Arc<Bid>,
    bids: Arc<Bids>,
    place: usize,
    node: Node,
    outer: Claim,
    limit: Duration,
    orders: watch::Receiver<Order>,
    said: mpsc::UnboundedSender<(usize, Said)>,
}

impl Ballot {
    async fn cast(mut self) {
        let answer = within(self.limit, self.node.store.try_acquire(&self.bid.claim)).await;
        let mut lease = match &answer {
            Ok(Attempt::Granted(lease)) => Some(lease.clone()),
            Ok(Attempt::Held(_)) | Err(_) => None,
        };
        let denied = matches!(answer, Ok(Attempt::Held(_)));
        // Who has heard enough does not listen any more.
        self.said.send((self.place, Said::Tried(answer))).ok();
        let mut voted = false;
        loop {
            let order = self.orders.borrow_and_update().clone();
            match (order, &mut lease) {
                // The term has this one already, and whoever ends it takes it back.
                (Order::Keep(_, votes), _) if votes.contains(&self.place) => return self.close(),
                (Order::Raise(token), Some(lease)) if !voted => {
                    voted = true;
                    let (raised, vouch) = tokio::join!(
                        self.raise(lease, token),
                        within(self.limit, self.node.witness.vouch())
                    );
                    if let Ok(raised) = &raised {
                        *lease = raised.clone();
                    }
                    let vote = raised.and_then(|lease| Ok((lease, vouch?)));
                    self.said.send((self.place, Said::Raised(vote))).ok();
                }
                (Order::Keep(token, _), Some(lease)) => {
                    match self.raise(lease, token).await {
                        Ok(raised) => *self.bid.slot(self.place) = Some(raised),
                        // The next renewal finds out what stands there.
                        Err(error) => {
                            tracing::debug!(node = %self.node.name, %error, "a late vote")
                        }
                    }
                    break;
                }
                (Order::Keep(..), None) => break,
                _ => {}
            }
            if self.orders.changed().await.is_err() {
                break;
            }
        }
        // A bid that is over may have left an entry here, or a place in line.
        let clean = denied && self.bid.claim.mode == Mode::Once;
        if self.bid.is_over() && !clean {
            self.bid.forget(&self.node, self.limit).await;
        }
        self.close();
    }

    /// The last one closes the books.
    fn close(&self) {
        if self.bid.ballots.fetch_sub(1, Ordering::SeqCst) == 1 && self.bid.is_over() {
            self.bids.remove(&self.bid);
        }
    }

    async fn raise(&self, lease: &Lease, token: Token) -> Result<Lease> {
        // An entry shows the token of the term, also where its own is larger.
        let written =
            unwrap(&lease.claim().metadata).is_some_and(|(_, written, _)| written == token.get());
        if written {
            return Ok(lease.clone());
        }
        let claim = self.bid.with_token(&self.outer, token)?;
        match within(self.limit, self.node.store.try_acquire(&claim)).await? {
            Attempt::Granted(raised) => Ok(raised),
            Attempt::Held(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "the entry was lost before its token was written",
            )),
        }
    }
}

impl Quorum {
    /// The bid that stands for this claim, or a new one.
    fn bid(&self, claim: &Claim) -> Result<Arc<Bid>> {
        let key = (claim.name.clone(), claim.nonce);
        if let Some(bid) = self.bids.current(&key) {
            return Ok(bid);
        }
        let mut bids = self.bids.map();
        if bids.len() >= MOST {
            // Claims that were given up without a word.
            bids.retain(|_, of_claim| !of_claim.bids.is_empty());
        }
        let known = bids.entry(key.clone()).or_default();
        let mut inner = claim.clone();
        inner.if_unchanged = None;
        if !self.capabilities.queueing {
            inner.mode = Mode::Once;
        }
        if known.burnt {
            inner.nonce = Nonce::random();
        }
        let id = Id::of(inner.nonce);
        inner.metadata = wrap(id, 0, &claim.metadata)?;
        let bid = Arc::new(Bid {
            key,
            id,
            claim: inner,
            slots: self.nodes.iter().map(|_| Mutex::default()).collect(),
            token: AtomicU64::new(0),
            over: AtomicBool::new(false),
            ballots: AtomicUsize::new(0),
        });
        known.bids.push(Arc::clone(&bid));
        Ok(bid)
    }

    /// Votes until somebody has won, a few times at most.
    pub(super) async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        for _ in 0..REPEATS {
            match self.vote(claim).await? {
                Attempt::Held(holder) if holder.handle.get::<Split>().is_some() => {
                    tokio::time::sleep(holder.remaining).await;
                }
                decided => return Ok(decided),
            }
        }
        self.vote(claim).await
    }

    async fn vote(&self, claim: &Claim) -> Result<Attempt> {
        self.open()?;
        let range = self.capabilities.ttl;
        if !(range.min..=range.max).contains(&claim.ttl) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a ttl of {:?} cannot be kept; this quorum takes {:?} to {:?}, its longest ttl",
                    claim.ttl, range.min, range.max
                ),
            ));
        }
        let bid = self.bid(claim)?;
        let (sender, mut said) = mpsc::unbounded_channel();
        // When this call is dropped or fails, the orders end and nothing is taken back: the caller asks again, or
        // withdraws.
        let orders = watch::Sender::new(Order::Try);
        for (place, node) in self.nodes.iter().enumerate() {
            let ballot = Ballot {
                bid: Arc::clone(&bid),
                bids: Arc::clone(&self.bids),
                place,
                node: node.clone(),
                outer: claim.clone(),
                limit: self.node_timeout,
                orders: orders.subscribe(),
                said: sender.clone(),
            };
            bid.ballots.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(ballot.cast());
        }
        drop(sender);
        let mut count = Count::new(self);
        let began = Instant::now();
        let mut grace = None;
        loop {
            let heard = match grace {
                Some(until) => tokio::time::timeout_at(until, said.recv()).await.ok(),
                None => Some(said.recv().await),
            };
            match heard {
                Some(Some((place, Said::Tried(answer)))) => count.tried(place, answer),
                Some(Some((place, Said::Raised(vote)))) => count.voted(place, vote),
                Some(None) => break,
                None => {}
            }
            if count.token.is_none() && count.granted.len() >= self.majority() {
                let until = *grace.get_or_insert_with(|| {
                    let now = Instant::now();
                    now + ((now - began) / 2).max(GRACE)
                });
                if count.is_complete() || Instant::now() >= until {
                    grace = None;
                    if let Some(token) = count.raise_to(claim, &bid) {
                        orders.send_replace(Order::Raise(token));
                    }
                }
            }
            if let Some((token, ttl)) = count.won() {
                bid.token.store(token.get(), Ordering::SeqCst);
                let votes = count.votes.iter().map(|(place, _)| *place).collect();
                for (place, lease) in count.votes {
                    *bid.slot(place) = Some(lease);
                }
                orders.send_replace(Order::Keep(token, votes));
                return Ok(Attempt::Granted(Lease::new(
                    claim,
                    token,
                    ttl,
                    Handle::none(),
                )));
            }
            if count.is_lost() {
                break;
            }
        }
        let answer = count.loser(&bid);
        let all_denied = count.denied.len() == self.nodes.len();
        if answer.is_ok() && !(all_denied && bid.claim.mode == Mode::Queue) {
            // It is denied, and nothing of it may stay: the tasks see that their orders end. Who was denied
            // everywhere keeps its place in line instead.
            bid.end();
            if let Some(of_claim) = self.bids.map().get_mut(bid.key()) {
                of_claim.burnt = true;
            }
            if bid.ballots.load(Ordering::SeqCst) == 0 {
                self.bids.remove(&bid);
            }
        }
        answer
    }
}

/// The count of one attempt.
struct Count<'a> {
    quorum: &'a Quorum,
    granted: Vec<(usize, Token)>,
    denied: Vec<(usize, Holder)>,
    failures: Vec<(usize, Error)>,
    /// The token that a majority is to have.
    token: Option<Token>,
    votes: Vec<(usize, Lease)>,
    servers: BTreeSet<String>,
    void: Vec<(usize, Error)>,
}

impl<'a> Count<'a> {
    const fn new(quorum: &'a Quorum) -> Self {
        Self {
            quorum,
            granted: Vec::new(),
            denied: Vec::new(),
            failures: Vec::new(),
            token: None,
            votes: Vec::new(),
            servers: BTreeSet::new(),
            void: Vec::new(),
        }
    }

    fn tried(&mut self, place: usize, answer: Result<Attempt>) {
        match answer {
            Ok(Attempt::Granted(lease)) => self.granted.push((place, lease.token())),
            Ok(Attempt::Held(holder)) => self.denied.push((place, holder)),
            Err(error) => self.failures.push((place, error)),
        }
    }

    fn voted(&mut self, place: usize, vote: Result<(Lease, Vouch)>) {
        let longest = self.quorum.longest_ttl;
        let vote = vote.and_then(|(lease, vouch)| {
            let void = |text: String| {
                Error::new(ErrorKind::Unavailable, text).with_indeterminate(false)
            };
            if vouch.remembers < longest {
                let wait = longest - vouch.remembers;
                return Err(void(format!(
                    "it started or was emptied {:?} ago and may have forgotten a lease; it votes in {wait:?}",
                    vouch.remembers
                )));
            }
            if !self.servers.insert(vouch.server) {
                return Err(void("it is the same server as another node".to_owned()));
            }
            Ok(lease)
        });
        match vote {
            Ok(lease) => self.votes.push((place, lease)),
            Err(error) => self.void.push((place, error)),
        }
    }

    fn is_complete(&self) -> bool {
        self.granted.len() + self.denied.len() + self.failures.len() == self.quorum.nodes.len()
    }

    /// The token to write to a majority that has granted: none that was seen is larger.
    fn raise_to(&mut self, claim: &Claim, bid: &Bid) -> Option<Token> {
        let majority = self.quorum.majority();
        // A repeated try: where a majority still has the term, its token stays.
        let stays = self.granted.iter().filter(|(place, token)| {
            bid.slot(*place)
                .as_ref()
                .is_some_and(|lease| lease.token() == *token)
        });
        let term = Token::new(bid.token.load(Ordering::SeqCst)).ok();
        let token = if stays.count() >= majority {
            term.into_iter().chain(claim.min_token).max()
        } else {
            let granted = self.granted.iter().map(|(_, token)| *token);
            let denied = self.denied.iter().map(|(_, holder)| holder.token);
            granted.chain(denied).chain(claim.min_token).max()
        };
        self.token = token;
        token
    }

    /// Token and ttl, when a majority has the token.
    fn won(&self) -> Option<(Token, Duration)> {
        if self.votes.len() < self.quorum.majority() {
            return None;
        }
        // Each node counts from its own call, which began after this one.
        let ttl = self.votes.iter().map(|(_, lease)| lease.ttl()).min()?;
        Some((self.token?, ttl))
    }

    /// Whether no majority can come about any more.
    fn is_lost(&self) -> bool {
        let lost = self.denied.len() + self.failures.len() + self.void.len();
        self.quorum.nodes.len() - lost < self.quorum.majority()
    }

    /// What the loser is told.
    fn loser(&self, bid: &Bid) -> Result<Attempt> {
        let answers = self.denied.len() + self.granted.len();
        if self.denied.is_empty() || !self.void.is_empty() || answers < self.quorum.majority() {
            let failures: Vec<_> = self.failures.iter().chain(&self.void).cloned().collect();
            return Err(too_few(
                &self.quorum.nodes,
                answers - self.void.len(),
                &failures,
            ));
        }
        let holders: Vec<&Holder> = self.denied.iter().map(|(_, holder)| holder).collect();
        if let Some(holder) = merge::holder(&holders, self.quorum.majority()) {
            return Ok(Attempt::Held(holder));
        }
        // Nobody has a majority, as far as was heard; perhaps nobody at all.
        let mut holder = merge::combine(&holders[..1], 1).with_handle(Handle::new(Split));
        let (least, most) = SPLIT;
        holder.remaining = Duration::from_millis(least + bid.id.spread(most - least));
        Ok(Attempt::Held(holder))
    }
}
