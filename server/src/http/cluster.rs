//! How brokers know of each other, for operators and the dashboard, and a way to tell one that there is something to do.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_protocol::{BadRequest, check_name, format_millis, read_object};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, SMALL};
use crate::app::App;

/// Brokers share everything through their database, and wake each other with its notifications.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "enabled": true, "listening": true, "maintenance_mode": false, "pop_maintenance_mode": false,
    "broker": "5f0c1f0e-9a3c-4f7b-8a52-7d1c52a3f001", "brokers": [{
        "id": "5f0c1f0e-9a3c-4f7b-8a52-7d1c52a3f001", "hostname": "vm", "port": 6632, "worker_id": "vm:6632",
        "version": "0.1.0", "started_at": "2026-01-01T00:00:00.000Z", "seen_at": "2026-01-01T10:00:00.000Z",
    }],
}))]
struct SharedState {
    /// Always: it cannot be switched off.
    enabled: bool,
    /// This broker hears the others.
    listening: bool,
    maintenance_mode: bool,
    pop_maintenance_mode: bool,
    /// The one that answers.
    broker: Uuid,
    /// Heard of in the last half minute.
    brokers: Vec<Peer>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Broker)]
struct Peer {
    id: Uuid,
    hostname: String,
    port: i32,
    worker_id: String,
    version: String,
    #[schema(format = DateTime)]
    started_at: String,
    #[schema(format = DateTime)]
    seen_at: String,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = Notification, example = json!({"queue": "orders"}))]
struct Notify {
    #[schema(max_length = 255)]
    queue: String,
    /// Taken, but everybody who waits for the queue looks again.
    #[serde(default)]
    #[expect(dead_code, reason = "described, never read")]
    partition: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Notified, example = json!({"status": "ok"}))]
struct Notified {
    status: &'static str,
}

/// What brokers know of each other.
///
/// As the database has it, or, while that is away, as this broker last knew it.
#[utoipa::path(get, path = "/api/v1/system/shared-state", operation_id = "sharedState", tag = "broker",
    responses((status = 200, description = "All brokers", body = SharedState)))]
pub async fn shared_state(State(app): State<App>) -> Result<Response, ApiError> {
    let (cluster, maintenance) = (app.engine.cluster_state().await, app.engine.maintenance());
    let peer = |broker: queen_engine::Broker| Peer {
        id: broker.id,
        hostname: broker.hostname,
        port: broker.port,
        worker_id: broker.worker_id,
        version: broker.version,
        started_at: format_millis(broker.started_at),
        seen_at: format_millis(broker.seen_at),
    };
    let body = SharedState {
        enabled: true,
        listening: cluster.listening,
        maintenance_mode: maintenance.push,
        pop_maintenance_mode: maintenance.pop,
        broker: cluster.broker.id,
        brokers: cluster.brokers.into_iter().map(peer).collect(),
    };
    answer::json(StatusCode::OK, &body)
}

/// What brokers know of each other, where older tools look for it.
#[utoipa::path(get, path = "/internal/api/shared-state/stats", operation_id = "sharedStateStats", tag = "broker",
    responses((status = 200, description = "All brokers", body = SharedState)))]
pub async fn shared_state_stats(app: State<App>) -> Result<Response, ApiError> {
    shared_state(app).await
}

/// What brokers know of each other, where older tools look for it.
#[utoipa::path(get, path = "/internal/api/inter-instance/stats", operation_id = "interInstanceStats", tag = "broker",
    responses((status = 200, description = "All brokers", body = SharedState)))]
pub async fn inter_instance_stats(app: State<App>) -> Result<Response, ApiError> {
    shared_state(app).await
}

/// Lets all pops that wait for a queue look again.
///
/// Brokers do so by themselves; this is for those who write to the log in other ways.
#[utoipa::path(post, path = "/internal/api/notify", operation_id = "notify", tag = "broker", request_body = Notify,
    responses((status = 200, description = "They look", body = Notified), Failures, TooLarge))]
pub async fn notify(State(app): State<App>, body: Body<SMALL>) -> Result<Response, ApiError> {
    let notify: Notify = read_object(&body.0)
        .map_err(|BadRequest(error)| BadRequest(format!("the body is {{\"queue\": \"name\"}}: {error}")))?;
    check_name("queue", &notify.queue)?;
    app.engine.notify(&notify.queue).await?;
    answer::json(StatusCode::OK, &Notified { status: "ok" })
}
