//! Consuming: pop, handle, acknowledge, again and again, until somebody says stop.

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

/// Fits what most handlers do in a second.
const BATCHES_DEFAULT: u32 = 100;
const WAIT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// How to consume. Ends with [`each`](Self::each) or [`batches`](Self::batches).
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

    /// The most messages of one pop: 1 for `each`, 100 for `batches` if nothing is said.
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = Some(messages);
        self
    }

    /// The most partitions of one pop, 1.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.options.want.partitions = partitions;
        self
    }

    /// How many workers pop and handle side by side, 1. A partition is with one of them at a time.
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.options.concurrency = workers;
        self
    }

    /// Ends after so many messages were handled, or have failed.
    pub fn limit(mut self, messages: u64) -> Self {
        self.options.limit = Some(messages);
        self
    }

    /// Ends after so long without a message. If a broker cannot even be asked when that time is over, it ends with the error.
    pub fn idle_timeout(mut self, time: Duration) -> Self {
        self.options.idle_timeout = Some(time);
        self
    }

    /// How long one pop waits for messages, 30 s.
    pub fn wait(mut self, time: Duration) -> Self {
        self.options.want.wait = time;
        self
    }

    /// The length of a lease, in whole seconds. If nothing is said the queue decides.
    pub fn lease(mut self, time: Duration) -> Self {
        self.options.want.lease = Some(time);
        self
    }

    /// Whether a message is acknowledged when its handler returns. If not, the handler does it. One that fails
    /// is nacked in any case, or given back if it would become a dead letter before those in front of it are acknowledged.
    pub fn auto_ack(mut self, auto_ack: bool) -> Self {
        self.options.auto_ack = auto_ack;
        self
    }

    /// Whether leases are extended while a batch is being handled. They are.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Where the group starts if it is new here.
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.options.want.subscription = Some(subscription);
        self
    }

    /// How long a stop waits for handlers that run, 30 s. Then their messages are given back.
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.options.stop_timeout = time;
        self
    }

    /// Hears of everything that went wrong and is tried again: pops, acknowledgements, renewals. Without it they are logged with
    /// `tracing`. What handlers fail with is logged in any case.
    pub fn on_error(mut self, hear: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.options.on_error = OnError::new(hear);
        self
    }

    /// Handles messages one by one, in order. What returns an error is nacked with its text; the rest of its
    /// partition in this batch comes again.
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
            return Err(Error::bad_use("a consumer that does not wait would ask without a pause"));
        }
        if self.idle_timeout.is_some_and(|time| time.is_zero()) || self.limit == Some(0) {
            return Err(Error::bad_use("idle_timeout and limit must not be 0"));
        }
        Ok(())
    }
}

/// The end of a handler, with the text of its error.
pub(crate) type Handling = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
/// Whatever it cannot decode it fails by itself. `None`: there is nothing left to handle.
type Batches = dyn Fn(&Arc<Batch>, Context, &mut Settlement) -> Option<Handling> + Send + Sync;

pub(crate) enum Handler {
    Each(Box<dyn OneByOne>),
    Batches(Box<Batches>),
}

/// Handles a batch message by message. It is one future for all of them: a box for each would cost more than many a handler.
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

/// A consumer that is ready to go. Await it to run it to its end, or [`start`](Self::start) it in the background.
#[must_use = "nothing is consumed before it is awaited or started"]
pub struct Consuming {
    queen: Queen,
    options: Options,
    handler: Handler,
}

impl Consuming {
    /// Runs it in the background, on this tokio runtime.
    pub fn start(self) -> Result<Consumer, Error> {
        self.options.check()?;
        self.queen.shared.check_not_closed()?;
        Ok(Consumer::start(self.queen, self.options, self.handler))
    }
}

/// Runs until its limit, its idle timeout or an error that will not pass. Dropping it stops it as [`Consumer::stop`] does,
/// in the background.
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

/// What a handler may ask while it is at work. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    signals: Arc<Signals>,
}

/// Of one batch.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Its lease.
    pub lost: Signal,
    /// The consumer.
    pub stop: Arc<Signal>,
}

impl Context {
    /// Returns when the lease has been lost: others may have the messages now, and nothing will be acknowledged.
    pub async fn lease_lost(&self) {
        self.signals.lost.given().await;
    }

    /// Whether the lease has been lost.
    pub fn is_lease_lost(&self) -> bool {
        self.signals.lost.is_given()
    }

    /// Returns when the consumer is about to stop, which waits for this handler for a while.
    pub async fn stopping(&self) {
        self.signals.stop.given().await;
    }

    /// Whether the consumer is about to stop.
    pub fn is_stopping(&self) -> bool {
        self.signals.stop.is_given()
    }

    /// Stops the consumer, once this handler is done.
    pub fn stop(&self) {
        self.signals.stop.give();
    }
}
