//! A broker process: started with settings in the environment, awaited, stopped. Works with any broker that responds to
//! `GET /health`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::cluster::free_port;
use crate::client::{Client, Target};

/// The first start creates the schema.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
const LOG_LINES_SHOWN: usize = 10;

/// Killed when dropped.
pub struct Broker {
    pub url: String,
    pub pid: u32,
    child: Child,
    log: PathBuf,
}

impl Broker {
    /// `command` is the program and its arguments. Its output goes to a file in `folder`.
    pub async fn start(
        command: &[String],
        variables: &[(&'static str, String)],
        folder: &Path,
    ) -> Result<Broker> {
        let (program, arguments) = command.split_first().context("no command to start a broker with")?;
        let port = free_port()?.to_string();
        let log = folder.join("broker.log");
        let output = File::create(&log)?;
        let child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .envs([("PORT", &*port), ("HOST", "127.0.0.1"), ("LOG_LEVEL", "warn")])
            .env("FILE_BUFFER_DIR", folder.join("spool"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let pid = child.id().context("the broker exited at once")?;
        let mut broker = Broker { url: format!("http://127.0.0.1:{port}"), pid, child, log };
        broker.ready().await?;
        Ok(broker)
    }

    async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut client = Client::new(Target::from_url(&self.url)?);
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the broker exited during startup, {status}:\n{}", self.last_words());
            }
            match client.get("/health").await {
                Ok(reply) if reply.status == 200 => return Ok(()),
                _ if Instant::now() > deadline => {
                    bail!("the broker is not healthy after {START_TIMEOUT:?}:\n{}", self.last_words())
                }
                _ => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Shows its latest warnings and errors, if any.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the broker exited during the series, {status}:\n{}", self.last_words());
        }
        let pid = Pid::from_raw(self.pid.cast_signed()).context("the broker has no pid")?;
        kill_process(pid, Signal::TERM)?;
        let stopped = tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await;
        for line in self.complaints() {
            eprintln!("broker: {line}");
        }
        match stopped {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => bail!("the broker stopped with {}", status?),
            Err(_) => {
                self.child.kill().await?;
                bail!("the broker did not stop in {STOP_TIMEOUT:?} and was killed")
            }
        }
    }

    fn last_words(&self) -> String {
        last(self.log_lines()).join("\n")
    }

    fn complaints(&self) -> Vec<String> {
        let complains = |line: &String| ["WARN", "ERROR", "panicked"].iter().any(|word| line.contains(word));
        last(self.log_lines().into_iter().filter(complains).collect())
    }

    fn log_lines(&self) -> Vec<String> {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).lines().map(str::to_owned).collect()
    }
}

fn last(mut lines: Vec<String>) -> Vec<String> {
    lines.split_off(lines.len().saturating_sub(LOG_LINES_SHOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_broker_that_ends_while_starting_is_an_error_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("broker");
        fs::write(&script, "echo no $PG_DB here; exit 3\n").unwrap();
        let command = ["/bin/sh".to_owned(), script.display().to_string()];
        let variables = [("PG_DB", "queen".to_owned())];
        let error = Broker::start(&command, &variables, folder.path()).await.err().unwrap();
        assert!(error.to_string().contains("no queen here"), "{error}");
    }
}
