//! `/api/v1/dlq`: lists dead letters, groups them by error, or deletes them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{DeadLetter, DeadLetterFilter, LetterShape, original_id};
use queen_protocol::{BadRequest, ErrorCode, check_name, format_millis, parse_time};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, Missing};
use super::request::{Pagination, Query};
use crate::app::App;
use crate::openapi::queries;

const LIMIT_DEFAULT: i64 = 100;
/// A page of payloads is held in memory at once.
const LIMIT_MAX: i64 = 1_000;

#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetters, example = json!({
    "messages": [{
        "id": "01a1dee1-7461-7000-8000-000000000002", "transactionId": "01a1dee1-745d-7538-917b-d9ffb02ffaee",
        "partitionId": "01a1dee1-745d-7538-917b-da0156ed4800", "queue": "orders", "partition": "customer-7",
        "consumerGroup": "billing", "errorMessage": "no such customer", "retryCount": 0, "data": {"total": 5},
        "producerSub": null, "createdAt": "2026-11-15T11:04:39.777Z", "failedAt": "2026-11-15T11:04:40.814Z",
    }],
    "pagination": {"limit": 10, "offset": 0},
    "total": 1,
}))]
struct Page<'a> {
    messages: Vec<Entry<'a>>,
    pagination: Pagination,
    /// Number of all dead letters that match.
    total: i64,
}

/// A message that a group gave up on.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeadLetter)]
struct Entry<'a> {
    /// Id of the message.
    id: Uuid,
    transaction_id: &'a str,
    /// Only for a redriven message: the transaction id that its producer sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    original_transaction_id: Option<&'a str>,
    partition_id: Uuid,
    queue: &'a str,
    partition: &'a str,
    consumer_group: &'a str,
    #[schema(required)]
    error_message: Option<&'a str>,
    retry_count: i32,
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
    /// Why `data` is null: this broker cannot decrypt the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    decryption_error: Option<String>,
    #[schema(required)]
    producer_sub: Option<&'a str>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    failed_at: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Purged)]
struct Purged<'a> {
    success: bool,
    queue: &'a str,
    /// Number of deleted dead letters.
    purged: i64,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DeadLetterShapes, example = json!({
    "shapes": [{
        "shape": "no such customer #", "count": 12, "queues": 2, "example": "no such customer 42",
        "firstFailedAt": "2026-11-15T11:04:40.814Z", "lastFailedAt": "2026-11-15T11:09:12.003Z",
    }],
    "total": 12,
    "counted": 12,
}))]
struct Shapes<'a> {
    /// Most frequent first.
    shapes: Vec<Shape<'a>>,
    /// Number of all dead letters that match.
    total: i64,
    /// How many of them were grouped: the newest 20,000.
    counted: i64,
}

/// Dead letters with similar errors.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeadLetterShape)]
struct Shape<'a> {
    /// The error with `#` in place of numbers, ids and quoted text. Empty if there is no error.
    shape: &'a str,
    count: i64,
    /// Number of queues with such dead letters.
    queues: i64,
    /// One of the errors, cut if it is long.
    example: &'a str,
    #[schema(format = DateTime)]
    first_failed_at: String,
    #[schema(format = DateTime)]
    last_failed_at: String,
}

/// Lists dead letters, newest failure first.
#[utoipa::path(get, path = "/api/v1/dlq", operation_id = "deadLetters", tag = "messages", params(queries::DeadLetterQuery),
    responses((status = 200, description = "A page", body = Page<'static>), Failures))]
pub async fn list(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let filter = read(&query)?;
    let (letters, total) = app.engine.dead_letters(&filter).await?;
    let pagination = Pagination { limit: filter.limit, offset: filter.offset };
    let messages = letters.iter().map(Entry::from).collect();
    answer::json(StatusCode::OK, &Page { messages, pagination, total })
}

/// Deletes all dead letters of a queue that match.
///
/// Messages that fail meanwhile, and those that a redrive is pushing at the moment, are not deleted. Unknown parameters are
/// refused.
#[utoipa::path(delete, path = "/api/v1/dlq", operation_id = "purgeDeadLetters", tag = "messages", params(queries::PurgeQuery),
    responses((status = 200, description = "Deleted", body = Purged<'static>), Missing, Failures))]
pub async fn purge(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    if let Some((name, _)) = query.pairs().find(|(name, _)| !FILTERS.contains(name) && !PAGES.contains(name))
    {
        return Err(BadRequest(format!("unknown parameter {name:?}; nothing was deleted")).into());
    }
    let filter = read(&query)?;
    let Some(queue) = filter.queue.as_deref() else {
        return Err(BadRequest::new("`queue` is required").into());
    };
    match app.engine.purge_dead_letters(queue, &filter).await? {
        Some(purged) => answer::json(StatusCode::OK, &Purged { success: true, queue, purged }),
        None => Err(ApiError::new(ErrorCode::NotFound, "Queue not found")),
    }
}

/// Groups dead letters by similar errors.
///
/// Each shape is a filter that lists, deletes or redrives exactly these.
#[utoipa::path(get, path = "/api/v1/dlq/shapes", operation_id = "deadLetterShapes", tag = "messages",
    params(queries::ShapesQuery),
    responses((status = 200, description = "The most frequent shapes", body = Shapes<'static>), Failures))]
pub async fn shapes(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let found = app.engine.letter_shapes(&read(&query)?).await?;
    let shapes = found.shapes.iter().map(Shape::from).collect();
    answer::json(StatusCode::OK, &Shapes { shapes, total: found.total, counted: found.counted })
}

/// Accepted by a purge, and ignored: it deletes all that match.
const PAGES: [&str; 2] = ["limit", "offset"];

const FILTERS: [&str; 8] = ["queue", "partition", "consumerGroup", "group", "from", "to", "error", "shape"];

fn read(query: &Query) -> Result<DeadLetterFilter, BadRequest> {
    let checked = |key: &'static str, value: Option<&str>| {
        value.map(|value| check_name(key, value).map(|()| value.to_owned())).transpose()
    };
    let name = |key| checked(key, query.filled(key));
    let time = |key| query.filled(key).map(|value| parse_time(key, value)).transpose();
    let Pagination { limit, offset } = query.page(LIMIT_DEFAULT, LIMIT_MAX);
    Ok(DeadLetterFilter {
        queue: name("queue")?,
        partition: name("partition")?,
        group: checked("consumerGroup", query.group()?)?,
        from: time("from")?,
        to: time("to")?,
        error: name("error")?,
        shape: shape(query.text("shape"))?,
        limit,
        offset,
    })
}

/// An empty shape is a filter as well: it matches dead letters without an error.
pub fn shape(given: Option<&str>) -> Result<Option<String>, BadRequest> {
    given.map(|shape| check_name("shape", shape).map(|()| shape.to_owned())).transpose()
}

impl<'a> From<&'a LetterShape> for Shape<'a> {
    fn from(found: &'a LetterShape) -> Self {
        Self {
            shape: &found.shape,
            count: found.count,
            queues: found.queues,
            example: &found.example,
            first_failed_at: format_millis(found.first_failed_at),
            last_failed_at: format_millis(found.last_failed_at),
        }
    }
}

impl<'a> From<&'a DeadLetter> for Entry<'a> {
    fn from(letter: &'a DeadLetter) -> Self {
        Self {
            id: letter.id,
            transaction_id: &letter.transaction_id,
            original_transaction_id: original_id(&letter.transaction_id),
            partition_id: letter.partition_id,
            queue: &letter.queue,
            partition: &letter.partition,
            consumer_group: &letter.group,
            error_message: letter.error.as_deref(),
            retry_count: letter.attempts,
            // It was valid JSON when it was stored; only a manual change of the table can have broken it.
            data: serde_json::from_str(&letter.payload).unwrap_or(RawValue::NULL),
            decryption_error: letter.unreadable.as_ref().map(ToString::to_string),
            producer_sub: letter.producer_sub.as_deref(),
            created_at: format_millis(letter.created_at),
            failed_at: format_millis(letter.failed_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_left_blank_matches_all_and_a_bad_time_is_refused() {
        let filter = read(&Query::parse("queue=&consumerGroup=g&limit=5&offset=-1")).unwrap();
        assert_eq!((filter.queue, filter.group.as_deref()), (None, Some("g")));
        assert_eq!((filter.limit, filter.offset), (5, 0));
        assert_eq!(filter.shape, None);
        assert_eq!(read(&Query::parse("shape=")).unwrap().shape.as_deref(), Some(""));
        assert_eq!(read(&Query::parse("limit=all")).unwrap().limit, 100);
        assert!(read(&Query::parse("from=yesterday")).is_err());
    }
}
