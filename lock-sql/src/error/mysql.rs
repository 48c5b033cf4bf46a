//! Errors of MySQL and MariaDB.

use lock_core::{Error, ErrorKind};
use sqlx::mysql::MySqlDatabaseError;

use crate::config::TableName;

fn number(error: &sqlx::Error) -> Option<u16> {
    error
        .as_database_error()?
        .try_downcast_ref::<MySqlDatabaseError>()
        .map(MySqlDatabaseError::number)
}

/// Whether others were in the way (a deadlock, also at the commit of a Galera node; a row locked for too
/// long; a row changed since it was read): nothing took effect, and asking again helps.
pub(crate) fn lost_to_others(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1213 | 1205 | 3572 | 1020))
}

/// `create` is the statement that makes the table.
pub(crate) fn map(error: sqlx::Error, host: &str, table: &TableName, create: &str) -> Error {
    let new = |kind, text: String| Error::new(kind, text);
    let certain = |kind, text: String| Error::new(kind, text).with_indeterminate(false);
    let said = error
        .as_database_error()
        .map_or_else(String::new, |e| e.message().to_owned());
    let mapped = match (&error, number(&error)) {
        (_, Some(1213 | 1205 | 3572 | 1020)) => certain(
            ErrorKind::Unavailable,
            format!("other transactions had the row of {table} locked; shorten them"),
        ),
        (_, Some(1146)) => new(
            ErrorKind::Schema,
            format!("the table {table} is missing; prepare the store, or run: {create}"),
        ),
        (_, Some(1049)) => new(
            ErrorKind::Schema,
            format!("the database is missing on {host}: {said}; create it"),
        ),
        (_, Some(1054 | 1136 | 1364)) => new(
            ErrorKind::Schema,
            format!("the table {table} is of another shape: {said}; name another table"),
        ),
        (_, Some(1142 | 1143 | 1044 | 1227)) => new(
            ErrorKind::PermissionDenied,
            format!(
                "{said}; an administrator may run: GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO \
                 the user, and make the table with: {create}"
            ),
        ),
        (_, Some(1045 | 1698 | 1251 | 1130 | 1129 | 1820 | 1862 | 3118)) => new(
            ErrorKind::PermissionDenied,
            format!("{host} does not let us in: {said}"),
        ),
        (_, Some(1290 | 1836 | 1792)) => read_only(host),
        (_, Some(1040 | 1203 | 1226 | 1047 | 1317 | 1969 | 3024)) => certain(
            ErrorKind::Unavailable,
            format!("{host} cannot serve now: {said}"),
        ),
        (_, Some(1665)) => new(
            ErrorKind::Unsupported,
            format!("the binary log of {host} cannot take the statement: {said}"),
        ),
        (_, Some(1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 4031)) => new(
            ErrorKind::Unavailable,
            format!("{host} ended the connection: {said}"),
        ),
        (_, Some(1021 | 1114 | 3675)) => new(
            ErrorKind::Unavailable,
            format!("the disk of {host} is full; make room: {said}"),
        ),
        (_, Some(code)) => new(
            ErrorKind::Backend,
            format!("the server refused the statement: {said} (error {code})"),
        ),
        (sqlx::Error::Tls(_), None) => tls(host),
        // How the TLS of the driver reports a certificate that it refuses.
        (sqlx::Error::Io(io), None) if io.kind() == std::io::ErrorKind::InvalidData => tls(host),
        (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_), None) => new(
            ErrorKind::Conflict,
            format!("the table {table} has a row that is not ours; remove it"),
        ),
        (sqlx::Error::Configuration(_), None) => new(
            ErrorKind::InvalidConfig,
            format!("the options for {host} cannot be used: {error}"),
        ),
        (sqlx::Error::Io(io), None) => new(
            ErrorKind::Unavailable,
            format!("{host} cannot be reached: {}", io.kind()),
        ),
        (_, None) => new(
            ErrorKind::Unavailable,
            format!("the connection to {host} ended"),
        ),
    };
    mapped.with_source(error)
}

pub(crate) fn read_only(host: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{host} is read-only, a replica perhaps; name the server that is written to"),
    )
    .with_indeterminate(false)
}

fn tls(host: &str) -> Error {
    Error::new(
        ErrorKind::Tls,
        format!(
            "no secure connection to {host} as asked for; check ssl-mode, ssl-ca and the server's certificate"
        ),
    )
}
