//! The heart of Queen: operation → lane → SQL procedure → answer. It knows no HTTP.
//!
//! To follow a message: `message/push.rs` takes it, `sidecar/lane.rs` puts it on a flight, `message/append.rs` makes a
//! segment of it, `db/procedures.rs` calls `sql/procedures/push.sql`, and `watches.rs` wakes the pops that wait for
//! it.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "panics if nobody reads it")]

mod admin;
mod cache;
mod clock;
mod config;
pub mod crypt;
mod db;
mod directory;
mod doctor;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod histogram;
mod history;
mod intake;
mod jobs;
mod lanes;
mod life;
mod load;
mod log;
mod message;
mod pop;
pub mod process;
mod shared;
mod sidecar;
mod spool;
mod start;
mod tally;
mod tasks;
mod troubles;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use admin::browse::{MessageFilter, MessagePage};
pub use admin::history::{ClusterState, DAY, HOUR, HistoryFilter, HistorySeries, Range};
pub use admin::keys::{create_key, list_keys, revoke_key};
pub use admin::letters::DeadLetter;
pub use admin::life::{MessageLife, Reader, Recorded};
pub use admin::maintenance::Maintenance;
pub use admin::message_status::{GroupStanding, MessageStatus, Standing};
pub use admin::messages::{Buried, Mode, StoredMessage};
pub use admin::queues::{Configured, Seek, SeekTo};
pub use admin::redrive::Replayed;
pub use admin::resources::Refreshed;
pub use config::{Config, Deferring, Keepalive, Roots, Slots, SpoolConfig, Tls, TlsMode};
pub use crypt::{BadKey, Keys};
pub use db::control::{DeletedGroup, Operations, QueueLabels, SeekForecast};
pub use db::history::{Broker, Metric, ParkedPoint, Point, QueuePoint, QueueRate, Worker};
pub use db::keys::{ApiKey, NewKey};
pub use db::letters::{DeadLetterFilter, LetterShape, LetterShapes};
pub use db::redrive::{Redrive, RedriveAsk};
pub use db::resources::{
    GroupFigures, Label, LabelFigures, Overview, PartitionFigures, QueueFigures, QueueFilter, Spread, Trouble,
};
pub use db::statistics::{Gauges, GroupGauge};
pub use db::traces::{NamedTrace, NewTrace, Trace, TraceName};
pub use doctor::{Examination, Facts, Finding, Holder, Severity, Table, examine};
pub use error::{Error, StartError};
pub use histogram::{Distribution, Histogram, MICROSECONDS};
pub use history::ClusterTotals;
pub use life::LifeCounts;
pub use load::LoadCounts;
pub use log::ids::original_id;
pub use pop::answer::Answer;
pub use sidecar::{LaneCounts, LaneSpread};
pub use spool::SpoolStats;
pub use start::migrate;
pub use tally::Minute;

use lanes::Lanes;
use shared::Shared;

/// A running engine. Clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    lanes: Arc<Lanes>,
    claims: Arc<AtomicU64>,
}

/// One reading of the engine's counters.
#[derive(Debug, Clone)]
pub struct Stats {
    /// By lane.
    pub lanes: Vec<(&'static str, LaneCounts)>,
    pub connections: usize,
    pub connections_busy: usize,
    pub parked: usize,
    /// Messages refused because their queue has all the partitions that it may have.
    pub partitions_refused: u64,
    /// Messages refused because their queue does not exist and must not be created.
    pub queues_refused: u64,
    /// Partitions that ready lists consider ready, and all that they list.
    pub ready: usize,
    pub listed: usize,
    pub segment_cache: CacheStats,
    pub dedup_cache: CacheStats,
    pub leases: usize,
    pub tasks: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct CacheStats {
    pub bytes: usize,
    pub hits: u64,
    pub misses: u64,
}

impl CacheStats {
    fn new(bytes: usize, (hits, misses): (u64, u64)) -> Self {
        Self { bytes, hits, misses }
    }
}

/// How long a result counts. Anyone may ask for the health of a broker, as often as they like.
const READY_FOR: Duration = Duration::from_millis(100);

impl Engine {
    /// Checks whether the database responds, with a short deadline. Callers at about the same time share one check,
    /// which runs to its end even if all of them go away.
    pub async fn ready(&self) -> bool {
        let (done, result) = tokio::sync::oneshot::channel();
        let engine = self.clone();
        self.shared.tasks.spawn(async move { _ = done.send(engine.seen_ready().await) });
        result.await.unwrap_or(false)
    }

    async fn seen_ready(&self) -> bool {
        let mut seen = self.shared.seen_ready.lock().await;
        if let Some((at, ready)) = *seen
            && clock::now() - at < READY_FOR
        {
            return ready;
        }
        let asked = async {
            let db = self.shared.connections.acquire().await?;
            db.within("ready", db.client.simple_query("select 1")).await
        };
        let ready = matches!(tokio::time::timeout(Duration::from_secs(2), asked).await, Ok(Ok(_)));
        *seen = Some((clock::now(), ready));
        ready
    }

    /// Whether the database could be reached at the last try. Does not query it.
    pub fn reaches_database(&self) -> bool {
        !self.shared.connections.is_down()
    }

    /// How long the database took to answer the last small query.
    pub fn database_latency(&self) -> Duration {
        self.shared.load.latency()
    }

    /// How many lists and figures can be read at once.
    pub fn read_connections(&self) -> usize {
        self.shared.reads.size()
    }

    /// Where the database is, for people. Never a password.
    pub fn database(&self) -> String {
        self.shared.connections.connector().location()
    }

    pub fn stats(&self) -> Stats {
        let (ready, listed) = self.shared.watches.listed();
        let segment_cache = {
            let cache = self.shared.segments();
            CacheStats::new(cache.weight(), cache.counts())
        };
        let dedup_cache = {
            let cache = self.shared.dedup();
            CacheStats::new(cache.weight(), cache.counts())
        };
        Stats {
            lanes: self.lanes.counts(),
            connections: self.shared.connections.size(),
            connections_busy: self.shared.connections.busy(),
            parked: self.shared.watches.parked(),
            partitions_refused: self.shared.partitions_refused.load(Relaxed),
            queues_refused: self.shared.queues_refused.load(Relaxed),
            ready,
            listed,
            segment_cache,
            dedup_cache,
            leases: self.shared.leases().len(),
            tasks: self.shared.tasks.len(),
        }
    }

    /// How the flights of each lane were spread.
    pub fn spreads(&self) -> Vec<(&'static str, LaneSpread)> {
        self.lanes.spreads()
    }

    /// Entries that wait for a flight, by lane. Pops and acks share theirs.
    pub fn waiting(&self) -> Vec<(&'static str, usize)> {
        self.lanes.waiting(clock::now())
    }

    /// Answers parked pops at once, and lets none park any more. Everything else continues.
    pub fn drain(&self) {
        self.shared.tasks.drain();
    }

    /// For work that must not stop halfway when the caller goes away: between a commit and what this broker does about
    /// it, or inside a transaction.
    async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.check_open()?;
        let (done, result) = tokio::sync::oneshot::channel();
        let shared = self.shared.clone();
        self.shared.tasks.spawn(async move { _ = done.send(shared.acts.run(work).await) });
        // The task has panicked.
        result.await.unwrap_or_else(|_| Err(db::Error::Unknown.into()))
    }

    fn check_open(&self) -> Result<(), db::Error> {
        if self.shared.tasks.is_stopping() { Err(db::Error::Stopping) } else { Ok(()) }
    }

    /// Refuses new calls; flights in the air land.
    pub async fn stop(&self) {
        self.shared.tasks.stop(&[&self.shared.connections, &self.shared.reads]).await;
        if let Some(spool) = &self.shared.spool {
            spool.close();
        }
    }
}
