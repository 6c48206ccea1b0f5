//! `POST /api/v1/transaction`. One that was rolled back is a 200 with `success: false`: the clients look
//! there, and a 5xx would make them send it again.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::TransactionBody;

use super::answer;
use super::error::{ApiError, Busy, Failures, TooLarge};
use super::request::Body;
use crate::app::App;
use crate::openapi::words;

/// Pushes and acknowledges in one transaction: all of it or nothing.
///
/// Any acknowledgement that would be refused, and any required lease that is not live, rolls everything back:
/// a 200 with `success: false`.
#[utoipa::path(post, path = "/api/v1/transaction", operation_id = "transaction", tag = "messages",
    request_body = words::Transaction,
    responses(
        (status = 200, description = "Committed or rolled back", body = words::TransactionOutcome),
        Failures, TooLarge, Busy))]
pub async fn transaction(State(app): State<App>, body: Body) -> Result<Response, ApiError> {
    let transaction = TransactionBody::parse(&body.0)?;
    let outcome = app.engine.transaction(&transaction, None).await?;
    answer::json(StatusCode::OK, &outcome)
}
