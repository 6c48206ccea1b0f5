//! Writes the events of traced messages to the database in batches, and removes them when they expire.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::db::Error;
use crate::db::life::{life_traced, note_life, sweep_life};
use crate::shared::Shared;

/// How long to collect events for one write.
const COLLECT: Duration = Duration::from_millis(100);

/// Events per statement.
const BATCH: usize = 1_000;

/// Delay before a retry.
const AGAIN: Duration = Duration::from_secs(1);

const SWEEP_EVERY: Duration = Duration::from_secs(600);
const SWEEP_BATCH: i32 = 10_000;

pub fn start(shared: &Arc<Shared>) {
    let writing = shared.clone();
    // Also writes what was noted before a stop.
    shared.tasks.spawn(async move {
        let tasks = writing.tasks.clone();
        while !tasks.is_stopping() {
            tokio::select! {
                () = tasks.stopping() => {}
                () = writing.life.noted.notified() => {
                    let _ = tokio::time::timeout(COLLECT, tasks.stopping()).await;
                }
            }
            write(&writing).await;
            if !writing.life.is_empty() {
                let _ = tokio::time::timeout(AGAIN, tasks.stopping()).await;
                writing.life.noted.notify_one();
            }
        }
    });
    let sweeping = shared.clone();
    shared.tasks.spawn_until_stop(async move {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            sweep(&sweeping).await;
        }
    });
}

/// Writes all pending events, also those that another task is about to write. They stay if the database is unreachable.
pub async fn write(shared: &Shared) {
    let _turn = shared.life.writing.lock().await;
    while let Some(look_up) = shared.life.take_look_up() {
        let found = async {
            let db = shared.connections.acquire().await?;
            life_traced(&db, &look_up).await
        };
        match found.await {
            Ok(traced) => shared.life.note(look_up.events(&traced)),
            Err(error) => {
                debug!(%error, "lost events: cannot find the traced messages of an acknowledgement");
                shared.life.forgotten(1);
            }
        }
    }
    loop {
        let events = shared.life.take(BATCH);
        if events.is_empty() {
            return;
        }
        let written = async {
            let db = shared.connections.acquire().await?;
            note_life(&db, &events).await
        };
        match written.await {
            Ok(written) => {
                shared.life.written(written);
                shared.life.forgotten(events.len() - written.min(events.len()));
            }
            Err(Error::Unreachable(_)) => return shared.life.give_back(events),
            Err(error) => {
                debug!(%error, events = events.len(), "lost events: cannot write the events of traced messages");
                shared.life.forgotten(events.len());
            }
        }
    }
}

async fn sweep(shared: &Shared) {
    loop {
        match sweep_life(&shared.connections, shared.config.history_retention, SWEEP_BATCH).await {
            Ok(SWEEP_BATCH) => {}
            Ok(_) => return,
            Err(error) => {
                debug!(%error, "cannot remove expired events of traced messages; will retry");
                return;
            }
        }
    }
}
