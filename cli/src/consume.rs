//! `queen consume`: prints messages as they arrive, or runs a command for each. A message is acknowledged once it is written,
//! or once its command has succeeded.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use queen_client::{Consumer, Context, ErrorKind, Queen, Summary};
use tokio::task::block_in_place;

use super::cause::Cause;
use super::connect::Connect;
use super::delivery::{self, Raw};
use super::exec::Exec;
use super::exit::Exit;
use super::guest::Guest;
use super::interrupt::Interrupt;
use super::output::{Output, note, remark};
use super::reader::Reader;
use super::source::{Source, Start};
use queen_protocol::units::some_seconds;

/// How much is printed between acknowledgements; after a crash, at most this much is printed again.
const PRINT_BATCH: u32 = 100;
/// A stop waits for running commands however long they take. A second signal stops at once.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Follow a queue: print messages as they arrive, or run a command for each, until ctrl-c.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen consume orders --watch                            watch, without affecting other consumers
  queen consume orders --group billing --limit 3          stop after three messages
  queen consume orders --group billing --exec './bill'    payload on standard input; exit code 0 acknowledges,
                                                          any other is a failure, with the end of standard error

A message counts as handled once it is written, and a pipe buffers about 64 KiB: after `queen consume orders | head -1` more than one
message may be acknowledged. To read an exact number, use --limit; to acknowledge only what was processed, use --exec.

The environment of the --exec command has QUEEN_QUEUE, QUEEN_PARTITION, QUEEN_GROUP, QUEEN_TRANSACTION_ID, QUEEN_MESSAGE_ID, QUEEN_PARTITION_ID,
QUEEN_LEASE_ID, QUEEN_CREATED_AT, QUEEN_RETRY_COUNT, QUEEN_TRACEPARENT and QUEEN_URL. If the command cannot be run (exit code 126
or 127), messages are given back without counting a failure, and `queen consume` exits.")]
pub struct Consume {
    #[command(flatten)]
    source: Source,
    /// Run this command with `sh -c` for each message.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// Number of commands to run concurrently. Messages of one partition run one after another.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "exec")]
    concurrency: usize,
    /// Maximum messages per request; 1 with --exec, 100 without.
    #[arg(long, value_name = "N")]
    batch: Option<u32>,
    /// Exit after this many messages.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
    /// Exit after this long without a message.
    #[arg(long, value_name = "TIME", value_parser = some_seconds)]
    idle: Option<Duration>,
    /// Watch new messages as a temporary group, which is deleted at the end. The token must allow that.
    #[arg(long, requires = "queue", conflicts_with_all = ["group", "exec"])]
    watch: bool,
}

/// How consuming ended.
enum End {
    ByItself(Summary),
    Stopped(Summary),
    /// Interrupted a second time.
    AtOnce,
}

pub async fn run(mut consume: Consume, connect: &Connect) -> Result<Exit> {
    let queen = connect.patient_client()?;
    reachable(connect).await?;
    let guest = match (&consume.source.queue, consume.watch) {
        (Some(queue), true) => Some(Guest::announce(&connect.client()?, queue).await?),
        _ => None,
    };
    if let Some(guest) = &guest {
        consume.source.group = Some(guest.name().to_owned());
        consume.source.from = Some(Start::New);
    }
    // An interrupt needs no cleanup up to here.
    let mut interrupt = Interrupt::listen()?;
    let (reader, cause) = (Arc::new(Reader::of_stdout()), Cause::default());
    let consumer = start(&consume, connect, &queen, &reader, &cause)?;
    let end = follow(&consumer, &mut interrupt, &reader, &cause).await;
    if let Some(guest) = guest {
        match end {
            Ok(End::AtOnce) => guest.abandon("interrupted"),
            _ => guest.leave(&queen, &mut interrupt).await,
        }
    }
    let (exit, summary) = match end? {
        End::ByItself(summary) => (Exit::Done, summary),
        End::Stopped(summary) => (Exit::Interrupted, summary),
        End::AtOnce => return Ok(Exit::Interrupted),
    };
    if let Some(error) = cause.take() {
        return Err(error);
    }
    remark(format!("{} handled, {} failed", summary.handled, summary.failed));
    Ok(if exit == Exit::Done && summary.failed > 0 { Exit::Failed } else { exit })
}

/// Checks that the broker is there. Once running, a consumer waits for a broker that goes away; one that was never reachable is
/// more likely a wrong URL.
async fn reachable(connect: &Connect) -> Result<()> {
    let mut last = None;
    for (_, queen) in connect.each()? {
        match queen.admin().health().await.map_err(anyhow::Error::new) {
            Err(error) if Exit::of(&error) == Exit::Unreachable => last = Some(error),
            _ => return Ok(()),
        }
    }
    last.map_or(Ok(()), Err)
}

impl Consume {
    /// How long a stop waits for unfinished work. Printing takes no time, unless the reader is gone.
    fn stop_timeout(&self) -> Duration {
        if self.exec.is_some() { FOR_EVER } else { Duration::ZERO }
    }
}

fn start(
    consume: &Consume,
    connect: &Connect,
    queen: &Queen,
    reader: &Arc<Reader>,
    cause: &Cause,
) -> Result<Consumer> {
    let batch = consume.batch.unwrap_or(if consume.exec.is_some() { 1 } else { PRINT_BATCH });
    let mut consuming = consume.source.consume(queen).batch(batch).concurrency(consume.concurrency);
    if let Some(limit) = consume.limit {
        consuming = consuming.limit(limit);
    }
    if let Some(idle) = consume.idle {
        consuming = consuming.idle_timeout(idle);
    }
    let noted = cause.clone();
    let consuming = consuming.stop_timeout(consume.stop_timeout()).on_error(move |error| {
        // When `Exec` gives a message back, its lease ends. The other messages of the lease can then not be given back
        // again, which is expected.
        if error.kind() != ErrorKind::Refused || !noted.is_noted() {
            note(error.to_string());
        }
    });
    let cause = cause.clone();
    let consuming = match &consume.exec {
        Some(command) => {
            let exec = Exec::new(command.clone(), connect.url.join(","), reader.clone(), cause);
            let exec = Arc::new(exec);
            // The consumer acknowledges what is finished.
            consuming.auto_ack(false).each(move |message: Raw, context| {
                let exec = exec.clone();
                async move { exec.handle(&message, &context).await }
            })
        }
        None => {
            let output = connect.output();
            consuming.each(move |message: Raw, context| print(output, message, context, cause.clone()))
        }
    };
    Ok(consuming.start()?)
}

/// The reader of our output may leave at any time. A message that could not be written is not
/// handled, and is given back.
async fn print(output: Output, message: Raw, context: Context, cause: Cause) -> Result<(), String> {
    if let Err(error) = block_in_place(|| delivery::print(output, &message)) {
        cause.note(error);
        context.stop();
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Runs until it ends by itself, its reader leaves, or it is interrupted: gracefully at first, at once by a second signal.
async fn follow(
    consumer: &Consumer,
    interrupt: &mut Interrupt,
    reader: &Reader,
    cause: &Cause,
) -> Result<End> {
    let mut finished = pin!(consumer.finished());
    let (mut left, mut stopped) = (false, false);
    loop {
        tokio::select! {
            summary = &mut finished => {
                return Ok(if stopped { End::Stopped(summary?) } else { End::ByItself(summary?) });
            }
            () = reader.left(), if !left => {
                left = true;
                cause.note(io::Error::from(io::ErrorKind::BrokenPipe));
            }
            () = interrupt.next() => {
                if stopped {
                    return Ok(End::AtOnce);
                }
                stopped = true;
                remark("stopping: unfinished messages are given back; interrupt again to exit at once");
            }
        }
        consumer.stopper().stop();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        consume: Consume,
    }

    fn of(arguments: &[&str]) -> Consume {
        Line::parse_from([&["consume", "orders"], arguments].concat()).consume
    }

    #[test]
    fn stopping_waits_for_commands_but_not_for_a_reader_that_is_gone() {
        assert!(of(&["--exec", "./nightly-report"]).stop_timeout() >= Duration::from_secs(24 * 60 * 60));
        assert_eq!(of(&["--watch"]).stop_timeout(), Duration::ZERO);
    }
}
