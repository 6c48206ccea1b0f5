//! `/api/v1/system/maintenance`: switches the maintenance modes of all brokers, in which pushes go to the spool or pops return
//! nothing.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::{BadRequest, read_object};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, SMALL};
use crate::app::App;

#[derive(Deserialize, ToSchema)]
#[schema(as = MaintenanceSwitch, example = json!({"enabled": true}))]
struct Switch {
    enabled: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Maintenance)]
struct Push {
    maintenance_mode: bool,
    pop_maintenance_mode: bool,
    /// Messages in the spool of this broker.
    buffered_messages: u64,
    /// The last write to the spool succeeded.
    buffer_healthy: bool,
    buffer_stats: BufferStats,
    message: &'static str,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BufferStats {
    /// This broker has a spool.
    enabled: bool,
    bytes: u64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PopMaintenance)]
struct Pop {
    pop_maintenance_mode: bool,
    message: &'static str,
}

/// Shows whether pushes go to the spool.
#[utoipa::path(get, path = "/api/v1/system/maintenance", operation_id = "maintenance", tag = "broker",
    responses((status = 200, description = "The current state, from the database", body = Push), Failures))]
pub async fn push(State(app): State<App>) -> Result<Response, ApiError> {
    let maintenance = app.engine.fresh_maintenance().await;
    answer_push(&app, maintenance)
}

/// Sends pushes to the spool, or stops doing so.
///
/// Once it is switched off, the spool is moved into the log in order. Other brokers follow within a second.
#[utoipa::path(post, path = "/api/v1/system/maintenance", operation_id = "setMaintenance", tag = "broker",
    request_body = Switch,
    responses((status = 200, description = "Switched", body = Push), Failures, TooLarge))]
pub async fn set_push(State(app): State<App>, body: Body<SMALL>) -> Result<Response, ApiError> {
    let maintenance = app.engine.set_push_maintenance(switch(&body)?).await?;
    answer_push(&app, maintenance)
}

/// Shows whether pops return nothing.
#[utoipa::path(get, path = "/api/v1/system/maintenance/pop", operation_id = "popMaintenance", tag = "broker",
    responses((status = 200, description = "The current state, from the database", body = Pop), Failures))]
pub async fn pop(State(app): State<App>) -> Result<Response, ApiError> {
    answer_pop(app.engine.fresh_maintenance().await)
}

/// Makes pops return nothing, or stops doing so.
#[utoipa::path(post, path = "/api/v1/system/maintenance/pop", operation_id = "setPopMaintenance", tag = "broker",
    request_body = Switch,
    responses((status = 200, description = "Switched", body = Pop), Failures, TooLarge))]
pub async fn set_pop(State(app): State<App>, body: Body<SMALL>) -> Result<Response, ApiError> {
    answer_pop(app.engine.set_pop_maintenance(switch(&body)?).await?)
}

fn switch(body: &Body<SMALL>) -> Result<bool, BadRequest> {
    let switch: Switch = read_object(&body.0)
        .map_err(|_| BadRequest::new("the body must be {\"enabled\": true} or {\"enabled\": false}"))?;
    Ok(switch.enabled)
}

fn answer_push(app: &App, maintenance: queen_engine::Maintenance) -> Result<Response, ApiError> {
    let spool = app.engine.spool_stats();
    let message = match maintenance.push {
        true => "Maintenance mode is on: pushes go to the spool",
        false => "Maintenance mode is off: pushes go to the database",
    };
    let body = Push {
        maintenance_mode: maintenance.push,
        pop_maintenance_mode: maintenance.pop,
        buffered_messages: spool.map_or(0, |spool| spool.messages),
        buffer_healthy: spool.is_some_and(|spool| spool.healthy),
        buffer_stats: BufferStats { enabled: spool.is_some(), bytes: spool.map_or(0, |spool| spool.bytes) },
        message,
    };
    answer::json(StatusCode::OK, &body)
}

fn answer_pop(maintenance: queen_engine::Maintenance) -> Result<Response, ApiError> {
    let message = match maintenance.pop {
        true => "Pop maintenance mode is on: pops find nothing",
        false => "Pop maintenance mode is off",
    };
    answer::json(StatusCode::OK, &Pop { pop_maintenance_mode: maintenance.pop, message })
}
