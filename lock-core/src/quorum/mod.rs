//! One lease over several independent servers: a majority decides.
//!
//! A [`Quorum`] is a store like any other. Each of its nodes is a store of one server that shares nothing with the other
//! nodes, so that losing a minority of them (a crash, a cut, lost data) loses no lease. See [`Quorum`] for what it
//! promises and what it asks of the nodes.

mod bid;
mod merge;
mod persistence;
mod renewal;
mod term;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};

use crate::capabilities::{Capabilities, Fencing, TtlRange};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::name::{LockName, Nonce};
use crate::persistence::LockPersistence;

use bid::Bid;

const BACKEND: &str = "quorum";

/// How long a call to one node may take unless [`Quorum::with_node_timeout`] says otherwise. Two of them, one after the
/// other, fit into the default request timeout.
const NODE_TIMEOUT: Duration = Duration::from_millis(800);

/// The longest ttl unless [`Quorum::with_longest_ttl`] says otherwise.
const LONGEST_TTL: Duration = Duration::from_secs(30);

/// What a node of a quorum knows of itself. The stores of this project that may be nodes implement it.
#[async_trait]
pub trait Witness: fmt::Debug + Send + Sync {
    /// Which server this is, and for how long it has surely forgotten nothing.
    ///
    /// Asked after each grant: a node that has come back without its data would grant what another still holds.
    ///
    /// # Errors
    /// Why the server could not say.
    async fn vouch(&self) -> Result<Vouch>;
}

/// What a [`Witness`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vouch {
    /// The same for all connections to one server, and different for different servers.
    pub server: String,
    /// A lower bound of the time since it last started, was emptied, or may have lost a write. Judged by the server's
    /// clock. [`Duration::MAX`] for a store that loses nothing.
    pub remembers: Duration,
}

impl Vouch {
    /// Says that this server has forgotten nothing for this long.
    #[must_use]
    pub fn new(server: impl Into<String>, remembers: Duration) -> Self {
        Self {
            server: server.into(),
            remembers,
        }
    }
}

/// One server of a [`Quorum`].
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
    store: Arc<dyn LockPersistence>,
    witness: Arc<dyn Witness>,
}

impl Node {
    /// The server behind `store`, of which `witness` speaks; mostly both are one value. `name` stands in messages: host
    /// and port, without secrets.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        store: Arc<dyn LockPersistence>,
        witness: Arc<dyn Witness>,
    ) -> Self {
        Self {
            name: name.into(),
            store,
            witness,
        }
    }
}

/// A store that asks all its nodes at once and believes a majority.
///
/// * **Exclusion** holds while less than a majority of the nodes has lost data within the
///   [longest ttl](Self::with_longest_ttl). A node that started, or came back empty, less than that ago
///   takes part in renewals of what it holds, but its grants do not count: see [`Witness`]. So a quorum of *new* servers grants
///   nothing until the longest ttl has passed once.
/// * **Tokens** grow from term to term also when each term is won on another majority: the largest token that any node
///   has answered is written to a majority, with the nonce of the term, before the grant is handed out. Where a node has lost
///   its data, its clock is what it counts on from, and tokens go on growing while the clocks of the nodes differ by less than the
///   longest ttl.
/// * **A minority that is down or slow** costs nothing: a call is over as soon as a majority has decided. What the others
///   answer later is taken in or cleaned up in the background, for the length of the ttl.
/// * A **server listed twice** is refused by [`prepare`](LockPersistence::prepare), and never counts twice.
///
/// Use an odd number of nodes: a fourth one tolerates no more than three do.
#[derive(Debug)]
pub struct Quorum {
    nodes: Arc<[Node]>,
    node_timeout: Duration,
    longest_ttl: Duration,
    capabilities: Capabilities,
    bids: Arc<Bids>,
    closed: watch::Sender<bool>,
}

impl Quorum {
    /// A quorum of these nodes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when there is no node, or two have one name.
    pub fn new(nodes: impl IntoIterator<Item = Node>) -> Result<Self> {
        let nodes: Arc<[Node]> = nodes.into_iter().collect();
        let invalid =
            |text: String| Error::new(ErrorKind::InvalidConfig, text).with_backend(BACKEND);
        if nodes.is_empty() {
            return Err(invalid("a quorum needs nodes; name three or five".into()));
        }
        for (i, node) in nodes.iter().enumerate() {
            if nodes[..i].iter().any(|other| other.name == node.name) {
                return Err(invalid(format!("the quorum lists {} twice", node.name)));
            }
        }
        let capabilities = Self::in_common(&nodes, LONGEST_TTL);
        Ok(Self {
            nodes,
            node_timeout: NODE_TIMEOUT,
            longest_ttl: LONGEST_TTL,
            capabilities,
            bids: Arc::default(),
            closed: watch::Sender::new(false),
        })
    }

    /// The same quorum, where a call to one node takes at most this long (800 ms by default). An acquisition is up to two such calls,
    /// one after the other: both must fit into the request timeout.
    #[must_use]
    pub fn with_node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// The same quorum, where no claim has a longer ttl (30 s by default). **The same for every process that uses the nodes**: a
    /// node that has forgotten its leases does not vote for this long, which is safe because none of them can be
    /// longer.
    #[must_use]
    pub fn with_longest_ttl(mut self, longest: Duration) -> Self {
        self.longest_ttl = longest;
        self.capabilities = Self::in_common(&self.nodes, longest);
        self
    }

    /// What all nodes can do.
    fn in_common(nodes: &[Node], longest: Duration) -> Capabilities {
        let all = || nodes.iter().map(|node| node.store.capabilities());
        let fencing = if !all().all(|c| c.min_token) {
            Fencing::None(
                "a node cannot raise the token of a grant, so the tokens of a quorum may go back",
            )
        } else if all().any(|c| matches!(c.fencing, Fencing::None(_))) {
            Fencing::None("the tokens of a node may go back")
        } else {
            Fencing::Monotone
        };
        let mut capabilities = Capabilities::new(BACKEND, fencing);
        capabilities.min_token = all().all(|c| c.min_token);
        capabilities.push = all().all(|c| c.push);
        capabilities.queueing = all().any(|c| c.queueing);
        capabilities.server_side_expiry = all().all(|c| c.server_side_expiry);
        let most =
            |of: fn(&TtlRange) -> Duration| all().map(|c| of(&c.ttl)).max().unwrap_or_default();
        let max = all().map(|c| c.ttl.max).min().unwrap_or(longest);
        capabilities.ttl =
            TtlRange::new(most(|t| t.min), max.min(longest), most(|t| t.granularity));
        capabilities.names_per_session = all().filter_map(|c| c.names_per_session).min();
        capabilities
    }

    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    fn open(&self) -> Result<()> {
        if *self.closed.borrow() {
            return Err(
                Error::new(ErrorKind::Unavailable, "the store was closed").with_retryable(false)
            );
        }
        Ok(())
    }

    /// Says where an error came up.
    fn at<T>(&self, operation: Operation, name: Option<&LockName>, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let error = error.with_backend(BACKEND).with_operation(operation);
            match name {
                Some(name) => error.with_name(name.clone()),
                None => error,
            }
        })
    }

    /// Asks each node at once, each in a task of its own: whoever has heard enough may stop listening, and the calls to
    /// the slower ones are still not dropped midway, which would cost their connections.
    fn ask<T, F>(&self, call: impl Fn(usize, Arc<dyn LockPersistence>) -> F) -> Answers<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (sender, answers) = mpsc::unbounded_channel();
        for (i, node) in self.nodes.iter().enumerate() {
            let (sender, limit) = (sender.clone(), self.node_timeout);
            let call = call(i, Arc::clone(&node.store));
            tokio::spawn(async move {
                let answer = within(limit, call).await;
                // Nobody listens any more when enough others have answered.
                sender.send((i, answer)).ok();
            });
        }
        Answers {
            nodes: Arc::clone(&self.nodes),
            answers,
            good: Vec::new(),
            failures: Vec::new(),
        }
    }
}

/// The answer, or that there was none in time.
async fn within<T>(limit: Duration, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::new(
            ErrorKind::Timeout,
            format!("no answer within {limit:?}"),
        )),
    }
}

/// What the nodes have answered so far.
struct Answers<T> {
    nodes: Arc<[Node]>,
    answers: mpsc::UnboundedReceiver<(usize, Result<T>)>,
    good: Vec<(usize, T)>,
    failures: Vec<(usize, Error)>,
}

impl<T> Answers<T> {
    /// The next answer; `None` when each node has answered.
    async fn next(&mut self) -> Option<(usize, Result<T>)> {
        self.answers.recv().await
    }

    /// Listens until `enough` of the good answers, or until each node has answered.
    async fn until(&mut self, enough: impl Fn(&[(usize, T)]) -> bool + Send) {
        while !enough(&self.good) {
            match self.next().await {
                Some((i, Ok(answer))) => self.good.push((i, answer)),
                Some((i, Err(error))) => self.failures.push((i, error)),
                None => return,
            }
        }
    }

    /// All good answers, if they are a majority.
    async fn all(mut self) -> Result<Vec<(usize, T)>> {
        self.until(|_| false).await;
        if self.good.len() > self.nodes.len() / 2 {
            Ok(self.good)
        } else {
            Err(self.too_few())
        }
    }

    /// That too few nodes answered, and why.
    fn too_few(&self) -> Error {
        too_few(&self.nodes, self.good.len(), &self.failures)
    }
}

/// That no majority of the nodes did what was asked, and what the others said.
fn too_few(nodes: &[Node], good: usize, failures: &[(usize, Error)]) -> Error {
    let said: Vec<String> = failures
        .iter()
        .map(|(i, error)| format!("{}: {}", nodes[*i].name, error.message()))
        .collect();
    let kind = match failures {
        // What all say alike is not for want of a majority.
        [(_, first), rest @ ..] if rest.iter().all(|(_, e)| e.kind() == first.kind()) => {
            first.kind()
        }
        _ => ErrorKind::Unavailable,
    };
    let error = Error::new(
        kind,
        format!(
            "{good} of {} nodes could serve, and {} are needed; {}",
            nodes.len(),
            nodes.len() / 2 + 1,
            said.join("; ")
        ),
    )
    .with_retryable(failures.is_empty() || failures.iter().any(|(_, e)| e.is_retryable()))
    .with_indeterminate(good > 0 || failures.iter().any(|(_, e)| e.is_indeterminate()));
    match failures {
        [(_, first), ..] => error.with_source(first.clone()),
        [] => error,
    }
}

/// The bids that may have left entries in the nodes, by the claim that they are for.
#[derive(Debug, Default)]
struct Bids(Mutex<BTreeMap<(LockName, Nonce), OfClaim>>);

/// The bids for one claim.
#[derive(Debug, Default)]
struct OfClaim {
    /// The last one counts; those before it are being taken back.
    bids: Vec<Arc<Bid>>,
    /// The nonce of the claim itself is dead in the nodes.
    burnt: bool,
}

impl Bids {
    fn map(&self) -> MutexGuard<'_, BTreeMap<(LockName, Nonce), OfClaim>> {
        // Each change of it is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bid that stands for this claim.
    fn current(&self, key: &(LockName, Nonce)) -> Option<Arc<Bid>> {
        let map = self.map();
        let last = map.get(key)?.bids.last()?;
        (!last.is_over()).then(|| Arc::clone(last))
    }

    /// Nothing is left of this bid.
    fn remove(&self, bid: &Arc<Bid>) {
        let mut map = self.map();
        if let Some(of_claim) = map.get_mut(bid.key()) {
            of_claim.bids.retain(|other| !Arc::ptr_eq(other, bid));
            if of_claim.bids.is_empty() && !of_claim.burnt {
                map.remove(bid.key());
            }
        }
    }

    /// The claim is done with.
    fn forget(&self, key: &(LockName, Nonce)) {
        self.map().remove(key);
    }
}
