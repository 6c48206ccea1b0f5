//! The three forms of a successful response. Failures are in `error.rs`.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use queen_protocol::ErrorCode;
use serde::Serialize;

use super::error::ApiError;

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub fn json(status: StatusCode, body: &impl Serialize) -> Result<Response, ApiError> {
    match serde_json::to_vec(body) {
        Ok(bytes) => Ok(written(status, Bytes::from(bytes))),
        Err(error) => {
            Err(ApiError::new(ErrorCode::Internal, format!("the response cannot be serialized: {error}")))
        }
    }
}

/// A response whose JSON is already written.
pub fn written(status: StatusCode, body: Bytes) -> Response {
    (status, [(CONTENT_TYPE, JSON)], body).into_response()
}

/// A response that has no body and announces none. Otherwise strict clients drop the connection.
pub fn nothing() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
