//! Records the history of brokers and queues: samples the broker every second, writes one row per minute, and sends a heartbeat
//! ten times a minute. The cost follows the queues that were used in that minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tracing::{debug, info, warn};

use crate::clock;
use crate::db::Error;
use crate::db::history::{self as db, Broker, QueueRate};
use crate::history::Sample;
use crate::jobs::statistics::tell;
use crate::lanes::Lanes;
use crate::process;
use crate::shared::Shared;

const BEAT_EVERY: Duration = Duration::from_secs(10);

/// By this point of a minute, all brokers have written the previous one.
const SETTLED_US: i64 = 5_000_000;

const MINUTE_US: i64 = 60_000_000;

/// How many queues get rates.
const RATES_MAX: i64 = 1_000;

const SWEEP_EVERY: Duration = Duration::from_secs(600);
const SWEEP_ROWS: i64 = 5_000;

/// Steps per sweep, so that a long backlog is worked off gradually.
const SWEEP_STEPS: usize = 200;

/// Minutes older than this are folded into hours. Ranges of more than a day are shown by the hour anyway, and this keeps them
/// quick to read: minutes of 1,000 queues take half a gigabyte a day.
const FOLD_AFTER: Duration = Duration::from_secs(2 * 86_400);

/// A stopping broker waits no longer than this for an unreachable database.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// This broker's identity, and what it last learned about all brokers.
pub struct Cluster {
    pub broker: Broker,
    /// Columns of this broker's row.
    about: Map<String, Value>,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    brokers: Vec<Broker>,
    rates: Vec<QueueRate>,
    /// The minute of the rates.
    rates_of: i64,
}

impl Cluster {
    /// `name`: `host:port`.
    pub fn new(id: uuid::Uuid, name: &str, started_at: i64) -> Self {
        let (hostname, port) = name.rsplit_once(':').unwrap_or((name, ""));
        let broker = Broker {
            id,
            hostname: hostname.to_owned(),
            port: port.parse().unwrap_or(0),
            worker_id: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at,
            seen_at: started_at,
        };
        let columns = [
            ("hostname", json!(broker.hostname)),
            ("port", json!(broker.port)),
            ("worker_id", json!(broker.worker_id)),
        ];
        let about = columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { broker, about, learned: Mutex::default() }
    }

    /// Brokers running at the latest heartbeat, this one included.
    pub fn brokers(&self) -> Vec<Broker> {
        self.learned().brokers.clone()
    }

    pub fn rates(&self) -> Vec<QueueRate> {
        self.learned().rates.clone()
    }

    fn learned(&self) -> std::sync::MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Call before anything is written: this broker's row tells whether a batch was written before.
pub async fn introduce(shared: &Shared) -> Result<(), Error> {
    beat(shared).await?;
    shared.history.know(db::cluster_totals(&shared.connections).await?);
    Ok(())
}

pub fn start(shared: &Arc<Shared>, lanes: &Arc<Lanes>) {
    let (sampling, lanes) = (shared.clone(), lanes.clone());
    // Not canceled by a stop, because it still writes at the end.
    shared.tasks.spawn(async move {
        tokio::select! {
            () = sampling.tasks.stopping() => {}
            () = run(&sampling, &lanes) => {}
        }
        let last_words = async {
            write(&sampling, true).await?;
            // Reports the last counts. A broker that ends without doing so is noticed, and its queues are measured.
            tell(&sampling).await?;
            db::goodbye(&sampling.connections, sampling.cluster.broker.id).await
        };
        if let Ok(Err(error)) = tokio::time::timeout(LAST_WORDS, last_words).await {
            debug!(%error, "cannot record the last minute before stopping");
        }
    });
    let beating = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(BEAT_EVERY).await;
            if let Err(error) = beat(&beating).await {
                debug!(%error, "heartbeat failed; will retry");
            }
        }
    });
    let sweeping = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            match sweep(&sweeping).await {
                Ok(0) => {}
                Ok(rows) => info!(rows, "expired history removed"),
                Err(error) => debug!(%error, "cannot remove expired history; will retry"),
            }
        }
    });
}

async fn run(shared: &Arc<Shared>, lanes: &Lanes) {
    let every = shared.config.metrics_sample;
    let mut written = clock::now();
    let mut failing = false;
    loop {
        let due = clock::now() + every;
        tokio::time::sleep_until(due.into()).await;
        let now = clock::now();
        let parked = shared.watches.parked_by_queue();
        let mut sample = look(shared, lanes, now, now.saturating_duration_since(due));
        sample.parked = parked.iter().map(|(_, pops)| pops).sum();
        shared.history.sample(now, clock::wall(), sample, parked, &shared.tally, &shared.cluster.about);
        // Complete minutes are queued by now. Intervals below a minute also write the current minute so far.
        let interval = shared.config.metrics_aggregate;
        if now - written + 2 * every < interval {
            continue;
        }
        let partial = interval < Duration::from_secs(60);
        if partial || shared.history.next().is_some() {
            written = now;
            let result = write_in_line(shared, partial).await;
            if let Err(error) = &result
                && !failing
            {
                warn!(%error, "history flush failed; will retry");
            }
            failing = result.is_err();
        }
    }
}

/// Writes queued batches, and the current minute so far if `partial`.
async fn write_in_line(shared: &Shared, partial: bool) -> Result<(), Error> {
    let _writing = shared.history.writing.lock().await;
    if partial {
        let about = &shared.cluster.about;
        shared.history.collect(clock::now(), clock::wall(), &shared.tally, about);
    }
    while let Some(batch) = shared.history.next() {
        let totals = db::record(&shared.connections, shared.cluster.broker.id, &batch).await?;
        shared.history.wrote(batch.number, totals);
    }
    Ok(())
}

/// Like [`write_in_line`], but fetches the database's time first. For callers that read history right afterwards.
pub async fn write(shared: &Shared, partial: bool) -> Result<(), Error> {
    let asked = clock::now();
    let time = db::now(&shared.connections).await?;
    shared.history.tell_time(asked, time);
    write_in_line(shared, partial).await
}

/// Sends this broker's heartbeat, and fetches the other brokers and the rates of busy queues.
pub async fn beat(shared: &Shared) -> Result<(), Error> {
    let asked = clock::now();
    let time = db::now(&shared.connections).await?;
    shared.history.tell_time(asked, time);
    let brokers = db::beat(&shared.connections, &shared.cluster.broker).await?;
    shared.cluster.learned().brokers = brokers;
    let minute = time.div_euclid(MINUTE_US) * MINUTE_US - MINUTE_US;
    let fresh = shared.cluster.learned().rates_of == minute;
    if !fresh && time.rem_euclid(MINUTE_US) > SETTLED_US {
        let rates = db::queue_rates(&shared.connections, minute, RATES_MAX).await?;
        let mut learned = shared.cluster.learned();
        (learned.rates, learned.rates_of) = (rates, minute);
    }
    Ok(())
}

async fn sweep(shared: &Shared) -> Result<i64, Error> {
    for _ in 0..SWEEP_STEPS {
        if !db::fold_minutes(&shared.connections, FOLD_AFTER).await? {
            break;
        }
    }
    let mut removed = 0;
    for _ in 0..SWEEP_STEPS {
        let rows =
            db::sweep_minutes(&shared.connections, shared.config.history_retention, SWEEP_ROWS).await?;
        removed += rows;
        if rows < SWEEP_ROWS {
            break;
        }
    }
    Ok(removed)
}

fn look(shared: &Shared, lanes: &Lanes, now: Instant, late: Duration) -> Sample {
    let connections = &shared.connections;
    let runtime = tokio::runtime::Handle::current().metrics();
    let counts = lanes.counts();
    let waiting: usize = lanes.waiting(now).iter().map(|(_, entries)| entries).sum();
    Sample {
        loop_lag_us: late.as_micros() as u64,
        usage: process::usage(),
        pool_size: connections.size() as u64,
        pool_busy: connections.busy() as u64,
        waiting: (waiting + connections.waiting()) as u64,
        parked: 0,
        threads: runtime.num_workers() as u64,
        tasks: runtime.global_queue_depth() as u64,
        brokers: shared.cluster.learned().brokers.len() as u64,
        leases: shared.leases().len() as u64,
        segment_cache_bytes: shared.segments().weight() as u64,
        dedup_cache_bytes: shared.dedup().weight() as u64,
        flights: counts.iter().map(|(_, lane)| lane.flights).sum(),
        errors: counts.iter().map(|(_, lane)| lane.errors).sum(),
    }
}
