//! The only spawner. What runs in the background here is a consumer, its renewals, or a lane of a buffer; each
//! ends by itself once its handle is closed or dropped.

use std::future::Future;

/// Runs to its end on the runtime of the caller.
#[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
    tokio::spawn(task)
}
