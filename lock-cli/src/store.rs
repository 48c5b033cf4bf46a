//! The store that is used: named, or a file in the user's state folder.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit::{Fencing, Provider, Timing, dedicated_runtime};

use crate::args::{Candidate, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Level, Reporter};
use crate::redact;

/// What a command wants of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To write; what is missing is made.
    Write,
    /// To read; nothing is made.
    Read,
}

/// The URL of the store; for the default one that is written to, its folder is made.
pub(crate) fn url(global: &Global, access: Access) -> Result<String, Failure> {
    if let Some(url) = &global.store {
        redact::remember(url);
        return Ok(url.clone());
    }
    let folder = state_folder().ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "no store: neither --store nor LOCKCTL_STORE is given, and without XDG_STATE_HOME or HOME \
             there is no state folder; say --store URL",
        )
    })?;
    let folder = folder.join("lockctl");
    if access == Access::Write {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(|error| {
                Failure::new(
                    Exit::Permission,
                    format!(
                        "cannot make the folder of the default store, {}: {error}; make it, or say --store URL",
                        folder.display()
                    ),
                )
            })?;
    }
    Ok(sqlite_url(&folder.join("locks.db")))
}

/// The URL of an SQLite file.
pub(crate) fn sqlite_url(path: &Path) -> String {
    let mut url = String::from("sqlite:");
    for c in path.to_string_lossy().chars() {
        match c {
            '%' => url.push_str("%25"),
            '?' => url.push_str("%3F"),
            '#' => url.push_str("%23"),
            c => url.push(c),
        }
    }
    url
}

/// `$XDG_STATE_HOME`, else `~/.local/state`. A relative path there is to be ignored, says its standard.
fn state_folder() -> Option<PathBuf> {
    let absolute = |name| {
        env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))
}

/// Connects as a candidate.
pub(crate) async fn open_as(
    global: &Global,
    candidate: &Candidate,
    timing: Timing,
) -> Result<Provider, Failure> {
    let owner = candidate.owner()?;
    let url = url(global, Access::Write)?;
    let provider = connect(&url, Access::Write, timing.request_timeout()).await?;
    if candidate.require_fencing
        && let Fencing::None(why) = provider.capabilities().fencing
    {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "--require-fencing: the tokens of this {} store are not worth anything: {why}",
                provider.capabilities().backend
            ),
        ));
    }
    Ok(provider.with_owner(owner).with_timing(timing))
}

/// Connects to look, or to tell the holder something.
pub(crate) async fn open(global: &Global, access: Access) -> Result<Provider, Failure> {
    let mut timing = Timing::default();
    if let Some(span) = global.request_timeout {
        // An onlooker has no lease, so only this time counts.
        timing = Timing::builder(span.saturating_mul(8).clamp(timing.ttl(), MAX_TTL))
            .request_timeout(span)
            .build()?;
    }
    let url = url(global, access)?;
    let provider = connect(&url, access, timing.request_timeout()).await?;
    Ok(provider.with_timing(timing))
}

const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Connects on the runtime of the driver, where every call to the store is made.
async fn connect(url: &str, access: Access, limit: Duration) -> Result<Provider, Failure> {
    let runtime = dedicated_runtime();
    let url = url.to_owned();
    let connecting = runtime.spawn(async move {
        match access {
            Access::Write => lockkit::connect(&url).await,
            Access::Read => lockkit::connect_to_read(&url).await,
        }
    });
    match tokio::time::timeout(limit, connecting).await {
        Ok(Ok(provider)) => Ok(provider?.on_runtime(runtime)),
        Ok(Err(error)) => Err(Failure::new(
            Exit::Internal,
            format!("connecting to the store: {error}"),
        )),
        Err(_) => Err(Failure::new(
            Exit::Unavailable,
            format!(
                "the store did not answer within {limit:?}; check that the store of --store or \
                 LOCKCTL_STORE is there and can be reached"
            ),
        )),
    }
}

/// Connects as a candidate, again and again while the store cannot be reached and `patient` says so.
pub(crate) async fn open_patiently(
    global: &Global,
    candidate: &Candidate,
    timing: Timing,
    report: &Reporter,
    patient: impl Fn() -> bool,
) -> Result<Provider, Failure> {
    let mut told = false;
    loop {
        let failure = match open_as(global, candidate, timing).await {
            Ok(provider) => return Ok(provider),
            Err(failure) => failure,
        };
        if !failure.is(Exit::Unavailable) || !patient() {
            return Err(failure);
        }
        if !std::mem::replace(&mut told, true) {
            report.event(
                Level::Warn,
                "unavailable",
                &[("why", failure.message().into())],
                &format!("{}; trying again", failure.message()),
            );
        }
        tokio::time::sleep(timing.poll_every().min(Duration::from_secs(1))).await;
    }
}
