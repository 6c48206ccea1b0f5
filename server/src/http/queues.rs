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
use crate::auth::Caller;
use crate::auth::grants::{Need, Right};
use crate::openapi::words;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "configured": true, "queueId": "5558382e-52bd-4a3b-93c5-41af0a04507e", "partitionId": null,
    "queue": "orders", "namespace": "orders", "task": "",
    "options": {"leaseTime": 60, "retryLimit": 3, "retryDelay": 1000, "ttl": 3600, "maxSize": 0,
        "priority": 0, "delayedProcessing": 0, "windowBuffer": 0, "deadLetterQueue": true,
        "dlqAfterMaxRetries": true, "retentionEnabled": false, "retentionSeconds": 0,
        "completedRetentionSeconds": 0, "maxWaitTimeSeconds": 0, "encryptionEnabled": false,
        "dedupWindowSeconds": 3600, "minPopWaitTime": 0, "namespace": "orders", "task": ""},
}))]
struct Configured<'a> {
    configured: bool,
    queue_id: Uuid,
    /// Always null: a partition comes into being with its first message.
    #[schema(required)]
    partition_id: Option<Uuid>,
    queue: &'a str,
    namespace: &'a str,
    task: &'a str,
    options: Options<'a>,
}

/// The labels are options too: clients may send them there and look for them there.
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
#[utoipa::path(post, path = "/api/v1/configure", operation_id = "configure", tag = "queues",
    request_body = words::Configure,
    responses(
        (status = 200, description = "The queue as it is now", body = Configured<'static>),
        (status = 409, description = "There are all the queues that there may be", body = super::error::ErrorBody<'static>),
        Failures, TooLarge))]
pub async fn configure(
    State(app): State<App>,
    caller: Caller,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    let configure = Configure::parse(&body.0)?;
    caller.may(Need::This(Right::Admin), &configure.queue)?;
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

/// Deletes a queue with all it holds.
///
/// Its messages, cursors, leases, dead letters and registrations go with it. One that does not exist is no
/// error.
#[utoipa::path(delete, path = "/api/v1/resources/queues/{queue}", operation_id = "deleteQueue", tag = "queues",
    params(("queue" = String, Path)),
    responses((status = 200, description = "Gone", body = Deleted<'static>), Failures))]
pub async fn delete(State(app): State<App>, Segments(queue): Segments<String>) -> Result<Response, ApiError> {
    check_name("queue", &queue)?;
    let existed = app.engine.delete_queue(&queue).await?;
    answer::json(StatusCode::OK, &Deleted { deleted: existed, queue: &queue, existed })
}

/// Deletes the queue whose name is empty.
///
/// The empty name is a name, but no path segment.
#[utoipa::path(delete, path = "/api/v1/resources/queues/", operation_id = "deleteNamelessQueue", tag = "queues",
    responses((status = 200, description = "Gone", body = Deleted<'static>), Failures))]
pub async fn delete_nameless(state: State<App>) -> Result<Response, ApiError> {
    delete(state, Segments(String::new())).await
}
