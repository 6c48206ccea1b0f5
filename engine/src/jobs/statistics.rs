//! Statistics: tells the database what this broker did to each queue, and measures what cannot be told. Its cost follows
//! the queues that changed, and the time it spends on measuring is bounded, whatever there is to measure.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::clock;
use crate::db::{Error, statistics};
use crate::shared::Shared;
use crate::tally::Counts;

/// Queues one statement tells about.
const QUEUES_MAX: usize = 1_000;

/// The share of its time a broker measures, and how much of it can be saved up.
const MEASURING: f64 = 0.005;
const SAVED_MAX: Duration = Duration::from_millis(50);

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
            if let Err(error) = tell(&shared).await {
                debug!(%error, "the counts of queues are told later");
                continue;
            }
            let now = clock::now();
            credit = (credit + (now - last).as_secs_f64() * MEASURING).min(SAVED_MAX.as_secs_f64());
            last = now;
            if now - looked >= GAUGES_EVERY {
                looked = now;
                match statistics::gauges(&shared.connections, GAUGES_MAX).await {
                    Ok(gauges) => shared.gauge(gauges),
                    Err(error) => debug!(%error, "monitoring is told the old numbers"),
                }
            }
            while credit > 0.0 {
                match statistics::measure_next(&shared.connections).await {
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

/// What this broker did so far is in the counts afterwards.
pub async fn tell(shared: &Shared) -> Result<(), Error> {
    // Who is about to read waits for what another has taken and not told yet.
    let _turn = shared.telling.lock().await;
    loop {
        let counts = shared.tally.take_counts(QUEUES_MAX);
        if counts.is_empty() {
            return Ok(());
        }
        if let Err(error) = statistics::count(&shared.connections, &counts).await {
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
