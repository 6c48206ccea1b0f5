//! Starts a broker of its own for a run, and stops it. Knows only its command line and its first line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The first start creates a database cluster, which takes seconds on a slow disk.
const START_TIMEOUT: Duration = Duration::from_secs(90);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

pub struct Broker {
    pub url: String,
    pub pid: u32,
    child: Child,
    /// Keep reading what the broker writes, or it would stop at a full pipe.
    _readers: JoinSet<()>,
    _data_dir: TempDir,
}

impl Broker {
    pub async fn start(queen: &Path) -> Result<Broker> {
        let data_dir = tempfile::Builder::new().prefix("queen-bench-").tempdir()?;
        // Root's broker runs PostgreSQL as another user, who must be able to pass through here.
        fs::set_permissions(data_dir.path(), fs::Permissions::from_mode(0o755))?;
        let mut child = Command::new(queen)
            .args(["serve", "--data-dir"])
            .arg(data_dir.path())
            .envs([("PORT", "0"), ("HOST", "127.0.0.1"), ("LOG_LEVEL", "warn")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", queen.display()))?;
        let pid = child.id().ok_or_else(|| anyhow!("the broker ended at once"))?;

        let (sender, mut listening) = mpsc::channel(1);
        let mut readers = JoinSet::new();
        readers.spawn(read_lines(child.stdout.take(), sender.clone()));
        readers.spawn(read_lines(child.stderr.take(), sender));
        let address = tokio::select! {
            address = listening.recv() => address.ok_or_else(|| anyhow!("the broker closed its output"))?,
            status = child.wait() => bail!("the broker ended while starting: {}", status?),
            () = tokio::time::sleep(START_TIMEOUT) => bail!("the broker did not listen in {START_TIMEOUT:?}"),
        };
        let url = format!("http://{address}");
        Ok(Broker { url, pid, child, _readers: readers, _data_dir: data_dir })
    }

    pub async fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the broker ended during the run: {status}");
        }
        let pid = Pid::from_raw(self.pid.cast_signed()).ok_or_else(|| anyhow!("the broker has no pid"))?;
        kill_process(pid, Signal::TERM)?;
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => bail!("the broker stopped with {}", status?),
            Err(_) => {
                self.child.kill().await?;
                bail!("the broker did not stop in {STOP_TIMEOUT:?} and was killed")
            }
        }
    }
}

/// Passes the address on once and every other line to our standard error.
async fn read_lines(pipe: Option<impl AsyncRead + Unpin>, listening: mpsc::Sender<String>) {
    let Some(pipe) = pipe else { return };
    let mut lines = BufReader::new(pipe).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match address(&line) {
            Some(address) => drop(listening.try_send(address.to_owned())),
            None => eprintln!("queen: {line}"),
        }
    }
}

/// The line may be plain or a JSON log entry.
fn address(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("listening on http://")?;
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]-".contains(c))).unwrap_or(rest.len());
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_plain_and_json_lines() {
        assert_eq!(address("queen listening on http://127.0.0.1:4001"), Some("127.0.0.1:4001"));
        assert_eq!(address(r#"{"message":"listening on http://[::1]:4001","x":1}"#), Some("[::1]:4001"));
        assert_eq!(address("starting"), None);
    }

    fn script(dir: &Path, text: &str) -> std::path::PathBuf {
        let path = dir.join("queen");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn a_broker_is_started_on_a_fresh_folder_and_stopped_by_sigterm() {
        let dir = tempfile::tempdir().unwrap();
        let queen = script(
            dir.path(),
            r#"test "$1 $2 $PORT $HOST" = "serve --data-dir 0 127.0.0.1" && test -d "$3" || exit 3
            trap 'exit 0' TERM
            echo "listening on http://127.0.0.1:4001"
            while :; do sleep 0.05; done"#,
        );
        let broker = Broker::start(&queen).await.unwrap();
        assert_eq!(broker.url, "http://127.0.0.1:4001");
        broker.stop().await.unwrap();
    }

    #[tokio::test]
    async fn a_broker_that_ends_while_starting_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Broker::start(&script(dir.path(), "exit 3")).await.is_err());
    }
}
