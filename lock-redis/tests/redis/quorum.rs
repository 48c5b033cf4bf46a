//! A quorum of independent servers: killed, emptied, cut off and resumed.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::servers::{Direction, Flow, Proxy, Server};
use lock_core::{
    Attempt, Claim, ErrorKind, Lease, LeaseState, LockPersistence, LockProvider as _, Provider,
    Renewal, Timing,
};
use lock_redis::quorum;

use crate::support::{MINUTE, by_hand, claim, on, own};

/// The longest ttl, and so how long a server that has forgotten does not vote.
const LONGEST: Duration = Duration::from_secs(3);

/// What the age of a server is cut by: whole seconds, at both ends.
const CUT: Duration = Duration::from_secs(2);

async fn servers(n: usize) -> Option<Vec<Server>> {
    let mut servers = Vec::new();
    for _ in 0..n {
        servers.push(own(false).await?);
    }
    Some(servers)
}

fn store_at(ports: &[u16]) -> Arc<dyn LockPersistence> {
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let url = format!(
        "quorum+redis://{}/0?longest_ttl_ms={}&node_timeout_ms=300",
        hosts.join(","),
        LONGEST.as_millis()
    );
    Arc::new(quorum(&url).unwrap())
}

fn ports(servers: &[Server]) -> Vec<u16> {
    servers.iter().filter_map(Server::port).collect()
}

/// A store whose servers have come of age.
async fn of_age(servers: &[Server]) -> Arc<dyn LockPersistence> {
    let store = store_at(&ports(servers));
    store.prepare().await.unwrap();
    tokio::time::sleep(LONGEST + CUT).await;
    store
}

fn short() -> Claim {
    claim("n", LONGEST)
}

async fn granted(store: &Arc<dyn LockPersistence>, claim: &Claim) -> Lease {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Granted(lease) => lease,
        Attempt::Held(holder) => panic!("held by {holder:?}"),
    }
}

async fn renewed(store: &Arc<dyn LockPersistence>, lease: &Lease) -> lock_core::Result<Renewal> {
    store.renew(std::slice::from_ref(lease)).await.remove(0)
}

async fn emptied(server: &Server) {
    let mut admin = by_hand(server.url()).await;
    let _: () = redis::cmd("FLUSHALL")
        .query_async(&mut admin)
        .await
        .unwrap();
}

/// A server that came back without its data does not vote until what it may have granted is over; then it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_forgotten_does_not_vote() {
    let Some(servers) = servers(3).await else {
        return;
    };
    let store = of_age(&servers).await;
    // The holder has the first two; the third is down while it acquires.
    on(&servers[2], Server::kill).await;
    let lease = granted(&store, &short()).await;
    on(&servers[2], Server::restart).await;
    let other = store_at(&ports(&servers));
    for forgets in [true, false] {
        if forgets {
            emptied(&servers[1]).await;
        } else {
            on(&servers[1], Server::kill).await;
            on(&servers[1], Server::restart).await;
        }
        let theirs = short();
        let mut error = other.try_acquire(&theirs).await.unwrap_err();
        if error.message().contains("broke") {
            // The connection that it had went with the server.
            error = other.try_acquire(&theirs).await.unwrap_err();
        }
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable());
        assert!(
            error
                .to_string()
                .contains("may have forgotten a lease; it votes in"),
            "{error}"
        );
        other.withdraw(&theirs).await.unwrap();
    }
    // It was asked nothing while the other two had forgotten; one of them is not a majority.
    assert!(!matches!(
        renewed(&store, &lease).await,
        Ok(Renewal::Renewed { .. })
    ));
    tokio::time::sleep(LONGEST + CUT).await;
    let next = granted(&other, &short()).await;
    assert!(
        next.token() > lease.token(),
        "{:?} after {:?}",
        next.token(),
        lease.token()
    );
}

/// 96: one server after the other loses its data, each term is won on another majority, and the tokens grow.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_while_servers_lose_their_data() {
    let Some(servers) = servers(3).await else {
        return;
    };
    let store = of_age(&servers).await;
    let mut last = granted(&store, &short()).await;
    for (down, empty) in [(0, 1), (1, 2), (2, 0)] {
        store.release(&last).await.unwrap();
        emptied(&servers[empty]).await;
        // It has to learn that it was emptied, and to come of age.
        store.prepare().await.unwrap();
        tokio::time::sleep(LONGEST + CUT).await;
        on(&servers[down], Server::pause).await;
        let next = granted(&store, &short()).await;
        assert!(
            next.token() > last.token(),
            "{:?} after {:?}",
            next.token(),
            last.token()
        );
        on(&servers[down], Server::resume).await;
        last = next;
    }
}

/// 98: with three of five emptied a term is over at its next renewal; with two it goes on, and they have it again.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_needs_a_majority() {
    let Some(servers) = servers(5).await else {
        return;
    };
    let store = of_age(&servers).await;
    let lease = granted(&store, &short()).await;
    let has = async |server: &Server| {
        let mut admin = by_hand(server.url()).await;
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*:lease")
            .query_async(&mut admin)
            .await
            .unwrap();
        !keys.is_empty()
    };
    let until_all = async || {
        for server in &servers {
            while !has(server).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    tokio::time::timeout(LONGEST, until_all())
        .await
        .expect("all have it");
    for server in &servers[..2] {
        emptied(server).await;
    }
    assert!(matches!(
        renewed(&store, &lease).await,
        Ok(Renewal::Renewed { .. })
    ));
    tokio::time::timeout(LONGEST, until_all())
        .await
        .expect("they have it again");
    for server in &servers[..3] {
        emptied(server).await;
    }
    assert_eq!(renewed(&store, &lease).await.unwrap(), Renewal::Gone);
}

/// 100: one of three cut off, two of five stopped: guards are taken, kept and handed over; without a majority there is one clear
/// error, and nobody leads.
#[tokio::test(flavor = "multi_thread")]
async fn a_minority_that_is_cut_off_stops_nobody() {
    let Some(servers) = servers(5).await else {
        return;
    };
    let mut ports = ports(&servers);
    let proxy = Proxy::start(ports[4]).unwrap();
    ports[4] = proxy.port();
    let store = store_at(&ports);
    store.prepare().await.unwrap();
    tokio::time::sleep(LONGEST + CUT).await;
    let provider = || {
        let timing = Timing::for_ttl(LONGEST).unwrap();
        Provider::new(Arc::clone(&store)).with_timing(timing)
    };
    let guard = provider().acquire("n").await.unwrap();
    proxy.set_flow(Direction::ToClient, Flow::Swallow);
    on(&servers[3], Server::pause).await;
    // Longer than the ttl: it lives by its renewals.
    tokio::time::sleep(LONGEST * 2).await;
    assert!(guard.check());
    let waiting = tokio::spawn({
        let provider = provider();
        async move { provider.acquire("n").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.release().await.unwrap();
    let next = tokio::time::timeout(MINUTE, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(next.check());
    // The third of five: no majority any more.
    on(&servers[2], Server::pause).await;
    tokio::time::timeout(LONGEST + Duration::from_secs(1), next.lost())
        .await
        .expect("lost by the deadline");
    let error = provider().try_acquire("n").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("3 are needed"), "{error}");
    for server in &servers[2..4] {
        on(server, Server::resume).await;
    }
    proxy.heal();
    let again = tokio::time::timeout(MINUTE, provider().acquire("n"))
        .await
        .unwrap()
        .unwrap();
    again.release().await.unwrap();
}

/// A grant whose answer was swallowed, and a writer that died midway, block a minority for a ttl and nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_writer_left_blocks_nobody() {
    let Some(servers) = servers(3).await else {
        return;
    };
    let store = of_age(&servers).await;
    let before = granted(&store, &short()).await;
    store.release(&before).await.unwrap();
    // It got one node and died, and its token is the largest so far.
    let writer = crate::support::store_at(servers[0].url(), "lockkit:");
    let left = writer.granted(&short()).await;
    let lease = granted(&store, &short()).await;
    assert!(lease.token() > before.token() && lease.token() > left.token());
    let seen = store.observe(lease.name()).await.unwrap();
    assert_eq!(
        seen.holder().map(|holder| holder.token),
        Some(lease.token())
    );
    store.release(&lease).await.unwrap();

    // The answers of one node are swallowed: what it granted is found and taken back.
    let mut at = ports(&servers);
    let proxy = Proxy::start(at[0]).unwrap();
    at[0] = proxy.port();
    let through = store_at(&at);
    tokio::time::sleep(LONGEST).await;
    through.observe(left.name()).await.unwrap();
    proxy.set_flow(Direction::ToClient, Flow::Swallow);
    let lease = granted(&through, &short()).await;
    proxy.heal();
    through.release(&lease).await.unwrap();
    let free = async || {
        let seen = writer.leases.observe(left.name()).await.unwrap();
        !matches!(seen.state, LeaseState::Held(_))
    };
    // Well before it would expire.
    let taken_back = async {
        while !free().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONGEST / 2, taken_back)
        .await
        .expect("taken back");
}

/// 102: one server under two names.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_listed_twice_is_refused() {
    let Some(servers) = servers(2).await else {
        return;
    };
    let at = ports(&servers);
    let url = format!(
        "quorum+redis://127.0.0.1:{},localhost:{},127.0.0.1:{}",
        at[0], at[0], at[1]
    );
    let error = quorum(&url).unwrap().prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("are the same server"), "{error}");
    let error = store_at(&[1, 2, at[0]]).prepare().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
