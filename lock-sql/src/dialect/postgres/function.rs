//! The try and the release, functions in the database that `prepare` makes.
//!
//! As one statement with all that may become necessary, each was set up and taken down as a whole every time, which
//! cost as much as the rest of a grant. A function runs what it needs, from plans that the session keeps.
//!
//! *The try.* A denied one reads, and neither locks nor writes. Who may win locks the row, and the *name* (an
//! advisory lock, until the end of the transaction): racers stand behind that and then see what the first has made of
//! the row, without a write of their own and without an error in the server's log. Each command has a snapshot of
//! its own, which takes READ COMMITTED; sessions of ours have it.
//!
//! A grant locks the row `FOR UPDATE` before it writes. That, and not the advisory lock, keeps it from a row that a
//! fenced transaction shares (`FOR KEY SHARE`), and from one that another version of the function takes. It touches
//! no index.

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

    /// Grants, or tells of the entry that keeps the claim out, and lets the claim stand in line (`p_channel`: `NULL`
    /// for one that never does). All is NULL when neither could be decided.
    ///
    /// `line`: the table of waiters. `micros`: the clock as tokens have it. `off`: for how long a free name is kept.
    pub(super) fn attempt(table: &TableName, line: &str, micros: &str, off: &str) -> Self {
        let t = table.quoted();
        let ahead = "clock_timestamp() + p_ttl * interval '1 millisecond'";
        let denied = |row: &str| {
            format!(
                "CASE WHEN {row}.nonce = '' THEN {row}.heir NOT IN ('', p_nonce) AND {row}.expires + {off} > clock_timestamp() \
                 WHEN {row}.expires > clock_timestamp() THEN {row}.nonce <> p_nonce \
                 ELSE p_version NOT IN (0, {row}.version) END"
            )
        };
        let lock = format!(
            "PERFORM 1 FROM {t} l WHERE l.name = p_name \
             AND CASE WHEN {} THEN false ELSE pg_try_advisory_xact_lock(k) END FOR UPDATE",
            denied("l")
        );
        let told = "name, owner, nonce, token, ttl, metadata, version, note, heir, expires";
        let each = |what: &dyn Fn(&str) -> String, between: &str| {
            let all: Vec<_> = told.split(", ").map(what).collect();
            all.join(between)
        };
        let body = format!(
            "DECLARE k bigint := hashtextextended('lockkit {table} ' || p_name, 0); alone boolean := false; \
             held boolean; r record; \
             BEGIN \
             FOR look IN 1..4 LOOP \
               {lock} SKIP LOCKED; \
               IF FOUND THEN \
                 UPDATE {t} l SET owner = p_owner, nonce = p_nonce, expires = {ahead}, ttl = p_ttl, metadata = p_metadata, \
                   version = greatest(l.version + 1, {micros}), note = '', heir = '', \
                   token = CASE WHEN l.nonce = p_nonce AND l.expires > clock_timestamp() THEN greatest(l.token, p_least) \
                     ELSE greatest(l.token + 1, {micros}, p_least) END, \
                   request = CASE WHEN l.nonce = p_nonce AND l.expires > clock_timestamp() THEN l.request ELSE '' END \
                   WHERE l.name = p_name RETURNING l.token INTO granted; \
               ELSE \
                 SELECT {columns} INTO r FROM {t} l WHERE l.name = p_name; \
                 held := {denied}; \
                 EXIT WHEN held; \
                 IF NOT alone THEN \
                   BEGIN PERFORM pg_advisory_xact_lock(k); EXCEPTION WHEN lock_not_available THEN RETURN; END; \
                   alone := true; \
                 ELSIF r.name IS NULL THEN \
                   INSERT INTO {t} AS l (name, owner, nonce, token, expires, ttl, metadata, version, request, note, heir) \
                   SELECT p_name, p_owner, p_nonce, n.token, {ahead}, p_ttl, p_metadata, n.token, '', '', '' FROM \
                   (SELECT greatest({micros}, p_least, 1 + (SELECT f.token FROM {t} f WHERE f.name = '')) AS token) AS n \
                   ON CONFLICT (name) DO NOTHING RETURNING l.token INTO granted; \
                 ELSE \
                   {lock}; \
                 END IF; \
               END IF; \
               IF granted IS NOT NULL THEN \
                 IF p_channel IS NOT NULL THEN DELETE FROM {line} w WHERE w.name = p_name AND w.waiter = p_nonce; END IF; \
                 RETURN; \
               END IF; \
             END LOOP; \
             IF held THEN \
               IF p_channel <> '' THEN \
                 INSERT INTO {line} (name, waiter, channel, since, until) \
                 VALUES (p_name, p_nonce, p_channel, clock_timestamp(), {ahead}) \
                 ON CONFLICT (name, waiter) DO UPDATE SET channel = excluded.channel, until = excluded.until; \
               END IF; \
               {outs}; \
             END IF; \
             END",
            columns = each(&|c| format!("l.{c}"), ", "),
            denied = denied("r"),
            outs = each(&|c| format!("o_{c} := r.{c}"), "; "),
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
        ];
        let outputs = [
            ("granted", "bigint"),
            ("o_name", "text"),
            ("o_owner", "text"),
            ("o_nonce", "bytea"),
            ("o_token", "bigint"),
            ("o_ttl", "bigint"),
            ("o_metadata", "text"),
            ("o_version", "bigint"),
            ("o_note", "text"),
            ("o_heir", "bytea"),
            ("o_expires", "timestamp with time zone"),
        ];
        Self::new(table, "try", &inputs, &outputs, &body)
    }

    /// Frees the row of this term and tells the first two in line, as of the commit. Whether it was this term's.
    pub(super) fn release(table: &TableName, line: &str) -> Self {
        let t = table.quoted();
        let alive = "w.name = p_name AND w.until > clock_timestamp()";
        let body = format!(
            "DECLARE first bytea; \
             BEGIN \
             UPDATE {t} l SET nonce = '', expires = clock_timestamp(), request = '', version = l.version + 1, \
               heir = coalesce((SELECT w.waiter FROM {line} w WHERE {alive} ORDER BY w.since, w.waiter LIMIT 1), '') \
               WHERE l.name = p_name AND l.nonce = p_nonce AND l.token = p_token RETURNING l.heir INTO first; \
             released := FOUND; \
             IF first <> '' THEN \
               PERFORM pg_notify(w.channel, CASE WHEN w.waiter = first THEN 'heir ' ELSE 'next ' END || encode(w.waiter, 'hex')) \
                 FROM (SELECT w.channel, w.waiter FROM {line} w WHERE {alive} ORDER BY w.since, w.waiter LIMIT 2) AS w; \
               DELETE FROM {line} w WHERE w.name = p_name AND (w.waiter = first OR w.until <= clock_timestamp()); \
             END IF; \
             END"
        );
        let inputs = [
            ("p_name", "text"),
            ("p_nonce", "bytea"),
            ("p_token", "bigint"),
        ];
        Self::new(table, "end", &inputs, &[("released", "boolean")], &body)
    }
}
