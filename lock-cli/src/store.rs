//! The store that is used: named, or a file in the user's state folder.

use std::env;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkit::{Capabilities, ConnectOptions, Fencing, Provider, Timing, dedicated_runtime};

use crate::args::{Candidate, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Level, Reporter};

/// The URL of the store that is written to; the folder of the default one is made.
fn url_to_write(global: &Global) -> Result<String, Failure> {
    if let Some(url) = &global.store {
        return Ok(url.clone());
    }
    let file = default_file()?;
    let folder = file.parent().unwrap_or(&file);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| {
            Failure::new(
                Exit::Permission,
                format!(
                    "cannot make the folder of the default store, {}: {error}; make it, or say --store URL",
                    folder.display()
                ),
            )
        })?;
    Ok(sqlite_url(&file))
}

/// The file of the default store.
fn default_file() -> Result<PathBuf, Failure> {
    let folder = state_folder().ok_or_else(|| {
        Failure::new(
            Exit::Usage,
            "no store: neither --store nor LOCKCTL_STORE is given, and without XDG_STATE_HOME or HOME \
             there is no state folder; say --store URL",
        )
    })?;
    Ok(folder.join("lockctl/locks.db"))
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
    let url = url_to_write(global)?;
    let provider = connect(&url, true, limit(global, timing)).await?;
    if candidate.require_fencing {
        check_fencing(provider.capabilities())?;
    }
    Ok(provider.with_owner(owner).with_timing(timing))
}

/// Refuses a store whose tokens protect nothing.
fn check_fencing(capabilities: &Capabilities) -> Result<(), Failure> {
    match capabilities.fencing {
        Fencing::None(why) => Err(Failure::new(
            Exit::Usage,
            format!(
                "--require-fencing: the tokens of this {} store may go back or repeat: {why}; use another \
                 store, or leave the flag out",
                capabilities.backend
            ),
        )),
        _ => Ok(()),
    }
}

/// Connects to look, or to tell a holder something; nothing is made. `None` when it is the default store and nobody has used it yet.
pub(crate) async fn open_to_look(global: &Global) -> Result<Option<Provider>, Failure> {
    let url = match &global.store {
        Some(url) => url.clone(),
        None => {
            let file = default_file()?;
            if !file.exists() {
                return Ok(None);
            }
            sqlite_url(&file)
        }
    };
    let timing = onlooker(global)?;
    let provider = connect(&url, false, limit(global, timing)).await?;
    Ok(Some(provider.with_timing(timing)))
}

/// Connects to look on from now on; the default store is made when nobody has used it yet.
pub(crate) async fn open_to_follow(global: &Global) -> Result<Provider, Failure> {
    let timing = onlooker(global)?;
    let url = url_to_write(global)?;
    let provider = connect(&url, true, limit(global, timing)).await?;
    Ok(provider.with_timing(timing))
}

/// The times of somebody who holds nothing: only that of a request counts.
fn onlooker(global: &Global) -> Result<Timing, Failure> {
    let timing = Timing::default();
    let Some(span) = global.request_timeout else {
        return Ok(timing);
    };
    let ttl = span.saturating_mul(8).clamp(timing.ttl(), MAX_TTL);
    Ok(Timing::builder(ttl).request_timeout(span).build()?)
}

const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long connecting may take. It is more than one request, and nothing depends on it yet, so a short
/// lease does not make it shorter.
fn limit(global: &Global, timing: Timing) -> Duration {
    global.request_timeout.unwrap_or_else(|| {
        timing
            .request_timeout()
            .max(Timing::default().request_timeout())
    })
}

/// Connects on the runtime of the driver, where every call to the store is made.
async fn connect(url: &str, prepare: bool, limit: Duration) -> Result<Provider, Failure> {
    if url.starts_with("memory:") {
        return Err(Failure::new(
            Exit::Usage,
            "the store memory: is seen by one process only, so it would keep nobody out; name one that \
             the candidates share, such as sqlite:/var/lib/app/locks.db",
        ));
    }
    let runtime = dedicated_runtime();
    let url = url.to_owned();
    let options = ConnectOptions::new().with_prepare(prepare);
    let connecting = runtime.spawn(async move { options.connect(&url).await });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_protect_nothing_are_refused_where_they_matter() {
        let of = |fencing| check_fencing(&Capabilities::new("paper", fencing));
        assert!(of(Fencing::Checked).is_ok());
        assert!(of(Fencing::Monotone).is_ok());
        let failure = of(Fencing::None("it forgets")).expect_err("refused");
        assert!(failure.is(Exit::Usage));
        assert!(failure.message().contains("paper") && failure.message().contains("it forgets"));
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_path_survives_its_url() {
        let path = Path::new("/a b/50%?/#1/locks.db");
        let url = sqlite_url(path);
        let config = lockkit::sql::SqliteConfig::from_url(&url).expect("valid");
        assert_eq!(config.path, path);
    }
}
