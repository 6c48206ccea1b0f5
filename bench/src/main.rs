//! Load generator for Queen: runs scenarios against brokers, checks what they promise, measures and compares.

mod checker;
mod client;
mod commands;
mod consumer;
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
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{CompareOptions, Options, RunOptions};

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
}

fn main() -> Result<ExitCode> {
    let action = Cli::parse().command;
    raise_open_files_limit();
    let runtime = action.options().runtime()?;
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
    fn options(&self) -> &Options {
        match self {
            Action::Run(run) => &run.options,
            Action::Compare(compare) => &compare.options,
        }
    }

    async fn run(self) -> Result<bool> {
        match self {
            Action::Run(options) => Box::pin(commands::run::run(options)).await,
            Action::Compare(options) => Box::pin(commands::compare::run(options)).await,
        }
    }
}

/// The usual 1,024 files are fewer than the parked scenario's connections. A broker started here inherits it.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        eprintln!("cannot raise the limit of open files from {:?}", limit.current);
    }
}
