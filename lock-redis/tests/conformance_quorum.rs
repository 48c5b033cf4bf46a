//! A quorum of three Redis servers passes the suite.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::servers::{self, Server};
use conformance_tests::{Answer, Harness, Stop};
use lock_core::quorum::{self, Node, Vouch, Witness};
use lock_core::{LockName, LockPersistence, Nonce, Owner};
use lock_redis::{Prefix, RedisConfig, RedisPersistence};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use tokio::sync::OnceCell;

const SHARED: &str = "the servers are shared; the tests of the quorum stop some of their own";

/// The three servers of this program. Their supervisors end them with it.
static SERVERS: OnceCell<Vec<Server>> = OnceCell::const_new();

#[derive(Debug)]
struct Quorum {
    urls: Vec<String>,
    prefix: String,
}

/// The servers are as old as the test program, and none is ever emptied.
#[derive(Debug)]
struct Old(usize);

#[async_trait]
impl Witness for Old {
    async fn vouch(&self) -> lock_core::Result<Vouch> {
        Ok(Vouch::new(self.0.to_string(), Duration::MAX))
    }
}

fn store(urls: &[String], prefix: &str) -> Answer<Arc<dyn LockPersistence>> {
    let nodes = urls.iter().enumerate().map(|(i, url)| {
        let config = RedisConfig::from_url(url)?.with_prefix(Prefix::new(prefix)?);
        let store = Arc::new(RedisPersistence::new(&config)?);
        Ok(Node::new(i.to_string(), store, Arc::new(Old(i))))
    });
    let nodes: Vec<Node> = nodes.collect::<lock_core::Result<_>>()?;
    let quorum = quorum::Quorum::new(nodes)?.with_longest_ttl(Duration::from_secs(24 * 60 * 60));
    Ok(Arc::new(quorum))
}

impl Quorum {
    async fn by_hand(&self) -> Answer<Vec<MultiplexedConnection>> {
        let mut all = Vec::new();
        for url in &self.urls {
            let client = redis::Client::open(url.as_str()).map_err(Stop::failed)?;
            let connection = client.get_multiplexed_async_connection().await;
            all.push(connection.map_err(Stop::failed)?);
        }
        Ok(all)
    }

    fn key(&self, name: &LockName, kind: &str) -> String {
        format!("{}{{.{name}}}:{kind}", self.prefix)
    }
}

#[async_trait]
impl Harness for Quorum {
    async fn new() -> Answer<Self> {
        static PREFIXES: AtomicU32 = AtomicU32::new(0);
        let started = SERVERS.get_or_init(async || {
            let start = || {
                (0..3)
                    .map_while(|_| servers::or_skip(Server::redis().start()))
                    .collect()
            };
            tokio::task::spawn_blocking(start).await.unwrap_or_default()
        });
        let started = started.await;
        if started.len() < 3 {
            return Err(Stop::not_applicable("there is no redis on this machine"));
        }
        let number = PREFIXES.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            urls: started
                .iter()
                .map(|server| server.url().to_owned())
                .collect(),
            prefix: format!("c{}-{number}:", std::process::id()),
        })
    }

    fn backend(&self) -> &'static str {
        "redis-quorum"
    }

    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        store(&self.urls, &self.prefix)
    }

    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }

    fn locator(&self) -> Answer<String> {
        Ok(format!("{} {}", self.prefix, self.urls.join(" ")))
    }

    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        let (prefix, urls) = locator
            .split_once(' ')
            .ok_or_else(|| Stop::failed("a locator is a prefix and URLs"))?;
        let urls: Vec<String> = urls.split(' ').map(str::to_owned).collect();
        store(&urls, prefix)
    }

    async fn wipe(&self, name: &LockName) -> Answer<()> {
        let keys: Vec<_> = ["lease", "mark", "line", "waiters"]
            .map(|kind| self.key(name, kind))
            .into();
        for mut server in self.by_hand().await? {
            let _: () = server.del(&keys).await.map_err(Stop::failed)?;
        }
        Ok(())
    }

    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let fields = [
            ("owner", owner.to_string()),
            ("nonce", Nonce::random().to_string()),
        ];
        for mut server in self.by_hand().await? {
            let stolen = server.hset_multiple(self.key(name, "lease"), &fields).await;
            let _: () = stolen.map_err(Stop::failed)?;
        }
        Ok(())
    }

    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable("Redis has no locks of single keys"))
    }

    async fn residue(&self) -> Answer<u64> {
        let mut residue = 0;
        for mut server in self.by_hand().await? {
            let keys = server.keys(format!("{}*", self.prefix)).await;
            let keys: Vec<String> = keys.map_err(Stop::failed)?;
            for key in keys {
                let ttl: i64 = server.pttl(&key).await.map_err(Stop::failed)?;
                if ttl == -1 || key.ends_with(":line") || key.ends_with(":waiters") {
                    residue += 1;
                }
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
            (
                "c_renewal::a_blocked_entry_delays_no_other",
                "Redis has no locks of single keys",
            ),
            (
                "contract::if_unchanged_is_tested_in_the_store",
                "each node has versions of its own",
            ),
        ]
    }
}

conformance_tests::suite!(Quorum);
