//! Maintains the extents of the log: starts a new one when the current one is full or old, and drops the oldest when nothing in
//! it is needed. Also removes partitions and consumer groups that have not been used for a long time.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info};

use crate::db::control;
use crate::shared::Shared;

const ROTATE_EVERY: Duration = Duration::from_secs(15);

/// Reads all partitions, so it runs rarely.
const CLEAN_EVERY: Duration = Duration::from_secs(3600);

/// How many groups one round removes. Each is searched for in all partitions of its queue: about 0.3 s for 100,000.
const GROUPS_BATCH: i32 = 20;

pub fn start(shared: &Arc<Shared>) {
    let rotating = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(ROTATE_EVERY).await;
            if let Err(error) = rotate(&rotating).await {
                debug!(%error, "cannot maintain extents; will retry");
            }
        }
    });
    let cleaning = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(CLEAN_EVERY).await;
            if let Err(error) = clean(&cleaning).await {
                debug!(%error, "cannot remove idle partitions and groups; will retry");
            }
        }
    });
}

async fn rotate(shared: &Shared) -> Result<(), crate::db::Error> {
    let (bytes, age) = (shared.config.extent_bytes, shared.config.extent_age);
    if let Some(number) = control::rotate_extent(&shared.connections, bytes, age).await? {
        info!(extent = number, "extent started");
    }
    while let Some((number, copied)) = control::drop_extent(&shared.connections).await? {
        info!(extent = number, segments.copied = copied, "extent dropped");
    }
    Ok(())
}

async fn clean(shared: &Shared) -> Result<(), crate::db::Error> {
    let (connections, older_than) = (&shared.connections, shared.config.partition_cleanup);
    let batch = shared.config.retention_batch.max(1);
    while control::remove_idle_partitions(connections, older_than, batch).await? == batch {}
    // A consumer that only waits leaves no other trace of activity.
    control::touch_groups(connections, &shared.watches.pairs()).await?;
    let removed = control::remove_unused_groups(connections, older_than, GROUPS_BATCH).await?;
    if removed > 0 {
        info!(registrations = removed, "unused consumer groups removed");
    }
    Ok(())
}
