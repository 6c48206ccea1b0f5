//! A running consumer: its workers, its end, and its handle.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock;
use crate::consume::progress::Progress;
use crate::consume::renewal::Renewals;
use crate::consume::worker::{Duty, Worker};
use crate::consume::{Handler, Options, Summary};
use crate::error::{Error, ErrorKind};
use crate::log::Trouble;
use crate::queen::Queen;
use crate::signal::Signal;
use crate::tasks;

/// A consumer in the background. Dropping it stops it like [`stop`](Self::stop), without waiting.
#[must_use = "dropping a consumer stops it"]
pub struct Consumer {
    stop: Arc<Signal>,
    end: watch::Receiver<Option<Result<Summary, Error>>>,
}

impl Consumer {
    pub(super) fn start(queen: Queen, options: Options, handler: Handler) -> Self {
        let stop = Arc::<Signal>::default();
        let renewals = Renewals::new(queen.shared.clone(), options.on_error.clone());
        let progress = Progress::new(options.limit, options.idle_timeout, clock::now());
        let running = queen.shared.run_consumer();
        let shared = queen.shared;
        let (stop_workers, refusals) = (stop.clone(), Trouble::default());
        let duty = Duty { shared, options, handler, progress, renewals, stop: stop_workers, refusals };
        let duty = Arc::new(duty);
        let (ended, end) = watch::channel(None);
        tasks::spawn(async move {
            let outcome = supervise(&duty).await;
            drop(running);
            // The handle may be gone.
            let _ = ended.send(Some(outcome.map(|()| duty.progress.summary())));
        });
        Self { stop, end }
    }

    /// Stops the consumer gracefully: no new pops, a waiting pop is ended at the broker, running handlers are awaited, completed
    /// messages are acknowledged, and the rest is given back. Afterwards no message is leased.
    ///
    /// # Cancel safety
    /// The consumer stops even if this is dropped; only its end is not awaited. May be called again.
    pub async fn stop(&self) -> Result<Summary, Error> {
        self.stop.give();
        self.finished().await
    }

    /// Waits until the consumer ends by its limit, idle timeout, a stop, or a permanent error.
    pub async fn finished(&self) -> Result<Summary, Error> {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Ok(Summary::default())),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the runtime of the consumer has ended")),
        }
    }

    /// A handle to stop the consumer from elsewhere, such as a signal handler.
    pub fn stopper(&self) -> Stopper {
        Stopper { stop: self.stop.clone() }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.give();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Consumer").field("stopping", &self.stop.is_given()).finish_non_exhaustive()
    }
}

/// Stops a [`Consumer`]. Does not wait for it, and does not keep it running.
#[derive(Debug, Clone)]
pub struct Stopper {
    stop: Arc<Signal>,
}

impl Stopper {
    /// Like [`Consumer::stop`], without waiting.
    pub fn stop(&self) {
        self.stop.give();
    }
}

/// Runs until all workers are done. The first failure stops the others, and so does closing the client.
async fn supervise(duty: &Arc<Duty>) -> Result<(), Error> {
    let renewing = tasks::spawn(duty.renewals.clone().run());
    let mut workers = JoinSet::new();
    for number in 0..duty.options.concurrency {
        workers.spawn(Worker::new(duty.clone(), number).run());
    }
    let mut outcome = Ok(());
    loop {
        let ended = tokio::select! {
            ended = workers.join_next() => ended,
            () = duty.shared.closed.given(), if !duty.stop.is_given() => {
                duty.stop.give();
                continue;
            }
        };
        let Some(ended) = ended else { break };
        let ended = ended.unwrap_or_else(|panic| Err(Error::new(ErrorKind::Closed, panic.to_string())));
        if ended.is_err() {
            duty.stop.give();
        }
        outcome = outcome.and(ended);
    }
    renewing.abort();
    outcome
}
