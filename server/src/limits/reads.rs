//! Lists and figures that one client reads at once. They may take seconds of the database each, so one client must not take
//! the few connections there are for them from all others.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;

use super::{Client, Limit, Limits};
use crate::app::App;
use crate::auth::Caller;
use crate::http::error::ApiError;

/// Where `GET` reads what PostgreSQL has to collect. Elsewhere it is answered from memory, or is a pop.
const READS: &str = "/api/v1/";
const POPS: &str = "/api/v1/pop";

/// The same route with the limit in front of it, if it reads.
pub fn bounded(app: &App, path: &str, methods: MethodRouter<App>) -> MethodRouter<App> {
    match path.starts_with(READS) && !path.starts_with(POPS) && app.limits.bounds.reads_per_client > 0 {
        true => methods.layer(from_fn_with_state(app.clone(), bound)),
        false => methods,
    }
}

async fn bound(State(app): State<App>, caller: Caller, request: Request, next: Next) -> Response {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return next.run(request).await;
    }
    match app.limits.reads.enter(Client::from(&caller)) {
        Some(_place) => next.run(request).await,
        None => app.limits.too_many_reads().into_response(),
    }
}

impl Limits {
    fn too_many_reads(&self) -> ApiError {
        self.count(Limit::ClientReads);
        let limit = self.bounds.reads_per_client;
        let text = format!(
            "this client already has {limit} reads in progress, the most allowed (QUEEN_MAX_READS_PER_CLIENT)"
        );
        ApiError::rate_limited(text, Duration::from_secs(1))
    }
}
