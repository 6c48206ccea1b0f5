//! `POST /api/v1/push`.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use queen_protocol::{ErrorCode, PushBody, PushResult};

use super::answer;
use super::error::{ApiError, Busy, Failures, NotJson, TooLarge};
use super::request::Body;
use crate::app::App;
use crate::openapi::words;

/// Stores messages.
///
/// Items of one partition keep their order. The answer is sent after the commit, one result per item in the
/// order of the request; what cannot be stored fails alone. With a `transactionId` of your own a push may be
/// repeated without fear.
#[utoipa::path(post, path = "/api/v1/push", operation_id = "push", tag = "messages",
    request_body = words::Push,
    responses(
        (status = 201, description = "One result per item; `[]` for no items", body = Vec<words::PushResult>),
        Failures, TooLarge, Busy, NotJson))]
pub async fn push(State(app): State<App>, headers: HeaderMap, body: Body) -> Result<Response, ApiError> {
    must_be_json(&headers)?;
    let push = PushBody::parse(&body.0)?;
    if push.items.is_empty() {
        return answer::json(StatusCode::CREATED, &Vec::<PushResult>::new());
    }
    let results = app.engine.push(&push.items, None).await?;
    answer::json(StatusCode::CREATED, &results)
}

/// Later clients may send frames of bytes; the status tells them to fall back. `curl -d` and `fetch` label
/// JSON as a form or as plain text when nobody says otherwise, and mean no harm.
fn must_be_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match kind {
        "" | "text/plain" | "application/x-www-form-urlencoded" => Ok(()),
        kind if kind.ends_with("json") => Ok(()),
        kind => {
            Err(ApiError::new(ErrorCode::UnsupportedMediaType, format!("a push is JSON, and not {kind}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_body_that_is_clearly_not_json_is_refused_by_its_label() {
        let check = |kind: &'static str| {
            must_be_json(&HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())])).is_ok()
        };
        assert!(must_be_json(&HeaderMap::new()).is_ok());
        assert!(check("application/json") && check("Application/JSON; charset=utf-8") && check("text/plain"));
        assert!(!check("application/octet-stream") && !check("application/x-protobuf"));
    }
}
