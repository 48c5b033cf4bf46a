//! What is asked of a store and what it answers: claim, lease, holder, observation.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::name::{LockName, Metadata, Nonce, Owner};
use crate::token::Token;

/// Whether a claim may stand in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One try: nothing stays behind when it is not granted.
    Once,
    /// The claim may enter a queue and keep its place until it is granted or withdrawn.
    /// A store without a queue treats it as [`Once`](Self::Once).
    Queue,
}

/// One wish to hold a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// What is wanted.
    pub name: LockName,
    /// Who wants it; published.
    pub owner: Owner,
    /// The id of the term this may become.
    pub nonce: Nonce,
    /// How long the store is to keep the lease after the last renewal it saw.
    pub ttl: Duration,
    /// Published beside the owner.
    pub metadata: Metadata,
    /// Larger comes first where a store queues by priority; a wish, not a promise.
    pub priority: i32,
    /// Whether it may stand in line.
    pub mode: Mode,
    /// Take an *expired* entry over only if it still has this [`Holder::version`], tested in the same
    /// step; a free or absent one regardless. Only stores whose capabilities say so are asked this.
    pub if_unchanged: Option<u64>,
    /// Grant no token below this. Repeated with the nonce of a grant that has not expired, it raises
    /// that grant's token to this; nothing else ever changes the token of a term.
    ///
    /// For combinators that agree on one token over several stores, and for moving a name to another
    /// store. Only stores whose capabilities say so are asked this.
    pub min_token: Option<Token>,
}

impl Claim {
    /// A claim of mode [`Once`](Mode::Once), without metadata and with priority 0.
    #[must_use]
    pub fn new(name: LockName, owner: Owner, nonce: Nonce, ttl: Duration) -> Self {
        Self {
            name,
            owner,
            nonce,
            ttl,
            metadata: Metadata::default(),
            priority: 0,
            mode: Mode::Once,
            if_unchanged: None,
            min_token: None,
        }
    }

    /// The same claim with this metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// The same claim with this priority.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// The same claim with this mode.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The same claim under this condition.
    #[must_use]
    pub fn with_if_unchanged(mut self, version: Option<u64>) -> Self {
        self.if_unchanged = version;
        self
    }

    /// The same claim for a token that is at least this.
    #[must_use]
    pub fn with_min_token(mut self, token: Option<Token>) -> Self {
        self.min_token = token;
        self
    }

    /// The same claim for another name; for wrappers.
    #[must_use]
    pub fn with_name(mut self, name: LockName) -> Self {
        self.name = name;
        self
    }
}

/// What a store wants to find again in a lease or a holder of its own: a table, the *stored* name, a
/// key.
///
/// Wrappers pass it on; nobody but the store looks inside. All handles are equal: what carries one is
/// compared by the rest.
#[derive(Clone, Default)]
pub struct Handle(Option<Arc<dyn Any + Send + Sync>>);

impl Handle {
    /// A handle that says nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// A handle that holds `value`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// What it holds, if that is a `T`.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_deref()?.downcast_ref()
    }
}

impl PartialEq for Handle {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Handle(..)"
        } else {
            "Handle(none)"
        })
    }
}

/// A granted claim: the store's record that its owner may act until it expires.
///
/// Cheap to clone. Whether it still counts is not written here: ask
/// [`Leadership::check`](crate::Leadership::check).
#[derive(Clone)]
pub struct Lease(Arc<LeaseInner>);

#[derive(Clone)]
struct LeaseInner {
    claim: Claim,
    token: Token,
    ttl: Duration,
    handle: Handle,
}

impl Lease {
    /// The lease that a store grants for `claim`.
    ///
    /// `ttl` is a lower bound of the time the store keeps it, counted from the start of the call
    /// that granted it. It may be less than was asked (a session that is older) or more.
    #[must_use]
    pub fn new(claim: &Claim, token: Token, ttl: Duration, handle: Handle) -> Self {
        Self(Arc::new(LeaseInner {
            claim: claim.clone(),
            token,
            ttl,
            handle,
        }))
    }

    /// The claim that was granted.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.0.claim
    }

    /// What is held.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.0.claim.name
    }

    /// Who holds it.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.0.claim.owner
    }

    /// The id of this term.
    #[must_use]
    pub fn nonce(&self) -> Nonce {
        self.0.claim.nonce
    }

    /// The fencing token of this term.
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token
    }

    /// What the store granted; see [`Lease::new`].
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.0.ttl
    }

    /// What the store wants to find again.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// The same lease under another name; for wrappers.
    #[must_use]
    pub fn with_name(&self, name: LockName) -> Self {
        let mut inner = (*self.0).clone();
        inner.claim.name = name;
        Self(Arc::new(inner))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("owner", self.owner())
            .field("nonce", &self.nonce())
            .field("token", &self.token())
            .field("ttl", &self.ttl())
            .finish_non_exhaustive()
    }
}

/// Two leases are equal when they are the same term of the same name; the handle is not compared.
impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        self.claim() == other.claim() && self.token() == other.token() && self.ttl() == other.ttl()
    }
}

impl Eq for Lease {}

impl Hash for Lease {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.claim(), self.token(), self.ttl()).hash(state);
    }
}

/// The answer to a try.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attempt {
    /// It is ours.
    Granted(Lease),
    /// It is somebody's, or others stand before us in the queue.
    Held(Holder),
}

/// Who holds a name, as the store sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Holder {
    /// The published identity.
    pub owner: Owner,
    /// The token of the holder's term; 0 when a foreign holder has none. Granted tokens start at 1.
    pub token: Token,
    /// How long the store will still keep the lease without a renewal, rounded up, counted from the
    /// moment the store answered; zero when it has expired. A store with push that would need a
    /// request of its own to know may answer `ttl`.
    pub remaining: Duration,
    /// What the holder asked for at its last renewal.
    pub ttl: Duration,
    /// Changes with every grant, and is never 0; compare for equality only. It changes with every
    /// renewal too, unless a renewal writes no entry (a session store).
    pub version: u64,
    /// Published beside the owner.
    pub metadata: Metadata,
    /// What the store wants to find again when it is asked to wait or watch: the place in a queue, a
    /// revision, what each node of a quorum said. Not compared.
    pub handle: Handle,
}

impl Holder {
    /// A holder without metadata.
    #[must_use]
    pub fn new(
        owner: Owner,
        token: Token,
        remaining: Duration,
        ttl: Duration,
        version: u64,
    ) -> Self {
        Self {
            owner,
            token,
            remaining,
            ttl,
            version,
            metadata: Metadata::default(),
            handle: Handle::none(),
        }
    }

    /// The same holder with this metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// The same holder with this handle.
    #[must_use]
    pub fn with_handle(mut self, handle: Handle) -> Self {
        self.handle = handle;
        self
    }
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// The store's countdown was restarted.
    Renewed {
        /// A lower bound of the time left, counted from the start of this call.
        ttl: Duration,
        /// A wish that was left for the holder.
        request: Option<Request>,
    },
    /// No unexpired entry with this nonce and token: the term is over. Nothing was touched.
    Gone,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// The entry was ours and is free now.
    Released,
    /// There was no entry of this term. Nothing was touched.
    NotHeld,
}

/// A wish left for the holder of a name, seen by it at its next renewal, and again at each one after
/// that: it stays until the term ends, so a lost answer loses no wish.
///
/// Its text form (`Display`, `FromStr`) is what every store keeps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Request {
    /// Stop the work, release, and do not claim again for `hold_off`.
    StepDown {
        /// How long to leave the name to others.
        hold_off: Duration,
    },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StepDown { hold_off } => write!(f, "step-down {}", hold_off.as_millis()),
        }
    }
}

impl FromStr for Request {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::Backend`] for a wish of a later version; a renewal answers it as no wish at all.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(millis) = text.strip_prefix("step-down ")
            && let Ok(millis) = millis.parse()
        {
            return Ok(Self::StepDown {
                hold_off: Duration::from_millis(millis),
            });
        }
        Err(Error::new(
            ErrorKind::Backend,
            "the stored request is not one that this version knows",
        ))
    }
}

/// What an onlooker sees of one name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Observation {
    /// The name looked at.
    pub name: LockName,
    /// Its state, as the store judged it.
    pub state: LeaseState,
}

impl Observation {
    /// What was seen of `name`.
    #[must_use]
    pub fn new(name: LockName, state: LeaseState) -> Self {
        Self { name, state }
    }

    /// The holder, while there is one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match &self.state {
            LeaseState::Held(holder) => Some(holder),
            LeaseState::Absent | LeaseState::Free { .. } | LeaseState::Expired(_) => None,
        }
    }
}

/// The state of one name, as the store judges it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LeaseState {
    /// The store knows nothing of this name.
    Absent,
    /// It was released or revoked.
    Free {
        /// The last token that the store remembers.
        token: Token,
        /// Why it was revoked; empty after a release.
        note: Metadata,
    },
    /// Its holder has let it expire; `remaining` is zero.
    Expired(Holder),
    /// Somebody holds it.
    Held(Holder),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_text() {
        let request = Request::StepDown {
            hold_off: Duration::from_millis(1500),
        };
        assert_eq!(request.to_string(), "step-down 1500");
        assert_eq!(request.to_string().parse(), Ok(request));
        for bad in ["", "step-down", "step-down -1", "dance 1"] {
            assert!(bad.parse::<Request>().is_err(), "{bad:?}");
        }
    }
}
