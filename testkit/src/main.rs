//! `queen-testkit [--template COMMAND] <command …>`: runs a command, usually `cargo nextest run`, with one PostgreSQL
//! for all its tests, and exits as the command did. With a template, each test has a copy of a database that was filled
//! once.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use queen_testkit::{CLUSTER_TEMPLATE, Database, SHARED_CLUSTER, TEMPLATE, cluster, cluster_template};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut args = std::env::args_os().skip(1).peekable();
    let template = match args.next_if(|arg| arg == "--template") {
        Some(_) => args.next(),
        None => None,
    };
    let program = args.next().context("usage: queen-testkit [--template COMMAND] <command …>")?;
    // From here on a signal ends the command, and we clean up after it.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;

    let mut cluster = cluster().await;
    let (_folder, files) = cluster_template().await;
    let mut command = Command::new(&program);
    command.args(args).env(SHARED_CLUSTER, cluster.maintenance_url()).env(CLUSTER_TEMPLATE, files);
    if let Some(fill) = template {
        let database = Database::create(&cluster.maintenance_url()).await;
        let name = database.into_template(&fill.to_string_lossy()).await?;
        command.env(TEMPLATE, name);
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {}", program.display()))?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            // A terminal sends it to the command as well.
            _ = interrupted.recv() => {}
            _ = terminated.recv() => forward(child.id(), Signal::TERM),
        }
    };
    cluster.stop().await;
    Ok(exit_code(status))
}

fn forward(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
}

/// As a shell tells it: 128 and the signal's number for a command that was killed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
