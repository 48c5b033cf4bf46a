//! What a store is told about the nodes that share its table.

use std::fmt;
use std::time::Duration;

use jiff::tz::{Offset, TimeZone};
use lock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::config::{DEFAULT_TABLE, TableName};

/// Whose table it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PeerLayout {
    /// `leader_leases` of Dubbo Admin. Tokens are its `version` at the grant.
    LeaderLeases,
    /// `master_lock` of ServiceComb Pack. It has no column for a token.
    MasterLock,
}

impl PeerLayout {
    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::LeaderLeases => "leader_leases",
            Self::MasterLock => "master_lock",
        }
    }

    /// How long a lease of theirs lasts, as they are shipped.
    const fn lease(self) -> Duration {
        match self {
            Self::LeaderLeases => Duration::from_secs(30),
            Self::MasterLock => Duration::from_secs(5),
        }
    }

    /// The longest name, in characters.
    pub(crate) const fn longest_name(self) -> usize {
        match self {
            Self::LeaderLeases => 64,
            Self::MasterLock => 36,
        }
    }
}

/// The zone in which the other nodes write times without a zone: `UTC`, an offset such as `+02:00`, or a
/// name such as `Europe/Berlin`, whose summer time is heeded.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerZone {
    name: String,
    pub(crate) zone: TimeZone,
}

impl PeerZone {
    /// Reads a zone.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for what is neither an offset nor a name that is known.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let zone = match offset(&name) {
            Some(seconds) => Offset::from_seconds(seconds).map(TimeZone::fixed).ok(),
            None => TimeZone::get(&name).ok(),
        };
        match zone {
            Some(zone) => Ok(Self { name, zone }),
            None => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the zone {name:?} is not known; give UTC, an offset such as +02:00, or a name such as \
                     Europe/Berlin"
                ),
            )),
        }
    }

    /// Coordinated universal time.
    #[must_use]
    pub fn utc() -> Self {
        Self {
            name: "UTC".into(),
            zone: TimeZone::UTC,
        }
    }
}

/// The seconds of `+HH:MM` or `-HH:MM`.
fn offset(text: &str) -> Option<i32> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    let two = |digits: &str| match digits.len() {
        2 if digits.bytes().all(|c| c.is_ascii_digit()) => digits.parse::<i32>().ok(),
        _ => None,
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

impl fmt::Debug for PeerZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl TryFrom<String> for PeerZone {
    type Error = Error;
    fn try_from(name: String) -> Result<Self> {
        Self::new(name)
    }
}

impl From<PeerZone> for String {
    fn from(zone: PeerZone) -> Self {
        zone.name
    }
}

/// A table that nodes of another system elect their leader in, and what is known of these nodes.
///
/// They judge by their own clocks, so that exclusion holds only while each of these is within `skew` of
/// the server's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PeerTable {
    /// Whose table it is.
    pub layout: PeerLayout,
    /// How far their clocks may be from the server's.
    pub skew: Duration,
    /// The zone of their times, where a column does not say.
    pub zone: PeerZone,
    /// How long a lease of theirs lasts.
    pub lease: Duration,
}

impl PeerTable {
    /// The part of their lease that the skew may take.
    const SHARE: u32 = 5;

    /// The least skew: a clock is not read any closer over a network.
    const LEAST: Duration = Duration::from_millis(100);

    /// This table as it is shipped, with clocks within a second of the server's, in UTC.
    #[must_use]
    pub fn new(layout: PeerLayout) -> Self {
        Self {
            layout,
            skew: Duration::from_secs(1),
            zone: PeerZone::utc(),
            lease: layout.lease(),
        }
    }

    /// The same table; their clocks are within `skew` of the server's.
    #[must_use]
    pub fn with_skew(mut self, skew: Duration) -> Self {
        self.skew = skew;
        self
    }

    /// The same table; their times are of this zone.
    #[must_use]
    pub fn with_zone(mut self, zone: PeerZone) -> Self {
        self.zone = zone;
        self
    }

    /// The same table; a lease of theirs lasts this long.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let most = self.lease / Self::SHARE;
        if self.skew < Self::LEAST || self.skew > most {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a peer_skew of {:?} cannot be kept; with a peer_lease of {:?} give it {:?} to {most:?}, a fifth \
                     of the lease",
                    self.skew,
                    self.lease,
                    Self::LEAST
                ),
            ));
        }
        if self.lease > Duration::from_secs(24 * 60 * 60) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a peer_lease of {:?} is too long; give it a day at most",
                    self.lease
                ),
            ));
        }
        Ok(())
    }

    /// The table to use when this one is asked for: theirs, unless another is named.
    pub(crate) fn table(&self, asked: &TableName) -> Result<TableName> {
        if asked.as_str() == DEFAULT_TABLE {
            return TableName::new(self.layout.table());
        }
        Ok(asked.clone())
    }
}

/// What a URL says of the peers: each parameter once it was read.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    layout: Option<PeerLayout>,
    skew: Option<Duration>,
    zone: Option<PeerZone>,
    lease: Option<Duration>,
}

fn span(key: &str, text: &str) -> Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let span = match (number.parse::<u32>(), unit) {
        (Ok(n), "ms") => Some(Duration::from_millis(n.into())),
        (Ok(n), "s") => Some(Duration::from_secs(n.into())),
        _ => None,
    };
    span.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!("the value of {key} in the URL is no time; write 500ms or 2s"),
        )
    })
}

impl Parameters {
    pub(crate) const NAMES: &str = "layout, peer_skew, peer_zone, peer_lease";

    /// Whether `key` was one of these.
    pub(crate) fn take(&mut self, key: &str, value: &str) -> Result<bool> {
        match key {
            "layout" => {
                self.layout = Some(match value {
                    "leader_leases" => PeerLayout::LeaderLeases,
                    "master_lock" => PeerLayout::MasterLock,
                    _ => {
                        return Err(Error::new(
                            ErrorKind::InvalidConfig,
                            "the layout in the URL is not known; known are leader_leases and master_lock",
                        ));
                    }
                });
            }
            "peer_skew" => self.skew = Some(span(key, value)?),
            "peer_lease" => self.lease = Some(span(key, value)?),
            // In a URL a plus sign stands for a space.
            "peer_zone" => self.zone = Some(PeerZone::new(value.replace(' ', "+"))?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(crate) fn table(self) -> Result<Option<PeerTable>> {
        let Some(layout) = self.layout else {
            if self.skew.is_some() || self.zone.is_some() || self.lease.is_some() {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "peer_skew, peer_zone and peer_lease in the URL go with layout=leader_leases or \
                     layout=master_lock",
                ));
            }
            return Ok(None);
        };
        let mut table = PeerTable::new(layout);
        table.skew = self.skew.unwrap_or(table.skew);
        table.zone = self.zone.unwrap_or(table.zone);
        table.lease = self.lease.unwrap_or(table.lease);
        table.check()?;
        Ok(Some(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Option<PeerTable>> {
        let mut read = Parameters::default();
        for (key, value) in parameters {
            assert!(read.take(key, value)?, "{key}");
        }
        read.table()
    }

    #[test]
    fn parameters_are_read_and_checked() {
        assert_eq!(read(&[]).unwrap(), None);
        let all = [
            ("layout", "master_lock"),
            ("peer_skew", "500ms"),
            ("peer_zone", " 02:00"),
            ("peer_lease", "10s"),
        ];
        let table = read(&all).unwrap().unwrap();
        let expected = PeerTable::new(PeerLayout::MasterLock)
            .with_skew(Duration::from_millis(500))
            .with_zone(PeerZone::new("+02:00").unwrap())
            .with_lease(Duration::from_secs(10));
        assert_eq!(table, expected);
        for good in ["UTC", "Europe/Berlin", "-03:30"] {
            assert!(PeerZone::new(good).is_ok(), "{good}");
        }
        for (parameters, word) in [
            (&[("peer_skew", "1s")][..], "layout="),
            (&[("layout", "mine")], "leader_leases"),
            (&[("layout", "master_lock"), ("peer_skew", "1001ms")], "1s"),
            (&[("layout", "master_lock"), ("peer_skew", "0s")], "100ms"),
            (&[("layout", "master_lock"), ("peer_skew", "1h")], "500ms"),
            (
                &[("layout", "master_lock"), ("peer_zone", "+2:00")],
                "+02:00",
            ),
            (
                &[("layout", "master_lock"), ("peer_zone", "Mars/Base")],
                "Berlin",
            ),
        ] {
            let error = read(parameters).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{parameters:?}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
