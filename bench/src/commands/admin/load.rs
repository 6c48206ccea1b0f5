//! Fills an empty broker over HTTP: one large queue that two groups have started to read, and many small ones.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::GROUPS;
use super::traffic::{Ledger, Place};
use crate::options::AdminOptions;
use crate::report::thousands;
use crate::setup::{ACK, PUSH, Setup};
use crate::wire::{PushBody, Stamp, ack_body, check_acked, check_pushed, expect_status, group_query, popped};

/// Size of a small queue; messages are per partition.
const SMALL_PARTITIONS: u32 = 4;
const SMALL_MESSAGES: u32 = 5;
/// Small queues per namespace and task.
const NAMESPACES: u32 = 20;
const TASKS: u32 = 7;

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Partitions of the large queue.
    pub partitions: u32,
    /// Messages in each of them.
    pub messages: u32,
    /// Number of small queues beside the large one.
    pub small_queues: u32,
}

impl Size {
    pub fn of(admin: &AdminOptions) -> Size {
        Size {
            partitions: admin.partitions.unwrap_or(if admin.quick { 2_000 } else { 100_000 }),
            messages: admin.messages,
            small_queues: admin.queues.unwrap_or(if admin.quick { 50 } else { 500 }),
        }
    }

    fn total(self) -> u64 {
        u64::from(self.partitions) * u64::from(self.messages)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { partitions, small_queues, .. } = self;
        let [partitions, messages] = [f64::from(*partitions), self.total() as f64].map(thousands);
        write!(f, "{partitions} partitions with {messages} messages, and {small_queues} small queues")
    }
}

/// Returns the name of the large queue, and how many seconds filling took.
pub async fn fill(setup: &Setup, size: Size, ledger: &Arc<Ledger>) -> Result<(String, f64)> {
    let started = Instant::now();
    let queue = setup.create_queue("admin").await?;
    setup.preload(&queue, size.partitions, size.messages, None).await?;
    ledger.add_pushed(size.total());
    // The groups are at different positions, so that lags vary.
    let place = Place { queue: &queue, partitions: size.partitions, ledger };
    for (group, part) in GROUPS.iter().zip([10, 20]) {
        place.consume(setup, group, size.total() / part).await?;
    }
    for number in 0..size.small_queues {
        small_queue(setup, number).await?;
    }
    Ok((queue, started.elapsed().as_secs_f64()))
}

/// Creates a small queue with a group that has read a message of it.
async fn small_queue(setup: &Setup, number: u32) -> Result<()> {
    let mut client = setup.client();
    let queue = format!("small-{number}");
    let (namespace, task) = (number % NAMESPACES, number % TASKS);
    let body = format!(
        r#"{{"queue":"{queue}","namespace":"namespace-{namespace}","task":"task-{task}","options":{{"leaseTime":60}}}}"#
    );
    expect_status("configure", &client.post("/api/v1/configure", body.as_bytes()).await?, 200)?;
    let mut body = PushBody::new(&queue, setup.options.payload);
    for partition in 0..SMALL_PARTITIONS {
        for seq in 0..SMALL_MESSAGES {
            body.add(Stamp { producer: 0, partition, seq, sent: 0 });
        }
    }
    let items = body.items();
    check_pushed(&client.post(PUSH, body.finish()).await?, items)?;
    let reply = client.get(&format!("/api/v1/pop/queue/{queue}?batch=1{}", group_query(GROUPS[0]))).await?;
    let messages = popped(&reply)?;
    if messages.is_empty() {
        bail!("no messages in {queue}");
    }
    check_acked(&client.post(ACK, &ack_body(&messages, Some(GROUPS[0]))).await?, messages.len())
}

/// Measures everything that changed, and returns how many milliseconds that took.
pub async fn refresh(setup: &Setup) -> Result<f64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Refreshed {
        duration_ms: f64,
    }
    let reply = setup.client().post("/api/v1/stats/refresh", b"{}").await?;
    expect_status("refresh", &reply, 200)?;
    Ok(serde_json::from_slice::<Refreshed>(&reply.body)?.duration_ms)
}
