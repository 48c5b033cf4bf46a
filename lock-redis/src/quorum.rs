//! A quorum of independent servers, from one URL.

use std::sync::Arc;
use std::time::Duration;

use lock_core::quorum::{Node, Quorum};
use lock_core::{Error, ErrorKind, Result};
use url::Url;

use crate::config::RedisConfig;
use crate::persistence::RedisPersistence;

fn bad(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidConfig, text)
}

/// The store on the independent servers that a URL names: `quorum+redis://USER:PASSWORD@HOST:PORT,HOST:PORT,…/DATABASE`,
/// or `quorum+rediss://` for TLS. User, password, database and the parameters of [`RedisConfig::from_url`] are the same
/// for all of them. Two more are those of the quorum, in milliseconds: `node_timeout_ms` and `longest_ttl_ms`; see
/// [`Quorum`]. Nothing is opened yet.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for anything else, and for fewer than three servers. No part of the URL is repeated but the
/// name of an unknown parameter.
pub fn quorum(url: &str) -> Result<Quorum> {
    let unreadable = || {
        bad(
            "not a URL of a quorum of Redis servers; write quorum+redis://HOST:PORT,HOST:PORT,HOST:PORT/DATABASE",
        )
    };
    let (scheme, rest) = url
        .strip_prefix("quorum+")
        .and_then(|url| url.split_once("://"))
        .filter(|(scheme, _)| matches!(*scheme, "redis" | "rediss"))
        .ok_or_else(unreadable)?;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let hosts: Vec<&str> = hosts.split(',').collect();
    if hosts.len() < 3 || hosts.iter().any(|host| host.is_empty()) {
        return Err(bad(format!(
            "a quorum needs at least three servers, and the URL names {}; write them with commas between",
            hosts.iter().filter(|host| !host.is_empty()).count()
        )));
    }
    let mut longest_ttl = None;
    let mut node_timeout = None;
    let nodes = hosts.iter().map(|host| {
        let url = format!("{scheme}://{user}{host}{tail}");
        let mut url = Url::parse(&url).map_err(|_| unreadable())?;
        let mut others = Vec::new();
        for (key, value) in url.query_pairs() {
            let place = match key.as_ref() {
                "longest_ttl_ms" => &mut longest_ttl,
                "node_timeout_ms" => &mut node_timeout,
                _ => {
                    others.push((key.into_owned(), value.into_owned()));
                    continue;
                }
            };
            let number = value.parse().ok().filter(|number: &u64| *number > 0);
            let number = number.ok_or_else(|| {
                bad(format!(
                    "the parameter {key} of the quorum's URL is a number of milliseconds"
                ))
            })?;
            *place = Some(Duration::from_millis(number));
        }
        url.set_query(None);
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(others);
        }
        let config = RedisConfig::from_url(url.as_str())?;
        let store = Arc::new(RedisPersistence::new(&config)?);
        Ok(Node::new(config.place()?, Arc::clone(&store) as _, store))
    });
    let nodes: Vec<Node> = nodes.collect::<Result<_>>()?;
    let mut quorum = Quorum::new(nodes)?;
    if let Some(longest) = longest_ttl {
        quorum = quorum.with_longest_ttl(longest);
    }
    if let Some(timeout) = node_timeout {
        quorum = quorum.with_node_timeout(timeout);
    }
    Ok(quorum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::LockPersistence as _;

    #[test]
    fn urls_are_read_and_bad_ones_are_not_repeated() {
        let quorum = quorum(
            "quorum+redis://me:hunter2@a:1,[::1]:2,c/3?prefix=app:&longest_ttl_ms=5000&node_timeout_ms=100",
        )
        .unwrap();
        assert_eq!(quorum.capabilities().ttl.max, Duration::from_secs(5));
        let shown = format!("{quorum:?}");
        for place in ["\"a:1\"", "\"[::1]:2\"", "\"c:6379\"", "100ms"] {
            assert!(shown.contains(place), "{shown}");
        }
        assert!(!shown.contains("hunter2"), "{shown}");
        for url in [
            "quorum+redis://me:hunter2@a,b/0",
            "quorum+redis://me:hunter2@a,,b/0",
            "quorum+redis://me:hunter2@a,b,a/0",
            "quorum+redis://me:hunter2@a,b,c:hunter2/0",
            "quorum+redis://me:hunter2@a,b,c/0?node_timeout_ms=hunter2",
            "quorum+redis://me:hunter2@a,b,c/0?longest_ttl_ms=0",
            "quorum+mysql://me:hunter2@a,b,c/0",
            "quorum+hunter2",
        ] {
            let error = super::quorum(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
}
