//! `POST /api/v1/configure` and `DELETE /api/v1/resources/queues/:queue`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::{Configure, QueueOptions, check_name};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, SMALL, Segments};
use crate::app::App;
use crate::auth::grants::{Need, Right};
use crate::auth::refusal::Denied;
use crate::auth::{Caller, Labels};
use crate::openapi::words;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "configured": true, "queueId": "5558382e-52bd-4a3b-93c5-41af0a04507e", "partitionId": null,
    "queue": "orders", "namespace": "orders", "task": "",
    "options": Options { options: &QueueOptions { lease_time: 60, ..QueueOptions::default() }, namespace: "orders", task: "" },
}))]
struct Configured<'a> {
    configured: bool,
    queue_id: Uuid,
    /// Always null: a partition is created by its first message.
    #[schema(required)]
    partition_id: Option<Uuid>,
    queue: &'a str,
    namespace: &'a str,
    task: &'a str,
    options: Options<'a>,
}

/// Clients may also send and read the labels as options.
#[derive(Serialize, ToSchema)]
#[schema(as = OptionsInForce)]
pub struct Options<'a> {
    #[serde(flatten)]
    #[schema(value_type = words::QueueOptions)]
    pub options: &'a QueueOptions,
    pub namespace: &'a str,
    pub task: &'a str,
}

#[derive(Serialize, ToSchema)]
#[schema(as = QueueDeleted, example = json!({"deleted": true, "queue": "orders", "existed": true}))]
struct Deleted<'a> {
    deleted: bool,
    queue: &'a str,
    existed: bool,
}

/// Creates a queue or changes its options.
///
/// Changes that delete stored messages earlier, or drop dead letters, require the role `admin`. Callers with grants need the right
/// `admin` for every change.
#[utoipa::path(post, path = "/api/v1/configure", operation_id = "configure", tag = "queues",
    request_body = words::Configure,
    responses(
        (status = 200, description = "The queue after the call", body = Configured<'static>),
        (status = 409, description = "The limit on queues (`QUEEN_MAX_QUEUES`) is reached, or the queue asks for encryption and the broker has no key", body = super::error::ErrorBody<'static>),
        Failures, TooLarge))]
pub async fn configure(
    State(app): State<App>,
    caller: Caller,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    let configure = Configure::parse(&body.0)?;
    check(&app, &caller, &configure).await?;
    let stored = app.engine.configure(&configure).await?;
    let (namespace, task) = (stored.namespace.as_str(), stored.task.as_str());
    let answer = Configured {
        configured: true,
        queue_id: stored.queue_id,
        partition_id: None,
        queue: &stored.queue,
        namespace,
        task,
        options: Options { options: &stored.options, namespace, task },
    };
    answer::json(StatusCode::OK, &answer)
}

async fn check(app: &App, caller: &Caller, configure: &Configure) -> Result<(), ApiError> {
    let (need, queue) = (Need::This(Right::Admin), configure.queue.as_str());
    caller.may(need, queue)?;
    let (namespace, task) = (configure.namespace.as_deref(), configure.task.as_deref());
    let labels = [Labels { queue, namespace, task }];
    caller.may_label(&app.engine, need, &labels).await?;
    if caller.administers() {
        return Ok(());
    }
    // A queue that is being created at this moment is empty.
    let Some(before) = app.engine.named_options(queue).await? else { return Ok(()) };
    let mut after = if configure.replace { QueueOptions::default() } else { before.clone() };
    after.merge(&configure.changes)?;
    match shortened(&before, &after) {
        None => Ok(()),
        Some(option) => Err(ApiError::denied(
            Denied::Role,
            format!(
                "{option} of queue {queue:?} would delete messages that it keeps now; this requires the role admin"
            ),
        )),
    }
}

/// The option whose change makes the queue keep less.
fn shortened(before: &QueueOptions, after: &QueueOptions) -> Option<&'static str> {
    let mut both = kept(before).into_iter().zip(kept(after));
    both.find(|((_, before), (_, after))| after < before).map(|((option, _), _)| option)
}

/// How many seconds each option keeps messages.
fn kept(options: &QueueOptions) -> [(&'static str, i32); 4] {
    let unless_zero = |seconds: i32| if seconds == 0 { i32::MAX } else { seconds };
    let retained = |seconds: i32| if options.retention_enabled { unless_zero(seconds) } else { i32::MAX };
    let letters = options.dead_letter_queue || options.dlq_after_max_retries;
    [
        ("retentionSeconds", retained(options.retention_seconds)),
        ("completedRetentionSeconds", retained(options.completed_retention_seconds)),
        ("maxWaitTimeSeconds", unless_zero(options.max_wait_time_seconds)),
        ("deadLetterQueue", if letters { i32::MAX } else { 0 }),
    ]
}

/// Deletes a queue and everything in it.
///
/// Its messages, cursors, leases, dead letters and registrations are deleted as well. It is not an error if the queue does not
/// exist.
#[utoipa::path(delete, path = "/api/v1/resources/queues/{queue}", operation_id = "deleteQueue", tag = "queues",
    params(("queue" = String, Path)),
    responses((status = 200, description = "Deleted", body = Deleted<'static>), Failures))]
pub async fn delete(State(app): State<App>, Segments(queue): Segments<String>) -> Result<Response, ApiError> {
    check_name("queue", &queue)?;
    let existed = app.engine.delete_queue(&queue).await?;
    answer::json(StatusCode::OK, &Deleted { deleted: existed, queue: &queue, existed })
}

/// Deletes the queue whose name is empty.
///
/// The empty name is a valid name, but not a path segment.
#[utoipa::path(delete, path = "/api/v1/resources/queues/", operation_id = "deleteNamelessQueue", tag = "queues",
    responses((status = 200, description = "Deleted", body = Deleted<'static>), Failures))]
pub async fn delete_nameless(state: State<App>) -> Result<Response, ApiError> {
    delete(state, Segments(String::new())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_less_is_told_from_what_keeps_more_or_the_same() {
        let options = |text: &str| {
            let mut options = QueueOptions::default();
            options.merge(&serde_json::from_str(text).unwrap()).unwrap();
            options
        };
        let day = r#"{"retentionEnabled": true, "retentionSeconds": 86400}"#;
        for (before, after, found) in [
            ("{}", r#"{"retentionSeconds": 1, "ttl": 1, "maxSize": 1, "retryLimit": 0}"#, None),
            ("{}", day, Some("retentionSeconds")),
            (day, "{}", None),
            (day, day, None),
            (day, r#"{"retentionEnabled": true, "retentionSeconds": 90000}"#, None),
            (day, r#"{"retentionEnabled": true, "retentionSeconds": 10}"#, Some("retentionSeconds")),
            (
                day,
                r#"{"retentionEnabled": true, "completedRetentionSeconds": 10}"#,
                Some("completedRetentionSeconds"),
            ),
            (
                r#"{"retentionSeconds": 10}"#,
                r#"{"retentionSeconds": 10, "retentionEnabled": true}"#,
                Some("retentionSeconds"),
            ),
            ("{}", r#"{"maxWaitTimeSeconds": 10}"#, Some("maxWaitTimeSeconds")),
            (r#"{"maxWaitTimeSeconds": 10}"#, r#"{"maxWaitTimeSeconds": 0}"#, None),
            ("{}", r#"{"deadLetterQueue": false}"#, None),
            ("{}", r#"{"deadLetterQueue": false, "dlqAfterMaxRetries": false}"#, Some("deadLetterQueue")),
        ] {
            assert_eq!(shortened(&options(before), &options(after)), found, "{before} -> {after}");
        }
    }
}
