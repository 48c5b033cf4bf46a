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
        Failure::with_code(
            exit::of_exec_error(&error),
            format!("cannot run {}: {error}", program.display()),
        )
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
    let metadata = path.metadata()?;
    if metadata.is_dir() || metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "not executable",
        ));
    }
    Ok(())
}
