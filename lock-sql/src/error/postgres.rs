//! From what PostgreSQL and its driver say to our errors.

use std::io;

use lock_core::{Error, ErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::config::TableName;

/// What the texts need to know. No password is in it.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    /// Host and port, or the socket.
    pub(crate) server: String,
    pub(crate) database: String,
    pub(crate) user: String,
    pub(crate) table: TableName,
    /// The statements that make the table.
    pub(crate) create: String,
    /// The functions that are called, with the types of their arguments; none for a table of others.
    pub(crate) functions: String,
}

fn server(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// The SQLSTATE, when the server itself has answered.
pub(crate) fn code(error: &sqlx::Error) -> Option<&str> {
    server(error).map(PgDatabaseError::code)
}

/// Whether the statement was undone because of others, so that repeating it is all there is to do.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(code(error), Some("40001" | "40P01"))
}

/// Whether a pooler stands between: it knows other prepared statements than this connection, or takes
/// no settings of a session.
pub(crate) fn is_pooler(error: &sqlx::Error) -> bool {
    matches!(code(error), Some("26000" | "42P05" | "08P01"))
}

/// Whether the connection is of no use after this: it broke, the server ended it, or it leads to a
/// server that cannot write (any more).
pub(crate) fn ends_connection(error: &sqlx::Error) -> bool {
    match server(error) {
        Some(error) => {
            fatal(error)
                || matches!(error.code(), "25006" | "0A000")
                || error.code().starts_with("08")
        }
        None => !matches!(
            error,
            sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::ColumnNotFound(_)
        ),
    }
}

/// Whether the server does not take part in a transaction any more after this.
fn fatal(error: &PgDatabaseError) -> bool {
    matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)
}

/// Whether a cause deep inside is about certificates and the like.
fn is_tls(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

impl Words {
    pub(crate) fn grant(&self) -> String {
        if self.functions.is_empty() {
            return format!(
                "GRANT SELECT, INSERT, UPDATE ON {} TO \"{}\"",
                self.table.quoted(),
                self.user.replace('"', "\"\"")
            );
        }
        format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON {}, \"{}_waiters\" TO \"{user}\"; \
             GRANT EXECUTE ON FUNCTION {} TO \"{user}\"",
            self.table.quoted(),
            self.table,
            self.functions,
            user = self.user.replace('"', "\"\"")
        )
    }

    /// An error that came up before any statement was sent.
    pub(crate) fn connecting(&self, error: sqlx::Error) -> Error {
        self.map(error).with_indeterminate(false)
    }

    pub(crate) fn map(&self, error: sqlx::Error) -> Error {
        let mapped = match server(&error) {
            Some(answer) => self.answered(answer),
            None => self.broken(&error),
        };
        mapped.with_source(error)
    }

    fn answered(&self, error: &PgDatabaseError) -> Error {
        let Self {
            server,
            database,
            user,
            table,
            create,
            functions,
        } = self;
        let text = error.message();
        let code = error.code();
        let new = Error::new;
        let mapped = match (code, &code[..code.len().min(2)]) {
            ("55P03", _) => new(
                ErrorKind::Unavailable,
                format!("another session has locked the row in {table} for too long; look for open transactions"),
            ),
            ("57014", _) => new(
                ErrorKind::Timeout,
                format!("{server} stopped the statement: {text}"),
            ),
            ("42P01", _) => new(
                ErrorKind::Schema,
                format!("the table {table} is missing in {database}; prepare the store, or run: {create}"),
            ),
            ("42883", _) if text.contains("_try_") || text.contains("_end_") => new(
                ErrorKind::Schema,
                format!("of the functions {functions} one is missing in {database}; prepare the store, or run: {create}"),
            ),
            ("42703" | "42804" | "42883" | "42P10" | "42846" | "42809", _) => new(
                ErrorKind::Schema,
                format!("the table {table} in {database} is of another shape: {text}; name another table"),
            ),
            ("3D000", _) => new(
                ErrorKind::Schema,
                format!(
                    "{server} has no database {database:?}; make it (CREATE DATABASE) or name another"
                ),
            ),
            ("3F000", _) => new(
                ErrorKind::Schema,
                format!("no schema of the search path exists in {database}: {text}"),
            ),
            ("42501", _) => new(
                ErrorKind::PermissionDenied,
                format!("{user} lacks a right in {database}: {text}; run: {}", self.grant()),
            ),
            (_, "28") => new(
                ErrorKind::PermissionDenied,
                format!("{server} does not accept {user}: {text}"),
            ),
            ("25006", _) => new(
                ErrorKind::Unavailable,
                format!("{server} is read-only now: {text}"),
            ),
            (_, "22") => new(
                ErrorKind::Schema,
                format!("{database} cannot store the text: {text}; use a database with the encoding UTF8"),
            )
            .with_retryable(false),
            (_, "40") => new(
                ErrorKind::Unavailable,
                format!("other sessions were in the way each time: {text}"),
            ),
            (_, "08" | "53" | "57") => new(
                ErrorKind::Unavailable,
                format!("{server} cannot serve now: {text}"),
            ),
            _ => new(
                ErrorKind::Backend,
                format!("{server} refused the statement ({code}): {text}"),
            ),
        };
        // After a mere ERROR the statement was undone. A server that ends the session does not say
        // whether that was before or after the commit, unless the session had not begun.
        let sure = !fatal(error) || code == "57P03" || matches!(&code[..2], "28" | "3D" | "53");
        mapped.with_indeterminate(!sure)
    }

    fn broken(&self, error: &sqlx::Error) -> Error {
        let server = &self.server;
        let new = Error::new;
        match error {
            sqlx::Error::Tls(cause) => new(
                ErrorKind::Tls,
                format!("no secure connection to {server}: {cause}"),
            ),
            sqlx::Error::Io(cause) if is_tls(cause) => new(
                ErrorKind::Tls,
                format!("no secure connection to {server}: {cause}"),
            ),
            sqlx::Error::Io(cause) => new(
                ErrorKind::Unavailable,
                format!("no connection to {server}: {cause}"),
            ),
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnNotFound(_) => new(
                ErrorKind::Conflict,
                format!(
                    "the table {} in {} has a row that is not ours; remove it",
                    self.table, self.database
                ),
            )
            .with_indeterminate(true),
            sqlx::Error::Configuration(_) => new(
                ErrorKind::InvalidConfig,
                format!("the options for {server} cannot be used"),
            ),
            sqlx::Error::Protocol(text) => new(
                ErrorKind::Unavailable,
                format!("{server} does not speak the protocol as expected: {text}"),
            ),
            _ => new(
                ErrorKind::Unavailable,
                format!("the connection to {server} ended"),
            ),
        }
    }
}
