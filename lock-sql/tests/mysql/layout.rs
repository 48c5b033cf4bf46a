//! The tables of others: our candidates and theirs in one election.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::tz::TimeZone;
use lock_core::{ErrorKind, Fencing, LockPersistence as _};
use lock_sql::sqlx::mysql::MySqlConnection;
use lock_sql::sqlx::{self, AssertSqlSafe};
use lock_sql::{PeerLayout, PeerTable, PeerZone, SqlPersistence};

use crate::peer::{Peer, Session, elections};
use crate::support::{Place, claim, granted, number};

struct Theirs(MySqlConnection);

#[async_trait]
impl Session for Theirs {
    async fn run(&mut self, sql: &str) -> u64 {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.0).await;
        match done {
            Ok(done) => done.rows_affected(),
            // The unique key lets one win.
            Err(error) if error.to_string().contains("Duplicate entry") => 0,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    async fn number(&mut self, sql: &str) -> i64 {
        number(&mut self.0, sql).await
    }
}

const SKEW: Duration = Duration::from_millis(600);
/// Of the times of their nodes.
const ZONE: &str = "America/St_Johns";

struct Shared {
    place: Place,
    layout: PeerLayout,
}

impl Shared {
    async fn new(layout: PeerLayout) -> Option<Self> {
        let mut place = Place::shared().await?;
        place.table = format!("peers_{}", place.table);
        Some(Self { place, layout })
    }

    fn step(&self) -> Duration {
        match self.layout {
            PeerLayout::LeaderLeases => Duration::from_millis(1),
            _ => Duration::from_secs(1),
        }
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(3) + self.step()
    }

    fn peers(&self) -> PeerTable {
        PeerTable::new(self.layout)
            .with_lease(self.lease())
            .with_skew(SKEW)
            .with_zone(PeerZone::new(ZONE).unwrap())
    }

    fn unprepared(&self, peers: PeerTable) -> SqlPersistence {
        SqlPersistence::mysql(&self.place.config().with_peers(peers)).unwrap()
    }

    async fn store(&self, peers: PeerTable) -> Arc<SqlPersistence> {
        let store = self.unprepared(peers);
        store.prepare().await.unwrap();
        store.prepare().await.unwrap();
        Arc::new(store)
    }

    async fn peer(&self, id: &str) -> Peer<Theirs> {
        let session = Theirs(self.place.by_hand().await);
        Peer::new(session, self.layout, &self.place.table, id, false)
            .with_lease(self.lease())
            .with_zone(TimeZone::get(ZONE).unwrap())
    }

    async fn both_ways(&self) {
        let store = self.store(self.peers()).await;
        let slack = SKEW + self.step();
        elections::both_ways(&store, self.peer("host-1").await, self.lease(), slack).await;
    }

    async fn beyond(&self) {
        for ahead in [-5_000_000, -2_800_000, 2_800_000] {
            let store = self.store(self.peers()).await;
            self.place.run("DELETE FROM {}").await;
            let peer = self.peer("host-1").await.with_ahead(ahead);
            elections::beyond(&store, peer, self.lease()).await;
        }
    }

    async fn rounds(&self) {
        let store = self.store(self.peers()).await;
        let mut peers = Vec::new();
        for ahead in [-500, -450, -250, 0, 250, 450, 500, 480] {
            let peer = self.peer("host").await.with_ahead(ahead * 1_000);
            peers.push(peer);
        }
        elections::rounds(store, peers, self.lease()).await;
    }
}

#[tokio::test]
async fn dubbo_and_ours_take_over_from_each_other() {
    if let Some(shared) = Shared::new(PeerLayout::LeaderLeases).await {
        shared.both_ways().await;
    }
}

#[tokio::test]
async fn dubbo_clocks_beyond_the_skew_are_a_conflict() {
    if let Some(shared) = Shared::new(PeerLayout::LeaderLeases).await {
        shared.beyond().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dubbo_and_ours_never_lead_at_once() {
    if let Some(shared) = Shared::new(PeerLayout::LeaderLeases).await {
        shared.rounds().await;
    }
}

/// What their column takes for equal is not one name.
#[tokio::test]
async fn dubbo_has_no_place_for_some_things() {
    let Some(shared) = Shared::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    let store = shared.store(shared.peers()).await;
    elections::refusals(&store, 64).await;
    let ttl = Duration::from_secs(20);
    granted(&store, &claim("Engine", ttl)).await;
    let error = store.try_acquire(&claim("engine", ttl)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(store.list("Eng").await.unwrap().len(), 1);
}

/// A table that is there is used as it is, and refused when its columns are others.
#[tokio::test]
async fn dubbo_tables_of_another_shape_are_refused() {
    let Some(shared) = Shared::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    let place = &shared.place;
    place
        .run(
            "CREATE TABLE {} (id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, component varchar(64) UNIQUE, holder_id \
             varchar(255), acquired_at datetime(3), expires_at datetime(3), version bigint DEFAULT 0, later text)",
        )
        .await;
    shared.store(shared.peers()).await;
    for (change, back, word) in [
        (
            "MODIFY expires_at datetime",
            "MODIFY expires_at datetime(3)",
            "expires_at",
        ),
        ("DROP COLUMN version", "ADD version bigint", "version"),
    ] {
        place.run(&format!("ALTER TABLE {{}} {change}")).await;
        let error = shared
            .unprepared(shared.peers())
            .prepare()
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains(word), "{error}");
        place.run(&format!("ALTER TABLE {{}} {back}")).await;
    }
}

#[tokio::test]
async fn pack_and_ours_take_over_from_each_other() {
    if let Some(shared) = Shared::new(PeerLayout::MasterLock).await {
        shared.both_ways().await;
    }
}

#[tokio::test]
async fn pack_clocks_beyond_the_skew_are_a_conflict() {
    if let Some(shared) = Shared::new(PeerLayout::MasterLock).await {
        shared.beyond().await;
    }
}

/// As a wrong clock is: nobody of ours leads beside a peer whose zone is another than we were told.
#[tokio::test]
async fn pack_zones_that_are_wrong_are_a_conflict() {
    for zone in ["UTC", "Asia/Tokyo"] {
        let Some(shared) = Shared::new(PeerLayout::MasterLock).await else {
            return;
        };
        let peers = shared.peers().with_zone(PeerZone::new(zone).unwrap());
        let store = shared.store(peers).await;
        elections::beyond(&store, shared.peer("[h]:1").await, shared.lease()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pack_and_ours_never_lead_at_once() {
    if let Some(shared) = Shared::new(PeerLayout::MasterLock).await {
        shared.rounds().await;
    }
}

#[tokio::test]
async fn pack_has_no_place_for_some_things() {
    let Some(shared) = Shared::new(PeerLayout::MasterLock).await else {
        return;
    };
    let store = shared.store(shared.peers()).await;
    elections::refusals(&store, 36).await;
    let fencing = store.capabilities().fencing;
    assert!(matches!(fencing, Fencing::None(_)), "{fencing:?}");
}
