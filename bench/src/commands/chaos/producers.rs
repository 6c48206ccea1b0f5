//! Writers. Each owns its lanes, and sends the next message of a lane when it knows that the last one is accepted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::caller::{Caller, Run, parse};
use super::history::{Key, Lane, Outcome, Push, QUEUES, Receipt, SOURCE};

/// Without ids of their own: never sent again, stored at most once.
const ANONYMOUS_PERCENT: u32 = 12;
/// Over several lanes at once.
const SPREAD_PERCENT: u32 = 25;
const ITEMS_MAX: u32 = 6;
const PAUSE_MS: u32 = 60;
/// Deliveries that are owed. Consumers that have to catch up on a slow machine are no part of the test.
const BACKLOG_MAX: usize = 4_000;

pub struct Producer {
    caller: Caller,
    lanes: Vec<Lane>,
    /// Of each lane.
    next: Vec<u32>,
}

#[derive(Deserialize)]
struct Pushed {
    message_id: Uuid,
    status: String,
    #[serde(default, rename = "operationId")]
    operation_id: Option<Uuid>,
}

impl Producer {
    pub fn new(run: &Arc<Run>, seed: u64, lanes: Vec<u16>) -> Producer {
        let lanes: Vec<Lane> = lanes.into_iter().map(|number| Lane { queue: SOURCE, number }).collect();
        Producer { caller: Caller::new(run, seed), next: vec![0; lanes.len()], lanes }
    }

    pub async fn work(mut self) -> Result<()> {
        let _writing = self.caller.run.writing();
        while self.caller.is_loading() {
            let items = self.choose();
            let own_ids = !self.caller.percent(ANONYMOUS_PERCENT);
            self.send(&items, own_ids).await?;
            let pause = self.caller.between(0..PAUSE_MS);
            self.caller.run.pause(Duration::from_millis(pause.into())).await;
            while self.caller.is_loading() && self.caller.run.history().missing() > BACKLOG_MAX {
                self.caller.run.pause(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    fn choose(&mut self) -> Vec<Key> {
        let spread = self.caller.percent(SPREAD_PERCENT);
        let count = self.caller.between(1..ITEMS_MAX + 1);
        let mut place = self.caller.random.below(self.lanes.len() as u32) as usize;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(Key { lane: self.lanes[place], seq: self.next[place] });
            self.next[place] += 1;
            if spread {
                place = (place + 1) % self.lanes.len();
            }
        }
        items
    }

    async fn send(&mut self, items: &[Key], own_ids: bool) -> Result<()> {
        let body = json!({ "items": items.iter().map(|&key| item(key, own_ids)).collect::<Vec<_>>() });
        let body = body.to_string();
        loop {
            let answer = self.caller.post("/api/v1/push", body.as_bytes()).await?;
            let outcome = match answer.body() {
                Some(body) => Outcome::Answered(receipts(body, items.len())?),
                None => Outcome::Unknown,
            };
            let known = match &outcome {
                Outcome::Answered(receipts) => !receipts.contains(&Receipt::Failed),
                Outcome::Unknown => false,
            };
            self.caller.run.history().push(Push {
                sent: answer.sent,
                broker: answer.broker,
                items: items.to_vec(),
                outcome,
            });
            if known || !own_ids || self.caller.is_over() {
                return Ok(());
            }
        }
    }
}

pub fn item(key: Key, own_id: bool) -> Value {
    let Key { lane, seq } = key;
    let mut item = json!({
        "queue": QUEUES[usize::from(lane.queue)],
        "partition": lane.number.to_string(),
        "payload": {"queue": lane.queue, "lane": lane.number, "seq": seq},
    });
    if own_id {
        item["transactionId"] = Value::String(format!("{}-{}-{seq}", lane.queue, lane.number));
    }
    item
}

fn receipts(body: &[u8], count: usize) -> Result<Vec<Receipt>> {
    let pushed: Vec<Pushed> = parse(body)?;
    ensure!(pushed.len() == count, "{} results for {count} items", pushed.len());
    Ok(pushed
        .iter()
        .map(|one| match &*one.status {
            "queued" if one.operation_id.is_some() => Receipt::Deferred(one.message_id),
            "queued" | "duplicate" => Receipt::Stored(one.message_id),
            "buffered" => Receipt::Buffered(one.message_id),
            _ => Receipt::Failed,
        })
        .collect())
}
