//! Redis; what is measured: `conformance_tests::bench`.
//!
//! ```sh
//! cargo bench -p lock-redis --bench redis
//! ```

use std::sync::Arc;

use conformance_tests::bench::{self, Measured, Result};
use conformance_tests::servers::Server;
use lock_core::LockPersistence;
use lock_redis::{RedisConfig, RedisPersistence};
use redis::aio::MultiplexedConnection;

struct Redis(MultiplexedConnection);

impl Measured for Redis {
    // The server writes nothing to the disk here: the network is the floor.
    const WRITE: &str = "PING";
    const GOAL: f64 = 1.3;

    fn store(url: &str) -> Result<Arc<dyn LockPersistence>> {
        let config = RedisConfig::from_url(url)?;
        Ok(Arc::new(RedisPersistence::new(&config)?))
    }

    async fn connect(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        Ok(Self(client.get_multiplexed_async_connection().await?))
    }

    async fn noop(&mut self) -> Result<()> {
        self.write().await
    }

    async fn write(&mut self) -> Result<()> {
        Ok(redis::cmd("PING").exec_async(&mut self.0).await?)
    }

    /// Scripts that were run: each request of a store is one.
    async fn requests(&mut self) -> Result<u64> {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query_async(&mut self.0)
            .await?;
        let calls = info
            .lines()
            .filter(|line| line.starts_with("cmdstat_eval"))
            .filter_map(|line| {
                line.split_once("calls=")?
                    .1
                    .split(',')
                    .next()?
                    .parse::<u64>()
                    .ok()
            });
        Ok(calls.sum())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let crowds = [(8, 8), (32, 32), (200, 200), (8, 1), (32, 1), (200, 1)];
    bench::run::<Redis>(Server::redis, &crowds).await
}
