//! `POST /api/v1/push`.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use queen_protocol::{ErrorCode, PushBody, PushItem, PushResult, PushStatus, QueuedOperation};

use super::error::{ApiError, Busy, Failures, Missing, NoKey, NotJson, TooLarge};
use super::request::{Body, Query};
use super::{accepted, answer, trace};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::{Caller, Labels};
use crate::openapi::{queries, words};
use crate::telemetry::{Operation, Span};

/// Stores messages.
///
/// Items of one partition keep their order. The response is sent after the commit, with one result per item in the
/// order of the request; an item that cannot be stored does not affect the others. A push whose items have a
/// `transactionId` is safe to retry.
#[utoipa::path(post, path = "/api/v1/push", operation_id = "push", tag = "messages",
    params(queries::TraceHeaders),
    request_body = words::Push,
    responses(
        (status = 201, description = "One result per item; `[]` for no items", body = Vec<words::PushResult>),
        (status = 202, description = "Accepted and durable, to be stored in order as soon as the database has time. \
            Who sends `Prefer: respond-async` or `?async=true` gets one object instead of the array",
            body = words::PushAccepted,
            headers(("Location" = String, description = "The first operation"),
                    ("X-Queen-Operation-Id" = String, description = "The first operation"))),
        Missing, NoKey, Failures, TooLarge, Busy, NotJson))]
pub async fn push(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    query: Query,
    body: Body,
) -> Result<Response, ApiError> {
    let mut span = app.telemetry.span(Operation::Push, &headers);
    let answer = store(&app, &caller, &headers, &query, &body, &mut span).await;
    span.end(answer)
}

async fn store(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    query: &Query,
    body: &Body,
    span: &mut Span,
) -> Result<Response, ApiError> {
    must_be_json(headers)?;
    let mut push = PushBody::parse(&body.0)?;
    if push.items.is_empty() {
        return answer::json(StatusCode::CREATED, &Vec::<PushResult>::new());
    }
    check(app, caller, push.items.iter()).await?;
    app.limits.admit_push(|| push.items.iter())?;
    span.messages(push.items.len());
    span.destination(push.items.iter().map(|item| item.queue.as_ref()));
    trace::hand_on(headers, span, push.items.iter_mut());
    let results = app.engine.push(&push.items, caller.subject.as_deref()).await?;
    let tickets = results.iter().zip(&push.items).filter_map(|(result, item)| {
        let ticket = result.ticket.clone()?;
        let operation = QueuedOperation {
            operation_id: ticket.operation_id,
            queue: item.queue.clone().into_owned(),
            partition: item.partition().to_owned(),
        };
        Some((ticket, operation))
    });
    match accepted::Accepted::from_tickets(tickets) {
        // Some items are in the spool: durable on this broker, and not yet in the database.
        None if is_buffered(&results) && !app.engine.maintenance().push => {
            answer::json(StatusCode::ACCEPTED, &results)
        }
        None => answer::json(StatusCode::CREATED, &results),
        Some(accepted) if accepted::wants_object(app, headers, query) => accepted.object(None),
        Some(accepted) => accepted.array(&results),
    }
}

/// Checks the queues that it names, and the labels that it would give to new ones.
pub async fn check<'a>(
    app: &App,
    caller: &Caller,
    items: impl Iterator<Item = &'a PushItem<'a>>,
) -> Result<(), ApiError> {
    if caller.grants().is_none() {
        return Ok(());
    }
    let (need, items) = (Need::This(Right::Push), items.collect::<Vec<_>>());
    for item in &items {
        caller.may(need, &item.queue)?;
    }
    let labels = items.iter().map(|item| Labels {
        queue: &item.queue,
        namespace: item.namespace.as_deref(),
        task: item.task.as_deref(),
    });
    let labels: BTreeSet<_> = labels.filter(|labels| labels.namespace.or(labels.task).is_some()).collect();
    caller.may_label(&app.engine, need, &Vec::from_iter(labels)).await
}

fn is_buffered(results: &[PushResult]) -> bool {
    results.iter().any(|result| result.status == PushStatus::Buffered)
}

/// Later clients may send binary frames; with this status they know to fall back to JSON. `curl -d` and `fetch` label
/// JSON as a form or as plain text by default, so these are accepted.
fn must_be_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    match kind {
        "" | "text/plain" | "application/x-www-form-urlencoded" => Ok(()),
        kind if kind.ends_with("json") => Ok(()),
        kind => Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            format!("the Content-Type of a push is {kind}; it must be application/json"),
        )),
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
