//! PostgreSQL: one table, any number of hosts.

mod connection;
mod function;
pub(crate) mod layout;
mod listener;
mod row;
mod schema;
mod statements;
mod values;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, Error, ErrorKind, Fencing, Holder, Lease, LeaseState, LockName, Metadata,
    Mode, Observation, Renewal, Result, Token,
};
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgRow};

use self::connection::{Server, Slot};
use self::listener::Listener;
use self::row::Answer;
use self::statements::Statements;
use self::values::{Value, text};
use super::{Changes, Dialect, Tried};
use crate::config::{MAX_TABLE_BYTES, PostgresConfig, TableName};
use crate::error::postgres::Words;

/// What a lease of this store remembers: where it is kept.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) name: LockName,
    pub(crate) words: Arc<Words>,
}

/// What a denied try has found out beside the holder.
#[derive(Debug)]
struct Denied {
    /// The claim stands in line, and its process is told.
    queued: bool,
    /// Nobody holds the name; it is kept for the first in line.
    kept: bool,
}

/// What a waiter sees.
enum Sight {
    State(LeaseState),
    /// Kept for another, and for how long this waiter leaves it alone; no time of its own when somebody
    /// stands before it.
    Kept(Option<Duration>),
}

#[derive(Debug)]
pub(crate) struct Postgres {
    capabilities: Capabilities,
    statements: Statements,
    server: Arc<Server>,
    words: Arc<Words>,
    /// For what a holder sends, which must not stand behind a crowd of tries.
    renewals: Slot,
    attempts: Slot,
    reads: Slot,
    listener: Listener,
}

impl Postgres {
    pub(crate) fn from_config(config: &PostgresConfig) -> Result<Self> {
        let options = config.options()?;
        Self::new(options, config.table.clone(), config.lock_wait)
    }

    pub(crate) fn from_options(options: PgConnectOptions, table: TableName) -> Result<Self> {
        Self::new(options, table, PostgresConfig::DEFAULT_LOCK_WAIT)
    }

    fn new(options: PgConnectOptions, table: TableName, lock_wait: Duration) -> Result<Self> {
        let most = MAX_TABLE_BYTES - function::SUFFIX;
        if table.as_str().len() > most {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the table name {table} is too long for PostgreSQL; give it at most {most} bytes, since more is \
                     named after it"
                ),
            ));
        }
        let mut capabilities = Capabilities::new("postgres", Fencing::Checked);
        capabilities.push = true;
        capabilities.queueing = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        let statements = Statements::new(&table);
        let place = options.get_socket().map_or_else(
            || format!("{}:{}", options.get_host(), options.get_port()),
            |socket| socket.display().to_string(),
        );
        let user = options.get_username();
        let words = Words {
            server: place,
            database: options.get_database().unwrap_or(user).to_owned(),
            user: user.to_owned(),
            table,
            create: statements.create.clone(),
            functions: statements.functions.clone(),
        };
        let server = Arc::new(Server::new(options, lock_wait, words.clone()));
        Ok(Self {
            capabilities,
            statements,
            listener: Listener::new(Arc::clone(&server)),
            server,
            words: Arc::new(words),
            renewals: Slot::default(),
            attempts: Slot::default(),
            reads: Slot::default(),
        })
    }

    async fn rows(&self, slot: &Slot, sql: &Arc<str>, values: &[Value]) -> Result<Vec<PgRow>> {
        slot.rows(&self.server, sql, values).await
    }

    /// What a statement has answered is decoded after it took effect.
    fn decoded<T>(&self, value: Result<T, sqlx::Error>) -> Result<T> {
        value.map_err(|e| self.words.map(e))
    }

    /// `queued`: the claim stands in line.
    fn denied(mut holder: Holder, kept: Option<Duration>, queued: bool) -> LeaseState {
        let is_kept = kept.is_some();
        if let Some(kept) = kept {
            // Who stands in line is told, and need not try again by itself.
            holder.remaining = if queued { holder.ttl } else { kept };
        }
        if holder.remaining.is_zero() {
            return LeaseState::Expired(holder);
        }
        let handle = lock_core::Handle::new(Denied {
            queued,
            kept: is_kept,
        });
        LeaseState::Held(holder.with_handle(handle))
    }

    async fn look(&self, claim: &Claim) -> Result<Sight> {
        let values = [text(claim.name.as_str()), row::nonce(claim.nonce)];
        let rows = self
            .rows(&self.reads, &self.statements.look, &values)
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Sight::State(LeaseState::Absent));
        };
        Ok(match self.decoded(row::kept(row))? {
            Some(kept) => {
                let behind: bool = self.decoded(row.try_get("behind"))?;
                Sight::Kept((!behind).then_some(kept))
            }
            None => Sight::State(self.decoded(row::state(row))?),
        })
    }

    async fn wait_in_line(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        let mut place = self.listener.subscribe(claim.nonce).await;
        let denied = seen.handle.get::<Denied>();
        let queues = claim.mode == Mode::Queue;
        let channel = self.listener.channel();
        if queues && !channel.is_empty() && !denied.is_some_and(|d| d.queued) {
            let values = [
                text(claim.name.as_str()),
                row::nonce(claim.nonce),
                text(channel),
                Value::Integer(row::millis(claim.ttl)),
            ];
            let sql = &self.statements.enlist;
            self.rows(&self.attempts, sql, &values).await?;
        }
        // A term that passed between the try and now is news; one that began later is not worth a try.
        let mut any = denied.is_some_and(|d| d.kept);
        loop {
            let kept = match self.look(claim).await? {
                Sight::Kept(kept) => kept,
                Sight::State(LeaseState::Held(h)) if any || h.token == seen.token => None,
                Sight::State(_) => return Ok(()),
            };
            any = true;
            // What stands in no line is not told.
            let look = if queues { kept } else { Some(listener::LOOK) };
            if place.news(look).await {
                return Ok(());
            }
        }
    }

    fn renewal(&self, row: &PgRow, lease: &Lease) -> Result<Renewal, sqlx::Error> {
        if row.try_get("renewed")? {
            // A wish of a later version is no wish.
            let request = row.try_get::<String, _>("request")?.parse().ok();
            let ttl = Duration::from_millis(row::millis(lease.claim().ttl).unsigned_abs());
            return Ok(Renewal::Renewed { ttl, request });
        }
        Ok(Renewal::Gone)
    }
}

/// An onlooker is not worth a message at each grant: it reads now and then.
struct Onlooker;

#[async_trait]
impl Changes for Onlooker {
    async fn changed(&mut self) -> Result<()> {
        tokio::time::sleep(listener::POLL).await;
        Ok(())
    }
}

#[async_trait]
impl Dialect for Postgres {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        schema::prepare(&self.server, &self.statements).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Tried> {
        let ttl = row::millis(claim.ttl);
        let channel = match claim.mode {
            Mode::Queue => Some(self.listener.channel()),
            Mode::Once => None,
        };
        let values = [
            text(claim.name.as_str()),
            text(claim.owner.as_str()),
            row::nonce(claim.nonce),
            Value::Integer(ttl),
            text(claim.metadata.as_str()),
            row::integer(claim.min_token.map_or(1, Token::get)),
            // No entry has version 0.
            row::integer(claim.if_unchanged.unwrap_or(0)),
            Value::Channel(channel.map(str::to_owned)),
        ];
        let sql = &self.statements.try_acquire;
        let rows = self.rows(&self.attempts, sql, &values).await?;
        let Some(row) = rows.first() else {
            return Ok(Tried::Denied(LeaseState::Absent));
        };
        match self.decoded(row::answer(row))? {
            Answer::Nothing => Ok(Tried::Denied(LeaseState::Absent)),
            Answer::Denied(holder, kept) => {
                let queued = channel.is_some_and(|c| !c.is_empty());
                Ok(Tried::Denied(Self::denied(holder, kept, queued)))
            }
            Answer::Granted(token) => {
                let handle = Arc::new(Handle {
                    name: claim.name.clone(),
                    words: Arc::clone(&self.words),
                });
                Ok(Tried::Granted(Lease::new(
                    claim,
                    token,
                    Duration::from_millis(ttl.unsigned_abs()),
                    lock_core::Handle::new(handle),
                )))
            }
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Result<Renewal>>> {
        let of = |lease: &Lease| row::stored_name(lease).to_owned();
        let values = [
            Value::Texts(leases.iter().map(of).collect()),
            Value::ByteStrings(leases.iter().map(|l| row::nonce_bytes(l.nonce())).collect()),
            Value::Integers(
                leases
                    .iter()
                    .map(|l| i64::try_from(l.token().get()).unwrap_or(i64::MAX))
                    .collect(),
            ),
            Value::Integers(leases.iter().map(|l| row::millis(l.claim().ttl)).collect()),
        ];
        let rows = self
            .rows(&self.renewals, &self.statements.renew, &values)
            .await?;
        if rows.len() != leases.len() {
            return Err(Error::new(
                ErrorKind::Backend,
                format!("{} renewals got {} answers", leases.len(), rows.len()),
            ));
        }
        rows.iter()
            .zip(leases)
            .map(|(row, lease)| {
                if self.decoded(row.try_get("skipped"))? {
                    return Ok(Err(Error::new(
                        ErrorKind::Unavailable,
                        "another session has locked the row; it was left alone",
                    )
                    .with_indeterminate(false)));
                }
                Ok(Ok(self.decoded(self.renewal(row, lease))?))
            })
            .collect()
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        let values = [
            text(row::stored_name(lease)),
            row::nonce(lease.nonce()),
            row::integer(lease.token().get()),
        ];
        let sql = &self.statements.release;
        Ok(!self.rows(&self.renewals, sql, &values).await?.is_empty())
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        // A try that is still on its way would take the name after this.
        self.attempts.settled(&self.server, &self.renewals).await?;
        let values = [text(claim.name.as_str()), row::nonce(claim.nonce)];
        let sql = &self.statements.withdraw;
        self.rows(&self.renewals, sql, &values).await.map(drop)
    }

    async fn read(&self, name: &LockName) -> Result<LeaseState> {
        let values = [text(name.as_str())];
        let rows = self
            .rows(&self.reads, &self.statements.read, &values)
            .await?;
        rows.first()
            .map_or(Ok(LeaseState::Absent), |row| self.decoded(row::state(row)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        // No name has a NUL, and the server takes no text with one.
        if prefix.contains('\0') {
            return Ok(Vec::new());
        }
        let rows = self
            .rows(&self.reads, &self.statements.list, &[text(prefix)])
            .await?;
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(name) = self.decoded(row::name(row))? {
                seen.push(Observation::new(name, self.decoded(row::state(row))?));
            }
        }
        Ok(seen)
    }

    async fn revoke(&self, name: &LockName, note: &Metadata) -> Result<Option<Token>> {
        let values = [text(name.as_str()), text(note.as_str())];
        let rows = self
            .rows(&self.attempts, &self.statements.revoke, &values)
            .await?;
        self.decoded(rows.first().map(row::token).transpose())
    }

    async fn request(&self, name: &LockName, request: &str) -> Result<bool> {
        let values = [text(name.as_str()), text(request)];
        let sql = &self.statements.request;
        Ok(!self.rows(&self.attempts, sql, &values).await?.is_empty())
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let rows = self
            .rows(&self.reads, &self.statements.server_time, &[])
            .await?;
        let micros: i64 = match rows.first() {
            Some(row) => self.decoded(row.try_get("micros"))?,
            None => 0,
        };
        Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let values = [Value::Integer(row::millis(unused_for))];
        let rows = self
            .rows(&self.attempts, &self.statements.sweep, &values)
            .await?;
        let swept: i64 = match rows.first() {
            Some(row) => self.decoded(row.try_get("swept"))?,
            None => 0,
        };
        Ok(swept.unsigned_abs())
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Option<Result<()>> {
        Some(self.wait_in_line(claim, seen).await)
    }

    async fn subscribe(&self, _: &LockName) -> Result<Box<dyn Changes>> {
        Ok(Box::new(Onlooker))
    }

    async fn close(&self) {
        self.listener.close();
        for slot in [&self.renewals, &self.attempts, &self.reads] {
            slot.close().await;
        }
    }
}
