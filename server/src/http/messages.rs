//! `/api/v1/messages`: lists messages, and shows, deletes, dead-letters or retries single ones.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{Buried, MessageFilter, MessageStatus, Mode, Standing, StoredMessage, original_id};
use queen_protocol::{
    BadRequest, ErrorCode, PushResult, QUEUE_MODE, check_name, check_transaction_id, format_millis,
    parse_time,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, Query, SMALL, Segments};
use crate::app::App;
use crate::openapi::{queries, words};

/// A page of payloads is held in memory at once.
const LIMIT_MAX: i64 = 1_000;
const LIMIT_DEFAULT: i64 = 200;
const LIMIT_OF_QUEUE: i64 = 50;

const MINUTE: i64 = 60_000_000;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Messages)]
struct Page<'a> {
    messages: Vec<Listed<'a>>,
    mode: ModeWords,
    /// Number of messages on this page.
    total: usize,
    /// Only if there were too many messages to search: messages older than this were not searched. Use narrower filters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    looked_until: Option<String>,
}

/// A stored message and its state.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = StoredMessage, example = json!({
    "id": "01a1dee1-7461-7000-8000-000000000001", "transactionId": "order-1001",
    "partitionId": "01a1dee1-745d-7538-917b-da0024957600", "queuePath": "orders/customer-42", "queue": "orders",
    "partition": "customer-42", "namespace": "orders", "task": "", "status": "pending", "queueStatus": "pending",
    "busStatus": {"consumedBy": 0, "totalGroups": 0}, "traceId": null, "producerSub": null, "queuePriority": 0,
    "createdAt": "2026-11-15T11:04:39.777Z", "leaseExpiresAt": null, "data": {"total": 10}, "payload": {"total": 10},
}))]
struct Listed<'a> {
    id: Uuid,
    transaction_id: &'a str,
    /// Only for a redriven message: the transaction id that its producer sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    original_transaction_id: Option<&'a str>,
    partition_id: Uuid,
    /// Queue and partition, separated by a slash.
    queue_path: String,
    queue: &'a str,
    partition: &'a str,
    namespace: &'a str,
    task: &'a str,
    /// `dead_letter` if there is one, `processing` while it is leased, otherwise `pending` or `completed`: in
    /// queue mode or, if only groups read, for all groups.
    status: &'static str,
    /// The status in queue mode; null if only groups read.
    #[schema(required)]
    queue_status: Option<&'static str>,
    bus_status: BusStatus,
    #[schema(required)]
    trace_id: Option<Uuid>,
    #[schema(required)]
    producer_sub: Option<&'a str>,
    queue_priority: i32,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(required, format = DateTime)]
    lease_expires_at: Option<String>,
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
    /// The same as `data`.
    #[schema(value_type = serde_json::Value)]
    payload: &'a RawValue,
    /// Why both are null: this broker cannot decrypt the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    decryption_error: Option<String>,
}

/// State of the message in named groups.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BusStatus {
    /// Groups that have passed it.
    consumed_by: usize,
    total_groups: usize,
}

/// How the queue is read.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ReadMode)]
struct ModeWords {
    has_queue_mode: bool,
    bus_groups_count: usize,
    /// `queue`, `bus`, `hybrid` or `none`.
    r#type: &'static str,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MessageDetail)]
struct Detail<'a> {
    #[serde(flatten)]
    listed: Listed<'a>,
    /// Whether it is stored encrypted.
    is_encrypted: bool,
    /// Error of its last dead letter.
    #[schema(required)]
    error_message: Option<&'a str>,
    retry_count: i32,
    queue_config: QueueConfig,
    mode: DetailMode,
    consumer_groups: Vec<Group<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct QueueConfig {
    lease_time: i32,
    retry_limit: i32,
    retry_delay: i32,
    ttl: i32,
    priority: i32,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct DetailMode {
    #[serde(flatten)]
    mode: ModeWords,
    consumed_by_groups: usize,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MessageGroup)]
struct Group<'a> {
    name: &'a str,
    consumed: bool,
    #[schema(required, format = DateTime)]
    lease_expires_at: Option<String>,
}

/// A message of a queue, without its payload.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = QueueMessage)]
struct Short<'a> {
    id: Uuid,
    transaction_id: &'a str,
    partition_id: Uuid,
    queue_path: String,
    queue: &'a str,
    partition: &'a str,
    status: &'static str,
    #[schema(format = DateTime)]
    created_at: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MessageDeleted)]
struct Deleted<'a> {
    success: bool,
    partition_id: Uuid,
    transaction_id: &'a str,
    message: &'static str,
}

/// Like other failures, with `success` for clients that read it.
#[derive(Serialize, ToSchema)]
#[schema(as = MessageNotDeleted)]
struct NotDeleted {
    success: bool,
    error: &'static str,
    code: &'static str,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MessageReplayed)]
struct Replayed {
    success: bool,
    queue: String,
    partition: String,
    #[schema(value_type = words::PushResult)]
    replayed_as: PushResult,
    dlq_row_removed: bool,
}

#[derive(Deserialize, ToSchema, Default)]
#[serde(rename_all = "camelCase", default)]
#[schema(as = BuryMessage)]
pub struct BuryBody {
    /// Absent: queue mode.
    #[serde(alias = "group")]
    #[schema(max_length = 255)]
    consumer_group: Option<String>,
    /// Error text of the dead letter.
    error: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MessageBuried)]
struct BuriedAnswer<'a> {
    success: bool,
    dlq: bool,
    message_id: Uuid,
    partition_id: Uuid,
    transaction_id: &'a str,
    consumer_group: &'a str,
    #[schema(format = DateTime)]
    failed_at: String,
}

#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum NoMessage {
    /// There is no such message.
    #[response(status = 404)]
    NotFound(super::error::ErrorBody<'static>),
}

/// Lists messages, newest first.
///
/// While the log does not change, pages neither skip nor repeat messages.
#[utoipa::path(get, path = "/api/v1/messages", operation_id = "listMessages", tag = "messages",
    params(queries::MessagesQuery),
    responses((status = 200, description = "A page", body = Page<'static>), Failures))]
pub async fn list(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let page = app.engine.messages(&read(&query)?).await?;
    let messages: Vec<Listed<'_>> = page.messages.iter().map(Listed::from).collect();
    let (mode, total) = (ModeWords::from(page.mode), messages.len());
    let looked_until = page.looked_until.map(format_millis);
    answer::json(StatusCode::OK, &Page { messages, mode, total, looked_until })
}

/// Lists the messages of one queue without payloads, newest first.
#[utoipa::path(get, path = "/api/v1/status/queues/{queue}/messages", operation_id = "listQueueMessages", tag = "messages",
    params(("queue" = String, Path), queries::LimitQuery),
    responses((status = 200, description = "A page", body = Vec<Short<'static>>), NoMessage, Failures))]
pub async fn of_queue(
    State(app): State<App>,
    Segments(queue): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    check_name("queue", &queue)?;
    if !app.engine.has_queue(&queue).await? {
        return Err(ApiError::new(ErrorCode::NotFound, "Queue not found"));
    }
    let (limit, offset) = page(&query, LIMIT_OF_QUEUE);
    let filter = MessageFilter { queue: Some(queue), from: Some(0), limit, offset, ..Default::default() };
    let page = app.engine.messages(&filter).await?;
    let messages: Vec<Short<'_>> = page.messages.iter().map(Short::from).collect();
    answer::json(StatusCode::OK, &messages)
}

/// Shows one message or, if it is no longer in the log, its dead letter.
#[utoipa::path(get, path = "/api/v1/messages/{partition}/{transaction}", operation_id = "getMessage", tag = "messages",
    params(("partition" = Uuid, Path), ("transaction" = String, Path)),
    responses((status = 200, description = "The message", body = Detail<'static>), NoMessage, Failures))]
pub async fn one(
    State(app): State<App>,
    Segments((partition, transaction)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let partition = place(&partition, &transaction)?;
    match app.engine.message(partition, &transaction).await? {
        Some(message) => answer::json(StatusCode::OK, &Detail::from(&message)),
        None => Err(not_found()),
    }
}

/// Deletes a message and its dead letters.
///
/// It is not delivered any more. A consumer that already has it can acknowledge it as usual. Its transaction id
/// remains in the deduplication window.
#[utoipa::path(delete, path = "/api/v1/messages/{partition}/{transaction}", operation_id = "deleteMessage",
    tag = "messages", params(("partition" = Uuid, Path), ("transaction" = String, Path)),
    responses((status = 200, description = "Deleted", body = Deleted<'static>),
        (status = 404, description = "There is no such message", body = NotDeleted), Failures))]
pub async fn delete(
    State(app): State<App>,
    Segments((partition, transaction)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let partition_id = place(&partition, &transaction)?;
    if !app.engine.delete_message(partition_id, &transaction).await? {
        let code = ErrorCode::NotFound.word();
        let body = NotDeleted { success: false, error: "Message not found", code };
        return answer::json(StatusCode::NOT_FOUND, &body);
    }
    let message = "Message deleted";
    answer::json(
        StatusCode::OK,
        &Deleted { success: true, partition_id, transaction_id: &transaction, message },
    )
}

/// Pushes the message of a dead letter again, under a new transaction id, and removes the dead letter.
///
/// Both happen in one transaction. The message is pushed once, even if several groups gave up on it.
#[utoipa::path(post, path = "/api/v1/messages/{partition}/{transaction}/retry", operation_id = "retryMessage",
    tag = "messages", params(("partition" = Uuid, Path), ("transaction" = String, Path)),
    responses((status = 200, description = "Pushed", body = Replayed), NoMessage, Failures))]
pub async fn retry(
    State(app): State<App>,
    Segments((partition, transaction)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let partition = place(&partition, &transaction)?;
    match app.engine.replay_message(partition, &transaction).await? {
        Some(replayed) => {
            let (queue, partition, replayed_as) = (replayed.queue, replayed.partition, replayed.push);
            let answer = Replayed { success: true, queue, partition, replayed_as, dlq_row_removed: true };
            answer::json(StatusCode::OK, &answer)
        }
        None => Err(ApiError::new(ErrorCode::NotFound, "Dead letter not found")),
    }
}

/// Makes a waiting message a dead letter of one consumer group, so that it is not delivered to the group.
#[utoipa::path(post, path = "/api/v1/messages/{partition}/{transaction}/dlq", operation_id = "buryMessage",
    tag = "messages", params(("partition" = Uuid, Path), ("transaction" = String, Path)), request_body = Option<BuryBody>,
    responses((status = 200, description = "It is a dead letter", body = BuriedAnswer<'static>),
        (status = 409, description = "A consumer of the group has leased it, or the group has passed it", body = super::error::ErrorBody<'static>),
        NoMessage, Failures, TooLarge))]
pub async fn bury(
    State(app): State<App>,
    Segments((partition, transaction)): Segments<(String, String)>,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    let partition_id = place(&partition, &transaction)?;
    let wanted: BuryBody = body.or_empty()?;
    let group = wanted.consumer_group.as_deref().filter(|group| !group.is_empty()).unwrap_or(QUEUE_MODE);
    check_name("consumerGroup", group)?;
    let error = wanted.error.as_deref().unwrap_or("dead-lettered by hand").replace('\0', "\u{fffd}");
    match app.engine.bury_message(partition_id, &transaction, group, Some(&error)).await? {
        Buried::Buried { message_id, failed_at } => {
            let answer = BuriedAnswer {
                success: true,
                dlq: true,
                message_id,
                partition_id,
                transaction_id: &transaction,
                consumer_group: group,
                failed_at: format_millis(failed_at),
            };
            answer::json(StatusCode::OK, &answer)
        }
        Buried::Missing => Err(not_found()),
        Buried::Leased => Err(ApiError::new(
            ErrorCode::Conflict,
            "a consumer of this group has leased the message; only its acknowledgement can dead-letter it",
        )),
        Buried::Committed => {
            Err(ApiError::new(ErrorCode::Conflict, "the message is already completed for this group"))
        }
    }
}

fn not_found() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "Message not found")
}

/// The partition of a path. Checks the transaction id as well.
pub fn place(partition: &str, transaction: &str) -> Result<Uuid, BadRequest> {
    check_transaction_id(transaction)?;
    Uuid::try_parse(partition).map_err(|_| BadRequest(format!("partition id {partition:?} is not a UUID")))
}

/// Limit and offset.
fn page(query: &Query, limit: i64) -> (usize, usize) {
    let page = query.page(limit, LIMIT_MAX);
    (page.limit as usize, page.offset as usize)
}

fn read(query: &Query) -> Result<MessageFilter, BadRequest> {
    let name = |key: &'static str| {
        let value = query.filled(key).map(str::to_owned);
        value.map(|value| check_name(key, &value).map(|()| value)).transpose()
    };
    let time = |key| query.filled(key).map(|value| parse_time(key, value)).transpose();
    let status = |word: &str| {
        let known = || MessageStatus::ALL.map(MessageStatus::word).join(", ");
        MessageStatus::parse(word)
            .ok_or_else(|| BadRequest(format!("status is {word:?}; it must be one of {}", known())))
    };
    let (limit, offset) = page(query, LIMIT_DEFAULT);
    Ok(MessageFilter {
        queue: name("queue")?,
        partition: name("partition")?,
        namespace: name("ns")?.or(name("namespace")?),
        task: name("task")?,
        status: query.filled("status").map(status).transpose()?,
        from: time("from")?,
        // Users choose a minute, and mean all of it.
        to: time("to")?.map(|time| time - time.rem_euclid(MINUTE) + MINUTE - 1),
        limit,
        offset,
    })
}

/// The broker stores valid JSON; null is for rows that were changed by hand.
pub fn raw(json: &str) -> &RawValue {
    serde_json::from_str(json).unwrap_or(RawValue::NULL)
}

impl<'a> From<&'a StoredMessage> for Listed<'a> {
    fn from(message: &'a StoredMessage) -> Self {
        let standing = &message.standing;
        Self {
            id: message.id,
            transaction_id: &message.transaction_id,
            original_transaction_id: original_id(&message.transaction_id),
            partition_id: message.partition_id,
            queue_path: path(message),
            queue: &message.queue,
            partition: &message.partition,
            namespace: &message.namespace,
            task: &message.task,
            status: standing.status.word(),
            queue_status: standing.queue_status.map(MessageStatus::word),
            bus_status: BusStatus { consumed_by: standing.consumed_by, total_groups: standing.groups_total },
            trace_id: message.trace_id,
            producer_sub: message.producer_sub.as_deref(),
            queue_priority: message.priority,
            created_at: format_millis(message.created_at),
            lease_expires_at: standing.lease_until().map(format_millis),
            data: raw(&message.payload),
            payload: raw(&message.payload),
            decryption_error: message.unreadable.as_ref().map(ToString::to_string),
        }
    }
}

impl<'a> From<&'a StoredMessage> for Detail<'a> {
    fn from(message: &'a StoredMessage) -> Self {
        let standing = &message.standing;
        Self {
            listed: Listed::from(message),
            is_encrypted: message.encrypted,
            error_message: message.error.as_deref(),
            retry_count: message.attempts,
            queue_config: QueueConfig {
                lease_time: message.lease_time,
                retry_limit: message.retry_limit,
                retry_delay: message.retry_delay,
                ttl: message.ttl,
                priority: message.priority,
            },
            mode: DetailMode {
                mode: ModeWords::from(mode(standing)),
                consumed_by_groups: standing.consumed_by,
            },
            consumer_groups: standing
                .groups
                .iter()
                .map(|group| Group {
                    name: &group.name,
                    consumed: group.consumed,
                    lease_expires_at: group.lease_until.map(format_millis),
                })
                .collect(),
        }
    }
}

impl<'a> From<&'a StoredMessage> for Short<'a> {
    fn from(message: &'a StoredMessage) -> Self {
        Self {
            id: message.id,
            transaction_id: &message.transaction_id,
            partition_id: message.partition_id,
            queue_path: path(message),
            queue: &message.queue,
            partition: &message.partition,
            status: message.standing.status.word(),
            created_at: format_millis(message.created_at),
        }
    }
}

impl From<Mode> for ModeWords {
    fn from(mode: Mode) -> Self {
        let word = match (mode.queue_mode, mode.groups) {
            (true, 0) => "queue",
            (true, _) => "hybrid",
            (false, 0) => "none",
            (false, _) => "bus",
        };
        Self { has_queue_mode: mode.queue_mode, bus_groups_count: mode.groups, r#type: word }
    }
}

fn mode(standing: &Standing) -> Mode {
    Mode { queue_mode: standing.groups.len() > standing.groups_total, groups: standing.groups_total }
}

fn path(message: &StoredMessage) -> String {
    format!("{}/{}", message.queue, message.partition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_read_leniently_but_for_times_and_statuses() {
        let filter =
            read(&Query::parse("queue=q&ns=n&status=pending&limit=x&offset=-3&to=1970-01-01T00:01:07Z"))
                .unwrap();
        assert_eq!((filter.queue.as_deref(), filter.namespace.as_deref()), (Some("q"), Some("n")));
        assert_eq!((filter.limit, filter.offset), (200, 0));
        assert_eq!(filter.to, Some(2 * MINUTE - 1), "the whole minute");
        assert_eq!(read(&Query::parse("namespace=n")).unwrap().namespace.as_deref(), Some("n"));
        assert_eq!(read(&Query::parse("limit=5000")).unwrap().limit, 1_000);
        for bad in ["from=soon", "to=later", "status=lost"] {
            assert!(read(&Query::parse(bad)).is_err(), "{bad}");
        }
    }
}
