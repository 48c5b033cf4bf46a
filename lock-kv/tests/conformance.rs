//! The in-house store of `examples/custom_backend` passes the suite. Copy this file with it.

#[path = "../examples/custom_backend/kv.rs"]
mod kv;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Answer, Harness, Stop};
use kv::Kv;
use lock_core::{LockName, LockPersistence, Nonce, Owner};
use lock_kv::{KeyValue as _, KvPersistence};
use serde_json::Value;

const NO_SERVER: &str = "there is no server";

/// One namespace: a key-value store in a folder of its own.
#[derive(Debug)]
struct InHouse(tempfile::TempDir);

impl InHouse {
    fn kv(&self) -> Kv {
        Kv::new(self.0.path().to_owned())
    }

    /// As an operator would, past the lock store: gives the record, takes the new one.
    async fn by_hand(&self, name: &LockName, edit: impl Fn(Value) -> Option<Value>) -> Answer<()> {
        let kv = self.kv();
        loop {
            let got = kv.get(name.as_str()).await?;
            let Some(text) = got.value else { return Ok(()) };
            let record = serde_json::from_str(&text).map_err(Stop::failed)?;
            let text = edit(record).map(|record| record.to_string());
            if kv.cas(name.as_str(), got.version, None, text).await? {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Harness for InHouse {
    async fn new() -> Answer<Self> {
        tempfile::tempdir().map(Self).map_err(Stop::failed)
    }
    fn backend(&self) -> &'static str {
        "in-house"
    }
    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(KvPersistence::new(self.kv())))
    }
    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }
    fn locator(&self) -> Answer<String> {
        Ok(self.0.path().to_string_lossy().into_owned())
    }
    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        Ok(Arc::new(KvPersistence::new(Kv::new(locator.into()))))
    }
    async fn wipe(&self, name: &LockName) -> Answer<()> {
        self.by_hand(name, |_| None).await
    }
    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let edit = |mut record: Value| {
            record["owner"] = owner.to_string().into();
            record["nonce"] = Nonce::random().to_string().into();
            Some(record)
        };
        self.by_hand(name, edit).await
    }
    async fn block(&self, _: &LockName, _: Duration) -> Answer<()> {
        Err(Stop::not_applicable("the key-value store locks no key"))
    }
    async fn residue(&self) -> Answer<u64> {
        Err(Stop::not_applicable(
            "there is no queue and no subscription",
        ))
    }
    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(NO_SERVER))
    }
    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(NO_SERVER))
    }
    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        const NO_PUSH: &str = "the key-value store tells nobody of a change";
        &[
            (
                "c_renewal::a_blocked_entry_delays_no_other",
                "the key-value store locks no key",
            ),
            ("h_restart::a_short_restart_costs_no_term", NO_SERVER),
            ("h_restart::a_long_outage_ends_the_term", NO_SERVER),
            ("j_wakeups::a_release_ends_the_wait", NO_PUSH),
            ("j_wakeups::no_release_falls_between_try_and_wait", NO_PUSH),
            ("j_wakeups::watch_tells_of_each_change", NO_PUSH),
        ]
    }
}

conformance_tests::suite!(InHouse);
conformance_tests::elections!(InHouse);
