//! Load generator for Queen: runs scenarios against a broker, checks what it promises, prints a table.

mod broker;
mod checker;
mod client;
mod consumer;
mod cpu;
#[cfg(test)]
mod fake;
mod harness;
mod options;
mod report;
mod scenarios;
mod setup;
mod wire;

use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use clap::{Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::broker::Broker;
use crate::client::Target;
use crate::cpu::CpuWatch;
use crate::options::Options;
use crate::report::{Report, summarise, table};
use crate::scenarios::{Outcome, Scenario};
use crate::setup::Setup;

#[derive(Parser)]
#[command(name = "queen-bench", about = "Load generator for Queen", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Runs scenarios and prints a table. Fails on any broken promise and any unexpected answer.
    Run(Options),
}

fn main() -> Result<ExitCode> {
    let Action::Run(options) = Cli::parse().command;
    raise_open_files_limit();
    let mut runtime = match options.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if options.threads > 1 {
        runtime.worker_threads(options.threads.into());
    }
    let clean = runtime.enable_all().build()?.block_on(bench(options))?;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Answers whether all went well. Stops a broker of its own whatever happens.
async fn bench(options: Options) -> Result<bool> {
    let selected = scenarios::select(&options.scenario)?;
    let broker = match &options.queen {
        Some(queen) => Some(Broker::start(queen).await?),
        None => None,
    };
    let url = broker.as_ref().map_or(&options.url, |broker| &broker.url);
    let watch = CpuWatch {
        broker_pid: broker.as_ref().map(|broker| broker.pid).or(options.broker_pid),
        postgres_pid: options.postgres_pid,
    };
    let setup =
        Setup { target: Target::from_url(url)?, options: options.clone(), watch, epoch: Instant::now() };
    let outcome = tokio::select! {
        outcome = run_all(&setup, &selected) => Ok(outcome),
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
    };
    let stopped = match broker {
        Some(broker) => broker.stop().await,
        None => Ok(()),
    };
    let clean = present(&options, outcome?)?;
    stopped?;
    Ok(clean)
}

async fn run_all(setup: &Setup, selected: &[Scenario]) -> Outcome {
    let mut total = Outcome::default();
    // Runs are the outer loop: a slow minute of the machine hits each scenario at most once.
    for run in 1..=setup.options.runs {
        for &scenario in selected {
            eprintln!("run {run}/{}: {scenario}", setup.options.runs);
            let outcome = match Box::pin(scenarios::run(setup, scenario)).await {
                Ok(outcome) => outcome,
                // The others may still tell something.
                Err(error) => {
                    total.violations.push(format!("{scenario}: not finished: {error:#}"));
                    continue;
                }
            };
            if outcome.rows.iter().any(|row| row.messages == 0) {
                total.violations.push(format!("{scenario}: nothing was measured"));
            }
            total.rows.extend(outcome.rows);
            total.notes.extend(outcome.notes);
            total.violations.extend(outcome.violations);
            total.error_texts.extend(outcome.error_texts);
        }
    }
    total
}

/// Prints the table, writes the file, and answers whether all went well.
fn present(options: &Options, outcome: Outcome) -> Result<bool> {
    let report = Report {
        command: std::env::args().collect(),
        commit: commit(),
        cpus: std::thread::available_parallelism().map_or(0, usize::from),
        broker: options.queen.as_ref().map_or(options.url.clone(), |queen| queen.display().to_string()),
        ended_unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        summaries: summarise(outcome.rows),
        notes: outcome.notes,
        violations: outcome.violations,
        error_texts: outcome.error_texts,
    };
    print!("{}", table(&report.summaries));
    for note in &report.notes {
        println!("{note}");
    }
    for text in &report.error_texts {
        println!("ERROR {text}");
    }
    for violation in &report.violations {
        println!("VIOLATION {violation}");
    }
    if let Some(path) = &options.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let errors: u64 = report.summaries.iter().map(|summary| summary.errors).sum();
    Ok(errors == 0 && report.violations.is_empty())
}

fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

/// The usual 1,024 files are fewer than the parked scenario's connections. A broker started here inherits it.
fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if setrlimit(Resource::Nofile, raised).is_err() {
        eprintln!("cannot raise the limit of open files from {:?}", limit.current);
    }
}
