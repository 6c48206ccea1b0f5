//! `/api/v1/traces`: events that consumers report about the messages they process.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{NamedTrace, NewTrace, Trace, TraceName};
use queen_protocol::{BadRequest, ErrorCode, check_name, format_millis, read_object};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::messages::{NoMessage, place, raw};
use super::request::{Body, Pagination, Query, SMALL, Segments};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::{Caller, Unknown};
use crate::openapi::queries;

const LIMIT_MAX: i64 = 1_000;
const NAMES_LIMIT: i64 = 50;
const TRACES_LIMIT: i64 = 100;

/// Maximum number of events shown for one message.
const MESSAGE_TRACES_MAX: i64 = 1_000;

/// Maximum number of names of an event.
const NAMES_MAX: usize = 100;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = NewTrace, example = json!({
    "transactionId": "order-1001", "partitionId": "01a1dee1-745d-7538-917b-da0024957600", "consumerGroup": "billing",
    "traceNames": ["order-1001"], "eventType": "info", "data": {"step": "charged"},
}))]
pub struct TraceBody<'a> {
    #[schema(min_length = 1, max_length = 255)]
    transaction_id: String,
    partition_id: String,
    #[serde(alias = "group")]
    #[schema(max_length = 255)]
    consumer_group: Option<String>,
    /// One name or several.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    trace_names: Names,
    #[schema(default = "info", max_length = 255)]
    event_type: Option<String>,
    #[schema(max_length = 255)]
    worker_id: Option<String>,
    #[serde(borrow)]
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
}

#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Names {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = TraceAdded)]
struct Added {
    success: bool,
    trace_id: Uuid,
}

/// An event.
#[derive(Serialize, ToSchema)]
#[schema(as = Trace)]
struct Entry<'a> {
    id: Uuid,
    event_type: &'a str,
    #[schema(value_type = serde_json::Value)]
    data: &'a RawValue,
    #[schema(required)]
    consumer_group: Option<&'a str>,
    #[schema(required)]
    worker_id: Option<&'a str>,
    #[schema(format = DateTime)]
    created_at: String,
    trace_names: &'a [String],
}

#[derive(Serialize, ToSchema)]
#[schema(as = MessageTraces)]
struct OfMessage<'a> {
    traces: Vec<Entry<'a>>,
}

/// An event and its message.
#[derive(Serialize, ToSchema)]
#[schema(as = NamedTrace)]
struct NamedEntry<'a> {
    #[serde(flatten)]
    trace: Entry<'a>,
    transaction_id: &'a str,
    partition_id: Uuid,
    queue_name: &'a str,
    partition_name: &'a str,
    /// Null if the message is no longer stored.
    #[schema(value_type = Option<serde_json::Value>, required)]
    message_payload: Option<&'a RawValue>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = NamedTraces)]
struct ByName<'a> {
    traces: Vec<NamedEntry<'a>>,
    total: i64,
    pagination: Pagination,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TraceName)]
struct NameEntry<'a> {
    trace_name: &'a str,
    trace_count: i64,
    message_count: i64,
    #[schema(format = DateTime)]
    last_seen: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TraceNames)]
struct NamesPage<'a> {
    trace_names: Vec<NameEntry<'a>>,
    total: i64,
    pagination: Pagination,
}

/// Records an event about a message.
#[utoipa::path(post, path = "/api/v1/traces", operation_id = "addTrace", tag = "traces", request_body = TraceBody<'static>,
    responses((status = 201, description = "Recorded", body = Added), NoMessage, Failures, TooLarge))]
pub async fn add(State(app): State<App>, caller: Caller, body: Body<SMALL>) -> Result<Response, ApiError> {
    let trace = read(&body.0)?;
    app.limits.check_payload("data", &trace.data)?;
    caller.may_partitions(&app.engine, Need::This(Right::Pop), Unknown::Refused, &[trace.partition]).await?;
    match app.engine.trace(&trace).await? {
        Some(trace_id) => answer::json(StatusCode::CREATED, &Added { success: true, trace_id }),
        None => Err(ApiError::new(ErrorCode::NotFound, "Message not found")),
    }
}

/// Lists the names of events, most recently used first.
#[utoipa::path(get, path = "/api/v1/traces/names", operation_id = "listTraceNames", tag = "traces",
    params(queries::LimitQuery),
    responses((status = 200, description = "A page", body = NamesPage<'static>), Failures))]
pub async fn names(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let pagination = query.page(NAMES_LIMIT, LIMIT_MAX);
    let (names, total) = app.engine.trace_names(pagination.limit, pagination.offset).await?;
    let trace_names = names.iter().map(NameEntry::from).collect();
    answer::json(StatusCode::OK, &NamesPage { trace_names, total, pagination })
}

/// Lists the events with a name, newest first, with their messages.
#[utoipa::path(get, path = "/api/v1/traces/by-name/{name}", operation_id = "listTracesByName", tag = "traces",
    params(("name" = String, Path), queries::LimitQuery),
    responses((status = 200, description = "A page", body = ByName<'static>), Failures))]
pub async fn by_name(
    State(app): State<App>,
    Segments(name): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    check_name("name", &name)?;
    let pagination = query.page(TRACES_LIMIT, LIMIT_MAX);
    let (traces, total) = app.engine.named_traces(&name, pagination.limit, pagination.offset).await?;
    let traces = traces.iter().map(|(trace, payload)| NamedEntry::new(trace, payload.as_deref())).collect();
    answer::json(StatusCode::OK, &ByName { traces, total, pagination })
}

/// Lists the events of one message, oldest first.
#[utoipa::path(get, path = "/api/v1/traces/{partition}/{transaction}", operation_id = "listMessageTraces", tag = "traces",
    params(("partition" = Uuid, Path), ("transaction" = String, Path)),
    responses((status = 200, description = "The events, up to 1,000", body = OfMessage<'static>), Failures))]
pub async fn of_message(
    State(app): State<App>,
    Segments((partition, transaction)): Segments<(String, String)>,
) -> Result<Response, ApiError> {
    let partition = place(&partition, &transaction)?;
    let traces = app.engine.message_traces(partition, &transaction, MESSAGE_TRACES_MAX).await?;
    answer::json(StatusCode::OK, &OfMessage { traces: traces.iter().map(Entry::from).collect() })
}

pub fn read(body: &[u8]) -> Result<NewTrace, BadRequest> {
    let told: TraceBody<'_> = read_object(body)?;
    let partition = place(&told.partition_id, &told.transaction_id)?;
    let mut names = match told.trace_names {
        Names::None => Vec::new(),
        Names::One(name) => vec![name],
        Names::Many(names) => names,
    };
    names.retain(|name| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    if names.len() > NAMES_MAX {
        return Err(BadRequest(format!("{} trace names; the limit is {NAMES_MAX}", names.len())));
    }
    for name in &names {
        check_name("traceNames", name)?;
    }
    let event = told.event_type.filter(|event| !event.is_empty()).unwrap_or_else(|| "info".to_owned());
    check_name("eventType", &event)?;
    check_name("consumerGroup", told.consumer_group.as_deref().unwrap_or_default())?;
    check_name("workerId", told.worker_id.as_deref().unwrap_or_default())?;
    Ok(NewTrace {
        partition,
        transaction_id: told.transaction_id,
        group: told.consumer_group,
        worker: told.worker_id,
        event,
        names,
        data: told.data.get().to_owned(),
    })
}

impl<'a> From<&'a Trace> for Entry<'a> {
    fn from(trace: &'a Trace) -> Self {
        Self {
            id: trace.id,
            event_type: &trace.event,
            data: raw(&trace.data),
            consumer_group: trace.group.as_deref(),
            worker_id: trace.worker.as_deref(),
            created_at: format_millis(trace.created_at),
            trace_names: &trace.names,
        }
    }
}

impl<'a> NamedEntry<'a> {
    fn new(named: &'a NamedTrace, payload: Option<&'a str>) -> Self {
        Self {
            trace: Entry::from(&named.trace),
            transaction_id: &named.transaction_id,
            partition_id: named.partition_id,
            queue_name: &named.queue,
            partition_name: &named.partition,
            message_payload: payload.map(raw),
        }
    }
}

impl<'a> From<&'a TraceName> for NameEntry<'a> {
    fn from(name: &'a TraceName) -> Self {
        Self {
            trace_name: &name.name,
            trace_count: name.traces,
            message_count: name.messages,
            last_seen: format_millis(name.last_seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01a1dee1-745d-7538-917b-da0024957600";

    #[test]
    fn one_name_several_or_none_and_data_is_required() {
        let body = |rest: &str| format!(r#"{{"transactionId":"t","partitionId":"{ID}"{rest}}}"#);
        for (names, count) in [("null", 0), ("\"a\"", 1), (r#"["b","a","b",""]"#, 2), ("[]", 0)] {
            let trace = read(body(&format!(r#","data":{{}},"traceNames":{names}"#)).as_bytes()).unwrap();
            assert_eq!((trace.names.len(), trace.event.as_str()), (count, "info"), "{names}");
        }
        assert_eq!(read(body(r#","data":null"#).as_bytes()).unwrap().data, "null");
        for bad in ["", r#","data":1,"traceNames":7"#, r#","data":1,"eventType":3"#] {
            assert!(read(body(bad).as_bytes()).is_err(), "{bad}");
        }
        assert!(read(br#"{"transactionId":"t","partitionId":"p","data":{}}"#).is_err());
        assert!(read(format!(r#"{{"partitionId":"{ID}","data":{{}}}}"#).as_bytes()).is_err());
    }
}
