//! The statements. One autocommit statement each, so that one round trip is one decision.
//!
//! *The clock.* SQLite reads `unixepoch('subsec')` once per statement, when it is first needed: that is
//! after the statement has its write lock, for which alone it can have waited. So a renewal that stood
//! behind a long transaction is judged by the time at which it is written. It shows whole milliseconds,
//! cut off: an expiry is therefore one more than the sum, so that nobody sees it before the ttl is over.
//!
//! *The row.* No column is ever NULL. An empty `nonce` means that nobody holds it; `expires` then says
//! since when. The row with the empty name, which no lock can have, keeps the least token for names that
//! were swept.

use std::sync::Arc;

use lock_core::Lease;
use sqlx::Arguments as _;
use sqlx::sqlite::SqliteArguments;

use crate::config::TableName;
use crate::dialect::sqlite::row;

/// The store's clock in milliseconds.
const NOW: &str = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)";

/// Each column with its declared type, in order. `prepare` compares them with what stands there.
pub(super) const COLUMNS: [(&str, &str); 10] = [
    ("name", "TEXT"),
    ("owner", "TEXT"),
    ("nonce", "BLOB"),
    ("token", "INTEGER"),
    ("expires", "INTEGER"),
    ("ttl", "INTEGER"),
    ("metadata", "TEXT"),
    ("version", "INTEGER"),
    ("request", "TEXT"),
    ("note", "TEXT"),
];

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) create: Arc<str>,
    pub(super) shape: Arc<str>,
    pub(super) try_acquire: Arc<str>,
    renew: [(usize, Arc<str>); 4],
    pub(super) release: Arc<str>,
    pub(super) withdraw: Arc<str>,
    pub(super) read: Arc<str>,
    pub(super) list: Arc<str>,
    pub(super) revoke: Arc<str>,
    pub(super) request: Arc<str>,
    pub(super) server_time: Arc<str>,
    table: String,
}

/// Sizes of a batch of renewals; one that is between two is filled up by repeating its last lease, so
/// that four statements are kept ready, not five hundred.
const BATCHES: [usize; 4] = [1, 16, 128, crate::dialect::CHUNK];

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let t = table.quoted();
        let columns = COLUMNS.map(|(name, kind)| match name {
            // BINARY compares byte for byte; said, since a connection cannot be trusted to default to it.
            "name" => format!("{name} {kind} NOT NULL COLLATE BINARY PRIMARY KEY"),
            _ => format!("{name} {kind} NOT NULL"),
        });
        let look = format!(
            "SELECT name, nonce, owner, token, expires - {NOW} AS remaining, ttl, version, metadata, note FROM {t}"
        );
        // `RETURNING` sees the new values only. The time of the end is now if the lease was alive, and
        // earlier if it was not.
        let end = |condition: &str| {
            format!(
                "UPDATE {t} SET nonce = x'', expires = min({NOW}, expires - 1), request = '', \
                 version = version + 1 WHERE name = ?1 AND nonce = ?2{condition} RETURNING expires = {NOW}"
            )
        };
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS {t} ({}) WITHOUT ROWID",
                columns.join(", ")
            )
            .into(),
            shape: format!(
                "SELECT (SELECT type FROM sqlite_schema WHERE name = '{table}' COLLATE NOCASE) AS kind, \
                 name, type, \"notnull\" AS required, pk FROM pragma_table_info('{table}')"
            )
            .into(),
            // `excluded.expires - excluded.ttl - 1` is the time of this statement. The second statement
            // tells a loser who holds it, in the same round trip.
            try_acquire: format!(
                "INSERT INTO {t} (name, owner, nonce, token, expires, ttl, metadata, version, request, note) \
                 SELECT ?1, ?2, ?3, new.token, {NOW} + ?4 + 1, ?4, ?5, new.token, '', '' \
                 FROM (SELECT max({NOW} * 1000, ?6, 1 + coalesce((SELECT token FROM {t} WHERE name = ''), 0)) AS token) AS new \
                 WHERE true \
                 ON CONFLICT (name) DO UPDATE SET \
                 token = CASE WHEN nonce = excluded.nonce AND expires > excluded.expires - excluded.ttl - 1 \
                   THEN max(token, ?6) ELSE max(token + 1, excluded.token) END, \
                 request = CASE WHEN nonce = excluded.nonce AND expires > excluded.expires - excluded.ttl - 1 \
                   THEN request ELSE '' END, \
                 version = max(version + 1, excluded.version), \
                 owner = excluded.owner, nonce = excluded.nonce, expires = excluded.expires, \
                 ttl = excluded.ttl, metadata = excluded.metadata, note = '' \
                 WHERE CASE WHEN nonce = x'' THEN true \
                   WHEN expires <= excluded.expires - excluded.ttl - 1 THEN ?7 IN (0, version) \
                   ELSE nonce = excluded.nonce END \
                 RETURNING token; \
                 {look} WHERE name = ?1"
            )
            .into(),
            renew: BATCHES.map(|size| {
                // `INDEXED BY` is not for primary keys; a list of names keeps the search to the rows meant.
                let rows = vec!["(?, ?, ?, ?)"; size].join(", ");
                let sql = format!(
                    "WITH lease (name, nonce, token, ttl) AS (VALUES {rows}) \
                     UPDATE {t} SET expires = {NOW} + lease.ttl + 1, version = {t}.version + 1 FROM lease \
                     WHERE {t}.name = lease.name AND {t}.nonce = lease.nonce AND {t}.token = lease.token \
                     AND {t}.expires > {NOW} RETURNING nonce, request"
                );
                (size, sql.into())
            }),
            release: end(" AND token = ?3").into(),
            withdraw: end("").into(),
            read: format!("{look} WHERE name = ?1").into(),
            list: format!(
                "{look} WHERE name >= ?1 AND name <> '' AND substr(name, 1, length(?1)) = ?1 ORDER BY name"
            )
            .into(),
            revoke: format!(
                "UPDATE {t} SET token = max(token + 1, {NOW} * 1000), nonce = x'', expires = {NOW}, \
                 request = '', note = ?2, version = version + 1 \
                 WHERE name = ?1 AND nonce <> x'' AND expires > {NOW} RETURNING token"
            )
            .into(),
            request: format!(
                "UPDATE {t} SET request = ?2 WHERE name = ?1 AND nonce <> x'' AND expires > {NOW} RETURNING 1"
            )
            .into(),
            server_time: format!("SELECT {NOW}").into(),
            table: t,
        }
    }

    /// The statement that renews these leases.
    pub(super) fn renew(&self, leases: &[Lease]) -> (&Arc<str>, SqliteArguments) {
        let (size, sql) = self
            .renew
            .iter()
            .find(|(size, _)| *size >= leases.len())
            .unwrap_or(&self.renew[BATCHES.len() - 1]);
        let mut arguments = SqliteArguments::default();
        let filled = leases
            .iter()
            .chain(std::iter::repeat(&leases[leases.len() - 1]));
        for lease in filled.take(*size) {
            bind(&mut arguments, row::stored_name(lease));
            bind(&mut arguments, row::nonce(lease.nonce()));
            bind(&mut arguments, row::integer(lease.token().get()));
            bind(&mut arguments, row::millis(lease.claim().ttl));
        }
        (sql, arguments)
    }

    /// The floor is raised before anything is removed, in one transaction; a connection on which it breaks
    /// off is thrown away, and the transaction with it.
    pub(super) fn sweep(&self, unused_for: i64) -> Arc<str> {
        let t = &self.table;
        format!(
            "BEGIN IMMEDIATE; \
             INSERT INTO {t} (name, owner, nonce, token, expires, ttl, metadata, version, request, note) \
             SELECT '', '', x'', max(token), 0, 0, '', 1, '', '' FROM {t} HAVING count(*) > 0 \
             ON CONFLICT (name) DO UPDATE SET token = max(token, excluded.token); \
             DELETE FROM {t} WHERE name <> '' AND expires <= {NOW} - {unused_for} RETURNING 1; \
             COMMIT"
        )
        .into()
    }
}

/// Binds a value that can always be encoded: text, bytes or a number.
pub(super) fn bind<'t, T>(arguments: &mut SqliteArguments, value: T)
where
    T: sqlx::Encode<'t, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + 't,
{
    let added = arguments.add(value);
    debug_assert!(
        added.is_ok(),
        "text, bytes and numbers are encoded by a copy"
    );
}
