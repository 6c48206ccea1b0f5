//! Spans reach an OTLP collector and are connected; an unavailable collector does not affect requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::{Server, eventually};

const REQUEST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const ITEM: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const UNSAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// Attributes of a span, or of the resource that sent it.
type About = HashMap<String, String>;

#[derive(Clone, Default)]
struct Taken(Arc<Mutex<Vec<(Span, About)>>>);

struct Collector {
    url: String,
    taken: Taken,
    _server: JoinSet<()>,
}

async fn take(State(taken): State<Taken>, body: Bytes) -> Vec<u8> {
    let request = ExportTraceServiceRequest::decode(body).expect("protobuf");
    for resource in request.resource_spans {
        let about = values(&resource.resource.expect("a resource").attributes);
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        taken.0.lock().unwrap().extend(spans.map(|span| (span, about.clone())));
    }
    ExportTraceServiceResponse::default().encode_to_vec()
}

fn values(attributes: &[KeyValue]) -> About {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.clone()) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|entry| (entry.key.clone(), text(&entry.value))).collect()
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let taken = Taken::default();
        let router = Router::new().route("/v1/traces", post(take)).with_state(taken.clone());
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, taken, _server: server }
    }

    async fn broker(&self) -> Server {
        Server::start_with(&["--otlp-endpoint", &self.url]).await
    }

    /// The spans with this name, once there are `count` of them.
    async fn spans(&self, name: &str, count: usize) -> Vec<Span> {
        eventually(name, async || {
            let taken = self.taken.0.lock().unwrap();
            let spans: Vec<Span> =
                taken.iter().map(|(span, _)| span).filter(|span| span.name == name).cloned().collect();
            assert!(spans.len() <= count, "{spans:?}");
            (spans.len() == count).then_some(spans)
        })
        .await
    }
}

/// The span's context as a `traceparent`.
fn context(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parent(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.parent_span_id))
}

fn links(span: &Span) -> Vec<String> {
    span.links.iter().map(|link| format!("00-{}-{}-01", hex(&link.trace_id), hex(&link.span_id))).collect()
}

#[tokio::test]
async fn a_message_is_followed_from_its_push_to_its_ack() {
    let collector = Collector::start().await;
    let server = collector.broker().await;
    let headers = [("traceparent", REQUEST), ("tracestate", "a=1")];
    let items = json!([
        {"queue": "orders", "partition": "p", "payload": 1},
        {"queue": "orders", "partition": "p", "payload": 2, "traceparent": ITEM},
        {"queue": "orders", "partition": "p", "payload": 3, "traceparent": UNSAMPLED},
    ]);
    let reply = server.post_with("/api/v1/push", &headers, json!({ "items": items })).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let popped = server.pop_soon("/queue/orders?batch=9&consumerGroup=g").await;
    assert!(server.pop("/queue/orders?batch=9&consumerGroup=g").await.is_none());
    server.ack(&popped.messages[2], "completed").await;

    let push = collector.spans("push orders", 1).await.remove(0);
    let item = collector.spans("create orders", 1).await.remove(0);
    let pop = collector.spans("pop orders", 1).await.remove(0);
    let ack = collector.spans("ack orders", 1).await.remove(0);
    assert_eq!((parent(&push).as_str(), parent(&item).as_str()), (REQUEST, ITEM));
    assert_eq!((push.kind(), item.kind()), (SpanKind::Server, SpanKind::Producer));
    assert_eq!(links(&push), [context(&item)]);
    let about = values(&push.attributes);
    for (key, value) in [
        ("messaging.system", "queen"),
        ("messaging.destination.name", "orders"),
        ("messaging.operation.name", "push"),
        ("messaging.operation.type", "send"),
        ("messaging.batch.message_count", "3"),
        ("http.request.method", "POST"),
        ("http.response.status_code", "201"),
    ] {
        assert_eq!(about.get(key).map(String::as_str), Some(value), "{key}");
    }
    // Consumers continue from the broker's span; an unrecorded context stays unchanged.
    let delivered: Vec<_> = popped.messages.iter().map(|m| m["traceparent"].as_str().unwrap()).collect();
    assert_eq!(delivered, [&*context(&push), &context(&item), UNSAMPLED]);
    assert_eq!(popped.messages[0]["tracestate"], "a=1");
    // A link has no flags; the third is the context that was sent.
    assert_eq!(links(&pop), [context(&push), context(&item), ITEM.to_owned()]);
    let about = values(&pop.attributes);
    for (key, value) in [
        ("messaging.operation.type", "receive"),
        ("messaging.consumer.group.name", "g"),
        ("messaging.destination.partition.id", "p"),
        ("messaging.batch.message_count", "3"),
    ] {
        assert_eq!(about.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(pop.parent_span_id.is_empty(), "the pop brought no context");
    assert_eq!(values(&ack.attributes)["messaging.operation.type"], "settle");
    let taken = collector.taken.0.lock().unwrap();
    assert!(
        taken
            .iter()
            .all(|(_, about)| about["service.name"] == "queen" && about.contains_key("service.instance.id"))
    );
    assert_eq!(taken.len(), 4, "a pop that finds nothing is no news");
}

#[tokio::test]
async fn a_transaction_and_a_pop_hang_below_their_callers() {
    let collector = Collector::start().await;
    let server = collector.broker().await;
    let body = json!({"operations": [{"type": "push", "queue": "q", "partition": "p", "payload": 1}]});
    let reply = server.post_with("/api/v1/transaction", &[("traceparent", REQUEST)], body).await;
    assert_eq!(reply.json()["success"], true);
    let url = format!("{}/api/v1/pop/queue/q", server.url);
    let response = server.http.get(url).header("traceparent", ITEM).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let transaction = collector.spans("transaction q", 1).await.remove(0);
    let pop = collector.spans("pop q", 1).await.remove(0);
    assert_eq!((parent(&transaction).as_str(), parent(&pop).as_str()), (REQUEST, ITEM));
    assert_eq!(links(&pop), [context(&transaction)]);
}

#[tokio::test]
async fn an_untraced_push_starts_a_trace_and_a_failure_is_recorded() {
    let collector = Collector::start().await;
    let server = collector.broker().await;
    server.push("q", "p", &[json!(1)]).await;
    let push = collector.spans("push q", 1).await.remove(0);
    assert!(push.parent_span_id.is_empty());
    let popped = server.pop_soon("/queue/q").await;
    assert_eq!(popped.messages[0]["traceparent"], context(&push));
    assert_eq!(server.post("/api/v1/push", json!({})).await.status, 400);
    let refused = collector.spans("push", 1).await.remove(0);
    assert_eq!(values(&refused.attributes)["http.response.status_code"], "400");
}

#[tokio::test]
async fn an_unavailable_or_silent_collector_does_not_affect_requests() {
    // The first address has no listener; the second accepts connections and never responds.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_at = silent.local_addr().unwrap();
    for (address, counted) in [(closed, true), (silent_at, false)] {
        let server = Server::start_with(&["--otlp-endpoint", &format!("http://{address}")]).await;
        let began = std::time::Instant::now();
        for n in 0..20 {
            server.push("q", "p", &[json!(n)]).await;
        }
        let popped = server.pop_soon("/queue/q?batch=20").await;
        assert_eq!(popped.messages.len(), 20);
        assert!(began.elapsed() < Duration::from_secs(8), "nobody waits for the collector");
        if counted {
            eventually("what is dropped is counted", async || {
                let page = server.get("/metrics/prometheus").await.text;
                let line = page.lines().find(|line| line.starts_with("queen_spans_dropped_total "))?;
                (line != "queen_spans_dropped_total 0").then_some(())
            })
            .await;
        }
    }
}
