//! The heart of Queen: operation → lane → SQL procedure → answer. It knows no HTTP.
//!
//! To follow a message: `ops/push.rs` takes it, `sidecar/lane.rs` puts it on a flight, `ops/append.rs` makes a
//! segment of it, `db/procedures.rs` calls `sql/procedures/push.sql`, and `watches.rs` wakes who waits for it.

mod cache;
mod clock;
mod config;
mod db;
mod directory;
mod doctor;
mod error;
mod history;
mod jobs;
mod load;
mod log;
mod ops;
mod pop;
pub mod process;
mod shared;
mod sidecar;
mod spool;
mod start;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "its counts are taken by the statistics of the next commits")
)]
mod tally;
mod tasks;
mod watches;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

pub use config::{Config, Deferring, Slots, SpoolConfig, Tls};
pub use db::control::Operations;
pub use db::history::{Broker, Metric, ParkedPoint, Point, QueuePoint, QueueRate, Worker};
pub use doctor::{Finding, diagnose};
pub use error::{Error, StartError};
pub use history::ClusterTotals;
pub use load::LoadCounts;
pub use ops::admin::{Configured, DeadLetter, DeadLetterFilter, SeekTo};
pub use ops::history::{ClusterState, DAY, HOUR, HistoryFilter, HistorySeries, Range};
pub use ops::maintenance::Maintenance;
pub use sidecar::LaneCounts;
pub use spool::SpoolStats;
pub use tally::Minute;

use shared::Shared;
use sidecar::Lane;

/// A running engine. Clones share it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    lanes: Arc<Lanes>,
    claims: Arc<AtomicU64>,
}

struct Lanes {
    open: Lane<ops::open::Open>,
    locate: Lane<ops::locate::Locate>,
    push: Lane<ops::append::Parcel>,
    defer: Lane<ops::defer::Request>,
    defer_ack: Lane<ops::defer_ack::DeferredAck>,
    fetch: Lane<ops::fetch::Fetch>,
    turn: Lane<ops::turn::Turn>,
    renew: Lane<ops::renew::Renew>,
    transaction: Lane<ops::transaction::Transaction>,
}

impl Lanes {
    fn counts(&self) -> Vec<(&'static str, LaneCounts)> {
        vec![
            ("open", self.open.counts()),
            ("push", self.push.counts()),
            ("defer", self.defer.counts()),
            ("defer_ack", self.defer_ack.counts()),
            ("pop", self.turn.counts_of(ops::turn::CLAIM)),
            ("fetch", self.fetch.counts()),
            ("ack", self.turn.counts_of(ops::turn::ACK)),
            ("locate", self.locate.counts()),
            ("renew", self.renew.counts()),
            ("transaction", self.transaction.counts()),
        ]
    }

    /// Entries that have not left yet.
    fn waiting(&self, now: Instant) -> usize {
        self.open.pressure(now).waiting
            + self.push.pressure(now).waiting
            + self.defer.pressure(now).waiting
            + self.defer_ack.pressure(now).waiting
            + self.turn.pressure(now).waiting
            + self.fetch.pressure(now).waiting
            + self.locate.pressure(now).waiting
            + self.renew.pressure(now).waiting
            + self.transaction.pressure(now).waiting
    }
}

/// One reading of what the engine counts.
#[derive(Debug, Clone)]
pub struct Stats {
    /// By lane.
    pub lanes: Vec<(&'static str, LaneCounts)>,
    pub connections: usize,
    pub connections_busy: usize,
    pub parked: usize,
    pub segment_cache_bytes: usize,
    pub dedup_cache_bytes: usize,
    pub leases: usize,
}

impl Engine {
    /// Asks the database whether it answers, with a short deadline.
    pub async fn ready(&self) -> bool {
        let asked = async {
            let db = self.shared.connections.acquire().await?;
            db.within("ready", db.client.simple_query("select 1")).await
        };
        matches!(tokio::time::timeout(Duration::from_secs(2), asked).await, Ok(Ok(_)))
    }

    /// Whether the last who tried could reach the database. Asks nobody.
    pub fn reaches_database(&self) -> bool {
        !self.shared.connections.is_down()
    }

    /// Where the database is, for people. Never a password.
    pub fn database(&self) -> String {
        self.shared.connections.connector().location()
    }

    pub fn stats(&self) -> Stats {
        Stats {
            lanes: self.lanes.counts(),
            connections: self.shared.connections.size(),
            connections_busy: self.shared.connections.busy(),
            parked: self.shared.watches.parked(),
            segment_cache_bytes: self.shared.segments().weight(),
            dedup_cache_bytes: self.shared.dedup().weight(),
            leases: self.shared.leases().len(),
        }
    }

    /// Answers parked pops at once, and lets none park any more. Everything else goes on.
    pub fn drain(&self) {
        self.shared.tasks.drain();
    }

    fn check_open(&self) -> Result<(), db::Error> {
        if self.shared.tasks.is_stopping() { Err(db::Error::Stopping) } else { Ok(()) }
    }

    /// Refuses new calls; what is in the air lands.
    pub async fn stop(&self) {
        self.shared.tasks.stop(&self.shared.connections).await;
        if let Some(spool) = &self.shared.spool {
            spool.close();
        }
    }
}
