//! The tables of others on MySQL and MariaDB.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Result};
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::connection::{Answer, Server, Slot};
use super::row::{natural, shown};
use super::statements::{NOW, hex, quoted};
use crate::config::MySqlConfig;
use crate::dialect::Dialect;
use crate::layout::{Foreign, Look, PeerLayout, PeerTable, Row, Rows, Swap};

/// The columns in the order of name, holder, acquired, expires, version.
type Columns = &'static [(&'static str, &'static str)];

const LEADER_LEASES: Columns = &[
    ("component", "varchar(64)"),
    ("holder_id", "varchar(255)"),
    ("acquired_at", "datetime(3)"),
    ("expires_at", "datetime(3)"),
    ("version", "bigint"),
];

const MASTER_LOCK: Columns = &[
    ("serviceName", "varchar(36)"),
    ("instanceId", "varchar(255)"),
    ("lockedTime", "datetime"),
    ("expireTime", "datetime"),
];

#[derive(Debug)]
pub(super) struct Table {
    server: Arc<Server>,
    columns: Columns,
    /// Database and table, quoted.
    table: String,
    /// The primary key.
    key: &'static str,
    tries: Slot,
    renewals: Slot,
    reads: Slot,
}

/// The store over such a table.
pub(crate) fn open(config: &MySqlConfig, peers: &PeerTable) -> Result<impl Dialect + 'static> {
    peers.check()?;
    let step = match peers.layout {
        PeerLayout::LeaderLeases => Duration::from_millis(1),
        PeerLayout::MasterLock => Duration::from_secs(1),
    };
    let table = Table::new(config, peers)?;
    Ok(Foreign::new("mysql", peers, step, false, table))
}

fn text(value: &str) -> String {
    format!("CONVERT({} USING utf8mb4)", hex(value.as_bytes()))
}

fn micros(column: &str) -> String {
    format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column})")
}

fn time(micros: i64) -> String {
    format!("TIMESTAMPADD(MICROSECOND, {micros}, '1970-01-01 00:00:00.000000')")
}

impl Table {
    fn new(config: &MySqlConfig, peers: &PeerTable) -> Result<Self> {
        let name = peers.table(&config.table)?;
        let table = format!("{}.`{name}`", quoted(&config.database));
        let (columns, key, create) = match peers.layout {
            PeerLayout::LeaderLeases => (
                LEADER_LEASES,
                "id",
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (id bigint NOT NULL AUTO_INCREMENT PRIMARY KEY, component \
                     varchar(64) NOT NULL UNIQUE, holder_id varchar(255) NOT NULL, acquired_at datetime(3) NOT NULL, \
                     expires_at datetime(3) NOT NULL, version bigint NOT NULL DEFAULT 0) ENGINE=InnoDB"
                ),
            ),
            PeerLayout::MasterLock => (
                MASTER_LOCK,
                "serviceName",
                format!(
                    "CREATE TABLE IF NOT EXISTS {table} (serviceName varchar(36) NOT NULL PRIMARY KEY, expireTime datetime \
                     NOT NULL, lockedTime datetime NOT NULL, instanceId varchar(255) NOT NULL) ENGINE=InnoDB"
                ),
            ),
        };
        Ok(Self {
            server: Arc::new(Server::new(config.options(), name, create)),
            columns,
            table,
            key,
            tries: Slot::default(),
            renewals: Slot::default(),
            reads: Slot::default(),
        })
    }

    fn slot(&self, who: Look) -> &Slot {
        match who {
            Look::Try => &self.tries,
            Look::Renew => &self.renewals,
            Look::Read => &self.reads,
        }
    }

    fn column(&self, n: usize) -> &'static str {
        self.columns[n].0
    }

    fn versioned(&self) -> bool {
        self.columns.len() > 4
    }

    /// The clock stands in a row of its own: there may be no other.
    fn select(&self, condition: &str) -> String {
        let version = if self.versioned() { "version" } else { "0" };
        format!(
            "SELECT {NOW} AS now; SELECT CAST({} AS BINARY) AS name, CAST({} AS BINARY) AS holder, {} AS acquired, \
             {} AS expires, CAST({version} AS SIGNED) AS version FROM {}{condition}",
            self.column(0),
            self.column(1),
            micros(self.column(2)),
            micros(self.column(3)),
            self.table
        )
    }

    /// That the row is, letter by letter, this one.
    fn is(&self, row: &Row) -> String {
        let mut same = format!(
            "{} = {} AND CAST({} AS BINARY) = {} AND {} = {} AND {} = {}",
            self.column(0),
            text(&row.name),
            self.column(1),
            hex(row.holder.as_bytes()),
            micros(self.column(2)),
            row.acquired,
            micros(self.column(3)),
            row.expires
        );
        if self.versioned() {
            same += &format!(" AND version = {}", row.version);
        }
        same
    }

    fn row(row: &MySqlRow) -> Result<Row, sqlx::Error> {
        let text = |column| {
            let bytes: Vec<u8> = row.try_get(column)?;
            String::from_utf8(bytes).map_err(|e| sqlx::Error::Decode(e.into()))
        };
        Ok(Row {
            name: text("name")?,
            holder: text("holder")?,
            acquired: row.try_get("acquired")?,
            expires: row.try_get("expires")?,
            version: row.try_get("version")?,
        })
    }

    /// What is wrong with the table that stands there.
    fn fault(&self, answer: Option<&Answer>) -> Result<Option<String>, sqlx::Error> {
        let mut found = BTreeMap::new();
        for row in answer.iter().flat_map(|a| &a.rows) {
            let kind = shown(row, 1)?.to_ascii_lowercase();
            // Older servers show how wide an integer is printed.
            let kind = if kind.starts_with("bigint(") {
                "bigint".to_owned()
            } else {
                kind
            };
            found.insert(shown(row, 0)?.to_ascii_lowercase(), (kind, shown(row, 3)?));
        }
        for (n, (column, kind)) in self.columns.iter().enumerate() {
            match found.get(&column.to_ascii_lowercase()) {
                None => return Ok(Some(format!("the column {column} is missing"))),
                Some((is, _)) if is != kind => {
                    return Ok(Some(format!("the column {column} is {is}, not {kind}")));
                }
                Some((_, key)) if n == 0 && !matches!(key.as_str(), "PRI" | "UNI") => {
                    return Ok(Some(format!(
                        "the column {column} has no unique index of its own"
                    )));
                }
                Some(_) => {}
            }
        }
        if found
            .get(&self.key.to_ascii_lowercase())
            .is_none_or(|(_, key)| key != "PRI")
        {
            return Ok(Some(format!("{} is not its primary key", self.key)));
        }
        Ok(None)
    }
}

#[async_trait]
impl Rows for Table {
    async fn prepare(&self) -> Result<()> {
        let look = format!("SHOW COLUMNS FROM {}", self.table);
        let found = self.tries.run(&self.server, |_| look.clone().into()).await;
        let answers = match found {
            Err(error) if error.kind() == ErrorKind::Schema => {
                let create = &self.server.create;
                self.tries
                    .run(&self.server, |_| create.clone().into())
                    .await?;
                self.tries
                    .run(&self.server, |_| look.clone().into())
                    .await?
            }
            found => found?,
        };
        let fault = self
            .fault(answers.first())
            .map_err(|e| self.server.undecodable(e))?;
        fault.map_or(Ok(()), |fault| {
            Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "{} is not as the other system makes it: {fault}",
                    self.server.table
                ),
            ))
        })
    }

    async fn read(&self, who: Look, names: Option<&[&str]>) -> Result<(i64, Vec<Row>)> {
        let sql = self.select(&match names {
            None => String::new(),
            Some([]) => " WHERE false".to_owned(),
            Some(names) => {
                let names: Vec<_> = names.iter().map(|name| text(name)).collect();
                format!(" WHERE {} IN ({})", self.column(0), names.join(", "))
            }
        });
        let answers = self
            .slot(who)
            .run(&self.server, |_| sql.clone().into())
            .await?;
        let mut now = 0;
        let mut found = Vec::new();
        for (n, row) in answers
            .iter()
            .enumerate()
            .flat_map(|(n, a)| a.rows.iter().map(move |r| (n, r)))
        {
            let read = match n {
                0 => natural(row, "now").map(|read| now = read.cast_signed()),
                _ => Self::row(row).map(|row| found.push(row)),
            };
            read.map_err(|e| self.server.undecodable(e))?;
        }
        Ok((now, found))
    }

    async fn swap(&self, who: Look, swap: Swap<'_>) -> Result<bool> {
        let (t, key, new) = (&self.table, self.key, swap.new);
        let same = self.is(swap.old);
        let mut set = format!(
            "l.{} = {}, l.{} = {}, l.{} = {}",
            self.column(1),
            text(&new.holder),
            self.column(2),
            time(new.acquired),
            self.column(3),
            time(new.expires)
        );
        if self.versioned() {
            set += &format!(", l.version = {}", new.version);
        }
        let answers = self.slot(who).run(&self.server, |features| {
            let skip = if features.skip_locked { " SKIP LOCKED" } else { "" };
            // The limit keeps the inner query from being merged into the outer one, which would wait.
            format!(
                "UPDATE (SELECT {key} AS k FROM {t} WHERE {same} LIMIT 2 FOR UPDATE{skip}) AS mine STRAIGHT_JOIN {t} AS l \
                 FORCE INDEX (PRIMARY) ON l.{key} = mine.k SET {set} WHERE {NOW} < {}",
                swap.until
            )
            .into()
        });
        Ok(answers.await?.first().is_some_and(|a| a.found > 0))
    }

    async fn insert(&self, row: &Row, until: i64) -> Result<bool> {
        let mut columns = Vec::new();
        for (column, _) in self.columns {
            columns.push(*column);
        }
        let mut values = vec![
            text(&row.name),
            text(&row.holder),
            time(row.acquired),
            time(row.expires),
        ];
        if self.versioned() {
            values.push(row.version.to_string());
        }
        let name = self.column(0);
        // A row that came first stays as it is; whose it is, the look tells.
        let sql = format!(
            "INSERT INTO {t} ({}) SELECT {} FROM DUAL WHERE {NOW} < {until} ON DUPLICATE KEY UPDATE {name} = {t}.{name}; \
             SELECT COUNT(*) AS found FROM {t} WHERE {}",
            columns.join(", "),
            values.join(", "),
            self.is(row),
            t = self.table
        );
        let answers = self.tries.run(&self.server, |_| sql.clone().into()).await?;
        let seen = answers.last().and_then(|a| a.rows.first());
        let found = seen.map_or(Ok(0), |row| natural(row, "found"));
        Ok(found.map_err(|e| self.server.undecodable(e))? > 0)
    }

    async fn settled(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) {
        for slot in [&self.tries, &self.renewals, &self.reads] {
            slot.close().await;
        }
    }
}
