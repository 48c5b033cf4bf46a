//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lockkit::{Owner, Timing};

use crate::{exit, span};

/// The environment variable that names the store. It may hold a password, so the command that is run
/// does not get it.
pub(crate) const STORE_VARIABLE: &str = "LOCKCTL_STORE";

const FIRST_STEPS: &str = "\
First steps:
  lockctl demo                        see a leader killed and replaced (15 s)
  lockctl exec backup -- ./backup.sh  run it while no other machine does
  lockctl run worker -- ./worker      keep a command on one machine at a time
  lockctl status backup               who holds it, and for how long

Machines must share a store: --store URL or LOCKCTL_STORE. Without one, a file in your state folder \
is used, which processes of this machine share.";

// One line a paragraph: the parser wraps it to the width of the terminal. Examples fit into 80 columns.

const EXEC_EXAMPLES: &str = "\
Examples:
  cron on many machines, runs on one:
    lockctl exec nightly-report --no-wait --at-least=1m -- ./report.sh
  wait at most five minutes:
    lockctl exec migrate --wait=5m -- ./migrate
  hand the fencing token on:
    lockctl exec deploy -- sh -c 'echo token $LOCKCTL_TOKEN'

The command gets LOCKCTL_NAME, LOCKCTL_TOKEN, LOCKCTL_OWNER and LOCKCTL_DEADLINE. It is told to stop \
(SIGTERM) when the lease cannot be renewed, and killed before it can lapse, with all it has started. \
Signals to lockctl are passed on; after SIGTERM the command has --drain to end.
";

const RUN_EXAMPLES: &str = "\
Examples:
  on every machine; one of them runs it:
    lockctl run queue-worker -- ./worker
  a crash is taken over about 5 s after the last renewal:
    lockctl run poller --ttl 5s -- ./poller
  events as JSON lines on stderr:
    lockctl run mailer --format json -- ./mailer

The command runs while this machine leads, and again after it is elected again. When it ends by \
itself the lead is given up, and claimed again after a pause that grows while the command keeps failing.

SIGTERM or SIGINT ends it: the command is told, has --drain to end, then the lease is released.
";

/// Run any command under a distributed lock or a leader election.
#[derive(Debug, Parser)]
#[command(name = "lockctl", version, after_help = FIRST_STEPS)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Headings of the help; what only one command takes stands before them.
const LEASE: &str = "The lease";
const EVERYWHERE: &str = "Store and output";

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// The store that all candidates share, such as sqlite:/var/lib/app/locks.db
    /// [default: a file in your state folder]
    ///
    /// Where it holds a password, prefer the environment variable: arguments are visible to every
    /// user of the machine.
    #[arg(
        long,
        help_heading = EVERYWHERE,
        value_name = "URL",
        global = true,
        env = STORE_VARIABLE,
        hide_env_values = true,
        hide_default_value = true
    )]
    pub(crate) store: Option<String>,

    /// How results and events are written
    #[arg(long, help_heading = EVERYWHERE, value_enum, global = true, default_value_t = Format::Text)]
    pub(crate) format: Format,

    /// Say only what is wrong
    #[arg(short, long, help_heading = EVERYWHERE, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Say more; twice: also what the library logs
    #[arg(short, long, help_heading = EVERYWHERE, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// How long one request to the store may take [default: a share of the ttl, 2s at 15s]
    #[arg(long, help_heading = EVERYWHERE, value_name = "SPAN", global = true, value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) request_timeout: Option<Duration>,
}

/// How results and events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// The times of a candidate.
#[derive(Args, Clone, Debug)]
pub(crate) struct Times {
    /// How long the store keeps the lease after the last renewal: the longest gap after a crash
    #[arg(long, help_heading = LEASE, value_name = "SPAN", default_value = "15s", value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,

    /// How long the command has between being told to stop and being killed
    /// [default: a share of the ttl, 4s at 15s]
    #[arg(long, help_heading = LEASE, value_name = "SPAN", value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) drain: Option<Duration>,

    /// How often the lease is renewed [default: a third of the ttl]
    #[arg(long, help_heading = LEASE, value_name = "SPAN", value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) renew_every: Option<Duration>,
}

/// The times and the identity of a candidate.
#[derive(Args, Clone, Debug)]
pub(crate) struct Candidate {
    #[command(flatten)]
    pub(crate) times: Times,

    /// The published identity; need not be unique [default: HOST/PID]
    #[arg(long, help_heading = LEASE, value_name = "TEXT")]
    pub(crate) owner: Option<String>,

    /// Refuse a store whose tokens may go back or repeat
    #[arg(long, help_heading = LEASE)]
    pub(crate) require_fencing: bool,
}

impl Times {
    /// The times, checked.
    pub(crate) fn checked(&self, request_timeout: Option<Duration>) -> lockkit::Result<Timing> {
        let mut timing = Timing::builder(self.ttl);
        if let Some(span) = request_timeout {
            timing = timing.request_timeout(span);
        }
        if let Some(span) = self.drain {
            timing = timing.drain(span);
        }
        if let Some(span) = self.renew_every {
            timing = timing.renew_every(span);
        }
        timing.build()
    }
}

impl Candidate {
    /// The published identity, checked.
    pub(crate) fn owner(&self) -> lockkit::Result<Owner> {
        self.owner
            .as_ref()
            .map_or_else(|| Ok(Owner::default()), Owner::new)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show three candidates, a crash and a clean hand-over, on a temporary store
    Demo(Demo),
    /// Run a command once, while holding the lock
    #[command(after_help = EXEC_EXAMPLES, after_long_help = format!("{EXEC_EXAMPLES}\n{}", exit::help()))]
    Exec(Exec),
    /// Keep a command running on one machine at a time
    #[command(after_help = RUN_EXAMPLES, after_long_help = format!("{RUN_EXAMPLES}\n{}", exit::help()))]
    Run(Run),
    /// Show who holds a name; reads only
    Status(Name),
    /// Show the names in the store
    List(List),
    /// Follow who holds a name
    Watch(Name),
    /// Say what a set of times means: takeover, pauses, requests; asks no store
    Explain(Explain),
    /// Ask the holder of a name to stop and to leave the name to others for a while
    ///
    /// The holder sees it at its next renewal, ends its command within the drain, and releases. `lockctl
    /// watch` shows who comes next.
    StepDown(StepDown),
    /// End the lease of whoever holds a name, now
    ///
    /// For a holder that does not answer. What it runs goes on until its next renewal, while another may
    /// already hold the name; then it is killed. Nobody is kept away: the same machine may take the name
    /// again. To move work elsewhere in order, use step-down.
    Revoke(Revoke),
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// The ttl of the leases in the demonstration
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
}

/// Arguments of `exec`.
#[derive(Args, Debug)]
pub(crate) struct Exec {
    /// The lock, 1 to 255 bytes
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) candidate: Candidate,

    /// Wait while somebody else holds it or the store is away, at most this long [default: for ever]
    ///
    /// Without --wait and --no-wait it waits for a lock that is held, but a store that cannot be
    /// reached at the start is an error.
    #[arg(
        long,
        value_name = "SPAN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = FOREVER,
        value_parser = parse_wait
    )]
    pub(crate) wait: Option<Wait>,

    /// Do not wait: when somebody else holds it, end at once with the code for "not acquired"
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Keep the lock at least this long after the command was started, also when it ends earlier
    ///
    /// For cron on many machines: their clocks differ, and a machine that comes late must still find
    /// the lock held.
    #[arg(long, value_name = "SPAN", default_value = "0s", hide_default_value = true, value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) at_least: Duration,

    /// The exit code for "not acquired", 0 to 255
    #[arg(long, value_name = "N", default_value_t = exit::Exit::NotAcquired as u8)]
    pub(crate) conflict_exit_code: u8,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

const FOREVER: &str = "forever";

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until it is ours.
    Forever,
    /// At most this long.
    AtMost(Duration),
}

fn parse_wait(text: &str) -> Result<Wait, String> {
    if text == FOREVER {
        return Ok(Wait::Forever);
    }
    span::parse(text).map(Wait::AtMost)
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The election, 1 to 255 bytes
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) candidate: Candidate,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// One name.
#[derive(Args, Debug)]
pub(crate) struct Name {
    /// The name to look at
    pub(crate) name: String,
}

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) times: Times,

    /// How many candidates there are, the leader included
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) candidates: u32,
}

/// Arguments of `step-down`.
#[derive(Args, Debug)]
pub(crate) struct StepDown {
    /// The name to give up
    pub(crate) name: String,

    /// How long its holder leaves it to others
    #[arg(long = "for", value_name = "SPAN", default_value = "10s", value_parser = span::parse, allow_hyphen_values = true)]
    pub(crate) hold_off: Duration,
}

/// Arguments of `revoke`.
#[derive(Args, Debug)]
pub(crate) struct Revoke {
    /// The name to free
    pub(crate) name: String,

    /// Why; kept in the store
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
