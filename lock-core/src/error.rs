//! The one error type.

use std::error::Error as StdError;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::name::LockName;

/// A result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one line, with a [`kind`](Error::kind) to decide on.
///
/// Contention is never an error: waiting with a limit returns `Ok(None)`.
/// The message holds no password and no key; neither does the `Debug` form.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    operation: Option<Operation>,
    backend: Option<&'static str>,
    name: Option<LockName>,
    retryable: bool,
    indeterminate: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The class of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store answered something unexpected.
    Backend,
    /// An entry that is not ours, or not of this format, stands where ours should be.
    Conflict,
    /// A setting is wrong; nothing was sent.
    InvalidConfig,
    /// A name breaks the rule of [`LockName`]; nothing was sent.
    InvalidName,
    /// The term is over.
    LeaseLost,
    /// The store knows us but lacks the right, or does not accept our credentials.
    PermissionDenied,
    /// The table or folder the store needs is missing or of another shape.
    Schema,
    /// No answer within the request timeout.
    Timeout,
    /// A secure connection could not be made as asked.
    Tls,
    /// The store cannot be reached, or cannot serve now.
    Unavailable,
    /// The store cannot do this; its capabilities say so.
    Unsupported,
}

impl ErrorKind {
    /// The kind as a stable word for logs, metrics and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Conflict => "conflict",
            Self::InvalidConfig => "invalid-config",
            Self::InvalidName => "invalid-name",
            Self::LeaseLost => "lease-lost",
            Self::PermissionDenied => "permission-denied",
            Self::Schema => "schema",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Unavailable => "unavailable",
            Self::Unsupported => "unsupported",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The operation during which an [`Error`] came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each is the method of the same name")]
pub enum Operation {
    Connect,
    Prepare,
    TryAcquire,
    Renew,
    Release,
    Withdraw,
    Wait,
    Observe,
    Watch,
    List,
    Revoke,
    Request,
    ServerTime,
    Sweep,
    Close,
    Fence,
}

impl Operation {
    /// The operation as a stable word for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Prepare => "prepare",
            Self::TryAcquire => "try_acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Withdraw => "withdraw",
            Self::Wait => "wait",
            Self::Observe => "observe",
            Self::Watch => "watch",
            Self::List => "list",
            Self::Revoke => "revoke",
            Self::Request => "request",
            Self::ServerTime => "server_time",
            Self::Sweep => "sweep",
            Self::Close => "close",
            Self::Fence => "fence",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// An error of this kind with a one-line message: lower case, no full stop, no secret.
    ///
    /// For `Backend`, `Timeout` and `Unavailable` both [`is_retryable`](Self::is_retryable) and
    /// [`is_indeterminate`](Self::is_indeterminate) start true: a store author who knows that nothing
    /// was done says so, and one who forgets costs a request instead of an entry left behind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let unsure = matches!(
            kind,
            ErrorKind::Backend | ErrorKind::Timeout | ErrorKind::Unavailable
        );
        Self(Arc::new(Inner {
            kind,
            message: message.into(),
            operation: None,
            backend: None,
            name: None,
            retryable: unsure,
            indeterminate: unsure,
            source: None,
        }))
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Says in which operation it came up.
    #[must_use]
    pub fn with_operation(self, operation: Operation) -> Self {
        self.edit(|i| i.operation = Some(operation))
    }

    /// Says on which backend it came up.
    #[must_use]
    pub fn with_backend(self, backend: &'static str) -> Self {
        self.edit(|i| i.backend = Some(backend))
    }

    /// Says for which lock it came up.
    #[must_use]
    pub fn with_name(self, name: LockName) -> Self {
        self.edit(|i| i.name = Some(name))
    }

    /// Says whether trying again may help.
    #[must_use]
    pub fn with_retryable(self, retryable: bool) -> Self {
        self.edit(|i| i.retryable = retryable)
    }

    /// Says whether the operation may have taken effect all the same.
    #[must_use]
    pub fn with_indeterminate(self, indeterminate: bool) -> Self {
        self.edit(|i| i.indeterminate = indeterminate)
    }

    /// Keeps the cause, for [`source`](StdError::source). Its text must hold no secret.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.edit(|i| i.source = Some(Arc::new(source)))
    }

    /// The class to decide on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether trying again may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Whether the operation may have taken effect all the same (an answer was lost).
    #[must_use]
    pub fn is_indeterminate(&self) -> bool {
        self.0.indeterminate
    }

    /// The operation in which it came up.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// The backend on which it came up.
    #[must_use]
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// The lock for which it came up.
    #[must_use]
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// This layer's message, without operation, backend and name.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &*self.0;
        match (i.backend, i.operation) {
            (Some(backend), Some(operation)) => write!(f, "{backend} {operation}")?,
            (Some(backend), None) => f.write_str(backend)?,
            (None, Some(operation)) => write!(f, "{operation}")?,
            (None, None) => {}
        }
        let mut prefixed = i.backend.is_some() || i.operation.is_some();
        if let Some(name) = &i.name {
            write!(f, "{}{:?}", if prefixed { " of " } else { "" }, name)?;
            prefixed = true;
        }
        if prefixed {
            f.write_str(": ")?;
        }
        // One line, whatever a driver has put into it.
        for (n, line) in i.message.lines().enumerate() {
            if n > 0 {
                f.write_str("; ")?;
            }
            f.write_str(line.trim())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = &*self.0;
        f.debug_struct("Error")
            .field("kind", &i.kind)
            .field("message", &self.to_string())
            .field("retryable", &i.retryable)
            .field("indeterminate", &i.indeterminate)
            .field("source", &i.source.as_ref().map(ToString::to_string))
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|s| s as &(dyn StdError + 'static))
    }
}

/// Two errors are equal when they say the same; the cause is not compared.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        let key = |e: &Self| (e.0.kind, e.0.operation, e.0.retryable, e.0.indeterminate);
        key(self) == key(other)
            && self.0.message == other.0.message
            && self.0.backend == other.0.backend
            && self.0.name == other.0.name
    }
}

impl Eq for Error {}

impl Hash for Error {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.kind.hash(state);
        self.0.message.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_without_the_source() {
        let name = LockName::new("job").expect("valid");
        let error = Error::new(ErrorKind::Unavailable, "no answer\n from the server")
            .with_backend("sqlite")
            .with_operation(Operation::Renew)
            .with_name(name)
            .with_source(std::io::Error::other("the cause"));
        assert_eq!(
            error.to_string(),
            "sqlite renew of \"job\": no answer; from the server"
        );
        assert!(error.is_retryable() && error.is_indeterminate());
        assert_eq!(
            error.source().map(ToString::to_string).as_deref(),
            Some("the cause")
        );
    }
}
