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
mod library_log;
mod look;
mod output;
mod program;
mod redact;
mod run;
mod span;
mod state;
mod store;
mod usage;
mod watch;

use std::ffi::OsStr;
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
    let format = cli.global.format;
    match start(cli) {
        Ok(code) => code,
        Err(failure) => {
            output::fail(format, &failure);
            failure.exit_code()
        }
    }
}

/// Whatever looks like a URL is known before anything can be said about it.
fn remember_secrets() {
    if let Some(url) = std::env::var_os(args::STORE_VARIABLE) {
        redact::remember(&url.to_string_lossy());
    }
    if let Some(secret) = std::env::var_os("PGPASSWORD") {
        redact::remember_secret(&secret.to_string_lossy());
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
    complain(&usage::explain(error, std::env::args_os()));
    Exit::Usage.into()
}

fn start(cli: Cli) -> Result<ExitCode, Failure> {
    library_log::show_all(&cli.global);
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
