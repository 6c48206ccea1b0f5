//! Writes what was noted about traced messages, in batches, and forgets it after a while.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::db::Error;
use crate::db::life::{life_traced, note_life, sweep_life};
use crate::shared::Shared;

/// What is noted meanwhile is written together.
const COLLECT: Duration = Duration::from_millis(100);

/// Events of one statement.
const BATCH: usize = 1_000;

/// Before the database is tried again.
const AGAIN: Duration = Duration::from_secs(1);

const SWEEP_EVERY: Duration = Duration::from_secs(600);
const SWEEP_BATCH: i32 = 10_000;

pub fn start(shared: &Arc<Shared>) {
    let writing = shared.clone();
    // What was noted before the end is written, too.
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

/// Everything that waits, also if somebody else is just writing some of it. Stays if the database cannot be reached.
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
                debug!(%error, "what an acknowledgement did to traced messages is lost");
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
                debug!(%error, events = events.len(), "events of traced messages are lost");
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
                debug!(%error, "events of traced messages will be swept later");
                return;
            }
        }
    }
}
