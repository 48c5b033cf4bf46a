//! A server process that does not outlive the test program.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Runs the command, tells its pid, and waits for the first of: it ends (then so does this script); standard input
/// ends, which it does when the test program is gone, however it went. Then the server is killed with its children,
/// and its folder removed.
///
/// Words: the folder, the file of the log, the command.
const SUPERVISOR: &str = r#"
folder=$1 log=$2
shift 2
exec 3<&0
"$@" </dev/null >>"$log" 2>&1 3<&- &
server=$!
echo "$server"
children() {
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    pid=${line%% *}
    set -- ${line##*) }
    if [ "$2" = "$server" ]; then echo "$pid"; fi
  done
}
(
  read -r _ <&3
  trap '' TERM
  kill -STOP "$server"
  kill -KILL "$server" $(children)
) 2>/dev/null &
watcher=$!
wait "$server"
code=$?
kill "$watcher" 2>/dev/null
if wait "$watcher" 2>/dev/null || [ $? -lt 128 ]; then
  tries=0 # a child that is just dying may still write
  until rm -rf "$folder" 2>/dev/null || [ "$tries" -gt 100 ]; do tries=$((tries + 1)); done
fi
exit "$code"
"#;

/// Who a server runs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Identity {
    /// The one to run as: `None` is whoever runs the tests, unless that is root; then the first of these accounts
    /// that there is.
    pub(super) fn ordinary(accounts: &[&str]) -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd")?;
        let find = |account: &&str| {
            passwd.lines().find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(account)).then_some(())?;
                Some(Self {
                    uid: fields.nth(1)?.parse().ok()?,
                    gid: fields.next()?.parse().ok()?,
                })
            })
        };
        let found = accounts.iter().chain(&["nobody"]).find_map(find);
        found.map(Some).ok_or_else(|| {
            io::Error::other(format!(
                "servers do not run as root, and there is no account {} or nobody",
                accounts.join(", ")
            ))
        })
    }

    /// The words before a command that make it run as this one, with no way to more rights.
    pub(super) fn words(this: Option<Self>) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["setpriv".into(), "--no-new-privs".into()];
        if let Some(Self { uid, gid }) = this {
            words.push(format!("--reuid={uid}").into());
            words.push(format!("--regid={gid}").into());
            words.push("--clear-groups".into());
        }
        words
    }
}

/// A running server process and its supervisor.
#[derive(Debug)]
pub(super) struct Process {
    supervisor: Child,
    /// Held open; its end tells the supervisor that the test program is gone.
    _alive: Option<ChildStdin>,
    pid: Pid,
}

impl Process {
    /// Starts a command with its folder as working directory. The log is added to.
    pub(super) fn start(
        folder: &Path,
        log: &Path,
        identity: Option<Identity>,
        command: &[OsString],
    ) -> io::Result<Self> {
        let mut supervisor = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(folder)
            .arg(log)
            // A session of its own: what is typed at the terminal of the tests does not reach the server.
            .arg("setsid")
            .args(Identity::words(identity))
            // The server also dies with a killed supervisor.
            .args(["--pdeathsig", "KILL"])
            .args(command)
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let alive = supervisor.stdin.take();
        let mut line = String::new();
        if let Some(out) = supervisor.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let Some(pid) = pid else {
            supervisor.kill()?;
            supervisor.wait()?;
            return Err(io::Error::other("the supervisor told no pid"));
        };
        Ok(Self {
            supervisor,
            _alive: alive,
            pid,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Whether the process is gone.
    pub(super) fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.supervisor.try_wait()?.is_some())
    }

    /// Asks the process to end, and waits. False: it did not within `patience`.
    pub(super) fn end(&mut self, signal: Signal, patience: Duration) -> io::Result<bool> {
        self.resume()?;
        signal_one(self.pid(), signal)?;
        self.wait(patience)
    }

    /// Kills the process and its children, and waits until all are gone.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        if self.has_ended()? {
            return Ok(());
        }
        let family = self.halt()?;
        for pid in &family {
            signal_one(*pid, Signal::KILL)?;
        }
        let patience = Duration::from_secs(10);
        let gone = self.wait(patience)?
            && wait_until(patience, || {
                family
                    .iter()
                    .all(|pid| !matches!(state(*pid), Some(s) if s != 'Z'))
            });
        if gone {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "{family:?} are killed and still there"
            )))
        }
    }

    /// Stops the process and its children where they are (SIGSTOP), and waits until they stand.
    pub(super) fn pause(&mut self) -> io::Result<()> {
        let family = self.halt()?;
        let stand = || {
            let moving = |pid: &u32| !matches!(state(*pid), None | Some('T' | 'Z'));
            !family.iter().any(moving)
        };
        if wait_until(Duration::from_secs(10), stand) {
            Ok(())
        } else {
            Err(io::Error::other(format!("{family:?} do not stop")))
        }
    }

    /// Lets them go on.
    pub(super) fn resume(&mut self) -> io::Result<()> {
        if self.has_ended()? {
            return Ok(());
        }
        let mut family = family(self.pid())?;
        family.reverse();
        family
            .into_iter()
            .try_for_each(|pid| signal_one(pid, Signal::CONT))
    }

    /// Stops the parent before its children, until no new ones turn up. Gives all of them, the parent first.
    fn halt(&mut self) -> io::Result<Vec<u32>> {
        let mut halted = Vec::new();
        loop {
            let fresh: Vec<u32> = family(self.pid())?
                .into_iter()
                .filter(|pid| !halted.contains(pid))
                .collect();
            if fresh.is_empty() {
                return Ok(halted);
            }
            for pid in fresh {
                signal_one(pid, Signal::STOP)?;
                halted.push(pid);
            }
        }
    }

    fn wait(&mut self, patience: Duration) -> io::Result<bool> {
        let mut failure = None;
        let ended = wait_until(patience, || match self.supervisor.try_wait() {
            Ok(status) => status.is_some(),
            Err(error) => {
                failure = Some(error);
                true
            }
        });
        failure.map_or(Ok(ended), Err)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The supervisor kills what is left when `alive` closes; this only makes sure that it is gone on return.
        let _ = self.kill();
    }
}

/// Looks again every few milliseconds until the condition holds; false when the time is over.
pub(super) fn wait_until(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if started.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state letter of a process (`T` stopped, `Z` dead and not yet taken note of); `None`: there is none.
fn state(pid: u32) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in brackets, and may hold any character.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The process and all that descend from it, parents first. Servers put their children into groups of their own
/// (PostgreSQL does), so a signal to the group would not reach them.
fn family(root: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let pid = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some((pid, (_, parent))) = pid.and_then(|pid| Some((pid, stat(pid)?))) {
            parents.push((pid, parent));
        }
    }
    let mut family = vec![root];
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        let children = parents.iter().filter(|(_, of)| *of == parent);
        family.extend(children.map(|(pid, _): &(u32, u32)| *pid));
        next += 1;
    }
    Ok(family)
}

/// Sends a signal; a process that is gone needs none.
fn signal_one(pid: u32, signal: Signal) -> io::Result<()> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
