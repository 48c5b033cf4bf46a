//! A node of the other system: the statements that it sends, by a clock of its own, on either database.

pub(crate) mod elections;

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use lock_sql::PeerLayout;

/// A connection as their driver has it.
#[async_trait]
pub(crate) trait Session: Send + Sync + 'static {
    /// How many rows the statement found.
    async fn run(&mut self, sql: &str) -> u64;
    async fn number(&mut self, sql: &str) -> i64;
}

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap()
}

pub(crate) fn wall_clock() -> i64 {
    micros(SystemTime::UNIX_EPOCH.elapsed().unwrap())
}

pub(crate) struct Peer<S> {
    pub(crate) session: S,
    layout: PeerLayout,
    pub(crate) table: String,
    /// Its identity.
    pub(crate) id: String,
    zone: TimeZone,
    /// Where the column wants to be told the zone.
    zoned: bool,
    /// By how much its clock is ahead, in microseconds.
    pub(crate) ahead: i64,
    lease: Duration,
    version: i64,
    /// Until when it believes to lead, by its own clock.
    pub(crate) until: i64,
}

impl<S: Session> Peer<S> {
    pub(crate) fn new(session: S, layout: PeerLayout, table: &str, id: &str, zoned: bool) -> Self {
        Self {
            session,
            layout,
            table: table.to_owned(),
            id: id.to_owned(),
            zone: TimeZone::UTC,
            zoned,
            ahead: 0,
            lease: Duration::from_secs(30),
            version: 0,
            until: 0,
        }
    }

    pub(crate) fn with_zone(mut self, zone: TimeZone) -> Self {
        self.zone = zone;
        self
    }

    pub(crate) fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    pub(crate) fn with_ahead(mut self, micros: i64) -> Self {
        self.ahead = micros;
        self
    }

    pub(crate) fn now(&self) -> i64 {
        wall_clock() + self.ahead
    }

    fn time(&self, micros: i64) -> String {
        let at = Timestamp::from_microsecond(micros).unwrap();
        let shown = self.zone.to_datetime(at).strftime("%Y-%m-%d %H:%M:%S%.6f");
        format!("'{shown}{}'", if self.zoned { "+00" } else { "" })
    }

    /// Whether it leads now, having tried or renewed as its ticks do.
    pub(crate) async fn tick(&mut self, component: &str) -> bool {
        let now = self.now();
        let end = now + micros(self.lease);
        let (t, id) = (self.table.clone(), self.id.clone());
        let (at, to) = (self.time(now), self.time(end));
        let leads = match self.layout {
            PeerLayout::LeaderLeases => {
                let set = format!(
                    "UPDATE {t} SET holder_id = '{id}', acquired_at = {at}, expires_at = {to}, version = version + 1 \
                     WHERE component = '{component}'"
                );
                let mut leads = false;
                if self.until > 0 {
                    let held = format!(
                        "{set} AND holder_id = '{id}' AND version = {}",
                        self.version
                    );
                    leads = self.session.run(&held).await > 0;
                }
                if !leads {
                    let take = format!("{set} AND (expires_at < {at} OR holder_id = '{id}')");
                    leads = self.session.run(&take).await > 0;
                }
                if !leads && self.is_absent("component", component).await {
                    let insert = format!(
                        "INSERT INTO {t} (component, holder_id, acquired_at, expires_at, version) \
                         VALUES ('{component}', '{id}', {at}, {to}, 1)"
                    );
                    leads = self.session.run(&insert).await > 0;
                }
                if leads {
                    let read = format!("SELECT version FROM {t} WHERE component = '{component}'");
                    self.version = self.session.number(&read).await;
                }
                leads
            }
            PeerLayout::MasterLock => {
                if self.is_absent("serviceName", component).await {
                    let insert = format!(
                        "INSERT INTO {t} (serviceName, expireTime, lockedTime, instanceId) \
                         VALUES ('{component}', {to}, {at}, '{id}')"
                    );
                    self.session.run(&insert).await > 0
                } else {
                    let update = format!(
                        "UPDATE {t} SET expireTime = {to}, lockedTime = {at}, instanceId = '{id}' \
                         WHERE serviceName = '{component}' AND (expireTime <= {at} OR instanceId = '{id}')"
                    );
                    self.session.run(&update).await > 0
                }
            }
            _ => unreachable!("no other layout is tested"),
        };
        self.until = if leads { end } else { 0 };
        leads
    }

    async fn is_absent(&mut self, column: &str, component: &str) -> bool {
        let sql = format!(
            "SELECT COUNT(*) FROM {} WHERE {column} = '{component}'",
            self.table
        );
        self.session.number(&sql).await == 0
    }

    /// As its nodes release, or, for those that cannot, as they understand it.
    pub(crate) async fn release(&mut self, component: &str) {
        let now = self.now();
        let (t, id) = (self.table.clone(), self.id.clone());
        let sql = match self.layout {
            PeerLayout::LeaderLeases => format!(
                "UPDATE {t} SET expires_at = {} WHERE component = '{component}' AND holder_id = '{id}'",
                self.time(now - 1_000_000)
            ),
            _ => format!(
                "UPDATE {t} SET expireTime = {} WHERE serviceName = '{component}' AND instanceId = '{id}'",
                self.time(now)
            ),
        };
        self.session.run(&sql).await;
        self.until = 0;
    }
}
