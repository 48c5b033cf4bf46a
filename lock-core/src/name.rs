//! Names, owners, nonces and metadata: the texts of a claim, checked once, at the edge.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// Longest name or owner, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 255;

/// Longest metadata, in bytes of UTF-8.
pub const MAX_METADATA_BYTES: usize = 4096;

/// Checks the rule shared by names and owners: 1 to [`MAX_NAME_BYTES`] bytes, no control characters.
fn check_text(kind: ErrorKind, what: &str, text: &str) -> Result<()> {
    if text.is_empty() {
        return Err(Error::new(
            kind,
            format!("{what} is empty; give it 1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    if text.len() > MAX_NAME_BYTES {
        return Err(Error::new(
            kind,
            format!(
                "{what} has {} bytes; at most {MAX_NAME_BYTES} are allowed",
                text.len()
            ),
        ));
    }
    if let Some((at, bad)) = text.char_indices().find(|(_, c)| c.is_control()) {
        return Err(Error::new(
            kind,
            format!(
                "{what} has the control character U+{:04X} at byte {at}; remove it",
                u32::from(bad)
            ),
        ));
    }
    Ok(())
}

/// The name of a lock or an election: 1 to 255 bytes of UTF-8 without control characters.
///
/// Names are compared byte for byte on every backend: `job`, `Job` and `job ` are three names.
/// A backend escapes what its store cannot hold and never truncates.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks `name` and takes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is empty, too long, or has a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        check_text(ErrorKind::InvalidName, "the lock name", name)?;
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::new(s)
    }
}

/// The published human identity of a candidate, such as `host-3/4711`.
///
/// It never decides ownership: two processes with the same owner still exclude each other,
/// because every ownership test uses the [`Nonce`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// Checks `owner` and takes it. The rule is that of [`LockName`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when it is empty, too long, or has a control character.
    pub fn new(owner: impl AsRef<str>) -> Result<Self> {
        let owner = owner.as_ref();
        check_text(ErrorKind::InvalidConfig, "the owner", owner)?;
        Ok(Self(owner.into()))
    }

    /// The owner as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Owner {
    /// `host/pid`: readable, and need not be unique.
    fn default() -> Self {
        let host = host_name();
        let pid = std::process::id();
        let mut text = format!("{host}/{pid}");
        if check_text(ErrorKind::InvalidConfig, "the owner", &text).is_err() {
            text = format!("pid/{pid}");
        }
        Self(text.into())
    }
}

#[cfg(unix)]
fn host_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "host".into())
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::new(s)
    }
}

/// Free text that a holder publishes beside its owner, such as the address it serves on.
///
/// At most [`MAX_METADATA_BYTES`] bytes; empty by default; any characters but NUL.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Metadata(Arc<str>);

impl Metadata {
    /// Checks `text` and takes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when it is too long or has a NUL.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        if text.len() > MAX_METADATA_BYTES {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the metadata has {} bytes; at most {MAX_METADATA_BYTES} are allowed",
                    text.len()
                ),
            ));
        }
        if text.contains('\0') {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the metadata has a NUL character; remove it",
            ));
        }
        Ok(Self(text.into()))
    }

    /// The metadata as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether nothing was published.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self("".into())
    }
}

impl fmt::Display for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The random id of one term, used in every ownership test.
///
/// One nonce stands for at most one term. Written as 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(u128);

impl Nonce {
    /// Draws a nonce from the operating system.
    ///
    /// # Panics
    /// When the operating system has no source of randomness: without one no lease is safe.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
        Self(u128::from_le_bytes(bytes))
    }

    /// The nonce with this value.
    #[must_use]
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }

    /// The value as a number.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// The nonce of the next term of the machine that drew this one.
    ///
    /// A machine draws one random nonce when it starts and counts up from there: as unique as
    /// drawing each time, and a run of the machine can be repeated exactly.
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Nonce {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        if s.len() == 32
            && s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            && let Ok(value) = u128::from_str_radix(s, 16)
        {
            return Ok(Self(value));
        }
        Err(Error::new(
            ErrorKind::Backend,
            "a stored nonce is not 32 lower-case hexadecimal digits",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_at_the_edge() {
        for good in ["a", "job ", "ß", &"x".repeat(255), "a/b", "😀", "K"] {
            assert_eq!(
                LockName::new(good).map(|n| n.as_str().len()).ok(),
                Some(good.len())
            );
        }
        for bad in [
            "",
            &"x".repeat(256),
            &"ä".repeat(128),
            "job\t",
            "a\0b",
            "a\nb",
            "\u{85}",
        ] {
            let error = LockName::new(bad).expect_err("must be refused");
            assert_eq!(error.kind(), ErrorKind::InvalidName);
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn nonces_survive_their_text() {
        let nonce = Nonce::random();
        assert_eq!(nonce.to_string().parse::<Nonce>().ok(), Some(nonce));
        assert!("+0000000000000000000000000000000".parse::<Nonce>().is_err());
        assert!("ABCDEF00000000000000000000000000".parse::<Nonce>().is_err());
        assert_ne!(nonce, nonce.next());
    }
}
