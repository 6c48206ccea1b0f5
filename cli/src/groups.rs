//! `queen groups`: consumer groups, their position in each queue, and deleting them.

use std::collections::HashMap;

use anyhow::Result;
use clap::{Args, Subcommand, value_parser};
use queen_client::admin::{Admin, GroupInQueue, GroupSummary};
use serde_json::json;

use super::confirm::Confirm;
use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::output::{Card, Cell, Table, note, remark};
use super::pages;
use super::text::thousands;

/// List, show and delete consumer groups.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen groups list --queue orders
  queen groups show billing")]
pub struct Groups {
    #[command(subcommand)]
    action: Action,
}

/// The most partitions that the broker returns; the list has no further page.
const PARTITIONS_MAX: i64 = 1_000;

#[derive(Debug, Subcommand)]
enum Action {
    /// List groups, one line per queue they read.
    #[command(after_help = "Examples:
  queen groups list
  queen groups list --queue orders --json | jq '.[] | select(.lag > 1000).group'")]
    List {
        /// Only groups that read this queue.
        #[arg(long)]
        queue: Option<String>,
    },
    /// Show a group's position in each partition.
    #[command(after_help = "Examples:
  queen groups show billing
  queen groups show billing --queue orders --json")]
    Show {
        group: String,
        /// Only in this queue.
        #[arg(long)]
        queue: Option<String>,
        /// Maximum partitions per queue.
        #[arg(long, default_value_t = 200, value_name = "N", value_parser = value_parser!(u32).range(1..=PARTITIONS_MAX))]
        limit: u32,
    },
    /// Delete a group's positions. It starts over when it reads again.
    #[command(after_help = "Examples:
  queen groups delete billing
  queen groups delete billing --queue orders --yes")]
    Delete {
        group: String,
        /// Only in this queue.
        #[arg(long)]
        queue: Option<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
}

pub async fn run(groups: Groups, connect: &Connect) -> Result<Exit> {
    let (admin, output) = (connect.client()?.admin(), connect.output());
    match groups.action {
        Action::List { queue } => {
            let of_queue =
                |group: &GroupSummary| queue.as_ref().is_none_or(|queue| group.queue_name == *queue);
            let table = listed(all(&admin, queue.as_deref()).await?.into_iter().filter(of_queue));
            if table.is_empty() {
                remark("there are no groups");
            }
            output.table(&table)?;
        }
        Action::Show { group, queue, limit } => {
            output.card(&shown(&admin, &group, queue.as_deref(), limit).await?)?;
        }
        Action::Delete { group, queue, confirm } => {
            stands(&admin, &group, queue.as_deref()).await?;
            let place =
                queue.as_ref().map_or("in all queues".to_owned(), |queue| format!("in queue {queue}"));
            confirm.ask(&format!("deletes the positions of group {group} {place}"), &group)?;
            let partitions = match &queue {
                Some(queue) => admin.delete_group_in(&group, queue).await?,
                None => admin.delete_group(&group).await?,
            };
            let document = json!({"group": group, "queue": queue, "partitions": partitions});
            output.done(&document, &format!("deleted {group} in {partitions} partition(s)"))?;
        }
    }
    Ok(Exit::Done)
}

/// Groups, with an entry for each queue they read. The request names the queue if there is one, because a token may be limited
/// to it. Brokers may return more than that.
pub async fn all(admin: &Admin, queue: Option<&str>) -> Result<Vec<GroupSummary>> {
    let page = async |limit, offset| {
        let page = admin.groups().limit(limit).offset(offset);
        Ok(match queue {
            Some(queue) => page.queue(queue).await?,
            None => page.await?,
        })
    };
    pages::all(page).await
}

/// The positions of a group, in one queue or in all.
async fn standing(
    admin: &Admin,
    group: &str,
    queue: Option<&str>,
    limit: u32,
) -> Result<HashMap<String, GroupInQueue>> {
    let page = admin.group(group).limit(limit);
    Ok(match queue {
        Some(queue) => page.queue(queue).await?,
        None => page.await?,
    })
}

/// Fails unless the group reads something, or reads this queue.
pub async fn stands(admin: &Admin, group: &str, queue: Option<&str>) -> Result<()> {
    if group.is_empty() {
        return Err(Refused::usage("the name of a group must not be empty"));
    }
    let wanted = |name: &str| queue.is_none_or(|queue| queue == name);
    if standing(admin, group, queue, 1).await?.keys().any(|name| wanted(name)) {
        return Ok(());
    }
    // For a group of many queues, the broker lists only some of them there.
    if all(admin, queue).await?.iter().any(|each| each.name == group && wanted(&each.queue_name)) {
        return Ok(());
    }
    Err(Refused::nothing(match queue {
        None => format!("there is no group {group:?}"),
        Some(queue) => format!("group {group:?} does not read queue {queue:?}"),
    }))
}

fn listed(groups: impl Iterator<Item = GroupSummary>) -> Table {
    let mut table = Table::new(&[
        ("group", "GROUP"),
        ("queue", "QUEUE"),
        ("partitions", "PARTITIONS"),
        ("partitionsWithLag", ""),
        ("lag", "UNREAD"),
        ("lagSeconds", "WAITING"),
        ("state", "STATE"),
    ]);
    for group in groups {
        table.row([
            Cell::text(group.name),
            Cell::text(group.queue_name),
            Cell::Number(group.members),
            Cell::Number(group.partitions_with_lag),
            group.total_lag.map_or(Cell::None, |lag| Cell::Number(lag.max(0).cast_unsigned())),
            Cell::Seconds(group.max_time_lag),
            Cell::text(group.state.to_lowercase()),
        ]);
    }
    table
}

async fn shown(admin: &Admin, group: &str, queue: Option<&str>, limit: u32) -> Result<Card> {
    stands(admin, group, queue).await?;
    let wanted = |name: &str| queue.is_none_or(|queue| queue == name);
    let mut summaries = all(admin, queue).await?;
    summaries.retain(|each| each.name == group && wanted(&each.queue_name));
    let mut partitions = Table::new(&[
        ("queue", "QUEUE"),
        ("partition", "PARTITION"),
        ("read", "READ"),
        ("lag", "UNREAD"),
        ("lagSeconds", "WAITING"),
        ("leased", "LEASED"),
        ("lastReadAt", "LAST READ"),
    ]);
    let queues = standing(admin, group, queue, limit).await?;
    let unseen = |each: &GroupSummary| {
        let seen = queues.get(&each.queue_name).map_or(0, |queue| queue.partitions.len() as u64);
        each.members.saturating_sub(seen)
    };
    let unseen: u64 = summaries.iter().map(unseen).sum();
    if unseen > 0 {
        note(format!("{} partitions are not shown; raise --limit to see more per queue", thousands(unseen)));
    }
    let mut queues: Vec<_> = queues.into_iter().collect();
    queues.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, stands) in queues.into_iter().filter(|(name, _)| wanted(name)) {
        for partition in stands.partitions {
            partitions.row([
                Cell::text(name.as_str()),
                Cell::text(partition.partition),
                Cell::Number(partition.total_consumed.max(0).cast_unsigned()),
                Cell::Number(partition.offset_lag.max(0).cast_unsigned()),
                Cell::Seconds(partition.time_lag_seconds),
                Cell::Yes(partition.lease_active),
                Cell::time(partition.last_consumed_at),
            ]);
        }
    }
    Ok(Card::default()
        .field("group", "group", Cell::text(group))
        .table("queues", "Queues", listed(summaries.into_iter()))
        .table("partitions", "Partitions", partitions))
}
