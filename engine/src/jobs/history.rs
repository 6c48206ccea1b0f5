//! Writes the past down: looks at the broker once a second, writes what it did once a minute, and says ten times a
//! minute that it is there. Its cost follows the queues that were used in the minute.

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

/// Seconds into a minute by which all brokers have written the one before.
const SETTLED_US: i64 = 5_000_000;

const MINUTE_US: i64 = 60_000_000;

/// Queues whose rates are told.
const RATES_MAX: i64 = 1_000;

const SWEEP_EVERY: Duration = Duration::from_secs(600);
const SWEEP_ROWS: i64 = 5_000;

/// Steps of one look, so that a long absence is not made up for in one go.
const SWEEP_STEPS: usize = 200;

/// Minutes that are older become hours. Ranges of more than a day are told in hours anyway, and this is what keeps them
/// quick to read: a day of 1,000 queues is half a gigabyte of minutes.
const FOLD_AFTER: Duration = Duration::from_secs(2 * 86_400);

/// A broker that stops does not wait longer for a database that is away.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Who this broker is, and what it last learned about all of them.
pub struct Cluster {
    pub broker: Broker,
    /// Columns of the broker's own row.
    about: Map<String, Value>,
    learned: Mutex<Learned>,
}

#[derive(Default)]
struct Learned {
    brokers: Vec<Broker>,
    rates: Vec<QueueRate>,
    /// Which minute they are of.
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

    /// Those that were there at the last look, this one among them.
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

/// Before anything is written: the row of this broker is what tells a batch that was written already.
pub async fn introduce(shared: &Shared) -> Result<(), Error> {
    beat(shared).await?;
    shared.history.know(db::cluster_totals(&shared.connections).await?);
    Ok(())
}

pub fn start(shared: &Arc<Shared>, lanes: &Arc<Lanes>) {
    let (sampling, lanes) = (shared.clone(), lanes.clone());
    // Not dropped on the way: it has last words.
    shared.tasks.spawn(async move {
        tokio::select! {
            () = sampling.tasks.stopping() => {}
            () = run(&sampling, &lanes) => {}
        }
        let last_words = async {
            write(&sampling, true).await?;
            // Who goes without telling is noticed, and what it may have done is measured.
            tell(&sampling).await?;
            db::goodbye(&sampling.connections, sampling.cluster.broker.id).await
        };
        if let Ok(Err(error)) = tokio::time::timeout(LAST_WORDS, last_words).await {
            debug!(%error, "the last minute was not written down");
        }
    });
    let beating = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(BEAT_EVERY).await;
            if let Err(error) = beat(&beating).await {
                debug!(%error, "other brokers will hear of this one later");
            }
        }
    });
    let sweeping = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            match sweep(&sweeping).await {
                Ok(0) => {}
                Ok(rows) => info!(rows, "old minutes removed"),
                Err(error) => debug!(%error, "old minutes will be looked for again"),
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
        // Whole minutes have been put in line by now; shorter intervals want what there is.
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
                warn!(%error, "the past cannot be written down, it is kept for now");
            }
            failing = result.is_err();
        }
    }
}

/// Writes what is in line, with what there is of the minute that is going on if `partial`.
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

/// The same for those who want to read it at once: they also have to know what time it is.
pub async fn write(shared: &Shared, partial: bool) -> Result<(), Error> {
    let asked = clock::now();
    let time = db::now(&shared.connections).await?;
    shared.history.tell_time(asked, time);
    write_in_line(shared, partial).await
}

/// Says that this broker is there, and learns who else is and how busy queues are.
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
