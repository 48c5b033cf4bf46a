//! What is wrong with the arguments, in one line that says how to mend it.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output::one_line;

/// The parser's error for people. `arguments` are those that it read.
pub(crate) fn explain(error: &clap::Error, arguments: impl Iterator<Item = OsString>) -> String {
    let arguments: Vec<_> = arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let verb = arguments
        .iter()
        .find(|argument| matches!(argument.as_str(), "exec" | "run"));
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::StyledStr(text)) => Some(text.to_string()),
        _ => None,
    };
    let what = match (error.kind(), text(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(names)) => names.join(" and "),
                _ => "an argument".into(),
            };
            format!("missing: {missing}")
        }
        (ErrorKind::UnknownArgument, Some(argument)) => {
            let before = arguments
                .iter()
                .position(|a| *a == argument)
                .and_then(|at| arguments.get(at.checked_sub(1)?));
            match (before.map(String::as_str), verb) {
                (Some("--wait"), _) => format!("write --wait={argument}, with an equals sign"),
                (_, Some(_)) if !argument.starts_with('-') => {
                    format!("unexpected argument {argument:?}; put `--` before the command")
                }
                _ => general(error),
            }
        }
        _ => general(error),
    };
    let usage = text(ContextKind::Usage).map_or_else(
        || "see `lockctl --help`".to_owned(),
        |usage| one_line(&usage).replace("Usage: ", "usage: "),
    );
    format!("{what}; {usage}")
}

/// The parser's own words, without what it adds below them.
fn general(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let what: Vec<_> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        // An option that is not known was not meant as a value.
        .filter(|line| !line.contains("tip: to pass '"))
        .map(|line| line.trim_start_matches("error: "))
        .collect();
    one_line(&what.join("\n"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    fn said(arguments: &[&str]) -> String {
        let all = || ["lockctl"].iter().chain(arguments).map(OsString::from);
        let error = Cli::try_parse_from(all()).expect_err("it is refused");
        explain(&error, all())
    }

    #[test]
    fn common_slips_are_told_how_to_mend_them() {
        for (arguments, must_say) in [
            (
                &["exec"][..],
                "missing: <NAME> and <COMMAND>...; usage: lockctl exec",
            ),
            (&["exec", "job", "ls", "-l"], "put `--` before the command"),
            (
                &["exec", "job", "--wait", "5s", "--", "ls"],
                "write --wait=5s",
            ),
            (&["status", "job", "other"], "'other'"),
            (&["stauts", "job"], "'stauts'"),
            (
                &["exec", "--frob", "job", "--", "ls"],
                "'--frob' found; usage",
            ),
            (
                &["exec", "job", "--no-wiat", "--", "ls"],
                "'--no-wait'; usage",
            ),
        ] {
            let said = said(arguments);
            assert!(said.contains(must_say), "{said}");
            assert_eq!(said.lines().count(), 1);
        }
    }
}
