//! The statements, as text.
//!
//! *Why mostly text.* One request may then hold two statements: the one that decides, and the look at the row
//! that tells what was decided and by whom the name is held. That is one round trip for a grant and for
//! a denial. Every value is a number or a hexadecimal literal, so there is nothing to escape. What is sent for each
//! acquisition of a free name, and for its release, is one statement and prepared.
//!
//! *What was written decides.* `version` is drawn by the caller for each statement. The row carries it
//! afterwards if, and only if, this statement has written the row; counts of rows say less, since an
//! upsert that changes nothing counts like one that does.
//!
//! *The clock.* `UTC_TIMESTAMP` stands still from the start of a statement, `SYSDATE` does not: a
//! statement that waited for the row is judged by the time at which it gets it. The session is in UTC.
//!
//! *Waiting.* A denied try reads what is committed and locks nothing, so that a crowd of candidates is
//! not in the holder's way. Renewals skip rows that others have locked.
//!
//! *The row.* No column is ever NULL. Times are microseconds since 1970. An empty `nonce` means that
//! nobody holds it; `expires` then says since when. The row with the empty name keeps the least token for
//! names that were swept.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Claim, Lease, LockName, Metadata, Nonce};

use super::connection::{Request, Value};
use super::row;
use crate::config::TableName;

/// The store's clock in microseconds.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// True on a server that may be written to. Tested in the statement itself, since an administrator's
/// account may write to a replica as well. As text, because newer servers answer a word.
const WRITABLE: &str = "CONCAT(@@global.read_only) IN ('0', 'OFF')";

/// Each column with its type as the server shows it without display widths.
pub(super) const COLUMNS: [(&str, &str); 10] = [
    ("name", "varbinary(255)"),
    ("owner", "varchar(255)"),
    ("nonce", "varbinary(16)"),
    ("token", "bigint"),
    ("expires", "bigint"),
    ("ttl", "bigint"),
    ("metadata", "varchar(4096)"),
    ("version", "bigint"),
    ("request", "varchar(255)"),
    ("note", "varchar(4096)"),
];

/// The statements over one table.
#[derive(Debug)]
pub(super) struct Statements {
    /// Database and table, quoted.
    pub(super) table: String,
    take: Arc<str>,
    take_unchanged: Arc<str>,
    release: Arc<str>,
}

/// From left to right: what is read of the row as it was comes before it is written.
fn take(table: &str, unchanged: &str) -> Arc<str> {
    let own = format!("nonce = ? AND expires > {NOW}");
    let yielded = yielded(table, "?", "?");
    format!(
        "UPDATE {table} SET \
         token = LAST_INSERT_ID(IF({own}, GREATEST(token, ?), GREATEST(token + 1, {NOW}, ?))), \
         request = IF({own}, request, x''), note = x'', owner = ?, metadata = ?, ttl = ?, version = ?, \
         expires = {NOW} + ?, nonce = ? \
         WHERE name = ? AND (nonce = ? OR ((nonce = x'' OR (expires <= {NOW}{unchanged})) AND {yielded})) \
         AND {WRITABLE}"
    )
    .into()
}

/// The name of the server's lock at which those stand that wait for `name`; server-wide, and 64 characters at most.
fn key(table: &str, name: &str) -> String {
    let table = hex(table.as_bytes());
    format!("CONCAT('lockkit:', SHA2(CONCAT({table}, {name}), 224))")
}

/// True for a row that is free, unless it is kept for the first in line: it is for `kept` microseconds. `own` is the
/// connection that stands in the line for this claim.
fn yielded(table: &str, kept: &str, own: &str) -> String {
    let key = key(table, "name");
    format!("(expires <= {NOW} - {kept} OR COALESCE(IS_USED_LOCK({key}), {own}) = {own})")
}

/// What a claim leaves to others that wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Courtesy {
    /// For how long a name that is free is left to the first in line.
    pub(super) kept: Duration,
    /// The connection of ours that is the first in line for this claim, or 0.
    pub(super) own: i64,
}

/// A value that marks what one statement has written; never 0 and never negative.
pub(super) fn mark() -> i64 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "62 random bits are what is wanted"
    )]
    let bits = Nonce::random().as_u128() as i64;
    (bits & (i64::MAX >> 1)) | 1
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\'');
    text
}

fn name(name: &LockName) -> String {
    hex(name.as_str().as_bytes())
}

fn nonce(nonce: Nonce) -> String {
    hex(&nonce.as_u128().to_be_bytes())
}

fn list(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(", ")
}

impl Statements {
    pub(super) fn new(database: &str, table: &TableName) -> Self {
        let table = format!("{}.`{table}`", quoted(database));
        Self {
            take: take(&table, ""),
            take_unchanged: take(&table, " AND version = ?"),
            release: format!(
                "UPDATE {table} SET nonce = x'', expires = {NOW}, request = x'', version = ? \
                 WHERE name = ? AND nonce = ? AND token = ?"
            )
            .into(),
            table,
        }
    }

    pub(super) fn create(&self) -> String {
        let columns = COLUMNS.map(|(name, kind)| match name {
            "name" => format!("name {kind} NOT NULL PRIMARY KEY"),
            _ => format!("{name} {kind} NOT NULL"),
        });
        // Said in full: neither engine nor collation can be left to the server's defaults.
        format!(
            "CREATE TABLE IF NOT EXISTS {} ({}) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            self.table,
            columns.join(", ")
        )
    }

    fn look(&self) -> String {
        format!(
            "SELECT name, nonce, owner, token, expires - {NOW} AS remaining, ttl, version, metadata, note, \
             request FROM {}",
            self.table
        )
    }

    pub(super) fn read(&self, of: &LockName) -> String {
        format!("{} WHERE name = {}", self.look(), name(of))
    }

    /// What a try wants to know of a row: also whether a free one is kept for another.
    pub(super) fn look_with_line(&self, of: &LockName, courtesy: Courtesy) -> String {
        let kept = row::micros(courtesy.kept).to_string();
        let yielded = yielded(&self.table, &kept, &courtesy.own.to_string());
        let look = self.look();
        let look = look.replacen("SELECT ", &format!("SELECT NOT {yielded} AS kept, "), 1);
        format!("{look} WHERE name = {}", name(of))
    }

    /// Stands in line for `of`: answers 1 when this connection is the first, 0 when `wait` has passed.
    pub(super) fn stand(&self, of: &LockName, wait: Duration) -> String {
        format!(
            "SELECT GET_LOCK({}, {}) AS first",
            key(&self.table, &name(of)),
            wait.as_secs()
        )
    }

    /// Leaves the line, and answers whether somebody else is the first now, whom that has let in; `back` where nobody
    /// is, if that is wanted. From left to right.
    pub(super) fn step_aside(&self, of: &LockName, back: bool) -> String {
        let key = key(&self.table, &name(of));
        let back = if back {
            format!("COALESCE(GET_LOCK({key}, 0), 0)")
        } else {
            "0".to_owned()
        };
        format!(
            "SELECT RELEASE_LOCK({key}) AS left_it, IS_USED_LOCK({key}) IS NOT NULL AS followed, {back} AS back"
        )
    }

    /// What waiters want to know of many names.
    pub(super) fn look_at(&self, names: &BTreeSet<LockName>) -> String {
        format!(
            "SELECT name, token, nonce <> x'' AND expires > {NOW} AS held FROM {} WHERE name IN (x''{})",
            self.table,
            names
                .iter()
                .map(|n| format!(", {}", name(n)))
                .collect::<String>()
        )
    }

    /// Takes a row that is believed to be free, and nothing else; the token is the id that the server answers. Finds
    /// nothing when it is not free. Half the cost of [`try_acquire`](Self::try_acquire), but it waits for the row.
    pub(super) fn take(&self, claim: &Claim, courtesy: Courtesy, mark: i64) -> Request {
        let bytes = |text: &str| Value::Bytes(text.as_bytes().to_vec());
        let number = |token: lock_core::Token| Value::Integer(token.get().cast_signed());
        let nonce = || Value::Bytes(claim.nonce.as_u128().to_be_bytes().to_vec());
        let min = || claim.min_token.map_or(Value::Integer(1), number);
        let ttl = || Value::Integer(row::micros(claim.ttl));
        let mut values = vec![nonce(), min(), min(), nonce(), bytes(claim.owner.as_str())];
        values.extend([
            bytes(claim.metadata.as_str()),
            ttl(),
            Value::Integer(mark),
            ttl(),
            nonce(),
        ]);
        values.extend([bytes(claim.name.as_str()), nonce()]);
        let sql = match claim.if_unchanged {
            None => &self.take,
            Some(version) => {
                values.push(Value::Integer(version.cast_signed()));
                &self.take_unchanged
            }
        };
        let own = || Value::Integer(courtesy.own);
        values.extend([Value::Integer(row::micros(courtesy.kept)), own(), own()]);
        Request::Prepared(Arc::clone(sql), values)
    }

    /// The upsert, then the row.
    pub(super) fn try_acquire(&self, claim: &Claim, courtesy: Courtesy, mark: i64) -> String {
        let t = &self.table;
        let name = name(&claim.name);
        let nonce = nonce(claim.nonce);
        let owner = hex(claim.owner.as_str().as_bytes());
        let metadata = hex(claim.metadata.as_str().as_bytes());
        let ttl = row::micros(claim.ttl);
        let min = claim.min_token.map_or(1, lock_core::Token::get);
        let unchanged = claim
            .if_unchanged
            .map_or_else(String::new, |version| format!(" AND version = {version}"));
        let kept = row::micros(courtesy.kept).to_string();
        let may = format!(
            "nonce = {nonce} OR ((nonce = x'' OR (expires <= {NOW}{unchanged})) AND {})",
            yielded(t, &kept, &courtesy.own.to_string())
        );
        // The first assignment decides, and the later ones see its outcome in `version`; `nonce` and
        // `expires` are needed until the end and come last.
        let keep = |column: &str, value: &str| {
            format!("{column} = IF(version = {mark}, {value}, {column})")
        };
        let own = format!("nonce = {nonce} AND expires > {NOW}");
        let assignments = [
            format!("version = IF({may}, {mark}, version)"),
            keep(
                "token",
                &format!("IF({own}, GREATEST(token, {min}), GREATEST(token + 1, {NOW}, {min}))"),
            ),
            keep("request", &format!("IF({own}, request, x'')")),
            keep("note", "x''"),
            keep("owner", &owner),
            keep("metadata", &metadata),
            keep("ttl", &ttl.to_string()),
            keep("expires", &format!("{NOW} + {ttl}")),
            keep("nonce", &nonce),
        ]
        .join(", ");
        format!(
            "INSERT INTO {t} (name, owner, nonce, token, expires, ttl, metadata, version, request, note) \
             SELECT {name}, {owner}, {nonce}, \
             GREATEST({NOW}, {min}, COALESCE((SELECT token + 1 FROM {t} WHERE name = x''), 1)), \
             {NOW} + {ttl}, {ttl}, {metadata}, {mark}, x'', x'' FROM DUAL \
             WHERE {WRITABLE} AND NOT EXISTS (SELECT 1 FROM {t} WHERE name = {name} AND NOT ({may})) \
             ON DUPLICATE KEY UPDATE {assignments}; {}",
            self.look_with_line(&claim.name, courtesy)
        )
    }

    /// Extends what can be locked at once, then shows every row meant: with `mark` it was renewed.
    pub(super) fn renew(&self, leases: &[Lease], mark: i64, skip_locked: bool) -> String {
        let t = &self.table;
        let names = list(leases.iter().map(|l| name(row::stored_name(l))));
        let terms = list(
            leases
                .iter()
                .map(|l| format!("({}, {})", nonce(l.nonce()), l.token())),
        );
        let skip = if skip_locked { " SKIP LOCKED" } else { "" };
        // The limit keeps the inner query from being merged into the outer one, which would wait.
        format!(
            "UPDATE (SELECT name AS held FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) \
             AND (nonce, token) IN ({terms}) AND {WRITABLE} ORDER BY name LIMIT {} FOR UPDATE{skip}) AS mine \
             STRAIGHT_JOIN {t} AS lease FORCE INDEX (PRIMARY) ON lease.name = mine.held \
             SET lease.version = {mark}, lease.expires = {NOW} + lease.ttl \
             WHERE (lease.nonce, lease.token) IN ({terms}) AND lease.expires > {NOW}; \
             SELECT nonce, token, version, expires > {NOW} AS alive, request FROM {t} WHERE name IN ({names})",
            leases.len() + 1
        )
    }

    pub(super) fn release(&self, lease: &Lease, mark: i64) -> Request {
        let values = vec![
            Value::Integer(mark),
            Value::Bytes(row::stored_name(lease).as_str().as_bytes().to_vec()),
            Value::Bytes(lease.nonce().as_u128().to_be_bytes().to_vec()),
            Value::Integer(lease.token().get().cast_signed()),
        ];
        Request::Prepared(Arc::clone(&self.release), values)
    }

    pub(super) fn withdraw(&self, claim: &Claim, mark: i64) -> String {
        format!(
            "UPDATE {} SET nonce = x'', expires = {NOW}, request = x'', version = {mark} \
             WHERE name = {} AND nonce = {}",
            self.table,
            name(&claim.name),
            nonce(claim.nonce)
        )
    }

    pub(super) fn list(&self, prefix: &str) -> String {
        let prefix = prefix.as_bytes();
        let text = hex(prefix);
        format!(
            "{} WHERE name >= {text} AND name <> x'' AND LEFT(name, {}) = {text} ORDER BY name",
            self.look(),
            prefix.len()
        )
    }

    pub(super) fn revoke(&self, of: &LockName, note: &Metadata, mark: i64) -> String {
        let t = &self.table;
        let name = name(of);
        format!(
            "UPDATE {t} SET token = GREATEST(token + 1, {NOW}), note = {}, request = x'', version = {mark}, \
             nonce = x'', expires = {NOW} WHERE name = {name} AND nonce <> x'' AND expires > {NOW}; \
             SELECT token FROM {t} WHERE name = {name} AND version = {mark}",
            hex(note.as_str().as_bytes())
        )
    }

    pub(super) fn request(&self, of: &LockName, request: &str) -> String {
        format!(
            "UPDATE {} SET request = {} WHERE name = {} AND nonce <> x'' AND expires > {NOW}",
            self.table,
            hex(request.as_bytes()),
            name(of)
        )
    }

    /// The floor is raised before anything is removed, in one transaction.
    pub(super) fn sweep(&self, unused_for: i64) -> String {
        let t = &self.table;
        format!(
            "START TRANSACTION; \
             INSERT INTO {t} (name, owner, nonce, token, expires, ttl, metadata, version, request, note) \
             SELECT x'', x'', x'', MAX(token), 0, 0, x'', 1, x'', x'' FROM {t} HAVING COUNT(*) > 0 \
             ON DUPLICATE KEY UPDATE token = GREATEST({t}.token, VALUES(token)); \
             DELETE FROM {t} WHERE name <> x'' AND expires <= {NOW} - {unused_for}; \
             COMMIT"
        )
    }

    /// Takes the lock of the row by writing to it (the nodes of a Galera cluster see each other's writes, not
    /// each other's locks); its end is read by a statement of its own, which begins after that. Neither
    /// looks at the session's time zone, which is the application's.
    pub(super) fn fence(&self, lease: &Lease, mark: i64) -> String {
        let t = &self.table;
        let condition = format!(
            "name = {} AND nonce = {} AND token = {}",
            name(row::stored_name(lease)),
            nonce(lease.nonce()),
            lease.token()
        );
        format!(
            "UPDATE {t} SET version = {mark} WHERE {condition}; \
             SELECT 1 FROM {t} WHERE {condition} \
             AND expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FOR UPDATE"
        )
    }
}

/// An identifier between backticks.
pub(super) fn quoted(identifier: &str) -> String {
    format!("`{}`", identifier.replace('`', "``"))
}
