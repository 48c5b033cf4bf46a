//! The store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures_util::future::join_all;
use lock_core::quorum::{Vouch, Witness};
use lock_core::{
    Attempt, Capabilities, Claim, Error, ErrorKind, Fencing, Handle, Holder, Lease, LeaseState,
    LockName, LockPersistence, Metadata, Mode, Observation, Operation, Release, Renewal, Request,
    Result, Token,
};
use redis::Value;
use tokio::sync::watch;

use crate::answer::Answer;
use crate::config::RedisConfig;
use crate::connection::{Server, Slot};
use crate::keys::Prefix;
use crate::listener::{self, HAND_OFF, Listener};
use crate::scripts::{self, Script};
use crate::{error, start};

/// How long the token of a name outlives its last use. After it the server's clock is the least token.
const HORIZON: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a withdrawn nonce is refused, so that a try which was dropped and is carried out late takes nothing.
const DEAD: Duration = Duration::from_secs(60);

/// How many keys one step of a listing looks at.
const SCAN: usize = 500;

/// Leases on one Redis or Valkey server.
///
/// It opens its own connections, when they are first needed: one for requests, one to listen while somebody waits.
/// Wrap it in an [`Arc`] and hand it to a [`Provider`](lock_core::Provider).
#[derive(Debug)]
pub struct RedisPersistence {
    capabilities: Capabilities,
    prefix: Prefix,
    slot: Slot,
    listener: Listener,
    /// Named when it is another machine reached without encryption.
    plain: Option<String>,
    closed: watch::Sender<bool>,
}

/// Marks what a denied try has seen: nobody holds the name, and it is kept for the first in line.
struct Kept;

/// What a waiter sees.
enum Sight {
    Held(Holder),
    /// Kept for another, and for how long this waiter leaves it alone.
    Kept(Option<Duration>),
    Free,
}

fn millis(span: Duration) -> String {
    // Up, so that the server keeps at least what was asked.
    span.as_micros().div_ceil(1000).to_string()
}

impl RedisPersistence {
    /// The store on the server that this configuration names. Nothing is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the URL cannot be used.
    pub fn new(config: &RedisConfig) -> Result<Self> {
        let mut capabilities = Capabilities::new("redis", Fencing::Monotone);
        capabilities.push = true;
        capabilities.queueing = true;
        capabilities.min_token = true;
        let place = config.place()?;
        let server = Arc::new(Server {
            client: config.client()?,
            place: place.clone(),
        });
        Ok(Self {
            capabilities,
            prefix: config.prefix.clone(),
            slot: Slot::new(Arc::clone(&server)),
            listener: Listener::new(server),
            plain: config.is_exposed()?.then_some(place),
            closed: watch::Sender::new(false),
        })
    }

    fn open(&self) -> Result<()> {
        if *self.closed.borrow() {
            return Err(
                Error::new(ErrorKind::Unavailable, "the store was closed").with_retryable(false)
            );
        }
        Ok(())
    }

    /// Says where an error came up.
    fn at<T>(&self, operation: Operation, name: Option<&LockName>, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let error = error
                .with_backend(self.capabilities.backend)
                .with_operation(operation);
            match name {
                Some(name) => error.with_name(name.clone()),
                None => error,
            }
        })
    }

    async fn script(&self, script: &Script, keys: &[String], values: &[&str]) -> Result<Answer> {
        self.open()?;
        Answer::new(self.slot.script(script, keys, values).await?)
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt> {
        let range = self.capabilities.ttl;
        if !(range.min..=range.max).contains(&claim.ttl) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "a ttl of {:?} cannot be kept; give it {:?} to {:?}",
                    claim.ttl, range.min, range.max
                ),
            ));
        }
        let channel = match claim.mode {
            Mode::Queue => self.listener.channel(),
            Mode::Once => "",
        };
        let mut answer = self
            .script(
                &scripts::ACQUIRE,
                &self.prefix.keys(&claim.name, Some(claim.nonce)),
                &[
                    &claim.nonce.to_string(),
                    claim.owner.as_str(),
                    &millis(claim.ttl),
                    claim.metadata.as_str(),
                    &claim.min_token.map_or(1, Token::get).to_string(),
                    channel,
                    &millis(HORIZON),
                ],
            )
            .await?;
        match answer.text()?.as_str() {
            "granted" => Ok(Attempt::Granted(Lease::new(
                claim,
                answer.token()?,
                claim.ttl,
                Handle::none(),
            ))),
            "held" => Ok(Attempt::Held(answer.holder()?)),
            "kept" => {
                let owner = answer.owner()?;
                let (last, kept) = (answer.token()?, answer.micros()?);
                // Who stands in line is told, and need not try again by itself.
                let left = if channel.is_empty() { kept } else { claim.ttl };
                let holder = Holder::new(owner, last, left, claim.ttl, last.get());
                Ok(Attempt::Held(holder.with_handle(Handle::new(Kept))))
            }
            "dead" => Err(Error::new(
                ErrorKind::Unavailable,
                "this claim was withdrawn; claim anew",
            )
            .with_indeterminate(false)),
            word => Err(error::unexpected(word)),
        }
    }

    async fn extend(&self, lease: &Lease) -> Result<Renewal> {
        let ttl = lease.claim().ttl;
        let mut answer = self
            .script(
                &scripts::RENEW,
                &self.prefix.keys(lease.name(), None),
                &[
                    &lease.nonce().to_string(),
                    &lease.token().to_string(),
                    &millis(ttl),
                    &millis(HORIZON),
                ],
            )
            .await?;
        match answer.text()?.as_str() {
            "gone" => Ok(Renewal::Gone),
            "renewed" => Ok(Renewal::Renewed {
                ttl,
                // A wish of a later version is no wish.
                request: answer.text()?.parse().ok(),
            }),
            word => Err(error::unexpected(word)),
        }
    }

    async fn read(&self, name: &LockName) -> Result<LeaseState> {
        let keys = self.prefix.keys(name, None);
        self.script(&scripts::READ, &keys, &[]).await?.state()
    }

    async fn look(&self, claim: &Claim, channel: &str) -> Result<Sight> {
        let mut answer = self
            .script(
                &scripts::LOOK,
                &self.prefix.keys(&claim.name, Some(claim.nonce)),
                &[&claim.nonce.to_string(), channel, &millis(claim.ttl)],
            )
            .await?;
        match answer.text()?.as_str() {
            "held" => Ok(Sight::Held(answer.holder()?)),
            "kept" => Ok(Sight::Kept(
                Some(answer.micros()?).filter(|kept| !kept.is_zero()),
            )),
            "free" => Ok(Sight::Free),
            word => Err(error::unexpected(word)),
        }
    }

    async fn wait_in_line(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let mut place = self.listener.subscribe(claim.nonce).await;
        let queues = claim.mode == Mode::Queue;
        // A term that passed between the try and now is news; one that began later is not worth a try.
        let mut any = seen.handle.get::<Kept>().is_some();
        loop {
            let channel = if queues { self.listener.channel() } else { "" };
            let kept = match self.look(claim, channel).await? {
                Sight::Kept(kept) => kept,
                Sight::Held(holder) if any || holder.token == seen.token => None,
                Sight::Held(_) | Sight::Free => return Ok(()),
            };
            any = true;
            // What stands in no line is not told.
            let look = if queues { kept } else { Some(listener::LOOK) };
            if place.news(look).await {
                return Ok(());
            }
        }
    }

    async fn unless_closed(&self, look: impl Future<Output = Result<()>> + Send) -> Result<()> {
        self.open()?;
        let mut closed = self.closed.subscribe();
        tokio::select! {
            biased;
            // The sender lives as long as `self`: this ends only when the store was closed.
            _ = closed.wait_for(|closed| *closed) => self.open(),
            seen = look => seen,
        }
    }

    /// The names with this beginning that have a mark, each once.
    async fn names(&self, beginning: &str) -> Result<BTreeSet<LockName>> {
        let pattern = self.prefix.marks(beginning);
        let mut names = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            self.open()?;
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor)
                .arg("MATCH")
                .arg(&pattern)
                .arg("COUNT")
                .arg(SCAN);
            let Value::Array(answer) = self.slot.run(&scan).await? else {
                return Err(error::unexpected("no cursor"));
            };
            let [next, keys] =
                <[Value; 2]>::try_from(answer).map_err(|_| error::unexpected("no cursor"))?;
            cursor = Answer::new(next)?.text()?;
            let Value::Array(keys) = keys else {
                return Err(error::unexpected("no keys"));
            };
            for key in keys {
                let Ok(key) = Answer::new(key)?.text() else {
                    continue;
                };
                // A pattern may match more.
                if let Some(name) = self.prefix.name_of(&key)
                    && name.as_str().starts_with(beginning)
                {
                    names.insert(name);
                }
            }
            if cursor == "0" {
                return Ok(names);
            }
        }
    }
}

#[async_trait]
impl LockPersistence for RedisPersistence {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        let result = async {
            self.open()?;
            let keys = self.prefix.keys(&LockName::new("start check")?, None);
            start::check(&self.slot, self.plain.as_deref(), &keys).await
        };
        self.at(Operation::Prepare, None, result.await)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt> {
        let result = self.attempt(claim).await;
        self.at(Operation::TryAcquire, Some(&claim.name), result)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        // All at once over one connection: they are written, and answered, together.
        let each = leases.iter().map(|lease| async {
            let result = self.extend(lease).await;
            self.at(Operation::Renew, Some(lease.name()), result)
        });
        join_all(each).await
    }

    async fn release(&self, lease: &Lease) -> Result<Release> {
        let result = async {
            let mut answer = self
                .script(
                    &scripts::RELEASE,
                    &self.prefix.keys(lease.name(), None),
                    &[
                        &lease.nonce().to_string(),
                        &lease.token().to_string(),
                        &HAND_OFF.as_micros().to_string(),
                        &millis(HORIZON),
                    ],
                )
                .await?;
            Ok(match answer.number()? {
                0 => Release::NotHeld,
                _ => Release::Released,
            })
        };
        self.at(Operation::Release, Some(lease.name()), result.await)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let result = async {
            self.script(
                &scripts::WITHDRAW,
                &self.prefix.keys(&claim.name, Some(claim.nonce)),
                &[
                    &claim.nonce.to_string(),
                    &HAND_OFF.as_micros().to_string(),
                    &millis(HORIZON),
                    &millis(DEAD),
                ],
            )
            .await
            .map(drop)
        };
        self.at(Operation::Withdraw, Some(&claim.name), result.await)
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let result = self.unless_closed(self.wait_in_line(claim, seen)).await;
        self.at(Operation::Wait, Some(&claim.name), result)
    }

    async fn observe(&self, name: &LockName) -> Result<Observation> {
        let state = self.read(name).await;
        let result = state.map(|state| Observation::new(name.clone(), state));
        self.at(Operation::Observe, Some(name), result)
    }

    async fn watch(&self, seen: &Observation) -> Result<()> {
        let stale = |now: &LeaseState| match (now, &seen.state) {
            (LeaseState::Held(a), LeaseState::Held(b)) => a.token == b.token,
            (a, b) => a == b,
        };
        // An onlooker is not worth a message at each grant: it reads now and then.
        let result = self.unless_closed(async {
            while stale(&self.read(&seen.name).await?) {
                tokio::time::sleep(listener::POLL).await;
            }
            Ok(())
        });
        let result = result.await;
        self.at(Operation::Watch, Some(&seen.name), result)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let result = async {
            let names = self.names(prefix).await?;
            let each = names.into_iter().map(|name| async {
                let state = self.read(&name).await?;
                Ok((state != LeaseState::Absent).then(|| Observation::new(name, state)))
            });
            let listed: Result<Vec<_>> = join_all(each).await.into_iter().collect();
            Ok(listed?.into_iter().flatten().collect())
        };
        self.at(Operation::List, None, result.await)
    }

    async fn revoke(&self, name: &LockName, reason: &str) -> Result<Option<Token>> {
        let result = async {
            let note = Metadata::new(reason)?;
            let values = [
                note.as_str(),
                &HAND_OFF.as_micros().to_string(),
                &millis(HORIZON),
            ];
            let keys = self.prefix.keys(name, None);
            let mut answer = self.script(&scripts::REVOKE, &keys, &values).await?;
            let token = answer.text()?;
            if token.is_empty() {
                return Ok(None);
            }
            token.parse().map(Some)
        };
        self.at(Operation::Revoke, Some(name), result.await)
    }

    async fn request(&self, name: &LockName, request: &Request) -> Result<bool> {
        let result = async {
            let keys = self.prefix.keys(name, None);
            let wish = request.to_string();
            let mut answer = self.script(&scripts::REQUEST, &keys, &[&wish]).await?;
            Ok(answer.number()? == 1)
        };
        self.at(Operation::Request, Some(name), result.await)
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let result = async {
            self.open()?;
            let mut answer = Answer::new(self.slot.run(&redis::cmd("TIME")).await?)?;
            let seconds = Duration::from_secs(answer.number()?);
            Ok(UNIX_EPOCH + seconds + answer.micros()?)
        };
        self.at(Operation::ServerTime, None, result.await)
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let result = async {
            let unused = unused_for.as_micros().to_string();
            let names = self.names("").await?;
            let each = names.iter().map(|name| async {
                let keys = self.prefix.keys(name, None);
                self.script(&scripts::SWEEP, &keys, &[&unused])
                    .await?
                    .number()
            });
            join_all(each).await.into_iter().sum()
        };
        self.at(Operation::Sweep, None, result.await)
    }

    async fn close(&self) -> Result<()> {
        self.closed.send_replace(true);
        self.listener.close();
        self.slot.close();
        Ok(())
    }
}

#[async_trait]
impl Witness for RedisPersistence {
    async fn vouch(&self) -> Result<Vouch> {
        let result = async {
            self.open()?;
            let keys = [self.prefix.born()];
            let mut info = redis::cmd("INFO");
            info.arg("server");
            let (age, info) = tokio::join!(
                self.script(&scripts::BORN, &keys, &[]),
                self.slot.run(&info)
            );
            let (server, up) = start::identity(&info?)?;
            // A server that restarts from a snapshot has the key, and has lost what came after the snapshot.
            Ok(Vouch::new(server, up.min(age?.micros()?)))
        };
        self.at(Operation::Prepare, None, result.await)
    }
}
