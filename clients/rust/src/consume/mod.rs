//! Consumers: pop, handle and acknowledge in a loop until stopped.

mod consumer;
mod progress;
mod renewal;
mod settlement;
mod worker;

pub use consumer::{Consumer, Stopper};
pub use progress::Summary;

use std::fmt::{self, Display};
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::consume::settlement::Settlement;
use crate::consume::worker::{Count, Worker};
use crate::delivery::Batch;
use crate::error::Error;
use crate::log;
use crate::message::Message;
use crate::on_error::OnError;
use crate::push::Pending;
use crate::queen::Queen;
use crate::signal::Signal;
use crate::want::{Source, Subscription, Want};

/// As much as most handlers process in a second.
const BATCHES_DEFAULT: u32 = 100;
const WAIT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of a consumer. Finish with [`each`](Self::each) or [`batches`](Self::batches).
#[derive(Clone)]
#[must_use = "nothing is consumed without a handler"]
pub struct Consume {
    queen: Queen,
    batch: Option<u32>,
    options: Options,
}

#[derive(Clone)]
pub(crate) struct Options {
    pub want: Want,
    pub concurrency: usize,
    pub limit: Option<u64>,
    pub idle_timeout: Option<Duration>,
    pub auto_ack: bool,
    pub renew: bool,
    pub stop_timeout: Duration,
    pub on_error: OnError,
}

impl Consume {
    pub(crate) fn new(queen: Queen, source: Source, group: Option<String>) -> Self {
        let mut want = Want::new(source, group);
        want.wait = WAIT;
        let options = Options {
            want,
            concurrency: 1,
            limit: None,
            idle_timeout: None,
            auto_ack: true,
            renew: true,
            stop_timeout: STOP_TIMEOUT,
            on_error: OnError::default(),
        };
        Self { queen, batch: None, options }
    }

    /// Maximum messages per pop. Default 1 for `each`, 100 for `batches`.
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = Some(messages);
        self
    }

    /// Maximum partitions per pop. Default 1.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.options.want.partitions = partitions;
        self
    }

    /// Number of concurrent workers. Default 1. A partition is processed by one worker at a time.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.options.concurrency = workers;
        self
    }

    /// Stops after this many messages were handled or failed.
    pub fn limit(mut self, messages: u64) -> Self {
        self.options.limit = Some(messages);
        self
    }

    /// Stops after this long without a message. If no broker is reachable by then, it ends with the error.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.options.idle_timeout = Some(time);
        self
    }

    /// How long a pop waits for messages. Default 30 s.
    pub fn wait(mut self, time: Duration) -> Self {
        self.options.want.wait = time;
        self
    }

    /// Lease time in whole seconds. By default, the queue's.
    pub fn lease(mut self, time: Duration) -> Self {
        self.options.want.lease = Some(time);
        self
    }

    /// Whether a message is acknowledged when its handler returns; otherwise the handler has to do it. A failed message is nacked in
    /// any case, or given back if it would become a dead letter before earlier ones are acknowledged.
    pub fn auto_ack(mut self, auto_ack: bool) -> Self {
        self.options.auto_ack = auto_ack;
        self
    }

    /// Whether to renew leases while a batch is being handled. Default true.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Where a new group starts.
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.options.want.subscription = Some(subscription);
        self
    }

    /// How long a stop waits for running handlers. Default 30 s. Then their messages are given back.
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.options.stop_timeout = time;
        self
    }

    /// Called for errors that are retried: of pops, acknowledgements and renewals. By default they are logged with `tracing`.
    /// Failures of handlers are always logged.
    pub fn on_error(mut self, hear: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.options.on_error = OnError::new(hear);
        self
    }

    /// Handles messages one at a time, in order. A message whose handler returns an error is nacked with its text; the rest of its
    /// partition in this batch is redelivered.
    pub fn each<T, F, R, E>(self, handler: F) -> Consuming
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Message<T>, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        self.consuming(1, Handler::Each(Box::new(Each { handler, message: PhantomData })))
    }

    /// Handles all messages of a pop together. An error nacks all of them with its text.
    pub fn batches<T, F, R, E>(self, handler: F) -> Consuming
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(Vec<Message<T>>, Context) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Display,
    {
        let batches = move |batch: &Arc<Batch>, context, settlement: &mut Settlement| {
            let mut messages = Vec::with_capacity(batch.len());
            for index in 0..batch.len() {
                match batch.decode(index) {
                    _ if !settlement.wants(index) => {}
                    Ok(message) => messages.push(message),
                    Err(error) => {
                        log::handler_failed(batch, index, 1, error.text());
                        settlement.fail(index, error.text().to_owned());
                    }
                }
            }
            if messages.is_empty() {
                return None;
            }
            let handling = handler(messages, context);
            let handling: Handling =
                Box::pin(async move { handling.await.map_err(|error| format!("{error:#}")) });
            Some(handling)
        };
        self.consuming(BATCHES_DEFAULT, Handler::Batches(Box::new(batches)))
    }

    fn consuming(mut self, batch: u32, handler: Handler) -> Consuming {
        self.options.want.batch = self.batch.unwrap_or(batch);
        Consuming { queen: self.queen, options: self.options, handler }
    }
}

impl fmt::Debug for Consume {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Consume").field("want", &self.options.want).finish_non_exhaustive()
    }
}

impl Options {
    fn check(&self) -> Result<(), Error> {
        self.want.check()?;
        if self.concurrency == 0 {
            return Err(Error::bad_use("concurrency must be at least 1"));
        }
        if self.want.wait.is_zero() {
            return Err(Error::bad_use("wait must not be 0: the consumer would poll without a pause"));
        }
        if self.idle_timeout.is_some_and(|time| time.is_zero()) || self.limit == Some(0) {
            return Err(Error::bad_use("idle_timeout and limit must not be 0"));
        }
        Ok(())
    }
}

/// The end of a handler, with the text of its error.
pub(crate) type Handling = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
/// Messages that it cannot decode fail here. `None`: there is nothing left to handle.
type Batches = dyn Fn(&Arc<Batch>, Context, &mut Settlement) -> Option<Handling> + Send + Sync;

pub(crate) enum Handler {
    Each(Box<dyn OneByOne>),
    Batches(Box<Batches>),
}

/// Handles a batch message by message. One future for all of them, because boxing each would cost more than many handlers.
pub(crate) trait OneByOne: Send + Sync {
    fn handle<'a>(
        &'a self,
        worker: &'a Worker,
        batch: &'a Arc<Batch>,
        settlement: &'a mut Settlement,
        context: Context,
    ) -> Pin<Box<dyn Future<Output = Count> + Send + 'a>>;
}

/// A handler of messages with payloads of type `T`.
struct Each<T, F> {
    handler: F,
    message: PhantomData<fn(T)>,
}

impl<T, F, R, E> OneByOne for Each<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(Message<T>, Context) -> R + Send + Sync,
    R: Future<Output = Result<(), E>> + Send,
    E: Display,
{
    fn handle<'a>(
        &'a self,
        worker: &'a Worker,
        batch: &'a Arc<Batch>,
        settlement: &'a mut Settlement,
        context: Context,
    ) -> Pin<Box<dyn Future<Output = Count> + Send + 'a>> {
        let signals = context.signals.clone();
        let start = move |index| {
            let started = batch.decode(index).map(|message| (self.handler)(message, context.clone()));
            async move {
                match started {
                    Ok(handling) => handling.await.map_err(|error| format!("{error:#}")),
                    Err(error) => Err(error.text().to_owned()),
                }
            }
        };
        Box::pin(async move { worker.each(batch, settlement, &signals.lost, start).await })
    }
}

/// A configured consumer. Await it to run it to its end, or [`start`](Self::start) it in the background.
#[must_use = "nothing is consumed until it is awaited or started"]
pub struct Consuming {
    queen: Queen,
    options: Options,
    handler: Handler,
}

impl Consuming {
    /// Runs it in the background, on the current tokio runtime.
    pub fn start(self) -> Result<Consumer, Error> {
        self.options.check()?;
        self.queen.shared.check_not_closed()?;
        Ok(Consumer::start(self.queen, self.options, self.handler))
    }
}

/// Runs until its limit, its idle timeout or a permanent error. Dropping it stops it like [`Consumer::stop`], in the
/// background.
impl IntoFuture for Consuming {
    type Output = Result<Summary, Error>;
    type IntoFuture = Pending<Summary>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start()?.finished().await })
    }
}

impl fmt::Debug for Consuming {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Consuming").field("want", &self.options.want).finish_non_exhaustive()
    }
}

/// What a handler can query while it runs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    signals: Arc<Signals>,
}

/// The context of one batch.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Its lease.
    pub lost: Signal,
    /// The consumer.
    pub stop: Arc<Signal>,
}

impl Context {
    /// Returns when the lease is lost: other consumers may have the messages, and nothing will be acknowledged.
    pub async fn lease_lost(&self) {
        self.signals.lost.given().await;
    }

    /// Whether the lease is lost.
    pub fn is_lease_lost(&self) -> bool {
        self.signals.lost.is_given()
    }

    /// Returns when the consumer starts to stop; it waits for this handler for a while.
    pub async fn stopping(&self) {
        self.signals.stop.given().await;
    }

    /// Whether the consumer is stopping.
    pub fn is_stopping(&self) -> bool {
        self.signals.stop.is_given()
    }

    /// Stops the consumer once this handler is done.
    pub fn stop(&self) {
        self.signals.stop.give();
    }
}
