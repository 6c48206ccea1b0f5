//! `GET /api/v1/pop…`: the routes that pop, which make the same request to the engine, and the one that ends the wait of a pop.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use queen_protocol::{BadRequest, ErrorCode, PopFilter, PopRequest, QUEUE_MODE, Subscription, check_name};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::{IntoResponses, ToSchema};
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Busy, ErrorBody, Failures, Missing};
use super::request::{Query, Segments};
use super::trace::TraceHeaders;
use crate::app::{App, Options};
use crate::auth::Caller;
use crate::auth::refusal::Refusal;
use crate::limits::Client;
use crate::openapi::{queries, words};
use crate::telemetry::{Operation, Span};
use crate::waits::Wait;

/// A longer `subscriptionMode` is not stored.
const MODE_CHARS_MAX: usize = 64;

/// More than a client can process within one lease.
pub const BATCH_MAX: u32 = 10_000;
/// Each claimed partition makes the lease id longer, and each message carries it.
pub const PARTITIONS_MAX: i64 = 100;
/// Proxies close a silent connection long before this.
pub const WAIT_MAX: Duration = Duration::from_secs(600);
/// A day, as for extensions: a longer lease blocks its partition if the consumer is lost.
pub const LEASE_SECONDS_MAX: i64 = 86_400;
/// With `autopilot`.
const AUTOPILOT_BATCH: u32 = 100;

#[derive(IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum Taken {
    /// Another pop with this `waitId` is in progress at this broker.
    #[response(status = 409)]
    Conflict(ErrorBody<'static>),
}

#[derive(Serialize, ToSchema)]
#[schema(as = EndedWait)]
struct Ended {
    /// False if this broker has no such wait: it was answered, is at another broker, or never arrived.
    ended: bool,
}

/// Takes messages from any partition of a queue.
///
/// The partition that was served longest ago goes first. The messages are leased to the consumer group until they are
/// acknowledged or the lease ends. A queue that does not exist is treated as empty; with `QUEEN_AUTO_CREATE=false` the response is
/// a 404.
#[utoipa::path(get, path = "/api/v1/pop/queue/{queue}", operation_id = "popQueue", tag = "messages",
    params(("queue" = String, Path), queries::PopQuery),
    responses(
        (status = 200, description = "At least one message", body = words::Popped),
        (status = 204, description = "Nothing to deliver, now or within the time to wait"),
        Taken, Missing, Failures, Busy))]
pub async fn queue(
    State(app): State<App>,
    caller: Caller,
    TraceHeaders(headers): TraceHeaders,
    Segments(queue): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    pop(&app, &caller, &headers, PopFilter::Queue { queue }, &query).await
}

/// Takes messages from the queue whose name is empty.
///
/// The empty name is a valid name, but not a path segment.
#[utoipa::path(get, path = "/api/v1/pop/queue/", operation_id = "popNamelessQueue", tag = "messages",
    params(queries::PopQuery),
    responses(
        (status = 200, description = "At least one message", body = words::Popped),
        (status = 204, description = "Nothing to deliver, now or within the time to wait"),
        Taken, Missing, Failures, Busy))]
pub async fn nameless_queue(
    State(app): State<App>,
    caller: Caller,
    TraceHeaders(headers): TraceHeaders,
    query: Query,
) -> Result<Response, ApiError> {
    pop(&app, &caller, &headers, PopFilter::Queue { queue: String::new() }, &query).await
}

/// Takes messages from one partition.
#[utoipa::path(get, path = "/api/v1/pop/queue/{queue}/partition/{partition}", operation_id = "popPartition",
    tag = "messages",
    params(("queue" = String, Path), ("partition" = String, Path), queries::PopQuery),
    responses(
        (status = 200, description = "At least one message", body = words::Popped),
        (status = 204, description = "Nothing to deliver, now or within the time to wait"),
        Taken, Missing, Failures, Busy))]
pub async fn partition(
    State(app): State<App>,
    caller: Caller,
    TraceHeaders(headers): TraceHeaders,
    Segments((queue, partition)): Segments<(String, String)>,
    query: Query,
) -> Result<Response, ApiError> {
    pop(&app, &caller, &headers, PopFilter::Partition { queue, partition }, &query).await
}

/// Takes messages from any queue with these labels.
///
/// Queues with a higher priority go first.
#[utoipa::path(get, path = "/api/v1/pop", operation_id = "popLabels", tag = "messages",
    params(queries::LabelQuery, queries::PopQuery),
    responses(
        (status = 200, description = "At least one message", body = words::Popped),
        (status = 204, description = "Nothing to deliver, now or within the time to wait"),
        Taken, Missing, Failures, Busy))]
pub async fn labels(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    query: Query,
) -> Result<Response, ApiError> {
    let label = |key| query.filled(key).map(str::to_owned);
    let (namespace, task) = (label("namespace"), label("task"));
    if namespace.is_none() && task.is_none() {
        return Err(BadRequest::new("a pop names a queue, a namespace or a task").into());
    }
    pop(&app, &caller, &headers, PopFilter::Labels { namespace, task }, &query).await
}

/// Ends the wait of a pop.
///
/// The pop with this `waitId` at this broker responds at once: with nothing, or with what it has just claimed. A pop with this id
/// that arrives later does not wait.
#[utoipa::path(delete, path = "/api/v1/pop/waits/{wait}", operation_id = "endWait", tag = "messages",
    params(("wait" = Uuid, Path)),
    responses((status = 200, description = "Whether there was such a wait", body = Ended), Failures))]
pub async fn end(
    State(app): State<App>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, ApiError> {
    let ended = app.waits.end(caller.subject, wait_id(&id)?);
    answer::json(StatusCode::OK, &Ended { ended })
}

async fn pop(
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    filter: PopFilter,
    query: &Query,
) -> Result<Response, ApiError> {
    let mut span = app.telemetry.span(Operation::Pop, headers);
    let answer = match begin(app, caller, filter, query) {
        Ok((request, named)) => {
            let wait = request.wait.unwrap_or_default();
            app.limits.within_wait(wait, take(app, caller, request, named.as_ref(), &mut span)).await
        }
        Err(error) => Err(error),
    };
    span.end(answer)
}

/// Nothing is awaited before the wait is registered, so that it can be ended at any time.
fn begin(
    app: &App,
    caller: &Caller,
    filter: PopFilter,
    query: &Query,
) -> Result<(PopRequest, Option<Wait>), ApiError> {
    let mut request = read(filter, query, &app.options)?;
    request.holder = Some(caller.into());
    // A wait must not outlast the credential that permits it.
    request.wait = request.wait.map(|wait| wait.min(caller.left()));
    let Some(id) = query.text("waitId") else { return Ok((request, None)) };
    match app.waits.begin(caller.subject.clone(), wait_id(id)?, caller.revoked()) {
        Some(wait) => Ok((request, Some(wait))),
        None => {
            Err(ApiError::new(ErrorCode::Conflict, format!("another pop with waitId {id} is in progress")))
        }
    }
}

async fn take(
    app: &App,
    caller: &Caller,
    mut request: PopRequest,
    named: Option<&Wait>,
    span: &mut Span,
) -> Result<Response, ApiError> {
    let client = Client::from(caller);
    // At the limit a pop still looks once without waiting, so that the consumer keeps working and takes no place.
    let place = request.wait.map(|_| app.limits.park(client.clone()));
    if let Some(None) = place {
        let refused = app.limits.too_many_parked();
        if !app.options.pop_overload_empty {
            return Err(refused);
        }
        request.wait = Some(Duration::ZERO);
    }
    let revoked = request.wait.and_then(|_| caller.revoked());
    let _waiting = revoked.and(app.options.guard.as_ref()).map(|guard| guard.wait());
    let ended = named.map(|wait| &wait.ended).or(revoked);
    let paced = app.limits.pace_pop(&client, request.wait);
    let paced = match ended {
        Some(ended) => ended.run_until_cancelled(paced).await,
        None => Some(paced.await),
    };
    request.wait = match paced {
        Some(Ok(wait)) => wait,
        None => return Ok(answer::nothing()),
        Some(Err(_)) if app.options.pop_overload_empty => return Ok(answer::nothing()),
        Some(Err(error)) => return Err(error),
    };
    span.group(&request.group);
    match app.engine.pop_until(request, ended).await {
        Ok(Some(found)) => {
            span.destination(std::iter::once(found.queue.as_ref()));
            span.partition(found.partition.as_deref());
            span.messages(found.messages);
            span.links(&found.traces);
            Ok(answer::written(StatusCode::OK, found.body))
        }
        Ok(None) if revoked.is_some_and(CancellationToken::is_cancelled) => Err(Refusal::ApiKey.into()),
        // A stopping broker delivers nothing. A 503 would end some consumers; a 204 lets them try another broker.
        Ok(None) => Ok(answer::nothing()),
        Err(error) if error.is_stopping() => Ok(answer::nothing()),
        Err(error) if error.code() == ErrorCode::RateLimited && app.options.pop_overload_empty => {
            Ok(answer::nothing())
        }
        Err(error) => Err(error.into()),
    }
}

pub fn read(filter: PopFilter, query: &Query, options: &Options) -> Result<PopRequest, BadRequest> {
    check_names(&filter)?;
    let group = query.group()?.unwrap_or(QUEUE_MODE);
    check_name("consumerGroup", group)?;
    let asked = Subscription::parse(
        query.text("subscriptionMode"),
        query.text("subscriptionFrom"),
        options.subscription,
    )?;
    // Anonymous consumers share one cursor, and it starts at the oldest message.
    let subscription = if group == QUEUE_MODE { Subscription::All } else { asked };
    let mode = mode_word(query);
    let partitions = match filter {
        PopFilter::Partition { .. } => 1,
        _ => query.number("partitions").unwrap_or(1).clamp(1, PARTITIONS_MAX),
    };
    Ok(PopRequest {
        group: group.to_owned(),
        batch: batch(query, options),
        partitions: u32::try_from(partitions).unwrap_or(1),
        auto_ack: query.flag("autoAck", false),
        wait: query.flag("wait", false).then(|| wait(query, options)),
        lease_seconds: lease_seconds(query),
        subscription,
        mode,
        brief: query.flag("brief", false),
        holder: None,
        filter,
    })
}

/// How the request asked for a start, if the word is short enough to be stored. A time is shown as such.
fn mode_word(query: &Query) -> Option<String> {
    let word = match query.filled("subscriptionFrom") {
        None => query.filled("subscriptionMode")?,
        Some("now") => "now",
        Some(_) => return None,
    };
    let kept = word.chars().count() <= MODE_CHARS_MAX && !word.contains(char::is_control);
    kept.then(|| word.to_owned())
}

fn wait_id(text: &str) -> Result<Uuid, BadRequest> {
    Uuid::try_parse(text).map_err(|_| BadRequest(format!("wait id {text:?} is not a UUID")))
}

fn check_names(filter: &PopFilter) -> Result<(), BadRequest> {
    match filter {
        PopFilter::Queue { queue } => check_name("queue", queue),
        PopFilter::Partition { queue, partition } => {
            check_name("queue", queue)?;
            check_name("partition", partition)
        }
        PopFilter::Labels { namespace, task } => {
            check_name("namespace", namespace.as_deref().unwrap_or_default())?;
            check_name("task", task.as_deref().unwrap_or_default())
        }
    }
}

fn batch(query: &Query, options: &Options) -> u32 {
    match query.number("batch") {
        Some(batch) => u32::try_from(batch.clamp(1, i64::from(BATCH_MAX))).unwrap_or(1),
        None if query.flag("autopilot", false) => AUTOPILOT_BATCH,
        None => options.pop_batch,
    }
}

fn wait(query: &Query, options: &Options) -> Duration {
    let asked = query.number("timeout").map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
    asked.unwrap_or(options.pop_timeout).min(WAIT_MAX)
}

fn lease_seconds(query: &Query) -> i32 {
    let seconds = query.number("leaseSeconds").unwrap_or(0).clamp(0, LEASE_SECONDS_MAX);
    i32::try_from(seconds).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Bounds;

    fn options() -> Options {
        Options {
            body_bytes_max: 1,
            pop_timeout: Duration::from_secs(30),
            pop_batch: 1,
            subscription: Subscription::All,
            drain: Duration::ZERO,
            operation_object: false,
            pop_overload_empty: true,
            otlp_endpoint: None,
            bounds: Bounds::default(),
            tls: None,
            guard: None,
            cors_origins: Vec::new(),
            host: String::new(),
            settings: [].into(),
        }
    }

    fn read_query(text: &str) -> Result<PopRequest, BadRequest> {
        read(PopFilter::Queue { queue: "q".to_owned() }, &Query::parse(text), &options())
    }

    #[test]
    fn silence_means_one_message_in_queue_mode_at_once() {
        let request = read_query("").unwrap();
        assert_eq!((request.batch, request.partitions, request.wait), (1, 1, None));
        assert_eq!((request.group.as_str(), request.auto_ack, request.lease_seconds), (QUEUE_MODE, false, 0));
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_nonsense_is_the_default() {
        for (text, batch) in [
            ("batch=0", 1),
            ("batch=-5", 1),
            ("batch=70000", 10_000),
            ("batch=many", 1),
            ("autopilot=true", 100),
        ] {
            assert_eq!(read_query(text).unwrap().batch, batch, "{text}");
        }
        assert_eq!(read_query("partitions=1000").unwrap().partitions, 100);
        assert_eq!(read_query("wait=true&timeout=99999999").unwrap().wait, Some(WAIT_MAX));
        assert_eq!(read_query("wait=true&timeout=x").unwrap().wait, Some(Duration::from_secs(30)));
        assert_eq!(read_query("wait=1&timeout=-1").unwrap().wait, Some(Duration::ZERO));
        assert_eq!(read_query("leaseSeconds=-1").unwrap().lease_seconds, 0);
    }

    #[test]
    fn a_named_group_may_start_anywhere_and_queue_mode_starts_at_the_oldest() {
        let subscription = |text| read_query(text).unwrap().subscription;
        assert_eq!(subscription("consumerGroup=g&subscriptionMode=new"), Subscription::New);
        assert_eq!(subscription("consumerGroup=&subscriptionMode=new"), Subscription::All);
        assert!(read_query("consumerGroup=g&subscriptionFrom=soon").is_err());
        assert!(read_query(&format!("consumerGroup={}", "g".repeat(256))).is_err());
        assert!(read_query("consumerGroup=a%00b").is_err());
    }

    #[test]
    fn a_named_partition_is_one_partition() {
        let filter = PopFilter::Partition { queue: "q".to_owned(), partition: "p".to_owned() };
        assert_eq!(read(filter, &Query::parse("partitions=5"), &options()).unwrap().partitions, 1);
    }
}
