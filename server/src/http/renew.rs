//! `POST /api/v1/lease/:leaseId/extend`. For a lease that has ended, the response is a 200 with `success: false`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::RenewBody;

use super::answer;
use super::error::{ApiError, Busy, Failures, TooLarge};
use super::request::{Body, SMALL, Segments};
use crate::app::App;
use crate::openapi::words;

/// Extends a lease in all of its partitions.
///
/// The body is optional. For a lease that has ended, the response is a 200 with `success: false`.
#[utoipa::path(post, path = "/api/v1/lease/{lease}/extend", operation_id = "renew", tag = "messages",
    params(("lease" = String, Path, description = "The `leaseId` of a pop")),
    request_body = Option<words::Renew>,
    responses(
        (status = 200, description = "Extended, or the lease had ended", body = words::Renewed),
        Failures, TooLarge, Busy))]
pub async fn renew(
    State(app): State<App>,
    Segments(lease): Segments<String>,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    let seconds = RenewBody::parse(&body.0)?.seconds();
    let renewed = app.engine.renew(&lease, seconds).await?;
    answer::json(StatusCode::OK, &renewed)
}
