//! Producers. Each owns its lanes, and sends the next message of a lane once the last one is accepted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::caller::{Caller, Run, parse};
use super::history::{Key, Lane, Outcome, Push, QUEUES, REPEATS, Receipt};

/// Share of pushes without transaction ids: never retried, stored at most once.
const ANONYMOUS_PERCENT: u32 = 12;
/// Share of pushes to several lanes at once.
const SPREAD_PERCENT: u32 = 25;
const ITEMS_MAX: u32 = 6;
/// Share of pushes that are too large for one statement, so that one part of the request may be stored and another not.
const LARGE_PERCENT: u32 = 2;
const LARGE_ITEMS: u32 = 40;
const LARGE_BYTES: usize = 20_000;
/// The ids for a queue without deduplication, used repeatedly.
const REPEATED_IDS: u32 = 3;
const NEW_LANE_PERCENT: u32 = 2;
const PAUSE_MS: u32 = 60;
/// Limit of owed deliveries, because slow consumers on a slow machine are not part of the test.
const BACKLOG_MAX: usize = 5_000;

pub struct Producer {
    caller: Caller,
    lanes: Vec<Lane>,
    /// The next message of each lane.
    next: Vec<u32>,
    /// Number of lanes in use: the rest is created during the run.
    open: usize,
}

#[derive(Deserialize)]
struct Pushed {
    message_id: Uuid,
    status: String,
    #[serde(default, rename = "operationId")]
    operation_id: Option<Uuid>,
}

impl Producer {
    pub fn new(run: &Arc<Run>, seed: u64, queue: u8, lanes: Vec<u16>) -> Producer {
        let lanes: Vec<Lane> = lanes.into_iter().map(|number| Lane { queue, number }).collect();
        Producer { caller: Caller::new(run, seed), next: vec![0; lanes.len()], lanes, open: 1 }
    }

    pub async fn work(mut self) -> Result<()> {
        let _writing = self.caller.run.writing();
        while self.caller.is_loading() {
            let large = self.caller.percent(LARGE_PERCENT);
            let items = self.choose(large);
            let repeats = self.lanes[0].queue == REPEATS;
            let own_ids = !repeats && !self.caller.percent(ANONYMOUS_PERCENT);
            let ids = match (repeats, own_ids) {
                (true, _) => Ids::Repeated,
                (_, true) => Ids::Own,
                (_, false) => Ids::None,
            };
            self.send(&items, ids, if large { LARGE_BYTES } else { 0 }).await?;
            let pause = self.caller.between(0..PAUSE_MS);
            self.caller.run.pause(Duration::from_millis(pause.into())).await;
            while self.caller.is_loading() && self.is_ahead() {
                self.caller.run.pause(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    fn is_ahead(&self) -> bool {
        !self.caller.run.is_hurried() && self.caller.run.history().backlog() > BACKLOG_MAX
    }

    fn choose(&mut self, large: bool) -> Vec<Key> {
        let spread = self.caller.percent(SPREAD_PERCENT);
        let count = if large { LARGE_ITEMS } else { self.caller.between(1..ITEMS_MAX + 1) };
        if self.open < self.lanes.len() && self.caller.percent(NEW_LANE_PERCENT) {
            self.open += 1;
        }
        let mut place = self.caller.random.below(self.open as u32) as usize;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(Key { lane: self.lanes[place], seq: self.next[place] });
            self.next[place] += 1;
            if spread {
                place = (place + 1) % self.open;
            }
        }
        items
    }

    async fn send(&mut self, items: &[Key], ids: Ids, padding: usize) -> Result<()> {
        let mut items_sent: Vec<_> = items.iter().map(|&key| item(key, ids)).collect();
        if padding > 0 {
            for item in &mut items_sent {
                item["payload"]["padding"] = Value::String("x".repeat(padding));
            }
        }
        let body = json!({ "items": items_sent });
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
                ended: answer.ended,
                broker: answer.broker,
                items: items.to_vec(),
                outcome,
            });
            if known || ids != Ids::Own || self.caller.is_over() {
                return Ok(());
            }
        }
    }
}

/// The transaction ids of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// One per message, so that it can be retried.
    Own,
    /// The broker chooses.
    None,
    /// The same few for all messages of a lane.
    Repeated,
}

pub fn item(key: Key, ids: Ids) -> Value {
    let Key { lane, seq } = key;
    let mut item = json!({
        "queue": QUEUES[usize::from(lane.queue)],
        "partition": lane.number.to_string(),
        "payload": {"queue": lane.queue, "lane": lane.number, "seq": seq},
    });
    let number = match ids {
        Ids::Own => seq,
        Ids::Repeated => seq % REPEATED_IDS,
        Ids::None => return item,
    };
    item["transactionId"] = Value::String(format!("{}-{}-{number}", lane.queue, lane.number));
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
