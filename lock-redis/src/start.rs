//! What is looked at before the first request: settings of the server that make leases less than they seem. One
//! warning each; only what makes leases impossible is an error.

use std::time::Duration;

use lock_core::{Error, ErrorKind, Result};
use redis::Value;

use crate::connection::Slot;
use crate::{error, scripts};

/// The value of `field` in an answer of `INFO`.
fn field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(str::trim)
}

fn text(info: &Value) -> Option<String> {
    match info {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

/// Which run of which server it is, and for how long it is up.
pub(crate) fn identity(info: &Value) -> Result<(String, Duration)> {
    let info = text(info).unwrap_or_default();
    let up = field(&info, "uptime_in_seconds").and_then(|up| up.parse().ok());
    let (Some(run), Some(up)) = (field(&info, "run_id"), up) else {
        return Err(error::unexpected("no run_id or uptime_in_seconds in INFO"));
    };
    // Begin and now are both cut to whole seconds.
    let up = Duration::from_secs(up).saturating_sub(Duration::from_secs(1));
    Ok((run.to_owned(), up))
}

/// Says what is unsafe, and refuses what is impossible. `keys` are those of a name that nobody uses.
pub(crate) async fn check(slot: &Slot, plain: Option<&str>, keys: &[String]) -> Result<()> {
    if let Some(place) = plain {
        tracing::warn!("the connection to {place} is not encrypted");
    }
    let info = match slot.run(&redis::cmd("INFO")).await {
        Ok(info) => text(&info).unwrap_or_default(),
        // A user without the right to ask may still lock; only the server's state stays unknown.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            // Whether leases are possible shows the right to run a script on the keys of this prefix.
            slot.script(&scripts::READ, keys, &[]).await?;
            tracing::warn!(
                "the user may not ask INFO, so eviction, role and persistence of the server are unknown; grant +info"
            );
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let version = field(&info, "redis_version").unwrap_or_default();
    let major: u32 = version
        .split('.')
        .next()
        .unwrap_or_default()
        .parse()
        .unwrap_or(0);
    if major < 5 {
        return Err(Error::new(
            ErrorKind::Schema,
            format!("the server is Redis {version}; leases need version 5 or later, or Valkey"),
        )
        .with_indeterminate(false));
    }
    if field(&info, "role") == Some("slave") {
        return Err(Error::new(
            ErrorKind::Unavailable,
            "the server is a replica and takes no writes; name the master",
        )
        .with_indeterminate(false));
    }
    for warning in warnings(&info) {
        tracing::warn!("{warning}");
    }
    slot.script(&scripts::READ, keys, &[]).await.map(drop)
}

fn warnings(info: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    match field(info, "maxmemory_policy") {
        None | Some("noeviction") => {}
        // Every lease has an expiry.
        Some(policy) => warnings.push(format!(
            "maxmemory-policy is {policy}: when memory is short the server deletes leases that are held; set it to noeviction"
        )),
    }
    if field(info, "aof_enabled") == Some("0") {
        warnings.push(
            "appendonly is off: after a crash the server has forgotten leases that are held; set it to yes, or fence every write"
                .to_owned(),
        );
    }
    if field(info, "connected_slaves").is_some_and(|n| n != "0") {
        warnings.push(
            "the server has replicas: a failover can lose a lease that was just granted; fence every write"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unsafe_setting_is_one_line() {
        let safe =
            "# Memory\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";
        assert_eq!(warnings(safe), Vec::<String>::new());
        let bad = "maxmemory_policy:volatile-lru\r\naof_enabled:0\r\nconnected_slaves:2\r\n";
        let bad = warnings(bad);
        assert_eq!(bad.len(), 3);
        assert!(bad[0].contains("volatile-lru") && bad.iter().all(|w| !w.contains('\n')));
    }
}
