//! Is it alive, and can it work? Two questions: a broker without its database is alive, not ready.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::answer;
use super::error::ApiError;
use crate::app::App;

#[derive(Serialize)]
struct Health<'a> {
    status: &'static str,
    database: &'static str,
    server: &'a str,
    version: &'static str,
    worker_id: &'a str,
}

#[derive(Serialize)]
struct Status {
    status: &'static str,
}

pub async fn health(State(app): State<App>) -> Result<Response, ApiError> {
    let (code, status, database) = match app.engine.ready().await {
        true => (StatusCode::OK, "healthy", "connected"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy", "disconnected"),
    };
    let version = env!("CARGO_PKG_VERSION");
    answer::json(code, &Health { status, database, server: &app.name, version, worker_id: &app.name })
}

/// Always yes: whoever can answer is alive.
pub async fn live() -> Result<Response, ApiError> {
    answer::json(StatusCode::OK, &Status { status: "alive" })
}

pub async fn ready(State(app): State<App>) -> Result<Response, ApiError> {
    match app.engine.ready().await {
        true => answer::json(StatusCode::OK, &Status { status: "ready" }),
        false => answer::json(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "not ready" }),
    }
}
