//! `queen consume`: prints messages as they come, or runs a command for each. A message is acknowledged once it is written, or
//! once its command has succeeded.

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

/// What is printed in a moment; a crash repeats no more than this.
const PRINT_BATCH: u32 = 100;
/// A command may take as long as it needs. Who cannot wait for it says so with a second signal.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Follows a queue: prints messages as they come, or runs a command for each, until ctrl-c.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen consume orders --watch                            look on, and take nothing away from anybody
  queen consume orders --group billing --limit 3          three messages and no more
  queen consume orders --group billing --exec './bill'    the payload is on its standard input; exit code 0 acknowledges,
                                                          any other fails with the end of standard error as the reason

What was written counts as handled, and a pipe takes some 64 KiB that nobody has read yet: after `queen consume orders | head -1` more than one
message may be gone. Who wants so many and no more says --limit; who wants to know that a message was dealt with uses --exec.

The command of --exec finds QUEEN_QUEUE, QUEEN_PARTITION, QUEEN_GROUP, QUEEN_TRANSACTION_ID, QUEEN_MESSAGE_ID, QUEEN_PARTITION_ID,
QUEEN_LEASE_ID, QUEEN_CREATED_AT, QUEEN_RETRY_COUNT, QUEEN_TRACEPARENT and QUEEN_URL in its environment. If it cannot be run (exit code 126
or 127) no message is to blame: they are given back, and it ends.")]
pub struct Consume {
    #[command(flatten)]
    source: Source,
    /// Runs this with `sh -c` for each message.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// How many commands run side by side. A partition's messages go one after the other.
    #[arg(long, default_value_t = 1, value_name = "N", requires = "exec")]
    concurrency: usize,
    /// Most messages to take at once; 1 with --exec, 100 without.
    #[arg(long, value_name = "N")]
    batch: Option<u32>,
    /// Ends after so many messages.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<u64>,
    /// Ends after so long without a message.
    #[arg(long, value_name = "TIME", value_parser = some_seconds)]
    idle: Option<Duration>,
    /// Looks on from now on, as a group of its own that is deleted in the end. The token must be good for that.
    #[arg(long, requires = "queue", conflicts_with_all = ["group", "exec"])]
    watch: bool,
}

/// How it came to its end.
enum End {
    ByItself(Summary),
    Stopped(Summary),
    /// Somebody could not wait for it.
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
    // Until here there is nothing to put in order.
    let mut interrupt = Interrupt::listen()?;
    let (reader, cause) = (Arc::new(Reader::of_stdout()), Cause::default());
    let consumer = start(&consume, connect, &queen, &reader, &cause)?;
    let end = follow(&consumer, &mut interrupt, &reader, &cause).await;
    if let Some(guest) = guest {
        match end {
            Ok(End::AtOnce) => guest.abandon("there was no time"),
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

/// A consumer waits for a broker that goes away and comes back. One that was never there is more likely a mistake.
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
    /// How long a stop waits for what is being done. Printing takes no time, unless the reader is gone.
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
        // A message that `Exec` has given back took its lease along: that its neighbours cannot give it back again is no news.
        if error.kind() != ErrorKind::Refused || !noted.is_noted() {
            note(error.to_string());
        }
    });
    let cause = cause.clone();
    let consuming = match &consume.exec {
        Some(command) => {
            let exec = Exec::new(command.clone(), connect.url.join(","), reader.clone(), cause);
            let exec = Arc::new(exec);
            // It acknowledges what it has done.
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

/// Whoever reads what we print may go at any time. What could not be written then is not handled, so that it is given back.
async fn print(output: Output, message: Raw, context: Context, cause: Cause) -> Result<(), String> {
    if let Err(error) = block_in_place(|| delivery::print(output, &message)) {
        cause.note(error);
        context.stop();
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Until it ends by itself, or nobody reads what comes of it, or somebody ends it: gracefully, or by a second signal at once.
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
                remark("stopping: what is not done is given back; again to end at once");
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
    fn a_command_has_all_the_time_it_needs_and_a_reader_who_is_gone_has_none() {
        assert!(of(&["--exec", "./nightly-report"]).stop_timeout() >= Duration::from_secs(24 * 60 * 60));
        assert_eq!(of(&["--watch"]).stop_timeout(), Duration::ZERO);
    }
}
