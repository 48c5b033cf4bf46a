//! Redis passes the suite, on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::servers::{self, Kind};
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{LockName, LockPersistence, Nonce, Owner};
use lock_redis::{Prefix, RedisConfig, RedisPersistence};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;

const SHARED: &str = "the server is shared; the tests of this store stop some of their own";

#[derive(Debug)]
struct Redis {
    url: String,
    prefix: String,
}

fn store(url: &str, prefix: &str) -> Answer<Arc<dyn LockPersistence>> {
    let config = RedisConfig::from_url(url)?.with_prefix(Prefix::new(prefix)?);
    Ok(Arc::new(RedisPersistence::new(&config)?))
}

impl Redis {
    async fn by_hand(&self) -> Answer<MultiplexedConnection> {
        let client = redis::Client::open(self.url.as_str()).map_err(Stop::failed)?;
        client
            .get_multiplexed_async_connection()
            .await
            .map_err(Stop::failed)
    }

    fn key(&self, name: &LockName, kind: &str) -> String {
        format!("{}{{.{name}}}:{kind}", self.prefix)
    }
}

#[async_trait]
impl Harness for Redis {
    async fn new() -> Answer<Self> {
        static PREFIXES: AtomicU32 = AtomicU32::new(0);
        let server = tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::Redis)));
        let Some(server) = server.await.map_err(Stop::failed)? else {
            return Err(Stop::not_applicable("there is no redis on this machine"));
        };
        let number = PREFIXES.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            url: server.url().to_owned(),
            prefix: format!("c{}-{number}:", std::process::id()),
        })
    }

    fn backend(&self) -> &'static str {
        "redis"
    }

    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        store(&self.url, &self.prefix)
    }

    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }

    fn locator(&self) -> Answer<String> {
        Ok(format!("{} {}", self.url, self.prefix))
    }

    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        let (url, prefix) = locator
            .split_once(' ')
            .ok_or_else(|| Stop::failed("a locator is a URL and a prefix"))?;
        store(url, prefix)
    }

    async fn wipe(&self, name: &LockName) -> Answer<()> {
        let keys: Vec<_> = ["lease", "mark", "line", "waiters"]
            .map(|kind| self.key(name, kind))
            .into();
        self.by_hand().await?.del(keys).await.map_err(Stop::failed)
    }

    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let fields = [
            ("owner", owner.to_string()),
            ("nonce", Nonce::random().to_string()),
        ];
        self.by_hand()
            .await?
            .hset_multiple(self.key(name, "lease"), &fields)
            .await
            .map_err(Stop::failed)
    }

    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable("Redis has no locks of single keys"))
    }

    async fn residue(&self) -> Answer<u64> {
        let mut connection = self.by_hand().await?;
        let mut residue = 0;
        let keys: Vec<String> = connection
            .keys(format!("{}*", self.prefix))
            .await
            .map_err(Stop::failed)?;
        for key in keys {
            let ttl: i64 = connection.pttl(&key).await.map_err(Stop::failed)?;
            let waiting = key.ends_with(":line") || key.ends_with(":waiters");
            if ttl == -1 || waiting {
                residue += 1;
            }
        }
        Ok(residue)
    }

    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(SHARED))
    }

    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(SHARED))
    }

    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("h_restart::a_short_restart_costs_no_term", SHARED),
            ("h_restart::a_long_outage_ends_the_term", SHARED),
        ]
    }
}

conformance_tests::suite!(Redis);
