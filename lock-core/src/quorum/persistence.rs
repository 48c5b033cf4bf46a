//! The store that a quorum is.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::{join_all, select_all};

use super::bid::Bid;
use super::merge::{alike, merge};
use super::{Quorum, too_few, within};
use crate::capabilities::Capabilities;
use crate::claim::{
    Attempt, Claim, Holder, Lease, LeaseState, Mode, Observation, Release, Renewal, Request,
};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::{LockName, Nonce, Owner};
use crate::persistence::LockPersistence;
use crate::token::Token;

/// A node has this many calls' time to make what it needs.
const PREPARATION: u32 = 5;

impl Quorum {
    /// The bid behind a lease, while its term goes on.
    fn bid_of(&self, lease: &Lease) -> Option<Arc<Bid>> {
        let bid = self.bids.current(&(lease.name().clone(), lease.nonce()))?;
        bid.is_term(lease.token()).then_some(bid)
    }

    async fn check_nodes(&self) -> Result<()> {
        let n = self.nodes.len();
        if n.is_multiple_of(2) {
            tracing::warn!(
                "a quorum of {n} nodes tolerates no more failures than one of {}",
                n - 1
            );
        }
        let limit = self.node_timeout * PREPARATION;
        let each = self.nodes.iter().map(|node| async move {
            within(limit, node.store.prepare()).await?;
            within(limit, node.witness.vouch()).await
        });
        let mut servers: Vec<(String, &str)> = Vec::new();
        let mut failures = Vec::new();
        for (i, vouch) in join_all(each).await.into_iter().enumerate() {
            let node = self.nodes[i].name.as_str();
            match vouch {
                Ok(vouch) => {
                    if let Some((_, other)) =
                        servers.iter().find(|(server, _)| *server == vouch.server)
                    {
                        return Err(Error::new(
                            ErrorKind::InvalidConfig,
                            format!(
                                "{other} and {node} are the same server; a quorum needs independent ones"
                            ),
                        ));
                    }
                    if let Some(wait) = self.longest_ttl.checked_sub(vouch.remembers)
                        && !wait.is_zero()
                    {
                        tracing::info!(node, "it may have forgotten leases, and votes in {wait:?}");
                    }
                    servers.push((vouch.server, node));
                }
                Err(error) => {
                    tracing::warn!(node, %error, "this node of the quorum cannot serve");
                    failures.push((i, error));
                }
            }
        }
        if servers.len() < self.majority() {
            return Err(too_few(&self.nodes, servers.len(), &failures));
        }
        Ok(())
    }

    async fn release_everywhere(&self, lease: &Lease) -> Result<Release> {
        let Some(bid) = self.bid_of(lease) else {
            return Ok(Release::NotHeld);
        };
        bid.end();
        self.bids.remove(&bid);
        let majority = self.majority();
        let mut answers = self.ask(|place, store| {
            let (bid, node, limit) = (
                Arc::clone(&bid),
                self.nodes[place].clone(),
                self.node_timeout,
            );
            async move {
                let slot = bid.slot(place).take();
                let answer = match slot {
                    Some(inner) => store.release(&inner).await.map(Some),
                    None => store.withdraw(bid.claim()).await.map(|()| None),
                };
                if answer.is_err() {
                    // What the caller is told does not wait for it.
                    tokio::spawn(async move { bid.forget(&node, limit).await });
                }
                answer
            }
        });
        let count = |good: &[(usize, Option<Release>)], what| {
            good.iter().filter(|(_, r)| *r == Some(what)).count()
        };
        answers
            .until(|good| count(good, Release::Released) >= majority)
            .await;
        let released = count(&answers.good, Release::Released);
        if released >= majority || answers.good.len() >= majority && released > 0 {
            Ok(Release::Released)
        } else if answers.good.len() >= majority {
            Ok(Release::NotHeld)
        } else {
            Err(answers.too_few())
        }
    }

    async fn withdraw_everywhere(&self, claim: &Claim) -> Result<()> {
        let key = (claim.name.clone(), claim.nonce);
        let known: Vec<Arc<Bid>> = match self.bids.map().get(&key) {
            Some(of_claim) => of_claim.bids.clone(),
            None => Vec::new(),
        };
        let mut inner: Vec<Claim> = Vec::new();
        for bid in known {
            bid.end();
            inner.push(bid.claim().clone());
        }
        if inner.is_empty() {
            // It may be known to another client of the nodes only.
            inner.push(claim.clone());
        }
        let told = self.ask(|_, store| {
            let inner = inner.clone();
            async move {
                for claim in &inner {
                    store.withdraw(claim).await?;
                }
                Ok(())
            }
        });
        told.all().await?;
        self.bids.forget(&key);
        Ok(())
    }

    /// What each node that answers shows of a name.
    async fn states(&self, name: &LockName) -> Result<Vec<(usize, LeaseState)>> {
        self.open()?;
        let mut answers = self.ask(|_, store| {
            let name = name.clone();
            async move { Ok(store.observe(&name).await?.state) }
        });
        // The others are given up once a majority shows one term; where it shows none, all are heard.
        let majority = self.majority();
        answers
            .until(|good| {
                let states: Vec<&LeaseState> = good.iter().map(|(_, state)| state).collect();
                matches!(merge(&states, majority), LeaseState::Held(_))
            })
            .await;
        if answers.good.len() < majority {
            return Err(answers.too_few());
        }
        Ok(answers.good)
    }

    fn merged(&self, states: &[(usize, LeaseState)]) -> LeaseState {
        let states: Vec<&LeaseState> = states.iter().map(|(_, state)| state).collect();
        merge(&states, self.majority())
    }

    async fn wait_for(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let states = self.states(&claim.name).await?;
        let LeaseState::Held(now) = self.merged(&states) else {
            // Nobody has a majority: after a split vote it is worth a try when the others have taken back theirs.
            tokio::time::sleep(seen.remaining.min(Duration::from_millis(50))).await;
            return Ok(());
        };
        if now.token != seen.token {
            return Ok(());
        }
        let key = (claim.name.clone(), claim.nonce);
        let inner = match self.bids.current(&key) {
            Some(bid) => bid.claim().clone(),
            None => {
                let mut inner = claim.clone().with_mode(Mode::Once);
                inner.nonce = Nonce::random();
                inner
            }
        };
        let held: Vec<(usize, &Holder)> = states
            .iter()
            .filter_map(|(place, state)| match state {
                LeaseState::Held(holder) => Some((*place, holder)),
                _ => None,
            })
            .collect();
        // So many of them must let go that the free ones are a majority.
        let free = states.len() - held.len();
        let needed = self
            .majority()
            .saturating_sub(free)
            .clamp(1, held.len().max(1));
        let waits = held.into_iter().map(|(place, holder)| {
            let store = Arc::clone(&self.nodes[place].store);
            let inner = &inner;
            Box::pin(async move { store.wait(inner, holder).await })
        });
        first(waits.collect(), needed).await
    }

    async fn changed(&self, seen: &Observation) -> Result<()> {
        loop {
            let states = self.states(&seen.name).await?;
            if !alike(&self.merged(&states), &seen.state) {
                return Ok(());
            }
            let watches = states.into_iter().map(|(place, state)| {
                let store = Arc::clone(&self.nodes[place].store);
                let of_node = Observation::new(seen.name.clone(), state);
                Box::pin(async move { store.watch(&of_node).await })
            });
            first(watches.collect(), 1).await?;
        }
    }

    async fn unless_closed(&self, look: impl Future<Output = Result<()>> + Send) -> Result<()> {
        self.open()?;
        let mut closed = self.closed.subscribe();
        let look = pin!(look);
        tokio::select! {
            biased;
            // The sender lives as long as `self`.
            _ = closed.wait_for(|closed| *closed) => self.open(),
            seen = look => seen,
        }
    }

    async fn revoke_everywhere(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        self.open()?;
        let asked = self.ask(|_, store| {
            let (name, reason) = (name.clone(), reason.to_owned());
            async move { store.revoke(&name, &reason).await }
        });
        let burnt = asked.all().await?;
        let Some(largest) = burnt.iter().filter_map(|(_, token)| *token).max() else {
            return Ok(None);
        };
        // With the nodes that are silent it may have been a majority; else it was nobody's, and is gone.
        let ended = burnt.iter().filter(|(_, token)| token.is_some()).count();
        let silent = self.nodes.len() - burnt.len();
        if ended + silent < self.majority() {
            return Ok(None);
        }
        // No later grant of a majority may be below it, so a majority must know it.
        let claim = Claim::new(
            name.clone(),
            Owner::new("revoked")?,
            Nonce::random(),
            self.capabilities.ttl.min,
        )
        .with_min_token(Some(largest));
        let told = self.ask(|place, store| {
            let burnt = burnt
                .iter()
                .find(|(of, _)| *of == place)
                .and_then(|(_, token)| *token);
            let (claim, reason) = (claim.clone(), reason.to_owned());
            async move {
                if burnt >= Some(largest) {
                    return Ok(());
                }
                match store.try_acquire(&claim).await? {
                    Attempt::Granted(_) => store.revoke(&claim.name, &reason).await.map(drop),
                    Attempt::Held(holder) if holder.token >= largest => Ok(()),
                    Attempt::Held(_) => Err(Error::new(
                        ErrorKind::Unavailable,
                        "somebody took the name while it was revoked",
                    )),
                }
            }
        });
        told.all().await?;
        Ok(Some(largest))
    }

    async fn list_all(&self, prefix: &str) -> Result<Vec<Observation>> {
        self.open()?;
        let asked = self.ask(|_, store| {
            let prefix = prefix.to_owned();
            async move { store.list(&prefix).await }
        });
        let lists = asked.all().await?;
        let names: BTreeSet<&LockName> = lists
            .iter()
            .flat_map(|(_, list)| list)
            .map(|seen| &seen.name)
            .collect();
        let state = |name: &LockName| {
            let of_node = |list: &Vec<Observation>| {
                let seen = list.iter().find(|seen| seen.name == *name);
                seen.map_or(LeaseState::Absent, |seen| seen.state.clone())
            };
            let states: Vec<_> = lists
                .iter()
                .map(|(place, list)| (*place, of_node(list)))
                .collect();
            self.merged(&states)
        };
        Ok(names
            .into_iter()
            .map(|name| Observation::new(name.clone(), state(name)))
            .filter(|seen| seen.state != LeaseState::Absent)
            .collect())
    }
}

/// Ends when `needed` of them have; with an error when so many have failed that they cannot.
async fn first<F: Future<Output = Result<()>> + Unpin + Send>(
    mut of: Vec<F>,
    mut needed: usize,
) -> Result<()> {
    loop {
        if of.is_empty() {
            return std::future::pending().await;
        }
        let (ended, _, rest) = select_all(of).await;
        of = rest;
        match ended {
            Ok(()) => needed -= 1,
            Err(error) if of.len() < needed => return Err(error),
            Err(_) => {}
        }
        if needed == 0 {
            return Ok(());
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LockPersistence for Quorum {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        let result = match self.open() {
            Ok(()) => self.check_nodes().await,
            Err(error) => Err(error),
        };
        self.at(Operation::Prepare, None, result)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let result = self.attempt(claim).await;
        self.at(Operation::TryAcquire, Some(&claim.name), result)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        if let Err(closed) = self.open() {
            return leases
                .iter()
                .map(|lease| self.at(Operation::Renew, Some(lease.name()), Err(closed.clone())))
                .collect();
        }
        let bids: Vec<Option<Arc<Bid>>> = leases.iter().map(|lease| self.bid_of(lease)).collect();
        let renewals = self.renew_all(leases, &bids).await;
        renewals
            .into_iter()
            .zip(leases)
            .map(|(renewal, lease)| self.at(Operation::Renew, Some(lease.name()), renewal))
            .collect()
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let result = match self.open() {
            Ok(()) => self.release_everywhere(lease).await,
            Err(error) => Err(error),
        };
        self.at(Operation::Release, Some(lease.name()), result)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let result = match self.open() {
            Ok(()) => self.withdraw_everywhere(claim).await,
            Err(error) => Err(error),
        };
        self.at(Operation::Withdraw, Some(&claim.name), result)
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let result = self.unless_closed(self.wait_for(claim, seen)).await;
        self.at(Operation::Wait, Some(&claim.name), result)
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let states = self.states(name).await;
        let result = states.map(|states| Observation::new(name.clone(), self.merged(&states)));
        self.at(Operation::Observe, Some(name), result)
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        let result = self.unless_closed(self.changed(seen)).await;
        self.at(Operation::Watch, Some(&seen.name), result)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let result = self.list_all(prefix).await;
        self.at(Operation::List, None, result)
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let result = self.revoke_everywhere(name, reason).await;
        self.at(Operation::Revoke, Some(name), result)
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let result = async {
            self.open()?;
            let asked = self.ask(|_, store| {
                let (name, request) = (name.clone(), request.clone());
                async move { store.request(&name, &request).await }
            });
            let left = asked.all().await?;
            // Each renewal of the holder hears a majority, and so one of these.
            Ok(left.iter().filter(|(_, left)| *left).count() >= self.majority())
        };
        self.at(Operation::Request, Some(name), result.await)
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let error = Error::new(
            ErrorKind::Unsupported,
            "the nodes of a quorum have a clock each",
        );
        self.at(Operation::ServerTime, None, Err(error))
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let result = async {
            self.open()?;
            let swept = self.ask(|_, store| async move { store.sweep(unused_for).await });
            let swept = swept.all().await?;
            Ok(swept.into_iter().map(|(_, n)| n).max().unwrap_or(0))
        };
        self.at(Operation::Sweep, None, result.await)
    }

    async fn close(&self) -> Result<()> {
        self.closed.send_replace(true);
        let all = join_all(self.nodes.iter().map(|node| node.store.close())).await;
        let result = all.into_iter().collect();
        self.at(Operation::Close, None, result)
    }
}
