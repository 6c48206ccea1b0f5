//! The client: broker URLs, credentials, timeouts and retries. Everything starts here.

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

/// A client of one Queen: one broker, or several on the same database. Cheap to clone; clones share connections.
///
/// Nothing is sent until a verb is awaited, so creating a client succeeds without a running broker. Calls need a tokio runtime.
#[derive(Clone)]
pub struct Queen {
    pub(crate) shared: Arc<Shared>,
}

impl Queen {
    /// Creates a client with all defaults: `Queen::connect("http://localhost:6632")`.
    pub fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder().url(url).build()
    }

    /// Creates a client with options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Closes the client with all its clones and handles: new calls fail with [`ErrorKind::Closed`](crate::ErrorKind::Closed), calls
    /// in progress continue. Consumers stop in the background like [`Consumer::stop`](crate::Consumer::stop); until then their
    /// handlers may still use the client. Buffers accept nothing more and deliver their contents. To wait for both, stop consumers
    /// and close buffers yourself, before or after. Dropping the last clone needs no close.
    pub fn close(&self) {
        self.shared.closed.give();
    }

    /// A queue by its name. Its first message creates it.
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

    /// A transaction: acknowledgements and pushes, all or nothing.
    pub fn transaction(&self) -> Transaction {
        Transaction::new(self.clone())
    }

    /// A message that was popped elsewhere, to acknowledge it here.
    pub fn taken(&self, message: Taken) -> Message<()> {
        Message { data: (), envelope: Batch::taken(self.shared.clone(), message).envelope(0) }
    }

    /// Acknowledgements of many messages of one group, in one request.
    pub fn acks(&self) -> Acks {
        Acks::new(self.clone())
    }

    /// The control plane.
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Notes of consumers about messages.
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

/// How to treat a deferred operation (202).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueuedOperation {
    /// Return it: the results name the operation.
    #[default]
    Return,
    /// Poll it until it completes, fails, or the deadline passes.
    Poll,
}

/// Options of a [`Queen`].
#[derive(Clone)]
#[must_use = "nothing is created until build()"]
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
    /// Adds a broker.
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        self.urls.push(url.as_ref().to_owned());
        self
    }

    /// Adds brokers. All of them must use the same database.
    pub fn urls<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.urls.extend(urls.into_iter().map(|url| url.as_ref().to_owned()));
        self
    }

    /// A bearer token or an API key.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// A function that provides the token of each attempt, for tokens that expire.
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

    /// Adds a header to every request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Certificates in PEM to trust for HTTPS in place of the system's: of authorities, or of the broker itself.
    #[cfg(feature = "tls")]
    pub fn ca_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_certificates = Some(pem.into());
        self
    }

    /// Time limit of one attempt. Default 30 s. For a pop that waits, its wait plus 5 s.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Time limit of a call, including retries. Default 60 s. For a pop that waits, its wait plus 30 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Maximum of the first pause between attempts; it doubles each time. Default 100 ms.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.policy.retry_delay = delay;
        self
    }

    /// Maximum pause between attempts, even if the broker asks for a longer one. Default 30 s.
    pub fn max_retry_delay(mut self, delay: Duration) -> Self {
        self.policy.max_retry_delay = delay;
        self
    }

    /// Whether to retry after a 429. Default true.
    pub fn retry_on_429(mut self, retry: bool) -> Self {
        self.policy.retry_on_429 = retry;
        self
    }

    /// Whether to honor `Retry-After`. Default true.
    pub fn honor_retry_after(mut self, honor: bool) -> Self {
        self.policy.honor_retry_after = honor;
        self
    }

    /// How to treat deferred operations. By default, they are returned.
    pub fn queued_operation_behavior(mut self, queued: QueuedOperation) -> Self {
        self.queued = queued;
        self
    }

    /// Validates the options and creates the client. Nothing is sent.
    pub fn build(self) -> Result<Queen, Error> {
        if self.urls.is_empty() {
            return Err(Error::bad_use("no URL: set a broker URL like http://localhost:6632"));
        }
        if self.request_timeout.is_zero() || self.deadline.is_zero() {
            return Err(Error::bad_use("timeout and deadline must not be 0"));
        }
        let bases = self.urls.iter().map(|url| Base::parse(url)).collect::<Result<Vec<_>, _>>()?;
        let token = match (&self.token, self.token_source) {
            (Some(_), Some(_)) => return Err(Error::bad_use("set either token or token_with")),
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

/// State shared by all clones and handles.
pub struct Shared {
    pub transport: Transport,
    pub bases: Vec<Base>,
    brokers: Mutex<Brokers>,
    pub outages: Outages,
    pub policy: Policy,
    /// Time limit of an attempt.
    pub timeout: Duration,
    /// Time limit of a call.
    pub deadline: Duration,
    pub queued: QueuedOperation,
    pub closed: Signal,
    /// Number of running consumers.
    consumers: AtomicUsize,
}

/// Counts a consumer as running until it is dropped.
pub struct Running {
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.consumers.fetch_sub(1, SeqCst);
    }
}

impl Shared {
    /// For a call. Handlers must be able to finish, so calls are allowed until all consumers have stopped.
    pub fn check_open(&self) -> Result<(), Error> {
        match self.closed.is_given() && self.consumers.load(SeqCst) == 0 {
            false => Ok(()),
            true => Err(closed()),
        }
    }

    /// For consumers and buffers, which cannot start once the client is closed.
    pub fn check_not_closed(&self) -> Result<(), Error> {
        if self.closed.is_given() { Err(closed()) } else { Ok(()) }
    }

    pub fn run_consumer(self: &Arc<Self>) -> Running {
        self.consumers.fetch_add(1, SeqCst);
        Running { shared: self.clone() }
    }

    pub fn brokers(&self) -> MutexGuard<'_, Brokers> {
        // No operation under the lock can panic halfway.
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call with the default time limits.
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
    fn invalid_options_are_rejected_before_anything_is_sent() {
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
