//! Another process: this test program run again, armed by its environment.

use std::io::{BufRead as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use lock_core::clock::{Clock as _, SystemClock};
use lock_core::{LockProvider as _, Owner, Provider};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::cx::{Cx, let_go, soon, timing};
use crate::harness::{Answer, Harness, Stop};

const ORDER: &str = "LOCK_CONFORMANCE_VICTIM";
/// What the child tells begins with this; the test runner writes lines of its own.
const MARK: &str = "@victim ";

/// What the process does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Takes the name, tells the token, and answers what it is asked.
    Hold,
    /// Takes the name and releases it, again and again, telling each turn.
    TakeTurns,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    locator: String,
    role: Role,
    name: String,
    ttl: Duration,
}

/// A running process; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Victim {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Victim {
    pub(crate) async fn start(cx: &Cx, role: Role, name: &str, ttl: Duration) -> Answer<Self> {
        let order = Order {
            locator: cx.harness().locator()?,
            role,
            name: name.to_owned(),
            ttl,
        };
        let module = cx.test_path().split_once("::").map(|(_, rest)| rest);
        let test = module.map_or_else(|| "victim".to_owned(), |m| format!("{m}::victim"));
        let mut child = Command::new(std::env::current_exe().map_err(Stop::failed)?)
            .args([&test, "--exact", "--ignored", "--nocapture"])
            .env(ORDER, serde_json::to_string(&order).map_err(Stop::failed)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(Stop::failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Stop::failed("the child has no pipes"));
        };
        let lines = BufReader::new(stdout).lines();
        Ok(Self {
            child,
            stdin,
            lines,
        })
    }

    /// The next thing of this kind that it tells.
    pub(crate) async fn told(&mut self, what: &str) -> Answer<String> {
        let next = async {
            loop {
                let line = self.lines.next_line().await.map_err(Stop::failed)?;
                let Some(line) = line else {
                    return Err(Stop::failed(format!(
                        "the process ended before it told {what:?}"
                    )));
                };
                if let Some((_, told)) = line.split_once(MARK)
                    && let Some((kind, value)) = told.split_once(' ')
                    && kind == what
                {
                    return Ok(value.to_owned());
                }
            }
        };
        soon(&format!("the process tells {what:?}"), next).await?
    }

    pub(crate) async fn ask(&mut self, what: &str) -> Answer<()> {
        let line = format!("{what}\n");
        self.stdin
            .write_all(line.as_bytes())
            .await
            .map_err(Stop::failed)
    }

    fn signal(&self, signal: rustix::process::Signal) -> Answer<()> {
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(rustix::process::Pid::from_raw)
            .ok_or_else(|| Stop::failed("the process has ended"))?;
        rustix::process::kill_process(pid, signal).map_err(Stop::failed)
    }

    /// Stops it with SIGSTOP.
    pub(crate) fn pause(&self) -> Answer<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    /// Lets it go on with SIGCONT.
    pub(crate) fn resume(&self) -> Answer<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) async fn kill(mut self) -> Answer<()> {
        self.child.kill().await.map_err(Stop::failed)
    }
}

/// The body of the test that a child process runs. Not armed, it does nothing.
///
/// # Panics
/// When the child cannot do what it was started for; its parent then misses what it should tell.
#[doc(hidden)]
pub fn victim<H: Harness>() {
    let Ok(order) = std::env::var(ORDER) else {
        println!("not armed: this test is a part of others");
        return;
    };
    let done = serde_json::from_str::<Order>(&order)
        .map_err(Stop::failed)
        .and_then(|order| act::<H>(&order));
    if let Err(stop) = done {
        panic!("the process could not go on: {stop}");
    }
}

fn tell(kind: &str, value: impl std::fmt::Display) -> Answer<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{MARK}{kind} {value}")
        .and_then(|()| out.flush())
        .map_err(Stop::failed)
}

fn act<H: Harness>(order: &Order) -> Answer<()> {
    // Dies with the test that started it, however that ends.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(Stop::failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Stop::failed)?;
    runtime.block_on(async {
        let store = H::open_at(&order.locator).await?;
        store.prepare().await?;
        // The same text in each process: it decides nothing.
        let provider = Provider::new(store)
            .with_owner(Owner::new("same")?)
            .with_timing(timing(order.ttl));
        match order.role {
            Role::Hold => {
                let guard = provider.acquire(&order.name).await?;
                tell("held", guard.token())?;
                for line in std::io::stdin().lock().lines() {
                    match line.map_err(Stop::failed)?.as_str() {
                        "check" => tell("check", guard.check())?,
                        "release" => tell("release", format!("{:?}", let_go(&guard).await?))?,
                        other => return Err(Stop::failed(format!("asked {other:?}"))),
                    }
                }
                Ok(())
            }
            Role::TakeTurns => loop {
                let guard = provider.acquire(&order.name).await?;
                let from = SystemClock.now().as_nanos();
                tokio::time::sleep(Duration::from_millis(2)).await;
                let to = SystemClock.now().as_nanos();
                let token = guard.token();
                let_go(&guard).await?;
                tell("granted", format!("{token} {from} {to}"))?;
                // Leaves room for those that are not told of a release.
                tokio::time::sleep(Duration::from_millis(5)).await;
            },
        }
    })
}
