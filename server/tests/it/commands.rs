//! The command line as people and scripts use it: the real program against a broker, its output and its exit codes.

mod admin;
mod consume;
mod dead_letters;
mod messages;
mod tools;

use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::{Server, eventually};

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");
/// A command that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, with the broker's URL.
fn queen(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(QUEEN);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("QUEEN_URL", url).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// The output of a command and its exit code.
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let code = output.status.code().expect("it ends by itself");
        Self { code, out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Asserts the exit code.
    #[track_caller]
    fn code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    /// The document that it printed. It must have succeeded.
    #[track_caller]
    fn json(self) -> Value {
        let said = self.code(0);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error} in {}", said.out))
    }

    /// The printed lines, each a JSON document.
    #[track_caller]
    fn lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

async fn run(url: &str, arguments: &[&str]) -> Said {
    let output = timeout(PATIENCE, queen(url, arguments).output()).await.expect("it ends").unwrap();
    Said::of(&output)
}

/// Runs it with this on standard input.
async fn fed(url: &str, arguments: &[&str], input: &str) -> Said {
    let mut child = queen(url, arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    Said::of(&timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap())
}

/// Runs it with a standard output whose reader has left: every write fails.
async fn unread(url: &str, arguments: &[&str]) -> Said {
    let (_, writer) = std::io::pipe().unwrap();
    end(queen(url, arguments).stdout(writer).spawn().unwrap()).await
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

async fn end(child: Child) -> Said {
    Said::of(&timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap())
}

/// Interrupts the child until it ends. The number of signals does not matter: of two that arrive together, one is lost.
async fn insist(mut child: Child) -> Said {
    eventually("it ends", async || {
        let ended = child.try_wait().unwrap();
        if ended.is_none() {
            signal(&child, Signal::INT);
        }
        ended
    })
    .await;
    end(child).await
}

/// Returns when the broker is no longer reachable.
async fn gone(server: &Server) {
    server.shutdown.cancel();
    server.tasks.close();
    timeout(PATIENCE, server.tasks.wait()).await.expect("the broker ends");
}
