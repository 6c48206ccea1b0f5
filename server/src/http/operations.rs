//! `/api/v1/operations`: deferred operations and their outcome.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::Operations;
use queen_protocol::{BadRequest, ErrorCode, OperationStats, OperationStatus, SystemHealth, check_name};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures};
use super::request::{Pagination, Query, Segments};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::{Caller, forbidden};
use crate::openapi::{queries, words};

const LIMIT_DEFAULT: i64 = 100;
const LIMIT_MAX: i64 = 1_000;
const STATUSES: [&str; 5] = ["pending", "processing", "completed", "failed", "cancelled"];

#[derive(Serialize, ToSchema)]
#[schema(as = Operations)]
struct Listed {
    #[schema(value_type = Vec<words::DeferredOperation>)]
    operations: Vec<OperationStatus>,
    limit: i64,
    offset: i64,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = OperationsStats)]
struct Stats {
    #[schema(value_type = Vec<words::OperationStats>)]
    stats: Vec<OperationStats>,
    #[schema(value_type = words::SystemHealth)]
    system_health: SystemHealth,
}

#[derive(Serialize, ToSchema)]
#[schema(as = OperationChanged)]
struct Changed<'a> {
    id: Uuid,
    success: bool,
    /// The current status.
    status: &'a str,
    #[schema(required)]
    error: Option<&'a str>,
}

/// Lists deferred operations, oldest first.
#[utoipa::path(get, path = "/api/v1/operations", operation_id = "listOperations", tag = "operations",
    params(queries::OperationsQuery),
    responses((status = 200, description = "One page", body = Listed), Failures))]
pub async fn list(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let (status, queue) = (query.filled("status"), query.text("queue"));
    if let Some(status) = status.filter(|status| !STATUSES.contains(status)) {
        let text = format!("status is {status:?}; it must be one of {}", STATUSES.join(", "));
        return Err(BadRequest(text).into());
    }
    check_name("queue", queue.unwrap_or_default())?;
    let seconds = query.number("olderThanSeconds").and_then(|seconds| u64::try_from(seconds).ok());
    let Pagination { limit, offset } = query.page(LIMIT_DEFAULT, LIMIT_MAX);
    let filter = Operations {
        id: None,
        status,
        queue,
        older_than: seconds.map(|seconds| Duration::from_secs(seconds.min(u64::from(u32::MAX)))),
        limit,
        offset,
    };
    let operations = app.engine.operations(&filter).await?;
    answer::json(StatusCode::OK, &Listed { operations, limit, offset })
}

/// Counts deferred operations by type and status.
///
/// Counts open and failed operations, and those that finished in the last five minutes.
#[utoipa::path(get, path = "/api/v1/operations/stats", operation_id = "operationStats", tag = "operations",
    responses((status = 200, description = "Counts, and the load of the broker", body = Stats), Failures))]
pub async fn stats(State(app): State<App>) -> Result<Response, ApiError> {
    let (stats, system_health) = app.engine.operations_stats().await?;
    answer::json(StatusCode::OK, &Stats { stats, system_health })
}

/// Shows a deferred operation and its outcome.
#[utoipa::path(get, path = "/api/v1/operations/{operation}", operation_id = "getOperation", tag = "operations",
    params(("operation" = Uuid, Path)),
    responses((status = 200, description = "The operation", body = words::DeferredOperation), NoOperation, Failures))]
pub async fn one(
    State(app): State<App>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, ApiError> {
    match app.engine.operation(operation_id(&id)?).await? {
        Some(operation) => {
            permitted(&caller, Need::Any, "see", &operation.queue_name)?;
            answer::json(StatusCode::OK, &operation)
        }
        None => Err(not_found()),
    }
}

/// Cancels a deferred operation that is pending or has failed.
///
/// Its messages are not stored. An operation that is being executed, or has finished, does not change.
#[utoipa::path(delete, path = "/api/v1/operations/{operation}", operation_id = "cancelOperation",
    tag = "operations", params(("operation" = Uuid, Path)),
    responses((status = 200, description = "Cancelled", body = Changed<'static>),
        (status = 409, description = "It is neither pending nor failed", body = Changed<'static>),
        NoOperation, Failures))]
pub async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, ApiError> {
    let id = operation_id(&id)?;
    check(&app, &caller, id).await?;
    let status = app.engine.cancel_operation(id).await?;
    changed(id, status.as_deref(), "cancelled", "only a pending or failed operation can be cancelled")
}

/// Retries a failed operation.
///
/// It is executed after everything that was accepted for its partition since.
#[utoipa::path(post, path = "/api/v1/operations/{operation}/retry", operation_id = "retryOperation",
    tag = "operations", params(("operation" = Uuid, Path)),
    responses((status = 200, description = "Pending again", body = Changed<'static>),
        (status = 409, description = "It has not failed", body = Changed<'static>),
        NoOperation, Failures))]
pub async fn retry(
    State(app): State<App>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, ApiError> {
    let id = operation_id(&id)?;
    check(&app, &caller, id).await?;
    let status = app.engine.retry_operation(id).await?;
    changed(id, status.as_deref(), "pending", "only a failed operation can be tried again")
}

async fn check(app: &App, caller: &Caller, id: Uuid) -> Result<(), ApiError> {
    if caller.grants().is_none() {
        return Ok(());
    }
    let operation = app.engine.operation(id).await?.ok_or_else(not_found)?;
    permitted(caller, Need::This(Right::Admin), "change", &operation.queue_name)
}

/// The refusal does not name the queue, because the caller has not.
fn permitted(caller: &Caller, need: Need, what: &str, queue: &str) -> Result<(), ApiError> {
    match caller.can(need, queue) {
        true => Ok(()),
        false => Err(forbidden(format!("no right to {what} this operation"))),
    }
}

fn changed(
    id: Uuid,
    status: Option<&str>,
    wanted: &str,
    refusal: &'static str,
) -> Result<Response, ApiError> {
    let status = status.ok_or_else(not_found)?;
    let success = status == wanted;
    let code = if success { StatusCode::OK } else { StatusCode::CONFLICT };
    answer::json(code, &Changed { id, success, status, error: (!success).then_some(refusal) })
}

fn operation_id(text: &str) -> Result<Uuid, BadRequest> {
    Uuid::try_parse(text).map_err(|_| BadRequest(format!("operation id {text:?} is not a UUID")))
}

fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "Not found")
}

#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum NoOperation {
    /// There is no such operation, or it finished longer ago than `OPQ_RETENTION_SECONDS`.
    #[response(status = 404)]
    NotFound(super::error::ErrorBody<'static>),
}
