//! What went wrong, as a client sees it. The only place that picks a status for a failure.

use std::any::Any;
use std::error::Error as _;
use std::time::Duration;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use queen_protocol::{BadRequest, ErrorCode};
use serde::Serialize;
use tracing::{error, warn};
use utoipa::{IntoResponses, ToSchema};

use super::answer;
use crate::auth::refusal::{Denial, Denied};

/// Never 0: clients would try again at once, all together.
const RETRY_AFTER_SECONDS: u64 = 1;

/// For requests without any credentials.
pub const AUTHENTICATION_REQUIRED: &str = "Authentication required";

/// The body of every failure.
#[derive(Serialize, ToSchema)]
#[schema(as = Error, example = json!({
    "error": "a pop names a queue, a namespace or a task", "code": "bad_request",
}))]
pub struct ErrorBody<'a> {
    /// For people.
    error: &'a str,
    /// For programs: `bad_request`, `unauthorized`, `forbidden`, `not_found`, `method_not_allowed`, `request_timeout`,
    /// `conflict`, `payload_too_large`, `unsupported_media_type`, `rate_limited`, `headers_too_large`, `internal`,
    /// `unavailable` or `timeout`.
    code: &'static str,
    /// Open operations, when that is why.
    #[serde(skip_serializing_if = "Option::is_none", rename = "queueDepth")]
    #[schema(nullable = false)]
    queue_depth: Option<u64>,
}

/// How any route that needs the database may fail.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum Failures {
    /// The request cannot be understood, or a name is too long. Sending it again will not help.
    #[response(status = 400)]
    BadRequest(ErrorBody<'static>),
    /// A defect, or a database that refuses the statement. The log of the broker says more.
    #[response(status = 500)]
    Internal(ErrorBody<'static>),
    /// The database cannot be reached or is too slow, or the broker is stopping. Send it again.
    #[response(status = 503, headers(("Retry-After" = u32, description = "Seconds")))]
    Unavailable(ErrorBody<'static>),
    /// It took longer than `QUEEN_REQUEST_TIMEOUT_MS`. It may have happened or still happen.
    #[response(status = 504)]
    Timeout(ErrorBody<'static>),
}

#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum Missing {
    /// No queue, group or partition of this name.
    #[response(status = 404)]
    NotFound(ErrorBody<'static>),
}

#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum NoKey {
    /// A queue asks for encryption, `QUEEN_ENCRYPTION_REQUIRED` is set, and the broker has no key. Nothing was stored.
    #[response(status = 409)]
    Conflict(ErrorBody<'static>),
}

#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum TooLarge {
    /// The body came too slowly.
    #[response(status = 408)]
    RequestTimeout(ErrorBody<'static>),
    /// The body is larger than `QUEEN_MAX_BODY_BYTES`, or a payload in it than `QUEEN_MAX_MESSAGE_BYTES`. Where no messages
    /// are expected 1 MiB is the most.
    #[response(status = 413)]
    PayloadTooLarge(ErrorBody<'static>),
}

#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum Busy {
    /// Too many operations of this kind are waiting, or the queue of deferred ones is full, or a rate limit was reached.
    /// Nothing was done. Send it again after the time told, which follows the rate at which they are worked off.
    #[response(status = 429, headers(("Retry-After" = u32, description = "Seconds")))]
    RateLimited(ErrorBody<'static>),
}

#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum NotJson {
    /// The Content-Type says that the body is not JSON.
    #[response(status = 415)]
    UnsupportedMediaType(ErrorBody<'static>),
}

#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    text: String,
    queue_depth: Option<u64>,
    /// Seconds.
    retry_after: u64,
    denied: Option<Denied>,
}

impl ApiError {
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        let denied = None;
        Self { code, text: text.into(), queue_depth: None, retry_after: RETRY_AFTER_SECONDS, denied }
    }

    /// A 401 or a 403, and why for the audit log.
    pub fn denied(denied: Denied, text: impl Into<String>) -> Self {
        let code = match denied.status() {
            403 => ErrorCode::Forbidden,
            _ => ErrorCode::Unauthorized,
        };
        Self { denied: Some(denied), ..Self::new(code, text) }
    }

    pub fn why_denied(&self) -> Option<Denied> {
        self.denied
    }

    /// `wait`: until there is room again.
    pub fn rate_limited(text: impl Into<String>, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self { retry_after: seconds.max(RETRY_AFTER_SECONDS), ..Self::new(ErrorCode::RateLimited, text) }
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl From<BadRequest> for ApiError {
    fn from(BadRequest(text): BadRequest) -> Self {
        Self::new(ErrorCode::BadRequest, text)
    }
}

impl From<queen_engine::Error> for ApiError {
    fn from(error: queen_engine::Error) -> Self {
        let code = error.code();
        let mut chain = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = source.to_string();
            // A transparent wrapper repeats its source.
            if !chain.contains(&text) {
                chain = format!("{chain}: {text}");
            }
            cause = source.source();
        }
        match code {
            ErrorCode::Internal => error!(error = %chain, "request failed"),
            ErrorCode::Unavailable => warn!(error = %chain, "request could not be served"),
            _ => {}
        }
        if let queen_engine::Error::Overloaded { depth, retry_after } = error {
            return Self { queue_depth: Some(depth), retry_after, ..Self::new(code, error.to_string()) };
        }
        // Published consumers keep polling only after an error that contains `timeout` (JavaScript) or `connection`
        // (Python). Any other text ends them for good, long before the database is back.
        let text = match error {
            queen_engine::Error::Database(_) if code == ErrorCode::Unavailable => {
                format!("{} (connection timeout)", error.public_text())
            }
            other => other.public_text(),
        };
        Self::new(code, text)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = ErrorBody { error: &self.text, code: self.code.word(), queue_depth: self.queue_depth };
        // Strings and numbers always serialise.
        let bytes = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = answer::written(status, bytes.into());
        if matches!(self.code, ErrorCode::RateLimited | ErrorCode::Unavailable) {
            response.headers_mut().insert(RETRY_AFTER, self.retry_after.into());
        }
        if self.code == ErrorCode::Unauthorized {
            let said = format!("Bearer error=\"invalid_token\", error_description=\"{}\"", self.text);
            let plain = self.text == AUTHENTICATION_REQUIRED;
            let said = if plain { None } else { HeaderValue::from_str(&said).ok() };
            let said = said.unwrap_or(HeaderValue::from_static("Bearer"));
            response.headers_mut().insert(WWW_AUTHENTICATE, said);
        }
        if let Some(denied) = self.denied {
            response.extensions_mut().insert(Denial { denied, text: self.text });
        }
        response
    }
}

pub async fn no_such_route(method: Method, uri: Uri) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("no route {method} {}", uri.path()))
}

pub async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(ErrorCode::MethodNotAllowed, format!("{method} is not possible on {}", uri.path()))
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
pub fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let said = panic.downcast_ref::<String>().map(String::as_str);
    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    error!(panic = said, "a handler panicked");
    ApiError::new(ErrorCode::Internal, "internal error").into_response()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::http::Request;
    use axum::routing::get;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;

    #[test]
    fn every_code_becomes_its_status_and_a_body_of_two_strings() {
        for code in ErrorCode::ALL {
            let response = ApiError::new(code, "why").into_response();
            assert_eq!(response.status().as_u16(), code.status());
            assert_eq!(response.headers()["content-type"], "application/json");
            let comes_back = matches!(code, ErrorCode::RateLimited | ErrorCode::Unavailable);
            assert_eq!(response.headers().contains_key("retry-after"), comes_back, "{code:?}");
        }
    }

    #[test]
    fn every_code_is_documented_with_its_status() {
        let guide = include_str!("../../../docs/http-api.md");
        let openapi = include_str!("../../../docs/openapi.json");
        for code in ErrorCode::ALL {
            let (word, status) = (format!("`{}`", code.word()), code.status().to_string());
            let is_row = |line: &str| line.starts_with('|') && line.contains(&word) && line.contains(&status);
            assert!(guide.lines().any(is_row), "docs/http-api.md does not explain {status} {word}");
            assert!(openapi.contains(&word), "docs/openapi.json does not list {word}");
        }
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_answered() {
        async fn broken() -> ApiError {
            panic!("boom")
        }
        let app = Router::new().route("/", get(broken)).layer(CatchPanicLayer::custom(panicked));
        let request = Request::builder().uri("/").body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()["content-type"], "application/json");
    }
}
