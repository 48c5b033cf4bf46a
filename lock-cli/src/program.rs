//! Finds the command before anything is locked for it.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::exit;
use crate::failure::Failure;

/// Looks whether the command can be executed, as far as that can be said before.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    let found = if program.as_bytes().contains(&b'/') {
        is_executable(Path::new(program))
    } else {
        search(program)
    };
    found.map_err(|error| {
        let shown = program.display();
        let mut message = format!("cannot run {shown}: {error}");
        if program.as_bytes().contains(&b' ') {
            message =
                format!("cannot run \"{shown}\": {error}; for a line of shell say: sh -c '...'");
        }
        Failure::with_code(exit::of_exec_error(&error), message)
    })
}

fn search(program: &OsStr) -> io::Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "not found in PATH");
    for folder in env::split_paths(&path) {
        match is_executable(&folder.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

fn is_executable(path: &Path) -> io::Result<()> {
    let metadata = path.metadata().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "there is no such file"),
        _ => error,
    })?;
    let why = if metadata.is_dir() {
        "it is a folder"
    } else if metadata.permissions().mode() & 0o111 == 0 {
        "it is not executable; allow it with chmod +x"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}
