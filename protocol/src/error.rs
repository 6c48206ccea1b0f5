//! Error codes: the stable words that a client may match on, each with its HTTP status.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    RequestTimeout,
    Conflict,
    PayloadTooLarge,
    UnsupportedMediaType,
    RateLimited,
    HeadersTooLarge,
    Internal,
    Unavailable,
    Timeout,
}

impl ErrorCode {
    pub const ALL: [Self; 14] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Conflict,
        Self::PayloadTooLarge,
        Self::UnsupportedMediaType,
        Self::RateLimited,
        Self::HeadersTooLarge,
        Self::Internal,
        Self::Unavailable,
        Self::Timeout,
    ];

    pub fn word(self) -> &'static str {
        self.entry().0
    }

    pub fn status(self) -> u16 {
        self.entry().1
    }

    fn entry(self) -> (&'static str, u16) {
        match self {
            Self::BadRequest => ("bad_request", 400),
            Self::Unauthorized => ("unauthorized", 401),
            Self::Forbidden => ("forbidden", 403),
            Self::NotFound => ("not_found", 404),
            Self::MethodNotAllowed => ("method_not_allowed", 405),
            Self::RequestTimeout => ("request_timeout", 408),
            Self::Conflict => ("conflict", 409),
            Self::PayloadTooLarge => ("payload_too_large", 413),
            Self::UnsupportedMediaType => ("unsupported_media_type", 415),
            Self::RateLimited => ("rate_limited", 429),
            Self::HeadersTooLarge => ("headers_too_large", 431),
            Self::Internal => ("internal", 500),
            Self::Unavailable => ("unavailable", 503),
            Self::Timeout => ("timeout", 504),
        }
    }
}

/// Fields with a second name.
const TWO_NAMES: [(&str, &str); 2] = [("group", "consumerGroup"), ("message_id", "messageId")];

/// A request that cannot be understood. The text is for the person who sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRequest(pub String);

impl BadRequest {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRequest {}

impl From<serde_json::Error> for BadRequest {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        match TWO_NAMES.iter().find(|(_, name)| text.starts_with(&format!("duplicate field `{name}`"))) {
            Some((other, name)) => {
                Self(format!("{other} and {name} are both given, or one of them twice; send one"))
            }
            None => Self(format!("invalid JSON: {text}")),
        }
    }
}
