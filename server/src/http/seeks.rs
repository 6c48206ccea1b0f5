//! Seeks: moves a consumer group in a queue or in one partition, or shows what a seek would change.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{Seek, SeekForecast, SeekTo};
use queen_protocol::{BadRequest, ErrorCode, check_name, parse_time, read_object};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures, Missing, TooLarge};
use super::misspelt;
use super::request::{Body, SMALL, Segments};
use crate::app::App;

const FIELDS: [&str; 4] = ["toEnd", "timestamp", "dryRun", "create"];

/// To the end or to a time, not both. A field that differs from one of these only in case, `_` or `-` is refused; other unknown
/// fields are ignored.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Seek, example = json!({"timestamp": "2026-01-01T00:00:00Z"}))]
pub struct SeekBody {
    #[serde(default)]
    to_end: Option<bool>,
    /// A time before the first message, such as 1970, moves to the beginning.
    #[serde(default)]
    #[schema(format = DateTime)]
    timestamp: Option<String>,
    /// Moves nothing and returns what would change.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: Option<bool>,
    /// Creates the group if it does not read the queue. Otherwise the response is a 404.
    #[serde(default)]
    #[schema(default = false)]
    create: Option<bool>,
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
    /// The time that was sent.
    #[schema(required)]
    target_timestamp: Option<&'a str>,
    partitions_updated: i64,
    #[serde(flatten)]
    forecast: Forecast,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PartitionSought)]
struct PartitionSought<'a> {
    success: bool,
    consumer_group: &'a str,
    queue_name: &'a str,
    partition_name: &'a str,
    updated: bool,
    /// The offset that the group reads next.
    cursor_moved_to: i64,
    #[serde(flatten)]
    forecast: Forecast,
}

/// Only for a dry run: nothing was moved.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SeekForecast)]
struct Forecast {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dry_run: Option<bool>,
    /// Messages that the group has passed and would read again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    messages_replayed: Option<i64>,
    /// Messages that the group would skip.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    messages_skipped: Option<i64>,
}

/// Moves a group in all partitions of a queue: to the end, or to the first message after a time.
///
/// Its leases end, and its retry counts restart at 0. With `dryRun` nothing changes, and the response has the number of messages
/// that would be read again or skipped. A group that does not read the queue is a 404, unless `create` is set.
#[utoipa::path(post, path = "/api/v1/consumer-groups/{group}/queues/{queue}/seek", operation_id = "seek",
    tag = "consumer groups", params(("group" = String, Path), ("queue" = String, Path)), request_body = SeekBody,
    responses((status = 200, description = "Moved", body = Sought<'static>), Missing, Failures, TooLarge))]
pub async fn in_queue(
    State(app): State<App>,
    Segments((group, queue)): Segments<(String, String)>,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", &group)?;
    check_name("queue", &queue)?;
    let wanted: SeekBody = read_object(&body.0)?;
    misspelt::refuse_fields(&body.0, &FIELDS)?;
    let to = wanted.target()?;
    let (partitions_updated, forecast) = match wanted.dry_run {
        Some(true) => {
            let seen = app.engine.seek_forecast(&group, &queue, None, wanted.seek(to)).await?;
            (seen.partitions, Forecast::from(seen))
        }
        _ => (app.engine.seek(&group, &queue, wanted.seek(to)).await?, Forecast::NONE),
    };
    let answer = Sought {
        success: true,
        consumer_group: &group,
        queue_name: &queue,
        seek_to_end: matches!(to, SeekTo::End),
        target_timestamp: wanted.timestamp.as_deref(),
        partitions_updated,
        forecast,
    };
    answer::json(StatusCode::OK, &answer)
}

/// Moves a group in one partition: to the end, or to the first message after a time.
///
/// Without a body it moves to the end. Its lease ends, and its retry count restarts at 0. With `dryRun` nothing changes, and the
/// response has the number of messages that would be read again or skipped. A group that does not read the queue is a 404,
/// unless `create` is set.
#[utoipa::path(post, path = "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
    operation_id = "seekPartition", tag = "consumer groups",
    params(("group" = String, Path), ("queue" = String, Path), ("partition" = String, Path)),
    request_body = Option<SeekBody>,
    responses((status = 200, description = "Moved", body = PartitionSought<'static>), Missing, Failures, TooLarge))]
pub async fn in_partition(
    State(app): State<App>,
    Segments((group, queue, partition)): Segments<(String, String, String)>,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", &group)?;
    check_name("queue", &queue)?;
    check_name("partition", &partition)?;
    let wanted: SeekBody = body.or_empty()?;
    if !body.0.is_empty() {
        misspelt::refuse_fields(&body.0, &FIELDS)?;
    }
    let to = wanted.target_or_end()?;
    let missing = || ApiError::new(ErrorCode::NotFound, "partition not found");
    let (cursor, forecast) = match wanted.dry_run {
        Some(true) => {
            let seen = app.engine.seek_forecast(&group, &queue, Some(&partition), wanted.seek(to)).await?;
            if seen.partitions == 0 {
                return Err(missing());
            }
            (seen.lands, Forecast::from(seen))
        }
        _ => {
            let moved = app.engine.seek_partition(&group, &queue, &partition, wanted.seek(to)).await?;
            (moved.ok_or_else(missing)?, Forecast::NONE)
        }
    };
    let answer = PartitionSought {
        success: true,
        consumer_group: &group,
        queue_name: &queue,
        partition_name: &partition,
        updated: true,
        cursor_moved_to: cursor,
        forecast,
    };
    answer::json(StatusCode::OK, &answer)
}

impl SeekBody {
    pub fn target(&self) -> Result<SeekTo, BadRequest> {
        match (self.to_end, &self.timestamp) {
            (Some(true), Some(_)) => Err(BadRequest::new("`toEnd` and `timestamp` are both given; send one")),
            (Some(true), None) => Ok(SeekTo::End),
            (_, Some(time)) => parse_time("timestamp", time).map(SeekTo::Time),
            _ => Err(BadRequest::new("`toEnd: true` or `timestamp` is required")),
        }
    }

    fn seek(&self, to: SeekTo) -> Seek {
        Seek { to, create: self.create == Some(true) }
    }

    /// For one partition, where an absent target means the end.
    fn target_or_end(&self) -> Result<SeekTo, BadRequest> {
        match (self.to_end, &self.timestamp) {
            (None, None) => Ok(SeekTo::End),
            _ => self.target(),
        }
    }
}

impl Forecast {
    /// The response to a seek that was done.
    const NONE: Self = Self { dry_run: None, messages_replayed: None, messages_skipped: None };
}

impl From<SeekForecast> for Forecast {
    fn from(seen: SeekForecast) -> Self {
        Self {
            dry_run: Some(true),
            messages_replayed: Some(seen.replayed),
            messages_skipped: Some(seen.skipped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seek_goes_to_the_end_or_to_a_time_and_nowhere_else() {
        let target = |body: &str| serde_json::from_str::<SeekBody>(body).map(|body| body.target());
        assert!(matches!(target(r#"{"toEnd":true}"#), Ok(Ok(SeekTo::End))));
        assert!(matches!(target(r#"{"timestamp":"1970-01-01T00:00:01Z"}"#), Ok(Ok(SeekTo::Time(1_000_000)))));
        for body in [
            "{}",
            r#"{"position":"end"}"#,
            r#"{"toEnd":false}"#,
            r#"{"timestamp":"soon"}"#,
            r#"{"toEnd":true,"timestamp":"1970-01-01T00:00:01Z"}"#,
        ] {
            assert!(matches!(target(body), Ok(Err(_))), "{body}");
        }
    }

    #[test]
    fn in_one_partition_silence_means_the_end() {
        let target = |body: &str| serde_json::from_str::<SeekBody>(body).map(|body| body.target_or_end());
        assert!(matches!(target(r#"{"dryRun":true}"#), Ok(Ok(SeekTo::End))));
        assert!(matches!(target(r#"{"timestamp":"1970-01-01T00:00:01Z"}"#), Ok(Ok(SeekTo::Time(1_000_000)))));
        assert!(matches!(target(r#"{"toEnd":false}"#), Ok(Err(_))));
    }
}
