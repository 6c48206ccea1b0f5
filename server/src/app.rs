//! What every handler sees, and the whole URL space on one screen. It handles nothing itself.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{delete, get, post};
use queen_engine::Engine;
use queen_protocol::Subscription;
use tower_http::catch_panic::CatchPanicLayer;

use crate::http::{ack, cors, dead_letters, error, groups, health, pop, push, queues, renew, transaction};

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
}

#[derive(Clone)]
pub struct App {
    pub engine: Engine,
    pub options: Arc<Options>,
    /// `host:port`, for people who run several.
    pub name: Arc<str>,
}

pub fn router(app: App) -> Router {
    Router::new()
        .route("/api/v1/push", post(push::push))
        .route("/api/v1/pop", get(pop::labels).head(error::no_such_method))
        .route("/api/v1/pop/queue/", get(pop::nameless_queue).head(error::no_such_method))
        .route("/api/v1/pop/queue/{queue}", get(pop::queue).head(error::no_such_method))
        .route(
            "/api/v1/pop/queue/{queue}/partition/{partition}",
            get(pop::partition).head(error::no_such_method),
        )
        .route("/api/v1/ack", post(ack::one))
        .route("/api/v1/ack/batch", post(ack::batch))
        .route("/api/v1/transaction", post(transaction::transaction))
        .route("/api/v1/lease/{lease}/extend", post(renew::renew))
        .route("/api/v1/configure", post(queues::configure))
        .route("/api/v1/resources/queues/", delete(queues::delete_nameless))
        .route("/api/v1/resources/queues/{queue}", delete(queues::delete))
        .route("/api/v1/dlq", get(dead_letters::list))
        .route("/api/v1/consumer-groups/{group}", delete(groups::delete))
        .route("/api/v1/consumer-groups/{group}/subscription", post(groups::subscription))
        .route("/api/v1/consumer-groups/{group}/queues/{queue}", delete(groups::delete_from_queue))
        .route("/api/v1/consumer-groups/{group}/queues/{queue}/seek", post(groups::seek))
        .route("/health", get(health::health))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(from_fn(cors::cors))
        .with_state(app)
}
