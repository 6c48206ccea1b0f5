//! What every handler sees, and the whole URL space on one screen. It handles nothing itself.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{MethodRouter, delete, get, post};
use queen_engine::Engine;
use queen_protocol::Subscription;
use tower_http::catch_panic::CatchPanicLayer;

use crate::http::{
    ack, analytics, cluster, cors, dead_letters, error, groups, health, maintenance, metrics, openapi,
    operations, pop, push, queue_history, queues, renew, transaction,
};

/// What the HTTP side is told when it starts.
#[derive(Debug, Clone)]
pub struct Options {
    pub body_bytes_max: usize,
    /// Used when a pop does not say.
    pub pop_timeout: Duration,
    pub pop_batch: u32,
    pub subscription: Subscription,
    /// How long requests in flight may take to finish once a stop was asked for.
    pub drain: Duration,
    /// A 202 is one object for the whole request, also for those who did not ask for it.
    pub operation_object: bool,
    /// A pop that finds no room is told that there is nothing.
    pub pop_overload_empty: bool,
}

#[derive(Clone)]
pub struct App {
    pub engine: Engine,
    pub options: Arc<Options>,
    /// `host:port`, for people who run several.
    pub name: Arc<str>,
}

/// Every route, once. `openapi.rs` describes each of them; a test compares the two.
pub fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/api/v1/push", post(push::push)),
        ("/api/v1/pop", get(pop::labels).head(error::no_such_method)),
        ("/api/v1/pop/queue/", get(pop::nameless_queue).head(error::no_such_method)),
        ("/api/v1/pop/queue/{queue}", get(pop::queue).head(error::no_such_method)),
        ("/api/v1/pop/queue/{queue}/partition/{partition}", get(pop::partition).head(error::no_such_method)),
        ("/api/v1/ack", post(ack::one)),
        ("/api/v1/ack/batch", post(ack::batch)),
        ("/api/v1/transaction", post(transaction::transaction)),
        ("/api/v1/lease/{lease}/extend", post(renew::renew)),
        ("/api/v1/operations", get(operations::list)),
        ("/api/v1/operations/stats", get(operations::stats)),
        ("/api/v1/operations/{operation}", get(operations::one).delete(operations::cancel)),
        ("/api/v1/operations/{operation}/retry", post(operations::retry)),
        ("/api/v1/configure", post(queues::configure)),
        ("/api/v1/resources/queues/", delete(queues::delete_nameless)),
        ("/api/v1/resources/queues/{queue}", delete(queues::delete)),
        ("/api/v1/dlq", get(dead_letters::list)),
        ("/api/v1/consumer-groups/{group}", delete(groups::delete)),
        ("/api/v1/consumer-groups/{group}/subscription", post(groups::subscription)),
        ("/api/v1/consumer-groups/{group}/queues/{queue}", delete(groups::delete_from_queue)),
        ("/api/v1/consumer-groups/{group}/queues/{queue}/seek", post(groups::seek)),
        ("/api/v1/system/maintenance", get(maintenance::push).post(maintenance::set_push)),
        ("/api/v1/system/maintenance/pop", get(maintenance::pop).post(maintenance::set_pop)),
        ("/api/v1/system/shared-state", get(cluster::shared_state)),
        ("/internal/api/shared-state/stats", get(cluster::shared_state_stats)),
        ("/internal/api/inter-instance/stats", get(cluster::inter_instance_stats)),
        ("/internal/api/notify", post(cluster::notify)),
        ("/api/v1/analytics/system-metrics", get(analytics::system_metrics)),
        ("/api/v1/analytics/worker-metrics", get(analytics::worker_metrics)),
        ("/api/v1/analytics/queue-lag", get(queue_history::lag)),
        ("/api/v1/analytics/queue-ops", get(queue_history::ops)),
        ("/api/v1/analytics/queue-parked-replicas", get(queue_history::parked)),
        ("/api/v1/analytics/retention", get(analytics::retention)),
        ("/api/v1/analytics/postgres-stats", get(analytics::postgres)),
        ("/api/v1/status/analytics", get(analytics::ingested)),
        ("/api/v1/status/buffers", get(analytics::buffers)),
        ("/health", get(health::health)),
        ("/health/live", get(health::live)),
        ("/health/ready", get(health::ready)),
        ("/metrics/prometheus", get(metrics::prometheus)),
        ("/openapi.json", get(openapi::openapi)),
    ]
}

pub fn router(app: App) -> Router {
    let routed =
        routes().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    routed
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn(cors::cors))
        .with_state(app)
}
