//! Renewals, and what they repair.

use std::sync::Arc;
use std::time::Duration;

use super::bid::Bid;
use super::{Answers, Quorum, too_few, within};
use crate::claim::{Attempt, Lease, Renewal, Request};
use crate::error::{Error, ErrorKind, Result};

impl Quorum {
    /// Each lease is renewed in its nodes, with one call to each of them.
    pub(super) async fn renew_all(
        &self,
        leases: &[Lease],
        bids: &[Option<Arc<Bid>>],
    ) -> Vec<Result<Renewal>> {
        let (n, majority) = (self.nodes.len(), self.majority());
        // The lease of each node, in the order of `leases`.
        let inner: Vec<Vec<Option<Lease>>> = (0..n)
            .map(|place| {
                let slot = |bid: &Option<Arc<Bid>>| bid.as_ref()?.slot(place).clone();
                bids.iter().map(slot).collect()
            })
            .collect();
        let mut tallies: Vec<Tally> = leases.iter().map(|_| Tally::default()).collect();
        let mut answers = self.ask(|place, store| {
            let sent: Vec<Lease> = inner[place].iter().flatten().cloned().collect();
            async move {
                // A node that has none of them has nothing to say.
                Ok(if sent.is_empty() {
                    Vec::new()
                } else {
                    store.renew(&sent).await
                })
            }
        });
        let mut failures = Vec::new();
        while !tallies.iter().all(|tally| tally.is_decided(n, majority)) {
            match answers.next().await {
                Some((place, Ok(renewals))) => {
                    let asked = tallies.iter_mut().zip(&inner[place]);
                    let asked = asked.filter(|(_, lease)| lease.is_some());
                    for ((tally, _), renewal) in asked.zip(&renewals) {
                        tally.add(place, renewal.clone());
                    }
                    answers.good.push((place, renewals));
                }
                Some(failure) => failures.extend(failure.1.err().map(|error| (failure.0, error))),
                None => break,
            }
        }
        let mut confirmed = Vec::new();
        let mut renewals = Vec::new();
        for (i, (tally, (lease, bid))) in
            tallies.into_iter().zip(leases.iter().zip(bids)).enumerate()
        {
            let held = tally.renewed.len() >= majority;
            confirmed.push(
                bid.as_ref()
                    .filter(|_| held)
                    .map(|bid| (lease.clone(), Arc::clone(bid))),
            );
            renewals.push(match bid {
                None => Ok(Renewal::Gone),
                Some(_) if held => Ok(Renewal::Renewed {
                    ttl: tally.renewed.iter().min().copied().unwrap_or_default(),
                    request: tally.request,
                }),
                Some(bid) if n - tally.gone.len() < majority => {
                    self.bids.remove(bid);
                    Ok(Renewal::Gone)
                }
                Some(_) => {
                    let unsaid = |place: usize| {
                        let what = if inner[place][i].is_some() {
                            "it has lost this lease"
                        } else {
                            "it has not granted this lease"
                        };
                        (
                            place,
                            Error::new(ErrorKind::Unavailable, what).with_indeterminate(false),
                        )
                    };
                    let silent = (0..n)
                        .filter(|place| inner[*place][i].is_none() || tally.gone.contains(place));
                    let said = tally.failures.iter().chain(&failures).cloned();
                    let failures: Vec<_> = said.chain(silent.map(unsaid)).collect();
                    Err(too_few(&self.nodes, tally.renewed.len(), &failures))
                }
            });
        }
        tokio::spawn(repair(self.node_timeout, answers, inner, confirmed));
        renewals
    }
}

/// Hears the nodes that a renewal did not wait for, then gives the leases that a majority has to the nodes that have not.
/// Those count from the next renewal on: counted at once, they would revive a term that has ended.
async fn repair(
    limit: Duration,
    mut answers: Answers<Vec<Result<Renewal>>>,
    sent: Vec<Vec<Option<Lease>>>,
    confirmed: Vec<Option<(Lease, Arc<Bid>)>>,
) {
    answers.until(|_| false).await;
    for (place, renewals) in answers.good {
        let asked = sent[place]
            .iter()
            .zip(&confirmed)
            .filter(|(lease, _)| lease.is_some());
        for ((lease, confirmed), renewal) in asked.zip(renewals) {
            if let (Some((_, bid)), Ok(Renewal::Gone)) = (confirmed, renewal) {
                // What has come since is not what was asked about.
                bid.slot(place).take_if(|now| lease.as_ref() == Some(now));
            }
        }
    }
    for (lease, bid) in confirmed.into_iter().flatten() {
        let Ok(claim) = bid.with_token(lease.claim(), lease.token()) else {
            continue;
        };
        for (place, node) in answers.nodes.iter().enumerate() {
            if bid.slot(place).is_some() {
                continue;
            }
            let answer = within(limit, node.store.try_acquire(&claim)).await;
            if let Ok(Attempt::Granted(back)) = &answer {
                *bid.slot(place) = Some(back.clone());
            }
            if bid.is_over() && !matches!(answer, Ok(Attempt::Held(_))) {
                bid.forget(node, limit).await;
            }
        }
    }
}

/// What the nodes said of one lease.
#[derive(Debug, Default)]
struct Tally {
    renewed: Vec<Duration>,
    gone: Vec<usize>,
    failures: Vec<(usize, Error)>,
    request: Option<Request>,
}

impl Tally {
    fn add(&mut self, place: usize, renewal: Result<Renewal>) {
        match renewal {
            Ok(Renewal::Renewed { ttl, request }) => {
                self.renewed.push(ttl);
                self.request = self.request.take().or(request);
            }
            Ok(Renewal::Gone) => self.gone.push(place),
            Err(error) => self.failures.push((place, error)),
        }
    }

    fn is_decided(&self, n: usize, majority: usize) -> bool {
        self.renewed.len() >= majority || n - self.gone.len() < majority
    }
}
