//! From what the server and its driver say to our errors.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use lock_core::{Error, ErrorKind};
use redis::{RedisError, ServerErrorKind};

/// The code that a server's answer begins with; `None` when no answer came.
fn answer(error: &RedisError) -> Option<&str> {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => error.code(),
        _ => None,
    }
}

/// Whether the connection is of no use after this: it broke, or it leads to a server that cannot write (any more).
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    answer(error)
        .is_none_or(|code| matches!(code, "READONLY" | "MASTERDOWN" | "NOAUTH" | "UNBLOCKED"))
}

/// Whether the server does not know the script yet.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

const FOREIGN: &str =
    "another program keeps something else under a key of this name; give this store another prefix";

/// The commands that a user must be allowed, beside the keys and channels.
const RIGHTS: &str = "+@scripting +@read +@write +@pubsub +@connection +time";

/// An error of the driver. `place` is host and port.
pub(crate) fn map(place: &str, error: RedisError) -> Error {
    let detail = error.detail().unwrap_or_default().to_owned();
    let new = |kind, text: String| Error::new(kind, text);
    let mapped = match answer(&error) {
        Some("WRONGTYPE") => new(ErrorKind::Conflict, FOREIGN.to_owned()),
        Some("NOPERM") => refused(place, detail),
        Some("NOAUTH" | "WRONGPASS") => denied(place),
        Some("READONLY") => new(
            ErrorKind::Unavailable,
            format!("{place} is a replica and takes no writes; name the master"),
        )
        .with_indeterminate(false),
        Some(
            code @ ("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "MISCONF"
            | "NOREPLICAS" | "OOM"),
        ) => new(
            ErrorKind::Unavailable,
            format!("{place} cannot serve now: {code} {detail}"),
        ),
        // A command that a script calls answers so from within it.
        Some(_) if detail.contains("WRONGTYPE") => new(ErrorKind::Conflict, FOREIGN.to_owned()),
        Some(_) if detail.contains("can't write against a read only replica") => new(
            ErrorKind::Unavailable,
            format!("{place} is a replica and takes no writes; name the master"),
        ),
        Some(_)
            if [
                "ACL",
                "No permission",
                "can't run this command",
                "can't access",
            ]
            .iter()
            .any(|refusal| detail.contains(refusal)) =>
        {
            refused(place, detail)
        }
        Some(_) if detail.contains("OOM") || detail.contains("maxmemory") => new(
            ErrorKind::Unavailable,
            format!("{place} cannot serve now: {detail}"),
        ),
        Some(code) => new(
            ErrorKind::Backend,
            format!("{place} answered {code} {detail}"),
        ),
        None => broken(place, &error),
    };
    mapped.with_source(error)
}

/// A right is missing. The server says which; this says all that are needed.
fn refused(place: &str, detail: String) -> Error {
    // The rest is about the script, of no use to who reads it.
    let detail = detail.split(" script:").next().unwrap_or_default();
    Error::new(
        ErrorKind::PermissionDenied,
        format!("{place} refuses: {detail}; grant the user ~PREFIX* &lockkit:* {RIGHTS}"),
    )
}

fn denied(place: &str) -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        format!("{place} does not take this user and password"),
    )
    .with_indeterminate(false)
}

/// Whether the cause, which the driver keeps shared, is about certificates and the like.
fn is_tls(error: &RedisError) -> bool {
    type Shared = Arc<dyn StdError + Send + Sync>;
    let Some(cause) = error.source().and_then(|e| e.downcast_ref::<Shared>()) else {
        return false;
    };
    let io = cause.downcast_ref::<io::Error>();
    cause.is::<rustls::Error>() || io.is_some_and(|e| e.kind() == io::ErrorKind::InvalidData)
}

/// No answer came.
fn broken(place: &str, error: &RedisError) -> Error {
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => denied(place),
        redis::ErrorKind::InvalidClientConfig => Error::new(
            ErrorKind::InvalidConfig,
            format!("the settings for {place} cannot be used"),
        ),
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => Error::new(
            ErrorKind::Backend,
            format!("{place} answers something that is not Redis"),
        ),
        _ if is_tls(error) => Error::new(
            ErrorKind::Tls,
            format!("no encrypted connection to {place}: {error}; look at its certificate, the host's name and ca"),
        )
        .with_indeterminate(false),
        // A server without TLS reads the greeting as the beginning of a command, and waits for the rest.
        _ if error.is_timeout() => Error::new(
            ErrorKind::Unavailable,
            format!("{place} does not answer; look at the network, and with rediss:// whether the port speaks TLS"),
        ),
        _ if error.is_connection_refusal() => Error::new(
            ErrorKind::Unavailable,
            format!("nothing listens at {place}; start the server, or mend host and port"),
        )
        .with_indeterminate(false),
        _ => Error::new(
            ErrorKind::Unavailable,
            format!("the connection to {place} broke"),
        ),
    }
}

/// What a script has answered that it never answers: the keys hold what this version did not write.
pub(crate) fn unexpected(what: &str) -> Error {
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the keys of this name hold what is no lease ({what}); give this store another prefix"
        ),
    )
}
