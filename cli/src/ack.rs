//! `queen ack`: reports the outcome of messages that `queen pop` has leased.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use queen_client::{Acked, Acks, Message, Queen, Taken};
use serde::Deserialize;

use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::output::{Cell, Table, remark};

/// Acknowledge messages: completed, failed, retry, or dead letter.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen pop orders --group billing --batch 10 --json | queen ack
  queen ack order-1002 --partition-id 01a1dee1-745d-7538-917b-da0024957600 --group billing \
    --lease 01a1dee1-7491-7579-b829-c9b1758f133e.1.2 --status failed --error 'no money'")]
pub struct Ack {
    /// Transaction id of the message. If omitted, lines of `queen pop --json` are read from standard input.
    #[arg(value_name = "TRANSACTION", requires = "partition_id")]
    transaction: Option<String>,
    /// Message id. If omitted, the first message of the lease with this transaction id is acknowledged.
    #[arg(long, value_name = "ID", requires = "transaction")]
    message_id: Option<String>,
    /// Partition id, as the broker returned it.
    #[arg(long, value_name = "ID", requires = "transaction")]
    partition_id: Option<String>,
    /// Lease the message was delivered under. If omitted, the lease is not checked. With access control, it is required while
    /// the partition is leased.
    #[arg(long, value_name = "ID", requires = "transaction")]
    lease: Option<String>,
    /// Consumer group that popped the message, if any.
    #[arg(long, short, requires = "transaction")]
    group: Option<String>,
    /// Outcome of the message.
    #[arg(long, value_enum, default_value_t = Status::Completed)]
    status: Status,
    /// Reason for the failure.
    #[arg(long, value_name = "TEXT", default_value = "")]
    error: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Status {
    /// Done, together with everything delivered before it in its partition.
    Completed,
    /// Failed: delivered again until the queue's retry limit.
    Failed,
    /// Delivered again, without counting as a failure.
    Retry,
    /// Moved to the dead letters now.
    DeadLetter,
}

/// A line of `queen pop --json`, or a message as the broker returned it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    #[serde(default)]
    id: Option<String>,
    transaction_id: String,
    partition_id: String,
    #[serde(default)]
    lease_id: Option<String>,
    #[serde(default)]
    consumer_group: Option<String>,
}

pub async fn run(ack: Ack, connect: &Connect) -> Result<Exit> {
    let (queen, output) = (connect.client()?, connect.output());
    let lines = match (&ack.transaction, &ack.partition_id) {
        (Some(transaction_id), Some(partition_id)) => vec![Line {
            id: ack.message_id.clone(),
            transaction_id: transaction_id.clone(),
            partition_id: partition_id.clone(),
            lease_id: ack.lease.clone(),
            consumer_group: ack.group.clone(),
        }],
        _ => read(io::stdin().lock())?,
    };
    if lines.is_empty() {
        return Err(Refused::nothing("there is nothing to acknowledge on standard input"));
    }
    let mut table = Table::new(&[
        ("transactionId", "TRANSACTION"),
        ("success", "TAKEN"),
        ("leaseReleased", "LEASE ENDED"),
        ("deadLetter", "DEAD LETTER"),
        ("noop", ""),
        ("error", "ERROR"),
    ]);
    let mut refused = None;
    // A request names one group.
    for lines in lines.chunk_by(|one, other| one.consumer_group == other.consumer_group) {
        let messages: Vec<Message<()>> = lines.iter().map(|line| message(&queen, line)).collect();
        for result in messages.iter().fold(queen.acks(), |acks, each| ack.add(acks, each)).await? {
            if !result.success {
                refused.get_or_insert_with(|| result.error.clone().unwrap_or_default());
            }
            table.row(cells(result));
        }
    }
    output.table(&table)?;
    match refused {
        None => Ok(Exit::Done),
        Some(why) => Err(Refused::error(Exit::Failed, format!("the broker refused: {why}"))),
    }
}

impl Ack {
    fn add(&self, acks: Acks, message: &Message<()>) -> Acks {
        match self.status {
            Status::Completed => acks.ack(message),
            Status::Failed => acks.nack(message, &self.error),
            Status::Retry => acks.retry(message),
            Status::DeadLetter => acks.dead_letter(message, &self.error),
        }
    }
}

fn message(queen: &Queen, line: &Line) -> Message<()> {
    queen.taken(Taken {
        id: line.id.clone(),
        transaction_id: line.transaction_id.clone(),
        partition_id: line.partition_id.clone(),
        lease_id: line.lease_id.clone().filter(|lease| !lease.is_empty()),
        group: line.consumer_group.clone(),
    })
}

fn read(input: impl BufRead) -> Result<Vec<Line>> {
    if io::stdin().is_terminal() {
        remark("reading lines of `queen pop --json`; end with ctrl-d");
    }
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(input.lines()) {
        let line = line.context("cannot read standard input")?;
        if !line.trim().is_empty() {
            let wrong = |error| {
                Refused::usage(format!("line {number} is not a message of `queen pop --json`: {error}"))
            };
            lines.push(serde_json::from_str(&line).map_err(wrong)?);
        }
    }
    Ok(lines)
}

fn cells(acked: Acked) -> [Cell; 6] {
    [
        Cell::text(acked.transaction_id),
        Cell::Yes(acked.success),
        Cell::Yes(acked.lease_released),
        Cell::Yes(acked.dead_letter),
        Cell::Yes(acked.noop),
        Cell::maybe(acked.error),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pop_has_printed_can_be_read() {
        let text = r#"{"id":"i","transactionId":"t","partitionId":"p","leaseId":"l","consumerGroup":"g","data":{}}

{"transactionId":"t2","partitionId":"p"}
"#;
        let lines = read(text.as_bytes()).unwrap();
        let ids: Vec<_> = lines
            .iter()
            .map(|line| (line.id.as_deref(), line.transaction_id.as_str(), line.lease_id.as_deref()))
            .collect();
        assert_eq!(ids, [(Some("i"), "t", Some("l")), (None, "t2", None)]);
        assert_eq!(Exit::of(&read("nonsense".as_bytes()).unwrap_err()), Exit::Usage);
    }
}
