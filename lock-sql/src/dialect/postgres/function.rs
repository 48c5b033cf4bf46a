//! The functions in the database that `prepare` makes, and the statement of the try before one of them.
//!
//! What every grant and every release needs is one `UPDATE`; all else is in a function that is called when there is
//! cause: as one statement with everything in it, each was set up and taken down as a whole every time, which cost
//! as much as the rest of a grant.
//!
//! *The try.* A denied one reads, and neither locks nor writes. Who may win locks the *name* (an advisory lock,
//! until the end of the transaction) and then the row: racers stand behind that and then see what the first has made
//! of the row, without a write of their own and without an error in the server's log. Each command of a function
//! has a snapshot of its own, which takes READ COMMITTED; sessions of ours have it.
//!
//! A grant locks the row `FOR UPDATE` before it writes. That, and not the advisory lock, keeps it from a row that a
//! fenced transaction shares (`FOR KEY SHARE`), and from one that another version of the function takes. It touches
//! no index.

use super::statements::{HAND_OFF, MICROS};
use crate::config::TableName;

/// How much longer than the table's a function's name is.
pub(super) const SUFFIX: usize = "_try_".len() + 8;

#[derive(Debug)]
pub(super) struct Function {
    /// Quoted, with the types of the arguments.
    pub(super) signature: String,
    pub(super) create: String,
    /// Quoted.
    pub(super) name: String,
}

/// FNV-1a, folded.
fn digest(text: &str) -> u32 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = (hash >> 32) as u32 ^ hash as u32;
    folded
}

impl Function {
    /// `verb` has three letters, `inputs` are what is handed in, `outputs` what comes out.
    ///
    /// The name tells the text apart, so that versions of this crate can share a table.
    fn new(
        table: &TableName,
        verb: &str,
        inputs: &[(&str, &str)],
        outputs: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let name = format!("\"{table}_{verb}_{:08x}\"", digest(body));
        let types: Vec<_> = inputs.iter().map(|(_, kind)| *kind).collect();
        let inputs = inputs.iter().map(|(name, kind)| format!("{name} {kind}"));
        let outputs = outputs
            .iter()
            .map(|(name, kind)| format!("OUT {name} {kind}"));
        let all: Vec<_> = inputs.chain(outputs).collect();
        Self {
            signature: format!("{name}({})", types.join(", ")),
            // One line.
            create: format!(
                "CREATE OR REPLACE FUNCTION {name}({}) LANGUAGE plpgsql AS $$ {body} $$",
                all.join(", ")
            ),
            name,
        }
    }

    /// What the fast path of a try left open: it grants, or answers of the entry that keeps the claim out, and lets
    /// the claim stand in line (`p_channel`: NULL for one that never does). What the fast path has granted leaves the line.
    ///
    /// The answer has the fields of [`Answer`](super::row::Answer), or the token alone; NULL when nothing could be decided.
    pub(super) fn attempt(table: &TableName, line: &str) -> Self {
        let (t, off) = (table.quoted(), off());
        let sql = Attempt::of([
            "p_name",
            "p_owner",
            "p_nonce",
            "p_ttl",
            "p_metadata",
            "p_least",
            "p_version",
        ]);
        let lock = format!("PERFORM 1 FROM {t} l WHERE {}", sql.takeable(table));
        let micros = |until: &str| {
            format!("ceil(extract(epoch FROM {until} - clock_timestamp()) * 1000000)::bigint::text")
        };
        let body = format!(
            "DECLARE alone boolean := false; held boolean; granted bigint := p_granted; r record; \
             BEGIN \
             FOR look IN 1..4 LOOP \
               IF granted IS NOT NULL THEN \
                 IF p_channel IS NOT NULL THEN DELETE FROM {line} w WHERE w.name = p_name AND w.waiter = p_nonce; END IF; \
                 answer := ARRAY[granted::text]; \
                 RETURN; \
               END IF; \
               SELECT * INTO r FROM {t} l WHERE l.name = p_name; \
               held := {denied}; \
               EXIT WHEN held; \
               IF NOT alone THEN \
                 BEGIN PERFORM pg_advisory_xact_lock({key}); EXCEPTION WHEN lock_not_available THEN RETURN; END; \
                 alone := true; \
               ELSIF r.name IS NULL THEN \
                 INSERT INTO {t} AS l (name, owner, nonce, token, expires, ttl, metadata, version, request, note, heir) \
                 SELECT p_name, p_owner, p_nonce, n.token, {ahead}, p_ttl, p_metadata, n.token, '', '', '' FROM \
                 (SELECT greatest({MICROS}, p_least, 1 + (SELECT f.token FROM {t} f WHERE f.name = '')) AS token) AS n \
                 ON CONFLICT (name) DO NOTHING RETURNING l.token INTO granted; \
               ELSE \
                 {lock}; \
                 IF FOUND THEN UPDATE {t} l SET {grant} WHERE l.name = p_name RETURNING l.token INTO granted; END IF; \
               END IF; \
             END LOOP; \
             IF held THEN \
               IF p_channel <> '' THEN \
                 INSERT INTO {line} (name, waiter, channel, since, until) \
                 VALUES (p_name, p_nonce, p_channel, clock_timestamp(), {ahead}) \
                 ON CONFLICT (name, waiter) DO UPDATE SET channel = excluded.channel, until = excluded.until; \
               END IF; \
               answer := ARRAY[r.owner, r.token::text, r.ttl::text, r.version::text, r.metadata, {remaining}, \
                 CASE WHEN r.nonce = '' THEN {kept} END]; \
             END IF; \
             END",
            grant = sql.grant(),
            key = sql.key(table),
            denied = sql.denied("r"),
            ahead = sql.ahead(),
            remaining = micros("r.expires"),
            kept = micros(&format!("r.expires + {off}")),
        );
        // No variable is called like a column.
        let inputs = [
            ("p_name", "text"),
            ("p_owner", "text"),
            ("p_nonce", "bytea"),
            ("p_ttl", "bigint"),
            ("p_metadata", "text"),
            ("p_least", "bigint"),
            ("p_version", "bigint"),
            ("p_channel", "text"),
            ("p_granted", "bigint"),
        ];
        Self::new(table, "try", &inputs, &[("answer", "text[]")], &body)
    }

    /// Keeps a name that has just been freed for the first in line but `p_but`, and tells it and the second, as of the
    /// commit.
    pub(super) fn hand_on(table: &TableName, line: &str) -> Self {
        let t = table.quoted();
        let in_line = "w.name = p_name AND w.waiter <> p_but AND w.until > clock_timestamp()";
        let body = format!(
            "DECLARE first bytea; \
             BEGIN \
             SELECT w.waiter INTO first FROM {line} w WHERE {in_line} ORDER BY w.since, w.waiter LIMIT 1; \
             IF FOUND THEN \
               UPDATE {t} l SET heir = first WHERE l.name = p_name; \
               PERFORM pg_notify(w.channel, CASE WHEN w.waiter = first THEN 'heir ' ELSE 'next ' END || encode(w.waiter, 'hex')) \
                 FROM (SELECT w.channel, w.waiter FROM {line} w WHERE {in_line} ORDER BY w.since, w.waiter LIMIT 2) AS w; \
             END IF; \
             DELETE FROM {line} w WHERE w.name = p_name AND w.waiter <> p_but \
               AND (w.waiter = first OR w.until <= clock_timestamp()); \
             END"
        );
        let inputs = [("p_name", "text"), ("p_but", "bytea")];
        Self::new(table, "end", &inputs, &[("told", "boolean")], &body)
    }
}

/// For how long a free name is kept.
pub(super) fn off() -> String {
    format!("interval '{} milliseconds'", HAND_OFF.as_millis())
}

/// The pieces of a try, over what its arguments are called.
struct Attempt<'a> {
    name: &'a str,
    owner: &'a str,
    nonce: &'a str,
    ttl: &'a str,
    metadata: &'a str,
    least: &'a str,
    version: &'a str,
}

impl<'a> Attempt<'a> {
    fn of(arguments: [&'a str; 7]) -> Self {
        let [name, owner, nonce, ttl, metadata, least, version] = arguments;
        Self {
            name,
            owner,
            nonce,
            ttl,
            metadata,
            least,
            version,
        }
    }

    fn ahead(&self) -> String {
        format!(
            "clock_timestamp() + {} * interval '1 millisecond'",
            self.ttl
        )
    }

    /// The advisory lock of the name.
    fn key(&self, table: &TableName) -> String {
        format!("hashtextextended('lockkit {table} ' || {}, 0)", self.name)
    }

    /// Whether this row keeps the claim out; NULL for one that is not there.
    fn denied(&self, row: &str) -> String {
        format!(
            "CASE WHEN {row}.nonce = '' THEN {row}.heir NOT IN ('', {nonce}) AND {row}.expires + {off} > clock_timestamp() \
             WHEN {row}.expires > clock_timestamp() THEN {row}.nonce <> {nonce} ELSE {version} NOT IN (0, {row}.version) END",
            nonce = self.nonce,
            version = self.version,
            off = off(),
        )
    }

    /// Which row may be taken; then nobody else takes the advisory lock before this transaction ends.
    fn takeable(&self, table: &TableName) -> String {
        format!(
            "l.name = {} AND CASE WHEN {} THEN false ELSE pg_try_advisory_xact_lock({}) END FOR UPDATE",
            self.name,
            self.denied("l"),
            self.key(table)
        )
    }

    /// What a grant writes.
    fn grant(&self) -> String {
        let mine = format!("l.nonce = {} AND l.expires > clock_timestamp()", self.nonce);
        format!(
            "owner = {owner}, nonce = {nonce}, expires = {ahead}, ttl = {ttl}, metadata = {metadata}, \
             version = greatest(l.version + 1, {MICROS}), note = '', heir = '', \
             token = CASE WHEN {mine} THEN greatest(l.token, {least}) ELSE greatest(l.token + 1, {MICROS}, {least}) END, \
             request = CASE WHEN {mine} THEN l.request ELSE '' END",
            owner = self.owner,
            nonce = self.nonce,
            ahead = self.ahead(),
            ttl = self.ttl,
            metadata = self.metadata,
            least = self.least,
        )
    }
}

/// The try: a grant of a row that is there, and the function `rest` for all else.
pub(super) fn attempt(table: &TableName, rest: &Function) -> String {
    let t = table.quoted();
    let sql = Attempt::of([
        "$1::text",
        "$2::text",
        "$3::bytea",
        "$4::bigint",
        "$5::text",
        "$6::bigint",
        "$7::bigint",
    ]);
    format!(
        "WITH taken AS (UPDATE {t} l SET {grant} \
           WHERE l.ctid = (SELECT l.ctid FROM {t} l WHERE {takeable} SKIP LOCKED) RETURNING l.token) \
         SELECT CASE WHEN granted IS NOT NULL AND $8::text IS NULL THEN ARRAY[granted::text] \
           ELSE {rest}($1::text, $2::text, $3::bytea, $4::bigint, $5::text, $6::bigint, $7::bigint, $8::text, granted) \
           END AS answer FROM (SELECT (SELECT token FROM taken) AS granted OFFSET 0) AS fast",
        grant = sql.grant(),
        takeable = sql.takeable(table),
        rest = rest.name,
    )
}
