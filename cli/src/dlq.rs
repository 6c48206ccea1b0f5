//! `queen dlq`: dead letters, the messages that a group gave up on.

use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use queen_client::{DeadLetter, DeadLetterPage, DeadLetters, Queen};
use serde_json::json;
use serde_json::value::RawValue;

use super::confirm::Confirm;
use super::connect::Connect;
use super::exit::Exit;
use super::output::{Cell, Table, note};
use super::redrive::{self, Replay};
use super::text::thousands;
use super::{pages, queues, times};

/// List, redrive and purge dead letters.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen dlq list orders --group billing
  queen dlq redrive orders --group billing --rate 50")]
pub struct Dlq {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List dead letters, newest failure first.
    #[command(after_help = "Examples:
  queen dlq list orders --since 1h
  queen dlq list orders --group billing --json | jq '.[].data'")]
    List {
        #[command(flatten)]
        chosen: Chosen,
        /// Only with this text in the error.
        #[arg(long, value_name = "TEXT")]
        error: Option<String>,
        /// Maximum number to list.
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: u32,
        /// Number to skip.
        #[arg(long, default_value_t = 0, value_name = "N")]
        offset: u64,
    },
    /// Push dead letters again, at a limited rate, and wait until it is done.
    #[command(after_help = "Examples:
  queen dlq redrive orders --group billing --rate 50
  queen dlq redrive orders --error timeout --dry-run")]
    Redrive {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        replay: Replay,
    },
    /// List redrives, newest first, or cancel one.
    #[command(after_help = "Examples:
  queen dlq redrives
  queen dlq redrives --cancel 01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01")]
    Redrives {
        /// Cancel this redrive. What it has not pushed yet stays a dead letter.
        #[arg(long, value_name = "ID")]
        cancel: Option<String>,
    },
    /// Delete dead letters permanently.
    #[command(after_help = "Examples:
  queen dlq purge orders --group billing
  queen dlq purge orders --until 30d --yes")]
    Purge {
        #[command(flatten)]
        chosen: Chosen,
        #[command(flatten)]
        confirm: Confirm,
    },
}

#[derive(Debug, Args)]
pub struct Chosen {
    /// Queue of the messages.
    queue: String,
    /// Only of this partition.
    #[arg(long, short)]
    partition: Option<String>,
    /// Only of this consumer group.
    #[arg(long, short)]
    group: Option<String>,
    /// Failed after this time, or at most this long ago (`2h`).
    #[arg(long, value_name = "TIME", value_parser = times::point)]
    since: Option<SystemTime>,
    /// Failed before this time, or at least this long ago.
    #[arg(long, value_name = "TIME", value_parser = times::point)]
    until: Option<SystemTime>,
}

impl Chosen {
    fn letters(&self, queen: &Queen) -> DeadLetters {
        let queue = queen.queue(&self.queue);
        let letters = match (&self.partition, &self.group) {
            (None, None) => queue.dead_letters(),
            (None, Some(group)) => queue.group(group).dead_letters(),
            (Some(partition), None) => queue.partition(partition).dead_letters(),
            (Some(partition), Some(group)) => queue.partition(partition).group(group).dead_letters(),
        };
        let letters = if let Some(since) = self.since { letters.from(since) } else { letters };
        if let Some(until) = self.until { letters.to(until) } else { letters }
    }
}

pub async fn run(dlq: Dlq, connect: &Connect) -> Result<Exit> {
    let (queen, output) = (connect.client()?, connect.output());
    match dlq.action {
        Action::List { chosen, error, limit, offset } => {
            queues::exists(&queen.admin(), &chosen.queue).await?;
            let (letters, mut total) = (chosen.letters(&queen), 0);
            let page = async |limit, from| {
                let mut list = letters.list().limit(limit).offset(offset + from);
                if let Some(text) = &error {
                    list = list.error(text);
                }
                let page: DeadLetterPage<Box<RawValue>> = list.await?;
                total = page.total;
                anyhow::Ok(page.letters)
            };
            let (letters, _) = pages::up_to(u64::from(limit), page).await?;
            let shown = letters.len() as u64 + offset;
            output.table(&listed(letters))?;
            if shown < total {
                note(format!("{} more; continue with --offset {shown}", thousands(total - shown)));
            }
            Ok(Exit::Done)
        }
        Action::Redrive { chosen, replay } => {
            queues::exists(&queen.admin(), &chosen.queue).await?;
            redrive::run(replay, &chosen.letters(&queen), output).await
        }
        Action::Redrives { cancel } => redrive::list(&queen, cancel.as_deref(), output).await,
        Action::Purge { chosen, confirm } => {
            queues::exists(&queen.admin(), &chosen.queue).await?;
            let letters = chosen.letters(&queen);
            let page: DeadLetterPage<Box<RawValue>> = letters.list().limit(1).await?;
            let total = thousands(page.total);
            confirm.ask(&format!("deletes {total} dead letters of queue {}", chosen.queue), &chosen.queue)?;
            let purged = letters.purge().await?;
            let text = format!("deleted {} dead letters of {}", thousands(purged), chosen.queue);
            output.done(&json!({"queue": chosen.queue, "purged": purged}), &text)?;
            Ok(Exit::Done)
        }
    }
}

fn listed(letters: Vec<DeadLetter<Box<RawValue>>>) -> Table {
    let mut table = Table::new(&[
        ("failedAt", "FAILED"),
        ("consumerGroup", "GROUP"),
        ("queue", ""),
        ("partition", "PARTITION"),
        ("partitionId", ""),
        ("id", ""),
        ("transactionId", "TRANSACTION"),
        ("retryCount", "RETRIES"),
        ("createdAt", ""),
        ("error", "ERROR"),
        ("data", "PAYLOAD"),
    ]);
    for letter in letters {
        table.row([
            Cell::time(Some(letter.failed_at)),
            Cell::text(letter.consumer_group),
            Cell::text(letter.queue),
            Cell::text(letter.partition),
            Cell::text(letter.partition_id),
            Cell::text(letter.id),
            Cell::text(letter.transaction_id),
            Cell::Number(u64::from(letter.retry_count)),
            Cell::time(Some(letter.created_at)),
            Cell::maybe(letter.error),
            Cell::Payload(letter.data),
        ]);
    }
    table
}
