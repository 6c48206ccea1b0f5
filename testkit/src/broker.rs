//! A broker as users run it: the real program in its own process, observed only through its output.

use std::fmt::Write;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::spawn;

/// The first start creates a PostgreSQL cluster, possibly on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
const ANNOUNCEMENT: &str = "listening on ";

/// A running `queen`. Killed when dropped.
#[derive(Debug)]
pub struct Broker {
    child: Child,
    url: String,
    output: watch::Receiver<String>,
    /// Its spool, unless the caller has set one.
    _spool: TempDir,
}

impl Broker {
    /// Runs the program and waits until it announces its address: a free port of the loopback address, unless
    /// `env` says otherwise. The broker does not defer operations merely because this machine is busy. An error
    /// contains all of its output.
    pub async fn start(binary: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let spool = TempDir::new()?;
        let mut command = Command::new(binary);
        command.args(args).envs([("HOST", "127.0.0.1"), ("PORT", "0"), ("OPQ_PATIENCE_MS", "3600000")]);
        command.env("FILE_BUFFER_DIR", spool.path()).envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot run {}", binary.display()))?;

        let (lines, output) = watch::channel(String::new());
        let stdout = child.stdout.take().map(|stream| spawn(drain(stream, lines.clone())));
        let stderr = child.stderr.take().map(|stream| spawn(drain(stream, lines)));
        let mut announced = output.clone();
        let url = tokio::select! {
            said = announced.wait_for(|text| address(text).is_some()) => said.ok().and_then(|text| address(&text)),
            _ = tokio::time::sleep(START_PATIENCE) => bail!("the broker did not start listening:\n{}", *output.borrow()),
        };
        if let Some(url) = url {
            return Ok(Self { child, url, output, _spool: spool });
        }
        for reader in [stdout, stderr].into_iter().flatten() {
            finish(reader).await;
        }
        let status = child.wait().await?;
        Err(anyhow!("the broker exited with {status} before listening:\n{}", *output.borrow()))
    }

    /// `http://127.0.0.1:41234`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Panics once the process has been waited for.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the broker is running")
    }

    /// All output so far, stdout and stderr.
    pub fn output(&self) -> String {
        self.output.borrow().clone()
    }

    /// Waits until the output holds this text.
    pub async fn says(&self, text: &str) {
        let mut output = self.output.clone();
        let said = timeout(START_PATIENCE, output.wait_for(|said| said.contains(text))).await;
        let heard = matches!(said, Ok(Ok(_)));
        assert!(heard, "{text:?} is missing from the broker's output:\n{}", self.output());
    }

    /// Returns when the process is gone.
    pub async fn kill9(&mut self) {
        self.child.kill().await.expect("a child can be killed");
    }

    /// Asks it to shut down; wait for the end with [`Broker::wait`].
    pub fn terminate(&self) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id is not 0");
        kill_process(pid, Signal::TERM).expect("a child can be signalled");
    }

    /// # Cancel safety
    /// May be canceled and called again.
    pub async fn wait(&mut self) -> ExitStatus {
        self.child.wait().await.expect("a child can be waited for")
    }
}

async fn drain(stream: impl AsyncRead + Unpin, lines: watch::Sender<String>) {
    let mut reader = BufReader::new(stream).lines();
    while let Ok(Some(line)) = reader.next_line().await {
        lines.send_modify(|text| {
            let _ = writeln!(text, "{line}");
        });
    }
}

/// A child process that outlives the broker may keep the pipe open, which is fine.
async fn finish(reader: JoinHandle<()>) {
    let _ = timeout(OUTPUT_PATIENCE, reader).await;
}

/// Only from complete lines, otherwise a port could be cut off.
fn address(output: &str) -> Option<String> {
    let lines = output.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let said = lines.filter_map(|line| line.split_once(ANNOUNCEMENT)).map(|(_, said)| said);
    let url = |said: &'_ str| {
        let scheme = ["http://", "https://"].into_iter().find(|scheme| said.starts_with(scheme))?;
        Some((scheme, said[scheme.len()..].to_owned()))
    };
    said.filter_map(url).next().map(|(scheme, rest)| {
        // Strips colors and quotes that belong to the log format.
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]-".contains(c))).unwrap_or(rest.len());
        format!("{scheme}{}", &rest[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_any_log_format() {
        let of = |output: &str| address(output).unwrap_or_default();
        assert_eq!(of("see http://docs\nINFO listening on http://127.0.0.1:4711\n"), "http://127.0.0.1:4711");
        assert_eq!(of("{\"message\":\"listening on http://[::1]:80/\",\"x\":1}\n"), "http://[::1]:80");
        assert_eq!(of("listening on http://127.0.0.1:4711\u{1b}[0m\n"), "http://127.0.0.1:4711");
        assert_eq!(of("listening on https://127.0.0.1:4711\n"), "https://127.0.0.1:4711");
        assert_eq!(of("listening on http://127.0.0.1:47"), "");
        assert_eq!(of("listening on /run/socket\n"), "");
    }
}
