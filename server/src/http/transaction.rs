//! `POST /api/v1/transaction`. A transaction that was rolled back is a 200 with `success: false`: clients read that field, and
//! would retry after a 5xx.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use queen_protocol::{LeaseId, TransactionBody};
use uuid::Uuid;

use super::error::{ApiError, Busy, Failures, Missing, NoKey, TooLarge};
use super::request::Body;
use super::trace::{self, TraceHeaders};
use super::{answer, push};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::{Caller, Unknown};
use crate::openapi::{queries, words};
use crate::telemetry::{Operation, Span};

/// Pushes and acknowledges in one transaction: all or nothing.
///
/// An acknowledgement that is refused, or a required lease that has ended, rolls everything back:
/// the response is a 200 with `success: false`.
#[utoipa::path(post, path = "/api/v1/transaction", operation_id = "transaction", tag = "messages",
    params(queries::TraceHeaders),
    request_body = words::Transaction,
    responses(
        (status = 200, description = "Committed or rolled back", body = words::TransactionOutcome),
        Missing, NoKey, Failures, TooLarge, Busy))]
pub async fn transaction(
    State(app): State<App>,
    caller: Caller,
    TraceHeaders(headers): TraceHeaders,
    body: Body,
) -> Result<Response, ApiError> {
    let mut span = app.telemetry.span(Operation::Transaction, &headers);
    let answer = run(&app, &caller, &headers, &body, &mut span).await;
    span.end(answer)
}

async fn run(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    body: &Body,
    span: &mut Span,
) -> Result<Response, ApiError> {
    let mut transaction = TransactionBody::parse(&body.0)?;
    check(app, caller, &transaction).await?;
    app.limits.admit_push(|| transaction.pushes())?;
    span.messages(transaction.pushes().count());
    span.destination(transaction.pushes().map(|item| item.queue.as_ref()));
    trace::hand_on(headers, span, transaction.pushes_mut());
    let outcome = app.engine.transaction(&transaction, caller.subject.as_deref()).await?;
    answer::json(StatusCode::OK, &outcome)
}

/// Checks all queues that it touches, before anything is done.
async fn check(app: &App, caller: &Caller, transaction: &TransactionBody<'_>) -> Result<(), ApiError> {
    // Published clients name their leases only here.
    let named: Vec<LeaseId> =
        transaction.required_leases.iter().filter_map(|lease| LeaseId::parse(lease)).collect();
    if caller.grants().is_none() {
        return caller.may_settle(&app.engine, transaction.acks(), &named).await;
    }
    push::check(app, caller, transaction.pushes()).await?;
    let partitions: Vec<Uuid> = transaction.acks().map(|ack| ack.partition_id).collect();
    caller.may_partitions(&app.engine, Need::This(Right::Pop), Unknown::Passes, &partitions).await?;
    let leases = transaction.required_leases.iter().map(String::as_str);
    caller.may_leases(&app.engine, Need::This(Right::Pop), leases).await?;
    caller.may_settle(&app.engine, transaction.acks(), &named).await
}
