//! What only the memory store promises, beyond the conformance suite, on a clock that the test moves.

#![allow(clippy::unwrap_used, reason = "a test program")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use lock_core::clock::{Clock, Moment};
use lock_core::memory::MemoryStore;
use lock_core::{
    Attempt, Claim, ErrorKind, Lease, LeaseState, LockName, LockPersistence, Nonce, Owner, Release,
    Renewal, Token,
};

const TTL: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct ByHand(AtomicU64);

impl ByHand {
    fn advance(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap();
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for ByHand {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn claim(text: &str) -> Claim {
    let owner = Owner::new("o").unwrap();
    Claim::new(name(text), owner, Nonce::random(), TTL)
}

fn world() -> (MemoryStore, Arc<ByHand>) {
    let clock = Arc::new(ByHand::default());
    let store = MemoryStore::with_clock(Arc::<ByHand>::clone(&clock))
        .with_first_token(Token::new(1).unwrap());
    (store, clock)
}

async fn grant(store: &MemoryStore, claim: &Claim) -> Lease {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(lease) => lease,
        Attempt::Held(holder) => panic!("held by {holder:?}"),
    }
}

#[tokio::test]
async fn expiry_is_exact_and_judged_by_the_injected_clock() {
    let (store, clock) = world();
    let lease = grant(&store, &claim("n")).await;
    clock.advance(TTL - Duration::from_nanos(1));
    let Attempt::Held(holder) = store.try_acquire(&claim("n")).await.unwrap() else {
        panic!("granted a nanosecond early");
    };
    assert_eq!(holder.remaining, Duration::from_nanos(1));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(
        store.renew(std::slice::from_ref(&lease)).await,
        [Ok(Renewal::Gone)]
    );
    assert_eq!(store.release(&lease).await.unwrap(), Release::NotHeld);
    let next = grant(&store, &claim("n")).await;
    assert_eq!(next.token().get(), lease.token().get() + 1);
}

#[tokio::test]
async fn tokens_grow_over_a_sweep_and_begin_with_the_wall_clock() {
    let (store, clock) = world();
    let mut last = 0;
    for _ in 0..3 {
        let lease = grant(&store, &claim("n")).await;
        assert_eq!(lease.token().get(), last + 1);
        last = lease.token().get();
        store.release(&lease).await.unwrap();
    }
    assert_eq!(store.sweep(TTL).await.unwrap(), 0, "just freed");
    clock.advance(TTL);
    assert_eq!(store.sweep(TTL).await.unwrap(), 1);
    let seen = store.observe(&name("n")).await.unwrap();
    assert_eq!(seen.state, LeaseState::Absent);
    assert!(grant(&store, &claim("n")).await.token().get() > last);

    let micros = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let token = grant(&MemoryStore::new(), &claim("n")).await.token();
    let distance = micros.abs_diff(token.get().into());
    assert!(distance < 60_000_000, "{token} is not near {micros}");
}

#[tokio::test]
async fn the_end_of_the_tokens_is_an_error_and_nothing_is_granted() {
    let store = MemoryStore::new().with_first_token(Token::MAX);
    let lease = grant(&store, &claim("n")).await;
    assert_eq!(lease.token(), Token::MAX);
    let error = store.revoke(&name("n"), "r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    store.release(&lease).await.unwrap();
    let error = store.try_acquire(&claim("n")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let seen = store.observe(&name("n")).await.unwrap();
    assert!(seen.holder().is_none());
}

#[tokio::test]
async fn a_closed_client_answers_unavailable_and_leaves_the_others_alone() {
    let (store, _) = world();
    let other = store.clone();
    let lease = grant(&store, &claim("n")).await;
    let Attempt::Held(holder) = store.try_acquire(&claim("n")).await.unwrap() else {
        panic!("granted twice");
    };
    let waiting = claim("n");
    let (waited, closed) = tokio::join!(store.wait(&waiting, &holder), store.close());
    closed.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    let error = store.renew(std::slice::from_ref(&lease)).await.remove(0);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(matches!(
        other.renew(&[lease]).await.as_slice(),
        [Ok(Renewal::Renewed { .. })]
    ));
}

#[tokio::test]
async fn the_server_time_goes_with_the_clock() {
    let (store, clock) = world();
    let before = store.server_time().await.unwrap();
    clock.advance(TTL);
    let after = store.server_time().await.unwrap();
    assert_eq!(after.duration_since(before).unwrap(), TTL);
}
