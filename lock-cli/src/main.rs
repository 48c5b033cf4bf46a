//! `lockctl`: run any command under a distributed lock or a leader election.

#[cfg(not(unix))]
compile_error!(
    "lockctl supervises processes the Unix way; it is not written for other systems yet"
);

mod args;
mod child;
mod demo;
mod events;
mod exec;
mod exit;
mod failure;
mod look;
mod output;
mod program;
mod redact;
mod run;
mod span;
mod state;
mod store;
mod watch;

use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{complain, one_line};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| {
        complain(&format!("internal error: {}", one_line(&panic.to_string())));
        // Ending the process ends the keeper's hold, which kills the command.
        std::process::exit(Exit::Internal as i32);
    }));
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_deref().and_then(OsStr::to_str) {
        Some(child::KEEPER) => return child::keeper::main(arguments),
        Some(child::SHIM) => return child::shim::main(arguments),
        Some(demo::WORKER) => return demo::worker::main(),
        _ => {}
    }
    remember_secrets();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    match start(cli) {
        Ok(code) => code,
        Err(failure) => {
            if !failure.message().is_empty() {
                complain(failure.message());
            }
            failure.code()
        }
    }
}

/// Whatever looks like a URL is known before anything can be said about it.
fn remember_secrets() {
    if let Some(url) = std::env::var_os(args::STORE_VARIABLE) {
        redact::remember(&url.to_string_lossy());
    }
    for argument in std::env::args_os().take_while(|argument| argument != "--") {
        redact::remember(&argument.to_string_lossy());
    }
}

/// Shows help, or says in one line what is wrong with the arguments.
fn refuse(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        let text = error.render().to_string();
        return match output::print(text.trim_end()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => Exit::Internal.into(),
        };
    }
    let text = error.render().to_string();
    let what: Vec<_> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .map(|line| line.trim_start_matches("error: "))
        .collect();
    complain(&format!(
        "{}; see `lockctl --help`",
        one_line(&what.join("\n"))
    ));
    Exit::Usage.into()
}

fn start(cli: Cli) -> Result<ExitCode, Failure> {
    log(cli.global.verbose);
    let Some(command) = cli.command else {
        output::print(Cli::command().render_help().to_string().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    // One thread: the kernel ends the keeper's child with the *thread* that started it. The store is
    // served by the driver's own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let global = &cli.global;
    let ended = runtime.block_on(async {
        match command {
            Command::Demo(args) => demo::main(global, args).await,
            Command::Exec(args) => exec::main(global, args).await,
            Command::Run(args) => run::main(global, args).await,
            Command::Status(args) => look::status(global, args).await,
            Command::List(args) => look::list(global, args).await,
            Command::Watch(args) => watch::main(global, args).await,
            Command::Explain(args) => look::explain(global, &args),
            Command::StepDown(args) => look::step_down(global, args).await,
            Command::Revoke(args) => look::revoke(global, args).await,
        }
    });
    // What still runs on it is not worth waiting for.
    runtime.shutdown_background();
    ended
}

/// The library's log, on standard error and without secrets, when asked for twice.
fn log(verbose: u8) {
    if verbose < 2 {
        return;
    }
    let level = if verbose == 2 {
        tracing::Level::DEBUG
    } else {
        tracing::Level::TRACE
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(|| Redacting(Vec::new()))
        .init();
}

/// Collects one record and writes it without secrets.
struct Redacting(Vec<u8>);

impl io::Write for Redacting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Redacting {
    fn drop(&mut self) {
        let text = redact::redact(&String::from_utf8_lossy(&self.0));
        // With standard error closed there is nobody to tell.
        let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
    }
}
