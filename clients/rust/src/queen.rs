//! The connection: where the brokers are, and how patient to be with them. Everything else starts here.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;

use crate::ack::Acks;
use crate::admin::Admin;
use crate::brokers::{Brokers, Route};
use crate::call::Call;
use crate::delivery::Batch;
use crate::error::{Error, ErrorKind};
use crate::http::{self, Base, BoxError, Token, TokenSource, Transport};
use crate::log::Outages;
use crate::message::{Message, Taken};
use crate::queue::{Discover, Queue};
use crate::retry::Policy;
use crate::signal::Signal;
use crate::traces::Traces;
use crate::transaction::Transaction;

/// A client of one Queen: one broker, or several on the same database. Cheap to clone; all clones share connections.
///
/// Nothing is sent before a verb is awaited, so this never fails for a broker that is away. A call needs a tokio runtime.
#[derive(Clone)]
pub struct Queen {
    pub(crate) shared: Arc<Shared>,
}

impl Queen {
    /// With all defaults: `Queen::connect("http://localhost:6632")`.
    pub fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// With options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Ends it, with all its clones and handles: from here on nothing is begun, and every call fails with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). Calls that are under way go on. Consumers stop as
    /// [`Consumer::stop`](crate::Consumer::stop) does, in the background, and until they have, their handlers may still use it. Buffers take
    /// nothing more and deliver what they hold. Who wants to know the end of both stops consumers and closes buffers himself, before or
    /// after. Dropping the last clone needs no close.
    pub fn close(&self) {
        self.shared.closed.give();
    }

    /// A queue by its name. It comes into being with its first message.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue::new(self.clone(), name.into())
    }

    /// All queues with this namespace, this task, or both: `queen.discover("shop", None)`.
    pub fn discover<'a>(
        &self,
        namespace: impl Into<Option<&'a str>>,
        task: impl Into<Option<&'a str>>,
    ) -> Discover {
        let owned = |label: Option<&str>| label.map(str::to_owned);
        Discover::new(self.clone(), owned(namespace.into()), owned(task.into()))
    }

    /// Acknowledgements and pushes, all or nothing.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.clone())
    }

    /// A message that somebody else has popped, to acknowledge it for him.
    pub fn taken(&self, message: Taken) -> Message<()> {
        Message { data: (), envelope: Batch::taken(self.shared.clone(), message).envelope(0) }
    }

    /// Acknowledgements of many messages of one group, in one request.
    pub fn acks(&self) -> Acks {
        Acks::new(self.clone())
    }

    /// What there is, how it is, and what can be done about it.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// What consumers noted about messages.
    pub fn traces(&self) -> Traces {
        Traces::new(self.clone())
    }
}

impl fmt::Debug for Queen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls: Vec<_> = self.shared.bases.iter().map(|base| &base.url).collect();
        out.debug_struct("Queen").field("urls", &urls).finish_non_exhaustive()
    }
}

/// What to do with an operation that the broker has deferred (a 202).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueuedOperation {
    /// Hand it out: the results say which operation will do it.
    #[default]
    Return,
    /// Ask for it until it is done, has failed, or the deadline is over.
    Poll,
}

/// Options of a [`Queen`].
#[derive(Clone)]
#[must_use = "nothing is connected before build()"]
pub struct Builder {
    urls: Vec<String>,
    token: Option<String>,
    token_source: Option<TokenSource>,
    headers: Vec<(String, String)>,
    ca_certificates: Option<Vec<u8>>,
    request_timeout: Duration,
    deadline: Duration,
    policy: Policy,
    queued: QueuedOperation,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            token: None,
            token_source: None,
            headers: Vec::new(),
            ca_certificates: None,
            request_timeout: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
            policy: Policy::default(),
            queued: QueuedOperation::default(),
        }
    }
}

impl Builder {
    /// One more broker.
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        self.urls.push(url.as_ref().to_owned());
        self
    }

    /// More brokers, all on the same database.
    pub fn urls<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.urls.extend(urls.into_iter().map(|url| url.as_ref().to_owned()));
        self
    }

    /// A bearer token or an API key.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Something that gives the token of each attempt, for tokens that end.
    pub fn token_with<F, R, E>(mut self, source: F) -> Self
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.token_source = Some(Arc::new(move || {
            let token = source();
            Box::pin(async move { token.await.map_err(Into::into) })
        }));
        self
    }

    /// A header of every request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Certificates in PEM that https trusts in place of those of the system: of authorities, or of the broker itself.
    #[cfg(feature = "tls")]
    pub fn ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_certificates = Some(pem.into());
        self
    }

    /// How long one attempt may take, 30 s. A pop that waits has its wait and 5 s more.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long a call may take with all its attempts, 60 s. A pop that waits has its wait and 30 s more.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The longest first pause between attempts, 100 ms. It doubles with each.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.policy.retry_delay = delay;
        self
    }

    /// The longest pause between attempts, 30 s, also if the broker asks for a longer one.
    pub fn max_retry_delay(mut self, delay: Duration) -> Self {
        self.policy.max_retry_delay = delay;
        self
    }

    /// Whether a 429 is tried again. It is.
    pub fn retry_on_429(mut self, retry: bool) -> Self {
        self.policy.retry_on_429 = retry;
        self
    }

    /// Whether a broker that says when to come back is obeyed. It is.
    pub fn honor_retry_after(mut self, honor: bool) -> Self {
        self.policy.honor_retry_after = honor;
        self
    }

    /// What to do with deferred operations: hand them out.
    pub fn queued_operation_behavior(mut self, queued: QueuedOperation) -> Self {
        self.queued = queued;
        self
    }

    /// Checks the options. Nothing is sent.
    pub fn build(self) -> Result<Queen, Error> {
        if self.urls.is_empty() {
            return Err(Error::bad_use("no URL: say where the broker is, as in http://localhost:6632"));
        }
        if self.request_timeout.is_zero() || self.deadline.is_zero() {
            return Err(Error::bad_use("a request needs some time: timeout and deadline must not be 0"));
        }
        let bases = self.urls.iter().map(|url| Base::parse(url)).collect::<Result<Vec<_>, _>>()?;
        let token = match (&self.token, self.token_source) {
            (Some(_), Some(_)) => return Err(Error::bad_use("either a token or something that gives one")),
            (Some(token), None) => Token::Fixed(http::bearer(token)?),
            (None, Some(source)) => Token::Source(source),
            (None, None) => Token::None,
        };
        let transport =
            Transport::new(&bases, http::headers(&self.headers)?, token, self.ca_certificates.as_deref())?;
        let brokers = Mutex::new(Brokers::new(bases.iter().map(|base| base.url.as_str())));
        let outages = Outages::new(bases.iter().map(|base| base.url.as_str()));
        let (timeout, deadline) = (self.request_timeout, self.deadline);
        let (policy, queued) = (self.policy, self.queued);
        let (closed, consumers) = (Signal::default(), AtomicUsize::new(0));
        let shared = Shared {
            transport,
            bases,
            brokers,
            outages,
            policy,
            timeout,
            deadline,
            queued,
            closed,
            consumers,
        };
        Ok(Queen { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Builder")
            .field("urls", &self.urls)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// What all clones and handles share.
pub struct Shared {
    pub transport: Transport,
    pub bases: Vec<Base>,
    brokers: Mutex<Brokers>,
    pub outages: Outages,
    pub policy: Policy,
    /// Of an attempt.
    pub timeout: Duration,
    /// Of a call.
    pub deadline: Duration,
    pub queued: QueuedOperation,
    pub closed: Signal,
    /// How many of them run.
    consumers: AtomicUsize,
}

/// A consumer that runs, as long as this lives.
pub struct Running {
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.consumers.fetch_sub(1, SeqCst);
    }
}

impl Shared {
    /// For a call. A handler has to be able to finish what it is at, so it may go on until its consumer has stopped.
    pub fn check_open(&self) -> Result<(), Error> {
        match self.closed.is_given() && self.consumers.load(SeqCst) == 0 {
            false => Ok(()),
            true => Err(closed()),
        }
    }

    /// For what lasts: nothing of that kind begins any more.
    pub fn check_not_closed(&self) -> Result<(), Error> {
        if self.closed.is_given() { Err(closed()) } else { Ok(()) }
    }

    pub fn run_consumer(self: &Arc<Self>) -> Running {
        self.consumers.fetch_add(1, SeqCst);
        Running { shared: self.clone() }
    }

    pub fn brokers(&self) -> MutexGuard<'_, Brokers> {
        // Nothing in there can be half done.
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call with the usual times.
    pub fn usual(
        &self,
        method: Method,
        path: String,
        body: Bytes,
        route: Route,
        deadline: Option<Duration>,
    ) -> Call {
        let (timeout, deadline) = (self.timeout, deadline.unwrap_or(self.deadline));
        Call { method, path, body, route, timeout, deadline, once: false }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_told_before_anything_is_sent() {
        let refused = |builder: Builder| builder.build().unwrap_err();
        let url = || Queen::builder().url("http://localhost");
        for (error, says) in [
            (refused(Queen::builder()), "no URL"),
            (refused(Queen::builder().url("localhost:6632")), "scheme"),
            (refused(url().deadline(Duration::ZERO)), "time"),
            (refused(url().token("a\nb")), "token"),
            (refused(url().header("a b", "c")), "header"),
            (refused(url().token("a").token_with(|| async { Ok::<_, Error>(String::new()) })), "either"),
        ] {
            assert!(error.kind() == ErrorKind::BadUse && error.text().contains(says), "{error}");
        }
        assert!(url().url("https://other").build().is_ok());
    }
}
