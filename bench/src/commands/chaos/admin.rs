//! An operator at work during the load: configures queues, moves a group back, deletes and recreates a queue, and redrives dead
//! letters.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use super::caller::{Caller, Run, parse};
use super::history::{
    FLEETING, FRAIL, GROUPS, Key, Lane, Outcome, QUEUES, REPEATS, REWOUND, SOURCE, Seek, Span,
};
use super::leased::LEASE;
use crate::direct::Link;

/// A message becomes a dead letter after this many failures and one more.
pub const RETRY_LIMIT: u32 = 1;
/// By then a requested delete has happened, or never will.
const DELETE_LANDS: Duration = Duration::from_secs(12);

/// The queue as this test needs it. `plain`: without features in which the previous release has bugs.
pub fn configuration(queue: u8, plain: bool) -> Value {
    let mut options = json!({"leaseTime": LEASE.as_secs(), "retryLimit": 1_000_000});
    match queue {
        _ if plain => {}
        // Retention removes what all groups have completed. One group is away, and nothing may be removed before it has read it.
        SOURCE => {
            options["retentionEnabled"] = json!(true);
            options["completedRetentionSeconds"] = json!(1);
        }
        REPEATS => {
            options["dedupWindowSeconds"] = json!(0);
            options["retentionEnabled"] = json!(true);
            options["completedRetentionSeconds"] = json!(1);
        }
        FRAIL => options["retryLimit"] = json!(RETRY_LIMIT),
        _ => {}
    }
    json!({"queue": QUEUES[usize::from(queue)], "options": options})
}

pub struct Admin {
    caller: Caller,
}

impl Admin {
    pub fn new(run: &Arc<Run>, seed: u64) -> Admin {
        Admin { caller: Caller::new(run, seed) }
    }

    pub async fn work(mut self) -> Result<()> {
        // A seek needs an existing group.
        while self.caller.is_loading()
            && self.caller.run.history().pops.iter().all(|pop| pop.group != REWOUND)
        {
            self.caller.run.pause(Duration::from_millis(100)).await;
        }
        while self.caller.is_loading() {
            let pause = self.caller.between(200..1_500);
            self.caller.run.pause(Duration::from_millis(pause.into())).await;
            match self.caller.random.below(100) {
                0..40 => self.configure().await?,
                40..55 => self.rewind().await?,
                55..75 => self.delete().await?,
                75..90 => self.redrive().await?,
                _ => self.retry_one().await?,
            }
        }
        Ok(())
    }

    /// Configures the queue with its current options, which makes brokers drop their caches of it.
    async fn configure(&mut self) -> Result<()> {
        let queue = self.caller.random.below(QUEUES.len() as u32) as u8;
        let body = configuration(queue, false).to_string();
        self.caller.post("/api/v1/configure", body.as_bytes()).await?;
        Ok(())
    }

    async fn rewind(&mut self) -> Result<()> {
        let (group, queue, _) = GROUPS[REWOUND];
        let path = format!("/api/v1/consumer-groups/{group}/queues/{}/seek", QUEUES[usize::from(queue)]);
        let answer =
            self.caller.post(&path, br#"{"timestamp":"1970-01-01T00:00:00Z","create":true}"#).await?;
        let outcome = match answer.body() {
            Some(_) => Outcome::Answered(()),
            None => Outcome::Unknown,
        };
        self.caller.run.history().seeks.push(Seek { sent: answer.sent, outcome });
        Ok(())
    }

    async fn delete(&mut self) -> Result<()> {
        let path = format!("/api/v1/resources/queues/{}", QUEUES[usize::from(FLEETING)]);
        let answer = self.caller.delete(&path).await?;
        let lands = if answer.body().is_some() { Duration::ZERO } else { DELETE_LANDS };
        let span = Span { from: answer.sent, until: answer.ended + lands };
        self.caller.run.history().deletes.push(span);
        let body = configuration(FLEETING, false).to_string();
        self.caller.post("/api/v1/configure", body.as_bytes()).await?;
        Ok(())
    }

    async fn redrive(&mut self) -> Result<()> {
        let body = json!({"queue": QUEUES[usize::from(FRAIL)]}).to_string();
        self.caller.post("/api/v1/dlq/redrive", body.as_bytes()).await?;
        Ok(())
    }

    /// Replays one dead letter, through a route that once was abandoned inside its transaction.
    /// The dead letter may be gone.
    async fn retry_one(&mut self) -> Result<()> {
        let path = format!("/api/v1/dlq?queue={}&limit=1", QUEUES[usize::from(FRAIL)]);
        let answer = self.caller.get(&path, Duration::ZERO).await?;
        let letters = answer.body().map(parse::<Letters>).transpose()?;
        if let Some(letter) = letters.and_then(|mut letters| letters.messages.pop()) {
            let Letter { partition_id, transaction_id } = letter;
            let path = format!("/api/v1/messages/{partition_id}/{transaction_id}/retry");
            self.caller.post_unless_gone(&path).await?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Letters {
    messages: Vec<Letter>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Letter {
    partition_id: String,
    transaction_id: String,
}

/// The contents of the dead-letter queue once everything has settled.
pub async fn note_dead_letters(run: &Run, link: &Link) -> Result<()> {
    let query = "select partition::int, (payload::jsonb ->> 'seq')::int, message_id
        from queen.dead_letters where queue = $1";
    let rows = link.client.query(query, &[&QUEUES[usize::from(FRAIL)]]).await?;
    for row in rows {
        let number = u16::try_from(row.try_get::<_, i32>(0)?)?;
        let seq = u32::try_from(row.try_get::<_, i32>(1)?)?;
        let key = Key { lane: Lane { queue: FRAIL, number }, seq };
        run.history().dead.push((key, row.try_get(2)?));
    }
    Ok(())
}

/// How many messages retention has removed from a queue that no group is away from.
pub async fn removed(link: &Link) -> Result<u64> {
    let query = "select coalesce(sum(h.tail), 0)::bigint from queen.queues q
        join queen.partitions p on p.queue_id = q.id cross join lateral queen.head_of(p.id) h where q.name = $1";
    let row = link.client.query_one(query, &[&QUEUES[usize::from(REPEATS)]]).await?;
    Ok(u64::try_from(row.try_get::<_, i64>(0)?)?)
}
