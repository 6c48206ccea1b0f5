//! `POST /api/v1/configure` and `DELETE /api/v1/resources/queues/:queue`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::{Configure, QueueOptions, check_name};
use serde::Serialize;
use uuid::Uuid;

use super::answer;
use super::error::ApiError;
use super::request::{Body, Segments};
use crate::app::App;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Configured<'a> {
    configured: bool,
    queue_id: Uuid,
    /// A partition comes into being with its first message.
    partition_id: Option<Uuid>,
    queue: &'a str,
    namespace: &'a str,
    task: &'a str,
    options: Options<'a>,
}

/// The labels are options too: clients may send them there and look for them there.
#[derive(Serialize)]
struct Options<'a> {
    #[serde(flatten)]
    options: &'a QueueOptions,
    namespace: &'a str,
    task: &'a str,
}

#[derive(Serialize)]
struct Deleted<'a> {
    deleted: bool,
    queue: &'a str,
    existed: bool,
}

pub async fn configure(State(app): State<App>, body: Body) -> Result<Response, ApiError> {
    let configure = Configure::parse(&body.0)?;
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

pub async fn delete(State(app): State<App>, Segments(queue): Segments<String>) -> Result<Response, ApiError> {
    check_name("queue", &queue)?;
    let existed = app.engine.delete_queue(&queue).await?;
    answer::json(StatusCode::OK, &Deleted { deleted: existed, queue: &queue, existed })
}

/// The empty name is a name, but no path segment.
pub async fn delete_nameless(state: State<App>) -> Result<Response, ApiError> {
    delete(state, Segments(String::new())).await
}
