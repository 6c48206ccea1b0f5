//! Health checks: is the process alive, and is it ready? A broker that cannot reach its database is alive, but not ready.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use super::error::ApiError;
use crate::app::App;

#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "status": "healthy", "database": "connected", "server": "vm:6632", "version": "0.2.0", "worker_id": "vm:6632",
}))]
struct Health<'a> {
    /// `healthy` or `unhealthy`.
    status: &'static str,
    /// `connected` or `disconnected`.
    database: &'static str,
    /// `host:port` of the broker.
    server: &'a str,
    version: &'static str,
    /// The same as `server`.
    worker_id: &'a str,
}

#[derive(Serialize, ToSchema)]
#[schema(example = json!({"status": "ready"}))]
struct Status {
    /// `alive`, `ready` or `not ready`.
    status: &'static str,
}

/// Health of the broker: whether it reaches its database, and its identity.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "broker",
    responses(
        (status = 200, description = "The database responds", body = Health<'static>),
        (status = 503, description = "The database does not respond within two seconds", body = Health<'static>)))]
pub async fn health(State(app): State<App>) -> Result<Response, ApiError> {
    let (code, status, database) = match app.engine.ready().await {
        true => (StatusCode::OK, "healthy", "connected"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy", "disconnected"),
    };
    let version = env!("CARGO_PKG_VERSION");
    answer::json(code, &Health { status, database, server: &app.name, version, worker_id: &app.name })
}

/// Liveness: the process responds.
///
/// Always a 200.
#[utoipa::path(get, path = "/health/live", operation_id = "live", tag = "broker",
    responses((status = 200, description = "Alive", body = Status)))]
pub async fn live() -> Result<Response, ApiError> {
    answer::json(StatusCode::OK, &Status { status: "alive" })
}

/// Readiness: the database responds.
#[utoipa::path(get, path = "/health/ready", operation_id = "ready", tag = "broker",
    responses(
        (status = 200, description = "Ready", body = Status),
        (status = 503, description = "Not ready", body = Status)))]
pub async fn ready(State(app): State<App>) -> Result<Response, ApiError> {
    match app.engine.ready().await {
        true => answer::json(StatusCode::OK, &Status { status: "ready" }),
        false => answer::json(StatusCode::SERVICE_UNAVAILABLE, &Status { status: "not ready" }),
    }
}
