//! Decides whether operations of one kind are executed, deferred or rejected. Pure: the time and the measurements are
//! passed in.

use std::time::{Duration, Instant};

/// What happens to new operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Execute,
    Defer,
    Reject,
}

/// One look at the engine, for one kind of operation.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Share of the connections that are busy.
    pub pool: f64,
    /// Share of the lane's flights that are in the air.
    pub lane: f64,
    /// Entries of the lane that wait for a flight.
    pub waiting: usize,
    /// How long the entry that goes next has waited.
    pub oldest: Duration,
    /// Open operations in the deferred queue.
    pub depth: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    /// Share of connections or flights in use.
    pub utilisation: f64,
    /// A request that waits longer for its flight is a sign of trouble, if utilization is high as well.
    pub patience: Duration,
    /// Open operations.
    pub depth_max: u64,
}

impl Thresholds {
    /// Whether any utilization is too high and any wait too long: then there is nothing to measure.
    pub fn always(&self) -> bool {
        self.utilisation <= 0.0 && self.patience.is_zero()
    }
}

/// How long a strain must last: one busy moment is not load.
const SUSTAINED: Duration = Duration::from_millis(250);

/// How long a calm must last: one quiet moment is not the end of load.
const RELAXED: Duration = Duration::from_secs(1);

/// Share of the thresholds below which deferring may stop.
const CALM: f64 = 0.8;

/// With a longer backlog of deferred operations the calm has to last longer, or deferring would keep starting and
/// stopping.
const BACKLOG: u64 = 100;
const BACKLOG_RELAXED: Duration = Duration::from_secs(10);

/// This many waiting entries are a strain however fast they leave, because they take memory.
const WAITING_MANY: usize = 50_000;

/// # Invariants
/// - It starts to defer after a strain without interruption of `SUSTAINED`, and stops after a calm of `RELAXED`, or of
///   `BACKLOG_RELAXED` while there is a backlog.
/// - Between strain and calm it stays as it is.
#[derive(Debug)]
pub struct Pressure {
    thresholds: Thresholds,
    deferring: bool,
    /// Since when the readings have called for the other state.
    turning: Option<Instant>,
}

impl Pressure {
    pub fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, deferring: thresholds.always(), turning: None }
    }

    pub fn observe(&mut self, now: Instant, reading: &Reading) -> Decision {
        let (turns, after) = match self.deferring {
            false => (reading.is_strained(&self.thresholds, 1.0), SUSTAINED),
            true => {
                let after = if self.has_backlog(reading) { BACKLOG_RELAXED } else { RELAXED };
                (!reading.is_strained(&self.thresholds, CALM), after)
            }
        };
        match self.turning {
            _ if !turns => self.turning = None,
            None => self.turning = Some(now),
            Some(since) if now - since >= after => {
                self.deferring = !self.deferring;
                self.turning = None;
            }
            Some(_) => {}
        }
        match self.deferring {
            false => Decision::Execute,
            true if reading.depth >= self.thresholds.depth_max => Decision::Reject,
            true => Decision::Defer,
        }
    }
}

impl Pressure {
    fn has_backlog(&self, reading: &Reading) -> bool {
        reading.depth > BACKLOG.min(self.thresholds.depth_max / 2)
    }
}

impl Reading {
    fn is_strained(&self, thresholds: &Thresholds, part: f64) -> bool {
        let busy = self.pool.max(self.lane) > thresholds.utilisation * part;
        let late = self.oldest >= thresholds.patience.mul_f64(part);
        let many = self.waiting as f64 >= WAITING_MANY as f64 * part;
        busy && late || many || thresholds.always()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUSH: Thresholds =
        Thresholds { utilisation: 0.7, patience: Duration::from_millis(500), depth_max: 10_000 };
    const CALM_READING: Reading =
        Reading { pool: 0.1, lane: 0.25, waiting: 10, oldest: Duration::from_millis(1), depth: 0 };
    const STRAINED: Reading =
        Reading { pool: 0.8, lane: 1.0, waiting: 900, oldest: Duration::from_millis(600), depth: 0 };
    const TICK: Duration = Duration::from_millis(25);

    /// The last decision after equal readings for this long.
    fn after(pressure: &mut Pressure, now: &mut Instant, reading: Reading, time: Duration) -> Decision {
        let mut decision = Decision::Execute;
        let mut passed = Duration::ZERO;
        while passed <= time {
            decision = pressure.observe(*now, &reading);
            *now += TICK;
            passed += TICK;
        }
        decision
    }

    fn deferring() -> (Pressure, Instant) {
        let (mut pressure, mut now) = (Pressure::new(PUSH), crate::clock::now());
        assert_eq!(after(&mut pressure, &mut now, STRAINED, SUSTAINED), Decision::Defer);
        (pressure, now)
    }

    #[test]
    fn only_a_busy_pool_or_lane_with_late_requests_is_strain_or_very_many_of_them() {
        let late = Duration::from_millis(500);
        for (pool, lane, waiting, oldest, strained) in [
            (0.0, 0.0, 0, Duration::ZERO, false),
            (1.0, 1.0, 1_000, Duration::from_millis(499), false),
            (0.7, 0.7, 1_000, late, false),
            (0.71, 0.0, 1, late, true),
            (0.0, 1.0, 1, late, true),
            (0.2, 0.25, 1_000, Duration::from_secs(9), false),
            (0.2, 0.25, 50_000, Duration::ZERO, true),
        ] {
            let reading = Reading { pool, lane, waiting, oldest, depth: 0 };
            assert_eq!(reading.is_strained(&PUSH, 1.0), strained, "{reading:?}");
        }
    }

    #[test]
    fn a_short_strain_defers_nothing() {
        let (mut pressure, mut now) = (Pressure::new(PUSH), crate::clock::now());
        for _ in 0..20 {
            let almost = after(&mut pressure, &mut now, STRAINED, SUSTAINED - 2 * TICK);
            assert_eq!(almost, Decision::Execute);
            assert_eq!(after(&mut pressure, &mut now, CALM_READING, Duration::ZERO), Decision::Execute);
        }
    }

    #[test]
    fn a_sustained_strain_defers_until_it_has_been_calm_for_a_while() {
        let (mut pressure, mut now) = deferring();
        assert_eq!(after(&mut pressure, &mut now, CALM_READING, RELAXED - 2 * TICK), Decision::Defer);
        assert_eq!(after(&mut pressure, &mut now, STRAINED, TICK), Decision::Defer);
        assert_eq!(after(&mut pressure, &mut now, CALM_READING, RELAXED - 2 * TICK), Decision::Defer);
        assert_eq!(after(&mut pressure, &mut now, CALM_READING, RELAXED), Decision::Execute);
    }

    #[test]
    fn just_below_the_threshold_it_stays_what_it_is() {
        let between =
            Reading { pool: 0.6, lane: 0.6, waiting: 100, oldest: Duration::from_millis(450), depth: 0 };
        let (mut pressure, mut now) = deferring();
        let long = Duration::from_secs(10);
        assert_eq!(after(&mut pressure, &mut now, between, long), Decision::Defer);
        let (mut pressure, mut now) = (Pressure::new(PUSH), crate::clock::now());
        assert_eq!(after(&mut pressure, &mut now, between, long), Decision::Execute);
    }

    #[test]
    fn with_thresholds_of_0_it_defers_from_the_first_look_on_and_for_ever() {
        let thresholds = Thresholds { utilisation: 0.0, patience: Duration::ZERO, depth_max: 10 };
        let (mut pressure, mut now) = (Pressure::new(thresholds), crate::clock::now());
        let idle = Reading { pool: 0.0, lane: 0.0, waiting: 0, oldest: Duration::ZERO, depth: 0 };
        for _ in 0..3 {
            let decision = after(&mut pressure, &mut now, idle, BACKLOG_RELAXED);
            assert_eq!(decision, Decision::Defer);
        }
        assert_eq!(pressure.observe(now, &Reading { depth: 10, ..idle }), Decision::Reject);
    }

    #[test]
    fn it_rejects_only_while_it_defers_and_the_queue_is_full() {
        let (mut pressure, mut now) = deferring();
        let full = Reading { depth: 10_000, ..STRAINED };
        assert_eq!(after(&mut pressure, &mut now, full, TICK), Decision::Reject);
        let room = Reading { depth: 9_999, ..STRAINED };
        assert_eq!(after(&mut pressure, &mut now, room, TICK), Decision::Defer);
        let calm = Reading { depth: 101, ..CALM_READING };
        assert_eq!(after(&mut pressure, &mut now, calm, 2 * RELAXED), Decision::Defer, "there is a backlog");
        assert_eq!(after(&mut pressure, &mut now, calm, BACKLOG_RELAXED), Decision::Execute, "not for ever");
    }
}
