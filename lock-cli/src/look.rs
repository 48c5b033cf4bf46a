//! What only looks, or only tells the holder something: `status`, `list`, `explain`, `step-down`,
//! `revoke`.

use std::process::ExitCode;

use lockkit::{LeaseState, LockName, LockProvider as _, Observation};
use serde_json::{Value, json};

use crate::args::{self, Format, Global};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::print;
use crate::{span, state, store};

/// Runs `status`.
pub(crate) async fn status(global: &Global, args: args::Name) -> Result<ExitCode, Failure> {
    let name = LockName::new(&args.name)?;
    let seen = match store::open_to_look(global).await? {
        Some(provider) => provider.observe(name.as_str()).await?,
        None => Observation::new(name, LeaseState::Absent),
    };
    match global.format {
        Format::Text => print(&state::describe(&seen.state))?,
        Format::Json => print(&Value::Object(state::json(&seen)).to_string())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `list`.
pub(crate) async fn list(global: &Global, args: args::List) -> Result<ExitCode, Failure> {
    let all = match store::open_to_look(global).await? {
        Some(provider) => provider.list(&args.prefix).await?,
        None => Vec::new(),
    };
    let width = all
        .iter()
        .map(|seen| seen.name.as_str().chars().count())
        .max()
        .unwrap_or(0);
    for seen in &all {
        match global.format {
            Format::Text => print(&format!(
                "{:width$}  {}",
                seen.name.as_str(),
                state::describe(&seen.state)
            ))?,
            Format::Json => print(&Value::Object(state::json(seen)).to_string())?,
        }
    }
    if all.is_empty() && global.format == Format::Text && !global.quiet {
        crate::output::complain("no names yet; `lockctl exec NAME -- COMMAND` makes one");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `explain`.
pub(crate) fn explain(global: &Global, args: &args::Explain) -> Result<ExitCode, Failure> {
    // From the environment it may stand there for other commands; on the command line it was meant.
    let named = std::env::args_os().any(|argument| {
        let argument = argument.to_string_lossy();
        argument == "--store" || argument.starts_with("--store=")
    });
    if named {
        return Err(Failure::new(
            Exit::Usage,
            "explain asks no store: it says what the times mean; leave --store out",
        ));
    }
    let timing = args.times.checked(global.request_timeout)?;
    let explained = timing.explain(args.candidates);
    match global.format {
        Format::Text => print(&explained.to_string())?,
        Format::Json => {
            let ms =
                |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
            let object = json!({
                "ttl_ms": ms(timing.ttl()),
                "renew_every_ms": ms(timing.renew_every()),
                "request_timeout_ms": ms(timing.request_timeout()),
                "drain_ms": ms(timing.drain()),
                "margin_ms": ms(timing.margin()),
                "drift_ppm": timing.drift_ppm(),
                "candidates": explained.candidates,
                "crash_takeover_ms": ms(explained.crash_takeover),
                "polled_takeover_ms": ms(explained.polled_takeover),
                "attempts_before_loss": explained.attempts_before_loss,
                "longest_pause_ms": ms(explained.longest_pause),
                "leader_requests_per_hour": explained.leader_requests_per_hour,
                "standby_requests_per_hour": explained.standby_requests_per_hour,
            });
            print(&object.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `step-down`.
pub(crate) async fn step_down(global: &Global, args: args::StepDown) -> Result<ExitCode, Failure> {
    let name = LockName::new(&args.name)?;
    let asked = match store::open_to_look(global).await? {
        Some(provider) => provider.step_down(name.as_str(), args.hold_off).await?,
        None => false,
    };
    match global.format {
        Format::Json => print(&json!({"name": name.as_str(), "asked": asked}).to_string())?,
        Format::Text if asked => print(&format!(
            "asked the holder of {name:?}; it stops at its next renewal and keeps away for {}",
            span::show(args.hold_off)
        ))?,
        Format::Text => print(&format!("nobody holds {name:?}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `revoke`.
pub(crate) async fn revoke(global: &Global, args: args::Revoke) -> Result<ExitCode, Failure> {
    let name = LockName::new(&args.name)?;
    let token = match store::open_to_look(global).await? {
        Some(provider) => provider.revoke(name.as_str(), &args.reason).await?,
        None => None,
    };
    match (global.format, token) {
        (Format::Json, token) => {
            let token = token.map(lockkit::Token::get);
            print(
                &json!({"name": name.as_str(), "revoked": token.is_some(), "token": token})
                    .to_string(),
            )?;
        }
        (Format::Text, Some(token)) => print(&format!(
            "revoked {name:?}: tokens below {token} are stale; its holder learns of it at its next renewal"
        ))?,
        (Format::Text, None) => print(&format!("nobody holds {name:?}"))?,
    }
    Ok(ExitCode::SUCCESS)
}
