//! At a terminal.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::support::{MARK, PATIENCE, Running, Site, seen_within, until};

/// A terminal with a program on it that has it as its controlling one.
struct Screen {
    keys: std::fs::File,
    shown: Arc<Mutex<String>>,
    program: Running,
}

impl Screen {
    fn start(site: &Site, program: &[&str]) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&keys).expect("granted");
        unlockpt(&keys).expect("unlocked");
        let name = ptsname(&keys, Vec::new()).expect("a name");
        let other = rustix::fs::open(
            name.as_c_str(),
            OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .expect("its other side");
        let side = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor"));
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .args(program)
            .env("LOCKCTL_STORE", site.url())
            .env(MARK, site.mark())
            .env("PS1", "$ ")
            .stdin(side(&other))
            .stdout(side(&other))
            .stderr(side(&other));
        let program = Running::start(&mut command);
        drop(command);
        drop(other);
        let shown = Arc::new(Mutex::new(String::new()));
        let mut keys = std::fs::File::from(keys);
        let mut screen = keys.try_clone().expect("a descriptor");
        let text = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when the last program has closed the terminal.
            while let Ok(n) = screen.read(&mut buffer) {
                if n == 0 {
                    return;
                }
                let part = String::from_utf8_lossy(&buffer[..n]).into_owned();
                text.lock().expect("not poisoned").push_str(&part);
            }
        });
        keys.flush().expect("a terminal");
        Self {
            keys,
            shown,
            program,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("a terminal");
    }

    fn text(&self) -> String {
        self.shown.lock().expect("not poisoned").clone()
    }

    /// Waits until this was shown.
    fn shows(&self, what: &str) {
        let shown = || self.text().contains(what).then_some(());
        if seen_within(PATIENCE, shown).is_none() {
            panic!("{what:?} was not shown, but this:\n{}", self.text());
        }
    }

    /// Waits until the program on it has ended.
    fn ends(&mut self) -> Option<i32> {
        match seen_within(PATIENCE, || self.program.ended()) {
            Some(status) => status.code(),
            None => panic!("the program has not ended; shown was:\n{}", self.text()),
        }
    }
}

/// Waits until the group of the process with this command line is in the foreground of its terminal:
/// what is typed before is typed at the shell.
fn until_in_front(site: &Site, line: &str) {
    until(&format!("{line} is in the foreground"), || {
        site.processes().iter().any(|(pid, words)| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after_name = stat.rsplit(") ").next().unwrap_or_default();
            let fields: Vec<_> = after_name.split(' ').collect();
            words.trim() == line && fields.get(2) == fields.get(5)
        })
    });
}

const LOCKCTL: &str = env!("CARGO_BIN_EXE_lockctl");

#[test]
fn an_interactive_shell_is_not_stopped() {
    let site = Site::new();
    let mut screen = Screen::start(
        &site,
        &[LOCKCTL, "exec", "job", "--", "bash", "--norc", "-i"],
    );
    screen.shows("$ ");
    screen.press("echo $((6 * 7))\n");
    screen.shows("42");
    // Job control inside works too.
    screen.press("sleep 1001\n");
    until("it sleeps", || !site.running("sleep 1001").is_empty());
    screen.press("\x1a");
    screen.shows("Stopped");
    screen.press("fg\n");
    until_in_front(&site, "sleep 1001");
    screen.press("\x03");
    until("it is gone", || site.running("sleep 1001").is_empty());
    screen.press("exit 5\n");
    assert_eq!(screen.ends(), Some(5), "{}", screen.text());
}

#[test]
fn keys_arrive_once() {
    let site = Site::new();
    let mut program = vec![LOCKCTL.to_owned(), "exec".into(), "job".into(), "--".into()];
    program.extend(site.fixture("signals", "seen"));
    let program: Vec<_> = program.iter().map(String::as_str).collect();
    let mut screen = Screen::start(&site, &program);
    until("the command is ready", || site.lines("seen") == ["ready"]);
    screen.press("\x03");
    until("Ctrl-C arrives", || site.lines("seen").len() >= 2);
    screen.press("\x1c");
    until("Ctrl-\\ arrives", || site.lines("seen").len() >= 3);
    for wrapper in site.processes_with("exec job") {
        crate::support::kill(wrapper, rustix::process::Signal::TERM);
    }
    screen.ends();
    assert_eq!(site.lines("seen"), ["ready", "INT", "QUIT", "TERM"]);
}

#[test]
fn a_job_of_a_shell_stops_and_goes_on() {
    let site = Site::new();
    let mut screen = Screen::start(&site, &["bash", "--norc", "-i"]);
    screen.shows("$ ");
    screen.press(&format!("{LOCKCTL} exec job -- cat\n"));
    until_in_front(&site, "cat");
    screen.press("one\n");
    screen.shows("one\r\none");
    screen.press("\x1a");
    screen.shows("Stopped");
    screen.press("echo the shell is $((20 + 22))\n");
    screen.shows("the shell is 42");
    screen.press("fg\n");
    until_in_front(&site, "cat");
    screen.press("two\n");
    screen.shows("two\r\ntwo");
    screen.press("\x04");
    screen.press("echo code $?; exit\n");
    screen.shows("code 0");
    screen.ends();
}

#[test]
fn a_job_started_in_the_background_can_be_brought_to_the_front() {
    let site = Site::new();
    let mut screen = Screen::start(&site, &["bash", "--norc", "-i"]);
    screen.shows("$ ");
    screen.press(&format!("{LOCKCTL} exec job -- cat &\n"));
    until("it runs", || {
        !site.processes_with("exec job -- cat").is_empty()
    });
    // It reads, and so is stopped; the shell says so before its next prompt.
    until("the shell has noticed", || {
        screen.press("\n");
        std::thread::sleep(std::time::Duration::from_millis(50));
        screen.text().contains("Stopped")
    });
    screen.press("fg\n");
    until_in_front(&site, "cat");
    screen.press("three\n");
    screen.shows("three\r\nthree");
    screen.press("\x04");
    screen.press("exit\n");
    screen.ends();
}

#[test]
fn another_program_of_a_pipeline_can_use_the_terminal() {
    let site = Site::new();
    let mut screen = Screen::start(&site, &["bash", "--norc", "-i"]);
    screen.shows("$ ");
    let reader = "(read x </dev/tty; echo got-$x; cat)";
    screen.press(&format!(
        "{LOCKCTL} exec job -- sh -c 'echo out; exec sleep 1001' | {reader}\n"
    ));
    until("it runs", || !site.running("sleep 1001").is_empty());
    screen.press("hello\n");
    screen.shows("got-hello\r\nout");
    // The key reaches the command through lockctl, once, and the whole pipeline ends.
    screen.press("\x03");
    until("it is gone", || site.running("sleep 1001").is_empty());
    screen.press("echo the shell is $((20 + 22)); exit\n");
    screen.shows("the shell is 42");
    screen.ends();
}

#[test]
fn a_program_of_a_pipeline_gets_the_terminal_when_it_asks() {
    let site = Site::new();
    let mut screen = Screen::start(&site, &["bash", "--norc", "-i"]);
    screen.shows("$ ");
    screen.press(&format!(
        "{LOCKCTL} exec job -- sh -c 'read x; echo got-$x' | cat\n"
    ));
    until("it runs", || !site.running("sh -c read x").is_empty());
    screen.press("hello\n");
    screen.shows("got-hello");
    screen.press("exit\n");
    screen.ends();
}

#[test]
fn a_job_that_stays_stopped_past_its_deadline_is_ended() {
    let site = Site::new();
    let mut screen = Screen::start(&site, &["bash", "--norc", "-i"]);
    screen.shows("$ ");
    screen.press(&format!("{LOCKCTL} exec job --wait --ttl 2s -- cat\n"));
    until_in_front(&site, "cat");
    screen.press("\x1a");
    screen.shows("Stopped");
    // Only lockctl itself is stopped with the job; its keeper goes on.
    until("the command is killed", || site.running("cat").is_empty());
    screen.press("fg\n");
    screen.shows("lost \"job\"");
    screen.press("echo code $?; exit\n");
    screen.shows("code 79");
    screen.ends();
}
