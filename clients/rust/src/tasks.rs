//! The only module that spawns tasks: consumers, renewals and lanes of buffers. Each ends by itself once its handle is closed or
//! dropped.

use std::future::Future;

/// Runs a future to completion on the current runtime.
#[expect(clippy::disallowed_methods, reason = "this is the only place that spawns")]
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(task)
}
