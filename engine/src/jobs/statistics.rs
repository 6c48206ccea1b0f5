//! Maintains the counts of queues and groups: adds what this broker did to the database's counts, and measures queues whose
//! counts are uncertain. The cost follows the queues that changed, and the time spent on measuring is bounded.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::clock;
use crate::db::Error;
use crate::db::statistics::{self, Pace};
use crate::shared::Shared;
use crate::tally::Counts;

/// Queues per statement.
const QUEUES_MAX: usize = 1_000;

/// Share of its time that a broker spends on measuring, the share when it is idle, and how much unused time it may save up.
const MEASURING: f64 = 0.005;
const MEASURING_IDLE: f64 = 0.1;
const SAVED_MAX: Duration = Duration::from_millis(50);
/// After this time without traffic, no broker has unreported counts of a queue.
const QUIET_MIN: Duration = Duration::from_secs(3);
/// Minimum interval between measurements of a queue.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// Maximum age of the gauges, and maximum number of groups and queues in them.
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
                    debug!(%error, "cannot report queue counts; will retry");
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
                    Err(error) => debug!(%error, "gauge refresh failed; serving stale values"),
                }
            }
            while credit > 0.0 {
                match statistics::measure_next(&shared.connections, AT_MOST_EVERY, pace(&shared)).await {
                    Ok(Some(took)) => credit -= took.as_secs_f64(),
                    Ok(None) => break,
                    Err(error) => {
                        debug!(%error, "cannot measure queues; will retry");
                        break;
                    }
                }
            }
        }
    });
}

/// Brokers may be set to different intervals; measuring corrects the differences.
pub fn pace(shared: &Shared) -> Pace {
    let quiet = (shared.config.statistics_interval * 3).max(QUIET_MIN);
    Pace { quiet, reconcile: shared.config.statistics_reconcile }
}

/// Adds everything this broker did so far to the database's counts. Returns whether there was anything.
pub async fn tell(shared: &Shared) -> Result<bool, Error> {
    // A reader also waits for counts that another task has taken and not reported yet.
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
