//! Errors: one type, whose kinds have the same names in all Queen clients.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::buffer::Undelivered;
use crate::message::Message;
use crate::push::Pushed;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is invalid. Nothing was sent.
    BadUse,
    /// The broker rejected the request (400 and other 4xx).
    BadRequest,
    /// The token is missing or invalid (401).
    Unauthorized,
    /// The token lacks the required permission (403).
    Forbidden,
    /// There is no such queue, group, message or operation (404).
    NotFound,
    /// The current state does not allow it (409).
    Conflict,
    /// Too many requests (429).
    RateLimited,
    /// The broker has no database, or is stopping (503).
    Unavailable,
    /// The broker failed (any other 5xx).
    Server,
    /// The broker cannot be reached, or closed the connection.
    Network,
    /// No response arrived in time.
    Timeout,
    /// The broker refused an acknowledgement, a renewal or a message.
    Refused,
    /// The transaction was rolled back and had no effect.
    RolledBack,
    /// It is unknown whether it was executed: the response was lost, and retrying would do harm or was refused.
    OutcomeUnknown,
    /// A deferred operation failed.
    OperationFailed,
    /// The buffer is full.
    BufferFull,
    /// The client or buffer was closed, or its background task has ended.
    Closed,
    /// A response of the broker, or the payload of a message, cannot be decoded.
    Decode,
}

impl ErrorKind {
    /// Name of the kind in all clients: `rate_limited`.
    pub fn word(self) -> &'static str {
        match self {
            Self::BadUse => "bad_use",
            Self::BadRequest => "bad_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::RateLimited => "rate_limited",
            Self::Unavailable => "unavailable",
            Self::Server => "server",
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::RolledBack => "rolled_back",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::OperationFailed => "operation_failed",
            Self::BufferFull => "buffer_full",
            Self::Closed => "closed",
            Self::Decode => "decode",
        }
    }

    fn of_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthorized,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            409 => Self::Conflict,
            429 => Self::RateLimited,
            503 => Self::Unavailable,
            500.. => Self::Server,
            _ => Self::BadRequest,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.word())
    }
}

/// Why a call failed. Cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Detail>);

#[derive(Clone)]
struct Detail {
    kind: ErrorKind,
    text: Cow<'static, str>,
    status: Option<u16>,
    code: Option<String>,
    attempts: u32,
    retry_after: Option<Duration>,
    operation: Option<String>,
    /// It cannot have reached the broker.
    unsent: bool,
    /// Not caused by a broker.
    ours: bool,
    /// An attempt may have been executed.
    uncertain: bool,
    /// A retry cannot help, regardless of the kind.
    hopeless: bool,
    results: Vec<Pushed>,
    undelivered: Vec<Undelivered>,
    messages: Vec<Message<Box<RawValue>>>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Detail {
            kind,
            text: text.into(),
            status: None,
            code: None,
            attempts: 0,
            retry_after: None,
            operation: None,
            unsent: false,
            ours: false,
            uncertain: false,
            hopeless: false,
            results: Vec::new(),
            undelivered: Vec::new(),
            messages: Vec::new(),
            source: None,
        }))
    }

    pub(crate) fn bad_use(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::BadUse, text)
    }

    /// For an error response of a broker.
    pub(crate) fn answered(
        status: u16,
        text: impl Into<Cow<'static, str>>,
        code: Option<String>,
        retry_after: Option<Duration>,
    ) -> Self {
        let mut error = Self::new(ErrorKind::of_status(status), text);
        let detail = error.detail();
        detail.status = Some(status);
        detail.code = code;
        detail.retry_after = retry_after;
        error
    }

    fn detail(&mut self) -> &mut Detail {
        Arc::make_mut(&mut self.0)
    }

    pub(crate) fn with_attempts(mut self, attempts: u32) -> Self {
        self.detail().attempts = attempts;
        self
    }

    /// Adds the number of attempts.
    pub(crate) fn tried(mut self, attempts: u32, uncertain: bool) -> Self {
        let detail = self.detail();
        detail.attempts = attempts;
        detail.uncertain = uncertain;
        self
    }

    /// Adds a hint about what to do.
    pub(crate) fn with_hint(mut self, hint: &str) -> Self {
        let text = format!("{}; {hint}", self.0.text);
        self.detail().text = text.into();
        self
    }

    pub(crate) fn with_operation(mut self, id: &str) -> Self {
        self.detail().operation = Some(id.to_owned());
        self
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.detail().source = Some(Arc::from(source.into()));
        self
    }

    pub(crate) fn with_results(mut self, results: Vec<Pushed>) -> Self {
        self.detail().results = results;
        self
    }

    pub(crate) fn with_undelivered(mut self, undelivered: Vec<Undelivered>) -> Self {
        self.detail().undelivered = undelivered;
        self
    }

    pub(crate) fn with_messages(mut self, messages: Vec<Message<Box<RawValue>>>) -> Self {
        self.detail().messages = messages;
        self
    }

    pub(crate) fn unsent(mut self) -> Self {
        self.detail().unsent = true;
        self
    }

    pub(crate) fn ours(mut self) -> Self {
        self.detail().ours = true;
        self
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.0.ours
    }

    pub(crate) fn hopeless(mut self) -> Self {
        self.detail().hopeless = true;
        self
    }

    pub(crate) fn is_hopeless(&self) -> bool {
        self.0.hopeless
    }

    /// There was no response, or one that leaves open whether the request was executed. (A broker also returns 503 if its database
    /// went away during a commit whose outcome is unknown.)
    pub(crate) fn may_have_happened(&self) -> bool {
        match self.0.kind {
            ErrorKind::Network => !self.0.unsent,
            ErrorKind::Timeout | ErrorKind::Server | ErrorKind::Unavailable => true,
            _ => false,
        }
    }

    /// For a call that is not retried once it may have been executed.
    pub(crate) fn into_unknown(mut self) -> Self {
        let text = format!("it may have been executed, and is therefore not retried: {}", self.0.text);
        let detail = self.detail();
        (detail.kind, detail.text) = (ErrorKind::OutcomeUnknown, text.into());
        self
    }

    /// Whether any attempt may have been executed.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.0.uncertain
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, in the broker's words if it responded.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The HTTP status, if there was a response.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The broker's error code, such as `rate_limited`.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// Number of attempts. 0 if nothing was sent.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// When the broker suggests to retry.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Id of the deferred operation, if it concerns one.
    pub fn operation(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// For a push with refused messages: the results of all messages, in the order of the request.
    pub fn results(&self) -> &[Pushed] {
        &self.0.results
    }

    /// For a buffer: the undelivered messages, so that they can be saved.
    pub fn undelivered(&self) -> &[Undelivered] {
        &self.0.undelivered
    }

    /// For a pop with a payload that cannot be decoded: all its messages. With auto-ack they are not redelivered; otherwise they
    /// were given back, and are here for inspection.
    pub fn messages(&self) -> &[Message<Box<RawValue>>] {
        &self.0.messages
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let detail = &self.0;
        write!(out, "{}: {}", detail.kind, detail.text)?;
        let mut notes = Vec::new();
        notes.extend(detail.status.map(|status| format!("status {status}")));
        notes.extend((detail.attempts > 1).then(|| format!("{} attempts", detail.attempts)));
        notes.extend(detail.retry_after.map(|after| format!("retry after {} s", after.as_secs())));
        if notes.is_empty() { Ok(()) } else { write!(out, " ({})", notes.join(", ")) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = out.debug_struct("Error");
        debug.field("kind", &self.0.kind).field("text", &self.0.text).field("status", &self.0.status);
        debug.field("code", &self.0.code).field("attempts", &self.0.attempts);
        debug.field("source", &self.0.source).finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tells_the_brokers_words_the_status_and_the_attempts() {
        let error =
            Error::answered(429, "queue full", Some("rate_limited".to_owned()), Some(Duration::from_secs(5)));
        let error = error.with_attempts(3);
        assert_eq!(error.to_string(), "rate_limited: queue full (status 429, 3 attempts, retry after 5 s)");
        assert_eq!(Error::bad_use("no URL").to_string(), "bad_use: no URL");
    }

    #[test]
    fn every_status_has_a_kind() {
        for (status, kind) in [
            (400, ErrorKind::BadRequest),
            (408, ErrorKind::BadRequest),
            (413, ErrorKind::BadRequest),
            (401, ErrorKind::Unauthorized),
            (429, ErrorKind::RateLimited),
            (500, ErrorKind::Server),
            (503, ErrorKind::Unavailable),
            (504, ErrorKind::Server),
        ] {
            assert_eq!(ErrorKind::of_status(status), kind, "{status}");
        }
    }
}
