//! MySQL and MariaDB.

mod attempt;
mod belief;
mod connection;
pub(crate) mod layout;
mod line;
mod prepare;
mod row;
mod statements;
mod wake;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use lock_core::{
    Capabilities, Claim, Error, ErrorKind, Fencing, Holder, Lease, LeaseState, LockName, Metadata,
    Observation, Renewal, Result, Token,
};
use sqlx::Row as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use tokio::time::sleep;

use self::belief::{Belief, Beliefs};
use self::connection::{Answer, Request, Server, Slot};
use self::line::Lines;
use self::statements::{NOW, Statements, mark};
use self::wake::Waiters;
use super::{Changes, Dialect, Tried};
use crate::config::{MySqlConfig, TableName};
use crate::error::mysql as errors;

/// How often a renewal is repeated for entries that others had locked, and the pause before: a fenced
/// commit has the row for one round trip.
const SKIPPED: [Duration; 3] = [
    Duration::from_millis(2),
    Duration::from_millis(8),
    Duration::from_millis(32),
];

/// What a lease of this store remembers: where it is kept.
#[derive(Debug)]
pub(crate) struct Handle {
    name: LockName,
    pub(crate) place: Arc<Place>,
}

/// The server and the table, for a fenced write on a connection that is not ours.
#[derive(Debug)]
pub(crate) struct Place {
    server: Arc<Server>,
    statements: Statements,
}

impl Place {
    /// Locks the row of `lease` in the transaction of `connection`; whether the lease still counts.
    pub(crate) async fn lock(
        &self,
        connection: &mut MySqlConnection,
        lease: &Lease,
    ) -> Result<bool, sqlx::Error> {
        let answers = connection::run(connection, &self.statements.fence(lease, mark())).await?;
        Ok(answers.last().is_some_and(|answer| answer.rows.len() == 1))
    }

    /// What a statement has answered is decoded after it took effect.
    fn decoded<T>(&self, value: Result<T, sqlx::Error>) -> Result<T> {
        value.map_err(|e| self.server.undecodable(e))
    }

    pub(crate) fn error(&self, error: sqlx::Error) -> Error {
        errors::map(
            error,
            self.server.host(),
            &self.server.table,
            &self.server.create,
        )
    }
}

#[derive(Debug)]
pub(crate) struct MySql {
    capabilities: Capabilities,
    place: Arc<Place>,
    /// For what a holder sends, which must not stand behind a crowd of tries.
    renewals: Slot,
    attempts: Slot,
    reads: Slot,
    waiters: Arc<Waiters>,
    lines: Lines,
    beliefs: Beliefs,
}

impl MySql {
    pub(crate) fn from_config(config: &MySqlConfig) -> Result<Self> {
        Self::from_options(config.options(), config.table.clone())
    }

    pub(crate) fn from_options(options: MySqlConnectOptions, table: TableName) -> Result<Self> {
        let Some(database) = options.get_database().filter(|name| !name.is_empty()) else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the options for MySQL name no database; name one",
            ));
        };
        let statements = Statements::new(database, &table);
        let server = Arc::new(Server::new(options, table, statements.create()));
        let mut capabilities = Capabilities::new("mysql", Fencing::Checked);
        capabilities.push = true;
        capabilities.queueing = true;
        capabilities.conditional_takeover = true;
        capabilities.min_token = true;
        let place = Arc::new(Place { server, statements });
        Ok(Self {
            capabilities,
            waiters: Arc::new(Waiters::new(Arc::clone(&place))),
            lines: Lines::new(Arc::clone(&place)),
            place,
            renewals: Slot::default(),
            attempts: Slot::default(),
            reads: Slot::default(),
            beliefs: Beliefs::default(),
        })
    }

    fn sql(&self) -> &Statements {
        &self.place.statements
    }

    fn server(&self) -> &Arc<Server> {
        &self.place.server
    }

    async fn run(&self, slot: &Slot, request: impl Into<Request>) -> Result<Vec<Answer>> {
        let request = request.into();
        slot.run(self.server(), |_| request.clone()).await
    }

    fn decoded<T>(&self, value: Result<T, sqlx::Error>) -> Result<T> {
        self.place.decoded(value)
    }

    /// Resolves when the name can be had, in line with all that wait.
    async fn wait_in_line(&self, claim: &Claim, seen: &Holder) -> Result<()> {
        if let Some(result) = self.lines.wait(claim).await {
            if result.is_ok() {
                self.beliefs.set(&claim.name, Belief::Free);
            }
            return result;
        }
        // Where no line can be stood in, by looking.
        if matches!(self.read(&claim.name).await?, LeaseState::Held(now) if now.token == seen.token)
        {
            self.waiters.subscribe(&claim.name, false).changed().await?;
            self.beliefs.set(&claim.name, Belief::Free);
        }
        Ok(())
    }

    /// One round of a renewal: for each lease its outcome, or `None` when others had the row.
    async fn renew_once(&self, leases: &[Lease]) -> Result<Vec<Option<Renewal>>> {
        let mark = mark();
        let answers = self
            .renewals
            .run(self.server(), |features| {
                self.sql().renew(leases, mark, features.skip_locked).into()
            })
            .await?;
        let mut seen = BTreeMap::new();
        for row in answers.last().iter().flat_map(|a| &a.rows) {
            let Some(nonce) = self.decoded(row::nonce(row))? else {
                continue;
            };
            let token = self.decoded(row::token(row))?;
            let version: i64 = self.decoded(row.try_get("version"))?;
            let alive: i64 = self.decoded(row.try_get("alive"))?;
            let request: String = self.decoded(row.try_get("request"))?;
            // A wish of a later version is no wish.
            let request = request.parse().ok();
            seen.insert((nonce, token), (version == mark, alive != 0, request));
        }
        Ok(leases
            .iter()
            .map(|lease| match seen.get(&(lease.nonce(), lease.token())) {
                Some((true, _, request)) => Some(Renewal::Renewed {
                    ttl: Duration::from_micros(row::micros(lease.claim().ttl).unsigned_abs()),
                    request: request.clone(),
                }),
                Some((false, true, _)) => None,
                Some((false, false, _)) | None => Some(Renewal::Gone),
            })
            .collect())
    }
}

#[async_trait]
impl Dialect for MySql {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn prepare(&self) -> Result<()> {
        prepare::prepare(&self.attempts, self.server(), self.sql()).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Tried> {
        self.tried(claim).await
    }

    async fn renew(&self, leases: &[Lease]) -> Result<Vec<Result<Renewal>>> {
        // A renewal waits for nobody.
        let mut answers = tokio::select! {
            biased;
            answers = self.renew_once(leases) => answers?,
            answers = async {
                self.lines.keep(leases).await;
                pending().await
            } => answers,
        };
        for pause in SKIPPED {
            let skipped: Vec<usize> = (0..leases.len())
                .filter(|n| answers[*n].is_none())
                .collect();
            if skipped.is_empty() {
                break;
            }
            sleep(pause).await;
            let again: Vec<Lease> = skipped.iter().map(|n| leases[*n].clone()).collect();
            // A failure now takes nothing away from what the others were told.
            let Ok(round) = self.renew_once(&again).await else {
                break;
            };
            for (n, answer) in skipped.into_iter().zip(round) {
                answers[n] = answer;
            }
        }
        Ok(answers
            .into_iter()
            .map(|answer| {
                answer.ok_or_else(|| {
                    Error::new(
                        ErrorKind::Unavailable,
                        "another transaction has the row locked, or the server became read-only; trying again \
                         later",
                    )
                    .with_indeterminate(false)
                })
            })
            .collect())
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        let sql = self.sql().release(lease, mark());
        let answers = self.run(&self.renewals, sql).await?;
        let released = answers.first().is_some_and(|a| a.found > 0);
        let name = row::stored_name(lease);
        // The row first, so that whoever comes next finds it free.
        let followed = self.lines.left(name, lease.nonce()).await;
        if released {
            let next = if followed { Belief::Held } else { Belief::Free };
            self.beliefs.set(name, next);
        }
        Ok(released)
    }

    async fn withdraw(&self, claim: &Claim) -> Result<()> {
        let sql = self.sql().withdraw(claim, mark());
        let withdrawn = self.run(&self.renewals, sql).await;
        // Also when the server did not answer: its place in line is given up.
        self.lines.left(&claim.name, claim.nonce).await;
        withdrawn.map(drop)
    }

    async fn read(&self, name: &LockName) -> Result<LeaseState> {
        let answers = self.run(&self.reads, self.sql().read(name)).await?;
        answers
            .first()
            .and_then(|a| a.rows.first())
            .map_or(Ok(LeaseState::Absent), |row| self.decoded(row::state(row)))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Observation>> {
        let answers = self.run(&self.reads, self.sql().list(prefix)).await?;
        let mut seen = Vec::new();
        for row in answers.iter().flat_map(|a| &a.rows) {
            if let Some(name) = self.decoded(row::name(row))? {
                seen.push(Observation::new(name, self.decoded(row::state(row))?));
            }
        }
        Ok(seen)
    }

    async fn revoke(&self, name: &LockName, note: &Metadata) -> Result<Option<Token>> {
        let sql = self.sql().revoke(name, note, mark());
        let answers = self.run(&self.attempts, sql).await?;
        let burnt = answers.last().and_then(|a| a.rows.first());
        self.decoded(burnt.map(row::token).transpose())
    }

    async fn request(&self, name: &LockName, request: &str) -> Result<bool> {
        let sql = self.sql().request(name, request);
        let answers = self.run(&self.attempts, sql).await?;
        Ok(answers.first().is_some_and(|a| a.found > 0))
    }

    async fn server_time(&self) -> Result<SystemTime> {
        let answers = self
            .run(&self.reads, format!("SELECT {NOW} AS now"))
            .await?;
        let now = answers.first().and_then(|a| a.rows.first());
        let micros = self.decoded(now.map_or(Ok(0), |row| row::natural(row, "now")))?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
    }

    async fn sweep(&self, unused_for: Duration) -> Result<u64> {
        let sql = self.sql().sweep(row::micros(unused_for));
        let answers = self.run(&self.attempts, sql).await?;
        // Begin, floor, removal, commit.
        Ok(answers.get(2).map_or(0, |a| a.found))
    }

    async fn wait(&self, claim: &Claim, seen: &Holder) -> Option<Result<()>> {
        Some(self.wait_in_line(claim, seen).await)
    }

    async fn subscribe(&self, name: &LockName) -> Result<Box<dyn Changes>> {
        Ok(Box::new(self.waiters.subscribe(name, true)))
    }

    async fn close(&self) {
        for slot in [&self.renewals, &self.attempts, &self.reads] {
            slot.close().await;
        }
        self.waiters.close().await;
        self.lines.close().await;
    }
}
