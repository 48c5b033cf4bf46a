//! What a quorum writes into the nodes' metadata, so that an onlooker knows the entries of one term.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};

use crate::claim::Holder;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{MAX_METADATA_BYTES, Metadata, Nonce};

const FIRST: &str = "quorum";

/// The id of one bid, which is not its nonce: everybody may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u64);

impl Id {
    /// The id of the bid with this nonce, from which the nonce cannot be told: half of its bits are lost, and the rest are mixed.
    pub(super) fn of(nonce: Nonce) -> Self {
        let mut hasher = DefaultHasher::new();
        nonce.hash(&mut hasher);
        Self(hasher.finish())
    }

    /// A number that differs from one bid to another, for what should not happen to all at once.
    pub(super) const fn spread(self, below: u64) -> u64 {
        self.0 % below
    }
}

/// The metadata of a node's entry: the bid, its token once it is known (0 before), and the metadata of the claim.
pub(super) fn wrap(id: Id, token: u64, inner: &Metadata) -> Result<Metadata> {
    let mut text = String::new();
    // Of fixed width, so that what fits before the token is known also fits after.
    write!(text, "{FIRST} {:016x} {token:016}\n{inner}", id.0).expect("a string takes all");
    Metadata::new(&text).map_err(|_| {
        Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "the metadata has {} bytes; a quorum keeps {} of the {MAX_METADATA_BYTES} for itself",
                inner.as_str().len(),
                text.len() - inner.as_str().len()
            ),
        )
    })
}

/// What [`wrap`] wrote; `None` for an entry of another kind.
pub(super) fn unwrap(metadata: &Metadata) -> Option<(Id, u64, Metadata)> {
    let (first, inner) = metadata.as_str().split_once('\n')?;
    let mut words = first.strip_prefix(FIRST)?.split_ascii_whitespace();
    let id = u64::from_str_radix(words.next()?, 16).ok()?;
    let token = words.next()?.parse().ok()?;
    Some((Id(id), token, Metadata::new(inner).ok()?))
}

/// What the entries of one term have in common, and those of another have not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Term {
    Ours(Id),
    /// Written by somebody who is no quorum.
    Foreign(String, u64),
}

impl Term {
    pub(super) fn of(holder: &Holder) -> Self {
        match unwrap(&holder.metadata) {
            Some((id, ..)) => Self::Ours(id),
            None => Self::Foreign(holder.owner.as_str().to_owned(), holder.token.get()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_of_the_claim_comes_back() {
        for text in ["", "a", "two\nlines", "quorum 1 2\nx"] {
            let inner = Metadata::new(text).unwrap();
            let id = Id::of(Nonce::random());
            let wrapped = wrap(id, 1_796_000_000_000_000, &inner).unwrap();
            assert_eq!(unwrap(&wrapped), Some((id, 1_796_000_000_000_000, inner)));
        }
        for foreign in ["", "quorum", "quorum x 0\n", "me\n"] {
            assert_eq!(
                unwrap(&Metadata::new(foreign).unwrap()),
                None,
                "{foreign:?}"
            );
        }
        let long = Metadata::new("x".repeat(MAX_METADATA_BYTES)).unwrap();
        let error = wrap(Id::of(Nonce::random()), 0, &long).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(
            error.message().contains("4096 bytes; a quorum keeps 41"),
            "{error}"
        );
    }
}
