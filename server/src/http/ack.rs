//! `POST /api/v1/ack` and `/api/v1/ack/batch`. A refused acknowledgement is a 200 with `success: false`: it is a result for one
//! message, not a failed request.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use queen_protocol::{AckBatchBody, AckBody, AckItem, AckResult, BadRequest, QueuedOperation};
use uuid::Uuid;

use super::accepted::{self, Accepted};
use super::answer;
use super::error::{ApiError, Busy, Failures, TooLarge};
use super::request::{Body, Query};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::{Caller, Unknown};
use crate::openapi::words;
use crate::telemetry::{Operation, Span};

const NOTE: &str = "the leases are held until the acknowledgements have landed";

/// Acknowledges one message, and with `completed` everything delivered before it.
///
/// The response is an array with one result, as published clients expect. A refusal is a 200 with `success: false`.
#[utoipa::path(post, path = "/api/v1/ack", operation_id = "ack", tag = "messages", request_body = words::Ack,
    responses(
        (status = 200, description = "Exactly one result", body = Vec<words::AckResult>),
        (status = 202, description = "Accepted and durable; its lease is held until it is executed", body = words::AckAccepted,
            headers(("Location" = String, description = "The operation"),
                    ("X-Queen-Operation-Id" = String, description = "The operation"))),
        Failures, TooLarge, Busy))]
pub async fn one(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    query: Query,
    body: Body,
) -> Result<Response, ApiError> {
    acknowledge(&app, &caller, &headers, &query, || Ok(vec![AckBody::parse(&body.0)?])).await
}

/// Acknowledges many messages, of any partitions.
///
/// Items with the same partition and lease are applied together, in the order of the messages. Refusals are a 200 with
/// `success: false` on the item.
#[utoipa::path(post, path = "/api/v1/ack/batch", operation_id = "ackBatch", tag = "messages",
    request_body = words::AckBatch,
    responses(
        (status = 200, description = "One result per item, in order", body = Vec<words::AckResult>),
        (status = 202, description = "Accepted and durable; their leases are held until they are executed", body = words::AckAccepted,
            headers(("Location" = String, description = "The first operation"),
                    ("X-Queen-Operation-Id" = String, description = "The first operation"))),
        Failures, TooLarge, Busy))]
pub async fn batch(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    query: Query,
    body: Body,
) -> Result<Response, ApiError> {
    acknowledge(&app, &caller, &headers, &query, || AckBatchBody::parse(&body.0)).await
}

async fn acknowledge(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    query: &Query,
    read: impl FnOnce() -> Result<Vec<AckItem>, BadRequest>,
) -> Result<Response, ApiError> {
    let mut span = app.telemetry.span(Operation::Ack, headers);
    let answer = match read() {
        Ok(items) => settle(app, caller, headers, query, items, &mut span).await,
        Err(error) => Err(error.into()),
    };
    span.end(answer)
}

async fn settle(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    query: &Query,
    items: Vec<AckItem>,
    span: &mut Span,
) -> Result<Response, ApiError> {
    span.messages(items.len());
    if items.is_empty() {
        return answer::json(StatusCode::OK, &Vec::<AckResult>::new());
    }
    if caller.grants().is_some() {
        let partitions: Vec<Uuid> = items.iter().map(|item| item.partition_id).collect();
        caller.may_partitions(&app.engine, Need::This(Right::Pop), Unknown::Passes, &partitions).await?;
    }
    caller.may_settle(&app.engine, items.iter(), &[]).await?;
    span.group(&items[0].group);
    let results = app.engine.ack(items).await?;
    span.destination(results.iter().filter_map(|result| result.queue_name.as_deref()));
    let tickets = results.iter().filter_map(|result| {
        let ticket = result.ticket.clone()?;
        let name = |name: &Option<Arc<str>>| name.as_deref().unwrap_or_default().to_owned();
        let operation = QueuedOperation {
            operation_id: ticket.operation_id,
            queue: name(&result.queue_name),
            partition: name(&result.partition_name),
        };
        Some((ticket, operation))
    });
    match Accepted::from_tickets(tickets) {
        None => answer::json(StatusCode::OK, &results),
        Some(accepted) if accepted::wants_object(app, headers, query) => accepted.object(Some(NOTE)),
        Some(accepted) => accepted.array(&results),
    }
}
