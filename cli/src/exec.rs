//! Runs a command for a message: the payload on standard input, the message's properties in the environment. The command has
//! a process group of its own, so that ctrl-c reaches only `queen` and the command can finish.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use queen_client::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, stderr};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::cause::Cause;
use super::delivery::{self, Raw};
use super::exit::{Exit, Refused};
use super::output::note;
use super::reader::Reader;

/// How much of a command's standard error a dead letter keeps: enough for the last lines of a stack trace.
const TAIL_BYTES: usize = 2_000;
/// How long to read standard error after the command has exited; a background child may keep it open.
const STDERR_PATIENCE: Duration = Duration::from_millis(500);
/// The death of a command by a broken pipe and the broken pipe itself may be noticed in either order, within this time.
const READER_PATIENCE: Duration = Duration::from_millis(100);
/// Exit codes of a shell that cannot run a command, or cannot find it.
const NOT_RUN: [i32; 2] = [126, 127];

#[derive(Debug)]
pub struct Exec {
    command: String,
    urls: String,
    /// Where the commands' output goes.
    reader: Arc<Reader>,
    cause: Cause,
}

/// Why a message was not processed.
#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    /// The command failed. `unheard`: the failure may be caused by a closed standard output.
    Failed { why: String, unheard: bool },
    /// The command could not be run, and would fail for every other message too.
    NotRun(String),
}

impl Trouble {
    fn failed(why: impl Into<String>) -> Self {
        Self::Failed { why: why.into(), unheard: false }
    }
}

impl Exec {
    /// `urls` are passed to commands. `cause` receives the reason why running more commands makes no sense.
    pub fn new(command: String, urls: String, reader: Arc<Reader>, cause: Cause) -> Self {
        Self { command, urls, reader, cause }
    }

    /// Acknowledges the message if its command succeeds. Each message is acknowledged on its own, so that after a kill
    /// only the running command is repeated. An error becomes the message's failure.
    ///
    /// # Cancel safety
    /// The command and everything it started are killed.
    pub async fn handle(&self, message: &Raw, context: &Context) -> Result<(), String> {
        let trouble = match self.run(message, context).await {
            Ok(()) => {
                // If the ack is lost, the message is delivered again.
                if let Err(error) = message.ack().await {
                    note(error.to_string());
                }
                return Ok(());
            }
            Err(trouble) => trouble,
        };
        let (why, cause) = match trouble {
            Trouble::NotRun(why) => {
                let text = format!("cannot run the command ({why}); its message was given back");
                (why, Refused::error(Exit::Failed, text))
            }
            Trouble::Failed { why, unheard } => {
                let patience = if unheard { READER_PATIENCE } else { Duration::ZERO };
                let left = timeout(patience, self.reader.left()).await.is_ok();
                if !left || context.is_lease_lost() {
                    return Err(why);
                }
                (why, io::Error::from(io::ErrorKind::BrokenPipe).into())
            }
        };
        self.cause.note(cause);
        context.stop();
        // Not a failure of the message: it is delivered again without counting a retry.
        if let Err(error) = message.retry().await {
            note(error.to_string());
        }
        Err(why)
    }

    async fn run(&self, message: &Raw, context: &Context) -> Result<(), Trouble> {
        let spawned = self.spawn(message);
        let mut child = spawned.map_err(|error| Trouble::NotRun(format!("cannot run sh: {error}")))?;
        let mut family = Family::of(&child);
        let (stdin, said) = (child.stdin.take(), child.stderr.take());
        let mut tail = Vec::new();
        let status = {
            let payload = delivery::payload(message);
            let mut feeding = pin!(feed(stdin, payload.as_bytes()));
            let mut reading = pin!(read(said, &mut tail));
            let (mut fed, mut heard) = (false, false);
            let status = loop {
                tokio::select! {
                    status = child.wait() => break status,
                    () = &mut feeding, if !fed => fed = true,
                    () = &mut reading, if !heard => heard = true,
                    () = context.lease_lost() => return Err(Trouble::failed("the lease was lost")),
                }
            };
            if !heard {
                _ = timeout(STDERR_PATIENCE, reading).await;
            }
            status
        };
        family.release();
        match status {
            Ok(status) => judged(status, &tail),
            Err(error) => Err(Trouble::failed(format!("cannot wait for the command: {error}"))),
        }
    }

    fn spawn(&self, message: &Raw) -> io::Result<Child> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).env("QUEEN_URL", &self.urls);
        let retries = message.retry_count().to_string();
        for (name, value) in [
            ("QUEEN_QUEUE", Some(message.queue())),
            ("QUEEN_PARTITION", Some(message.partition())),
            ("QUEEN_PARTITION_ID", Some(message.partition_id())),
            ("QUEEN_GROUP", Some(message.group())),
            ("QUEEN_MESSAGE_ID", Some(message.id())),
            ("QUEEN_TRANSACTION_ID", Some(message.transaction_id())),
            ("QUEEN_LEASE_ID", Some(message.lease_id())),
            ("QUEEN_CREATED_AT", Some(message.created_at())),
            ("QUEEN_RETRY_COUNT", Some(&retries)),
            ("QUEEN_TRACEPARENT", message.traceparent()),
        ] {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
    }
}

/// A command need not read its input.
async fn feed(stdin: Option<ChildStdin>, payload: &[u8]) {
    let Some(mut stdin) = stdin else { return };
    _ = stdin.write_all(payload).await;
    _ = stdin.write_all(b"\n").await;
}

/// Passes standard error through, and keeps its end.
async fn read(said: Option<impl AsyncRead + Unpin>, tail: &mut Vec<u8>) {
    let Some(mut said) = said else { return };
    let (mut ours, mut piece) = (stderr(), [0; 4096]);
    while let Ok(length @ 1..) = said.read(&mut piece).await {
        _ = ours.write_all(&piece[..length]).await;
        _ = ours.flush().await;
        tail.extend_from_slice(&piece[..length]);
        let surplus = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..surplus);
    }
}

/// The failure that the exit of a command means for its message.
fn judged(status: ExitStatus, tail: &[u8]) -> Result<(), Trouble> {
    let why = reason(status, tail);
    let pipe = Signal::PIPE.as_raw();
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) if NOT_RUN.contains(&code) => Err(Trouble::NotRun(why)),
        // A shell exits with this code if one of its commands was killed.
        (Some(code), _) => Err(Trouble::Failed { why, unheard: code == 128 + pipe }),
        (None, signal) => Err(Trouble::Failed { why, unheard: signal == Some(pipe) }),
    }
}

fn reason(status: ExitStatus, tail: &[u8]) -> String {
    let ended = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "unknown exit status".to_owned(),
    };
    // The kept end may begin inside a character.
    let text = String::from_utf8_lossy(tail);
    match text.trim_start_matches('\u{fffd}').trim() {
        "" => ended,
        text => format!("{ended}: {text}"),
    }
}

/// A process group that is killed when its future is dropped. It outlives a kill -9 of `queen`.
struct Family(Option<Pid>);

impl Family {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id.cast_signed())))
    }

    /// It has exited; its id may be reused.
    fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_has_the_exit_code_and_the_end_of_standard_error() {
        let status = ExitStatus::from_raw(3 << 8);
        assert_eq!(reason(status, b" no such customer\n"), "exit code 3: no such customer");
        assert_eq!(reason(status, b""), "exit code 3");
        assert_eq!(reason(status, &"\u{fc}ber".as_bytes()[1..]), "exit code 3: ber");
        assert_eq!(reason(ExitStatus::from_raw(9), b"x"), "killed by signal 9: x");
    }

    #[test]
    fn only_a_command_that_ran_says_something_about_its_message() {
        let exited = |code: i32| judged(ExitStatus::from_raw(code << 8), b"");
        assert!(exited(0).is_ok());
        for code in [1, 125, 128, 255] {
            assert_eq!(exited(code), Err(Trouble::failed(format!("exit code {code}"))));
        }
        for code in [126, 127] {
            assert_eq!(exited(code), Err(Trouble::NotRun(format!("exit code {code}"))));
        }
        assert!(matches!(exited(141), Err(Trouble::Failed { unheard: true, .. })));
        let killed = |signal| judged(ExitStatus::from_raw(signal), b"");
        assert!(matches!(killed(13), Err(Trouble::Failed { unheard: true, .. })));
        assert!(matches!(killed(9), Err(Trouble::Failed { unheard: false, .. })));
    }

    #[tokio::test]
    async fn only_the_end_of_what_was_said_is_kept() {
        let said = "a".repeat(5_000) + "end";
        let mut tail = Vec::new();
        read(Some(said.as_bytes()), &mut tail).await;
        assert_eq!(tail.len(), TAIL_BYTES);
        assert!(tail.ends_with(b"aend"));
    }
}
