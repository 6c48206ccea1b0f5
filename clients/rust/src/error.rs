//! What can go wrong: one type, with the same words for its kind in all clients of Queen.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::buffer::Undelivered;
use crate::message::Message;
use crate::push::Pushed;

/// What kind of trouble it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense. Nothing was sent.
    BadUse,
    /// The broker does not understand or does not take the request (400 and other 4xx).
    BadRequest,
    /// There is no token, or no good one (401).
    Unauthorized,
    /// The token is good and not enough (403).
    Forbidden,
    /// No queue, group, message or operation of this name (404).
    NotFound,
    /// It is not in the state for this (409).
    Conflict,
    /// Too much at once (429).
    RateLimited,
    /// The broker has no database, or is stopping (503).
    Unavailable,
    /// The broker failed (any other 5xx).
    Server,
    /// The broker cannot be reached, or hung up.
    Network,
    /// No answer came in time.
    Timeout,
    /// The broker refused an acknowledgement, a renewal or a message.
    Refused,
    /// The transaction was rolled back: nothing of it happened.
    RolledBack,
    /// It happened or it did not: its answer was lost, and to ask again would do harm or was refused.
    OutcomeUnknown,
    /// An operation that the broker had deferred has failed.
    OperationFailed,
    /// The buffer is full.
    BufferFull,
    /// The client or the buffer was closed, or what ran in the background for it has ended.
    Closed,
    /// What arrived is not what was expected: an answer of a broker, or the payload of a message.
    Decode,
}

impl ErrorKind {
    /// The word for it that all clients share: `rate_limited`.
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
    /// It is no fault of a broker.
    ours: bool,
    /// An attempt may have been carried out.
    uncertain: bool,
    /// The same will happen again, whatever its kind says.
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

    /// What a broker said with a status that is no success.
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

    /// After all its attempts.
    pub(crate) fn tried(mut self, attempts: u32, uncertain: bool) -> Self {
        let detail = self.detail();
        detail.attempts = attempts;
        detail.uncertain = uncertain;
        self
    }

    /// What to do about it.
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

    /// No answer, or one that leaves open what was done. (A broker says 503 also if its database went away while it was
    /// committing, and nobody could tell whether it had.)
    pub(crate) fn may_have_happened(&self) -> bool {
        match self.0.kind {
            ErrorKind::Network => !self.0.unsent,
            ErrorKind::Timeout | ErrorKind::Server | ErrorKind::Unavailable => true,
            _ => false,
        }
    }

    /// Of a call that is not repeated if it may have happened.
    pub(crate) fn into_unknown(mut self) -> Self {
        let text = format!("it may have happened, and is not tried again for that: {}", self.0.text);
        let detail = self.detail();
        (detail.kind, detail.text) = (ErrorKind::OutcomeUnknown, text.into());
        self
    }

    /// Of all its attempts: whether one of them may have been carried out.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.0.uncertain
    }

    /// What kind of trouble it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What happened, in the broker's words if it said something.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The HTTP status, if there was an answer.
    pub fn status(&self) -> Option<u16> {
        self.0.status
    }

    /// The broker's word for programs, such as `rate_limited`.
    pub fn code(&self) -> Option<&str> {
        self.0.code.as_deref()
    }

    /// How often it was tried. 0 if nothing was sent.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// When the broker wants to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The id of the deferred operation that it is about.
    pub fn operation(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// Of a push of which some messages were refused: the results of all, in the order of the request.
    pub fn results(&self) -> &[Pushed] {
        &self.0.results
    }

    /// Of a buffer: the messages that could not be delivered, so that they can be kept.
    pub fn undelivered(&self) -> &[Undelivered] {
        &self.0.undelivered
    }

    /// Of a pop of which a payload could not be decoded: all its messages. With auto-ack they do not come again; without, they
    /// were given back, and are here to be looked at.
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
        notes.extend(detail.retry_after.map(|after| format!("again after {} s", after.as_secs())));
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
        assert_eq!(error.to_string(), "rate_limited: queue full (status 429, 3 attempts, again after 5 s)");
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
