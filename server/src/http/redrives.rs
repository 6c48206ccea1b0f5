//! `/api/v1/dlq/redrive` and `/api/v1/dlq/redrives`: jobs that push dead letters again, and survive their broker.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{Redrive, RedriveAsk};
use queen_protocol::{
    BadRequest, ErrorCode, check_name, check_new_name, format_millis, parse_time, read_object,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::dead_letters::shape;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, Pagination, Query, SMALL, Segments};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::{Caller, forbidden};
use crate::openapi::queries;

const LIMIT_DEFAULT: i64 = 50;
const LIMIT_MAX: i64 = 1_000;

const PER_SECOND_DEFAULT: i64 = 100;
/// Twenty full steps of the job.
const PER_SECOND_MAX: i64 = 10_000;

/// Which dead letters. An absent filter matches all; unknown fields are refused.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = StartRedrive, example = json!({
    "queue": "orders", "consumerGroup": "billing", "error": "timeout", "perSecond": 50,
}))]
pub struct StartBody {
    #[schema(max_length = 255)]
    queue: String,
    #[schema(max_length = 255)]
    partition: Option<String>,
    #[serde(alias = "group")]
    #[schema(max_length = 255)]
    consumer_group: Option<String>,
    /// Failed at this time or later.
    #[schema(format = DateTime)]
    from: Option<String>,
    /// Failed at this time or earlier. Later failures than the start of the redrive never match.
    #[schema(format = DateTime)]
    to: Option<String>,
    /// Part of the error text; case does not matter.
    error: Option<String>,
    /// Shape of the error, as `/api/v1/dlq/shapes` returns it. An empty shape matches dead letters without an error.
    #[schema(max_length = 255)]
    shape: Option<String>,
    /// Queue to push to, into partitions with the same names. Absent: the queue itself.
    #[schema(max_length = 255)]
    target_queue: Option<String>,
    /// Messages per second.
    #[schema(minimum = 1, maximum = 10_000, default = 100)]
    per_second: Option<i64>,
    /// Only count the dead letters that match.
    #[schema(default = false)]
    dry_run: Option<bool>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RedriveCount)]
struct Counted {
    dry_run: bool,
    /// Dead letters that match.
    total: i64,
}

/// A redrive and its progress.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Redrive, example = json!({
    "id": "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01", "queue": "orders", "targetQueue": null, "partition": null,
    "consumerGroup": "billing", "from": null, "to": "2026-11-15T11:04:40.814Z", "errorFilter": "timeout",
    "shape": null, "perSecond": 50, "status": "running", "total": 1200, "done": 350, "failed": 0, "rate": 49.7,
    "createdAt": "2026-11-15T11:04:40.814Z", "startedAt": "2026-11-15T11:04:40.820Z", "finishedAt": null,
    "lastError": null,
}))]
struct Entry<'a> {
    id: Uuid,
    queue: &'a str,
    #[schema(required)]
    target_queue: Option<&'a str>,
    #[schema(required)]
    partition: Option<&'a str>,
    #[schema(required)]
    consumer_group: Option<&'a str>,
    #[schema(required, format = DateTime)]
    from: Option<String>,
    /// Later failures are not redriven.
    #[schema(format = DateTime)]
    to: String,
    #[schema(required)]
    error_filter: Option<&'a str>,
    #[schema(required)]
    shape: Option<&'a str>,
    per_second: i32,
    /// `running`, `completed` or `cancelled`.
    status: &'a str,
    /// Dead letters that matched when it began.
    total: i64,
    /// Dead letters that were pushed again.
    done: i64,
    /// Dead letters that could not be pushed, and remain.
    failed: i64,
    /// Dead letters per second.
    rate: f64,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(required, format = DateTime)]
    started_at: Option<String>,
    #[schema(required, format = DateTime)]
    finished_at: Option<String>,
    /// Error of the last one that could not be pushed.
    #[schema(required)]
    last_error: Option<&'a str>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Redrives)]
struct Listed<'a> {
    redrives: Vec<Entry<'a>>,
    pagination: Pagination,
}

#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "described, never built")]
pub enum NoRedrive {
    /// There is no such queue or redrive.
    #[response(status = 404)]
    NotFound(super::error::ErrorBody<'static>),
}

/// Pushes all dead letters that match again, or counts them.
///
/// Each message is pushed once, in the order of its partition and with a new transaction id, and its dead letters are removed
/// in the same transaction. A job does this at the requested pace; if its broker stops, another one continues exactly there.
/// Messages that fail again meanwhile are not redriven a second time. A target queue that does not exist is created, or refused
/// if `QUEEN_AUTO_CREATE` (404) or `QUEEN_MAX_QUEUES` (409) does not allow it.
#[utoipa::path(post, path = "/api/v1/dlq/redrive", operation_id = "startRedrive", tag = "messages", request_body = StartBody,
    responses((status = 200, description = "The number of dead letters that match (`dryRun`)", body = Counted),
        (status = 202, description = "Started", body = Entry<'static>),
        (status = 409, description = "The target queue does not exist, and the limit on queues (`QUEEN_MAX_QUEUES`) is reached", body = super::error::ErrorBody<'static>),
        NoRedrive, Failures, TooLarge))]
pub async fn start(State(app): State<App>, caller: Caller, body: Body<SMALL>) -> Result<Response, ApiError> {
    let wanted: StartBody = read_object(&body.0)?;
    let ask = wanted.ask()?;
    caller.may(Need::This(Right::Admin), &ask.queue)?;
    if let Some(target) = &ask.target_queue {
        caller.may(Need::This(Right::Push), target)?;
        // Consumers of the target will read these messages.
        caller.may(Need::This(Right::Read), &ask.queue)?;
    }
    if wanted.dry_run == Some(true) {
        let total = app.engine.count_redrive(&ask).await?.ok_or_else(no_queue)?;
        return answer::json(StatusCode::OK, &Counted { dry_run: true, total });
    }
    let redrive = app.engine.start_redrive(&ask).await?.ok_or_else(no_queue)?;
    answer::json(StatusCode::ACCEPTED, &Entry::from(&redrive))
}

/// Lists redrives, newest first.
#[utoipa::path(get, path = "/api/v1/dlq/redrives", operation_id = "listRedrives", tag = "messages",
    params(queries::LimitQuery),
    responses((status = 200, description = "A page", body = Listed<'static>), Failures))]
pub async fn list(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let pagination = query.page(LIMIT_DEFAULT, LIMIT_MAX);
    let redrives = app.engine.redrives(pagination.limit, pagination.offset).await?;
    let redrives = redrives.iter().map(Entry::from).collect();
    answer::json(StatusCode::OK, &Listed { redrives, pagination })
}

/// Shows the progress of a redrive.
#[utoipa::path(get, path = "/api/v1/dlq/redrives/{redrive}", operation_id = "getRedrive", tag = "messages",
    params(("redrive" = Uuid, Path)),
    responses((status = 200, description = "The redrive", body = Entry<'static>), NoRedrive, Failures))]
pub async fn one(
    State(app): State<App>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, ApiError> {
    check(&app, &caller, Need::Any, &id).await?;
    told(app.engine.redrive(redrive_id(&id)?).await?.as_ref())
}

/// Cancels a redrive. Messages that it has not pushed yet stay dead letters.
///
/// A redrive that has ended does not change.
#[utoipa::path(delete, path = "/api/v1/dlq/redrives/{redrive}", operation_id = "cancelRedrive", tag = "messages",
    params(("redrive" = Uuid, Path)),
    responses((status = 200, description = "The redrive after the call", body = Entry<'static>), NoRedrive, Failures))]
pub async fn cancel(
    State(app): State<App>,
    caller: Caller,
    Segments(id): Segments<String>,
) -> Result<Response, ApiError> {
    check(&app, &caller, Need::This(Right::Admin), &id).await?;
    told(app.engine.cancel_redrive(redrive_id(&id)?).await?.as_ref())
}

/// Checks both queues, because the response names them. The refusal does not.
async fn check(app: &App, caller: &Caller, need: Need, id: &str) -> Result<(), ApiError> {
    if caller.grants().is_none() {
        return Ok(());
    }
    let Some(redrive) = app.engine.redrive(redrive_id(id)?).await? else { return told(None).map(|_| ()) };
    let target = redrive.target_queue.as_deref().unwrap_or(&redrive.queue);
    match caller.can(need, &redrive.queue) && caller.can(Need::Any, target) {
        true => Ok(()),
        false if need == Need::Any => Err(forbidden("no right to see this redrive")),
        false => Err(forbidden("no right to cancel this redrive")),
    }
}

fn told(redrive: Option<&Redrive>) -> Result<Response, ApiError> {
    match redrive {
        Some(redrive) => answer::json(StatusCode::OK, &Entry::from(redrive)),
        None => Err(ApiError::new(ErrorCode::NotFound, "Redrive not found")),
    }
}

fn redrive_id(text: &str) -> Result<Uuid, BadRequest> {
    Uuid::try_parse(text).map_err(|_| BadRequest(format!("redrive id {text:?} is not a UUID")))
}

fn no_queue() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "Queue not found")
}

impl StartBody {
    pub fn ask(&self) -> Result<RedriveAsk, BadRequest> {
        let filled = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let (partition, group) = (filled(&self.partition), filled(&self.consumer_group));
        let (target_queue, error) = (filled(&self.target_queue), filled(&self.error));
        check_name("queue", &self.queue)?;
        for (what, name) in [("partition", &partition), ("consumerGroup", &group), ("error", &error)] {
            check_name(what, name.as_deref().unwrap_or_default())?;
        }
        check_new_name("targetQueue", target_queue.as_deref().unwrap_or_default())?;
        let per_second = self.per_second.unwrap_or(PER_SECOND_DEFAULT);
        if !(1..=PER_SECOND_MAX).contains(&per_second) {
            return Err(BadRequest(format!(
                "`perSecond` is {per_second}; it must be from 1 to {PER_SECOND_MAX}"
            )));
        }
        let time =
            |what, value: &Option<String>| filled(value).map(|time| parse_time(what, &time)).transpose();
        Ok(RedriveAsk {
            queue: self.queue.clone(),
            target_queue,
            partition,
            group,
            from: time("from", &self.from)?,
            to: time("to", &self.to)?,
            error,
            shape: shape(self.shape.as_deref())?,
            per_second: per_second as i32,
        })
    }
}

impl<'a> From<&'a Redrive> for Entry<'a> {
    fn from(redrive: &'a Redrive) -> Self {
        Self {
            id: redrive.id,
            queue: &redrive.queue,
            target_queue: redrive.target_queue.as_deref(),
            partition: redrive.partition.as_deref(),
            consumer_group: redrive.group.as_deref(),
            from: redrive.from.map(format_millis),
            to: format_millis(redrive.to),
            error_filter: redrive.error_filter.as_deref(),
            shape: redrive.shape.as_deref(),
            per_second: redrive.per_second,
            status: &redrive.status,
            total: redrive.total,
            done: redrive.done,
            failed: redrive.failed,
            rate: redrive.rate,
            created_at: format_millis(redrive.created_at),
            started_at: redrive.started_at.map(format_millis),
            finished_at: redrive.finished_at.map(format_millis),
            last_error: redrive.error.as_deref(),
        }
    }
}
