//! Turns SIGTERM and Ctrl-C into a request to stop. The second one ends the process at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

/// What a shell reports for a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

pub fn stop_requests() -> io::Result<CancellationToken> {
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    TaskTracker::new().spawn(watch(terminate, interrupt, stop.clone()));
    Ok(stop)
}

async fn watch(mut terminate: Signal, mut interrupt: Signal, stop: CancellationToken) {
    next(&mut terminate, &mut interrupt).await;
    stop.cancel();
    // If the reader of the log is stuck, a second signal must still end the process.
    tokio::task::spawn_blocking(|| {
        info!("stopping: waiting for requests in progress; a second signal stops at once");
    });
    next(&mut terminate, &mut interrupt).await;
    std::process::exit(INTERRUPTED);
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
