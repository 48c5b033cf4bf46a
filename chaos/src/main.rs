//! `chaos`: runs whole elections under faults against a store, and judges them.

mod mutants;
mod store;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use conformance_tests::Stop;
use conformance_tests::chaos::{LOCATOR, Launch, NAME, Plan, Report, Scenario, candidate, run};
use lock_core::Nonce;

/// Runs elections under faults against a store and says whether every promise was kept.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit: 0 every invariant held, 1 one is broken (or a mutant was not caught), 2 it could not run, 3 this machine has no such server."
)]
struct Args {
    /// A URL, or the word for a store that is started for the run: sqlite, postgres, mariadb, redis,
    /// zookeeper
    #[arg(long, default_value = "sqlite")]
    store: String,

    /// What goes wrong; may be given several times; by default each that the store can show
    #[arg(long = "scenario", value_parser = scenario)]
    scenarios: Vec<Scenario>,

    /// Decides when and for how long; by default a new one, which is printed
    #[arg(long)]
    seed: Option<u64>,

    /// How long each scenario goes on
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,

    /// Candidates at once
    #[arg(long, default_value_t = 3)]
    candidates: u32,

    /// The ttl of the leases, in milliseconds
    #[arg(long, default_value_t = 1500)]
    ttl_ms: u64,

    /// A folder for the histories and the reports; by default they are removed
    #[arg(long)]
    out: Option<PathBuf>,

    /// Who takes part: the library itself, or `lockctl run`, whose command is then judged
    #[arg(long, value_enum, default_value_t = Cast::Library)]
    cast: Cast,

    /// The program of --cast lockctl; by default the one beside this program
    #[arg(long)]
    lockctl: Option<PathBuf>,

    /// Plants this fault in the candidates' program; with --mutants, only this one is tried
    #[arg(long)]
    mutant: Option<String>,

    /// Plants each fault it knows, in the scenario that is to show it, and prints which invariants caught it
    #[arg(long, conflicts_with = "scenarios")]
    mutants: bool,

    /// Prints the names of the scenarios, or with --mutants those of the faults, and runs nothing
    #[arg(long)]
    list: bool,
}

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Cast {
    Library,
    Lockctl,
}

fn scenario(text: &str) -> Result<Scenario, String> {
    text.parse::<Scenario>().map_err(|stop| match stop {
        Stop::Failed(why) | Stop::NotApplicable(why) => why,
    })
}

fn main() -> ExitCode {
    match candidate(store::open, &mutants::All) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(stop) => {
            eprintln!("chaos: the candidate could not go on: {stop}");
            return ExitCode::from(2);
        }
    }
    let args = Args::parse();
    match act(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(stop @ Stop::NotApplicable(_)) => {
            eprintln!("chaos: {stop}");
            ExitCode::from(3)
        }
        Err(stop) => {
            eprintln!("chaos: {stop}");
            ExitCode::from(2)
        }
    }
}

/// Whether all was as it should be.
fn act(args: &Args) -> Result<bool, Stop> {
    if args.list {
        let names: Vec<&str> = if args.mutants {
            mutants::LIST.iter().map(|mutant| mutant.name).collect()
        } else {
            let all = scenarios(args);
            all.into_iter().map(Scenario::name).collect()
        };
        println!("{}", names.join("\n"));
        return Ok(true);
    }
    let seed = args.seed.unwrap_or_else(new_seed);
    if args.mutants {
        return try_mutants(args, seed);
    }
    let mut well = true;
    for scenario in scenarios(args) {
        let report = play(args, scenario, seed, args.mutant.clone())?;
        print!("{report}");
        well &= report.violations().next().is_none();
    }
    Ok(well)
}

/// Those that were asked for, or all that the store can show.
fn scenarios(args: &Args) -> Vec<Scenario> {
    if !args.scenarios.is_empty() {
        return args.scenarios.clone();
    }
    let server = store::has_server(&args.store);
    let all = Scenario::ALL.into_iter();
    let lockctl = args.cast == Cast::Lockctl;
    all.filter(|one| server || !(one.needs_server() || lockctl && one.disturbs_links()))
        .collect()
}

/// How a candidate is started.
fn launch(args: &Args) -> Result<Launch, Stop> {
    if args.cast == Cast::Library {
        return Launch::this_program([]);
    }
    let here = std::env::current_exe().map_err(Stop::failed)?;
    let lockctl = args.lockctl.clone();
    let lockctl = lockctl.unwrap_or_else(|| here.with_file_name("lockctl"));
    if !lockctl.is_file() {
        return Err(Stop::failed(format!(
            "there is no {}: cargo build -p lock-cli, or say --lockctl FILE",
            lockctl.display()
        )));
    }
    let words = [
        "--pdeathsig",
        "KILL",
        &lockctl.display().to_string(),
        "run",
        "--store",
        LOCATOR,
        "--ttl",
        &format!("{}ms", args.ttl_ms),
        NAME,
        "--",
        &here.display().to_string(),
    ]
    .map(str::to_owned);
    Ok(Launch::command("setpriv", words, "LOCKCTL_TOKEN"))
}

/// Seeds with which a fault is tried until it shows.
const TRIES: u64 = 3;

fn try_mutants(args: &Args, seed: u64) -> Result<bool, Stop> {
    println!("| fault in the program | scenario | caught by | runs |\n|---|---|---|---|");
    let mut all = true;
    let chosen = |name: &str| args.mutant.as_ref().is_none_or(|only| only == name);
    for mutant in mutants::LIST.iter().filter(|one| chosen(one.name)) {
        let (mut well, mut told, mut tries) = (false, String::new(), 0);
        // Which candidate leads when a fault strikes is a race: a fault may need another seed to show.
        while !well && tries < TRIES {
            let report = play(
                args,
                mutant.scenario,
                seed.wrapping_add(tries),
                Some(mutant.name.to_owned()),
            )?;
            let caught: Vec<&str> = report
                .violations()
                .map(|one| one.invariant.as_str())
                .collect();
            (well, told) = match mutant.caught_by {
                Some(invariant) => (caught.contains(&invariant), caught.join(", ")),
                None if caught.is_empty() => (true, "nothing, as it should be".to_owned()),
                None => {
                    print!("{report}");
                    (false, caught.join(", "))
                }
            };
            tries += 1;
            if mutant.caught_by.is_none() {
                break;
            }
        }
        all &= well;
        let wrong = if well { "" } else { " WRONG" };
        println!(
            "| {} | `{}` | {told}{wrong} | {tries} |",
            mutant.what, mutant.scenario
        );
    }
    Ok(all)
}

fn play(
    args: &Args,
    scenario: Scenario,
    seed: u64,
    mutant: Option<String>,
) -> Result<Report, Stop> {
    let ttl = Duration::from_millis(args.ttl_ms);
    let length = Duration::try_from_secs_f64(args.seconds)
        .map_err(|error| Stop::failed(format!("--seconds {}: {error}", args.seconds)))?;
    let plan = Plan::new(scenario, seed, length, ttl)?
        .with_candidates(args.candidates)
        .with_mutant(mutant);
    let place = store::Place::named(&args.store, scenario, ttl)?;
    let stage = place.stage(launch(args)?);
    let Some(out) = &args.out else {
        let folder = tempfile::tempdir().map_err(Stop::failed)?;
        return run(&stage, &plan, folder.path());
    };
    let name = format!("{}-{scenario}-{seed}", place.name());
    let folder = out.join(&name);
    std::fs::create_dir_all(out).map_err(Stop::failed)?;
    std::fs::create_dir(&folder)
        .map_err(|error| Stop::failed(format!("cannot make {}: {error}", folder.display())))?;
    run(&stage, &plan, &folder)
}

fn new_seed() -> u64 {
    u64::try_from(Nonce::random().as_u128() >> 96).unwrap_or(0)
}
