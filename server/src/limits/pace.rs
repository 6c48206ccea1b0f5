//! The limit on requests per second of one client. Without a rate the layer is not added.

use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::sleep;

use super::{Client, Limits};
use crate::app::App;
use crate::auth::Caller;
use crate::http::error::ApiError;

/// Health checks and metrics must work under load. Pops call `pace_pop` themselves.
const EXEMPT: [&str; 3] = ["/health", "/metrics", "/api/v1/pop"];

pub async fn pace(State(app): State<App>, caller: Caller, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if !exempt(path)
        && let Err(wait) = app.limits.take_request(&Client::from(&caller))
    {
        return app.limits.too_fast(wait).into_response();
    }
    next.run(request).await
}

/// One of these paths, or a path below it.
fn exempt(path: &str) -> bool {
    let mut rests = EXEMPT.iter().filter_map(|exempt| path.strip_prefix(exempt));
    rests.any(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Limits {
    /// A refused request counts against the rate as well, which slows down guessing. Returns the response to send if the rate is
    /// used up.
    pub fn pace_refusal(&self, caller: &Caller) -> Option<ApiError> {
        if !self.paces_clients() {
            return None;
        }
        self.take_request(&Client::from(caller)).err().map(|wait| self.too_fast(wait))
    }

    /// A pop with `wait` waits for its turn. Returns how much of its wait is left.
    pub async fn pace_pop(
        &self,
        client: &Client,
        wait: Option<Duration>,
    ) -> Result<Option<Duration>, ApiError> {
        if !self.paces_clients() {
            return Ok(wait);
        }
        let begun = Instant::now();
        loop {
            let Err(turn) = self.take_request(client) else {
                return Ok(wait.map(|wait| wait.saturating_sub(begun.elapsed())));
            };
            if wait.is_none_or(|wait| begun.elapsed() + turn > wait) {
                return Err(self.too_fast(turn));
            }
            sleep(turn).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::exempt;

    #[test]
    fn a_name_that_only_begins_alike_is_counted() {
        for path in [
            "/health",
            "/health/live",
            "/metrics",
            "/metrics/prometheus",
            "/api/v1/pop",
            "/api/v1/pop/queue/q",
        ] {
            assert!(exempt(path), "{path}");
        }
        for path in ["/healthy", "/metricsx", "/api/v1/popular", "/api/v1/push", "/"] {
            assert!(!exempt(path), "{path}");
        }
    }
}
