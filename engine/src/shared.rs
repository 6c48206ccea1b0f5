//! What all operations of one engine share: connections, caches, watches. Each part guards itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, Semaphore};

use crate::clock;
use crate::config::Config;
use crate::db::procedures::Refusal;
use crate::db::statistics::Gauges;
use crate::db::{self, Connections};
use crate::directory::Directory;
use crate::doctor::Examination;
use crate::error::Error;
use crate::history::History;
use crate::jobs::history::Cluster;
use crate::jobs::wake::Wake;
use crate::life::Life;
use crate::load::Load;
use crate::log::dedup::Dedup;
use crate::log::segments::Segments;
use crate::message::owners::Owners;
use crate::pop::leases::LeaseBook;
use crate::spool::Spool;
use crate::tally::Tally;
use crate::tasks::Tasks;
use crate::troubles::Troubles;
use crate::watches::Watches;

/// Transaction hashes of served leases: 16 bytes each, 16 MB.
const LEASE_HASHES_MAX: usize = 1_000_000;

/// An act of the control plane may hold a connection for long. Most connections are left to the message plane.
const ACTS_SHARE: usize = 4;
const ACTS_WAITING_MAX: usize = 64;

/// Places for acts of the control plane.
pub struct Acts {
    accepted: Semaphore,
    under_way: Semaphore,
}

impl Acts {
    fn new(connections: usize) -> Self {
        let under_way = (connections / ACTS_SHARE).max(1);
        Self { accepted: Semaphore::new(under_way + ACTS_WAITING_MAX), under_way: Semaphore::new(under_way) }
    }

    /// Runs the work when there is a place for it. Refuses it if too many are waiting already.
    pub async fn run<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let Ok(_accepted) = self.accepted.try_acquire() else { return Err(db::Error::Full.into()) };
        let _place = self.under_way.acquire().await;
        work.await
    }
}

pub struct Shared {
    pub config: Config,
    pub tasks: Tasks,
    /// For the message plane, jobs, and acts of the control plane.
    pub connections: Connections,
    /// A few more, for lists and figures: these may be slow, and nothing else waits for them.
    pub reads: Connections,
    /// Acts of the control plane that are under way, and those that wait behind them.
    pub acts: Acts,
    pub directory: Directory,
    pub owners: Owners,
    pub watches: Watches,
    pub wake: Wake,
    pub load: Load,
    pub tally: Tally,
    pub telling: tokio::sync::Mutex<()>,
    gauges: Mutex<Arc<Gauges>>,
    pub history: History,
    pub cluster: Cluster,
    pub spool: Option<Spool>,
    /// Whether a pooler in transaction mode is in between, once that was tested.
    pub pooled: OnceLock<bool>,
    examination: Mutex<Option<Arc<Examination>>>,
    /// When the database was last asked whether it responds, and whether it did.
    pub seen_ready: tokio::sync::Mutex<Option<(Instant, bool)>>,
    pub life: Life,
    /// Messages refused because their queue has all the partitions that it may have.
    pub partitions_refused: AtomicU64,
    pub queues_refused: AtomicU64,
    pub troubles: Troubles,
    /// A redrive was started here.
    pub redrives: Notify,
    dedup: Mutex<Dedup>,
    segments: Mutex<Segments>,
    leases: Mutex<LeaseBook>,
}

impl Shared {
    pub fn new(
        config: Config,
        connections: Connections,
        reads: Connections,
        tasks: Tasks,
        spool: Option<Spool>,
    ) -> Self {
        let wake = Wake::new();
        Self {
            acts: Acts::new(connections.size()),
            reads,
            tasks,
            spool,
            partitions_refused: AtomicU64::new(0),
            queues_refused: AtomicU64::new(0),
            redrives: Notify::new(),
            directory: Directory::new(),
            owners: Owners::new(),
            watches: Watches::default(),
            life: Life::default(),
            troubles: Troubles::default(),
            load: Load::new(config.deferring.clone()),
            tally: Tally::default(),
            telling: tokio::sync::Mutex::default(),
            gauges: Mutex::default(),
            pooled: OnceLock::new(),
            examination: Mutex::default(),
            seen_ready: tokio::sync::Mutex::default(),
            history: History::new(),
            cluster: Cluster::new(wake.broker, &config.name, clock::wall()),
            wake,
            dedup: Mutex::new(Dedup::new(config.dedup_cache_bytes)),
            segments: Mutex::new(Segments::new(config.segment_cache_bytes)),
            leases: Mutex::new(LeaseBook::new(LEASE_HASHES_MAX)),
            connections,
            config,
        }
    }

    /// Forgets what was read from the log: the server may have lost the end of it, and give the same offsets to other
    /// messages.
    pub fn forget_log(&self) {
        *self.segments() = Segments::new(self.config.segment_cache_bytes);
        *self.dedup() = Dedup::new(self.config.dedup_cache_bytes);
        *self.leases() = LeaseBook::new(LEASE_HASHES_MAX);
        self.directory.clear();
        self.owners.forget();
    }

    /// The reason why messages are refused that have no partition.
    pub fn refusal(&self, refusal: Refusal, queue: &str) -> String {
        match refusal {
            Refusal::Partitions => {
                let most = self.config.partitions_max;
                format!("the queue has {most} partitions, the most allowed (QUEEN_MAX_PARTITIONS_PER_QUEUE)")
            }
            Refusal::Queues => Error::QueueLimit(self.config.queues_max).to_string(),
            Refusal::NoQueue => Error::NoQueue(queue.to_owned()).to_string(),
        }
    }

    /// Counts a refusal.
    pub fn refused(&self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Partitions => &self.partitions_refused,
            Refusal::Queues | Refusal::NoQueue => &self.queues_refused,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// As of a few seconds ago.
    pub fn gauges(&self) -> Arc<Gauges> {
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn gauge(&self, gauges: Gauges) {
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(gauges);
    }

    /// The latest examination, if there was one.
    pub fn examination(&self) -> Option<Arc<Examination>> {
        self.examination.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn examined(&self, examination: Arc<Examination>) {
        *self.examination.lock().unwrap_or_else(PoisonError::into_inner) = Some(examination);
    }

    pub fn dedup(&self) -> MutexGuard<'_, Dedup> {
        self.dedup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn segments(&self) -> MutexGuard<'_, Segments> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn leases(&self) -> MutexGuard<'_, LeaseBook> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
