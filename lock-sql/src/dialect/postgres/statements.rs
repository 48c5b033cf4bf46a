//! The statements. One autocommit statement each, so that one round trip is one decision.
//!
//! *The clock* is `clock_timestamp()`, read where a row is judged and written: `now()` stands still at the
//! start of a statement that then waits for a row. Expiries are `timestamptz`, an instant and no local
//! time; the session's zone only decides how it is shown, and nothing here shows it.
//!
//! *The try and the release* are [functions](super::function) in the database.
//!
//! *The row.* No column is ever NULL. An empty `nonce` means that nobody holds it; `expires` then says since
//! when. The row with the empty name, which no lock can have, keeps the least token for names that
//! were swept. Only a grant and a revocation change the token, and both lock the row `FOR UPDATE` before: a
//! fenced transaction that holds it `FOR KEY SHARE` keeps takeovers out, and no renewal.
//!
//! *The line of waiters* is a second table, unlogged: nothing in it is worth a flush, and a crash may empty it.
//! A denied try of a claim that may wait enters it. Whoever frees a name takes the first out of the line, names
//! it as the *heir* in the row, for which the name is kept for [`HAND_OFF`], and notifies its process
//! alone; the second in line, of another process, is told to look after that time. So a release costs the
//! same for any number of waiters, nobody is passed over, and an heir that is dead costs its time only.

use std::sync::Arc;
use std::time::Duration;

use super::function::{self, Function};
use crate::config::TableName;

/// Each column with its type as `format_type` tells it, in order. `prepare` compares them with what
/// stands there.
pub(super) const COLUMNS: [(&str, &str); 11] = [
    ("name", "text"),
    ("owner", "text"),
    ("nonce", "bytea"),
    ("token", "bigint"),
    ("expires", "timestamp with time zone"),
    ("ttl", "bigint"),
    ("metadata", "text"),
    ("version", "bigint"),
    ("request", "text"),
    ("note", "text"),
    ("heir", "bytea"),
];

/// How long a freed name is kept for the first in line.
pub(super) const HAND_OFF: Duration = Duration::from_millis(100);

/// What the name of the second table ends with.
pub(super) const LINE: &str = "_waiters";

/// The server's clock in microseconds, as tokens have it.
pub(super) const MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// An instant that lies as many milliseconds ahead.
fn ahead(millis: &str) -> String {
    format!("clock_timestamp() + {millis} * interval '1 millisecond'")
}

#[derive(Debug)]
pub(super) struct Statements {
    /// What a user must be allowed to execute, for `GRANT`.
    pub(super) functions: String,
    pub(super) create: String,
    pub(super) shape: Arc<str>,
    pub(super) try_acquire: Arc<str>,
    pub(super) renew: Arc<str>,
    pub(super) release: Arc<str>,
    pub(super) withdraw: Arc<str>,
    pub(super) enlist: Arc<str>,
    pub(super) look: Arc<str>,
    pub(super) read: Arc<str>,
    pub(super) list: Arc<str>,
    pub(super) revoke: Arc<str>,
    pub(super) request: Arc<str>,
    pub(super) server_time: Arc<str>,
    pub(super) sweep: Arc<str>,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let t = table.quoted();
        let columns = COLUMNS.map(|(name, kind)| match name {
            // Names are compared byte for byte, whatever the database's collation.
            "name" => format!("{name} {kind} COLLATE \"C\" NOT NULL PRIMARY KEY"),
            _ => format!("{name} {kind} NOT NULL"),
        });
        let columns = columns.join(", ");
        let w = format!("\"{table}{LINE}\"");
        let off = function::off();
        let look = "name, owner, nonce, token, ttl, version, metadata, note, \
             ceil(extract(epoch FROM expires - clock_timestamp()) * 1000000)::bigint AS remaining";
        // How long the name is still kept for another than this nonce, in microseconds.
        let kept = |nonce: &str| {
            format!(
                "coalesce(CASE WHEN nonce = ''::bytea AND heir NOT IN (''::bytea, {nonce}::bytea) \
                 THEN ceil(extract(epoch FROM expires + {off} - clock_timestamp()) * 1000000)::bigint END, 0) AS kept"
            )
        };
        let attempt = Function::attempt(table, &w);
        let end = Function::hand_on(table, &w);
        let freed = "nonce = ''::bytea, expires = clock_timestamp(), request = '', version = l.version + 1, heir = ''::bytea";
        // Only when somebody stands in line. A claim that ends is passed over.
        let hand_on = |but: &str| {
            format!(
                "CASE WHEN EXISTS (SELECT FROM {w} w WHERE w.name = $1::text) THEN {}($1::text, {but}) END",
                end.name
            )
        };
        let held = "nonce <> ''::bytea AND expires > clock_timestamp()";
        Self {
            functions: format!("{}, {}", attempt.signature, end.signature),
            // Renewals rewrite a row again and again and touch no index: with room on the page they stay on it.
            create: format!(
                "CREATE TABLE IF NOT EXISTS {t} ({columns}) WITH (fillfactor = 50); \
                 CREATE UNLOGGED TABLE IF NOT EXISTS {w} (name text COLLATE \"C\" NOT NULL, waiter bytea NOT NULL, \
                 channel text NOT NULL, since timestamp with time zone NOT NULL, until timestamp with time zone NOT NULL, \
                 PRIMARY KEY (name, waiter)); {}; {}",
                attempt.create, end.create
            ),
            shape: format!(
                "SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required, \
                 coalesce(o.collname = 'C', true) AS bytes, c.relkind::text AS kind, c.relpersistence::text AS persistence, \
                 (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid \
                   AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = 1 \
                   AND i.indkey[0] = (SELECT attnum FROM pg_attribute WHERE attrelid = c.oid AND attname = 'name')) AS by_name, \
                 has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
                   AND has_table_privilege(c.oid, 'UPDATE') \
                   AND coalesce(has_table_privilege(to_regclass('{w}'), 'SELECT') AND has_table_privilege(to_regclass('{w}'), 'INSERT') \
                   AND has_table_privilege(to_regclass('{w}'), 'UPDATE') AND has_table_privilege(to_regclass('{w}'), 'DELETE'), true) \
                   AND coalesce(has_function_privilege(to_regprocedure('{0}'), 'EXECUTE') \
                   AND has_function_privilege(to_regprocedure('{1}'), 'EXECUTE'), true) AS allowed, \
                 to_regclass('{w}') IS NOT NULL AND to_regprocedure('{0}') IS NOT NULL AND to_regprocedure('{1}') IS NOT NULL AS whole \
                 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
                 LEFT JOIN pg_collation o ON o.oid = a.attcollation AND a.attname = 'name' \
                 WHERE c.oid = to_regclass('{t}')",
                attempt.signature, end.signature
            )
            .into(),
            try_acquire: function::attempt(table, &attempt).into(),
            // Three looks tell the outcomes apart: what is alive in the snapshot, what could be locked, and
            // what was written. Nothing waits, so no row delays another.
            renew: format!(
                "WITH want AS (SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[]) \
                   WITH ORDINALITY AS w (name, nonce, token, ttl, nth)), \
                 alive AS (SELECT w.nth FROM want w JOIN {t} l ON l.name = w.name AND l.nonce = w.nonce \
                   AND l.token = w.token AND l.expires > clock_timestamp()), \
                 locked AS (SELECT l.name, w.nth, w.ttl FROM want w JOIN {t} l ON l.name = w.name AND l.nonce = w.nonce \
                   AND l.token = w.token ORDER BY l.name FOR NO KEY UPDATE OF l SKIP LOCKED), \
                 renewed AS (UPDATE {t} l SET expires = {expires}, version = l.version + 1 FROM locked k \
                   WHERE l.name = k.name AND l.expires > clock_timestamp() RETURNING k.nth, l.request) \
                 SELECT renewed.nth IS NOT NULL AS renewed, alive.nth IS NOT NULL AND locked.nth IS NULL AS skipped, \
                 coalesce(renewed.request, '') AS request \
                 FROM want LEFT JOIN alive USING (nth) LEFT JOIN locked USING (nth) LEFT JOIN renewed USING (nth) \
                 ORDER BY want.nth",
                expires = ahead("k.ttl"),
            )
            .into(),
            release: format!(
                "UPDATE {t} l SET {freed} WHERE l.name = $1::text AND l.nonce = $2::bytea AND l.token = $3::bigint \
                 RETURNING {}",
                hand_on("''::bytea")
            )
            .into(),
            withdraw: format!(
                "WITH own AS (DELETE FROM {w} WHERE name = $1::text AND waiter = $2::bytea) \
                 UPDATE {t} l SET {freed} WHERE l.name = $1::text \
                 AND (l.nonce = $2::bytea OR l.nonce = ''::bytea AND l.heir = $2::bytea) RETURNING {}",
                hand_on("$2::bytea")
            )
            .into(),
            enlist: format!(
                "INSERT INTO {w} (name, waiter, channel, since, until) \
                 VALUES ($1::text, $2::bytea, $3::text, clock_timestamp(), {}) \
                 ON CONFLICT (name, waiter) DO UPDATE SET channel = excluded.channel, until = excluded.until",
                ahead("$4::bigint")
            )
            .into(),
            // Whether somebody stands before this claim, who is then told to look when the heir does not come.
            look: format!(
                "SELECT {look}, {}, EXISTS (SELECT FROM {w} a, {w} b WHERE a.name = $1::text AND b.name = $1::text \
                 AND b.waiter = $2::bytea AND a.since < b.since AND a.until > clock_timestamp()) AS behind \
                 FROM {t} WHERE name = $1::text",
                kept("$2")
            )
            .into(),
            read: format!("SELECT {look} FROM {t} WHERE name = $1::text").into(),
            list: format!(
                "SELECT {look} FROM {t} WHERE name >= $1::text AND name <> '' AND starts_with(name, $1::text) \
                 ORDER BY name COLLATE \"C\""
            )
            .into(),
            revoke: format!(
                "WITH kept_out AS MATERIALIZED (SELECT name FROM {t} WHERE name = $1::text AND {held} FOR UPDATE) \
                 UPDATE {t} l SET token = greatest(l.token + 1, {MICROS}), {freed}, note = $2::text FROM kept_out k \
                 WHERE l.name = k.name RETURNING l.token, {}",
                hand_on("''::bytea")
            )
            .into(),
            request: format!(
                "UPDATE {t} SET request = $2::text WHERE name = $1::text AND {held} RETURNING 1"
            )
            .into(),
            server_time: format!("SELECT {MICROS} AS micros").into(),
            // The floor is raised in the statement that removes.
            sweep: format!(
                "WITH gone AS (DELETE FROM {t} WHERE name <> '' \
                   AND expires <= clock_timestamp() - $1::bigint * interval '1 millisecond' RETURNING token), \
                 late AS (DELETE FROM {w} WHERE until <= clock_timestamp()), \
                 floor AS (INSERT INTO {t} AS l (name, owner, nonce, token, expires, ttl, metadata, version, request, note, heir) \
                   SELECT '', '', ''::bytea, max(token), clock_timestamp(), 0, '', 1, '', '', ''::bytea FROM gone HAVING count(*) > 0 \
                   ON CONFLICT (name) DO UPDATE SET token = greatest(l.token, excluded.token)) \
                 SELECT count(*) AS swept FROM gone"
            )
            .into(),
        }
    }
}
