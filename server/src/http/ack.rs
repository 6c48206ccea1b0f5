//! `POST /api/v1/ack` and `/api/v1/ack/batch`. A refused acknowledgement is a 200 that says so: it is an
//! answer about a message, not a failed request.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::{AckBatchBody, AckBody, AckItem, AckResult};

use super::answer;
use super::error::ApiError;
use super::request::Body;
use crate::app::App;

/// Answers with an array of one, as published clients expect.
pub async fn one(State(app): State<App>, body: Body) -> Result<Response, ApiError> {
    let item = AckBody::parse(&body.0)?;
    acknowledge(&app, vec![item]).await
}

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
