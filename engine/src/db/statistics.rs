//! One typed function per procedure that keeps the counts of queues.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::control::{many, one};
use super::{Connections, Error};
use crate::tally::Counts;

/// How long brokers hold back their counts at most, and the age at which counts are measured in any case.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub quiet: Duration,
    pub reconcile: Duration,
}

/// Adds what this broker did.
pub async fn count(
    connections: &Connections,
    counts: &[(Arc<str>, Counts)],
    pace: Pace,
) -> Result<(), Error> {
    let queues: Vec<&str> = counts.iter().map(|(queue, _)| queue.as_ref()).collect();
    let appended: Vec<i64> = counts.iter().map(|(_, counts)| counts.appended).collect();
    let doubts: Vec<bool> = counts.iter().map(|(_, counts)| counts.doubt).collect();
    let (mut readers, mut groups, mut consumed) = (Vec::new(), Vec::new(), Vec::new());
    for (place, (_, counts)) in counts.iter().enumerate() {
        for (group, messages) in &counts.consumed {
            readers.push(place as i32 + 1);
            groups.push(group.as_ref());
            consumed.push(*messages);
        }
    }
    let quiet = pace.quiet.as_secs_f64();
    let parameters: [&(dyn ToSql + Sync); 7] =
        [&queues, &appended, &doubts, &readers, &groups, &consumed, &quiet];
    let sql = "select queen.count($1, $2, $3, $4, $5, $6, make_interval(secs => $7))";
    // Not retried: it is unknown whether it was added, and it must not be added twice.
    let db = connections.acquire().await?;
    db.within("queen.count", db.client.execute(sql, &parameters)).await.map(drop)
}

/// Returns how long it took; `None`: there is nothing to measure, except what was measured within `since`.
pub async fn measure_next(
    connections: &Connections,
    since: Duration,
    pace: Pace,
) -> Result<Option<Duration>, Error> {
    let sql = "select queen.measure_next(queen.now() - make_interval(secs => $1), make_interval(secs => $2),
                                         make_interval(secs => $3))";
    let (quiet, reconcile) = (pace.quiet.as_secs_f64(), pace.reconcile.as_secs_f64());
    let parameters: [&(dyn ToSql + Sync); 3] = [&since.as_secs_f64(), &quiet, &reconcile];
    let row = one(connections, "queen.measure_next", sql, &parameters).await?;
    let took: Option<f32> = row.get(0);
    Ok(took.map(|ms| Duration::from_secs_f32((ms / 1000.0).max(0.0))))
}

/// Measures what can be measured quickly: one queue, or all that may be wrong.
pub async fn freshen(
    connections: &Connections,
    queue: Option<&str>,
    partitions_max: i32,
    budget: Duration,
    pace: Pace,
) -> Result<(), Error> {
    let sql = "select queen.freshen($1, $2, make_interval(secs => $3), make_interval(secs => $4),
                                    make_interval(secs => $5))";
    let (quiet, reconcile) = (pace.quiet.as_secs_f64(), pace.reconcile.as_secs_f64());
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&queue, &partitions_max, &budget.as_secs_f64(), &quiet, &reconcile];
    many(connections, "queen.freshen", sql, &parameters).await.map(drop)
}

/// Monitoring values of each queue, as of the last look.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gauges {
    pub groups: Vec<GroupGauge>,
    /// By queue.
    pub dead_letters: Vec<(String, i64)>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct GroupGauge {
    pub queue: String,
    pub group: String,
    pub unread: i64,
    pub lag_seconds: f64,
}

pub async fn gauges(connections: &Connections, limit: i64) -> Result<Gauges, Error> {
    let rows = many(connections, "queen.gauges", "select * from queen.gauges($1)", &[&limit]).await?;
    let mut gauges = Gauges::default();
    for row in rows {
        let (queue, unread) = (row.get("queue_name"), row.get("unread"));
        match row.get("consumer_group") {
            Some(group) => {
                gauges.groups.push(GroupGauge { queue, group, unread, lag_seconds: row.get("lag_seconds") });
            }
            None => gauges.dead_letters.push((queue, unread)),
        }
    }
    Ok(gauges)
}
