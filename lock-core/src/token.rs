//! Fencing tokens and the gate that checks them.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// A fencing token: strictly increasing per name over the whole life of the name.
///
/// A resource that remembers the highest token it has seen, and refuses a lower one, is safe even
/// from a holder that was paused past the end of its lease. It is below 2^53, so that it survives
/// JSON and every scripting language.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The largest token.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// The token with this value.
    ///
    /// # Errors
    /// [`ErrorKind::Backend`] when it is not below 2^53: the store is out of tokens or damaged.
    pub fn new(value: u64) -> Result<Self> {
        if value > Self::MAX.0 {
            return Err(Error::new(
                ErrorKind::Backend,
                format!("the store gave the token {value}, which is not below 2^53"),
            ));
        }
        Ok(Self(value))
    }

    /// The value as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Reads what [`Display`](fmt::Display) writes: digits.
impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        digits
            .then(|| text.parse().ok())
            .flatten()
            .and_then(|value| Self::new(value).ok())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidConfig,
                    "a fencing token is a whole number below 2^53",
                )
            })
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The checking side of fencing, to embed in a resource that cannot ask the store.
///
/// It remembers the highest token it has seen, in memory. A resource that must survive a restart
/// stores [`highest`](Self::highest) beside its data and starts again with
/// [`starting_at`](Self::starting_at).
#[derive(Debug, Default)]
pub struct FenceGate {
    highest: AtomicU64,
}

impl FenceGate {
    /// A gate that has seen no token yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            highest: AtomicU64::new(0),
        }
    }

    /// A gate that has seen tokens up to `token`.
    #[must_use]
    pub const fn starting_at(token: Token) -> Self {
        Self {
            highest: AtomicU64::new(token.0),
        }
    }

    /// Lets `token` pass, unless a larger one has passed before.
    ///
    /// The check and the write it protects must be one step: hold the lock of the resource over both.
    ///
    /// # Errors
    /// [`ErrorKind::LeaseLost`] when a larger token has been seen.
    pub fn admit(&self, token: Token) -> Result<()> {
        let before = self.highest.fetch_max(token.0, Ordering::AcqRel);
        if before > token.0 {
            return Err(Error::new(
                ErrorKind::LeaseLost,
                format!("token {token} is stale: {before} has been seen"),
            ));
        }
        Ok(())
    }

    /// The highest token seen, or `None` before the first.
    #[must_use]
    pub fn highest(&self) -> Option<Token> {
        match self.highest.load(Ordering::Acquire) {
            0 => None,
            value => Some(Token(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_text() {
        let most = Token::MAX;
        assert_eq!(most.to_string().parse::<Token>().ok(), Some(most));
        for text in ["", "+1", "-1", "1.0", " 1", "9007199254740992", "1e3"] {
            assert!(text.parse::<Token>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_gate_never_goes_back() {
        let gate = FenceGate::new();
        let t = |v| Token::new(v).expect("small");
        assert_eq!(gate.highest(), None);
        assert!(gate.admit(t(3)).is_ok());
        assert!(gate.admit(t(3)).is_ok());
        assert_eq!(
            gate.admit(t(2)).map_err(|e| e.kind()),
            Err(ErrorKind::LeaseLost)
        );
        assert!(gate.admit(t(9)).is_ok());
        assert_eq!(gate.highest(), Some(t(9)));
        assert!(FenceGate::starting_at(t(9)).admit(t(8)).is_err());
        assert!(Token::new(1 << 53).is_err());
    }
}
