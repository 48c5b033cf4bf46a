//! The candidates as the engine sees them: processes, and the way of each to the store.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, pidfd_send_signal,
};

use super::candidate::{Link, Order, Word, diary_of};
use super::record::{Fact, Record, now, read};
use super::schedule::Kind;
use super::{LOCATOR, Launch, Site};
use crate::harness::{Answer, Stop};
use crate::servers::{Direction, Flow, Proxy, SteppedClock};

/// One candidate over all its lives.
#[derive(Debug)]
pub(super) struct Actor {
    who: u32,
    life: u32,
    locator: String,
    /// It is a command of its own, which understands no words.
    is_command: bool,
    proxy: Option<Proxy>,
    process: Option<(Child, ChildStdin)>,
    /// The wall clock of its processes, where it is not the machine's.
    clock: Option<SteppedClock>,
    /// How far that is ahead, in milliseconds.
    ahead: i64,
    /// What its link suffers now, the latest last.
    ails: Vec<Kind>,
    /// What the engine knows better than the candidate.
    known: Vec<Record>,
}

/// What every life of every candidate is started with.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) folder: PathBuf,
    pub(super) launch: Launch,
    pub(super) ttl: Duration,
    pub(super) mutant: Option<String>,
}

impl Actor {
    pub(super) fn new(who: u32, site: &Site, clock: Option<SteppedClock>) -> Answer<Self> {
        let (locator, proxy) = site.way()?;
        Ok(Self {
            who,
            life: 0,
            locator,
            is_command: false,
            proxy,
            process: None,
            clock,
            ahead: 0,
            ails: Vec::new(),
            known: Vec::new(),
        })
    }

    pub(super) fn start(&mut self, setting: &Setting) -> Answer<()> {
        self.life += 1;
        let order = Order {
            folder: setting.folder.clone(),
            locator: self.locator.clone(),
            who: self.who,
            life: self.life,
            ttl: setting.ttl,
            mutant: setting.mutant.clone(),
            command: setting.launch.token.clone(),
        };
        let (name, value) = order.variable()?;
        let errors = File::create(self.errors(&setting.folder)).map_err(Stop::failed)?;
        self.is_command = setting.launch.token.is_some();
        if self.is_command {
            self.know(Fact::Up);
        }
        let words = setting.launch.words.iter();
        let words = words.map(|word| word.replace(LOCATOR, &self.locator));
        let clock = self.clock.iter().flat_map(SteppedClock::variables);
        let mut child = Command::new(&setting.launch.program)
            .args(words)
            .envs(clock)
            .env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .map_err(Stop::failed)?;
        let stdin = child.stdin.take();
        let stdin = stdin.ok_or_else(|| Stop::failed("the candidate has no standard input"))?;
        self.process = Some((child, stdin));
        self.mend_link()
    }

    fn errors(&self, folder: &Path) -> PathBuf {
        folder.join(format!("candidate-{}-{}.err", self.who, self.life))
    }

    pub(super) const fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Tells it a word; a process that has ended takes none, and that is found when it is looked after.
    fn tell(&mut self, word: Word) -> Answer<()> {
        if self.is_command {
            return Ok(());
        }
        let mut line = serde_json::to_string(&word).map_err(Stop::failed)?;
        line.push('\n');
        if let Some((_, stdin)) = &mut self.process
            && let Err(error) = stdin.write_all(line.as_bytes())
            && error.kind() != std::io::ErrorKind::BrokenPipe
        {
            return Err(Stop::failed(error));
        }
        Ok(())
    }

    fn pid(&self) -> Answer<Pid> {
        let pid = self.process.as_ref().map(|(child, _)| child.id());
        let pid = pid.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        pid.ok_or_else(|| Stop::failed("the candidate does not run"))
    }

    fn signal(&self, signal: Signal) -> Answer<()> {
        kill_process(self.pid()?, signal).map_err(Stop::failed)
    }

    pub(super) fn pause(&self) -> Answer<()> {
        self.signal(Signal::STOP)
    }

    pub(super) fn resume(&self) -> Answer<()> {
        self.signal(Signal::CONT)
    }

    pub(super) fn kill(&mut self) -> Answer<()> {
        if let Some((mut child, _)) = self.process.take() {
            child.kill().map_err(Stop::failed)?;
            // From here on it does nothing of its own, also where its end takes longer (in the midst of a write).
            self.know(Fact::Killed);
            child.wait().map_err(Stop::failed)?;
        }
        Ok(())
    }

    pub(super) fn ask_to_stop(&mut self) -> Answer<()> {
        if !self.is_command {
            return self.tell(Word::Stop);
        }
        // One that has ended by itself is found when it is joined.
        if self.has_died()? || !self.runs() {
            return Ok(());
        }
        self.signal(Signal::TERM)
    }

    /// Waits for the end of one that was asked to; kills it when there is none. `Err` says how it ended.
    pub(super) fn join(&mut self, patience: Duration, folder: &Path) -> Answer<Result<(), String>> {
        let Some((mut child, stdin)) = self.process.take() else {
            return Ok(Ok(()));
        };
        let until = Instant::now() + patience;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(Stop::failed)? {
                break status;
            }
            if Instant::now() > until {
                self.process = Some((child, stdin));
                self.kill()?;
                return Ok(Err(format!(
                    "it did not end within {patience:?} when told to"
                )));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        // A command passes on the code of its work, which was told to stop or killed.
        if status.success() || self.is_command && status.code().is_some() {
            if self.is_command {
                self.know(Fact::Down);
            }
            return Ok(Ok(()));
        }
        self.know(Fact::Killed);
        Ok(Err(format!(
            "it ended with {status}: {}",
            self.said(folder)?
        )))
    }

    /// The last lines of what it said of errors in this life.
    pub(super) fn said(&self, folder: &Path) -> Answer<String> {
        let said = std::fs::read_to_string(self.errors(folder)).map_err(Stop::failed)?;
        let lines: Vec<&str> = said.trim().lines().collect();
        Ok(lines[lines.len().saturating_sub(4)..].join(" | "))
    }

    /// Whether it has ended although nobody told it to.
    pub(super) fn has_died(&mut self) -> Answer<bool> {
        match &mut self.process {
            Some((child, _)) => Ok(child.try_wait().map_err(Stop::failed)?.is_some()),
            None => Ok(false),
        }
    }

    fn know(&mut self, fact: Fact) {
        self.known.push(Record {
            at: now(),
            who: self.who,
            life: self.life,
            fact,
        });
    }

    pub(super) fn ail(&mut self, kind: Kind) -> Answer<()> {
        self.ails.push(kind);
        self.mend_link()
    }

    pub(super) fn recover(&mut self, kind: Kind) -> Answer<()> {
        if let Some(at) = self.ails.iter().position(|one| *one == kind) {
            self.ails.remove(at);
        }
        self.mend_link()
    }

    /// Makes the link what it is to be now: of several faults at once the latest one counts.
    fn mend_link(&mut self) -> Answer<()> {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let Some(proxy) = &self.proxy else {
            let link = match self.ails.last() {
                Some(Kind::Slow(by)) => Link::Slow(ms(*by * 2)),
                Some(Kind::SlowAnswers(by)) => Link::SlowAnswers(ms(*by)),
                Some(Kind::LoseAnswers) => Link::DropAnswers,
                Some(Kind::Cut { .. }) => Link::FailAfter,
                Some(Kind::Refuse) => Link::Refuse,
                Some(_) => Link::DropRequests,
                None => Link::Heal,
            };
            return self.tell(Word::Link(link));
        };
        proxy.heal();
        match self.ails.last() {
            Some(Kind::Slow(by)) => {
                proxy.set_delay(Direction::ToServer, *by);
                proxy.set_delay(Direction::ToClient, *by);
            }
            Some(Kind::SlowAnswers(by)) => proxy.set_delay(Direction::ToClient, *by),
            Some(Kind::LoseAnswers) => proxy.set_flow(Direction::ToClient, Flow::Swallow),
            Some(Kind::LoseRequests) => proxy.set_flow(Direction::ToServer, Flow::Swallow),
            Some(Kind::Cut { reset: true }) => proxy.reset(),
            Some(Kind::Cut { reset: false }) => proxy.cut(),
            Some(Kind::Refuse) => {
                proxy.refuse(true);
                proxy.cut();
            }
            Some(_) => proxy.black_hole(),
            None => {}
        }
        Ok(())
    }

    /// Takes its means to open anything, and the connections it has; or gives the means back.
    pub(super) fn limit_descriptors(&self, limit: bool) -> Answer<()> {
        let pid = self.pid()?;
        let open = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid()));
        let open = open.map_err(Stop::failed)?.count() as u64;
        let most = rustix::process::getrlimit(Resource::Nofile);
        let current = if limit {
            Some(open.min(4))
        } else {
            most.current
        };
        let maximum = most.maximum;
        rustix::process::prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum })
            .map_err(Stop::failed)?;
        if let Some(proxy) = self.proxy.as_ref().filter(|_| limit) {
            proxy.cut();
        }
        Ok(())
    }

    /// Lets it run for 10 of 100 ms until what is given back is dropped.
    pub(super) fn starve(&self) -> Answer<Quota> {
        // Not its number, which another process may get.
        let process = pidfd_open(self.pid()?, PidfdFlags::empty()).map_err(Stop::failed)?;
        let over = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let over = Arc::clone(&over);
            move || {
                while !over.load(Ordering::SeqCst) {
                    // One that is gone is found by who looks after it.
                    let _gone = pidfd_send_signal(&process, Signal::STOP);
                    std::thread::sleep(Duration::from_millis(90));
                    let _gone = pidfd_send_signal(&process, Signal::CONT);
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        Ok(Quota {
            over,
            thread: Some(thread),
        })
    }

    /// Steps its wall clock, for all its lives.
    pub(super) fn step(&mut self, by: i64) -> Answer<()> {
        let clock = self.clock.as_ref();
        let clock = clock.ok_or_else(|| Stop::failed("the candidate has no clock of its own"))?;
        self.ahead += by;
        clock.set_millis(self.ahead).map_err(Stop::failed)
    }

    /// Connections that are still open through its proxy.
    pub(super) fn open_connections(&self) -> u64 {
        self.proxy.as_ref().map_or(0, Proxy::open)
    }

    /// All that is known of its lives.
    pub(super) fn history(&self, folder: &Path) -> Answer<Vec<Record>> {
        let mut all = self.known.clone();
        for life in 1..=self.life {
            let diary = diary_of(folder, self.who, life);
            match read(&diary, self.who, life) {
                Ok(records) => all.extend(records),
                // Killed before its first word.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Stop::failed(error)),
            }
        }
        Ok(all)
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.process {
            // Only a run that could not be finished leaves one; there is nobody to tell.
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// A candidate that gets little of the processor; it runs on when this is dropped.
#[derive(Debug)]
pub(super) struct Quota {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // It ends with the process going on; it does nothing that panics.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}
