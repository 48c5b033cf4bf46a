//! The memory store passes the suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Answer, Harness, Stop};
use lock_core::memory::MemoryStore;
use lock_core::{LockName, LockPersistence, Owner};

#[derive(Debug)]
struct Memory(MemoryStore);

const HIDDEN: &str = "nothing reaches the memory of a process but the store itself";

#[async_trait]
impl Harness for Memory {
    async fn new() -> Answer<Self> {
        Ok(Self(MemoryStore::new()))
    }
    fn backend(&self) -> &'static str {
        "memory"
    }
    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(self.0.clone()))
    }
    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }
    fn locator(&self) -> Answer<String> {
        Err(Stop::not_applicable(HIDDEN))
    }
    async fn open_at(_: &str) -> Answer<Arc<dyn LockPersistence>> {
        Err(Stop::not_applicable(HIDDEN))
    }
    async fn wipe(&self, _: &LockName) -> Answer<()> {
        Err(Stop::not_applicable(HIDDEN))
    }
    async fn steal(&self, _: &LockName, _: &Owner) -> Answer<()> {
        Err(Stop::not_applicable(HIDDEN))
    }
    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable(HIDDEN))
    }
    async fn residue(&self) -> Answer<u64> {
        Err(Stop::not_applicable(HIDDEN))
    }
    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable("there is no server"))
    }
    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable("there is no server"))
    }
    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

conformance_tests::suite!(Memory);
