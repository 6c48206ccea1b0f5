//! What brokers know of each other, for operators and the dashboard, and a way to wake the pops of a queue.

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
    /// Always true; it cannot be switched off.
    enabled: bool,
    /// This broker receives the notifications of others.
    listening: bool,
    maintenance_mode: bool,
    pop_maintenance_mode: bool,
    /// The broker that answers.
    broker: Uuid,
    /// Seen in the last 30 seconds.
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
    /// Accepted, but ignored: all pops that wait for the queue look again.
    #[serde(default)]
    #[expect(dead_code, reason = "described, never read")]
    partition: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Notified, example = json!({"status": "ok"}))]
struct Notified {
    status: &'static str,
}

/// The brokers of this database, and how they notify each other.
///
/// Read from the database. While it is unreachable, the last known state.
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

/// The same as `/api/v1/system/shared-state`, for existing tools.
#[utoipa::path(get, path = "/internal/api/shared-state/stats", operation_id = "sharedStateStats", tag = "broker",
    responses((status = 200, description = "All brokers", body = SharedState)))]
pub async fn shared_state_stats(app: State<App>) -> Result<Response, ApiError> {
    shared_state(app).await
}

/// The same as `/api/v1/system/shared-state`, for existing tools.
#[utoipa::path(get, path = "/internal/api/inter-instance/stats", operation_id = "interInstanceStats", tag = "broker",
    responses((status = 200, description = "All brokers", body = SharedState)))]
pub async fn inter_instance_stats(app: State<App>) -> Result<Response, ApiError> {
    shared_state(app).await
}

/// Wakes all pops that wait for a queue.
///
/// Brokers do this themselves; it is meant for programs that write to the log directly.
#[utoipa::path(post, path = "/internal/api/notify", operation_id = "notify", tag = "broker", request_body = Notify,
    responses((status = 200, description = "The pops look again", body = Notified), Failures, TooLarge))]
pub async fn notify(State(app): State<App>, body: Body<SMALL>) -> Result<Response, ApiError> {
    let notify: Notify = read_object(&body.0).map_err(|BadRequest(error)| {
        BadRequest(format!("the body must be {{\"queue\": \"name\"}}: {error}"))
    })?;
    check_name("queue", &notify.queue)?;
    app.engine.notify(&notify.queue).await?;
    answer::json(StatusCode::OK, &Notified { status: "ok" })
}
