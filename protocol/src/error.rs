//! Error codes: the stable words a client may match on, each with its HTTP status beside it.

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
    pub fn word(self) -> &'static str {
        match self {
            Self::BadRequest => "bad_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::RequestTimeout => "request_timeout",
            Self::Conflict => "conflict",
            Self::PayloadTooLarge => "payload_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::RateLimited => "rate_limited",
            Self::HeadersTooLarge => "headers_too_large",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
        }
    }

    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::Conflict => 409,
            Self::PayloadTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::RateLimited => 429,
            Self::HeadersTooLarge => 431,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// Fields that may be sent under another name.
const TWO_NAMES: [(&str, &str); 2] = [("group", "consumerGroup"), ("message_id", "messageId")];

/// A request that cannot be understood; the text is for the person who sent it.
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
