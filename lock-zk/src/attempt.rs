//! Tries, renewals, and the ends of terms.

use std::sync::Arc;

use lock_core::clock::{Clock as _, SystemClock};
use lock_core::{
    Attempt, Claim, Error, ErrorKind, Handle, Lease, Mode, Nonce, Release, Renewal, Result,
};
use zookeeper_client::{self as zk, Acls, CreateMode, CreateOptions};

use crate::entry::{Busy, Entry, data_of};
use crate::error;
use crate::inner::{Inner, REPEATS, Watched, changing};
use crate::node;
use crate::session::Session;

impl Inner {
    /// Puts a claim at the end of the line. The create is itself the proof of the session.
    pub(crate) async fn create(
        &self,
        session: &Session,
        folder: &str,
        claim: &Claim,
    ) -> Result<Arc<Entry>> {
        let prefix = node::prefix(claim.nonce);
        let path = format!("{folder}/{prefix}");
        let data = data_of(claim, None).write()?;
        let own = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let parent: CreateOptions<'_> = CreateMode::Container.with_acls(Acls::anyone_all());
        for _ in 0..REPEATS {
            self.claims().unsure.insert(claim.nonce);
            let sent = SystemClock.now();
            match session.client.create(&path, &data, &own).await {
                Ok((stat, number)) => {
                    let path = format!("{path}{number}");
                    let deadline = sent.after(claim.ttl.min(session.ttl));
                    let entry =
                        Entry::new(session.clone(), self.place_of(claim), path, &stat, deadline)?;
                    if let Some(twin) = self.keep(claim.nonce, &entry) {
                        twin.delete().await?;
                    }
                    return Ok(entry);
                }
                // The parent vanishes when its line is empty for a while.
                Err(zk::Error::NoNode) => {
                    self.claims().unsure.remove(&claim.nonce);
                    let made = session.client.mkdir(folder, &parent).await;
                    made.map_err(error::map)?;
                }
                Err(error) => {
                    let error = error::map(error);
                    if !error.is_indeterminate() {
                        self.claims().unsure.remove(&claim.nonce);
                    }
                    return Err(error);
                }
            }
        }
        Err(changing())
    }

    /// The entry before it, which a try made that nobody waits for any more.
    pub(crate) fn keep(&self, nonce: Nonce, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut claims = self.claims();
        claims.unsure.remove(&nonce);
        claims.entries.insert(nonce, Arc::clone(entry))
    }

    /// Takes an entry out of what is known, if it is still that one.
    pub(crate) fn forget(&self, nonce: Nonce, entry: &Arc<Entry>) {
        let mut claims = self.claims();
        if claims
            .entries
            .get(&nonce)
            .is_some_and(|e| Arc::ptr_eq(e, entry))
        {
            claims.entries.remove(&nonce);
        }
    }

    /// The entry of a claim with a fresh proof, if it has one that lives.
    pub(crate) async fn proven(
        &self,
        session: &Session,
        folder: &str,
        claim: &Claim,
    ) -> Result<Option<Busy>> {
        let (known, unsure) = {
            let mut claims = self.claims();
            let mut known = claims.entries.get(&claim.nonce).cloned();
            if known.is_none()
                && let Some(entry) = Entry::of_this_process(&self.place_of(claim))
            {
                claims.entries.insert(claim.nonce, Arc::clone(&entry));
                known = Some(entry);
            }
            (known, claims.unsure.contains(&claim.nonce))
        };
        if let Some(entry) = known {
            if let Some(busy) = entry.begin()
                && entry.prove(claim).await?.is_some()
            {
                return Ok(Some(busy));
            }
            // An entry whose time is over is never revived.
            entry.delete().await?;
            self.forget(claim.nonce, &entry);
        }
        if unsure {
            // A create without an answer: what it left is no use, since its age is not known.
            let left = Self::nodes_of(session, folder, claim.nonce).await?;
            Self::delete_all(session, left).await?;
            self.claims().unsure.remove(&claim.nonce);
        }
        Ok(None)
    }

    pub(crate) async fn try_acquire(self: Arc<Self>, claim: Claim) -> Result<Attempt> {
        let nonce = claim.nonce;
        self.claims().trying.entry(nonce).or_default().running += 1;
        let answer = self.attempt(&claim).await;
        if !self.ends_withdrawn(nonce) {
            return answer;
        }
        // The withdrawal found nothing yet, perhaps.
        self.withdraw(&claim).await?;
        let text = "the claim was withdrawn while it was tried";
        Err(Error::new(ErrorKind::Unavailable, text).with_retryable(false))
    }

    /// Takes one try off the list. Whether its claim was withdrawn meanwhile.
    pub(crate) fn ends_withdrawn(&self, nonce: Nonce) -> bool {
        let mut claims = self.claims();
        let Some(tries) = claims.trying.get_mut(&nonce) else {
            return true; // the store was closed meanwhile
        };
        let withdrawn = tries.withdrawn;
        tries.running -= 1;
        if tries.running == 0 {
            claims.trying.remove(&nonce);
        }
        withdrawn
    }

    pub(crate) async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let session = self.session(claim.ttl).await?;
        let folder = self.folder_of(&claim.name);
        for _ in 0..REPEATS {
            let busy = match self.proven(&session, &folder, claim).await? {
                Some(busy) => busy,
                None => {
                    // One try leaves no node where it cannot win: it looks before.
                    if claim.mode == Mode::Once
                        && let Some((_, holder)) = Self::holder(&session, &folder).await?
                    {
                        return Ok(Attempt::Held(holder));
                    }
                    match self.create(&session, &folder, claim).await?.begin() {
                        Some(busy) => busy,
                        None => continue,
                    }
                }
            };
            let entry = busy.entry();
            let line = Self::line(&entry.session, &folder).await?;
            let own = line
                .iter()
                .position(|child| entry.path.ends_with(&format!("/{child}")));
            let Some(place) = own else {
                // Deleted by hand between the proof and the list.
                self.forget(claim.nonce, entry);
                continue;
            };
            if place == 0 {
                let ttl = claim.ttl.min(entry.session.ttl);
                let handle = Handle::new(Watched(entry.path.clone()));
                return Ok(Attempt::Granted(Lease::new(
                    claim,
                    entry.token,
                    ttl,
                    handle,
                )));
            }
            if claim.mode == Mode::Once {
                entry.delete().await?;
                self.forget(claim.nonce, entry);
                continue;
            }
            let first = format!("{folder}/{}", line[0]);
            let before = format!("{folder}/{}", line[place - 1]);
            if let Some(holder) = Self::read(&session, &first, before).await? {
                return Ok(Attempt::Held(holder));
            }
        }
        Err(changing())
    }

    pub(crate) async fn renew(self: Arc<Self>, lease: Lease) -> Result<Renewal> {
        let known = self.claims().entries.get(&lease.nonce()).cloned();
        let same = known.filter(|entry| entry.token == lease.token());
        let Some(entry) = same else {
            return Ok(Renewal::Gone);
        };
        if let Some(_busy) = entry.begin()
            && let Some((ttl, request)) = entry.prove(lease.claim()).await?
        {
            return Ok(Renewal::Renewed { ttl, request });
        }
        // Its time is over, or somebody deleted it. What is left of it is deleted by its own timer.
        Ok(Renewal::Gone)
    }

    pub(crate) async fn release(&self, lease: &Lease) -> Result<Release> {
        let known = self.claims().entries.get(&lease.nonce()).cloned();
        let Some(entry) = known.filter(|entry| entry.token == lease.token()) else {
            return Ok(Release::NotHeld);
        };
        let was_there = entry.delete().await?;
        self.forget(lease.nonce(), &entry);
        Ok(if was_there {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    pub(crate) async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let known = {
            let mut claims = self.claims();
            if let Some(tries) = claims.trying.get_mut(&claim.nonce) {
                tries.withdrawn = true;
            }
            claims.entries.get(&claim.nonce).cloned()
        };
        if let Some(entry) = known {
            entry.delete().await?;
            self.forget(claim.nonce, &entry);
            return Ok(());
        }
        let session = self.session(claim.ttl).await?;
        let folder = self.folder_of(&claim.name);
        let left = Self::nodes_of(&session, &folder, claim.nonce).await?;
        Self::delete_all(&session, left).await?;
        self.claims().unsure.remove(&claim.nonce);
        Ok(())
    }
}
