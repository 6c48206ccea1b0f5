//! `queen ops`: deferred operations, which brokers have accepted and not executed yet.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use queen_client::ErrorKind;
use queen_client::admin::{Operation, OperationStats};
use serde_json::json;

use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::output::{Card, Cell, Table, note, remark};
use super::pages;
use queen_protocol::units::some_seconds;

/// List, show, retry and cancel deferred operations.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen ops list --status failed
  queen ops stats")]
pub struct Ops {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List operations, oldest first.
    #[command(after_help = "Examples:
  queen ops list --status failed
  queen ops list --queue orders --older-than 5m --json")]
    List {
        /// `pending`, `processing`, `completed`, `failed` or `cancelled`.
        #[arg(long, value_parser = ["pending", "processing", "completed", "failed", "cancelled"])]
        status: Option<String>,
        /// Only of this queue.
        #[arg(long)]
        queue: Option<String>,
        /// Accepted at least this long ago.
        #[arg(long, value_name = "TIME", value_parser = some_seconds)]
        older_than: Option<Duration>,
        /// Maximum number to list.
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: u32,
    },
    /// Show an operation.
    #[command(after_help = "Examples:
  queen ops show 01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01")]
    Show { id: String },
    /// Retry a failed operation, behind everything accepted since.
    #[command(after_help = "Examples:
  queen ops retry 01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01")]
    Retry { id: String },
    /// Cancel an operation that is pending or has failed.
    #[command(after_help = "Examples:
  queen ops cancel 01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01")]
    Cancel { id: String },
    /// Show counts of operations and the broker's load.
    #[command(after_help = "Examples:
  queen ops stats
  queen ops stats --json | jq .queueDepth")]
    Stats,
}

pub async fn run(ops: Ops, connect: &Connect) -> Result<Exit> {
    let (admin, output) = (connect.client()?.admin(), connect.output());
    match ops.action {
        Action::List { status, queue, older_than, limit } => {
            let page = async |limit, offset| {
                let mut list = admin.operations().limit(limit).offset(offset);
                list = if let Some(status) = &status { list.status(status) } else { list };
                list = if let Some(queue) = &queue { list.queue(queue) } else { list };
                list = if let Some(age) = older_than { list.older_than_seconds(age.as_secs()) } else { list };
                anyhow::Ok(list.await?.operations)
            };
            let (operations, more) = pages::up_to(u64::from(limit), page).await?;
            let table = listed(operations);
            if table.is_empty() {
                remark("there are no operations");
            }
            output.table(&table)?;
            if more {
                note("there are more; raise --limit to see them");
            }
        }
        Action::Show { id } => {
            let operation = admin.operation(&id).await.map_err(|error| known(&id, error))?;
            output.card(&card(operation)?)?;
        }
        Action::Retry { id } => {
            admin.retry_operation(&id).await.map_err(|error| known(&id, error))?;
            output.done(&json!({"id": id, "status": "pending"}), "operation is pending again")?;
        }
        Action::Cancel { id } => {
            admin.cancel_operation(&id).await.map_err(|error| known(&id, error))?;
            output.done(&json!({"id": id, "status": "cancelled"}), "operation is cancelled")?;
        }
        Action::Stats => output.card(&counted(admin.operation_stats().await?))?,
    }
    Ok(Exit::Done)
}

fn known(id: &str, error: queen_client::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::NotFound => {
            Refused::nothing(format!("no operation {id}; completed ones are removed after a while"))
        }
        _ => error.into(),
    }
}

fn listed(operations: Vec<Operation>) -> Table {
    let mut table = Table::new(&[
        ("id", "OPERATION"),
        ("type", "TYPE"),
        ("queue", "QUEUE"),
        ("partition", "PARTITION"),
        ("status", "STATUS"),
        ("messages", "MESSAGES"),
        ("retryCount", "RETRIES"),
        ("createdAt", "ACCEPTED"),
        ("error", "ERROR"),
    ]);
    for operation in operations {
        table.row([
            Cell::text(operation.id),
            Cell::text(operation.operation_type),
            Cell::text(operation.queue_name),
            Cell::text(operation.partition_name),
            Cell::text(operation.status),
            Cell::Number(operation.messages),
            Cell::Number(u64::from(operation.retry_count)),
            Cell::time(operation.created_at),
            Cell::maybe(operation.error_message),
        ]);
    }
    table
}

fn card(operation: Operation) -> Result<Card> {
    let result = operation.result.map(|result| serde_json::value::to_raw_value(&result)).transpose()?;
    Ok(Card::default()
        .field("id", "operation", Cell::text(operation.id))
        .field("type", "type", Cell::text(operation.operation_type))
        .field("queue", "queue", Cell::text(operation.queue_name))
        .field("partition", "partition", Cell::text(operation.partition_name))
        .field("status", "status", Cell::text(operation.status))
        .field("messages", "messages", Cell::Number(operation.messages))
        .field("retryCount", "retries", Cell::Number(u64::from(operation.retry_count)))
        .field("createdAt", "accepted", Cell::time(operation.created_at))
        .field("processedAt", "done", Cell::time(operation.processed_at))
        .field("error", "error", Cell::maybe(operation.error_message))
        .field("result", "result", result.map_or(Cell::None, Cell::Payload)))
}

fn counted(stats: OperationStats) -> Card {
    let mut table = Table::new(&[
        ("type", "TYPE"),
        ("status", "STATUS"),
        ("count", "OPERATIONS"),
        ("averageSeconds", "TOOK"),
    ]);
    for count in stats.stats {
        table.row([
            Cell::text(count.operation_type),
            Cell::text(count.status),
            Cell::Number(count.count),
            Cell::Seconds(count.avg_latency_seconds),
        ]);
    }
    let health = stats.system_health;
    Card::default()
        .field("queueDepth", "open", Cell::Number(health.queue_depth))
        .field("oldestSeconds", "oldest", Cell::Seconds(health.oldest_age_seconds))
        .field("drainRate", "completed per second", Cell::Decimal(health.drain_rate))
        .field("poolUtilization", "pool utilization", Cell::Decimal(health.pool_utilization))
        .field("poolWaiting", "pool waiting", Cell::Number(health.pool_waiting))
        .table("operations", "Operations", table)
}
