//! `queen bench`: a short load on a temporary queue. To measure a broker's limits, see `queen-bench`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget};
use queen_client::admin::QueueOptions;
use queen_client::{Error, ErrorKind, Item, Message, Queen, Queue};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::connect::Connect;
use super::exit::{Exit, Refused};
use super::interrupt::Interrupt;
use super::output::{Card, Cell, note};
use queen_protocol::units::some_seconds;

const GROUP: &str = "bench";
/// After the producers stop, consumers have this long to read what is left. The rest counts as lost.
const DRAIN_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Upper bound of the latency histograms: one minute.
const LATENCY_MAX_US: u64 = 60_000_000;
/// How many partitions a consumer leases at once.
const POP_PARTITIONS: u32 = 10;

/// Run a short load and report throughput and latency.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  queen bench
  queen bench --time 10s --producers 8 --batch 1000 --json | jq .pushedPerSecond")]
pub struct Bench {
    /// How long to push.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = some_seconds)]
    time: Duration,
    /// Number of concurrent producers.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = some(1_000))]
    producers: u64,
    /// Number of concurrent consumers.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = some(1_000))]
    consumers: u64,
    /// Messages per request.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = some(10_000))]
    batch: u64,
    /// Number of partitions.
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = some(100_000))]
    partitions: u64,
    /// Approximate payload size in bytes.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = some(1_000_000))]
    bytes: u64,
}

fn some(most: u64) -> RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=most)
}

#[derive(Debug, Serialize, Deserialize)]
struct Load {
    /// Microseconds since the start.
    at: u64,
    fill: String,
}

/// What producers and consumers record.
struct Notes {
    began: Instant,
    pushed: AtomicU64,
    consumed: AtomicU64,
    /// When the last message was consumed.
    last: AtomicU64,
    pushes: Mutex<Histogram<u64>>,
    deliveries: Mutex<Histogram<u64>>,
}

impl Notes {
    fn new() -> Result<Arc<Self>> {
        let histogram = || Histogram::new_with_max(LATENCY_MAX_US, 3).map(Mutex::new);
        Ok(Arc::new(Self {
            began: Instant::now(),
            pushed: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
            last: AtomicU64::new(0),
            pushes: histogram()?,
            deliveries: histogram()?,
        }))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

fn of(histogram: &Mutex<Histogram<u64>>) -> MutexGuard<'_, Histogram<u64>> {
    histogram.lock().unwrap_or_else(PoisonError::into_inner)
}

pub async fn run(bench: Bench, connect: &Connect) -> Result<Exit> {
    let (queen, output) = (connect.client()?, connect.output());
    let queue = queen.queue(format!("queen-bench-{}", Uuid::now_v7().simple()));
    may_tidy(&queen, &queue).await?;
    // An interrupt needs no cleanup up to here.
    let mut interrupt = Interrupt::listen()?;
    let interrupted = || Refused::error(Exit::Interrupted, "interrupted");
    let made = interrupt.or(queen.admin().configure(queue.name(), &QueueOptions::default())).await;
    let measured = match made {
        Some(made) => {
            made?;
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar.set_message(format!("pushing and consuming for {:?}", bench.time));
            let measured = interrupt.or(measure(&bench, &queue)).await;
            bar.finish_and_clear();
            measured.unwrap_or_else(|| Err(interrupted()))
        }
        None => Err(interrupted()),
    };
    tidy(&queen, &queue, &mut interrupt).await;
    let notes = measured?;
    output.card(&report(&notes, bench.time))?;
    match (notes.pushed.load(Relaxed), notes.consumed.load(Relaxed)) {
        (pushed, consumed) if consumed < pushed => {
            let text = format!("{} messages did not arrive within {DRAIN_MAX:?}", pushed - consumed);
            Err(Refused::error(Exit::Failed, text))
        }
        _ => Ok(Exit::Done),
    }
}

/// Deletes the queue before it exists: a token that may not do that could not clean up at the end either.
async fn may_tidy(queen: &Queen, queue: &Queue) -> Result<()> {
    queen.admin().delete_queue(queue.name()).await.map_err(|error| match error.kind() {
        ErrorKind::Forbidden => anyhow::Error::new(error)
            .context("the bench deletes its queue at the end, and this token may not delete queues"),
        _ => error.into(),
    })?;
    Ok(())
}

async fn tidy(queen: &Queen, queue: &Queue, interrupt: &mut Interrupt) {
    let why = match interrupt.or(queen.admin().delete_queue(queue.name())).await {
        Some(Ok(_)) => return,
        Some(Err(error)) => error.to_string(),
        None => "interrupted".to_owned(),
    };
    note(format!("queue {} was not deleted: {why}", queue.name()));
}

async fn measure(bench: &Bench, queue: &Queue) -> Result<Arc<Notes>> {
    let notes = Notes::new()?;
    let noted = notes.clone();
    let consumer = queue
        .group(GROUP)
        .consume()
        .batch(u32::try_from(bench.batch)?)
        .partitions(POP_PARTITIONS)
        .concurrency(usize::try_from(bench.consumers)?)
        .on_error(|error| note(error.to_string()))
        .batches(move |messages: Vec<Message<Load>>, _| {
            let now = noted.now();
            let mut deliveries = of(&noted.deliveries);
            for message in &messages {
                deliveries.saturating_record(now.saturating_sub(message.data.at));
            }
            noted.consumed.fetch_add(messages.len() as u64, Relaxed);
            noted.last.fetch_max(now, Relaxed);
            async { Ok::<_, Error>(()) }
        })
        .start()?;
    let mut producers = JoinSet::new();
    for number in 0..bench.producers {
        let (batch, partitions, bytes) = (bench.batch, bench.partitions, bench.bytes);
        let fill = "x".repeat(usize::try_from(bytes)?);
        let producer =
            Producer { queue: queue.clone(), notes: notes.clone(), number, batch, partitions, fill };
        producers.spawn(producer.run(bench.time));
    }
    while let Some(ended) = producers.join_next().await {
        ended??;
    }
    let all_read = async {
        while notes.consumed.load(Relaxed) < notes.pushed.load(Relaxed) {
            sleep(LOOK_EVERY).await;
        }
    };
    // Lost messages are reported with the results.
    _ = timeout(DRAIN_MAX, all_read).await;
    consumer.stop().await?;
    Ok(notes)
}

struct Producer {
    queue: Queue,
    notes: Arc<Notes>,
    number: u64,
    batch: u64,
    partitions: u64,
    fill: String,
}

impl Producer {
    /// One partition per request, as most producers do.
    async fn run(self, time: Duration) -> Result<(), Error> {
        let mut turn = self.number;
        while self.notes.began.elapsed() < time {
            let partition = self.queue.partition(format!("p{}", turn % self.partitions));
            turn += 1;
            let sent = self.notes.now();
            let load = Load { at: sent, fill: self.fill.clone() };
            partition.push_all((0..self.batch).map(|_| Item::new(&load))).await?;
            of(&self.notes.pushes).saturating_record(self.notes.now() - sent);
            self.notes.pushed.fetch_add(self.batch, Relaxed);
        }
        Ok(())
    }
}

fn report(notes: &Notes, time: Duration) -> Card {
    let (pushed, consumed) = (notes.pushed.load(Relaxed), notes.consumed.load(Relaxed));
    let per_second = |count: u64, seconds: f64| Cell::Decimal((count as f64 / seconds.max(0.001)).round());
    let (pushes, deliveries) = (of(&notes.pushes), of(&notes.deliveries));
    let ms =
        |histogram: &Histogram<u64>, part: f64| Cell::Decimal(histogram.value_at_quantile(part) as f64 / 1e3);
    Card::default()
        .field("pushed", "pushed", Cell::Number(pushed))
        .field("pushedPerSecond", "  per second", per_second(pushed, time.as_secs_f64()))
        .field("pushP50Ms", "  request ms, median", ms(&pushes, 0.5))
        .field("pushP99Ms", "  request ms, 99th percentile", ms(&pushes, 0.99))
        .field("pushMaxMs", "  request ms, maximum", ms(&pushes, 1.0))
        .field("consumed", "consumed", Cell::Number(consumed))
        .field(
            "consumedPerSecond",
            "  per second",
            per_second(consumed, notes.last.load(Relaxed) as f64 / 1e6),
        )
        .field("deliveryP50Ms", "  delivery ms, median", ms(&deliveries, 0.5))
        .field("deliveryP99Ms", "  delivery ms, 99th percentile", ms(&deliveries, 0.99))
        .field("deliveryMaxMs", "  delivery ms, maximum", ms(&deliveries, 1.0))
}
