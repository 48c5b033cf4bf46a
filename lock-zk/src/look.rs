//! What is seen and waited for, and what others may do with a name.

use std::sync::Arc;

use lock_core::clock::{Clock as _, SystemClock};
use lock_core::{
    Claim, Error, ErrorKind, Holder, LeaseState, LockName, Observation, Request, Result, Token,
};
use zookeeper_client as zk;

use crate::entry::Entry;
use crate::error;
use crate::inner::{Inner, REPEATS, Watched, changing, on_own_runtime};
use crate::node::{self, Data};
use crate::session::Session;

impl Inner {
    /// Ends when the node that `seen` stands behind is gone.
    pub(crate) async fn wait(self: &Arc<Self>, claim: &Claim, seen: &Holder) -> Result<()> {
        let Some(Watched(path)) = seen.handle.get() else {
            let text = "the holder was seen by another kind of store";
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        let entry = self.claims().entries.get(&claim.nonce).cloned();
        let place = entry.as_ref().map(Entry::begin);
        let place = match place {
            // The place in the line is lost: another try is worth making.
            Some(None) => return Ok(()),
            Some(Some(busy)) => Some(busy),
            None => None,
        };
        let session = match &place {
            Some(busy) => busy.entry().session.clone(),
            None => {
                let (inner, ttl) = (Arc::clone(self), claim.ttl);
                on_own_runtime(async move { inner.session(ttl).await }).await?
            }
        };
        Self::until_deleted(&session, path).await?;
        if let Some(busy) = place {
            busy.entry().extend(SystemClock.now().after(claim.ttl));
        }
        Ok(())
    }

    /// An entry has no children, so a watch on them tells of its end and of no renewal.
    pub(crate) async fn until_deleted(session: &Session, path: &str) -> Result<()> {
        match session.client.get_and_watch_children(path).await {
            Ok((_, _, watcher)) => {
                watcher.changed().await;
                Ok(())
            }
            Err(zk::Error::NoNode) => Ok(()),
            Err(error) => Err(error::map(error)),
        }
    }

    pub(crate) async fn observe(&self, name: LockName) -> Result<Observation> {
        let session = self.any_session().await?;
        let held = Self::holder(&session, &self.folder_of(&name)).await?;
        // Nothing is remembered of a name that nobody holds.
        let state = held.map_or(LeaseState::Absent, |(_, holder)| LeaseState::Held(holder));
        Ok(Observation::new(name, state))
    }

    pub(crate) async fn watch(self: &Arc<Self>, seen: &Observation) -> Result<()> {
        let inner = Arc::clone(self);
        let session = on_own_runtime(async move { inner.any_session().await }).await?;
        let folder = self.folder_of(&seen.name);
        let token = seen.holder().map(|holder| holder.token);
        loop {
            // Subscribed first, compared then.
            let watcher = match session.client.get_and_watch_children(&folder).await {
                Ok((_, _, watcher)) => watcher,
                Err(zk::Error::NoNode) => {
                    let looked = session.client.check_and_watch_stat(&folder).await;
                    let (stat, watcher) = looked.map_err(error::map)?;
                    if stat.is_some() {
                        continue;
                    }
                    watcher
                }
                Err(error) => return Err(error::map(error)),
            };
            let now = Self::holder(&session, &folder).await?;
            if now.map(|(_, holder)| holder.token) != token {
                return Ok(());
            }
            watcher.changed().await;
            if session.is_over() {
                return Ok(());
            }
        }
    }

    pub(crate) async fn list(self: Arc<Self>, prefix: String) -> Result<Vec<Observation>> {
        let session = self.any_session().await?;
        let nodes = match session.client.list_children(&self.config.folder).await {
            Ok(nodes) => nodes,
            Err(zk::Error::NoNode) => Vec::new(),
            Err(error) => return Err(error::map(error)),
        };
        let mut names: Vec<LockName> = nodes.iter().filter_map(|n| node::unescape(n)).collect();
        names.retain(|name| name.as_str().starts_with(&prefix));
        names.sort();
        let mut listed = Vec::new();
        for name in names {
            let folder = self.folder_of(&name);
            if let Some((_, holder)) = Self::holder(&session, &folder).await? {
                listed.push(Observation::new(name, LeaseState::Held(holder)));
            }
        }
        Ok(listed)
    }

    pub(crate) async fn revoke(&self, name: &LockName) -> Result<Option<Token>> {
        let session = self.any_session().await?;
        let folder = self.folder_of(name);
        for _ in 0..REPEATS {
            let Some((path, holder)) = Self::holder(&session, &folder).await? else {
                return Ok(None);
            };
            match session.client.delete(&path, None).await {
                Ok(()) => return Token::new(holder.token.get() + 1).map(Some),
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error::map(error)),
            }
        }
        Err(changing())
    }

    pub(crate) async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let session = self.any_session().await?;
        let folder = self.folder_of(name);
        for _ in 0..REPEATS {
            let line = Self::line(&session, &folder).await?;
            let Some(first) = line.first() else {
                return Ok(false);
            };
            let path = format!("{folder}/{first}");
            let (bytes, stat) = match session.client.get_data(&path).await {
                Ok(read) => read,
                Err(zk::Error::NoNode) => continue,
                Err(error) => return Err(error::map(error)),
            };
            let mut data = Data::read(&bytes)?;
            data.request = Some(request.to_string());
            let data = data.write()?;
            match session
                .client
                .set_data(&path, &data, Some(stat.version))
                .await
            {
                Ok(_) => return Ok(true),
                Err(zk::Error::NoNode | zk::Error::BadVersion) => {}
                Err(error) => return Err(error::map(error)),
            }
        }
        Err(changing())
    }
}
