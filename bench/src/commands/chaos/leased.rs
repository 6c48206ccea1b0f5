//! A pop, and its messages.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;
use uuid::Uuid;

use super::caller::{Caller, parse};
use super::history::{GROUPS, Group, Key, Lane, Pop, QUEUES};

/// Short, so that many expire.
pub const LEASE: Duration = Duration::from_secs(2);

/// The parameters of a pop.
pub struct Wish {
    pub group: Group,
    /// None: any lane.
    pub lane: Option<u16>,
    pub batch: u32,
    pub lanes: u32,
    /// Zero: no wait.
    pub wait: Duration,
    /// Auto-ack, without a lease.
    pub auto_ack: bool,
}

/// The messages of one pop.
pub struct Leased {
    pub lease: String,
    pub messages: Vec<Message>,
}

pub struct Message {
    pub key: Key,
    pub id: Uuid,
    pub transaction_id: String,
    pub partition_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Popped {
    lease_id: Option<String>,
    messages: Vec<Delivered>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delivered {
    id: Uuid,
    transaction_id: String,
    partition_id: String,
    partition: String,
    queue: String,
    data: Stamp,
}

#[derive(Deserialize)]
struct Stamp {
    queue: u8,
    lane: u16,
    seq: u32,
}

/// None without messages, or without a response.
pub async fn pop(caller: &mut Caller, wish: &Wish) -> Result<Option<Leased>> {
    let (group, queue, _) = GROUPS[wish.group];
    let queue = QUEUES[usize::from(queue)];
    let place = wish.lane.map(|lane| format!("/partition/{lane}")).unwrap_or_default();
    let path = format!(
        "/api/v1/pop/queue/{queue}{place}?consumerGroup={group}&batch={}&partitions={}&wait={}&timeout={}&autoAck={}",
        wish.batch,
        wish.lanes,
        !wish.wait.is_zero(),
        wish.wait.as_millis(),
        wish.auto_ack
    );
    let answer = caller.get(&path, wish.wait).await?;
    if answer.status() == Some(204) {
        return Ok(None);
    }
    let Some(body) = answer.body() else {
        let mut history = caller.run.history();
        history.lost_pops += 1;
        if wish.auto_ack {
            history.lost_auto_acks += u64::from(wish.batch);
        }
        return Ok(None);
    };
    let popped: Popped = parse(body)?;
    ensure!(!popped.messages.is_empty(), "a pop that is not empty without messages");
    let mut delivered = Vec::new();
    let mut messages = Vec::new();
    for one in popped.messages {
        let Stamp { queue: number, lane, seq } = one.data;
        ensure!(
            one.queue == queue && one.partition == lane.to_string(),
            "a message of {lane} came from {}",
            one.partition
        );
        let key = Key { lane: Lane { queue: number, number: lane }, seq };
        delivered.push((key, one.id));
        let Delivered { id, transaction_id, partition_id, .. } = one;
        messages.push(Message { key, id, transaction_id, partition_id });
    }
    // A pop without a lease gets an id derived from its first message.
    let lease = popped.lease_id.unwrap_or_else(|| format!("none-{}", messages[0].id));
    caller.run.history().pop(Pop {
        sent: answer.sent,
        ended: answer.ended,
        broker: answer.broker,
        group: wish.group,
        lease: lease.clone(),
        lease_time: LEASE,
        wait: wish.wait,
        messages: delivered,
    });
    Ok(Some(Leased { lease, messages }))
}
