//! Load: whether a request is executed, deferred or rejected, and the signals behind that. The decision itself is in
//! `decision.rs`, and made many times a second, not per request.

mod decision;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use uuid::Uuid;

pub use decision::{Decision, Pressure, Reading, Thresholds};

use crate::clock;
use crate::config::Deferring;

/// Kinds of requests that may be deferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Push,
    Ack,
}

pub const KINDS: [Kind; 2] = [Kind::Push, Kind::Ack];

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Ack => "ack",
        }
    }
}

/// Why something was deferred, in the words that clients see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    SystemBusy,
    MaintainingOrder,
}

impl Reason {
    pub fn word(self) -> &'static str {
        match self {
            Self::SystemBusy => "system_busy",
            Self::MaintainingOrder => "maintaining_order",
        }
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Execute,
    Defer(Reason),
    Reject,
}

/// A partition that was seen with deferred operations is believed to have some for this long. The database knows for
/// certain; this only saves asking it. Short, because acting on the belief defers operations, and so keeps it true.
const BELIEVED: Duration = Duration::from_millis(100);

/// Until the first operation was drained, and while nothing drains.
const RETRY_UNKNOWN: u64 = 5;
const RETRY_MAX: f64 = 60.0;

/// Weight of the newest second in the drain rate.
const NEWEST: f64 = 0.3;

pub struct Load {
    settings: Deferring,
    decisions: [AtomicU8; 2],
    /// By kind: executed, deferred, rejected.
    told: [[AtomicU64; 3]; 2],
    depth: AtomicU64,
    /// When the oldest open operation was accepted.
    oldest: Mutex<Option<Instant>>,
    drain: Mutex<Drain>,
    behind: Mutex<HashMap<Uuid, Instant>>,
    behind_count: AtomicUsize,
    /// Something was deferred, or may have been.
    pub signal: Notify,
    maintenance: AtomicBool,
    pop_maintenance: AtomicBool,
    latency_us: AtomicU64,
}

/// Operations that left the deferred queue, per second.
struct Drain {
    since: Instant,
    count: u64,
    rate: f64,
}

/// What brokers ask the database once a second, and more often when there is work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pulse {
    /// Open deferred operations.
    pub depth: u64,
    /// How long ago the oldest of them was accepted.
    pub oldest_age: Duration,
    pub maintenance: bool,
    pub pop_maintenance: bool,
    /// How long the query took, including the wait for a connection.
    pub took: Duration,
}

/// One reading of the counters, for metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadCounts {
    pub executed: u64,
    pub deferred: u64,
    pub rejected: u64,
}

impl Load {
    pub fn new(settings: Deferring) -> Self {
        let load = Self {
            settings,
            decisions: Default::default(),
            told: Default::default(),
            depth: AtomicU64::new(0),
            oldest: Mutex::default(),
            drain: Mutex::new(Drain { since: clock::now(), count: 0, rate: 0.0 }),
            behind: Mutex::default(),
            behind_count: AtomicUsize::new(0),
            signal: Notify::new(),
            maintenance: AtomicBool::new(false),
            pop_maintenance: AtomicBool::new(false),
            latency_us: AtomicU64::new(0),
        };
        // Also for requests that come before the monitor's first look.
        for kind in KINDS {
            if load.settings.enabled && load.thresholds(kind).always() {
                load.decide(kind, Decision::Defer);
            }
        }
        load
    }

    pub fn thresholds(&self, kind: Kind) -> Thresholds {
        let (utilisation, depth_max) = match kind {
            Kind::Push => (self.settings.push_utilisation, self.settings.push_depth_max),
            Kind::Ack => (self.settings.ack_utilisation, self.settings.ack_depth_max),
        };
        Thresholds { utilisation, patience: self.settings.patience, depth_max }
    }

    pub fn settings(&self) -> &Deferring {
        &self.settings
    }

    pub fn decide(&self, kind: Kind, decision: Decision) {
        self.decisions[kind as usize].store(decision as u8, Relaxed);
    }

    pub fn decision(&self, kind: Kind) -> Decision {
        match self.decisions[kind as usize].load(Relaxed) {
            1 => Decision::Defer,
            2 => Decision::Reject,
            _ => Decision::Execute,
        }
    }

    /// `lanes`: the partitions of a request, whose deferred operations it must not overtake.
    pub fn way(&self, kind: Kind, lanes: impl Iterator<Item = Uuid>) -> Way {
        let way = match self.decision(kind) {
            Decision::Reject => Way::Reject,
            Decision::Defer => Way::Defer(Reason::SystemBusy),
            Decision::Execute if self.any_behind(lanes) => self.behind(kind),
            Decision::Execute => Way::Execute,
        };
        self.count(kind, way);
        way
    }

    /// For requests that must not overtake deferred operations: even without load, they are rejected when there is no
    /// room.
    pub fn behind(&self, kind: Kind) -> Way {
        match self.depth() >= self.thresholds(kind).depth_max {
            true => Way::Reject,
            false => Way::Defer(Reason::MaintainingOrder),
        }
    }

    pub fn count(&self, kind: Kind, way: Way) {
        let place = match way {
            Way::Execute => 0,
            Way::Defer(_) => 1,
            Way::Reject => 2,
        };
        self.told[kind as usize][place].fetch_add(1, Relaxed);
    }

    pub fn counts(&self, kind: Kind) -> LoadCounts {
        let [executed, deferred, rejected] = &self.told[kind as usize];
        LoadCounts {
            executed: executed.load(Relaxed),
            deferred: deferred.load(Relaxed),
            rejected: rejected.load(Relaxed),
        }
    }

    fn any_behind(&self, mut lanes: impl Iterator<Item = Uuid>) -> bool {
        if self.behind_count.load(Relaxed) == 0 {
            return false;
        }
        let now = clock::now();
        let mut behind = self.lanes();
        behind.retain(|_, seen| now - *seen < BELIEVED);
        self.behind_count.store(behind.len(), Relaxed);
        lanes.any(|lane| behind.contains_key(&lane))
    }

    /// The database has reported that these partitions have deferred operations.
    pub fn seen(&self, lanes: impl IntoIterator<Item = Uuid>) {
        let now = clock::now();
        let mut behind = self.lanes();
        behind.extend(lanes.into_iter().map(|lane| (lane, now)));
        self.behind_count.store(behind.len(), Relaxed);
    }

    /// This many more operations were deferred.
    pub fn deferred(&self, operations: usize) {
        self.depth.fetch_add(operations as u64, Relaxed);
        self.signal.notify_one();
    }

    /// Some operations of these partitions are done, perhaps all.
    pub fn drained(&self, lanes: impl IntoIterator<Item = Uuid>, operations: usize) {
        let mut behind = self.lanes();
        for lane in lanes {
            behind.remove(&lane);
        }
        self.behind_count.store(behind.len(), Relaxed);
        drop(behind);
        let less = |depth: u64| Some(depth.saturating_sub(operations as u64));
        let _ = self.depth.fetch_update(Relaxed, Relaxed, less);
        self.rate().add(clock::now(), operations as u64);
    }

    /// Takes over what the database has reported.
    pub fn feel(&self, pulse: &Pulse) {
        self.depth.store(pulse.depth, Relaxed);
        *self.oldest.lock().unwrap_or_else(PoisonError::into_inner) =
            clock::now().checked_sub(pulse.oldest_age);
        self.maintenance.store(pulse.maintenance, Relaxed);
        self.pop_maintenance.store(pulse.pop_maintenance, Relaxed);
        self.latency_us.store(pulse.took.as_micros() as u64, Relaxed);
        self.rate().add(clock::now(), 0);
    }

    /// How long the database took to answer the last small query.
    pub fn latency(&self) -> Duration {
        Duration::from_micros(self.latency_us.load(Relaxed))
    }

    /// Whether pushes go to the spool.
    pub fn maintenance(&self) -> bool {
        self.maintenance.load(Relaxed)
    }

    /// Whether pops find nothing.
    pub fn pop_maintenance(&self) -> bool {
        self.pop_maintenance.load(Relaxed)
    }

    pub fn depth(&self) -> u64 {
        self.depth.load(Relaxed)
    }

    /// How long ago the oldest open operation was accepted.
    pub fn oldest_age(&self) -> Duration {
        let oldest = self.oldest.lock().unwrap_or_else(PoisonError::into_inner);
        oldest.filter(|_| self.depth() > 0).map_or(Duration::ZERO, |oldest| clock::now() - oldest)
    }

    /// Operations per second.
    pub fn drain_rate(&self) -> f64 {
        self.rate().rate
    }

    /// Seconds until there should be room again.
    pub fn retry_after(&self, kind: Kind) -> u64 {
        let rate = self.drain_rate();
        if rate < 0.1 {
            return RETRY_UNKNOWN;
        }
        let over = self.depth().saturating_sub(self.thresholds(kind).depth_max) + 1;
        (over as f64 / rate).ceil().clamp(1.0, RETRY_MAX) as u64
    }

    fn rate(&self) -> MutexGuard<'_, Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<Uuid, Instant>> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drain {
    fn add(&mut self, now: Instant, count: u64) {
        self.count += count;
        let passed = now - self.since;
        if passed < Duration::from_secs(1) {
            return;
        }
        let newest = self.count as f64 / passed.as_secs_f64();
        self.rate = self.rate * (1.0 - NEWEST) + newest * NEWEST;
        self.since = now;
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load::new(Deferring {
            enabled: true,
            push_utilisation: 0.7,
            ack_utilisation: 0.8,
            push_depth_max: 10,
            ack_depth_max: 20,
            patience: Duration::from_millis(500),
            interval: Duration::from_millis(100),
            claim_limit: 50,
            timeout: Duration::from_secs(30),
            retries_max: 3,
            retention: Duration::from_secs(3600),
        })
    }

    fn push(load: &Load, lane: u128) -> Way {
        load.way(Kind::Push, [Uuid::from_u128(lane)].into_iter())
    }

    #[test]
    fn a_calm_broker_defers_only_behind_what_was_deferred() {
        let load = load();
        assert_eq!(push(&load, 1), Way::Execute);
        load.deferred(1);
        load.seen([Uuid::from_u128(1)]);
        assert_eq!(push(&load, 1), Way::Defer(Reason::MaintainingOrder));
        assert_eq!(push(&load, 2), Way::Execute);
        load.drained([Uuid::from_u128(1)], 1);
        assert_eq!(push(&load, 1), Way::Execute);
        let counts = load.counts(Kind::Push);
        assert_eq!((counts.executed, counts.deferred, counts.rejected), (3, 1, 0));
    }

    #[test]
    fn behind_a_full_queue_there_is_no_room_even_for_a_calm_broker() {
        let load = load();
        load.deferred(10);
        load.seen([Uuid::from_u128(1)]);
        assert_eq!(push(&load, 1), Way::Reject);
        assert_eq!(load.behind(Kind::Ack), Way::Defer(Reason::MaintainingOrder));
        load.feel(&Pulse { depth: 9, ..Pulse::default() });
        assert_eq!(push(&load, 1), Way::Defer(Reason::MaintainingOrder));
    }

    #[test]
    fn who_is_turned_away_is_told_when_to_come_back() {
        let load = load();
        load.deferred(110);
        assert_eq!(load.retry_after(Kind::Push), RETRY_UNKNOWN);
        load.rate().rate = 25.0;
        assert_eq!(load.retry_after(Kind::Push), 5, "101 too many, 25 a second");
        load.rate().rate = 1e6;
        assert_eq!(load.retry_after(Kind::Push), 1, "never 0");
        load.rate().rate = 0.2;
        assert_eq!(load.retry_after(Kind::Push), 60);
    }
}
