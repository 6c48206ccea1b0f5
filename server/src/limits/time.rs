//! The timeout of a request. The body has timeouts of its own (`http/request.rs`), so this one starts after the body. The wait of
//! a pop is added.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::response::{IntoResponse, Response};
use queen_protocol::ErrorCode;
use tokio::time::timeout;

use super::{Limit, Limits};
use crate::http::error::ApiError;

/// Stands for a body that is still being read.
const READING: u64 = u64::MAX;

/// When the body of the current request was complete. A connection has one, because it has one request at a time.
#[derive(Clone)]
pub struct Reading(Arc<Moment>);

struct Moment {
    epoch: Instant,
    /// Microseconds after the epoch.
    complete: AtomicU64,
}

impl Reading {
    pub fn new() -> Self {
        Self(Arc::new(Moment { epoch: Instant::now(), complete: AtomicU64::new(READING) }))
    }

    pub fn begin(&self) {
        self.0.complete.store(READING, Relaxed);
    }

    pub fn complete(&self) {
        self.0.complete.store(self.0.epoch.elapsed().as_micros() as u64, Relaxed);
    }

    /// `None` while it is being read.
    fn since(&self) -> Option<Duration> {
        match self.0.complete.load(Relaxed) {
            READING => None,
            complete => Some(self.0.epoch.elapsed().saturating_sub(Duration::from_micros(complete))),
        }
    }
}

impl Limits {
    /// Cancels a handler that takes too long, as if its client had gone away. Its database calls may still take effect.
    ///
    /// `reading` is given for a request with a body.
    pub async fn within<E>(
        &self,
        reading: Option<&Reading>,
        answer: impl Future<Output = Result<Response, E>>,
    ) -> Result<Response, E> {
        let limit = self.bounds.request;
        if limit.is_zero() {
            return answer.await;
        }
        let mut answer = pin!(answer);
        let mut left = limit;
        // A handler that ignores the body of a request still gets the time for a body.
        let mut for_body = match self.bounds.body_total {
            Duration::ZERO => Duration::MAX,
            total => total,
        };
        loop {
            match timeout(left, answer.as_mut()).await {
                Ok(answer) => return answer,
                Err(_) => match reading.map(Reading::since) {
                    Some(None) if !for_body.is_zero() => {
                        left = limit.min(for_body);
                        for_body = for_body.saturating_sub(left);
                    }
                    Some(Some(since)) if since < limit => left = limit - since,
                    _ => return Ok(self.too_slow(limit).into_response()),
                },
            }
        }
    }

    /// For a handler whose time limit is extended by the wait of its caller.
    pub async fn within_wait<T>(
        &self,
        wait: Duration,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        if self.bounds.request.is_zero() {
            return answer.await;
        }
        let limit = self.bounds.request + wait;
        match timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(self.too_slow(limit)),
        }
    }

    fn too_slow(&self, limit: Duration) -> ApiError {
        self.count(Limit::RequestTime);
        let text = format!(
            "request timeout: not done within {} ms. What it asked for may have happened or still happen; sent again with \
             the same transaction ids, it happens once",
            limit.as_millis()
        );
        ApiError::new(ErrorCode::Timeout, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Bounds;

    fn limits(body_total: Duration) -> Limits {
        let bounds = Bounds { request: Duration::from_millis(100), body_total, ..Bounds::default() };
        Limits::new(bounds)
    }

    async fn never() -> Result<Response, ()> {
        std::future::pending().await
    }

    #[tokio::test]
    async fn the_time_of_a_body_does_not_count() {
        // A zero is no limit.
        for body_total in [Duration::from_secs(3600), Duration::ZERO] {
            let (limits, reading) = (limits(body_total), Reading::new());
            let answer = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                reading.complete();
                never().await
            };
            let begun = Instant::now();
            let response = limits.within(Some(&reading), answer).await.unwrap();
            assert_eq!(response.status().as_u16(), 504);
            assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
            assert_eq!(limits.refused(Limit::RequestTime), 1);
        }
    }

    #[tokio::test]
    async fn without_a_body_it_is_over_at_once() {
        let limits = limits(Duration::ZERO);
        let response = limits.within(None, never()).await.unwrap();
        assert_eq!(response.status().as_u16(), 504);
    }
}
