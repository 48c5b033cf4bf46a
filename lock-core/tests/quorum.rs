//! What only a quorum has: majorities, one token over many counters, nodes that forget, answers that come late.

#![allow(clippy::unwrap_used, reason = "a test program")]

use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::{Clock, Moment};
use lock_core::memory::MemoryStore;
use lock_core::quorum::{Node, Quorum, Vouch, Witness};
use lock_core::wrap::{Fault, Faults, Faulty, Times};
use lock_core::{
    Attempt, Claim, Error, ErrorKind, Lease, LeaseState, LockName, LockPersistence, Mode, Nonce,
    Operation, Owner, Release, Renewal, Token,
};

const TTL: Duration = Duration::from_secs(10);
const NODE: Duration = Duration::from_millis(200);

/// One server: its memory, and what goes wrong with it.
struct Machine {
    memory: MemoryStore,
    faults: Faults,
}

/// A server that came up so long ago.
#[derive(Debug)]
struct Up(String, Duration);

#[async_trait::async_trait]
impl Witness for Up {
    async fn vouch(&self) -> lock_core::Result<Vouch> {
        Ok(Vouch::new(self.0.clone(), self.1))
    }
}

/// The virtual time of the runtime.
#[derive(Debug)]
struct Virtual(tokio::time::Instant);

impl Clock for Virtual {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

impl Machine {
    fn counting_from(token: u64) -> Self {
        let memory = MemoryStore::with_clock(Arc::new(Virtual(tokio::time::Instant::now())));
        Self {
            memory: memory.with_first_token(Token::new(token).unwrap()),
            faults: Faults::default(),
        }
    }

    fn node(&self, name: &str) -> Node {
        let store = Faulty::with_faults(Arc::new(self.memory.clone()), self.faults.clone());
        Node::new(name, Arc::new(store), Arc::new(self.memory.clone()))
    }

    fn down(&self) {
        let error = Error::new(ErrorKind::Unavailable, "it is down").with_indeterminate(false);
        self.all(&Fault::FailBefore(error));
    }

    fn all(&self, fault: &Fault) {
        for operation in [
            Operation::TryAcquire,
            Operation::Renew,
            Operation::Release,
            Operation::Withdraw,
            Operation::Observe,
            Operation::Revoke,
        ] {
            self.faults.inject(operation, fault.clone(), Times::Always);
        }
    }

    async fn is_held(&self) -> bool {
        let seen = self.memory.observe(&name()).await.unwrap();
        matches!(seen.state, LeaseState::Held(_))
    }
}

fn machines(counters: &[u64]) -> Vec<Machine> {
    counters
        .iter()
        .map(|from| Machine::counting_from(*from))
        .collect()
}

fn quorum(machines: &[Machine]) -> Quorum {
    let nodes = machines
        .iter()
        .enumerate()
        .map(|(i, m)| m.node(&format!("node-{i}")));
    Quorum::new(nodes).unwrap().with_node_timeout(NODE)
}

fn name() -> LockName {
    LockName::new("n").unwrap()
}

fn claim() -> Claim {
    Claim::new(name(), Owner::new("o").unwrap(), Nonce::random(), TTL)
}

async fn granted(store: &Quorum, claim: &Claim) -> Lease {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(lease) => lease,
        Attempt::Held(holder) => panic!("held by {holder:?}"),
    }
}

async fn renewed(store: &Quorum, lease: &Lease) -> lock_core::Result<Renewal> {
    store.renew(std::slice::from_ref(lease)).await.remove(0)
}

/// Looks until the background has done it.
#[allow(clippy::future_not_send, reason = "each test has one thread")]
async fn eventually(what: &str, look: impl AsyncFn() -> bool) {
    let looking = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(8), looking)
        .await
        .expect(what);
}

/// 96: each term is won on another majority, the counters of the nodes are far apart, and the tokens grow.
#[tokio::test(start_paused = true)]
async fn tokens_grow_over_every_majority() {
    let machines = machines(&[100, 50, 1]);
    let store = quorum(&machines);
    let mut last = Token::new(0).unwrap();
    for round in 0..12 {
        let down = &machines[round % 3];
        down.down();
        let lease = granted(&store, &claim()).await;
        assert!(
            lease.token() > last,
            "round {round}: {:?} after {last:?}",
            lease.token()
        );
        last = lease.token();
        assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
        down.faults.heal();
        // What was left where it was down expires.
        tokio::time::advance(TTL * 2).await;
    }
    // Where nothing has another majority, a small counter would win: 53 after 102.
    let memory = quorum(&machines);
    assert!(granted(&memory, &claim()).await.token() > last);
}

/// 100: a minority that is silent costs no more than the grace; a majority that is down is one clear error.
#[tokio::test(start_paused = true)]
async fn a_minority_is_not_waited_for() {
    let machines = machines(&[1, 1, 1, 1, 1]);
    let store = quorum(&machines);
    machines[1].all(&Fault::HangBefore);
    machines[3].all(&Fault::HangAfter);
    let began = tokio::time::Instant::now();
    let lease = granted(&store, &claim()).await;
    let answer = renewed(&store, &lease).await;
    assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
    assert_eq!(
        store
            .observe(&name())
            .await
            .unwrap()
            .holder()
            .unwrap()
            .token,
        lease.token()
    );
    assert_eq!(store.release(&lease).await.unwrap(), Release::Released);
    assert!(began.elapsed() < NODE, "{:?}", began.elapsed());

    machines[0].down();
    let began = tokio::time::Instant::now();
    let error = store.try_acquire(&claim()).await.unwrap_err();
    assert!(began.elapsed() < NODE * 3 / 2, "{:?}", began.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.is_indeterminate());
    for part in [
        "2 of 5 nodes",
        "3 are needed",
        "node-0: it is down",
        "node-1: no answer within 200ms",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// 98: a renewal needs a majority, and gives the lease back to the nodes that have lost it.
#[tokio::test(start_paused = true)]
async fn a_renewal_needs_a_majority_and_repairs_the_rest() {
    let machines = machines(&[7; 5]);
    let store = quorum(&machines);
    let lease = granted(&store, &claim()).await;
    let all_held = async || {
        for machine in &machines {
            if !machine.is_held().await {
                return false;
            }
        }
        true
    };
    eventually("all nodes have it", all_held).await;
    tokio::time::sleep(NODE).await;
    for machine in &machines[..2] {
        machine.memory.revoke(&name(), "lost").await.unwrap();
    }
    let answer = renewed(&store, &lease).await;
    assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
    eventually("they have it again", all_held).await;
    tokio::time::sleep(NODE).await;
    // What was put back counts from now on.
    for machine in &machines[3..] {
        machine.down();
    }
    let answer = renewed(&store, &lease).await;
    assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{answer:?}");
    assert_eq!(
        store
            .observe(&name())
            .await
            .unwrap()
            .holder()
            .unwrap()
            .token,
        lease.token()
    );
    for machine in &machines {
        machine.faults.heal();
    }
    for machine in &machines[..3] {
        machine.memory.revoke(&name(), "lost").await.unwrap();
    }
    assert_eq!(renewed(&store, &lease).await.unwrap(), Renewal::Gone);
    assert_eq!(
        renewed(&store, &lease).await.unwrap(),
        Renewal::Gone,
        "and stays so"
    );
}

/// What was not put back by this very round must not revive a term: 2 of 5 are no majority, however many are free.
#[tokio::test(start_paused = true)]
async fn what_is_put_back_does_not_count_at_once() {
    let machines = machines(&[7; 3]);
    let store = quorum(&machines);
    let lease = granted(&store, &claim()).await;
    machines[0].memory.revoke(&name(), "lost").await.unwrap();
    machines[1].down();
    // One has it, one has lost it, one is silent: nobody can say that it is still ours.
    let answer = renewed(&store, &lease).await;
    assert!(
        answer.as_ref().is_err_and(Error::is_retryable),
        "{answer:?}"
    );
    assert!(
        !machines[0].is_held().await,
        "it was put back without a majority"
    );
}

/// What the losers of a split vote, or of a race, have got is taken back, also where the answer was swallowed.
#[tokio::test(start_paused = true)]
async fn a_minority_of_grants_is_taken_back() {
    let machines = machines(&[1; 3]);
    let store = quorum(&machines);
    for machine in &machines[..2] {
        let other = machine.memory.try_acquire(&claim()).await.unwrap();
        assert!(matches!(other, Attempt::Granted(_)));
    }
    for mode in [Mode::Once, Mode::Queue] {
        let ours = claim().with_mode(mode);
        let denied = store.try_acquire(&ours).await.unwrap();
        assert!(matches!(denied, Attempt::Held(_)), "{denied:?}");
        eventually("the third is free again", async || {
            !machines[2].is_held().await
        })
        .await;
        machines[2]
            .faults
            .inject(Operation::TryAcquire, Fault::HangAfter, Times::Next(1));
        let denied = store.try_acquire(&ours.clone()).await;
        assert!(denied.is_ok(), "{denied:?}");
        eventually("the unheard grant is gone", async || {
            !machines[2].is_held().await
        })
        .await;
    }
}

/// A call that is dropped midway leaves nothing that a withdrawal does not find.
#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_withdrawn() {
    let machines = machines(&[1; 3]);
    let store = quorum(&machines);
    for fault in [
        Fault::HangAfter,
        Fault::DelayAfter(NODE / 2),
        Fault::DelayBefore(NODE / 2),
    ] {
        for machine in &machines[..2] {
            machine
                .faults
                .inject(Operation::TryAcquire, fault.clone(), Times::Next(1));
        }
        let ours = claim();
        let call = tokio::time::timeout(NODE / 4, store.try_acquire(&ours)).await;
        assert!(call.is_err(), "{call:?}");
        tokio::time::sleep(NODE).await;
        store.withdraw(&ours).await.unwrap();
        for machine in &machines {
            eventually("nothing is left", async || !machine.is_held().await).await;
        }
        let lease = granted(&store, &claim()).await;
        store.release(&lease).await.unwrap();
        for machine in &machines {
            eventually("nothing is left", async || !machine.is_held().await).await;
        }
    }
}

/// Asked again with the nonce of a term, the token is that of the term, also where a node has another one of its own.
#[tokio::test(start_paused = true)]
async fn a_repeated_claim_keeps_its_token() {
    let machines = machines(&[100, 50, 1]);
    let store = quorum(&machines);
    // The one with the largest counter is late, and has a larger token than the term.
    machines[0].faults.inject(
        Operation::TryAcquire,
        Fault::DelayBefore(NODE / 2),
        Times::Next(1),
    );
    let ours = claim();
    let lease = granted(&store, &ours).await;
    assert_eq!(lease.token().get(), 50);
    eventually("the late one has it", async || machines[0].is_held().await).await;
    let again = granted(&store, &ours).await;
    assert_eq!(again.token(), lease.token());
    assert_eq!(
        store
            .observe(&name())
            .await
            .unwrap()
            .holder()
            .unwrap()
            .token,
        lease.token()
    );
    assert_eq!(store.release(&again).await.unwrap(), Release::Released);
    eventually("all are free", async || !machines[0].is_held().await).await;
    assert!(
        granted(&store, &claim()).await.token().get() > 100,
        "no node was asked in vain"
    );
}

/// A node that has lost its data, or is young, grants and does not count; the error says which and for how long.
#[tokio::test(start_paused = true)]
async fn a_node_that_may_have_forgotten_does_not_vote() {
    let machines = machines(&[1; 3]);
    let ages = [
        Duration::MAX,
        Duration::from_secs(12),
        Duration::from_secs(30),
    ];
    let nodes = |ages: [Duration; 3]| {
        let each = machines.iter().zip(ages).enumerate();
        each.map(|(i, (m, age))| {
            let witness = Up(format!("server {i}"), age);
            Node::new(
                format!("node-{i}"),
                Arc::new(m.memory.clone()),
                Arc::new(witness),
            )
        })
        .collect::<Vec<_>>()
    };
    let store = Quorum::new(nodes(ages)).unwrap();
    let lease = granted(&store, &claim()).await;
    store.release(&lease).await.unwrap();
    let store = Quorum::new(nodes([
        Duration::MAX,
        Duration::from_secs(12),
        Duration::ZERO,
    ]))
    .unwrap();
    let ours = claim();
    let error = store.try_acquire(&ours).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
    assert!(
        error
            .to_string()
            .contains("node-1: it started or was emptied 12s ago"),
        "{error}"
    );
    assert!(error.to_string().contains("votes in 18s"), "{error}");
    store.withdraw(&ours).await.unwrap();
    for machine in &machines {
        eventually("nothing is left", async || !machine.is_held().await).await;
    }
    // A claim that could outlive the memory of a node is refused.
    let mut long = claim();
    long.ttl = Duration::from_secs(31);
    let error = store.try_acquire(&long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("31s"), "{error}");
}

/// 102: one server under two names is refused at the start, and does not count twice when it was down then.
#[tokio::test(start_paused = true)]
async fn a_server_listed_twice_never_counts_twice() {
    let machines = machines(&[1; 2]);
    let twice = || {
        let nodes = [("a", 0), ("b", 1), ("c", 1)];
        Quorum::new(nodes.map(|(name, i)| machines[i].node(name))).unwrap()
    };
    let error = twice().prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(
        error.to_string().contains("b and c are the same server"),
        "{error}"
    );
    machines[0].down();
    let error = twice().try_acquire(&claim()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the same server as another node"),
        "{error}"
    );
    let error = Quorum::new([machines[0].node("a"), machines[1].node("a")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(
        Quorum::new([]).unwrap_err().kind(),
        ErrorKind::InvalidConfig
    );
}

/// A revoked term is over for a majority, and the token that was burnt is below the next one on every majority.
#[tokio::test(start_paused = true)]
async fn what_was_revoked_is_fenced_on_every_majority() {
    let machines = machines(&[100, 50, 1]);
    let store = quorum(&machines);
    // The one with the largest counter is late, and has a larger token than the term.
    machines[0].faults.inject(
        Operation::TryAcquire,
        Fault::DelayBefore(NODE / 2),
        Times::Next(1),
    );
    let lease = granted(&store, &claim()).await;
    eventually("the late one has it", async || machines[0].is_held().await).await;
    tokio::time::sleep(NODE).await;
    machines[2].down();
    let burnt = store.revoke(&name(), "by hand").await.unwrap().unwrap();
    assert!(burnt.get() > 100 && burnt > lease.token(), "{burnt:?}");
    let seen = store.observe(&name()).await.unwrap();
    assert!(
        matches!(&seen.state, LeaseState::Free { note, .. } if note.as_str() == "by hand"),
        "{seen:?}"
    );
    assert_eq!(renewed(&store, &lease).await.unwrap(), Renewal::Gone);
    machines[2].faults.heal();
    tokio::time::sleep(TTL).await;
    // The majority without the node that burnt the largest.
    for down in [0, 1] {
        machines[down].down();
        let next = granted(&store, &claim()).await;
        assert!(next.token() >= burnt, "{:?} after {burnt:?}", next.token());
        store.release(&next).await.unwrap();
        machines[down].faults.heal();
        tokio::time::sleep(TTL).await;
    }
    assert_eq!(store.revoke(&name(), "again").await.unwrap(), None);
    // What a minority has is nobody's.
    let left = machines[0].memory.try_acquire(&claim()).await.unwrap();
    assert!(matches!(left, Attempt::Granted(_)), "{left:?}");
    assert_eq!(store.revoke(&name(), "again").await.unwrap(), None);
    assert!(!machines[0].is_held().await);
}
