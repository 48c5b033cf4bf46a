//! The tables of others on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::{Error, ErrorKind, Result};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connection::{Server, Slot};
use super::statements::MICROS;
use super::values::{Value, text};
use crate::config::PostgresConfig;
use crate::dialect::Dialect;
use crate::error::postgres::Words;
use crate::layout::{Foreign, Look, PeerLayout, PeerTable, Row, Rows, Swap};

/// The columns as `format_type` tells them, in the order of name, holder, acquired, expires, version.
type Columns = &'static [(&'static str, &'static str)];

const LEADER_LEASES: Columns = &[
    ("component", "character varying(64)"),
    ("holder_id", "character varying(255)"),
    ("acquired_at", "timestamp with time zone"),
    ("expires_at", "timestamp with time zone"),
    ("version", "bigint"),
];

const MASTER_LOCK: Columns = &[
    ("servicename", "character varying(36)"),
    ("instanceid", "character varying(255)"),
    ("lockedtime", "timestamp(3) without time zone"),
    ("expiretime", "timestamp(3) without time zone"),
];

#[derive(Debug)]
pub(super) struct Table {
    server: Arc<Server>,
    columns: Columns,
    read: Arc<str>,
    all: Arc<str>,
    swap: Arc<str>,
    insert: Arc<str>,
    tries: Slot,
    renewals: Slot,
    reads: Slot,
}

/// The store over such a table.
pub(crate) fn open(config: &PostgresConfig, peers: &PeerTable) -> Result<impl Dialect + 'static> {
    peers.check()?;
    let (step, zoned) = match peers.layout {
        PeerLayout::LeaderLeases => (Duration::from_micros(1), true),
        PeerLayout::MasterLock => (Duration::from_millis(1), false),
    };
    let table = Table::new(config, peers)?;
    Ok(Foreign::new("postgres", peers, step, zoned, table))
}

impl Table {
    fn new(config: &PostgresConfig, peers: &PeerTable) -> Result<Self> {
        let options = config.options()?;
        let name = peers.table(&config.table)?;
        let t = name.quoted();
        let (columns, epoch, create) = match peers.layout {
            PeerLayout::LeaderLeases => (
                LEADER_LEASES,
                "timestamptz '1970-01-01 00:00:00+00'",
                format!(
                    "CREATE TABLE IF NOT EXISTS {t} (id bigserial PRIMARY KEY, component varchar(64) NOT NULL UNIQUE, \
                     holder_id varchar(255) NOT NULL, acquired_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, \
                     version bigint NOT NULL DEFAULT 0)"
                ),
            ),
            PeerLayout::MasterLock => (
                MASTER_LOCK,
                "timestamp '1970-01-01 00:00:00'",
                format!(
                    "CREATE TABLE IF NOT EXISTS {t} (serviceName varchar(36) NOT NULL PRIMARY KEY, expireTime timestamp(3) \
                     NOT NULL, lockedTime timestamp(3) NOT NULL, instanceId varchar(255) NOT NULL)"
                ),
            ),
        };
        let micros = |column: &str| format!("(extract(epoch FROM {column}) * 1000000)::bigint");
        let time = |n: usize| format!("{epoch} + ${n}::bigint * interval '1 microsecond'");
        let [name_c, holder, acquired, expires] = [0, 1, 2, 3].map(|n: usize| columns[n].0);
        let versioned = columns.len() > 4;
        let version = if versioned { "version" } else { "0::bigint" };
        let select = format!(
            "SELECT n.now, l.* FROM (SELECT {MICROS} AS now) AS n LEFT JOIN (SELECT {name_c} AS name, {holder} AS holder, \
             {} AS acquired, {} AS expires, {version} AS version FROM {t}",
            micros(acquired),
            micros(expires)
        );
        let set_version = if versioned {
            ", version = $9::bigint"
        } else {
            ""
        };
        let swap = format!(
            "WITH l AS MATERIALIZED (SELECT 1 FROM {t} WHERE {name_c} = $1::text AND {holder} = $2::text AND {} = $3::bigint \
             AND {} = $4::bigint AND {version} = $5::bigint FOR UPDATE SKIP LOCKED) \
             UPDATE {t} SET {holder} = $6::text, {acquired} = {}, {expires} = {}{set_version} FROM l \
             WHERE {name_c} = $1::text AND {MICROS} < $10::bigint RETURNING $9::bigint",
            micros(acquired),
            micros(expires),
            time(7),
            time(8)
        );
        let (more, value) = if versioned {
            (", version", ", $5::bigint")
        } else {
            ("", "")
        };
        let insert = format!(
            "INSERT INTO {t} ({name_c}, {holder}, {acquired}, {expires}{more}) SELECT $1::text, $2::text, {}, {}{value} \
             WHERE {MICROS} < $6::bigint ON CONFLICT ({name_c}) DO NOTHING RETURNING $5::bigint",
            time(3),
            time(4)
        );
        let place = options.get_socket().map_or_else(
            || format!("{}:{}", options.get_host(), options.get_port()),
            |socket| socket.display().to_string(),
        );
        let user = options.get_username();
        let words = Words {
            server: place,
            database: options.get_database().unwrap_or(user).to_owned(),
            user: user.to_owned(),
            table: name,
            create,
            functions: String::new(),
        };
        Ok(Self {
            server: Arc::new(Server::new(options, config.lock_wait, words)),
            columns,
            read: format!("{select} WHERE {name_c} = ANY($1::text[])) AS l ON true").into(),
            all: format!("{select}) AS l ON true").into(),
            swap: swap.into(),
            insert: insert.into(),
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

    /// What is wrong with the table that stands there; `None` when there is none.
    async fn look(&self) -> Result<Option<Option<String>>> {
        let words = &self.server.words;
        let t = words.table.quoted();
        let sql = format!(
            "SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, c.relkind::text AS kind, \
             EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indpred IS NULL \
             AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum) AS alone \
             FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             WHERE c.oid = to_regclass('{t}')"
        );
        let mut open = Arc::clone(&self.server).open().await?;
        let rows = self.server.once(&mut open, &sql).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let fault = self.fault(&rows).map_err(|e| words.map(e))?;
        Ok(Some(fault))
    }

    fn fault(&self, rows: &[PgRow]) -> Result<Option<String>, sqlx::Error> {
        for (n, (column, kind)) in self.columns.iter().enumerate() {
            let mut found = None;
            for row in rows {
                if row.try_get::<String, _>("name")? == *column {
                    found = Some(row);
                }
            }
            let Some(row) = found else {
                return Ok(Some(format!("the column {column} is missing")));
            };
            if !matches!(row.try_get::<String, _>("kind")?.as_str(), "r" | "p") {
                return Ok(Some("it is no table".into()));
            }
            let is: String = row.try_get("type")?;
            if is != *kind {
                return Ok(Some(format!("the column {column} is {is}, not {kind}")));
            }
            if n == 0 && !row.try_get::<bool, _>("alone")? {
                return Ok(Some(format!(
                    "the column {column} has no unique index of its own"
                )));
            }
        }
        Ok(None)
    }

    fn row(row: &PgRow) -> Result<(i64, Option<Row>), sqlx::Error> {
        let now = row.try_get("now")?;
        let Some(name) = row.try_get("name")? else {
            return Ok((now, None));
        };
        Ok((
            now,
            Some(Row {
                name,
                holder: row.try_get("holder")?,
                acquired: row.try_get("acquired")?,
                expires: row.try_get("expires")?,
                version: row.try_get("version")?,
            }),
        ))
    }
}

#[async_trait]
impl Rows for Table {
    async fn prepare(&self) -> Result<()> {
        let words = &self.server.words;
        let mut found = self.look().await?;
        if found.is_none() {
            let create = format!(
                "SET LOCAL lock_timeout = '30s'; SET LOCAL statement_timeout = '30s'; SET LOCAL client_min_messages = 'warning'; \
                 SELECT pg_advisory_xact_lock(hashtextextended('lockkit prepare {}', 0)); {}",
                words.table, words.create
            );
            let mut open = Arc::clone(&self.server).open().await?;
            self.server.once(&mut open, &create).await?;
            found = self.look().await?;
        }
        let fault = found.unwrap_or_else(|| Some("it went away while it was made".into()));
        fault.map_or(Ok(()), |fault| {
            Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "{} in {} is not as the other system makes it: {fault}",
                    words.table, words.database
                ),
            ))
        })
    }

    async fn read(&self, who: Look, names: Option<&[&str]>) -> Result<(i64, Vec<Row>)> {
        let of = |names: &[&str]| Value::Texts(names.iter().map(|&n| n.to_owned()).collect());
        let rows = match names {
            Some(names) => {
                self.slot(who)
                    .rows(&self.server, &self.read, &[of(names)])
                    .await?
            }
            None => self.slot(who).rows(&self.server, &self.all, &[]).await?,
        };
        let mut now = 0;
        let mut found = Vec::new();
        for row in &rows {
            let (read, row) = Self::row(row).map_err(|e| self.server.words.map(e))?;
            now = read;
            found.extend(row);
        }
        Ok((now, found))
    }

    async fn swap(&self, who: Look, swap: Swap<'_>) -> Result<bool> {
        let (old, new) = (swap.old, swap.new);
        let values = [
            text(&old.name),
            text(&old.holder),
            Value::Integer(old.acquired),
            Value::Integer(old.expires),
            Value::Integer(old.version),
            text(&new.holder),
            Value::Integer(new.acquired),
            Value::Integer(new.expires),
            Value::Integer(new.version),
            Value::Integer(swap.until),
        ];
        let rows = self
            .slot(who)
            .rows(&self.server, &self.swap, &values)
            .await?;
        Ok(!rows.is_empty())
    }

    async fn insert(&self, row: &Row, until: i64) -> Result<bool> {
        let values = [
            text(&row.name),
            text(&row.holder),
            Value::Integer(row.acquired),
            Value::Integer(row.expires),
            Value::Integer(row.version),
            Value::Integer(until),
        ];
        let rows = self.tries.rows(&self.server, &self.insert, &values).await?;
        Ok(!rows.is_empty())
    }

    async fn settled(&self) -> Result<()> {
        self.tries.settled(&self.server, &self.renewals).await
    }

    async fn close(&self) {
        for slot in [&self.tries, &self.renewals, &self.reads] {
            slot.close().await;
        }
    }
}
