//! `POST /api/v1/transaction`. One that was rolled back is a 200 with `success: false`: the clients look
//! there, and a 5xx would make them send it again.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::TransactionBody;

use super::answer;
use super::error::ApiError;
use super::request::Body;
use crate::app::App;

pub async fn transaction(State(app): State<App>, body: Body) -> Result<Response, ApiError> {
    let transaction = TransactionBody::parse(&body.0)?;
    let outcome = app.engine.transaction(&transaction, None).await?;
    answer::json(StatusCode::OK, &outcome)
}
