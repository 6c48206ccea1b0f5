//! What a lane counts about itself. Plain atomics: read by anybody, added to once per flight.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Default)]
pub struct LaneStats {
    flights: AtomicU64,
    entries: AtomicU64,
    items: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    waited_us: AtomicU64,
    database_us: AtomicU64,
}

/// What one flight carries.
#[derive(Default)]
pub struct Load {
    pub entries: usize,
    pub items: usize,
    /// The longest wait among them.
    pub waited: Duration,
}

/// One reading of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneCounts {
    pub flights: u64,
    pub entries: u64,
    pub items: u64,
    pub errors: u64,
    pub retries: u64,
    pub waited_us: u64,
    pub database_us: u64,
}

impl LaneStats {
    pub fn landed(&self, load: &Load, database: Duration) {
        self.flights.fetch_add(1, Relaxed);
        self.entries.fetch_add(load.entries as u64, Relaxed);
        self.items.fetch_add(load.items as u64, Relaxed);
        self.waited_us.fetch_add(load.waited.as_micros() as u64, Relaxed);
        self.database_us.fetch_add(database.as_micros() as u64, Relaxed);
    }

    pub fn failed(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> LaneCounts {
        LaneCounts {
            flights: self.flights.load(Relaxed),
            entries: self.entries.load(Relaxed),
            items: self.items.load(Relaxed),
            errors: self.errors.load(Relaxed),
            retries: self.retries.load(Relaxed),
            waited_us: self.waited_us.load(Relaxed),
            database_us: self.database_us.load(Relaxed),
        }
    }
}
