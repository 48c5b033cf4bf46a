//! What our candidates and theirs do in one election, for any database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance_tests::Tier;
use lock_core::{
    Attempt, Claim, ErrorKind, Lease, LeaseState, LockPersistence as _, Release, Renewal,
};
use lock_sql::SqlPersistence;

use super::{Peer, Session};
use crate::support::{claim, name};

const TICK: Duration = Duration::from_millis(20);

/// A part of a test's time in which a candidate believed to lead, in microseconds of this machine's clock.
#[derive(Clone, Copy, Debug)]
struct Term {
    ours: bool,
    from: i64,
    to: i64,
}

async fn held(store: &SqlPersistence, claim: &Claim) -> Option<Lease> {
    match store.try_acquire(claim).await {
        Ok(Attempt::Granted(lease)) => Some(lease),
        Ok(Attempt::Held(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Tries until it is granted.
pub(crate) async fn taken(store: &SqlPersistence, claim: &Claim, limit: Duration) -> Lease {
    let started = Instant::now();
    loop {
        if let Some(lease) = held(store, claim).await {
            return lease;
        }
        assert!(started.elapsed() < limit, "not granted within {limit:?}");
        tokio::time::sleep(TICK).await;
    }
}

/// Ticks until it leads.
async fn leads<S: Session>(peer: &mut Peer<S>, component: &str, limit: Duration) {
    let started = Instant::now();
    while !peer.tick(component).await {
        assert!(started.elapsed() < limit, "does not lead within {limit:?}");
        tokio::time::sleep(TICK).await;
    }
}

/// Each side is told of the other's clean release, and takes over from the other's crash; `lease` is the
/// peer's and ours, `slack` what stands between.
pub(crate) async fn both_ways<S: Session>(
    store: &SqlPersistence,
    mut peer: Peer<S>,
    lease: Duration,
    slack: Duration,
) {
    let bound = lease + slack + Duration::from_secs(5);
    let first = claim("both", lease);
    let mut last = held(store, &first).await.expect("nobody holds it");
    assert_eq!(last.ttl() + slack, lease);
    assert!(!peer.tick("both").await, "ours leads");
    for _ in 0..3 {
        assert_eq!(store.release(&last).await.unwrap(), Release::Released);
        // A release that is not one would be found at the expiry only.
        let released = Instant::now();
        leads(&mut peer, "both", bound).await;
        let observed = store.observe(&name("both")).await.unwrap();
        assert_eq!(observed.holder().unwrap().owner.as_str(), peer.id);
        assert!(released.elapsed() < lease, "not told of the release");
        // Seen fresh, its clock is known.
        peer.tick("both").await;
        assert!(held(store, &claim("both", lease)).await.is_none());
        peer.release("both").await;
        let lease = taken(store, &claim("both", lease), bound).await;
        assert!(lease.token() > last.token() || lease.token().get() == 0);
        last = lease;
        assert!(!peer.tick("both").await, "ours leads");
    }
    // Ours crashes.
    leads(&mut peer, "both", bound).await;
    assert!(matches!(
        store.renew(&[last.clone()]).await[0],
        Ok(Renewal::Gone)
    ));
    assert_eq!(store.release(&last).await.unwrap(), Release::NotHeld);
    assert!(peer.tick("both").await, "what is over touches nothing");
    // Theirs crashes.
    let until = peer.until - peer.ahead;
    taken(store, &claim("both", lease), bound).await;
    assert!(super::wall_clock() >= until, "it was still leading");
    assert!(!peer.tick("both").await, "ours leads");
}

/// A peer whose clock is wrong by more than the skew: an error, and nobody of ours leads.
pub(crate) async fn beyond<S: Session>(store: &SqlPersistence, mut peer: Peer<S>, ttl: Duration) {
    let component = "beyond";
    assert!(peer.tick(component).await, "nobody holds it");
    let mut conflict = None;
    for _ in 0..60 {
        match store.try_acquire(&claim(component, ttl)).await {
            Ok(Attempt::Held(_)) => {}
            Ok(Attempt::Granted(lease)) => panic!("granted beside a leader: {lease:?}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                assert!(error.to_string().contains("peer_skew"), "{error}");
                conflict = Some(error);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(peer.tick(component).await, "nobody else holds it");
    }
    assert!(conflict.is_some(), "not noticed");
}

/// Many hand-overs between one of ours and one of theirs, by crash and by release: never two at once.
pub(crate) async fn rounds<S: Session>(
    store: Arc<SqlPersistence>,
    peers: Vec<Peer<S>>,
    lease: Duration,
) {
    let each = match Tier::of_this_run() {
        Tier::Ci => 3,
        Tier::Full => 200_usize.div_ceil(peers.len()),
    };
    let mut tasks = Vec::new();
    for (n, peer) in peers.into_iter().enumerate() {
        let store = Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            let component = format!("rounds{n}");
            let ahead = peer.ahead;
            let theirs = tokio::spawn(theirs(peer, component.clone(), each, n));
            let mut terms = ours(&store, &component, lease, each, n).await;
            terms.extend(theirs.await.unwrap());
            terms.sort_by_key(|term| term.from);
            for pair in terms.windows(2) {
                assert!(
                    pair[0].to <= pair[1].from || pair[0].ours && pair[1].ours,
                    "two at once on {component}, the peer's clock {ahead} µs ahead: {pair:?}"
                );
            }
            terms.len()
        }));
    }
    let mut all = 0;
    for task in tasks {
        all += task.await.unwrap();
    }
    println!("{all} terms of both sides");
}

fn ends_by_crash(round: usize, n: usize) -> bool {
    (round + n).is_multiple_of(2)
}

async fn ours(
    store: &SqlPersistence,
    component: &str,
    ttl: Duration,
    each: usize,
    n: usize,
) -> Vec<Term> {
    let mut terms = Vec::new();
    for round in 0..each {
        let claim = claim(component, ttl);
        let (from, lease, mut to) = loop {
            let sent = super::wall_clock();
            match store.try_acquire(&claim).await {
                Ok(Attempt::Granted(lease)) => {
                    let to = sent + super::micros(lease.ttl());
                    break (super::wall_clock(), lease, to);
                }
                Ok(Attempt::Held(_)) => {}
                // A peer that was kept waiting longer than the skew.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => panic!("{error}"),
            }
            tokio::time::sleep(TICK).await;
        };
        for _ in 0..3 {
            tokio::time::sleep(ttl / 8).await;
            let sent = super::wall_clock();
            match &store.renew(std::slice::from_ref(&lease)).await[0] {
                Ok(Renewal::Renewed { ttl, .. }) => to = sent + super::micros(*ttl),
                Ok(Renewal::Gone) => break,
                Err(error) => panic!("{error}"),
            }
        }
        if !ends_by_crash(round, n) {
            to = to.min(super::wall_clock());
            store.release(&lease).await.unwrap();
        }
        // What a renewal that came too late has shown is not before the term.
        if to > from {
            terms.push(Term {
                ours: true,
                from,
                to,
            });
        }
        tokio::time::sleep(ttl + ttl / 2).await;
    }
    terms
}

async fn theirs<S: Session>(
    mut peer: Peer<S>,
    component: String,
    each: usize,
    n: usize,
) -> Vec<Term> {
    let mut terms = Vec::new();
    let step = peer.lease / 8;
    for round in 0..each {
        while !peer.tick(&component).await {
            tokio::time::sleep(TICK).await;
        }
        let from = super::wall_clock();
        let mut to = peer.until - peer.ahead;
        for _ in 0..3 {
            tokio::time::sleep(step).await;
            if !peer.tick(&component).await {
                break;
            }
            to = peer.until - peer.ahead;
        }
        if !ends_by_crash(round, n + 1) && peer.until > 0 {
            to = to.min(super::wall_clock());
            peer.release(&component).await;
        }
        if to > from {
            terms.push(Term {
                ours: false,
                from,
                to,
            });
        }
        // Down; the next one that starts is another node.
        peer.until = 0;
        peer.id = format!("{}x", peer.id);
        tokio::time::sleep(peer.lease + peer.lease / 2).await;
    }
    terms
}

/// Names and owners that do not fit, and what their tables have no place for, are refused before anything
/// is sent.
pub(crate) async fn refusals(store: &SqlPersistence, longest: usize) {
    let ttl = Duration::from_secs(20);
    let error = store
        .try_acquire(&claim(&"x".repeat(longest + 1), ttl))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidName);
    let lease = held(store, &claim(&"x".repeat(longest), ttl))
        .await
        .unwrap();
    let metadata = lock_core::Metadata::new("m").unwrap();
    let error = store
        .try_acquire(&claim("m", ttl).with_metadata(metadata))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unsupported);
    let error = store.revoke(lease.name(), "why").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = store
        .try_acquire(&claim("m", Duration::from_millis(200)))
        .await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidConfig);
    let seen = store.observe(&name("m")).await.unwrap();
    assert_eq!(seen.state, LeaseState::Absent);
}
