//! `GET /openapi.json`.

use axum::http::StatusCode;
use axum::response::Response;

use super::answer;
use crate::openapi::DOCUMENT;

/// This document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "broker",
    responses((status = 200, description = "An OpenAPI 3.1 document", body = serde_json::Value)))]
pub async fn openapi() -> Response {
    answer::written(StatusCode::OK, DOCUMENT.clone())
}
