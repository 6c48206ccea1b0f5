//! Load generator for Queen: runs scenarios against brokers, checks what they promise, measures and compares.

mod checker;
mod client;
mod commands;
mod consumer;
mod direct;
mod environment;
#[cfg(test)]
mod fake;
mod harness;
mod http;
mod measure;
mod options;
mod pacer;
mod report;
mod scenarios;
mod series;
mod setup;
mod wire;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{
    AdminOptions, CeilingOptions, ChaosOptions, ClientOptions, CompareOptions, GrowthOptions, Options,
    PinnedOptions, RunOptions, SoakOptions,
};

// The broker's own, so that a client and its broker are compared with the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Room for the 20,000 parked connections of `growth`.
const OPEN_FILES: u64 = 65_536;

#[derive(Parser)]
#[command(name = "queen-bench", about = "Load generator for Queen", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Runs scenarios and prints tables. Fails on any broken promise and any unexpected answer.
    Run(RunOptions),
    /// Runs scenarios on our broker and another in turn, and holds ours to its goals.
    Compare(CompareOptions),
    /// Runs scenarios as bare calls of the broker's own SQL and through our broker, and tells which part is left.
    Ceiling(CeilingOptions),
    /// Tells what an operation costs as partitions, groups, backlog, parked pops or payloads grow.
    Growth(GrowthOptions),
    /// Runs end-to-end without and beside a transaction that is held open all the time.
    Pinned(PinnedOptions),
    /// Asks the admin plane of a large queue under load, and tells what its statistics cost.
    Admin(AdminOptions),
    /// Tells what a message costs the Rust client, beside what it costs the broker.
    Client(ClientOptions),
    /// Keeps a broker busy for long, with retention, and tells whether anything grows or slows down.
    Soak(SoakOptions),
    /// Breaks everything around two brokers under load, and accounts for every promise they made.
    Chaos(ChaosOptions),
}

fn main() -> Result<ExitCode> {
    let action = Cli::parse().command;
    raise_open_files_limit();
    let runtime = action.runtime()?;
    let clean = runtime.block_on(async {
        // Brokers and clusters of ours are stopped by being dropped.
        tokio::select! {
            clean = action.run() => clean,
            signal = interrupted() => bail!("interrupted by {}", signal?),
        }
    })?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn interrupted() -> Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.map(|()| "Ctrl-C").map_err(Into::into),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}

impl Action {
    fn runtime(&self) -> std::io::Result<Runtime> {
        match self {
            Action::Run(run) => run.options.runtime(),
            Action::Compare(compare) => compare.options.runtime(),
            Action::Ceiling(ceiling) => ceiling.options.runtime(),
            Action::Growth(_)
            | Action::Pinned(_)
            | Action::Admin(_)
            | Action::Client(_)
            | Action::Soak(_)
            | Action::Chaos(_) => Options::standard().runtime(),
        }
    }

    async fn run(self) -> Result<bool> {
        match self {
            Action::Run(options) => Box::pin(commands::run::run(options)).await,
            Action::Compare(options) => Box::pin(commands::compare::run(options)).await,
            Action::Ceiling(options) => Box::pin(commands::ceiling::run(options)).await,
            Action::Growth(options) => Box::pin(commands::growth::run(options)).await,
            Action::Pinned(options) => Box::pin(commands::pinned::run(options)).await,
            Action::Admin(options) => Box::pin(commands::admin::run(options)).await,
            Action::Client(options) => Box::pin(commands::client::run(options)).await,
            Action::Soak(options) => Box::pin(commands::soak::run(options)).await,
            Action::Chaos(options) => Box::pin(commands::chaos::run(options)).await,
        }
    }
}

/// The usual 1,024 files are fewer than the parked scenario's connections. A broker started here inherits it.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Only some may go beyond the maximum.
    let beyond = limit.maximum.map(|maximum| maximum.max(OPEN_FILES));
    for maximum in [beyond, limit.maximum] {
        if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
            return;
        }
    }
    eprintln!("cannot raise the limit of open files from {:?}", limit.current);
}
