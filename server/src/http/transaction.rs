//! `POST /api/v1/transaction`. One that was rolled back is a 200 with `success: false`: the clients look
//! there, and a 5xx would make them send it again.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use queen_protocol::TransactionBody;

use super::answer;
use super::error::{ApiError, Busy, Failures, TooLarge};
use super::request::Body;
use super::trace::{self, TraceHeaders};
use crate::app::App;
use crate::openapi::{queries, words};
use crate::telemetry::{Operation, Span};

/// Pushes and acknowledges in one transaction: all of it or nothing.
///
/// Any acknowledgement that would be refused, and any required lease that is not live, rolls everything back:
/// a 200 with `success: false`.
#[utoipa::path(post, path = "/api/v1/transaction", operation_id = "transaction", tag = "messages",
    params(queries::TraceHeaders),
    request_body = words::Transaction,
    responses(
        (status = 200, description = "Committed or rolled back", body = words::TransactionOutcome),
        Failures, TooLarge, Busy))]
pub async fn transaction(
    State(app): State<App>,
    TraceHeaders(headers): TraceHeaders,
    body: Body,
) -> Result<Response, ApiError> {
    let mut span = app.telemetry.span(Operation::Transaction, &headers);
    let answer = run(&app, &headers, &body, &mut span).await;
    span.end(answer)
}

async fn run(app: &App, headers: &HeaderMap, body: &Body, span: &mut Span) -> Result<Response, ApiError> {
    let mut transaction = TransactionBody::parse(&body.0)?;
    app.limits.admit_push(|| transaction.pushes())?;
    span.messages(transaction.pushes().count());
    span.destination(transaction.pushes().map(|item| item.queue.as_ref()));
    trace::hand_on(headers, span, transaction.pushes_mut());
    let outcome = app.engine.transaction(&transaction, None).await?;
    answer::json(StatusCode::OK, &outcome)
}
