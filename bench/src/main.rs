//! Load generator for Queen: runs scenarios against brokers, verifies their results, measures and compares.

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

// The broker's allocator, so that a client and its broker are compared fairly.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Enough for the 20,000 parked connections of `growth`.
const OPEN_FILES: u64 = 65_536;

#[derive(Parser)]
#[command(name = "queen-bench", about = "Load generator for Queen", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run scenarios and print tables. Fails on any violation and any unexpected response.
    Run(RunOptions),
    /// Run scenarios on our broker and another one in turn, and check our goals.
    Compare(CompareOptions),
    /// Run scenarios as direct calls of the broker's SQL and through our broker, and show the remaining share.
    Ceiling(CeilingOptions),
    /// Measure the cost of an operation as partitions, groups, backlog, parked pops or payloads grow.
    Growth(GrowthOptions),
    /// Run end-to-end with and without a transaction that is held open the whole time.
    Pinned(PinnedOptions),
    /// Query the admin API of a large queue under load, and measure the cost of its statistics.
    Admin(AdminOptions),
    /// Measure the CPU cost per message of the Rust client compared with the broker.
    Client(ClientOptions),
    /// Keep a broker under load for a long time, with retention, and check that nothing grows or slows down.
    Soak(SoakOptions),
    /// Inject faults around two brokers under load, and verify all guarantees.
    Chaos(ChaosOptions),
}

fn main() -> Result<ExitCode> {
    let action = Cli::parse().command;
    raise_open_files_limit();
    let runtime = action.runtime()?;
    let clean = runtime.block_on(async {
        // Our brokers and clusters are stopped by being dropped.
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

/// The usual limit of 1,024 files is too low for the parked scenario. Brokers started here inherit it.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Only privileged users may exceed the maximum.
    let beyond = limit.maximum.map(|maximum| maximum.max(OPEN_FILES));
    for maximum in [beyond, limit.maximum] {
        if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
            return;
        }
    }
    eprintln!("cannot raise the limit of open files from {:?}", limit.current);
}
