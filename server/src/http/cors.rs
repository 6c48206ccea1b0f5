//! Browsers may call from anywhere: the same four headers on every response, and an answer to every
//! preflight. It looks at no route.

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::answer;

const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*")),
    (ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, DELETE, OPTIONS")),
    (
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Content-Type, Authorization, Prefer, traceparent, tracestate"),
    ),
    (ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Retry-After, Location, X-Queen-Operation-Id")),
];

pub async fn cors(request: Request, next: Next) -> Response {
    let preflight = request.method() == Method::OPTIONS;
    allowed(if preflight { answer::nothing() } else { next.run(request).await })
}

/// Also for answers that are given before there is a route.
pub fn allowed(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, value);
    }
    response
}
