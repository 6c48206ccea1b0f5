//! `POST /api/v1/lease/:leaseId/extend`. A lease that is gone is a 200 with `success: false`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::RenewBody;

use super::answer;
use super::error::ApiError;
use super::request::{Body, Segments};
use crate::app::App;

pub async fn renew(
    State(app): State<App>,
    Segments(lease): Segments<String>,
    body: Body,
) -> Result<Response, ApiError> {
    let seconds = RenewBody::parse(&body.0)?.seconds();
    let renewed = app.engine.renew(&lease, seconds).await?;
    answer::json(StatusCode::OK, &renewed)
}
