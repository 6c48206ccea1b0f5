//! What can be done to a consumer group: forget it, move its start, move its cursors.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::SeekTo;
use queen_protocol::{BadRequest, check_name, parse_time};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, Query, Segments};
use crate::app::App;
use crate::openapi::words;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GroupDeleted, example = json!({
    "success": true, "consumerGroup": "shipping", "queueName": "orders", "deletedPartitions": 1,
    "metadataDeleted": true,
}))]
struct Deleted<'a> {
    success: bool,
    consumer_group: &'a str,
    /// Only when one queue was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    queue_name: Option<&'a str>,
    /// Cursors that went.
    deleted_partitions: i64,
    metadata_deleted: bool,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Subscription, example = json!({"subscriptionTimestamp": "2026-01-01T00:00:00Z"}))]
struct SubscriptionBody {
    #[schema(format = DateTime)]
    subscription_timestamp: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "success": true, "consumerGroup": "billing", "newTimestamp": "2026-01-01T00:00:00Z", "rowsUpdated": 1,
}))]
struct Subscribed<'a> {
    success: bool,
    consumer_group: &'a str,
    /// As it was sent.
    new_timestamp: &'a str,
    /// Registrations that were changed.
    rows_updated: i64,
}

/// One of the two; `toEnd: true` goes before a time.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Seek, example = json!({"timestamp": "2026-01-01T00:00:00Z"}))]
struct SeekBody {
    #[serde(default)]
    to_end: Option<bool>,
    #[serde(default)]
    #[schema(format = DateTime)]
    timestamp: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "success": true, "consumerGroup": "billing", "queueName": "orders", "seekToEnd": false,
    "targetTimestamp": "2026-01-01T00:00:00Z", "partitionsUpdated": 2,
}))]
struct Sought<'a> {
    success: bool,
    consumer_group: &'a str,
    queue_name: &'a str,
    seek_to_end: bool,
    /// As it was sent.
    #[schema(required)]
    target_timestamp: Option<&'a str>,
    partitions_updated: i64,
}

/// Forgets where a group stands, in every queue.
///
/// Its cursors and leases go; a group of the same name starts afresh. One that does not exist is no error.
#[utoipa::path(delete, path = "/api/v1/consumer-groups/{group}", operation_id = "deleteGroup",
    tag = "consumer groups", params(("group" = String, Path), words::DeleteGroupQuery),
    responses((status = 200, description = "Forgotten", body = Deleted<'static>), Failures))]
pub async fn delete(
    State(app): State<App>,
    Segments(group): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    delete_group(&app, &group, None, &query).await
}

/// Forgets where a group stands in one queue.
#[utoipa::path(delete, path = "/api/v1/consumer-groups/{group}/queues/{queue}",
    operation_id = "deleteGroupFromQueue", tag = "consumer groups",
    params(("group" = String, Path), ("queue" = String, Path), words::DeleteGroupQuery),
    responses((status = 200, description = "Forgotten", body = Deleted<'static>), Failures))]
pub async fn delete_from_queue(
    State(app): State<App>,
    Segments((group, queue)): Segments<(String, String)>,
    query: Query,
) -> Result<Response, ApiError> {
    check_name("queue", &queue)?;
    delete_group(&app, &group, Some(&queue), &query).await
}

/// Moves the time from which a group reads partitions that are new to it.
///
/// Changes registrations that exist, adds none, and moves no cursor.
#[utoipa::path(post, path = "/api/v1/consumer-groups/{group}/subscription", operation_id = "setSubscription",
    tag = "consumer groups", params(("group" = String, Path)), request_body = SubscriptionBody,
    responses((status = 200, description = "Moved", body = Subscribed<'static>), Failures, TooLarge))]
pub async fn subscription(
    State(app): State<App>,
    Segments(group): Segments<String>,
    body: Body,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", &group)?;
    let wanted: SubscriptionBody = serde_json::from_slice(&body.0).map_err(BadRequest::from)?;
    let since = parse_time("subscriptionTimestamp", &wanted.subscription_timestamp)?;
    let rows_updated = app.engine.set_subscription(&group, since).await?;
    let new_timestamp = &wanted.subscription_timestamp;
    let answer = Subscribed { success: true, consumer_group: &group, new_timestamp, rows_updated };
    answer::json(StatusCode::OK, &answer)
}

/// Moves a group in every partition of a queue: behind the last message, or to the first one after a time.
///
/// Ends its leases there and gives it a fresh retry budget.
#[utoipa::path(post, path = "/api/v1/consumer-groups/{group}/queues/{queue}/seek", operation_id = "seek",
    tag = "consumer groups", params(("group" = String, Path), ("queue" = String, Path)), request_body = SeekBody,
    responses((status = 200, description = "Moved", body = Sought<'static>), Failures, TooLarge))]
pub async fn seek(
    State(app): State<App>,
    Segments((group, queue)): Segments<(String, String)>,
    body: Body,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", &group)?;
    check_name("queue", &queue)?;
    let wanted: SeekBody = serde_json::from_slice(&body.0).map_err(BadRequest::from)?;
    let to = wanted.target()?;
    let partitions_updated = app.engine.seek(&group, &queue, to).await?;
    let answer = Sought {
        success: true,
        consumer_group: &group,
        queue_name: &queue,
        seek_to_end: matches!(to, SeekTo::End),
        target_timestamp: wanted.timestamp.as_deref(),
        partitions_updated,
    };
    answer::json(StatusCode::OK, &answer)
}

impl SeekBody {
    fn target(&self) -> Result<SeekTo, BadRequest> {
        match (self.to_end, &self.timestamp) {
            (Some(true), _) => Ok(SeekTo::End),
            (_, Some(time)) => parse_time("timestamp", time).map(SeekTo::Time),
            _ => Err(BadRequest::new("a seek needs toEnd: true or a timestamp")),
        }
    }
}

async fn delete_group(
    app: &App,
    group: &str,
    queue: Option<&str>,
    query: &Query,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", group)?;
    let metadata_deleted = query.flag("deleteMetadata", true);
    let deleted_partitions = app.engine.delete_group(group, queue, metadata_deleted).await?;
    let answer = Deleted {
        success: true,
        consumer_group: group,
        queue_name: queue,
        deleted_partitions,
        metadata_deleted,
    };
    answer::json(StatusCode::OK, &answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_goes_to_the_end_or_to_a_time_and_nowhere_else() {
        let target = |body: &str| serde_json::from_str::<SeekBody>(body).map(|body| body.target());
        assert!(matches!(target(r#"{"toEnd":true}"#), Ok(Ok(SeekTo::End))));
        assert!(matches!(target(r#"{"timestamp":"1970-01-01T00:00:01Z"}"#), Ok(Ok(SeekTo::Time(1_000_000)))));
        for body in ["{}", r#"{"position":"end"}"#, r#"{"toEnd":false}"#, r#"{"timestamp":"soon"}"#] {
            assert!(matches!(target(body), Ok(Err(_))), "{body}");
        }
    }
}
