//! One session of the ensemble, and how long a lease on it is good for.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use zookeeper_client::{Client, SessionState};

use crate::config::ZooKeeperConfig;
use crate::error;

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The longest ttl that it can keep, by the timeout that was negotiated.
    pub(crate) ttl: Duration,
}

impl Session {
    /// A new session for leases of this ttl. Must be called on the runtime that is to keep it alive.
    pub(crate) async fn open(config: &ZooKeeperConfig, ttl: Duration) -> Result<Self> {
        let asked = config.timeout_for(ttl);
        let client = Client::connector()
            .with_session_timeout(asked)
            .with_fail_eagerly()
            .connect(&config.servers)
            .await
            .map_err(error::map)?;
        let negotiated = client.session_timeout();
        tracing::info!(?asked, granted = ?negotiated, lease = ?config.ttl_within(negotiated).min(ttl), "a new session");
        let longest = config.ttl_within(negotiated);
        if longest.is_zero() {
            let text = format!(
                "the servers grant a session of {negotiated:?}, which leaves no time with a tick of {:?}; \
                 set tick in the URL to their tickTime, or raise their maxSessionTimeout",
                config.tick
            );
            return Err(Error::new(ErrorKind::InvalidConfig, text));
        }
        Ok(Self {
            client,
            ttl: longest.min(ttl),
        })
    }

    /// Whether it has ended for good; without a connection it has not.
    pub(crate) fn is_over(&self) -> bool {
        matches!(
            self.client.state(),
            SessionState::Expired | SessionState::AuthFailed | SessionState::Closed
        )
    }
}
