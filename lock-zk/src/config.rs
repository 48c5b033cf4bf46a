//! Where the servers are, and what they were told.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use url::Url;

/// The tick of a server whose configuration does not say otherwise.
const DEFAULT_TICK: Duration = Duration::from_secs(2);

/// The folder of the locks when the URL names none.
const DEFAULT_FOLDER: &str = "/lockkit";

/// How to reach an ensemble, and the folder that the locks live in.
#[derive(Clone)]
pub struct ZooKeeperConfig {
    pub(crate) servers: String,
    pub(crate) folder: String,
    pub(crate) tick: Duration,
}

impl fmt::Debug for ZooKeeperConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperConfig")
            .field("servers", &self.servers)
            .field("folder", &self.folder)
            .field("tick", &self.tick)
            .finish()
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

impl ZooKeeperConfig {
    /// The ensemble of a URL `zookeeper://HOST[:PORT][,HOST[:PORT]…][/FOLDER][?tick=MILLISECONDS]`.
    ///
    /// The folder is made when it is missing; without one it is `/lockkit`. `tick` is the `tickTime` of
    /// the servers, 2000 when it is not given; it must not be smaller than theirs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for anything else. Nothing of the URL is repeated.
    pub fn from_url(url: &str) -> Result<Self> {
        let rest = url
            .strip_prefix("zookeeper://")
            .ok_or_else(|| invalid("a ZooKeeper URL begins with zookeeper://"))?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (servers, tail) = rest.split_at(end);
        if servers.contains('@') {
            return Err(invalid(
                "a user and password are not supported on ZooKeeper yet; leave them out of the URL",
            ));
        }
        for server in servers.split(',') {
            let parsed = Url::parse(&format!("zookeeper://{server}"));
            let whole = parsed.is_ok_and(|u| u.has_host() && u.path().is_empty());
            if !whole {
                return Err(invalid(
                    "the servers of a ZooKeeper URL are HOST:PORT with commas between, and one of them is not",
                ));
            }
        }
        // The host was looked at above; what follows it is parsed by the crate for URLs.
        let tail = Url::parse(&format!("zookeeper://h{tail}"))
            .map_err(|_| invalid("the part after the servers of a ZooKeeper URL is not one"))?;
        if tail.fragment().is_some() {
            return Err(invalid("a ZooKeeper URL has no part after #"));
        }
        let folder = tail.path().trim_end_matches('/');
        let folder = if folder.is_empty() {
            DEFAULT_FOLDER
        } else {
            folder
        };
        let plain = |part: &str| {
            !matches!(part, "" | "." | ".." | "zookeeper")
                && part
                    .bytes()
                    .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c))
        };
        if !folder[1..].split('/').all(plain) {
            return Err(invalid(
                "the folder in a ZooKeeper URL is words of letters, digits, '-', '_' and '.' with / between",
            ));
        }
        let mut tick = DEFAULT_TICK;
        for (key, value) in tail.query_pairs() {
            let millis = value
                .parse()
                .ok()
                .filter(|millis| (1..=60_000).contains(millis));
            match (key.as_ref(), millis) {
                ("tick", Some(millis)) => tick = Duration::from_millis(millis),
                ("tick", None) => {
                    return Err(invalid(
                        "tick in a ZooKeeper URL is 1 to 60000 milliseconds",
                    ));
                }
                _ => return Err(invalid("a ZooKeeper URL takes the parameter tick alone")),
            }
        }
        Ok(Self {
            servers: servers.to_owned(),
            folder: folder.to_owned(),
            tick,
        })
    }

    /// The session timeout to ask for, so that a lease of this ttl fits into it.
    ///
    /// A proof restarts the session's countdown at the server that takes it, and the leader of an
    /// ensemble learns of it up to half a tick later; if that server dies before, what counts is the
    /// ping before the proof, which the driver sends after a fifth of the timeout at the latest.
    pub(crate) fn timeout_for(&self, ttl: Duration) -> Duration {
        (ttl + self.tick) * 5 / 4
    }

    /// The ttl that a negotiated session timeout is good for; see [`timeout_for`](Self::timeout_for).
    pub(crate) fn ttl_within(&self, timeout: Duration) -> Duration {
        (timeout * 4 / 5).saturating_sub(self.tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let config = ZooKeeperConfig::from_url("zookeeper://a,b:2182,[::1]:2183/x/locks?tick=100")
            .expect("a whole one");
        assert_eq!(config.servers, "a,b:2182,[::1]:2183");
        assert_eq!(config.folder, "/x/locks");
        assert_eq!(config.tick, Duration::from_millis(100));
        let config = ZooKeeperConfig::from_url("zookeeper://h").expect("the least");
        assert_eq!(
            (config.folder.as_str(), config.tick),
            ("/lockkit", DEFAULT_TICK)
        );
    }

    #[test]
    fn bad_urls_are_refused_and_not_repeated() {
        for url in [
            "redis://hunter2",
            "zookeeper://",
            "zookeeper://a,,b",
            "zookeeper://me:hunter2@h",
            "zookeeper://h:hunter2",
            "zookeeper://h/../hunter2 x",
            "zookeeper://h/a//hunter2",
            "zookeeper://h/zookeeper/hunter2",
            "zookeeper://h?tick=hunter2",
            "zookeeper://h?tick=0",
            "zookeeper://h?hunter2=1",
            "zookeeper://h#hunter2",
        ] {
            let error = ZooKeeperConfig::from_url(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_ttl_fits_into_the_session_that_is_asked_for_it() {
        for tick in [1, 100, 2000, 60_000] {
            let url = format!("zookeeper://h?tick={tick}");
            let config = ZooKeeperConfig::from_url(&url).expect("a whole one");
            for ttl in [100, 999, 1000, 15_000, 86_400_000].map(Duration::from_millis) {
                let timeout = config.timeout_for(ttl);
                assert_eq!(config.ttl_within(timeout), ttl);
                assert!(ttl < timeout);
            }
        }
    }
}
