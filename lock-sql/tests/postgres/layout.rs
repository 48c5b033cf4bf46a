//! The tables of others: our candidates and theirs in one election.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::tz::TimeZone;
use lock_core::{ErrorKind, Fencing, LockPersistence as _};
use lock_sql::sqlx::postgres::PgConnection;
use lock_sql::sqlx::{AssertSqlSafe, Executor as _};
use lock_sql::{PeerLayout, PeerTable, PeerZone, PostgresConfig, SqlPersistence, TableName};

use crate::peer::{Peer, Session, elections};
use crate::support::{by_hand, fresh, number, run, shared};

struct Theirs(PgConnection);

#[async_trait]
impl Session for Theirs {
    async fn run(&mut self, sql: &str) -> u64 {
        let done = self.0.execute(AssertSqlSafe(sql.to_owned())).await;
        match done {
            Ok(done) => done.rows_affected(),
            // The unique key lets one win.
            Err(error) if error.to_string().contains("duplicate key") => 0,
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    async fn number(&mut self, sql: &str) -> i64 {
        number(&mut self.0, sql).await
    }
}

const LEASE: Duration = Duration::from_secs(3);
const SKEW: Duration = Duration::from_millis(600);
/// Of the times of Pack's nodes.
const ZONE: &str = "America/St_Johns";

struct Place {
    server: conformance_tests::servers::Server,
    table: String,
    layout: PeerLayout,
}

impl Place {
    async fn new(layout: PeerLayout) -> Option<Self> {
        let server = shared().await?;
        let table = fresh("peers");
        Some(Self {
            server,
            table,
            layout,
        })
    }

    fn peers(&self) -> PeerTable {
        PeerTable::new(self.layout)
            .with_lease(LEASE)
            .with_skew(SKEW)
            .with_zone(PeerZone::new(ZONE).unwrap())
    }

    async fn store(&self, peers: PeerTable) -> Arc<SqlPersistence> {
        let config = PostgresConfig::from_url(self.server.url())
            .unwrap()
            .with_table(TableName::new(&self.table).unwrap())
            .with_peers(peers);
        let store = SqlPersistence::postgres(&config).unwrap();
        store.prepare().await.unwrap();
        store.prepare().await.unwrap();
        Arc::new(store)
    }

    async fn peer(&self, id: &str) -> Peer<Theirs> {
        let session = Theirs(by_hand(&self.server).await);
        let zoned = self.layout == PeerLayout::LeaderLeases;
        let peer = Peer::new(session, self.layout, &self.table, id, zoned).with_lease(LEASE);
        if zoned {
            return peer;
        }
        peer.with_zone(TimeZone::get(ZONE).unwrap())
    }

    /// What a grant is shorter by.
    fn slack(&self) -> Duration {
        SKEW + match self.layout {
            PeerLayout::LeaderLeases => Duration::from_micros(1),
            _ => Duration::from_millis(1),
        }
    }

    async fn both_ways(&self) {
        let store = self.store(self.peers()).await;
        elections::both_ways(&store, self.peer("host-1").await, LEASE, self.slack()).await;
    }

    async fn beyond(&self) {
        for ahead in [-4_000_000, -1_500_000, 1_500_000] {
            let store = self.store(self.peers()).await;
            let mut connection = by_hand(&self.server).await;
            run(&mut connection, &format!("DELETE FROM {}", self.table)).await;
            let peer = self.peer("host-1").await.with_ahead(ahead);
            elections::beyond(&store, peer, LEASE).await;
        }
    }

    async fn rounds(&self) {
        let store = self.store(self.peers()).await;
        let mut peers = Vec::new();
        for ahead in [-500, -450, -250, 0, 250, 450, 500, 480] {
            let peer = self.peer("host").await.with_ahead(ahead * 1_000);
            peers.push(peer);
        }
        elections::rounds(store, peers, LEASE).await;
    }
}

#[tokio::test]
async fn dubbo_and_ours_take_over_from_each_other() {
    let Some(place) = Place::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    place.both_ways().await;
}

#[tokio::test]
async fn dubbo_clocks_beyond_the_skew_are_a_conflict() {
    let Some(place) = Place::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    place.beyond().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dubbo_and_ours_never_lead_at_once() {
    let Some(place) = Place::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    place.rounds().await;
}

#[tokio::test]
async fn dubbo_has_no_place_for_some_things() {
    let Some(place) = Place::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    elections::refusals(&*place.store(place.peers()).await, 64).await;
}

/// A table that is there is used as it is, and refused when its columns are others.
#[tokio::test]
async fn dubbo_tables_of_another_shape_are_refused() {
    let Some(place) = Place::new(PeerLayout::LeaderLeases).await else {
        return;
    };
    let t = &place.table;
    let mut connection = by_hand(&place.server).await;
    let theirs = format!(
        "CREATE TABLE {t} (id bigserial PRIMARY KEY, component varchar(64) NOT NULL, holder_id varchar(255), \
         acquired_at timestamptz, expires_at timestamptz, version bigint DEFAULT 0, later text); \
         CREATE UNIQUE INDEX ON {t} (component)"
    );
    run(&mut connection, &theirs).await;
    place.store(place.peers()).await;
    for (change, word) in [
        ("ALTER COLUMN expires_at TYPE timestamp", "expires_at"),
        ("DROP COLUMN version", "version"),
    ] {
        run(&mut connection, &format!("ALTER TABLE {t} {change}")).await;
        let config = PostgresConfig::from_url(place.server.url())
            .unwrap()
            .with_table(TableName::new(t).unwrap())
            .with_peers(place.peers());
        let store = SqlPersistence::postgres(&config).unwrap();
        let error = store.prepare().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert!(error.to_string().contains(word), "{error}");
        let back = format!("ALTER TABLE {t} ALTER COLUMN expires_at TYPE timestamptz");
        run(&mut connection, &back).await;
    }
}

#[tokio::test]
async fn pack_and_ours_take_over_from_each_other() {
    let Some(place) = Place::new(PeerLayout::MasterLock).await else {
        return;
    };
    place.both_ways().await;
}

#[tokio::test]
async fn pack_clocks_beyond_the_skew_are_a_conflict() {
    let Some(place) = Place::new(PeerLayout::MasterLock).await else {
        return;
    };
    place.beyond().await;
}

/// As a wrong clock is: nobody of ours leads beside a peer whose zone is another than we were told.
#[tokio::test]
async fn pack_zones_that_are_wrong_are_a_conflict() {
    for zone in ["UTC", "Asia/Tokyo"] {
        let Some(place) = Place::new(PeerLayout::MasterLock).await else {
            return;
        };
        let peers = place.peers().with_zone(PeerZone::new(zone).unwrap());
        let store = place.store(peers).await;
        elections::beyond(&store, place.peer("[h]:1").await, LEASE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pack_and_ours_never_lead_at_once() {
    let Some(place) = Place::new(PeerLayout::MasterLock).await else {
        return;
    };
    place.rounds().await;
}

#[tokio::test]
async fn pack_has_no_place_for_some_things() {
    let Some(place) = Place::new(PeerLayout::MasterLock).await else {
        return;
    };
    let store = place.store(place.peers()).await;
    elections::refusals(&store, 36).await;
    let fencing = store.capabilities().fencing;
    assert!(matches!(fencing, Fencing::None(_)), "{fencing:?}");
}
