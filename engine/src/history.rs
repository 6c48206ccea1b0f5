//! History: what this broker did and measured, minute by minute, until it is written to the database. Pure: the time
//! is passed in, and it knows no database.
//!
//! Minutes are those of the database's clock, because several brokers write into them. This broker estimates that
//! clock from its last reading and the time passed since. Minutes are cut here and not when they are written, so that
//! what happened while the database was unreachable is not one spike at its return.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::process::Usage;
use crate::tally::{Minute, Tally};

/// Queues that one statement writes.
pub const BATCH_QUEUES: usize = 2_000;

/// Batches that wait while the database is unreachable: two hours of a quiet broker. Beyond that, minutes are dropped,
/// but not their totals.
const WAITING_MAX: usize = 120;

const MINUTE: i64 = 60_000_000;

/// The database's clock may be set back by less than this without a minute being written twice.
const BACK_MAX: i64 = 2;

/// What is measured in each sample.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// How much later than asked for a timer fired.
    pub loop_lag_us: u64,
    pub usage: Usage,
    pub pool_size: u64,
    pub pool_busy: u64,
    /// Entries in lanes, and callers that wait for a connection.
    pub waiting: u64,
    pub parked: u64,
    pub threads: u64,
    /// Tasks that wait for a thread.
    pub tasks: u64,
    pub brokers: u64,
    pub leases: u64,
    pub segment_cache_bytes: u64,
    pub dedup_cache_bytes: u64,
    /// Since the start.
    pub flights: u64,
    pub errors: u64,
}

/// Counters of the whole cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterTotals {
    pub push_requests: u64,
    pub push_messages: u64,
    pub pop_requests: u64,
    pub pop_messages: u64,
    pub ack_requests: u64,
    pub ack_messages: u64,
    pub transactions: u64,
    pub db_errors: u64,
    pub dead_letters: u64,
}

/// What can be written with one statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Increases with each batch; a number that was written is not written again.
    pub number: i64,
    /// Microseconds since 1970.
    pub minute: i64,
    /// By queue, with the most pops that were parked at once.
    pub lines: Vec<(Arc<str>, Minute, u64)>,
    /// The broker's own row, by column.
    pub row: Option<String>,
    pub totals: ClusterTotals,
}

pub struct History {
    state: Mutex<State>,
    /// One writer at a time, because batches must not overtake each other.
    pub writing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// When the database was last asked for its time, and its answer.
    clock: Option<(Instant, i64)>,
    number: i64,
    current: Current,
    waiting: VecDeque<Batch>,
    last: Option<(Instant, Sample)>,
    /// As of the last write.
    written: ClusterTotals,
    shown: ClusterTotals,
}

/// The current minute.
#[derive(Default)]
struct Current {
    number: i64,
    counts: Minute,
    samples: u64,
    gauges: Vec<Gauge>,
    free_slots_min: u64,
    parked: HashMap<Arc<str>, u64>,
    /// Parked pops that were not written yet.
    parked_new: bool,
    flights: u64,
    errors: u64,
    /// Those of them that are in no batch yet.
    errors_new: u64,
    expired: [u64; 3],
    expiries: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Gauge {
    sum: f64,
    min: f64,
    max: f64,
    last: f64,
}

/// Why messages were removed: because of their age, because all groups had read them, because not all had in time.
pub const EXPIRIES: [&str; 3] = ["age", "completed", "wait"];

/// The names that clients see, in the order of `Sample::gauges`.
const GAUGES: [&str; 17] = [
    "cpu.user_us",
    "cpu.system_us",
    "memory.rss_bytes",
    "memory.virtual_bytes",
    "database.pool_size",
    "database.pool_idle",
    "database.pool_active",
    "threadpool.db.pool_size",
    "threadpool.db.queue_size",
    "threadpool.system.pool_size",
    "threadpool.system.queue_size",
    "registries.response",
    "registries.poll_intention",
    "shared_state.brokers",
    "shared_state.leases",
    "shared_state.segment_cache_bytes",
    "shared_state.dedup_cache_bytes",
];

impl Sample {
    /// Processor time is the share used since `before`, in hundredths of a percent of one core.
    fn gauges(&self, before: Option<&(Instant, Self)>, now: Instant) -> [f64; 17] {
        let share = |used: fn(&Usage) -> u64| {
            let Some((then, before)) = before else { return 0.0 };
            let took = now.saturating_duration_since(*then).as_micros().max(1) as f64;
            used(&self.usage).saturating_sub(used(&before.usage)) as f64 / took * 10_000.0
        };
        [
            share(|usage| usage.user_us).round(),
            share(|usage| usage.system_us).round(),
            self.usage.rss_bytes as f64,
            self.usage.virtual_bytes as f64,
            self.pool_size as f64,
            self.pool_size.saturating_sub(self.pool_busy) as f64,
            self.pool_busy as f64,
            self.pool_size as f64,
            self.waiting as f64,
            self.threads as f64,
            self.tasks as f64,
            (self.waiting + self.parked) as f64,
            self.parked as f64,
            self.brokers as f64,
            self.leases as f64,
            self.segment_cache_bytes as f64,
            self.dedup_cache_bytes as f64,
        ]
    }
}

impl Gauge {
    fn take(&mut self, value: f64, first: bool) {
        self.sum += value;
        self.min = if first { value } else { self.min.min(value) };
        self.max = if first { value } else { self.max.max(value) };
        self.last = value;
    }

    fn json(&self, samples: u64) -> Value {
        let average = self.sum / samples.max(1) as f64;
        json!({"avg": average, "min": self.min, "max": self.max, "last": self.last})
    }
}

impl History {
    pub fn new() -> Self {
        Self { state: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// Records a reading of the database's clock, in microseconds since 1970.
    pub fn tell_time(&self, now: Instant, database: i64) {
        self.lock().clock = Some((now, database));
    }

    /// The estimated time of that clock; before its first reading, `wall`, this machine's own clock.
    pub fn time(&self, now: Instant, wall: i64) -> i64 {
        self.lock().time(now, wall)
    }

    /// Records one sample of the broker, and closes the minute if it is over. `parked`: pops, by queue.
    pub fn sample(
        &self,
        now: Instant,
        wall: i64,
        sample: Sample,
        parked: impl IntoIterator<Item = (Arc<str>, u64)>,
        tally: &Tally,
        about: &Map<String, Value>,
    ) {
        let mut state = self.lock();
        state.begin_minute(now, wall, tally, about);
        let last = state.last.take();
        let gauges = sample.gauges(last.as_ref(), now);
        let free = sample.pool_size.saturating_sub(sample.pool_busy);
        let current = &mut state.current;
        let first = current.samples == 0;
        current.gauges.resize(GAUGES.len() + 1, Gauge::default());
        for (gauge, value) in current.gauges.iter_mut().zip(gauges) {
            gauge.take(value, first);
        }
        current.gauges[GAUGES.len()].take(sample.loop_lag_us as f64, first);
        current.free_slots_min = if first { free } else { current.free_slots_min.min(free) };
        current.samples += 1;
        let since = |count: fn(&Sample) -> u64| {
            count(&sample).saturating_sub(last.as_ref().map_or(0, |(_, last)| count(last)))
        };
        current.flights += since(|sample| sample.flights);
        current.errors += since(|sample| sample.errors);
        current.errors_new += since(|sample| sample.errors);
        for (queue, pops) in parked {
            let most = current.parked.entry(queue).or_default();
            current.parked_new |= pops > *most;
            *most = pops.max(*most);
        }
        state.last = Some((now, sample));
    }

    /// Messages were removed for this reason (`EXPIRIES`).
    pub fn expired(&self, reason: &str, messages: u64) {
        let Some(index) = EXPIRIES.iter().position(|word| *word == reason).filter(|_| messages > 0) else {
            return;
        };
        let mut state = self.lock();
        state.current.expired[index] += messages;
        state.current.expiries += 1;
    }

    /// Queues everything that has happened so far for writing, including the current minute.
    pub fn collect(&self, now: Instant, wall: i64, tally: &Tally, about: &Map<String, Value>) {
        let mut state = self.lock();
        state.begin_minute(now, wall, tally, about);
        state.close(tally, about);
    }

    pub fn next(&self) -> Option<Batch> {
        self.lock().waiting.front().cloned()
    }

    /// What was written before this broker started.
    pub fn know(&self, totals: ClusterTotals) {
        self.lock().written = totals;
    }

    /// A batch was written, and these are the database's totals now.
    pub fn wrote(&self, number: i64, totals: ClusterTotals) {
        let mut state = self.lock();
        if state.waiting.front().is_some_and(|batch| batch.number == number) {
            state.waiting.pop_front();
        }
        state.written = totals;
    }

    /// As of the last write, plus what this broker did since. Never goes down.
    pub fn totals(&self, tally: &Tally) -> ClusterTotals {
        let mut state = self.lock();
        let mut totals = state.written;
        state.waiting.iter().for_each(|batch| totals.add(&batch.totals));
        totals.add(&ClusterTotals::of(&tally.sum_minutes(), state.current.errors_new));
        state.shown = totals.max(&state.shown);
        state.shown
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn time(&self, now: Instant, wall: i64) -> i64 {
        match self.clock {
            Some((then, database)) => {
                let passed = now.saturating_duration_since(then).as_micros();
                database.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
            }
            None => wall,
        }
    }

    fn begin_minute(&mut self, now: Instant, wall: i64, tally: &Tally, about: &Map<String, Value>) {
        let number = self.time(now, wall).div_euclid(MINUTE);
        // The estimate of the database's clock wavers: a minute that was closed must not begin again.
        if number == self.current.number
            || (self.current.number - BACK_MAX..self.current.number).contains(&number)
        {
            return;
        }
        if self.current.number == 0 {
            // The first sample. What has happened since the start is kept.
            self.current.number = number;
            return;
        }
        self.close(tally, about);
        self.current = Current { number, ..Current::default() };
    }

    fn close(&mut self, tally: &Tally, about: &Map<String, Value>) {
        let mut lines: HashMap<Arc<str>, (Minute, u64)> =
            tally.take_minutes().into_iter().map(|(queue, minute)| (queue, (minute, 0))).collect();
        for (minute, _) in lines.values() {
            self.current.counts.add(minute);
        }
        if std::mem::take(&mut self.current.parked_new) {
            for (queue, pops) in &self.current.parked {
                lines.entry(queue.clone()).or_default().1 = *pops;
            }
        }
        let mut lines: Vec<_> =
            lines.into_iter().map(|(queue, (minute, parked))| (queue, minute, parked)).collect();
        lines.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let minute = self.current.number * MINUTE;
        let mut row = Some(self.current.row(about));
        let mut errors = std::mem::take(&mut self.current.errors_new);
        let mut chunks = lines.chunks(BATCH_QUEUES);
        loop {
            let lines = match (chunks.next(), &row) {
                (None, None) => break,
                (chunk, _) => chunk.unwrap_or_default().to_vec(),
            };
            let mut counts = Minute::default();
            lines.iter().for_each(|(_, minute, _)| counts.add(minute));
            let totals = ClusterTotals::of(&counts, std::mem::take(&mut errors));
            self.number += 1;
            self.waiting.push_back(Batch { number: self.number, minute, lines, row: row.take(), totals });
        }
        while self.waiting.len() > WAITING_MAX {
            // Not the first: it may have been written although the response was lost.
            let Some(forgotten) = self.waiting.remove(1) else { break };
            if let Some(next) = self.waiting.get_mut(1) {
                next.totals.add(&forgotten.totals);
            }
        }
    }
}

impl Current {
    /// The broker's row so far, by column. `about`: facts about this broker.
    fn row(&self, about: &Map<String, Value>) -> String {
        let sum = |gauge: usize| self.gauges.get(gauge).map_or(0, |gauge| gauge.sum as u64);
        let most = |gauge: usize| self.gauges.get(gauge).map_or(0, |gauge| gauge.max as u64);
        let lag = GAUGES.len();
        let metrics: Map<String, Value> = GAUGES
            .iter()
            .zip(&self.gauges)
            .map(|(name, gauge)| ((*name).to_owned(), gauge.json(self.samples)))
            .collect();
        let counts = &self.counts;
        let [expired_age, expired_completed, expired_wait] = self.expired;
        let mut row = json!({
            "push_requests": counts.push_requests, "push_messages": counts.push_messages,
            "pop_requests": counts.pop_requests, "pop_messages": counts.pop_messages, "pop_empty": counts.pop_empty,
            "ack_requests": counts.ack_requests, "ack_success": counts.ack_success, "ack_failed": counts.ack_failed,
            "transactions": counts.transactions, "dead_letters": counts.dead_letters, "lag_us": counts.lag_us,
            "lag_count": counts.lag_count, "lag_us_max": counts.lag_us_max,
            "partitions_created": counts.partitions_created, "samples": self.samples,
            "loop_lag_us": sum(lag), "loop_lag_us_max": most(lag), "free_slots": sum(5),
            "free_slots_min": self.free_slots_min, "waiting": sum(8), "waiting_max": most(8),
            "db_connections": most(4), "parked": most(12), "flights": self.flights, "db_errors": self.errors,
            "expired_age": expired_age, "expired_completed": expired_completed, "expired_wait": expired_wait,
            "expiries": self.expiries, "metrics": metrics,
        });
        if let Value::Object(row) = &mut row {
            row.extend(about.clone());
        }
        row.to_string()
    }
}

impl ClusterTotals {
    /// In this order everywhere.
    pub const NAMES: [&'static str; 9] = [
        "push_requests",
        "push_messages",
        "pop_requests",
        "pop_messages",
        "ack_requests",
        "ack_messages",
        "transactions",
        "db_errors",
        "dead_letters",
    ];

    fn of(counts: &Minute, db_errors: u64) -> Self {
        Self {
            push_requests: counts.push_requests,
            push_messages: counts.push_messages,
            pop_requests: counts.pop_requests,
            pop_messages: counts.pop_messages,
            ack_requests: counts.ack_requests,
            ack_messages: counts.ack_success + counts.ack_failed,
            transactions: counts.transactions,
            db_errors,
            dead_letters: counts.dead_letters,
        }
    }

    pub fn values(&self) -> [u64; 9] {
        [
            self.push_requests,
            self.push_messages,
            self.pop_requests,
            self.pop_messages,
            self.ack_requests,
            self.ack_messages,
            self.transactions,
            self.db_errors,
            self.dead_letters,
        ]
    }

    pub fn from_values(values: [u64; 9]) -> Self {
        let [
            push_requests,
            push_messages,
            pop_requests,
            pop_messages,
            ack_requests,
            ack_messages,
            transactions,
            db_errors,
            dead_letters,
        ] = values;
        Self {
            push_requests,
            push_messages,
            pop_requests,
            pop_messages,
            ack_requests,
            ack_messages,
            transactions,
            db_errors,
            dead_letters,
        }
    }

    fn add(&mut self, other: &Self) {
        let (ours, theirs) = (self.values(), other.values());
        *self = Self::from_values(std::array::from_fn(|index| ours[index] + theirs[index]));
    }

    fn max(&self, other: &Self) -> Self {
        let (ours, theirs) = (self.values(), other.values());
        Self::from_values(std::array::from_fn(|index| ours[index].max(theirs[index])))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn about() -> Map<String, Value> {
        Map::from_iter([("port".to_owned(), json!(1))])
    }

    fn row(batch: &Batch) -> Value {
        serde_json::from_str(batch.row.as_ref().unwrap()).unwrap()
    }

    /// A history whose clock stands at the start of a minute.
    fn fresh(now: Instant) -> (History, Tally) {
        let history = History::new();
        history.tell_time(now, 1_000 * MINUTE);
        (history, Tally::default())
    }

    #[test]
    fn a_minute_is_cut_by_the_clock_of_the_database_and_written_whole() {
        let now = crate::clock::now();
        let (history, tally) = fresh(now);
        history.sample(now, 0, Sample { pool_size: 8, ..Sample::default() }, [], &tally, &about());
        tally.record("q", |minute| minute.push_requests += 2);
        let later = now + Duration::from_secs(59);
        let sample = Sample { pool_size: 8, pool_busy: 5, errors: 3, loop_lag_us: 70, ..Sample::default() };
        history.sample(later, 0, sample, [("q".into(), 4)], &tally, &about());
        assert!(history.next().is_none());
        let over = now + Duration::from_secs(60);
        history.sample(over, 0, Sample { errors: 3, ..Sample::default() }, [], &tally, &about());
        let batch = history.next().unwrap();
        assert_eq!((batch.minute, batch.lines.len()), (1_000 * MINUTE, 1));
        assert_eq!((batch.lines[0].1.push_requests, batch.lines[0].2), (2, 4));
        let row = row(&batch);
        assert_eq!((&row["samples"], &row["db_errors"], &row["port"]), (&json!(2), &json!(3), &json!(1)));
        assert_eq!((&row["free_slots"], &row["free_slots_min"]), (&json!(11), &json!(3)));
        assert_eq!(
            row["metrics"]["database.pool_active"],
            json!({"avg": 2.5, "min": 0.0, "max": 5.0, "last": 5.0})
        );
        assert_eq!(row["loop_lag_us_max"], 70);
    }

    #[test]
    fn what_happens_before_the_first_look_is_written_as_well() {
        let now = crate::clock::now();
        let (history, tally) = fresh(now);
        history.expired("age", 3);
        history.collect(now, 0, &tally, &about());
        assert_eq!(row(&history.next().unwrap())["expired_age"], 3);
    }

    #[test]
    fn a_clock_that_wavers_does_not_begin_a_minute_anew() {
        let now = crate::clock::now();
        let (history, tally) = fresh(now);
        history.lock().begin_minute(now, 0, &tally, &about());
        history.lock().begin_minute(now + Duration::from_secs(60), 0, &tally, &about());
        history.tell_time(now + Duration::from_secs(61), 1_001 * MINUTE - 5);
        tally.record("q", |minute| minute.pop_requests += 1);
        history.collect(now + Duration::from_secs(61), 0, &tally, &about());
        history.wrote(1, ClusterTotals::default());
        assert_eq!(history.next().unwrap().minute, 1_001 * MINUTE);
        // A clock that is really set back is followed.
        history.tell_time(now + Duration::from_secs(62), 900 * MINUTE);
        history.collect(now + Duration::from_secs(62), 0, &tally, &about());
        assert_eq!(history.lock().current.number, 900);
    }

    #[test]
    fn what_is_read_within_a_minute_is_told_once_and_the_row_is_complete_each_time() {
        let now = crate::clock::now();
        let (history, tally) = fresh(now);
        for pushes in [1, 2] {
            tally.record("q", |minute| minute.push_requests += pushes);
            history.collect(now, 0, &tally, &about());
        }
        let (first, second) = (history.next().unwrap(), history.lock().waiting[1].clone());
        assert_eq!((first.lines[0].1.push_requests, second.lines[0].1.push_requests), (1, 2));
        assert_eq!(
            (row(&first)["push_requests"].clone(), row(&second)["push_requests"].clone()),
            (json!(1), json!(3))
        );
    }

    #[test]
    fn totals_never_go_down_and_forgotten_minutes_still_count() {
        let now = crate::clock::now();
        let (history, tally) = fresh(now);
        let mut last = 0;
        for minute in 0..300 {
            tally.record("q", |minute| minute.push_requests += 1);
            history.collect(now + Duration::from_secs(60 * minute), 0, &tally, &about());
            let shown = history.totals(&tally).push_requests;
            assert_eq!(shown, last + 1);
            last = shown;
        }
        assert_eq!(history.lock().waiting.len(), WAITING_MAX);
        let mut written = ClusterTotals::default();
        while let Some(batch) = history.next() {
            written.add(&batch.totals);
            history.wrote(batch.number, written);
            assert_eq!(history.totals(&tally).push_requests, 300);
        }
        assert_eq!(written.push_requests, 300);
    }

    #[test]
    fn many_queues_are_many_batches_with_one_row() {
        let now = crate::clock::now();
        let (history, tally) = fresh(now);
        for queue in 0..BATCH_QUEUES + 1 {
            tally.record(&format!("q{queue}"), |minute| minute.pop_empty += 1);
        }
        history.collect(now, 0, &tally, &about());
        let state = history.lock();
        let sizes: Vec<_> =
            state.waiting.iter().map(|batch| (batch.lines.len(), batch.row.is_some())).collect();
        assert_eq!(sizes, [(BATCH_QUEUES, true), (1, false)]);
    }
}
