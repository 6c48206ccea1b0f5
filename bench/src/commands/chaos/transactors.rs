//! Consumers of the source that write to the sink: they acknowledge and push two messages, atomically.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;

use super::caller::{Caller, Run, parse};
use super::history::{GROUPS, Key, Lane, MOVERS, Outcome, SINK, Transaction};
use super::leased::{LEASE, Leased, Wish, pop};
use super::producers::{Ids, item};

/// How often a transaction with a lost response is retried. A repeated one is refused, because its lease has ended.
const TRIES: u32 = 3;
/// After the load, larger batches finish the rest quickly.
const DRAIN_BATCH: u32 = 200;
/// Share of transactions that are sent after the lease has expired.
const LATE_PERCENT: u32 = 6;

pub struct Transactor {
    caller: Caller,
    /// The two lanes that only this transactor writes to.
    outputs: [Lane; 2],
    next: [u32; 2],
    numbers: Arc<AtomicU32>,
}

impl Transactor {
    pub fn new(run: &Arc<Run>, seed: u64, place: u16, numbers: Arc<AtomicU32>) -> Transactor {
        let outputs = [0, 1].map(|half| Lane { queue: SINK, number: place * 2 + half });
        Transactor { caller: Caller::new(run, seed), outputs, next: [0; 2], numbers }
    }

    pub async fn work(mut self) -> Result<()> {
        while !self.caller.is_over() {
            let wait = if self.caller.percent(50) { 500 } else { 0 };
            let most = if self.caller.is_loading() { 8 } else { DRAIN_BATCH };
            let batch = self.caller.between(1..most);
            let wait = Duration::from_millis(wait);
            let wish = Wish { group: MOVERS, lane: None, batch, lanes: 1, wait, auto_ack: false };
            let Some(leased) = pop(&mut self.caller, &wish).await? else {
                self.caller.run.pause(Duration::from_millis(20)).await;
                continue;
            };
            let _writing = self.caller.run.writing();
            if self.caller.is_loading() && self.caller.percent(LATE_PERCENT) {
                self.caller.run.pause(LEASE + Duration::from_millis(500)).await;
            }
            self.send(&leased).await?;
        }
        Ok(())
    }

    async fn send(&mut self, leased: &Leased) -> Result<()> {
        #[derive(Deserialize)]
        struct Done {
            success: bool,
        }
        let Some(last) = leased.messages.last() else { return Ok(()) };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let outputs: Vec<Key> = (0..2)
            .map(|half| {
                let key = Key { lane: self.outputs[half], seq: self.next[half] };
                self.next[half] += 1;
                key
            })
            .collect();
        // Without ids, a retry is safe only because it ends the lease that it requires.
        let ids = if self.caller.percent(70) { Ids::Own } else { Ids::None };
        let ack = json!({
            "type": "ack", "transactionId": last.transaction_id, "messageId": last.id, "partitionId": last.partition_id,
            "consumerGroup": GROUPS[MOVERS].0, "leaseId": leased.lease,
        });
        let push = |key| json!({"type": "push", "items": [item(key, ids)]});
        let operations = match self.caller.percent(50) {
            true => vec![push(outputs[0]), ack, push(outputs[1])],
            false => vec![ack, push(outputs[0]), push(outputs[1])],
        };
        let body = json!({"operations": operations, "requiredLeases": [leased.lease]}).to_string();
        for _ in 0..TRIES {
            let answer = self.caller.post("/api/v1/transaction", body.as_bytes()).await?;
            let outcome = match answer.body() {
                Some(body) => Outcome::Answered(parse::<Done>(body)?.success),
                None => Outcome::Unknown,
            };
            let known = outcome != Outcome::Unknown;
            self.caller.run.history().transaction(Transaction {
                sent: answer.sent,
                ended: answer.ended,
                number,
                broker: answer.broker,
                lease: leased.lease.clone(),
                sources: leased.messages.iter().map(|message| message.key).collect(),
                outputs: outputs.clone(),
                outcome,
            });
            if known {
                break;
            }
        }
        Ok(())
    }
}
