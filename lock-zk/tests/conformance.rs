//! ZooKeeper passes the suite, on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::servers::{self, Kind};
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{LockName, LockPersistence, Owner};
use lock_zk::{ZooKeeperConfig, ZooKeeperPersistence};
use zookeeper_client::{Acls, Client, CreateMode};

const SHARED: &str = "the server is shared";

/// A folder of the shared server, and a session as an operator has it.
#[derive(Debug)]
struct Folder {
    url: String,
    path: String,
    operator: Client,
}

fn store(url: &str) -> Answer<Arc<dyn LockPersistence>> {
    let config = ZooKeeperConfig::from_url(url)?;
    Ok(Arc::new(ZooKeeperPersistence::new(config)))
}

impl Folder {
    /// The children under the folder of a name. The names that the cases disturb need no escaping.
    async fn children(&self, name: &str) -> Answer<Vec<String>> {
        let folder = format!("{}/{name}", self.path);
        match self.operator.list_children(&folder).await {
            Ok(children) => Ok(children.iter().map(|c| format!("{folder}/{c}")).collect()),
            Err(zookeeper_client::Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(Stop::failed(error)),
        }
    }
}

#[async_trait]
impl Harness for Folder {
    async fn new() -> Answer<Self> {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let server =
            tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(Kind::ZooKeeper)));
        let Some(server) = server.await.map_err(Stop::failed)? else {
            return Err(Stop::not_applicable(
                "there is no zookeeper on this machine",
            ));
        };
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = format!("/c{}_{number}", std::process::id());
        let hosts = server.url().trim_start_matches("zookeeper://").to_owned();
        let operator = Client::connector()
            .with_session_timeout(Duration::from_secs(60))
            .connect(&hosts)
            .await
            .map_err(Stop::failed)?;
        Ok(Self {
            url: format!("{}{path}?tick=100", server.url()),
            path,
            operator,
        })
    }

    fn backend(&self) -> &'static str {
        "zookeeper"
    }

    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        store(&self.url)
    }

    /// A session is asked for a quarter more than ttl and tick, and ends at a tick.
    fn expiry_slack(&self) -> Duration {
        Duration::from_millis(1000)
    }

    fn locator(&self) -> Answer<String> {
        Ok(self.url.clone())
    }

    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        store(locator)
    }

    async fn wipe(&self, name: &LockName) -> Answer<()> {
        for path in self.children(name.as_str()).await? {
            self.operator
                .delete(&path, None)
                .await
                .map_err(Stop::failed)?;
        }
        Ok(())
    }

    /// The name of a node cannot be changed: it is deleted, and one of another nonce stands there.
    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        self.wipe(name).await?;
        let path = format!(
            "{}/{name}/_c_00000000-0000-0000-0000-000000000000-lock-",
            self.path
        );
        let data = serde_json::json!({ "owner": owner.as_str(), "ttl_ms": 60_000 }).to_string();
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let made = self.operator.create(&path, data.as_bytes(), &options).await;
        made.map(drop).map_err(Stop::failed)
    }

    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable("there is no lock on one entry"))
    }

    async fn residue(&self) -> Answer<u64> {
        let names = self.operator.list_children(&self.path).await;
        let mut left = 0;
        for name in names.map_err(Stop::failed)? {
            // The first in the line is the holder.
            left += self.children(&name).await?.len().saturating_sub(1) as u64;
        }
        Ok(left)
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
                "there is no lock on one entry",
            ),
            (
                "contract::if_unchanged_is_tested_in_the_store",
                "the store cannot make a takeover conditional: nothing that has expired is left to compare",
            ),
            (
                "contract::min_token_is_kept",
                "the store does not take a least token: the servers number the nodes",
            ),
        ]
    }
}

conformance_tests::suite!(Folder);
