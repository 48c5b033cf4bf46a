//! What nodes are called, how they are ordered, and what is written into them.

use std::time::Duration;

use lock_core::{
    Error, ErrorKind, Handle, Holder, LockName, Metadata, Nonce, Owner, Result, Token,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

/// A dot is escaped too: `.` and `..` are no names of nodes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

pub(crate) fn escape(name: &LockName) -> String {
    utf8_percent_encode(name.as_str(), ESCAPED).to_string()
}

/// `None` for a node that is not one of ours.
pub(crate) fn unescape(node: &str) -> Option<LockName> {
    let text = percent_decode_str(node).decode_utf8().ok()?;
    let name = LockName::new(text).ok()?;
    (escape(&name) == node).then_some(name)
}

/// What the servers append a sequence number to.
pub(crate) fn prefix(nonce: Nonce) -> String {
    let hex = nonce.to_string();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    format!("_c_{}-lock-", parts.join("-"))
}

/// The sequence number of a child that stands in line; `None` for any other child. Past the largest
/// number the servers go on with the smallest, which is written with a sign.
pub(crate) fn sequence(child: &str) -> Option<i32> {
    let (_, number) = child.rsplit_once("lock-").filter(|(_, n)| !n.is_empty())?;
    // In `-lock--2147483648` the sign stays with the number.
    (number.len() >= 10).then(|| number.parse().ok())?
}

/// Those that stand in line, the first one first. Only the number counts, never the text before it.
pub(crate) fn line(children: Vec<String>) -> Vec<String> {
    let mut line: Vec<(i32, String)> = children
        .into_iter()
        .filter_map(|child| Some((sequence(&child)?, child)))
        .collect();
    // Numbers are compared by their distance, which is right over the wrap: those alive at once are close.
    let Some(&(any, _)) = line.first() else {
        return Vec::new();
    };
    line.sort_by_key(|(number, _)| number.wrapping_sub(any));
    line.into_iter().map(|(_, child)| child).collect()
}

/// What an entry says of its owner.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Data {
    pub(crate) owner: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) metadata: String,
    pub(crate) ttl_ms: u64,
    /// What somebody wishes of the holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<String>,
}

impl Data {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| {
            let text =
                "a node in the line of this name is not ours: another program uses the same folder";
            Error::new(ErrorKind::Conflict, text).with_source(error)
        })
    }

    pub(crate) fn write(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(ErrorKind::Backend, "an entry cannot be written").with_source(error)
        })
    }

    /// The servers tell nobody what is left of a session. What the holder asked for is never less.
    pub(crate) fn holder(&self, stat: &Stat, handle: Handle) -> Result<Holder> {
        let ttl = Duration::from_millis(self.ttl_ms);
        let owner = Owner::new(&self.owner)?;
        let version = u64::try_from(stat.mzxid).unwrap_or(u64::MAX);
        let holder = Holder::new(owner, token(stat)?, ttl, ttl, version);
        let holder = holder.with_metadata(Metadata::new(&self.metadata)?);
        Ok(holder.with_handle(handle))
    }
}

/// The transaction that made the node: larger than that of every node before it.
pub(crate) fn token(stat: &Stat) -> Result<Token> {
    Token::new(u64::try_from(stat.czxid).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(children: &[&str]) -> Vec<String> {
        line(children.iter().map(|&c| c.to_owned()).collect())
    }

    #[test]
    fn only_the_number_orders() {
        let children = [
            "_c_ffff-lock-0000000001",
            "_c_0000-lock-0000000003",
            "lock-0000000002",
        ];
        let expected = [children[0], children[2], children[1]];
        assert_eq!(texts(&children), expected);
    }

    #[test]
    fn the_order_holds_over_the_wrap() {
        let children = [
            "a-lock--2147483647",
            "z-lock-2147483646",
            "b-lock--2147483648",
            "y-lock-2147483647",
        ];
        let expected = [children[1], children[3], children[2], children[0]];
        for turn in 0..4 {
            let mut turned = children;
            turned.rotate_left(turn);
            assert_eq!(texts(&turned), expected, "turned by {turn}");
        }
    }

    #[test]
    fn other_children_do_not_count() {
        let foreign = [
            "config",
            "lock-",
            "x-lock-12",
            "x-lock-000000000a",
            "latch-0000000001",
        ];
        assert!(texts(&foreign).is_empty());
    }

    #[test]
    fn names_come_back() {
        for text in ["a", ".", "..", "a/b", "zookeeper", "ä %2F*", "A_-b"] {
            let name = LockName::new(text).expect("a name");
            let node = escape(&name);
            assert!(!node.contains(['/', '.']), "{node}");
            assert_eq!(unescape(&node), Some(name));
        }
        assert_eq!(unescape("a%2f"), None);
    }
}
