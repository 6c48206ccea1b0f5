//! What every handler sees, and the router: the table of `routes.rs`, the dashboard and the page at `/docs`, with the layers in
//! front of them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_SECURITY_POLICY;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::MethodRouter;
use queen_engine::Engine;
use queen_protocol::Subscription;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_swagger_ui::{Config, SwaggerUi};

use crate::auth::audit::{Audit, Witness, witnessed};
use crate::auth::guard::{Checkpoint, Guard, admitted};
use crate::config::Setting;
use crate::dashboard;
use crate::http::error;
use crate::http::origins::Origin;
use crate::limits::{Bounds, Limits, pace, reads};
use crate::meter::Meter;
use crate::routes;
use crate::telemetry::Telemetry;
use crate::tls::Door;
use crate::waits::Waits;

/// Path of the page to try the API.
pub const PAGE: &str = "/docs";
/// No content from elsewhere, and not in a frame. The page has inline styles and small inline images.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// The options of the HTTP side.
#[derive(Debug, Clone)]
pub struct Options {
    pub body_bytes_max: usize,
    /// For pops that have no `timeout`.
    pub pop_timeout: Duration,
    pub pop_batch: u32,
    pub subscription: Subscription,
    /// How long to wait for requests in progress on shutdown.
    pub drain: Duration,
    /// A 202 is one object for the whole request by default.
    pub operation_object: bool,
    /// A pop that is refused because too many wait gets a 204.
    pub pop_overload_empty: bool,
    /// The collector that receives spans.
    pub otlp_endpoint: Option<String>,
    pub bounds: Bounds,
    /// `None`: connections are not encrypted.
    pub tls: Option<Arc<Door>>,
    /// Access control; `None` if every caller may do everything.
    pub guard: Option<Arc<Guard>>,
    /// Origins of web pages that may call without access control, in addition to the broker's own.
    pub cors_origins: Vec<Origin>,
    /// The setting `HOST`.
    pub host: String,
    /// All settings, for people, with secrets masked.
    pub settings: Arc<[Setting]>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct App(pub Arc<Parts>);

pub struct Parts {
    pub engine: Engine,
    pub options: Options,
    /// `host:port`, which names this broker.
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

pub fn router(app: App) -> Router {
    let routed = match app.options.guard.clone() {
        Some(guard) => guarded(&app, &guard),
        None => {
            let routed = routes::paths()
                .into_iter()
                .fold(Router::new(), |router, path| router.route(path, methods(&app, path)))
                .merge(page())
                .merge(dashboard::router())
                .fallback(error::no_such_route)
                .method_not_allowed_fallback(error::no_such_method);
            paced(&app, routed)
        }
    };
    routed.layer(CatchPanicLayer::custom(error::panicked)).with_state(app)
}

/// All routes with a check in front of each path. The check receives the path, because looking it up a second time
/// could give another result.
fn guarded(app: &App, guard: &Arc<Guard>) -> Router<App> {
    let check = |router: Router<App>, route: Option<&'static str>| {
        let checkpoint = Checkpoint { app: app.clone(), guard: guard.clone(), route };
        // The rate limit is per caller, so it applies after the check has identified the caller.
        paced(app, router.method_not_allowed_fallback(error::no_such_method))
            .layer(from_fn_with_state(checkpoint, admitted))
    };
    let elsewhere = check(Router::new().fallback(error::no_such_route), None);
    routes::paths()
        .into_iter()
        .fold(elsewhere, |all, path| {
            all.merge(check(Router::new().route(path, methods(app, path)), Some(path)))
        })
        .merge(check(page(), Some(PAGE)))
        .merge(check(dashboard::router(), Some(dashboard::PATHS[0])))
}

/// The methods of a path. The limit on reads and the audit log are in front of those that they apply to.
fn methods(app: &App, path: &'static str) -> MethodRouter<App> {
    routes::at(path).fold(MethodRouter::new(), |methods, route| {
        let mut endpoint = route.endpoint();
        if route.reads() {
            endpoint = reads::bounded(app, endpoint, route.reads_database());
        }
        // With access control, the check writes the audit log.
        if route.acts() && app.options.guard.is_none() {
            let witness = Witness { app: app.clone(), route: path };
            endpoint = endpoint.layer(from_fn_with_state(witness, witnessed));
        }
        methods.merge(endpoint)
    })
}

fn paced(app: &App, router: Router<App>) -> Router<App> {
    match app.limits.paces_clients() {
        true => router.layer(from_fn_with_state(app.clone(), pace::pace)),
        false => router,
    }
}

/// The page to try the API. It loads nothing from other servers.
fn page() -> Router<App> {
    let page = SwaggerUi::new(PAGE).config(Config::from("/openapi.json").try_it_out_enabled(true));
    Router::from(page).layer(map_response(with_policy))
}

async fn with_policy(mut response: Response) -> Response {
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY);
    response
}
