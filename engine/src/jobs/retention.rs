//! Retention and eviction: moves tails past expired messages. Each run continues where the last one ended, so the cost follows
//! what was written in that window, not what is stored.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{debug, info};
use uuid::Uuid;

use crate::db::control::{self, Expired, Policy};
use crate::db::{Error, messages, redrive, traces};
use crate::shared::Shared;

/// How many partitions waiting for slow groups are remembered. Beyond that, they are searched for again.
const WAITING_MAX: usize = 100_000;

/// A run continues where the last one ended. At this interval it starts earlier, to find segments that were committed late.
const THOROUGH_EVERY: Duration = Duration::from_secs(300);
const LATE_COMMIT_MAX: Duration = Duration::from_secs(60);

/// How far a queue's policy has been applied.
#[derive(Default)]
struct Progress {
    seconds: i32,
    /// `None` before the first run.
    seen: Option<Seen>,
    waiting: Vec<Expired>,
}

/// Cutoffs of the latest run and of the latest thorough run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Seen {
    last: SystemTime,
    thorough: SystemTime,
}

impl Seen {
    /// Where a run starts, and what has been seen after it.
    fn next(seen: Option<Self>, cutoff: SystemTime) -> (Option<SystemTime>, Self) {
        match seen {
            Some(Self { last, thorough }) if cutoff < thorough + THOROUGH_EVERY => {
                (Some(last), Self { last: cutoff, thorough })
            }
            _ => (seen.map(|seen| seen.thorough - LATE_COMMIT_MAX), Self { last: cutoff, thorough: cutoff }),
        }
    }
}

#[derive(Default)]
struct Retention {
    progress: HashMap<(Uuid, String), Progress>,
}

/// Traces removed per statement.
const SWEEP_BATCH: i32 = 10_000;

pub fn start(shared: &Arc<Shared>) {
    let sweeping = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(sweeping.config.retention_interval).await;
            if let Err(error) = sweep(&sweeping).await {
                debug!(%error, "cannot remove expired traces; will retry");
            }
        }
    });
    for (kinds, interval) in [
        (&["age", "completed"][..], shared.config.retention_interval),
        (&["wait"][..], shared.config.eviction_interval),
    ] {
        let shared = shared.clone();
        shared.clone().tasks.spawn_until_stop(async move {
            let mut retention = Retention::default();
            loop {
                tokio::time::sleep(interval).await;
                match retention.run(&shared, kinds, shared.config.retention_batch).await {
                    Ok(0) => {}
                    Ok(removed) => info!(messages = removed, policy = kinds[0], "expired messages removed"),
                    Err(error) => debug!(%error, "cannot apply retention; will retry"),
                }
            }
        });
    }
}

/// Removes old traces, finished redrives and obsolete skips.
async fn sweep(shared: &Shared) -> Result<(), Error> {
    let (connections, older_than) = (&shared.connections, shared.config.history_retention);
    while traces::sweep_traces(connections, older_than, SWEEP_BATCH).await? == i64::from(SWEEP_BATCH) {}
    redrive::sweep_redrives(connections, older_than).await?;
    messages::sweep_skips(connections).await?;
    Ok(())
}

impl Retention {
    async fn run(&mut self, shared: &Shared, kinds: &[&str], batch: i32) -> Result<i64, Error> {
        let mut policies = control::retention_policies(&shared.connections).await?;
        policies.retain(|policy| kinds.contains(&policy.kind.as_str()));
        self.forget_all_but(&policies);
        let mut removed = 0;
        for (seen, group) in self.groups(policies) {
            let Some(first) = group.first() else { continue };
            let mut due = HashMap::new();
            for policy in &group {
                let waiting = std::mem::take(&mut self.progress_of(policy).waiting);
                due.extend(waiting.into_iter().map(|expired| (expired.partition, expired)));
            }
            let (from, next) = Seen::next(seen, first.cutoff);
            let result = expire(shared, &group, from, batch, &mut due).await;
            let seen = if result.is_ok() { Some(next) } else { seen };
            let overflow = due.len() > WAITING_MAX;
            for policy in &group {
                self.progress_of(policy).seen = seen.filter(|_| !overflow);
            }
            for expired in due.into_values().filter(|_| !overflow) {
                if let Some(progress) = self.progress.get_mut(&(expired.queue, first.kind.clone())) {
                    progress.waiting.push(expired);
                }
            }
            removed += result?;
        }
        Ok(removed)
    }

    /// Drops the progress of policies that were removed or changed.
    fn forget_all_but(&mut self, policies: &[Policy]) {
        let stays = |(queue, kind): &(Uuid, String), seconds: i32| {
            policies.iter().any(|p| p.queue == *queue && p.kind == *kind && p.seconds == seconds)
        };
        self.progress.retain(|key, progress| stays(key, progress.seconds));
    }

    /// Policies that can share a run: same kind, age and progress.
    fn groups(&mut self, policies: Vec<Policy>) -> Vec<(Option<Seen>, Vec<Policy>)> {
        let mut groups: HashMap<(String, i32, Option<Seen>), Vec<Policy>> = HashMap::new();
        for policy in policies {
            let seen = self.progress_of(&policy).seen;
            groups.entry((policy.kind.clone(), policy.seconds, seen)).or_default().push(policy);
        }
        groups.into_iter().map(|((_, _, seen), group)| (seen, group)).collect()
    }

    fn progress_of(&mut self, policy: &Policy) -> &mut Progress {
        let progress = self.progress.entry((policy.queue, policy.kind.clone())).or_default();
        progress.seconds = policy.seconds;
        progress
    }
}

/// Removes what has expired since `from`, and what is due from earlier runs. What could not be removed stays in `due`, by
/// partition, also after an error.
async fn expire(
    shared: &Shared,
    group: &[Policy],
    from: Option<SystemTime>,
    batch: i32,
    due: &mut HashMap<Uuid, Expired>,
) -> Result<i64, Error> {
    let Some(Policy { kind, seconds, cutoff, .. }) = group.first() else { return Ok(0) };
    let queues: Vec<Uuid> = group.iter().map(|policy| policy.queue).collect();
    let expired = control::expired(&shared.connections, &queues, from, *cutoff).await?;
    due.extend(expired.into_iter().map(|expired| (expired.partition, expired)));
    let mut all: Vec<Expired> = due.values().copied().collect();
    all.sort_unstable_by_key(|expired| expired.partition);
    let mut removed = 0;
    for chunk in all.chunks(batch.max(1) as usize) {
        let (gone, stay) = control::apply_policy(&shared.connections, kind, *seconds, chunk).await?;
        removed += gone;
        shared.history.expired(kind, u64::try_from(gone).unwrap_or(0));
        for expired in chunk {
            due.remove(&expired.partition);
        }
        due.extend(stay.into_iter().map(|expired| (expired.partition, expired)));
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn every_moment_is_looked_at_and_once_more_a_while_later() {
        let (from, seen) = Seen::next(None, at(1_000));
        assert_eq!(from, None);
        let (from, seen) = Seen::next(Some(seen), at(1_005));
        assert_eq!(from, Some(at(1_000)));
        let (from, seen) = Seen::next(Some(seen), at(1_299));
        assert_eq!(from, Some(at(1_005)));
        let (from, seen) = Seen::next(Some(seen), at(1_300));
        assert_eq!(from, Some(at(940)), "a minute before the latest thorough run");
        let (from, _) = Seen::next(Some(seen), at(1_305));
        assert_eq!(from, Some(at(1_300)));
    }
}
