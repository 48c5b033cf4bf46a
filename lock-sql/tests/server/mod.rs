//! A store on a shared database server, as the suite wants it: one table per case.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::servers::{self, Kind};
use conformance_tests::{Answer, Harness, Stop};
use lock_core::{LockName, LockPersistence, Owner};
use lock_sql::TableName;

const SHARED: &str = "the server is shared; the tests of this database stop some of their own";

/// What differs between the databases.
#[async_trait]
pub(crate) trait Database: fmt::Debug + Send + Sync + 'static {
    const KIND: Kind;
    const NAME: &'static str;
    /// An expression of sixteen random bytes.
    const RANDOM: &'static str;
    /// A connection as an operator has it.
    type Connection: Send + 'static;

    fn store(url: &str, table: TableName) -> Answer<Arc<dyn LockPersistence>>;
    async fn connect(url: &str) -> Answer<Self::Connection>;
    async fn run(connection: &mut Self::Connection, sql: String) -> Answer<()>;
    /// The number that `sql` answers.
    async fn number(connection: &mut Self::Connection, sql: String) -> Answer<i64>;
    /// What belongs to no held lease, as a query.
    fn residue(table: &str) -> String;
}

#[derive(Debug)]
pub(crate) struct Table<D> {
    url: String,
    table: String,
    database: PhantomData<D>,
}

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn store<D: Database>(url: &str, table: &str) -> Answer<Arc<dyn LockPersistence>> {
    D::store(url, TableName::new(table)?)
}

impl<D: Database> Table<D> {
    async fn by_hand(&self, sql: String) -> Answer<()> {
        D::run(&mut D::connect(&self.url).await?, sql).await
    }
}

#[async_trait]
impl<D: Database> Harness for Table<D> {
    async fn new() -> Answer<Self> {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        let server = tokio::task::spawn_blocking(|| servers::or_skip(servers::shared(D::KIND)));
        let Some(server) = server.await.map_err(Stop::failed)? else {
            let missing = format!("there is no {} on this machine", D::KIND);
            return Err(Stop::not_applicable(missing));
        };
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            url: server.url().to_owned(),
            table: format!("c{}_{number}", std::process::id()),
            database: PhantomData,
        })
    }

    fn backend(&self) -> &'static str {
        D::NAME
    }

    async fn open(&self) -> Answer<Arc<dyn LockPersistence>> {
        store::<D>(&self.url, &self.table)
    }

    fn expiry_slack(&self) -> Duration {
        Duration::ZERO
    }

    fn locator(&self) -> Answer<String> {
        Ok(format!("{} {}", self.url, self.table))
    }

    async fn open_at(locator: &str) -> Answer<Arc<dyn LockPersistence>> {
        let (url, table) = locator
            .split_once(' ')
            .ok_or_else(|| Stop::failed("a locator is a URL and a table"))?;
        store::<D>(url, table)
    }

    async fn wipe(&self, name: &LockName) -> Answer<()> {
        let name = literal(name.as_str());
        self.by_hand(format!("DELETE FROM {} WHERE name = {name}", self.table))
            .await
    }

    async fn steal(&self, name: &LockName, owner: &Owner) -> Answer<()> {
        let (name, owner) = (literal(name.as_str()), literal(owner.as_str()));
        self.by_hand(format!(
            "UPDATE {} SET owner = {owner}, nonce = {} WHERE name = {name}",
            self.table,
            D::RANDOM
        ))
        .await
    }

    async fn block(&self, name: &LockName, span: Duration) -> Answer<()> {
        let mut connection = D::connect(&self.url).await?;
        let name = literal(name.as_str());
        D::run(&mut connection, "BEGIN".into()).await?;
        let sql = format!(
            "SELECT 1 FROM {} WHERE name = {name} FOR UPDATE",
            self.table
        );
        D::run(&mut connection, sql).await?;
        tokio::spawn(async move {
            tokio::time::sleep(span).await;
            let ended = D::run(&mut connection, "ROLLBACK".into()).await;
            ended.expect("open since above");
        });
        Ok(())
    }

    async fn residue(&self) -> Answer<u64> {
        let mut connection = D::connect(&self.url).await?;
        let count = D::number(&mut connection, D::residue(&self.table)).await?;
        Ok(count.unsigned_abs())
    }

    async fn stop_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(SHARED))
    }

    async fn start_server(&self) -> Answer<()> {
        Err(Stop::not_applicable(SHARED))
    }

    fn exemptions(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("h_restart::a_short_restart_costs_no_term", SHARED),
            ("h_restart::a_long_outage_ends_the_term", SHARED),
        ]
    }
}
