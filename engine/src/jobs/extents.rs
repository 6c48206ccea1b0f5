//! Keeps the ring of extents turning: a new one when the current is full or old, the oldest dropped when nothing
//! in it is live. And removes partitions and groups that nobody has used for a long time.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use crate::db::control;
use crate::shared::Shared;

const TURN_EVERY: Duration = Duration::from_secs(15);

/// Reads all partitions, so rarely.
const CLEAN_EVERY: Duration = Duration::from_secs(3600);

/// Groups one round removes. Each is looked for in all partitions of its queue: some 0.3 s for 100,000.
const GROUPS_BATCH: i32 = 20;

pub fn start(shared: &Arc<Shared>) {
    let turning = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(TURN_EVERY).await;
            if let Err(error) = turn(&turning).await {
                debug!(%error, "extents will be looked at again");
            }
        }
    });
    let cleaning = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(CLEAN_EVERY).await;
            if let Err(error) = clean(&cleaning).await {
                debug!(%error, "idle partitions will be looked for again");
            }
        }
    });
}

async fn turn(shared: &Shared) -> Result<(), crate::db::Error> {
    let (bytes, age) = (shared.config.extent_bytes, shared.config.extent_age);
    if let Some(number) = control::rotate_extent(&shared.connections, bytes, age).await? {
        info!(extent = number, "a new extent was started");
    }
    while let Some((number, copied)) = control::drop_extent(&shared.connections).await? {
        info!(extent = number, segments.copied = copied, "an extent was dropped");
    }
    Ok(())
}

async fn clean(shared: &Shared) -> Result<(), crate::db::Error> {
    let (connections, older_than) = (&shared.connections, shared.config.partition_cleanup);
    let batch = shared.config.retention_batch.max(1);
    while control::remove_idle_partitions(connections, older_than, batch).await? == batch {}
    // Consumers that only wait leave no other trace.
    control::touch_groups(connections, &shared.watches.pairs()).await?;
    let removed = control::remove_unused_groups(connections, older_than, GROUPS_BATCH).await?;
    if removed > 0 {
        info!(registrations = removed, "unused consumer groups removed");
    }
    Ok(())
}
