//! Golden transcripts of the election machine: one file per behaviour in `transcripts/`.
//!
//! A line of a script is an input with its time; the indented lines below it are what the machine
//! wants, written by this test. `LOCK_TEST_REWRITE=1` writes them anew; review the difference as code.
//!
//! ```text
//! config ttl=15s scope=many          # also: renew, timeout, backoff, poll, drain, margin, drift (ppm),
//!                                    # queueing, guarded, tokens-may-repeat
//! 0s start                           # or: wake, hint, ride-along, lapsed, shutdown, wait-failed,
//!                                    # resign 5s, work-ended 0s
//! 0.1s #0 granted 7                  # the answer to request 0; options: ttl=15s sent=0s
//! 5s #1 renewed                      # or: gone, released, not-held, withdrawn, denied 7 left=3s,
//!                                    # timeout, refused (surely without effect), hopeless
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::clock::Moment;
use lock_core::election::{Action, Input, Machine, MachineConfig, OpId, Output, Reply, Scope};
use lock_core::{
    Attempt, Claim, Error, ErrorKind, Event, Handle, Holder, Lease, LockName, LossReason, Metadata,
    Mode, Nonce, Owner, Release, Renewal, Request, Timing, Token,
};

/// The words of one line.
struct Line<'a>(Vec<&'a str>);

impl<'a> Line<'a> {
    fn new(line: &'a str) -> Self {
        let code = line.split(" # ").next().unwrap_or_default();
        Self(code.split_whitespace().collect())
    }

    fn word(&self, n: usize) -> &'a str {
        self.0.get(n).copied().unwrap_or_default()
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn option(&self, key: &str) -> Option<&'a str> {
        let is = |word: &&'a str| {
            word.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with('='))
        };
        self.0
            .iter()
            .copied()
            .find(is)
            .map(|word| &word[key.len() + 1..])
    }

    fn span(&self, key: &str) -> Option<Duration> {
        self.option(key).map(span)
    }
}

fn span(text: &str) -> Duration {
    let number = text
        .strip_suffix('s')
        .unwrap_or_else(|| panic!("{text} is not in seconds"));
    Duration::from_secs_f64(
        number
            .parse()
            .unwrap_or_else(|_| panic!("{text} is no number")),
    )
}

fn moment(text: &str) -> Moment {
    Moment::START.after(span(text))
}

fn show(at: Moment) -> String {
    if at == Moment::NEVER {
        return "something happens".into();
    }
    seconds(at.since(Moment::START))
}

fn seconds(span: Duration) -> String {
    let text = format!("{:.3}", span.as_secs_f64());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

fn token(text: &str) -> Token {
    let value = text
        .parse()
        .unwrap_or_else(|_| panic!("{text} is no token"));
    Token::new(value).expect("small")
}

fn config(line: &Line<'_>) -> MachineConfig {
    let mut timing = Timing::builder(line.span("ttl").unwrap_or(Duration::from_secs(15)));
    for (key, set) in [
        (
            "renew",
            lock_core::TimingBuilder::renew_every as fn(_, _) -> _,
        ),
        ("timeout", lock_core::TimingBuilder::request_timeout),
        ("backoff", lock_core::TimingBuilder::first_backoff),
        ("poll", lock_core::TimingBuilder::poll_every),
        ("drain", lock_core::TimingBuilder::drain),
        ("margin", lock_core::TimingBuilder::margin),
    ] {
        if let Some(span) = line.span(key) {
            timing = set(timing, span);
        }
    }
    MachineConfig {
        name: LockName::new("job").expect("valid"),
        owner: Owner::new("us").expect("valid"),
        metadata: Metadata::default(),
        priority: 0,
        timing: timing.build().expect("the script's times keep the rule"),
        scope: match line.option("scope") {
            Some("attempt") => Scope::OneAttempt,
            Some("term") => Scope::OneTerm,
            _ => Scope::ManyTerms,
        },
        first_nonce: Nonce::from_u128(1),
        seed: 1,
        queueing: line.has("queueing"),
        monotone: !line.has("tokens-may-repeat"),
        guarded_takeover: line.has("guarded"),
    }
}

/// A machine, and what it has asked for.
struct Play {
    machine: Machine,
    asked: BTreeMap<u64, (Moment, Asked)>,
}

#[derive(Clone)]
enum Asked {
    TryAcquire(Claim),
    Renew(Lease),
    Release,
    Withdraw,
}

impl Play {
    fn reply(&self, line: &Line<'_>) -> Input {
        let number = line
            .word(1)
            .trim_start_matches('#')
            .parse()
            .expect("a number");
        let (sent, asked) =
            (self.asked.get(&number)).unwrap_or_else(|| panic!("#{number} was not asked"));
        let error = match line.word(2) {
            "timeout" => Some(Error::new(ErrorKind::Timeout, "no answer")),
            "refused" => {
                let error = Error::new(ErrorKind::Unavailable, "refused");
                Some(error.with_indeterminate(false))
            }
            "hopeless" => Some(Error::new(ErrorKind::Unsupported, "cannot do this")),
            _ => None,
        };
        let reply = match (asked, error) {
            (Asked::TryAcquire(_), Some(error)) => Reply::TryAcquire(Err(error)),
            (Asked::Renew(_), Some(error)) => Reply::Renew(Err(error)),
            (Asked::Release, Some(error)) => Reply::Release(Err(error)),
            (Asked::Withdraw, Some(error)) => Reply::Withdraw(Err(error)),
            (Asked::TryAcquire(claim), None) => Reply::TryAcquire(Ok(attempt(claim, line))),
            (Asked::Renew(lease), None) if line.word(2) == "renewed" => {
                Reply::Renew(Ok(Renewal::Renewed {
                    ttl: line.span("ttl").unwrap_or_else(|| lease.claim().ttl),
                    request: (line.span("step-down"))
                        .map(|hold_off| Request::StepDown { hold_off }),
                }))
            }
            (Asked::Renew(_), None) if line.word(2) == "gone" => Reply::Renew(Ok(Renewal::Gone)),
            (Asked::Release, None) if line.word(2) == "released" => {
                Reply::Release(Ok(Release::Released))
            }
            (Asked::Release, None) if line.word(2) == "not-held" => {
                Reply::Release(Ok(Release::NotHeld))
            }
            (Asked::Withdraw, None) if line.word(2) == "withdrawn" => Reply::Withdraw(Ok(())),
            _ => panic!("{} does not answer #{number}", line.word(2)),
        };
        Input::Replied {
            op: OpId(number),
            sent: line.option("sent").map_or(*sent, moment),
            reply,
        }
    }

    fn play(&mut self, line: &Line<'_>, out: &mut String) {
        let now = moment(line.word(0));
        let hold_off = || span(line.word(2));
        let input = match line.word(1) {
            "start" => Some(Input::Start),
            "wake" => None,
            "hint" => Some(Input::Hint),
            "wait-failed" => Some(Input::WaitFailed(Error::new(
                ErrorKind::Unavailable,
                "deaf",
            ))),
            "ride-along" => Some(Input::RideAlong),
            "lapsed" => Some(Input::Lapsed),
            "shutdown" => Some(Input::Shutdown),
            "resign" => Some(Input::Resign {
                hold_off: hold_off(),
            }),
            "work-ended" => Some(Input::WorkEnded {
                hold_off: hold_off(),
            }),
            word if word.starts_with('#') => Some(self.reply(line)),
            word => panic!("{word:?} is no input"),
        };
        if let Some(input) = input {
            self.machine.handle(now, input);
        }
        loop {
            let text = match self.machine.poll(now) {
                Output::Action(action) => self.note(now, action),
                Output::Event(event) => describe(&event),
                Output::Wait(_) if self.machine.is_ended() => "end".into(),
                Output::Wait(at) => format!("wait until {}", show(at)),
            };
            writeln!(out, "    {text}").expect("a string takes it");
            if text == "end" || text.starts_with("wait until") {
                return;
            }
        }
    }

    fn note(&mut self, now: Moment, action: Action) -> String {
        let (op, asked, text) = match action {
            Action::TryAcquire { op, claim } => {
                let mode = if claim.mode == Mode::Once {
                    " once"
                } else {
                    ""
                };
                let only = claim.if_unchanged.map(|v| format!(" if-unchanged={v}"));
                let text = format!(
                    "ask #{} try_acquire nonce={}{mode}{}",
                    op.0,
                    claim.nonce.as_u128(),
                    only.unwrap_or_default()
                );
                (op, Asked::TryAcquire(claim), text)
            }
            Action::Renew { op, lease } => {
                let text = format!("ask #{} renew {}", op.0, lease.token());
                (op, Asked::Renew(lease), text)
            }
            Action::Release { op, lease } => {
                let text = format!("ask #{} release {}", op.0, lease.token());
                (op, Asked::Release, text)
            }
            Action::Withdraw { op, claim } => {
                let text = format!("ask #{} withdraw nonce={}", op.0, claim.nonce.as_u128());
                (op, Asked::Withdraw, text)
            }
            Action::Wait { seen, .. } => return format!("listen, having seen {}", seen.token),
            Action::StopWaiting => return "listen no longer".into(),
        };
        assert!(
            self.asked.insert(op.0, (now, asked)).is_none(),
            "an id used twice"
        );
        text
    }
}

fn attempt(claim: &Claim, line: &Line<'_>) -> Attempt {
    let ttl = line.span("ttl").unwrap_or(claim.ttl);
    match line.word(2) {
        "granted" => Attempt::Granted(Lease::new(claim, token(line.word(3)), ttl, Handle::none())),
        "denied" => {
            let version = line
                .option("version")
                .map_or(1, |v| v.parse().expect("a number"));
            let left = line.span("left").unwrap_or_default();
            let owner = Owner::new("them").expect("valid");
            Attempt::Held(Holder::new(owner, token(line.word(3)), left, ttl, version))
        }
        word => panic!("{word} does not answer a try_acquire"),
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::Gained { token, deadline } => format!("GAINED {token} until {}", show(*deadline)),
        Event::Renewed { token, deadline } => format!("RENEWED {token} until {}", show(*deadline)),
        Event::Stopping {
            token,
            reason,
            abort_at,
        } => format!("STOPPING {token}: {reason}; abort at {}", show(*abort_at)),
        Event::Aborting { token } => format!("ABORTING {token}"),
        Event::Lost { token, reason } => match reason {
            LossReason::Gone => format!("LOST {token}: gone"),
            reason => format!("LOST {token}: {reason}"),
        },
        Event::WorkEnded { token } => format!("WORK ENDED {token}"),
        Event::Released { token, outcome } => format!("RELEASED {token}: {outcome:?}"),
        Event::Standby { holder } => format!("STANDBY behind {}", holder.token),
        Event::Failed {
            error,
            failures,
            retry_in,
        } => format!(
            "FAILED {failures}: {error}; again in {}",
            seconds(*retry_in)
        ),
        Event::Recovered { failures } => format!("RECOVERED after {failures}"),
        Event::Ended { error: None } => "ENDED".into(),
        Event::Ended { error: Some(error) } => format!("ENDED: {error}"),
        other => format!("{other:?}"),
    }
}

/// The script with what the machine wants written anew.
fn perform(script: &str) -> String {
    let mut out = String::new();
    let mut play = None;
    for line in script.lines().filter(|line| !line.starts_with(' ')) {
        writeln!(out, "{line}").expect("a string takes it");
        let words = Line::new(line);
        if line.starts_with('#') || words.0.is_empty() {
            continue;
        }
        if words.word(0) == "config" {
            play = Some(Play {
                machine: Machine::new(config(&words)),
                asked: BTreeMap::new(),
            });
            continue;
        }
        play.as_mut()
            .expect("a config first")
            .play(&words, &mut out);
    }
    out
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let entries = std::fs::read_dir(folder).expect("the folder of transcripts");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "txt"));
    files.sort();
    files
}

#[test]
fn the_machine_keeps_to_its_transcripts() {
    let rewrite = std::env::var_os("LOCK_TEST_REWRITE").is_some();
    let files = scripts();
    assert!(files.len() > 20, "only {} transcripts found", files.len());
    let mut differing = Vec::new();
    for path in files {
        let before = std::fs::read_to_string(&path).expect("readable");
        let after = perform(&before);
        if before == after {
            continue;
        }
        if rewrite {
            std::fs::write(&path, after).expect("writable");
            continue;
        }
        let wrong = (before.lines().zip(after.lines())).find(|(old, new)| old != new);
        let (old, new) = wrong.unwrap_or(("one is longer", ""));
        let file = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        differing.push(format!("{file}:\n  - {old}\n  + {new}"));
    }
    assert!(
        differing.is_empty(),
        "LOCK_TEST_REWRITE=1 writes them anew\n{}",
        differing.join("\n")
    );
}
