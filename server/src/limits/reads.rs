//! The limit on concurrent reads of one client, and on changes that search as much as a list. Each may take seconds in the
//! database, so one client must not take the few connections for them from all others.

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
use crate::auth::Caller;
use crate::http::error::ApiError;
use crate::http::request::{Body, SMALL};

/// The limit in front of a route.
pub fn bounded(app: &App, route: MethodRouter<App>, reads_database: bool) -> MethodRouter<App> {
    match app.limits.bounds.reads_per_client > 0 {
        true => route.layer(from_fn_with_state((app.clone(), reads_database), bound)),
        false => route,
    }
}

async fn bound(
    State((app, reads_database)): State<(App, bool)>,
    caller: Caller,
    request: Request,
    next: Next,
) -> Response {
    let client = Client::from(&caller);
    let Some(_place) = app.limits.reads.enter(client.clone()) else {
        return app.limits.too_many_reads().into_response();
    };
    if !reads_database {
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

/// Reads of one client that use a connection. Further ones wait, so that a connection is left for other clients.
#[derive(Default)]
pub struct Turns(Mutex<HashMap<Client, Weak<Semaphore>>>);

impl Turns {
    /// A place among the `at_once` reads of a client, until it is dropped.
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
