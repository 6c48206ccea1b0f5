//! `POST /api/v1/stats/refresh`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures};
use crate::app::App;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StatisticsRefreshed, example = json!({"success": true, "queues": 3, "durationMs": 12}))]
struct Refreshed {
    success: bool,
    /// Queues that had changed since their last measurement, and were measured now.
    queues: usize,
    duration_ms: u64,
}

/// Measures the queues that have changed since their last measurement.
///
/// This is not needed in operation: brokers measure by themselves, and reads return current numbers.
#[utoipa::path(post, path = "/api/v1/stats/refresh", operation_id = "refreshStatistics", tag = "queues",
    responses((status = 200, description = "Measured", body = Refreshed), Failures))]
pub async fn refresh(State(app): State<App>) -> Result<Response, ApiError> {
    let refreshed = app.engine.refresh_statistics().await?;
    let duration_ms = refreshed.took.as_millis() as u64;
    answer::json(StatusCode::OK, &Refreshed { success: true, queues: refreshed.queues, duration_ms })
}
