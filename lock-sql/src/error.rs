//! The only map from errors of the driver to ours.

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;

#[cfg(feature = "sqlite")]
pub(crate) mod sqlite {
    use std::path::Path;

    use lock_core::{Error, ErrorKind};

    use crate::config::TableName;

    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;

    /// The primary result code, when the database itself has answered.
    fn code(error: &sqlx::Error) -> Option<i32> {
        let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
        Some(code & 0xff)
    }

    /// Whether another connection was in the way: nothing took effect, and asking again helps.
    pub(crate) fn is_busy(error: &sqlx::Error) -> bool {
        matches!(code(error), Some(BUSY | LOCKED))
    }

    pub(crate) fn busy(path: &Path, source: sqlx::Error) -> Error {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "other writers held {} all the time; shorten their transactions or give the locks a file \
                 of their own",
                path.display()
            ),
        )
        .with_source(source)
    }

    pub(crate) fn map(error: sqlx::Error, path: &Path, table: &TableName, create: &str) -> Error {
        let shown = path.display();
        let new = |kind, text: String| Error::new(kind, text);
        let mapped = match (&error, code(&error)) {
            (_, Some(BUSY | LOCKED)) => return busy(path, error),
            (_, Some(1)) => {
                let text = error.as_database_error().map_or("", |e| e.message());
                if text.starts_with("no such table") {
                    new(
                        ErrorKind::Schema,
                        format!(
                            "the table {table} is missing in {shown}; prepare the store, or run: {create}"
                        ),
                    )
                } else if text.contains("no such column") || text.contains("has no column") {
                    new(
                        ErrorKind::Schema,
                        format!(
                            "the table {table} in {shown} is of another shape: {text}; name another table"
                        ),
                    )
                } else {
                    new(
                        ErrorKind::Backend,
                        format!("SQLite refused the statement: {text}"),
                    )
                    .with_indeterminate(true)
                }
            }
            (_, Some(8)) => new(
                ErrorKind::PermissionDenied,
                format!(
                    "{shown} is read-only for this process; make the file and its folder writable for its user"
                ),
            ),
            (_, Some(3 | 23)) => new(
                ErrorKind::PermissionDenied,
                format!("no permission for {shown}; make it readable and writable for this user"),
            ),
            (_, Some(14)) => cannot_open(path),
            (_, Some(26)) => new(
                ErrorKind::Schema,
                format!("{shown} is not an SQLite database; name another file"),
            ),
            (_, Some(11)) => new(
                ErrorKind::Backend,
                format!("the database {shown} is damaged; restore it"),
            )
            .with_retryable(false)
            .with_indeterminate(true),
            (_, Some(13)) => new(
                ErrorKind::Unavailable,
                format!("the disk of {shown} is full; make room"),
            )
            .with_indeterminate(true),
            (_, Some(10)) => new(
                ErrorKind::Unavailable,
                format!("the disk of {shown} does not work: {error}"),
            )
            .with_indeterminate(true),
            (_, Some(_)) => {
                new(ErrorKind::Backend, format!("SQLite failed: {error}")).with_indeterminate(true)
            }
            (sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_), None) => new(
                ErrorKind::Conflict,
                format!("the table {table} in {shown} has a row that is not ours; remove it"),
            ),
            (sqlx::Error::Configuration(_), None) => new(
                ErrorKind::InvalidConfig,
                format!("the options for {shown} cannot be used"),
            ),
            (_, None) => new(
                ErrorKind::Unavailable,
                format!("the connection to {shown} ended"),
            )
            .with_indeterminate(true),
        };
        mapped.with_source(error)
    }

    /// SQLite says only that it cannot open; the file system knows why.
    fn cannot_open(path: &Path) -> Error {
        let shown = path.display();
        let folder = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or_else(|| Path::new("."));
        match (std::fs::metadata(folder), std::fs::metadata(path)) {
            (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => Error::new(
                ErrorKind::Schema,
                format!("the folder {} is missing; make it", folder.display()),
            ),
            (Ok(m), _) if !m.is_dir() => Error::new(
                ErrorKind::InvalidConfig,
                format!("{} is not a folder; name another path", folder.display()),
            ),
            (Ok(_), Ok(m)) if m.is_dir() => Error::new(
                ErrorKind::InvalidConfig,
                format!("{shown} is a folder; name a file"),
            ),
            (Ok(_), Err(e)) if e.kind() == std::io::ErrorKind::NotFound && can_create(folder) => {
                Error::new(
                    ErrorKind::Schema,
                    format!(
                        "the file {shown} is missing: check the path; a candidate that may create it makes it"
                    ),
                )
            }
            _ => Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "no permission for {shown}; make the file and its folder readable and writable for this user"
                ),
            ),
        }
    }

    #[cfg(target_os = "linux")]
    fn can_create(folder: &Path) -> bool {
        use rustix::fs::{Access, access};
        access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }

    #[cfg(not(target_os = "linux"))]
    fn can_create(_: &Path) -> bool {
        true
    }
}
