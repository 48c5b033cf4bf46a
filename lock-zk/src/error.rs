//! Errors of the driver.

use lock_core::{Error, ErrorKind};
use zookeeper_client as zk;

/// The session is over: what lived on it is gone, or goes with it.
pub(crate) const fn is_session_over(error: &zk::Error) -> bool {
    matches!(
        error,
        zk::Error::SessionExpired | zk::Error::SessionMoved | zk::Error::ClientClosed
    )
}

pub(crate) fn map(error: zk::Error) -> Error {
    use zk::Error as E;
    let new = |kind, text: &str| Error::new(kind, text);
    let certain = |kind, text: &str| Error::new(kind, text).with_indeterminate(false);
    let mapped = match &error {
        E::NoAuth => new(
            ErrorKind::PermissionDenied,
            "the access list of a node does not let us; its owner may change it with setAcl",
        ),
        E::AuthFailed => new(ErrorKind::PermissionDenied, "the servers do not let us in"),
        E::NoHosts => certain(ErrorKind::Unavailable, "no server can be reached"),
        E::Timeout | E::ConnectionLoss => new(
            ErrorKind::Unavailable,
            "the connection to the servers was lost",
        ),
        E::SessionExpired | E::SessionMoved | E::ClientClosed => new(
            ErrorKind::Unavailable,
            "the session has ended; a new one is made at the next call",
        ),
        E::NotReadOnly => certain(
            ErrorKind::Unavailable,
            "the server that was reached has lost the others and only reads",
        ),
        E::Throttled => certain(ErrorKind::Unavailable, "the servers have too much to do"),
        E::QuotaExceeded => certain(
            ErrorKind::Backend,
            "the quota of the folder of the locks is used up; raise it with setquota",
        ),
        E::NoChildrenForEphemerals | E::InvalidAcl => new(
            ErrorKind::Schema,
            "something else stands where the folder of the locks should be; name another folder",
        ),
        E::Unimplemented => new(
            ErrorKind::Unsupported,
            "the servers are too old; ZooKeeper 3.5 is the oldest that is served",
        ),
        _ => new(ErrorKind::Backend, "the servers refused a request"),
    };
    mapped.with_source(error)
}
