//! What the tests share: stores, processes, and waiting for something to be so.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The variable that marks all processes of one test.
pub(crate) const MARK: &str = "LOCKCTL_TEST_MARK";

/// Whether the long rounds were asked for.
pub(crate) fn full_tier() -> bool {
    std::env::var("LOCK_TEST_TIER").is_ok_and(|tier| tier == "full")
}

/// `full` rounds in the long tier, a few in the short one.
pub(crate) fn rounds(short: u32, full: u32) -> u32 {
    if full_tier() { full } else { short }
}

/// A folder with a store in it, and the processes that use it.
#[derive(Debug)]
pub(crate) struct Site {
    folder: TempDir,
    /// Where the store is, when it is not in the folder.
    store: Option<String>,
}

impl Site {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("lockctl-test-")
            .tempdir()
            .expect("a temporary folder");
        Self {
            folder,
            store: None,
        }
    }

    /// The same with the store elsewhere.
    #[cfg(feature = "postgres")]
    pub(crate) fn on(url: impl Into<String>) -> Self {
        let mut site = Self::new();
        site.store = Some(url.into());
        site
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// The value of [`MARK`] for the processes of this site.
    pub(crate) fn mark(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn url(&self) -> String {
        self.store
            .clone()
            .unwrap_or_else(|| format!("sqlite:{}", self.path("locks.db").display()))
    }

    /// `lockctl` with these arguments, on this site's store.
    pub(crate) fn lockctl<I, S>(&self, arguments: I) -> Command
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockctl"));
        command
            .args(arguments)
            .env("LOCKCTL_STORE", self.url())
            .env(MARK, self.mark())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs `lockctl` to its end.
    pub(crate) fn run<I, S>(&self, arguments: I) -> Output
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.start(arguments).wait_with_output()
    }

    /// Starts `lockctl`.
    pub(crate) fn start<I, S>(&self, arguments: I) -> Running
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        Running::start(&mut self.lockctl(arguments))
    }

    /// Starts `lockctl` with its standard error in a file.
    pub(crate) fn start_logged<I, S>(&self, arguments: I, file: &str) -> Running
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let log = fs::File::create(self.path(file)).expect("writable");
        Running::start(self.lockctl(arguments).stderr(log))
    }

    /// The processes of this site that are not zombies, by id and command line.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("{MARK}={}", self.folder.path().display());
        fs::read_dir("/proc")
            .expect("/proc")
            .filter_map(|entry| {
                let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
                let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
                environment
                    .split(|&b| b == 0)
                    .any(|variable| variable == mark.as_bytes())
                    .then_some(())?;
                let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
                Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
            })
            .collect()
    }

    /// Those of them whose command line begins so: the command itself, not what runs it.
    pub(crate) fn running(&self, line: &str) -> Vec<i32> {
        self.processes()
            .into_iter()
            .filter(|(_, words)| words.starts_with(line))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Those of them with this word in their command line.
    pub(crate) fn processes_with(&self, word: &str) -> Vec<i32> {
        self.processes()
            .into_iter()
            .filter(|(_, line)| line.contains(word))
            .map(|(pid, _)| pid)
            .collect()
    }

    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        lines(&self.path(file))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Whatever a failed test has left.
        for (pid, _) in self.processes() {
            kill(pid, Signal::KILL);
        }
    }
}

/// The whole lines of a file that may still be written to.
pub(crate) fn lines(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    match text.rfind('\n') {
        Some(end) => text[..end].lines().map(str::to_owned).collect(),
        None => Vec::new(),
    }
}

/// Copies `lockctl`. By another process: a descriptor open for writing here would be inherited by what
/// other tests start just then, and a program that somebody has open for writing cannot be started.
pub(crate) fn copy_program(to: &Path) {
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_lockctl"))
        .arg(to)
        .status();
    assert!(copied.is_ok_and(|status| status.success()));
}

/// Sends a signal; the process may be gone.
pub(crate) fn kill(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits until it is so, for at most `limit`.
pub(crate) fn within<T>(limit: Duration, what: &str, probe: impl FnMut() -> Option<T>) -> T {
    seen_within(limit, probe).unwrap_or_else(|| panic!("not within {limit:?}: {what}"))
}

/// The same, but for the caller to say what it means when it is not.
pub(crate) fn seen_within<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until it is so.
pub(crate) fn until(what: &str, mut probe: impl FnMut() -> bool) {
    within(PATIENCE, what, || probe().then_some(()));
}

/// The present on the clock that all processes of the machine share.
pub(crate) fn boot_ns() -> u64 {
    use lockkit::clock::{Clock as _, SystemClock};
    SystemClock.now().as_nanos()
}

/// A process that is killed when the test ends.
#[derive(Debug)]
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().expect("the process starts")))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it was not waited for")
    }

    pub(crate) fn pid(&mut self) -> i32 {
        i32::try_from(self.child().id()).expect("a process id")
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Writes to its standard input and closes that.
    pub(crate) fn feed(&mut self, text: &str) {
        let mut stdin = self.child().stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("it reads");
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child().try_wait().expect("it can be waited for")
    }

    pub(crate) fn status(&mut self) -> ExitStatus {
        within(PATIENCE, "the process ends", || self.ended())
    }

    /// Its end and what it wrote. What it wrote must fit into a pipe.
    pub(crate) fn wait_with_output(mut self) -> Output {
        self.status();
        let mut child = self.0.take().expect("it was not waited for");
        let mut output = Output {
            status: child.wait().expect("it has ended"),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        if let Some(mut out) = child.stdout.take() {
            out.read_to_end(&mut output.stdout).expect("readable");
        }
        if let Some(mut err) = child.stderr.take() {
            err.read_to_end(&mut output.stderr).expect("readable");
        }
        output
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Shorter access to what a process wrote.
pub(crate) trait Said {
    fn out(&self) -> String;
    fn err(&self) -> String;
    fn code(&self) -> i32;
}

impl Said for Output {
    fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("no exit code: {self:?}"))
    }
}
