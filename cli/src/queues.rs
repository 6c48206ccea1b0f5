//! `queen queues`: lists, shows, configures, clears and deletes queues.

use anyhow::Result;
use clap::{Args, Subcommand};
use queen_client::admin::{Admin, QueueDetail, QueueInfo, QueueOptions};
use queen_protocol::{BadRequest, OPTIONS, check_option};
use serde_json::{Map, Value, json};

use super::confirm::Confirm;
use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::output::{Card, Cell, Table, note, remark};
use super::text::thousands;
use super::{groups, pages};

/// List, show, configure, clear and delete queues.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen queues list
  queen queues configure orders leaseTime=60 retryLimit=5")]
pub struct Queues {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List queues, newest first.
    #[command(after_help = "Examples:
  queen queues list
  queen queues list --search order --json | jq '.[].pending'")]
    List {
        /// Only with this text in the name.
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// Only with this namespace.
        #[arg(long)]
        namespace: Option<String>,
        /// Only with this task.
        #[arg(long)]
        task: Option<String>,
        /// Maximum number to list.
        #[arg(long, default_value_t = 1_000, value_name = "N")]
        limit: u32,
    },
    /// Show a queue, its consumer groups and its partitions.
    #[command(after_help = "Examples:
  queen queues show orders
  queen queues show orders --limit 1000 --json")]
    Show {
        queue: String,
        /// Maximum number of partitions.
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: u32,
    },
    /// Changes options of a queue, and creates it if need be. Without any, prints those of one that exists.
    #[command(after_help = configure_help())]
    Configure {
        queue: String,
        #[arg(value_name = "OPTION=VALUE", value_parser = option)]
        options: Vec<(String, Value)>,
    },
    /// Delete the messages of a queue; keep the queue, its options and its groups.
    #[command(after_help = "Examples:
  queen queues clear orders
  queen queues clear orders --partition customer-42 --yes")]
    Clear {
        queue: String,
        /// Only of this partition.
        #[arg(long, short)]
        partition: Option<String>,
        #[command(flatten)]
        confirm: Confirm,
    },
    /// Delete a queue with its messages, dead letters and consumer groups.
    #[command(after_help = "Examples:
  queen queues delete orders
  queen queues delete orders --yes")]
    Delete {
        queue: String,
        #[command(flatten)]
        confirm: Confirm,
    },
}

fn configure_help() -> String {
    let mut help = String::from(
        "Examples:
  queen queues configure orders leaseTime=60 retryLimit=5
  queen queues configure orders retentionEnabled=true retentionSeconds=86400 priority=null

Options, with their defaults; `null` returns one to its default:
",
    );
    for option in OPTIONS.iter() {
        help += &format!("  {} ({})\n      {}\n", option.name, option.default_text(), option.description());
    }
    help + "  namespace, task\n      Labels for a pop by label."
}

pub async fn run(queues: Queues, connect: &Connect) -> Result<Exit> {
    let (admin, output) = (connect.client()?.admin(), connect.output());
    match queues.action {
        Action::List { search, namespace, task, limit } => {
            let page = async |limit, offset| {
                let mut list = admin.queues().limit(limit).offset(offset);
                list = if let Some(text) = &search { list.search(text) } else { list };
                list = if let Some(label) = &namespace { list.namespace(label) } else { list };
                list = if let Some(label) = &task { list.task(label) } else { list };
                anyhow::Ok(list.await?.queues)
            };
            let (queues, more) = pages::up_to(u64::from(limit), page).await?;
            let table = listed(queues);
            if table.is_empty() {
                remark("there are no queues; `queen push` creates one");
            }
            output.table(&table)?;
            if more {
                note("there are more; raise --limit to see them");
            }
        }
        Action::Show { queue, limit } => output.card(&shown(&admin, &queue, limit).await?)?,
        Action::Configure { queue, options } => {
            if options.is_empty() {
                exists(&admin, &queue).await?;
            }
            check(&options)?;
            let options = QueueOptions { other: Map::from_iter(options), ..QueueOptions::default() };
            let configured = admin.configure(&queue, &options).await?;
            match output.json {
                true => output.document(&configured.options)?,
                false => output.table(&in_force(&configured.options)?)?,
            }
        }
        Action::Clear { queue, partition, confirm } => {
            let stored = exists(&admin, &queue).await?;
            let what = match &partition {
                Some(partition) => format!("deletes all messages of partition {partition} of queue {queue}"),
                None => format!("deletes all {} messages of queue {queue}", thousands(stored)),
            };
            confirm.ask(&what, &queue)?;
            let cleared = admin.clear_queue(&queue, partition.as_deref()).await?;
            let text = format!("deleted {} messages of {queue}", thousands(cleared));
            output.done(&json!({"queue": queue, "partition": partition, "removed": cleared}), &text)?;
        }
        Action::Delete { queue, confirm } => {
            let stored = exists(&admin, &queue).await?;
            confirm.ask(&format!("deletes queue {queue} with its {} messages", thousands(stored)), &queue)?;
            if !admin.delete_queue(&queue).await? {
                return Err(unknown(&queue));
            }
            output.done(&json!({"queue": queue, "deleted": true}), &format!("deleted {queue}"))?;
        }
    }
    Ok(Exit::Done)
}

/// How many messages the queue holds, or an error if it does not exist.
pub async fn exists(admin: &Admin, queue: &str) -> Result<u64> {
    if queue.is_empty() {
        return Err(Refused::usage("the name of a queue must not be empty"));
    }
    match admin.queue(queue).limit(1).await {
        Ok(detail) => Ok(detail.totals.total),
        Err(error) if error.kind() == queen_client::ErrorKind::NotFound => Err(unknown(queue)),
        Err(error) => Err(error.into()),
    }
}

fn unknown(queue: &str) -> anyhow::Error {
    Refused::nothing(format!("no queue {queue:?}"))
}

fn listed(queues: Vec<QueueInfo>) -> Table {
    let mut table = Table::new(&[
        ("name", "QUEUE"),
        ("namespace", ""),
        ("task", ""),
        ("partitions", "PARTITIONS"),
        ("messages", "MESSAGES"),
        ("pending", "PENDING"),
        ("processing", "LEASED"),
        ("createdAt", "CREATED"),
    ]);
    for queue in queues {
        table.row([
            Cell::text(queue.name),
            Cell::text(queue.namespace),
            Cell::text(queue.task),
            Cell::Number(queue.partitions),
            Cell::Number(queue.messages.total),
            Cell::Number(queue.messages.pending),
            Cell::Number(queue.messages.processing),
            Cell::time(Some(queue.created_at)),
        ]);
    }
    table
}

async fn shown(admin: &Admin, name: &str, limit: u32) -> Result<Card> {
    exists(admin, name).await?;
    let mut queue = QueueDetail::default();
    let page = async |limit, offset| {
        queue = admin.queue(name).limit(limit).offset(offset).await?;
        anyhow::Ok(std::mem::take(&mut queue.partitions))
    };
    let (shown, more) = pages::up_to(u64::from(limit), page).await?;
    if more {
        note("there are more partitions; raise --limit to see them");
    }
    let mut readers =
        Table::new(&[("group", "GROUP"), ("lag", "UNREAD"), ("lagSeconds", "WAITING"), ("state", "STATE")]);
    for group in groups::all(admin, Some(name)).await?.into_iter().filter(|group| group.queue_name == name) {
        readers.row([
            Cell::text(group.name),
            group.total_lag.map_or(Cell::None, |lag| Cell::Number(lag.max(0).cast_unsigned())),
            Cell::Seconds(group.max_time_lag),
            Cell::text(group.state.to_lowercase()),
        ]);
    }
    let mut partitions = Table::new(&[
        ("name", "PARTITION"),
        ("id", ""),
        ("messages", "MESSAGES"),
        ("pending", "PENDING"),
        ("processing", "LEASED"),
        ("newestMessage", "NEWEST"),
    ]);
    for partition in shown {
        partitions.row([
            Cell::text(partition.name),
            Cell::text(partition.id),
            Cell::Number(partition.stats.total),
            Cell::Number(partition.stats.pending),
            Cell::Number(partition.stats.processing),
            Cell::time(partition.newest_message),
        ]);
    }
    Ok(Card::default()
        .field("name", "queue", Cell::text(queue.name))
        .field("id", "id", Cell::text(queue.id))
        .field("namespace", "namespace", Cell::maybe(Some(queue.namespace)))
        .field("task", "task", Cell::maybe(Some(queue.task)))
        .field("createdAt", "created", Cell::time(Some(queue.created_at)))
        .field("messages", "messages", Cell::Number(queue.totals.total))
        .field("pending", "pending", Cell::Number(queue.totals.pending))
        .field("processing", "leased", Cell::Number(queue.totals.processing))
        .field("deadLetters", "dead letters", Cell::Number(queue.totals.dead_letter))
        .field("partitionCount", "partitions", Cell::Number(queue.partition_count))
        .table("groups", "Read by", readers)
        .table("partitions", "Partitions", partitions))
}

fn in_force(options: &QueueOptions) -> Result<Table> {
    let mut table = Table::new(&[("option", "OPTION"), ("value", "VALUE")]);
    let Value::Object(options) = serde_json::to_value(options)? else { return Ok(table) };
    for (name, value) in options {
        let value = match value {
            Value::Number(number) if number.is_u64() => Cell::Number(number.as_u64().unwrap_or_default()),
            Value::Bool(yes) => Cell::Yes(yes),
            Value::String(text) => Cell::maybe(Some(text)),
            other => Cell::text(other.to_string()),
        };
        table.row([Cell::text(name), value]);
    }
    Ok(table)
}

/// Earlier brokers ignore unknown options, and with them a typo.
fn check(options: &[(String, Value)]) -> Result<()> {
    let mut names = options.iter().map(|(name, _)| name);
    names.try_for_each(|name| check_option(name)).map_err(|BadRequest(text)| Refused::usage(text))
}

/// `leaseTime=60`. A value that is not JSON is text.
fn option(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("must be OPTION=VALUE, as in leaseTime=60")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok((name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_a_name_and_json_or_text() {
        assert_eq!(option("leaseTime=60").unwrap(), ("leaseTime".to_owned(), Value::from(60)));
        assert_eq!(option("priority=null").unwrap().1, Value::Null);
        assert_eq!(option("namespace=shop=eu").unwrap(), ("namespace".to_owned(), Value::from("shop=eu")));
        assert!(option("leaseTime").is_err());
    }

    #[test]
    fn the_help_names_every_option_with_its_default() {
        let help = configure_help();
        assert!(OPTIONS.iter().all(|option| help.contains(&format!("  {} (", option.name))), "{help}");
        assert!(help.contains("  leaseTime (300 s)\n      How long a lease lasts"), "{help}");
    }

    #[test]
    fn an_unknown_option_is_wrong_usage() {
        assert!(check(&[option("leaseTime=1").unwrap(), option("task=x").unwrap()]).is_ok());
        let error = check(&[option("leasetime=1").unwrap()]).unwrap_err();
        assert_eq!(Exit::of(&error), Exit::Usage);
        assert_eq!(error.to_string(), "unknown option \"leasetime\"; the nearest there is: \"leaseTime\"");
    }
}
