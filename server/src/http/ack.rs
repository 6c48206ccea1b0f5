//! `POST /api/v1/ack` and `/api/v1/ack/batch`. A refused acknowledgement is a 200 that says so: it is an
//! answer about a message, not a failed request.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::{AckBatchBody, AckBody, AckItem, AckResult};

use super::answer;
use super::error::{ApiError, Busy, Failures, TooLarge};
use super::request::Body;
use crate::app::App;
use crate::openapi::words;

/// Acknowledges one message, and with `completed` everything delivered before it.
///
/// Answers with an array of one, as published clients expect. A refusal is a 200 with `success: false`.
#[utoipa::path(post, path = "/api/v1/ack", operation_id = "ack", tag = "messages", request_body = words::Ack,
    responses(
        (status = 200, description = "Exactly one result", body = Vec<words::AckResult>),
        Failures, TooLarge, Busy))]
pub async fn one(State(app): State<App>, body: Body) -> Result<Response, ApiError> {
    let item = AckBody::parse(&body.0)?;
    acknowledge(&app, vec![item]).await
}

/// Acknowledges many messages, of any partitions.
///
/// Items of one partition and lease are applied together, in the order of the messages. Refusals are a 200 with
/// `success: false` on the item.
#[utoipa::path(post, path = "/api/v1/ack/batch", operation_id = "ackBatch", tag = "messages",
    request_body = words::AckBatch,
    responses(
        (status = 200, description = "One result per item, in order", body = Vec<words::AckResult>),
        Failures, TooLarge, Busy))]
pub async fn batch(State(app): State<App>, body: Body) -> Result<Response, ApiError> {
    let items = AckBatchBody::parse(&body.0)?;
    acknowledge(&app, items).await
}

async fn acknowledge(app: &App, items: Vec<AckItem>) -> Result<Response, ApiError> {
    if items.is_empty() {
        return answer::json(StatusCode::OK, &Vec::<AckResult>::new());
    }
    let results = app.engine.ack(items).await?;
    answer::json(StatusCode::OK, &results)
}
