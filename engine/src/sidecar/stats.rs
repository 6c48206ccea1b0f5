//! The counters of a lane. Plain atomics, updated once per flight.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::histogram::{Distribution, Histogram, ITEMS, MICROSECONDS};

pub struct LaneStats {
    entries: AtomicU64,
    errors: AtomicU64,
    retries: AtomicU64,
    items: Histogram,
    waited_us: Histogram,
    database_us: Histogram,
}

impl Default for LaneStats {
    fn default() -> Self {
        Self {
            entries: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            items: Histogram::new(&ITEMS),
            waited_us: Histogram::new(&MICROSECONDS),
            database_us: Histogram::new(&MICROSECONDS),
        }
    }
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

/// How the flights of a lane were distributed.
#[derive(Debug, Clone)]
pub struct LaneSpread {
    pub items: Distribution,
    /// The longest wait of each flight.
    pub waited_us: Distribution,
    pub database_us: Distribution,
}

impl LaneStats {
    pub fn landed(&self, load: &Load, database: Duration) {
        self.entries.fetch_add(load.entries as u64, Relaxed);
        self.items.add(load.items as u64);
        self.waited_us.add(load.waited.as_micros() as u64);
        self.database_us.add(database.as_micros() as u64);
    }

    pub fn failed(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    pub fn read(&self) -> LaneCounts {
        LaneCounts {
            flights: self.items.count(),
            entries: self.entries.load(Relaxed),
            items: self.items.sum(),
            errors: self.errors.load(Relaxed),
            retries: self.retries.load(Relaxed),
            waited_us: self.waited_us.sum(),
            database_us: self.database_us.sum(),
        }
    }

    pub fn spread(&self) -> LaneSpread {
        LaneSpread {
            items: self.items.read(),
            waited_us: self.waited_us.read(),
            database_us: self.database_us.read(),
        }
    }
}
