//! `queen seek`: moves a group's cursors, backward to read again or forward to skip.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use queen_client::ErrorKind;
use queen_client::admin::Position;
use serde_json::json;

use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::text::thousands;
use super::{queues, times};

/// Move a consumer group in a queue: to the beginning, to the end, or to a time.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen seek orders billing 2h                     reads the last two hours again
  queen seek orders billing beginning --dry-run    says how many messages that would be")]
pub struct Seek {
    queue: String,
    /// Consumer group to move. Its leases in the queue end.
    group: String,
    /// `beginning`, `end`, a time (2026-01-31T12:00:00Z) or how long ago (`2h`).
    #[arg(value_name = "TO", value_parser = target)]
    to: Target,
    /// Change nothing, and show what would happen.
    #[arg(long)]
    dry_run: bool,
    /// Create the group if it does not read the queue.
    #[arg(long)]
    create: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Beginning,
    End,
    Time(SystemTime),
}

fn target(text: &str) -> Result<Target, String> {
    match text {
        "beginning" => Ok(Target::Beginning),
        "end" => Ok(Target::End),
        time => times::point(time)
            .map(Target::Time)
            .map_err(|error| format!("not `beginning` or `end`, and {error}")),
    }
}

pub async fn run(seek: Seek, connect: &Connect) -> Result<Exit> {
    let (admin, output) = (connect.client()?.admin(), connect.output());
    let Seek { queue, group, to, dry_run, create } = seek;
    let stored = queues::exists(&admin, &queue).await?;
    let position = match to {
        Target::Beginning => Position::Beginning,
        Target::End => Position::End,
        Target::Time(time) => Position::Time(time),
    };
    if dry_run {
        let mut forecast = admin.forecast_seek(&group, &queue, position).await;
        let creates = is_new(&forecast, &queue, &group, create)?;
        if creates {
            forecast = admin.forecast_seek_or_create(&group, &queue, position).await;
        }
        let forecast = forecast?;
        let (replays, skips) = (forecast.messages_replayed, forecast.messages_skipped);
        let unread = admin.depth(&queue, &group).await?.pending;
        let document = json!({"queue": queue, "group": group, "dryRun": true, "stored": stored, "unread": unread,
                              "replays": replays, "skips": skips, "creates": creates});
        let text = told(replays, skips, stored, unread);
        let text = if creates { format!("would create {group} in {queue}; {text}") } else { text };
        output.done(&document, &text)?;
        return Ok(Exit::Done);
    }
    let mut sought = admin.seek(&group, &queue, position).await;
    let created = is_new(&sought, &queue, &group, create)?;
    if created {
        sought = admin.seek_or_create(&group, &queue, position).await;
    }
    let moved = sought?.partitions_updated;
    let unread = admin.depth(&queue, &group).await?.pending;
    let document = json!({"queue": queue, "group": group, "dryRun": false, "partitions": moved, "unread": unread, "created": created});
    let done = if created { "created" } else { "moved" };
    let text = format!(
        "{group} was {done} in {moved} partition(s) of {queue}; {} messages unread",
        thousands(unread)
    );
    output.done(&document, &text)?;
    Ok(Exit::Done)
}

/// Whether the group does not exist in this queue, and may be created.
fn is_new<T>(
    sought: &Result<T, queen_client::Error>,
    queue: &str,
    group: &str,
    create: bool,
) -> Result<bool> {
    match sought {
        Err(error) if error.kind() == ErrorKind::NotFound && !create => Err(Refused::nothing(format!(
            "group {group:?} does not read queue {queue:?}; create it with --create"
        ))),
        Err(error) => Ok(error.kind() == ErrorKind::NotFound),
        Ok(_) => Ok(false),
    }
}

/// Describes the effect of a seek.
fn told(replays: u64, skips: u64, stored: u64, unread: u64) -> String {
    let rest = format!("{} are stored, {} unread", thousands(stored), thousands(unread));
    match (replays, skips) {
        (0, 0) => format!("would change nothing; {rest}"),
        (replays, 0) => format!("would read {} messages again; {rest}", thousands(replays)),
        (0, skips) => format!("would skip {} messages; {rest}", thousands(skips)),
        (replays, skips) => {
            format!("would read {} messages again and skip {}; {rest}", thousands(replays), thousands(skips))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_to_an_end_or_to_a_time() {
        assert_eq!((target("beginning"), target("end")), (Ok(Target::Beginning), Ok(Target::End)));
        assert!(matches!(target("2026-01-31T12:00:00Z"), Ok(Target::Time(_))));
        assert!(target("start").unwrap_err().contains("`beginning`"));
    }

    #[test]
    fn a_dry_run_says_what_would_happen() {
        let rest = "1,200 are stored, 200 unread";
        assert_eq!(told(1_000, 0, 1_200, 200), format!("would read 1,000 messages again; {rest}"));
        assert_eq!(told(0, 200, 1_200, 200), format!("would skip 200 messages; {rest}"));
        assert_eq!(told(5, 3, 1_200, 200), format!("would read 5 messages again and skip 3; {rest}"));
        assert_eq!(told(0, 0, 1_200, 200), format!("would change nothing; {rest}"));
    }
}
