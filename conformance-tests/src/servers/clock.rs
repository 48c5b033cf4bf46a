//! A wall clock that can be stepped, for one program and its children.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

/// A wall clock of its own for a program that is started under it, by `libfaketime`. Steps are seen at once; clocks
/// that only count on are left alone. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct SteppedClock {
    library: PathBuf,
    folder: Arc<TempDir>,
}

impl SteppedClock {
    /// A clock that shows the right time. It is tried on a program first: a step that nobody sees proves nothing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when the library is not on this machine (`apt-get install libfaketime`), or it
    /// does not step the clock.
    pub fn new() -> io::Result<Self> {
        let library = find().ok_or_else(|| {
            let why = "libfaketimeMT.so.1 is not on this machine: apt-get install libfaketime";
            io::Error::new(io::ErrorKind::NotFound, why)
        })?;
        let folder = TempDir::new()?;
        // A server under another account reads it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let clock = Self {
            library,
            folder: Arc::new(folder),
        };
        clock.set(3600)?;
        let seen = clock.read()?;
        clock.set(0)?;
        if (3590..3610).contains(&seen) {
            Ok(clock)
        } else {
            Err(io::Error::other(format!(
                "a step of 3600 s is seen as one of {seen} s"
            )))
        }
    }

    /// Sets how far it is ahead, in milliseconds; negative is behind.
    ///
    /// # Errors
    /// The file that tells it cannot be written.
    pub fn set_millis(&self, ahead: i64) -> io::Result<()> {
        let sign = if ahead < 0 { '-' } else { '+' };
        let (whole, rest) = (ahead.unsigned_abs() / 1000, ahead.unsigned_abs() % 1000);
        // Moved in one step: a reader sees the old one or the new one.
        let fresh = self.folder.path().join("ahead.new");
        fs::write(&fresh, format!("{sign}{whole}.{rest:03}\n"))?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
        fs::rename(fresh, self.file())
    }

    fn set(&self, seconds: i64) -> io::Result<()> {
        self.set_millis(seconds * 1000)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ahead")
    }

    /// How far ahead a program sees it, in seconds.
    fn read(&self) -> io::Result<i64> {
        let out = Command::new("date")
            .arg("+%s")
            .envs(self.variables())
            .output()?;
        let seen: Option<i64> = String::from_utf8_lossy(&out.stdout).trim().parse().ok();
        let real = SystemTime::now().duration_since(UNIX_EPOCH);
        let real = real
            .ok()
            .and_then(|since| i64::try_from(since.as_secs()).ok());
        match (seen, real) {
            (Some(seen), Some(real)) => Ok(seen - real),
            _ => Err(io::Error::other("date did not tell the time")),
        }
    }

    /// The variables of the environment under which a program sees it.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", self.library.clone().into()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}

fn find() -> Option<PathBuf> {
    let library = |folder: &Path| folder.join("faketime/libfaketimeMT.so.1");
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let folders = folders
        .map(|entry| entry.path())
        .chain([PathBuf::from("/usr/lib")]);
    folders
        .map(|folder| library(&folder))
        .find(|file| file.is_file())
}
