//! Sends finished spans to the collector: a bounded queue, batches, one request at a time. Spans that do not fit, or that the
//! collector does not accept, are counted and dropped. (The batch processor of the SDK does not report what it drops.)

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::Context;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter as Exporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Counts;
use crate::outgoing::connector;

/// Finished spans in the queue, about 4 MB.
const WAITING_MAX: usize = 4_096;
const BATCH_MAX: usize = 512;
/// Spans that end within this time are sent together.
const COLLECT: Duration = Duration::from_secs(1);
/// The timeout of one batch, with all retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a response. Collectors send little.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// `endpoint`: without the path. Headers and compression come from the `OTEL_EXPORTER_OTLP_…` variables.
pub fn exporter(endpoint: &str, resource: &Resource) -> Result<Exporter> {
    let address = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let client = Collector(Client::builder(TokioExecutor::new()).build(connector(endpoint)?));
    let mut exporter = Exporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(address)
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .context("cannot create the exporter")?;
    exporter.set_resource(resource);
    Ok(exporter)
}

struct Collector(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl fmt::Debug for Collector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Collector")
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = self.0.request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

/// Receives finished spans. Never waits.
#[derive(Debug)]
pub struct Queue {
    spans: Sender<SpanData>,
    counts: Arc<Counts>,
}

pub fn queue(counts: Arc<Counts>) -> (Queue, Receiver<SpanData>) {
    let (sender, receiver) = channel(WAITING_MAX);
    (Queue { spans: sender, counts }, receiver)
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() && self.spans.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Runs until the broker stops, then sends the remaining spans.
pub async fn run(
    exporter: impl SpanExporter,
    mut spans: Receiver<SpanData>,
    counts: Arc<Counts>,
    stopping: CancellationToken,
) {
    let mut failing = false;
    loop {
        let mut batch = Vec::new();
        if stopping.run_until_cancelled(spans.recv_many(&mut batch, BATCH_MAX)).await.is_some() {
            _ = timeout(COLLECT, stopping.run_until_cancelled(fill(&mut spans, &mut batch))).await;
        }
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let exported = match timeout(EXPORT_TIMEOUT, exporter.export(batch)).await {
            Ok(exported) => exported.map_err(|error| error.to_string()),
            Err(_) => Err("the collector took too long".to_owned()),
        };
        match exported {
            Ok(()) => {
                counts.exported.fetch_add(count, Relaxed);
                if std::mem::take(&mut failing) {
                    info!("the collector accepts spans again");
                }
            }
            Err(error) => {
                counts.dropped.fetch_add(count, Relaxed);
                // Once, and not with every batch.
                if !std::mem::replace(&mut failing, true) {
                    warn!(%error, "the collector does not accept spans; they are dropped");
                }
            }
        }
    }
}

/// Receives until the batch is full.
async fn fill(spans: &mut Receiver<SpanData>, batch: &mut Vec<SpanData>) {
    while batch.len() < BATCH_MAX {
        let room = BATCH_MAX - batch.len();
        if spans.recv_many(batch, room).await == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, SpanBuilder, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::*;

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let counts = Arc::<Counts>::default();
        let (queue, mut spans) = queue(counts.clone());
        let tracer = SdkTracerProvider::builder().with_span_processor(queue).build().tracer("test");
        for _ in 0..WAITING_MAX + 3 {
            tracer.build(SpanBuilder::from_name("x")).end();
        }
        assert_eq!(counts.dropped.load(Relaxed), 3);
        assert!(spans.try_recv().is_ok());
    }
}
