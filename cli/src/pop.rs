//! `queen pop`: takes messages once and exits.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use queen_client::{Acks, Message, Queen};
use queen_protocol::QUEUE_MODE;

use super::connect::Connect;
use super::delivery::{self, Raw};
use super::exit::{Exit, Refused};
use super::output::note;
use super::source::Source;
use super::text::{clean, quoted};
use queen_protocol::units::some_seconds;

/// Take messages from a queue and print them.
///
/// The messages are leased until `queen ack`, or until the lease ends. To acknowledge them, use --json, or the command printed
/// on standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen pop orders --group billing
  queen pop orders --group billing --batch 100 --wait 30s --json > taken && queen ack < taken")]
pub struct Pop {
    #[command(flatten)]
    source: Source,
    /// Maximum number of messages.
    #[arg(long, short = 'n', default_value_t = 1, value_name = "N")]
    batch: u32,
    /// Wait for a message, at most this long.
    #[arg(long, value_name = "TIME", value_parser = some_seconds)]
    wait: Option<Duration>,
    /// Acknowledge at delivery: no lease, at-most-once.
    #[arg(long)]
    auto_ack: bool,
}

pub async fn run(pop: Pop, connect: &Connect) -> Result<Exit> {
    let (queen, output) = (connect.client()?, connect.output());
    let mut asking = pop.source.pop(&queen).batch(pop.batch);
    if let Some(wait) = pop.wait {
        asking = asking.wait(wait).deadline(wait + connect.timeout);
    }
    if pop.auto_ack {
        asking = asking.auto_ack();
    }
    let messages: Vec<Raw> = asking.await?;
    if messages.is_empty() {
        return Err(Refused::nothing(format!("no messages in {}", pop.source.name())));
    }
    let printed = messages.iter().try_for_each(|message| delivery::print(output, message));
    if printed.is_err() && !pop.auto_ack {
        give_back(&queen, &messages).await;
    }
    printed?;
    if !output.json && !pop.auto_ack {
        note(leased(&messages));
    }
    Ok(Exit::Done)
}

/// Grouped by partition, in order.
fn partitions(messages: &[Raw]) -> impl Iterator<Item = &[Raw]> {
    messages.chunk_by(|one, other| one.partition_id() == other.partition_id())
}

/// Gives back what could not be printed, because then it cannot be acknowledged.
async fn give_back(queen: &Queen, messages: &[Raw]) {
    let acks = partitions(messages).filter_map(<[Raw]>::first).fold(queen.acks(), Acks::retry);
    let refused = match acks.await {
        Ok(results) => {
            results.into_iter().find(|result| !result.success).map(|it| it.error.unwrap_or_default())
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = refused {
        note(format!("cannot give the messages back, they stay leased until the lease ends: {why}"));
    }
}

/// Other consumers cannot take these messages meanwhile, and the payload alone is not enough to acknowledge them.
fn leased(messages: &[Raw]) -> String {
    let mut text = "leased until the lease ends; `queen ack` reads the output of --json".to_owned();
    let acks: Vec<String> = partitions(messages).filter_map(<[Raw]>::last).filter_map(ack).collect();
    if !acks.is_empty() {
        text.push_str(", or acknowledge with:");
    }
    acks.iter().for_each(|ack| text.push_str(&format!("\n  {ack}")));
    text
}

/// The command that acknowledges the message and those before it in its partition. The names come from other people: `None` if
/// one of them is not safe to paste into a shell.
fn ack<T>(message: &Message<T>) -> Option<String> {
    let (transaction, group) = (message.transaction_id(), message.group());
    if clean(transaction) != transaction || clean(group) != group {
        return None;
    }
    let group = match group {
        "" | QUEUE_MODE => String::new(),
        group => format!(" --group {}", quoted(group)),
    };
    let (transaction, id) = (quoted(transaction), message.id());
    let (partition, lease) = (message.partition_id(), message.lease_id());
    Some(format!(
        "queen ack {transaction} --message-id {id} --partition-id {partition} --lease {lease}{group}"
    ))
}

#[cfg(test)]
mod tests {
    use queen_client::Taken;

    use super::*;

    #[test]
    fn the_command_to_copy_runs_nothing_that_others_have_written() {
        let queen = Queen::connect("http://localhost").unwrap();
        let command = |transaction: &str| {
            ack(&queen.taken(Taken {
                id: Some("m".to_owned()),
                transaction_id: transaction.to_owned(),
                partition_id: "p".to_owned(),
                lease_id: Some("l".to_owned()),
                group: Some("it's".to_owned()),
            }))
        };
        assert_eq!(
            command("x'; rm -rf ~; '").unwrap(),
            r"queen ack 'x'\''; rm -rf ~; '\''' --message-id m --partition-id p --lease l --group 'it'\''s'"
        );
        assert_eq!(command("x\ny"), None);
    }
}
