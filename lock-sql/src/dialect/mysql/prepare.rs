//! The table: made when it is missing, checked when it is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::{Error, ErrorKind, Result};

use super::connection::{Answer, Features, Server, Slot};
use super::row;
use super::statements::{COLUMNS, Statements};
use crate::error::mysql as errors;

/// Makes the table when it is missing, and finds out whether it is ours and may be used.
pub(super) async fn prepare(
    slot: &Slot,
    server: &Arc<Server>,
    statements: &Statements,
) -> Result<()> {
    let shape = format!(
        "SELECT CONCAT(@@global.read_only); SHOW CREATE TABLE {0}; SHOW FULL COLUMNS FROM {0}",
        statements.table
    );
    let looked = slot.run(server, |_: Features| shape.clone().into()).await;
    let missing = |error: &Error| error.kind() == ErrorKind::Schema;
    let answers = match looked {
        Err(error) if missing(&error) => {
            slot.run(server, |_| statements.create().into()).await?;
            slot.run(server, |_| shape.clone().into()).await?
        }
        other => other?,
    };
    let fault = fault_of(&answers).map_err(|e| server.undecodable(e).with_indeterminate(false))?;
    if let Some(fault) = fault {
        return Err(Error::new(
            ErrorKind::Schema,
            format!(
                "the table {} is of another shape: {fault}; name another table, or move this one away",
                server.table
            ),
        ));
    }
    let read_only = answers
        .first()
        .and_then(|a| a.rows.first())
        .map_or(Ok(String::new()), |r| row::shown(r, 0))
        .map_err(|e| server.undecodable(e))?;
    if !matches!(read_only.as_str(), "0" | "OFF") {
        return Err(errors::read_only(server.host()));
    }
    // Touches nothing, but needs every right that is needed later.
    slot.run(server, |_| rights(&statements.table).into())
        .await?;
    Ok(())
}

fn rights(t: &str) -> String {
    format!(
        "INSERT INTO {t} SELECT * FROM {t} WHERE name = x'' AND false; \
         UPDATE {t} SET token = token WHERE name = x'' AND false; \
         DELETE FROM {t} WHERE name = x'' AND false"
    )
}

/// What is wrong with the table that stands there.
fn fault_of(answers: &[Answer]) -> Result<Option<String>, sqlx::Error> {
    let [_, create, columns] = answers else {
        return Ok(Some("the server does not show it".into()));
    };
    let create = match create.rows.first() {
        Some(shown) => row::shown(shown, 1)?,
        None => String::new(),
    };
    if !create.starts_with("CREATE TABLE") {
        return Ok(Some("it is not a table".into()));
    }
    let Some((_, options)) = create.rsplit_once(") ENGINE=") else {
        return Ok(Some("its engine is not shown".into()));
    };
    let engine = options.split_whitespace().next().unwrap_or_default();
    if engine != "InnoDB" {
        return Ok(Some(format!(
            "its engine is {engine}, which has no transactions; it must be InnoDB"
        )));
    }
    let mut found = BTreeMap::new();
    for shown in &columns.rows {
        let kind = without_width(&row::shown(shown, 1)?.to_ascii_lowercase());
        let collation = row::shown(shown, 2)?;
        let null = row::shown(shown, 3)?;
        let key = row::shown(shown, 4)?;
        found.insert(row::shown(shown, 0)?, (kind, collation, null, key));
    }
    for (name, kind) in COLUMNS {
        let primary = if name == "name" { "PRI" } else { "" };
        match found.remove(name) {
            None => return Ok(Some(format!("the column {name} is missing"))),
            Some((is, ..)) if is != kind => {
                return Ok(Some(format!("the column {name} is {is}, not {kind}")));
            }
            Some((_, collation, ..)) if !matches!(collation.as_str(), "" | "utf8mb4_bin") => {
                return Ok(Some(format!(
                    "the column {name} has the collation {collation}, not utf8mb4_bin"
                )));
            }
            Some((_, _, null, _)) if null != "NO" => {
                return Ok(Some(format!("the column {name} may be NULL")));
            }
            Some((.., key)) if key != primary => {
                return Ok(Some(
                    "it has another index than the primary key on name alone".into(),
                ));
            }
            Some(_) => {}
        }
    }
    Ok(found
        .keys()
        .next()
        .map(|name| format!("it has a column {name} that is not ours")))
}

/// Older servers show how wide an integer is printed.
fn without_width(kind: &str) -> String {
    match kind.split_once('(') {
        Some(("bigint", rest)) => {
            let rest = rest.split_once(')').map_or("", |(_, rest)| rest);
            format!("bigint{rest}")
        }
        _ => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_of_integers_do_not_count() {
        assert_eq!(without_width("bigint(20)"), "bigint");
        assert_eq!(without_width("bigint(20) unsigned"), "bigint unsigned");
        assert_eq!(without_width("varbinary(255)"), "varbinary(255)");
    }
}
