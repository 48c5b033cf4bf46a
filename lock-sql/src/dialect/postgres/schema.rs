//! The table: made when it is missing, and refused when it is another.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::{Error, ErrorKind, Result};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::connection::{Open, Server};
use super::statements::{COLUMNS, Statements};

/// How long a start waits for others that make the table at the same time.
const PATIENCE: &str = "30s";

/// What stands where the table should be.
enum Found {
    Ours,
    Nothing,
    /// Ours, without the line of waiters or the function.
    Part,
    Another(String),
    /// Ours, and the rights to work with it are missing.
    Forbidden,
}

pub(super) async fn prepare(server: &Arc<Server>, statements: &Statements) -> Result<()> {
    let words = &server.words;
    let mut open = Arc::clone(server).open().await?;
    match look(server, statements, &mut open).await? {
        Found::Nothing | Found::Part => {}
        found => return judge(server, found),
    }
    may_create(server, statements, &mut open).await?;
    // Two that make the table at once would collide in the catalogue, which shows as an error in the
    // server's log. All of this is one transaction.
    let create = format!(
        "SET LOCAL lock_timeout = '{PATIENCE}'; SET LOCAL statement_timeout = '{PATIENCE}'; \
         SET LOCAL transaction_isolation = 'read committed'; SET LOCAL client_min_messages = 'warning'; \
         SELECT pg_advisory_xact_lock(hashtextextended('lockkit prepare {}', 0)); {}",
        words.table, statements.create
    );
    server.once(&mut open, &create).await?;
    let found = look(server, statements, &mut open).await?;
    judge(server, found)
}

fn judge(server: &Server, found: Found) -> Result<()> {
    let words = &server.words;
    match found {
        Found::Ours => Ok(()),
        Found::Nothing | Found::Part => Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the table {} in {}, or what belongs to it, went away while it was made",
                words.table, words.database
            ),
        )),
        Found::Another(fault) => Err(Error::new(
            ErrorKind::Schema,
            format!(
                "{} in {} is of another shape: {fault}; name another table, or move this one away",
                words.table, words.database
            ),
        )),
        Found::Forbidden => Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "{} may not work with the table {} in {}; run: {}",
                words.user,
                words.table,
                words.database,
                words.grant()
            ),
        )),
    }
}

async fn look(server: &Server, statements: &Statements, open: &mut Open) -> Result<Found> {
    let rows = server.once(open, &statements.shape).await?;
    found(&rows).map_err(|e| server.words.map(e))
}

fn found(rows: &[PgRow]) -> Result<Found, sqlx::Error> {
    let Some(first) = rows.first() else {
        return Ok(Found::Nothing);
    };
    let another = |fault: String| Ok(Found::Another(fault));
    match first.try_get::<String, _>("kind")?.as_str() {
        "r" | "p" => {}
        "v" | "m" => return another("it is a view".into()),
        other => return another(format!("it is no table (relkind {other})")),
    }
    if first.try_get::<String, _>("persistence")? != "p" {
        return another(
            "it is unlogged or temporary: a crash would empty it (ALTER TABLE … SET LOGGED)".into(),
        );
    }
    let mut columns = BTreeMap::new();
    for row in rows {
        let name: String = row.try_get("name")?;
        let kind: String = row.try_get("type")?;
        let required: bool = row.try_get("required")?;
        let bytes: bool = row.try_get("bytes")?;
        columns.insert(name, (kind, required, bytes));
    }
    for (name, kind) in COLUMNS {
        match columns.remove(name) {
            None => return another(format!("the column {name} is missing")),
            Some((is, ..)) if is != kind => {
                return another(format!("the column {name} is {is}, not {kind}"));
            }
            Some((_, false, _)) => return another(format!("the column {name} may be NULL")),
            Some((_, _, false)) => {
                return another(format!(
                    "the column {name} does not compare bytes (COLLATE \"C\")"
                ));
            }
            Some(_) => {}
        }
    }
    if let Some(name) = columns.keys().next() {
        return another(format!("it has a column {name} that is not ours"));
    }
    if first.try_get::<i64, _>("by_name")? == 0 {
        return another("the column name has no unique index of its own".into());
    }
    Ok(if first.try_get("allowed")? {
        if first.try_get("whole")? {
            Found::Ours
        } else {
            Found::Part
        }
    } else {
        Found::Forbidden
    })
}

/// Refuses with the words of ours before the server would, which notes an error in its log.
async fn may_create(server: &Server, statements: &Statements, open: &mut Open) -> Result<()> {
    let words = &server.words;
    let sql = "SELECT current_schema()::text AS schema, current_setting('server_encoding') AS encoding, \
               coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS allowed";
    let rows = server.once(open, sql).await?;
    let read = |e| words.map(e);
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let encoding: String = row.try_get("encoding").map_err(read)?;
    if encoding != "UTF8" {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the database {} has the encoding {encoding}, which cannot keep every name; use one with UTF8",
                words.database
            ),
        ));
    }
    let Some(schema) = row.try_get::<Option<String>, _>("schema").map_err(read)? else {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "no schema of the search path exists in {}; run: CREATE SCHEMA, or set options[search_path] in the URL",
                words.database
            ),
        ));
    };
    if !row.try_get::<bool, _>("allowed").map_err(read)? {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!(
                "{} may not make the table {} and what belongs to it in the schema {schema} of {}; have its owner run: {}; {}",
                words.user,
                words.table,
                words.database,
                statements.create,
                words.grant()
            ),
        ));
    }
    Ok(())
}
