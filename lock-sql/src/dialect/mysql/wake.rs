//! How a waiter learns of a release: it looks.

use std::time::Duration;

use async_trait::async_trait;
use lock_core::{LockName, Result};
use tokio::time::sleep;

use crate::dialect::Changes;

/// Between two looks.
const POLL: Duration = Duration::from_millis(25);

struct Poll;

pub(super) fn subscribe(_: &LockName) -> Box<dyn Changes> {
    Box::new(Poll)
}

#[async_trait]
impl Changes for Poll {
    async fn changed(&mut self) -> Result<()> {
        sleep(POLL).await;
        Ok(())
    }
}
