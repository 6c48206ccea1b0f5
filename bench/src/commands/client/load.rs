//! Loads for the client, as programs would use it. Each handles a number of messages and returns how many it handled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Result, ensure};
use queen_client::{Buffer, Consuming, Error, Message, Queen, Queue, Subscription};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

const PARTITIONS: u64 = 100;
/// Tasks that push, and workers of a consumer.
const TASKS: u64 = 16;
/// Single requests are about ten times as slow, so there are fewer.
const SINGLE_PART: u64 = 10;
const BATCH: u64 = 100;
const LARGE_BATCH: u32 = 1_000;
/// Messages that a worker takes at once.
const POP_PARTITIONS: u32 = 10;

#[derive(Clone, Copy)]
pub enum Load {
    PushOne,
    PushAll,
    Buffer,
    EachOne,
    Each,
    Batches,
    EndToEnd,
}

/// Pushes come before consumers of the same messages.
pub const LOADS: [Load; 7] =
    [Load::PushOne, Load::PushAll, Load::Buffer, Load::EachOne, Load::Each, Load::Batches, Load::EndToEnd];

/// An order as a shop would push it, 256 bytes of JSON.
#[derive(Clone, Serialize, Deserialize)]
struct Order {
    customer: String,
    total: u64,
    lines: Vec<u32>,
    note: String,
}

impl Order {
    fn new() -> Self {
        let (customer, note) = ("customer-42".to_owned(), "x".repeat(192));
        Self { customer, total: 1_234, lines: vec![1, 2, 3], note }
    }
}

pub async fn warm_up(queen: &Queen, messages: u64) -> Result<()> {
    let queue = queen.queue("warm-up");
    through_buffer(&queue, messages).await?;
    consume(&queue, "warm-up", messages, Load::Each).await
}

impl Load {
    pub fn name(self) -> &'static str {
        match self {
            Load::PushOne => "push, one per request",
            Load::PushAll => "push_all, 100 a request",
            Load::Buffer => "buffer, one at a time",
            Load::EachOne => "consume each, one per request",
            Load::Each => "consume each, 100 per request",
            Load::Batches => "consume batches of 1000",
            Load::EndToEnd => "buffer and consume each, concurrently",
        }
    }

    pub async fn run(self, queen: &Queen, messages: u64) -> Result<u64> {
        let single = messages / SINGLE_PART;
        match self {
            Load::PushOne => push(&queen.queue("singles"), single / TASKS, 1).await,
            Load::PushAll => push(&queen.queue("batches"), messages / TASKS / BATCH, BATCH).await,
            Load::Buffer => through_buffer(&queen.queue("buffered"), messages).await.map(|()| messages),
            Load::EachOne => consume(&queen.queue("buffered"), "one", single, self).await.map(|()| single),
            Load::Each => consume(&queen.queue("buffered"), "each", messages, self).await.map(|()| messages),
            Load::Batches => {
                consume(&queen.queue("buffered"), "batches", messages, self).await.map(|()| messages)
            }
            Load::EndToEnd => {
                let queue = queen.queue("live");
                let producing = through_buffer(&queue, messages);
                tokio::try_join!(producing, consume(&queue, "live", messages, self))?;
                Ok(messages)
            }
        }
    }
}

/// Requests of every task.
async fn push(queue: &Queue, requests: u64, batch: u64) -> Result<u64> {
    let orders = vec![Order::new(); usize::try_from(batch)?];
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (queue, orders) = (queue.clone(), orders.clone());
        tasks.spawn(async move {
            for request in 0..requests {
                let partition = queue.partition(format!("p{}", (request * TASKS + task) % PARTITIONS));
                match orders.as_slice() {
                    [order] => _ = partition.push(order).await?,
                    orders => _ = partition.push_all(orders).await?,
                }
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(requests * TASKS * batch)
}

async fn through_buffer(queue: &Queue, messages: u64) -> Result<()> {
    let buffer: Buffer = queue.buffer().start()?;
    let order = Order::new();
    let partitions: Vec<String> = (0..PARTITIONS).map(|number| format!("p{number}")).collect();
    for partition in partitions.iter().cycle().take(usize::try_from(messages)?) {
        // Receipts could be awaited individually; this waits for all of them.
        _ = buffer.partition(partition).push(&order).await?;
    }
    Ok(buffer.close().await?)
}

async fn consume(queue: &Queue, group: &str, messages: u64, load: Load) -> Result<()> {
    let got = Arc::new(AtomicU64::new(0));
    let summary = consuming(queue, group, load, got.clone(), messages).await?;
    let got = got.load(Relaxed);
    ensure!(got >= messages && summary.failed == 0, "{got} of {messages} messages arrived: {summary:?}");
    Ok(())
}

fn consuming(queue: &Queue, group: &str, load: Load, got: Arc<AtomicU64>, messages: u64) -> Consuming {
    let (batch, partitions) = match load {
        Load::EachOne => (1, 1),
        Load::Batches => (LARGE_BATCH, POP_PARTITIONS),
        _ => (BATCH as u32, POP_PARTITIONS),
    };
    let consume = queue
        .group(group)
        .consume()
        .subscription(Subscription::All)
        .batch(batch)
        .partitions(partitions)
        .concurrency(TASKS as usize)
        .limit(messages)
        .on_error(|error| eprintln!("{error}"));
    match load {
        Load::Batches => consume.batches(move |orders: Vec<Message<Order>>, _| {
            got.fetch_add(orders.len() as u64, Relaxed);
            async { Ok::<_, Error>(()) }
        }),
        _ => consume.each(move |order: Message<Order>, _| {
            got.fetch_add(u64::from(order.data.total > 0), Relaxed);
            async { Ok::<_, Error>(()) }
        }),
    }
}
