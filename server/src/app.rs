//! What every handler sees, and the whole URL space on one screen. It handles nothing itself.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use queen_engine::Engine;
use queen_protocol::Subscription;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::auth::audit::{Audit, Witness, witnessed};
use crate::auth::guard::{Checkpoint, Guard, admitted};
use crate::auth::marks;
use crate::config::Setting;
use crate::dashboard;
use crate::http::origins::Origin;
use crate::http::{
    ack, analytics, cluster, dead_letters, doctor, error, groups, health, life, maintenance, messages,
    metrics, openapi, operations, pop, push, queue_history, queues, redrives, renew, resources, seeks,
    settings, statistics, status, traces, transaction, whoami,
};
use crate::limits::{Bounds, Limits, pace, reads};
use crate::meter::Meter;
use crate::telemetry::Telemetry;
use crate::tls::Door;
use crate::waits::Waits;

/// Where the page is that `page` makes.
pub const PAGE: &str = "/docs";
/// Nothing from elsewhere, in no frame. The page brings styles and small images of its own inline.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

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
    /// Where spans go.
    pub otlp_endpoint: Option<String>,
    pub bounds: Bounds,
    /// `None`: connections are not encrypted.
    pub tls: Option<Arc<Door>>,
    /// Who lets callers in; without one everybody may do everything.
    pub guard: Option<Arc<Guard>>,
    /// Origins of web pages that may call, beside the broker's own; they matter without access control.
    pub cors_origins: Vec<Origin>,
    /// What `HOST` says.
    pub host: String,
    /// All of them, for people; secrets are masked.
    pub settings: Arc<[Setting]>,
}

/// Clones share it.
#[derive(Clone)]
pub struct App(pub Arc<Parts>);

pub struct Parts {
    pub engine: Engine,
    pub options: Options,
    /// `host:port`, for people who run several.
    pub name: Arc<str>,
    pub meter: Arc<Meter>,
    pub limits: Arc<Limits>,
    pub telemetry: Telemetry,
    pub waits: Arc<Waits>,
    pub audit: Arc<Audit>,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// Every route, once. `auth/marks.rs` says who may use it, and `openapi.rs` describes each of them; tests compare the three.
pub fn routes() -> Vec<(&'static str, MethodRouter<App>)> {
    vec![
        ("/api/v1/push", post(push::push)),
        ("/api/v1/pop", get(pop::labels).head(error::no_such_method)),
        ("/api/v1/pop/queue/", get(pop::nameless_queue).head(error::no_such_method)),
        ("/api/v1/pop/queue/{queue}", get(pop::queue).head(error::no_such_method)),
        ("/api/v1/pop/queue/{queue}/partition/{partition}", get(pop::partition).head(error::no_such_method)),
        ("/api/v1/pop/waits/{wait}", delete(pop::end)),
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
        ("/api/v1/resources/queues", get(resources::queues)),
        ("/api/v1/resources/queues/{queue}", get(resources::queue).delete(queues::delete)),
        ("/api/v1/resources/queues/{queue}/depth", get(resources::depth)),
        ("/api/v1/resources/partitions", get(resources::partitions)),
        ("/api/v1/resources/namespaces", get(resources::namespaces)),
        ("/api/v1/resources/tasks", get(resources::tasks)),
        ("/api/v1/resources/overview", get(resources::overview)),
        ("/api/v1/queues/{queue}/clear", delete(resources::clear)),
        ("/api/v1/stats/refresh", post(statistics::refresh)),
        ("/api/v1/consumer-groups", get(groups::list)),
        ("/api/v1/consumer-groups/lagging", get(groups::lagging)),
        ("/api/v1/consumer-groups/{group}", get(groups::detail).delete(groups::delete)),
        ("/api/v1/messages/{partition}/{transaction}/life", get(life::life)),
        ("/api/v1/messages", get(messages::list)),
        ("/api/v1/messages/{partition}/{transaction}", get(messages::one).delete(messages::delete)),
        ("/api/v1/messages/{partition}/{transaction}/retry", post(messages::retry)),
        ("/api/v1/messages/{partition}/{transaction}/dlq", post(messages::bury)),
        ("/api/v1/status/queues/{queue}/messages", get(messages::of_queue)),
        ("/api/v1/dlq", get(dead_letters::list).delete(dead_letters::purge)),
        ("/api/v1/dlq/shapes", get(dead_letters::shapes)),
        ("/api/v1/dlq/redrive", post(redrives::start)),
        ("/api/v1/dlq/redrives", get(redrives::list)),
        ("/api/v1/dlq/redrives/{redrive}", get(redrives::one).delete(redrives::cancel)),
        ("/api/v1/traces", post(traces::add)),
        ("/api/v1/traces/names", get(traces::names)),
        ("/api/v1/traces/by-name/{name}", get(traces::by_name)),
        ("/api/v1/traces/{partition}/{transaction}", get(traces::of_message)),
        ("/api/v1/consumer-groups/{group}/subscription", post(groups::subscription)),
        ("/api/v1/consumer-groups/{group}/queues/{queue}", delete(groups::delete_from_queue)),
        ("/api/v1/consumer-groups/{group}/queues/{queue}/seek", post(seeks::in_queue)),
        (
            "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
            post(seeks::in_partition),
        ),
        ("/api/v1/system/maintenance", get(maintenance::push).post(maintenance::set_push)),
        ("/api/v1/system/maintenance/pop", get(maintenance::pop).post(maintenance::set_pop)),
        ("/api/v1/whoami", get(whoami::whoami)),
        ("/api/v1/system/settings", get(settings::settings)),
        ("/api/v1/system/doctor", get(doctor::doctor)),
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
        ("/api/v1/status", get(status::status)),
        ("/api/v1/status/queues", get(status::queues)),
        ("/api/v1/status/queues/{queue}", get(status::queue)),
        ("/api/v1/status/analytics", get(analytics::ingested)),
        ("/api/v1/status/buffers", get(analytics::buffers)),
        ("/health", get(health::health)),
        ("/health/live", get(health::live)),
        ("/health/ready", get(health::ready)),
        ("/metrics", get(metrics::json)),
        ("/metrics/prometheus", get(metrics::prometheus)),
        ("/openapi.json", get(openapi::openapi)),
    ]
}

pub fn router(app: App) -> Router {
    let routed = match app.options.guard.clone() {
        Some(guard) => guarded(&app, &guard),
        None => {
            let routed = routes()
                .into_iter()
                .fold(Router::new(), |router, (path, methods)| {
                    router.route(path, witness(&app, path, reads::bounded(&app, path, methods)))
                })
                .merge(page())
                .merge(dashboard::router())
                .fallback(error::no_such_route)
                .method_not_allowed_fallback(error::no_such_method);
            paced(&app, routed)
        }
    };
    routed.layer(CatchPanicLayer::custom(error::panicked)).with_state(app)
}

/// The same with a check before each of them, which is told which route it is: nobody has to find that out a second time,
/// and perhaps differently.
fn guarded(app: &App, guard: &Arc<Guard>) -> Router<App> {
    let check = |router: Router<App>, route: Option<&'static str>| {
        let checkpoint = Checkpoint { app: app.clone(), guard: guard.clone(), route };
        // A rate is somebody's, so it counts behind the check.
        paced(app, router.method_not_allowed_fallback(error::no_such_method))
            .layer(from_fn_with_state(checkpoint, admitted))
    };
    let elsewhere = check(Router::new().fallback(error::no_such_route), None);
    routes()
        .into_iter()
        .fold(elsewhere, |all, (path, methods)| {
            let methods = reads::bounded(app, path, methods);
            all.merge(check(Router::new().route(path, methods), Some(path)))
        })
        .merge(check(page(), Some(PAGE)))
        .merge(check(dashboard::router(), Some(dashboard::PATHS[0])))
}

/// Acts are logged, whoever may do them.
fn witness(app: &App, route: &'static str, methods: MethodRouter<App>) -> MethodRouter<App> {
    match marks::has_acts(route) {
        true => methods.layer(from_fn_with_state(Witness { app: app.clone(), route }, witnessed)),
        false => methods,
    }
}

fn paced(app: &App, router: Router<App>) -> Router<App> {
    match app.limits.paces_clients() {
        true => router.layer(from_fn_with_state(app.clone(), pace::pace)),
        false => router,
    }
}

/// A page to try the routes, which needs nothing from anywhere else.
fn page() -> Router<App> {
    let page = SwaggerUi::new(PAGE).config(Config::from("/openapi.json").try_it_out_enabled(true));
    Router::from(page).layer(map_response(with_policy))
}

async fn with_policy(mut response: Response) -> Response {
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
    response
}
