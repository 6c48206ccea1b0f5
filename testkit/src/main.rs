//! `queen-testkit [--template COMMAND] <command …>`: runs a command, usually `cargo nextest run`, with one PostgreSQL for all
//! its tests, and exits with its exit code. With a template, each test gets a copy of a database that was filled once.
//! `queen-testkit scenarios -- <command …>`: runs it with what the scenario suite of the clients needs.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result, ensure};
use queen_testkit::{
    CLUSTER_TEMPLATE, Database, SHARED_CLUSTER, Scenarios, TEMPLATE, cluster, cluster_template,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

const USAGE: &str = "usage: queen-testkit [--template COMMAND] <command …>
       queen-testkit scenarios -- <command …>";

#[tokio::main]
async fn main() -> Result<ExitCode> {
    // From here on, a signal ends the command and this program cleans up afterwards.
    let signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut args = std::env::args_os().skip(1).peekable();
    if args.next_if(|arg| arg == "scenarios").is_some() {
        args.next_if(|arg| arg == "--");
        return on_stage(command(args)?, signals).await;
    }
    let template = match args.next_if(|arg| arg == "--template") {
        Some(_) => args.next(),
        None => None,
    };
    let mut command = command(args)?;
    let mut cluster = cluster().await;
    let (_folder, files) = cluster_template().await;
    command.env(SHARED_CLUSTER, cluster.maintenance_url()).env(CLUSTER_TEMPLATE, files);
    if let Some(fill) = template {
        let database = Database::create(&cluster.maintenance_url()).await;
        let name = database.into_template(&fill.to_string_lossy()).await?;
        command.env(TEMPLATE, name);
    }
    let code = run(command, signals).await;
    cluster.stop().await;
    code
}

async fn on_stage(mut command: Command, signals: (Signals, Signals)) -> Result<ExitCode> {
    let broker = match std::env::var_os("QUEEN_BIN") {
        Some(named) => PathBuf::from(named),
        None => std::env::current_exe()?.with_file_name("queen"),
    };
    ensure!(broker.exists(), "no broker at {}: build it first", broker.display());
    let scenarios = Scenarios::start(&broker).await?;
    command.envs(scenarios.environment());
    let code = run(command, signals).await;
    scenarios.stop().await;
    code
}

fn command(mut args: impl Iterator<Item = OsString>) -> Result<Command> {
    let mut command = Command::new(args.next().context(USAGE)?);
    command.args(args);
    Ok(command)
}

async fn run(
    mut command: Command,
    (mut interrupted, mut terminated): (Signals, Signals),
) -> Result<ExitCode> {
    let program = command.as_std().get_program().to_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            // At a terminal, the command has received the signal as well.
            _ = interrupted.recv() => {}
            _ = terminated.recv() => forward(child.id(), Signal::TERM),
        }
    };
    Ok(exit_code(status))
}

fn forward(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
}

/// The exit code as shells report it: 128 plus the signal's number for a killed command.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
