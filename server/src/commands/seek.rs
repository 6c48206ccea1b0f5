//! `queen seek`: sends a group back to read again, or on past what it has not read.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use queen_client::admin::Position;
use serde_json::json;

use super::connect::Connect;
use super::exit::Exit;
use super::text::thousands;
use super::{groups, queues, times};

/// Moves a consumer group in a queue: to the beginning, to the end, or to a time.
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
    /// Moves nothing, and says what it would do.
    #[arg(long)]
    dry_run: bool,
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
    let Seek { queue, group, to, dry_run } = seek;
    let stored = queues::exists(&admin, &queue).await?;
    groups::stands(&admin, &group, Some(&queue)).await?;
    if dry_run {
        let unread = admin.depth(&queue, &group).await?.pending;
        let forecast = Forecast::of(to, stored, unread);
        let document = json!({"queue": queue, "group": group, "dryRun": true, "stored": stored, "unread": unread,
                              "replays": forecast.replays, "skips": forecast.skips});
        output.done(&document, &forecast.told(stored, unread))?;
        return Ok(Exit::Done);
    }
    let position = match to {
        Target::Beginning => Position::Beginning,
        Target::End => Position::End,
        Target::Time(time) => Position::Time(time),
    };
    let moved = admin.seek(&group, &queue, position).await?.partitions_updated;
    let unread = admin.depth(&queue, &group).await?.pending;
    let document =
        json!({"queue": queue, "group": group, "dryRun": false, "partitions": moved, "unread": unread});
    let text =
        format!("{group} was moved in {moved} partition(s) of {queue} and has {} to read", thousands(unread));
    output.done(&document, &text)?;
    Ok(Exit::Done)
}

/// What a seek would do. `None`: brokers cannot tell before.
#[derive(Debug, PartialEq, Eq)]
struct Forecast {
    replays: Option<u64>,
    skips: Option<u64>,
}

impl Forecast {
    fn of(to: Target, stored: u64, unread: u64) -> Self {
        match to {
            Target::Beginning => Self { replays: Some(stored.saturating_sub(unread)), skips: Some(0) },
            Target::End => Self { replays: Some(0), skips: Some(unread) },
            Target::Time(_) => Self { replays: None, skips: None },
        }
    }

    fn told(&self, stored: u64, unread: u64) -> String {
        let rest = format!("{} are stored, {} unread", thousands(stored), thousands(unread));
        match (self.replays, self.skips) {
            (Some(replays), Some(0)) => format!("would read {} messages again; {rest}", thousands(replays)),
            (_, Some(skips)) => format!("would skip {} messages; {rest}", thousands(skips)),
            (_, None) => format!("the broker cannot tell how many were pushed after a time; {rest}"),
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
    fn a_dry_run_says_what_is_known() {
        let beginning = Forecast::of(Target::Beginning, 1_200, 200);
        assert_eq!(
            beginning.told(1_200, 200),
            "would read 1,000 messages again; 1,200 are stored, 200 unread"
        );
        assert_eq!(Forecast::of(Target::End, 1_200, 200).skips, Some(200));
        assert_eq!(Forecast::of(Target::Time(SystemTime::UNIX_EPOCH), 9, 9).replays, None);
    }
}
