//! OpenTelemetry: a span for every request of the message plane, sent to a collector. Without a collector it costs one branch
//! per request. It never makes a request wait or fail.

mod export;
mod span;

use crate::config::report::address;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use span::{Operation, Span};

/// How long a stopping broker waits for the collector to accept the last spans.
const LAST_CALL: Duration = Duration::from_secs(3);

/// Cheap to clone. Empty if tracing is off.
#[derive(Clone, Default)]
pub struct Telemetry(Option<Arc<Inner>>);

struct Inner {
    tracer: SdkTracer,
    counts: Arc<Counts>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

/// How many spans were exported and dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanCounts {
    pub exported: u64,
    pub dropped: u64,
}

impl Telemetry {
    /// `instance` names this broker. Without an endpoint, tracing is off.
    pub fn start(endpoint: Option<&str>, instance: &str) -> Self {
        let Some(endpoint) = endpoint else { return Self::default() };
        let resource = resource(instance);
        let exporter = match export::exporter(endpoint, &resource) {
            Ok(exporter) => exporter,
            Err(error) => {
                // An invalid OTEL_… variable is no reason to refuse messages.
                warn!(%error, "cannot export spans");
                return Self::default();
            }
        };
        info!(endpoint = address(endpoint), "exporting spans");
        let (counts, tasks, stopping) =
            (Arc::<Counts>::default(), TaskTracker::new(), CancellationToken::new());
        let (queue, spans) = export::queue(counts.clone());
        tasks.spawn(export::run(exporter, spans, counts.clone(), stopping.clone()));
        let provider =
            SdkTracerProvider::builder().with_resource(resource).with_span_processor(queue).build();
        Self(Some(Arc::new(Inner { tracer: provider.tracer("queen"), counts, tasks, stopping })))
    }

    /// The span of a request, which ends with it.
    pub fn span(&self, operation: Operation, headers: &HeaderMap) -> Span {
        match &self.0 {
            None => Span::off(),
            Some(inner) => Span::new(inner.tracer.clone(), operation, headers),
        }
    }

    pub fn counts(&self) -> SpanCounts {
        let count = |count: fn(&Counts) -> &AtomicU64| {
            self.0.as_ref().map_or(0, |inner| count(&inner.counts).load(Relaxed))
        };
        SpanCounts { exported: count(|counts| &counts.exported), dropped: count(|counts| &counts.dropped) }
    }

    /// Sends the remaining spans, if the collector accepts them soon.
    pub async fn stop(&self) {
        if let Some(inner) = &self.0 {
            inner.stopping.cancel();
            inner.tasks.close();
            _ = timeout(LAST_CALL, inner.tasks.wait()).await;
        }
    }
}

/// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, which the SDK reads, take precedence.
fn resource(instance: &str) -> Resource {
    let given = Resource::builder().build();
    let mut ours = vec![
        KeyValue::new("service.instance.id", instance.to_owned()),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let named = given.get(&"service.name".into());
    if named.is_none_or(|name| name.as_str().starts_with("unknown_service")) {
        ours.push(KeyValue::new("service.name", "queen"));
    }
    ours.retain(|entry| entry.key.as_str() == "service.name" || given.get(&entry.key).is_none());
    Resource::builder().with_attributes(ours).build()
}
