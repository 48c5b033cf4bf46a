//! Servers, stores and claims.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance_tests::servers::{self, Kind, Server};
use lock_core::{
    Attempt, Claim, Lease, LockName, LockPersistence, Mode, Nonce, Owner, Provider, Renewal, Timing,
};
use lock_redis::{Prefix, RedisConfig, RedisPersistence};
use redis::aio::MultiplexedConnection;

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A store that the tests reach under a prefix of its own.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) leases: Arc<RedisPersistence>,
    pub(crate) prefix: String,
}

pub(crate) async fn shared() -> Option<Server> {
    tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::Redis)))
        .await
        .unwrap()
}

pub(crate) async fn own(durable: bool) -> Option<Server> {
    tokio::task::spawn_blocking(move || {
        let builder = Server::redis();
        servers::or_skip(if durable { builder.durable() } else { builder }.start())
    })
    .await
    .unwrap()
}

/// Does something to a server that blocks.
pub(crate) async fn on<T: Send + 'static>(
    server: &Server,
    act: impl FnOnce(&Server) -> Result<T, servers::Error> + Send + 'static,
) -> T {
    let server = server.clone();
    tokio::task::spawn_blocking(move || act(&server))
        .await
        .unwrap()
        .unwrap()
}

pub(crate) fn store_at(url: &str, prefix: &str) -> Store {
    let config = RedisConfig::from_url(url)
        .unwrap()
        .with_prefix(Prefix::new(prefix).unwrap());
    Store {
        leases: Arc::new(RedisPersistence::new(&config).unwrap()),
        prefix: prefix.to_owned(),
    }
}

pub(crate) fn store(server: &Server) -> Store {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    store_at(server.url(), &format!("t{}-{number}:", std::process::id()))
}

impl Store {
    pub(crate) fn provider(&self, ttl: Duration) -> Provider {
        let leases = Arc::clone(&self.leases) as Arc<dyn LockPersistence>;
        Provider::new(leases).with_timing(Timing::for_ttl(ttl).unwrap())
    }

    pub(crate) fn key(&self, name: &str, kind: &str) -> String {
        format!("{}{{.{name}}}:{kind}", self.prefix)
    }

    pub(crate) async fn granted(&self, claim: &Claim) -> Lease {
        match self.leases.try_acquire(claim).await.unwrap() {
            Attempt::Granted(lease) => lease,
            Attempt::Held(holder) => panic!("held by {holder:?}"),
        }
    }

    pub(crate) async fn renew(&self, lease: &Lease) -> lock_core::Result<Renewal> {
        self.leases
            .renew(std::slice::from_ref(lease))
            .await
            .remove(0)
    }
}

pub(crate) fn claim(name: &str, ttl: Duration) -> Claim {
    let owner = Owner::new("test").unwrap();
    Claim::new(LockName::new(name).unwrap(), owner, Nonce::random(), ttl)
}

pub(crate) fn queued(name: &str, ttl: Duration) -> Claim {
    claim(name, ttl).with_mode(Mode::Queue)
}

/// A connection as an operator has it.
pub(crate) async fn by_hand(url: &str) -> MultiplexedConnection {
    redis::Client::open(url)
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap()
}
