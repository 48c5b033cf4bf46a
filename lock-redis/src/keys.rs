//! The keys of one name, all in one slot of a cluster.

use lock_core::{Error, ErrorKind, LockName, Nonce, Result};
use serde::{Deserialize, Serialize};

/// Which keys a store uses: all begin with it.
///
/// Up to 64 letters, digits, or `_ - . : /`; `lockkit:` by default. Other characters would change the slot of
/// a key or be a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(String);

impl Prefix {
    /// A prefix of keys.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for other characters, and for more than 64 of them.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        let known = |c: u8| c.is_ascii_alphanumeric() || b"_-.:/".contains(&c);
        if text.len() > 64 || !text.bytes().all(known) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "a key prefix is at most 64 letters, digits, or one of _ - . : /; shorten it or leave the others out",
            ));
        }
        Ok(Self(text))
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A lease, its mark, the line, the waiters, and the stone of a dead nonce. The braces make the name the part
    /// that chooses the slot; the dot keeps that part from being empty, which a name that begins with a brace
    /// would make it.
    pub(crate) fn keys(&self, name: &LockName, nonce: Option<Nonce>) -> Vec<String> {
        let key = |kind: &str| format!("{}{{.{name}}}:{kind}", self.0);
        let mut keys: Vec<_> = KINDS.map(key).into();
        if let Some(nonce) = nonce {
            keys.push(key(&format!("dead:{nonce}")));
        }
        keys
    }

    /// The key that tells since when the server has not been emptied. No key of a name is like it.
    pub(crate) fn born(&self) -> String {
        format!("{}born", self.0)
    }

    /// A pattern that all marks of names with this beginning match, and few other keys.
    pub(crate) fn marks(&self, beginning: &str) -> String {
        let mut pattern = format!("{}{{.", self.0);
        for c in beginning.chars() {
            if "*?[]^\\".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push_str("*}:mark");
        pattern
    }

    /// The name whose mark this key is.
    pub(crate) fn name_of(&self, mark: &str) -> Option<LockName> {
        let name = mark
            .strip_prefix(&self.0)?
            .strip_prefix("{.")?
            .strip_suffix("}:mark")?;
        LockName::new(name).ok()
    }
}

const KINDS: [&str; 4] = ["lease", "mark", "line", "waiters"];

impl Default for Prefix {
    fn default() -> Self {
        Self("lockkit:".to_owned())
    }
}

impl TryFrom<String> for Prefix {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a key that chooses its slot, by the rule of the server.
    fn hashed(key: &str) -> &str {
        if let Some((_, rest)) = key.split_once('{')
            && let Some((tag, _)) = rest.split_once('}')
            && !tag.is_empty()
        {
            return tag;
        }
        key
    }

    /// Field case: a name with braces must not tear its keys apart.
    #[test]
    fn all_keys_of_a_name_are_in_one_slot() {
        let prefix = Prefix::default();
        let mut all = std::collections::BTreeSet::new();
        for name in ["a", "{a}", "}b{", "{}", "a}:lease", "a}:mark", "{{", "*[?"] {
            let name = LockName::new(name).unwrap();
            let keys = prefix.keys(&name, Some(Nonce::random()));
            assert!(
                keys.iter().all(|k| hashed(k) == hashed(&keys[0])),
                "{keys:?}"
            );
            assert_eq!(prefix.name_of(&keys[1]), Some(name));
            for key in keys {
                assert!(all.insert(key.clone()), "{key} stands for two things");
            }
        }
    }

    #[test]
    fn prefixes_are_checked() {
        for bad in ["a{b", "a*", "a b", &"x".repeat(65)] {
            assert!(Prefix::new(bad).is_err(), "{bad}");
        }
        assert!(Prefix::new("").is_ok());
    }
}
