//! Limits the read requests that one client has in progress, and changes that read as much to find what they change. Each may
//! take seconds of the database, so one client must not take the few connections for reads from all others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::extract::{FromRequest, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Client, Limit, Limits};
use crate::app::App;
use crate::auth::{Caller, marks};
use crate::http::error::ApiError;
use crate::http::request::{Body, SMALL};

/// Where `GET` reads what PostgreSQL has to collect. Elsewhere it is answered from memory, or is a pop.
const READS: &str = "/api/v1/";
const POPS: &str = "/api/v1/pop";

/// What changes something, or says what it would change, and reads as much as a list to find it.
const SEARCHES: [(Method, &str); 5] = [
    (Method::POST, "/api/v1/dlq/redrive"),
    (Method::DELETE, "/api/v1/dlq"),
    (Method::POST, "/api/v1/consumer-groups/{group}/queues/{queue}/seek"),
    (Method::POST, "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek"),
    (Method::POST, "/api/v1/stats/refresh"),
];

/// Reads that use none of the connections for reads: the broker knows the answer, or asks something short.
const QUICK: [&str; 7] = [
    "/api/v1/status/buffers",
    "/api/v1/system/doctor",
    "/api/v1/system/maintenance",
    "/api/v1/system/maintenance/pop",
    "/api/v1/system/settings",
    "/api/v1/system/shared-state",
    "/api/v1/whoami",
];

/// The same route with the limit in front of it, if it reads.
pub fn bounded(app: &App, route: &'static str, methods: MethodRouter<App>) -> MethodRouter<App> {
    let reads = marks::methods(route).any(|method| counts(method, route));
    match reads && app.limits.bounds.reads_per_client > 0 {
        true => methods.layer(from_fn_with_state((app.clone(), route), bound)),
        false => methods,
    }
}

async fn bound(
    State((app, route)): State<(App, &'static str)>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    if !counts(request.method(), route) {
        return next.run(request).await;
    }
    let client = Client::from(&caller);
    let Some(_place) = app.limits.reads.enter(client.clone()) else {
        return app.limits.too_many_reads().into_response();
    };
    if QUICK.contains(&route) {
        return next.run(request).await;
    }
    // A body may arrive slowly, and the client's other reads must not wait for it.
    let request = match received(request, &app).await {
        Ok(request) => request,
        Err(error) => return error.into_response(),
    };
    let at_once = app.engine.read_connections().saturating_sub(1).max(1);
    let _turn = app.limits.read_turns.take(client, at_once).await;
    next.run(request).await
}

/// The request with its whole body.
async fn received(request: Request, app: &App) -> Result<Request, ApiError> {
    if request.method() != Method::POST {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    let Body(body) = Body::<SMALL>::from_request(Request::from_parts(head.clone(), body), app).await?;
    Ok(Request::from_parts(head, body.into()))
}

/// Reads of one client take turns, so that with all of them in progress a connection is left for other clients.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<Client, Weak<Semaphore>>>);

impl Turns {
    /// A place among the `at_once` reads of a client that work, until it is dropped.
    async fn take(&self, client: Client, at_once: usize) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match all.get(&client).and_then(Weak::upgrade) {
                Some(turns) => turns,
                None => {
                    all.retain(|_, turns| turns.strong_count() > 0);
                    let turns = Arc::new(Semaphore::new(at_once));
                    all.insert(client, Arc::downgrade(&turns));
                    turns
                }
            }
        };
        turns.acquire_owned().await.ok()
    }
}

fn counts(method: &Method, route: &str) -> bool {
    let is_read = [Method::GET, Method::HEAD].contains(method);
    is_read && route.starts_with(READS) && !route.starts_with(POPS)
        || SEARCHES.iter().any(|search| *search == (method.clone(), route))
}

impl Limits {
    fn too_many_reads(&self) -> ApiError {
        self.count(Limit::ClientReads);
        let limit = self.bounds.reads_per_client;
        let text = format!(
            "reads, seeks, redrives, purges and refreshes in progress: {limit}; the limit for one client is {limit} \
             (QUEEN_MAX_READS_PER_CLIENT)"
        );
        ApiError::rate_limited(text, Duration::from_secs(1))
    }
}
