//! Statistics: tells the database what this broker did to each queue, and measures what cannot be told. Its cost follows
//! the queues that changed, and the time it spends on measuring is bounded, whatever there is to measure.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::clock;
use crate::db::Error;
use crate::db::statistics::{self, Pace};
use crate::shared::Shared;
use crate::tally::Counts;

/// Queues one statement tells about.
const QUEUES_MAX: usize = 1_000;

/// The share of its time a broker measures, also when it has nothing else to do, and how much of it can be saved up.
const MEASURING: f64 = 0.005;
const MEASURING_IDLE: f64 = 0.1;
const SAVED_MAX: Duration = Duration::from_millis(50);
/// After this time nobody has anything to tell about a queue that has come to rest.
const QUIET_MIN: Duration = Duration::from_secs(3);
/// How often the same queue.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// What monitoring is told is this old at most, and about no more groups and queues.
const GAUGES_EVERY: Duration = Duration::from_secs(5);
const GAUGES_MAX: i64 = 1_000;

pub fn start(shared: &Arc<Shared>) {
    let shared = shared.clone();
    shared.clone().tasks.spawn_until_stop(async move {
        let mut credit = 0.0;
        let mut last = clock::now();
        let mut looked = last;
        loop {
            tokio::time::sleep(shared.config.statistics_interval).await;
            let told = match tell(&shared).await {
                Ok(told) => told,
                Err(error) => {
                    debug!(%error, "the counts of queues are told later");
                    continue;
                }
            };
            let now = clock::now();
            let share = if told { MEASURING } else { MEASURING_IDLE };
            credit = (credit + (now - last).as_secs_f64() * share).min(SAVED_MAX.as_secs_f64());
            last = now;
            if now - looked >= GAUGES_EVERY {
                looked = now;
                match statistics::gauges(&shared.connections, GAUGES_MAX).await {
                    Ok(gauges) => shared.gauge(gauges),
                    Err(error) => debug!(%error, "monitoring is told the old numbers"),
                }
            }
            while credit > 0.0 {
                match statistics::measure_next(&shared.connections, AT_MOST_EVERY, pace(&shared)).await {
                    Ok(Some(took)) => credit -= took.as_secs_f64(),
                    Ok(None) => break,
                    Err(error) => {
                        debug!(%error, "queues are measured later");
                        break;
                    }
                }
            }
        }
    });
}

/// Other brokers may be set to another interval; what differs between them is put right by measuring.
pub fn pace(shared: &Shared) -> Pace {
    let quiet = (shared.config.statistics_interval * 3).max(QUIET_MIN);
    Pace { quiet, reconcile: shared.config.statistics_reconcile }
}

/// What this broker did so far is in the counts afterwards. Whether that was anything.
pub async fn tell(shared: &Shared) -> Result<bool, Error> {
    // Who is about to read waits for what another has taken and not told yet.
    let _turn = shared.telling.lock().await;
    let mut told = false;
    loop {
        let counts = shared.tally.take_counts(QUEUES_MAX);
        if counts.is_empty() {
            return Ok(told);
        }
        told = true;
        if let Err(error) = statistics::count(&shared.connections, &counts, pace(shared)).await {
            let unknown = error.is_outcome_unknown();
            let doubted = |(queue, counts): (Arc<str>, Counts)| match unknown {
                true => (queue, Counts { doubt: true, ..Counts::default() }),
                false => (queue, counts),
            };
            shared.tally.give_back(counts.into_iter().map(doubted).collect());
            return Err(error);
        }
    }
}
