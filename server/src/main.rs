//! The program `queen`: parses the command line, starts logging and runs the command. Everything else is in the library.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "panics if nobody reads it")]

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use queen_cli::{Exit, completions};
use queen_server::cli::{Action, Cli};
use queen_server::config::{Settings, report};
use queen_server::{doctor, key, logging, migrate, openapi, psql, serve};

/// A request makes about sixty small allocations, many of them freed on another thread. The system's allocator spent a
/// sixth of the broker's time on them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let exit = run().unwrap_or_else(|error| {
        if let Some(text) = queen_cli::told(&error) {
            _ = writeln!(io::stderr(), "queen: {text}");
        }
        Exit::of(&error)
    });
    ExitCode::from(exit.code())
}

fn run() -> Result<Exit> {
    let cli = Cli::parse_from(std::env::args_os()).unwrap_or_else(|error| error.exit());
    match cli.action {
        Action::Serve => serve_with_logs(&cli.settings),
        Action::Psql { arguments } => psql::open(&cli.settings, &arguments),
        Action::Migrate => migrate::migrate(&cli.settings),
        Action::Doctor { json } => doctor::examine(&cli.settings, json),
        Action::Key { action } => key::run(&cli.settings, &action),
        Action::Config { markdown: true } => print(report::markdown(&Cli::definition()).as_bytes()),
        Action::Config { markdown: false } => print(report::in_force(&cli.settings).as_bytes()),
        Action::Client(action) => return queen_cli::run(action, &cli.connect),
        Action::Openapi => print(&openapi::DOCUMENT),
        Action::Completions { shell } => print(&completions::script(shell, Cli::command())),
        Action::Version => print(concat!("queen ", env!("CARGO_PKG_VERSION"), "\n").as_bytes()),
        Action::ExitCodes => print(format!("{}\n", Exit::explained()).as_bytes()),
    }?;
    Ok(Exit::Done)
}

fn serve_with_logs(settings: &Settings) -> Result<()> {
    logging::start(settings)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let half = || std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2));
    runtime.worker_threads(match settings.workers {
        0 => half(),
        workers => usize::from(workers),
    });
    runtime.enable_all().build().context("cannot start the worker threads")?.block_on(serve::serve(settings))
}

fn print(text: &[u8]) -> Result<()> {
    io::stdout().write_all(text).context("cannot write")
}
