//! `GET /api/v1/messages/:partitionId/:transactionId/life`: the history of one message, from its push to its state in every group.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{MessageLife, Reader, Recorded};
use queen_protocol::{BadRequest, ErrorCode, check_name, format_millis};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, ErrorBody, Failures};
use super::request::Segments;
use crate::app::App;
use crate::auth::Caller;
use crate::auth::grants::Need;

#[derive(Serialize, ToSchema)]
#[schema(as = MessageLife, example = json!({
    "push": {
        "id": "01a1dee1-7461-7000-8000-000000000001", "transactionId": "order-1001",
        "partitionId": "01a1dee1-745d-7538-917b-da0024957600", "queue": "orders", "partition": "customer-42",
        "offset": 0, "createdAt": "2026-11-15T11:04:39.777Z", "producerSub": null, "traceId": null,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": null,
        "segment": {"baseOffset": 0, "count": 2, "extent": 1},
    },
    "groups": [{
        "consumerGroup": "billing", "delivered": true, "consumed": true, "leasedUntil": null, "attempts": 0,
        "deadLetter": null,
    }],
    "events": [
        {"at": "2026-11-15T11:04:40.114Z", "event": "delivered", "consumerGroup": "billing", "attempt": 1,
         "error": null, "transaction": null, "message": null},
        {"at": "2026-11-15T11:04:40.302Z", "event": "child", "consumerGroup": null, "attempt": null, "error": null,
         "transaction": "01a1dee1-7671-7d02-8a4b-3f1c5f2b8e01", "message": {
            "id": "01a1dee1-7674-7000-8000-000000000003", "transactionId": "invoice-77",
            "partitionId": "01a1dee1-745d-7538-917b-da0156ed4800", "queue": "invoices", "partition": "customer-42"}},
        {"at": "2026-11-15T11:04:40.302Z", "event": "completed", "consumerGroup": "billing", "attempt": 1,
         "error": null, "transaction": null, "message": null},
    ],
}))]
struct Life<'a> {
    push: Push<'a>,
    /// Groups that have read its partition or are registered with its queue, by name; at most 1,000.
    groups: Vec<Group<'a>>,
    /// Recorded events, oldest first; at most 1,000. Only for messages that were pushed with a `traceId` or a
    /// `traceparent`, and for their children.
    events: Vec<Event<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LifePush)]
struct Push<'a> {
    id: Uuid,
    transaction_id: &'a str,
    partition_id: Uuid,
    queue: &'a str,
    partition: &'a str,
    offset: i64,
    /// Null, like the fields below, if only events of the message remain.
    #[schema(required, format = DateTime)]
    created_at: Option<String>,
    #[schema(required)]
    producer_sub: Option<&'a str>,
    #[schema(required)]
    trace_id: Option<&'a str>,
    #[schema(required)]
    traceparent: Option<&'a str>,
    #[schema(required)]
    tracestate: Option<&'a str>,
    /// The segment that holds it; null if it is no longer stored.
    #[schema(required)]
    segment: Option<Segment>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LifeSegment)]
struct Segment {
    /// Offset of its first message.
    base_offset: i64,
    /// Number of messages.
    count: i32,
    extent: i32,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LifeGroup)]
struct Group<'a> {
    consumer_group: &'a str,
    /// Whether it was delivered, as far as known: it is leased, the group has passed it, or there is an event.
    delivered: bool,
    /// The cursor of the group has passed it.
    consumed: bool,
    /// Null if it is not leased.
    #[schema(required, format = DateTime)]
    leased_until: Option<String>,
    /// How often it has failed so far, if it is the next to be delivered.
    attempts: i32,
    #[schema(required)]
    dead_letter: Option<DeadLetter<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LifeDeadLetter)]
struct DeadLetter<'a> {
    #[schema(required)]
    error: Option<&'a str>,
    attempts: i32,
    #[schema(format = DateTime)]
    failed_at: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LifeEvent)]
struct Event<'a> {
    #[schema(format = DateTime)]
    at: String,
    /// `delivered`, `completed`, `failed`, `retry`, `dead_letter`, `dropped` (gave up in a queue without dead letters),
    /// `child` (pushed in the transaction that acknowledged this one) or `parent`.
    event: &'a str,
    #[schema(required)]
    consumer_group: Option<&'a str>,
    /// Number of the delivery: one more than the failures before it.
    #[schema(required)]
    attempt: Option<i32>,
    #[schema(required)]
    error: Option<&'a str>,
    /// The transaction that pushed a child; null if the caller may not see the other message.
    #[schema(required)]
    transaction: Option<Uuid>,
    /// The child or the parent; null if the caller may not see its queue.
    #[schema(required)]
    message: Option<Other<'a>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LifeMessage)]
struct Other<'a> {
    id: Uuid,
    transaction_id: &'a str,
    partition_id: Uuid,
    queue: &'a str,
    partition: &'a str,
}

/// Shows the history of a message: its push, its state in each group, and recorded events.
#[utoipa::path(get, path = "/api/v1/messages/{partition}/{transaction}/life", operation_id = "messageLife",
    tag = "messages", params(("partition" = Uuid, Path, description = "The `partitionId`"), ("transaction" = String, Path)),
    responses((status = 200, description = "The history of the message", body = Life<'static>), NoMessage, Failures))]
pub async fn life(
    State(app): State<App>,
    caller: Caller,
    Segments((partition, transaction)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let partition = Uuid::try_parse(&partition)
        .map_err(|_| BadRequest(format!("partition id {partition:?} is not a UUID")))?;
    check_name("transactionId", &transaction)?;
    match app.engine.life(partition, &transaction).await? {
        Some(life) => answer::json(StatusCode::OK, &Life::of(&life, &caller)),
        None => Err(ApiError::new(ErrorCode::NotFound, "Message not found")),
    }
}

#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum NoMessage {
    /// There is no such message, dead letter or event.
    #[response(status = 404)]
    NotFound(ErrorBody<'static>),
}

impl<'a> Life<'a> {
    fn of(life: &'a MessageLife, caller: &Caller) -> Self {
        let segment = |(base_offset, count, extent)| Segment { base_offset, count, extent };
        Self {
            push: Push {
                id: life.id,
                transaction_id: &life.transaction_id,
                partition_id: life.partition_id,
                queue: &life.queue,
                partition: &life.partition,
                offset: life.offset,
                created_at: life.created_at.map(format_millis),
                producer_sub: life.producer_sub.as_deref(),
                trace_id: life.trace_id.as_deref(),
                traceparent: life.trace_parent.as_deref(),
                tracestate: life.trace_state.as_deref(),
                segment: life.segment.map(segment),
            },
            groups: life.groups.iter().map(Group::from).collect(),
            events: life.events.iter().map(|event| Event::of(event, caller)).collect(),
        }
    }
}

impl<'a> From<&'a Reader> for Group<'a> {
    fn from(reader: &'a Reader) -> Self {
        Self {
            consumer_group: &reader.group,
            delivered: reader.delivered,
            consumed: reader.consumed,
            leased_until: reader.leased_until.map(format_millis),
            attempts: reader.attempts,
            dead_letter: reader.dead.as_ref().map(|dead| DeadLetter {
                error: dead.error.as_deref(),
                attempts: dead.attempts,
                failed_at: format_millis(dead.at),
            }),
        }
    }
}

impl<'a> Event<'a> {
    /// A caller may learn that there is a child or a parent, but which message it is only with rights to its queue.
    fn of(recorded: &'a Recorded, caller: &Caller) -> Self {
        let relation = recorded.relation.as_ref().filter(|other| caller.can(Need::Any, &other.queue));
        Self {
            at: format_millis(recorded.at),
            event: &recorded.event,
            consumer_group: recorded.group.as_deref(),
            attempt: recorded.attempt,
            error: recorded.error.as_deref(),
            transaction: relation.map(|relation| relation.operation),
            message: relation.map(|other| Other {
                id: other.message_id,
                transaction_id: &other.transaction_id,
                partition_id: other.partition_id,
                queue: &other.queue,
                partition: &other.partition,
            }),
        }
    }
}
