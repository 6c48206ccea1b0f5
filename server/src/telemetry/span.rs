//! The span of one request, in the semantic conventions of OpenTelemetry for messaging. It decides nothing about the request.

use axum::http::HeaderMap;
use axum::response::Response;
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, TraceFlags, TraceState,
    Tracer,
};
use opentelemetry::{Context, KeyValue, time};
use opentelemetry_sdk::trace::{SdkTracer, Span as SdkSpan};
use queen_protocol::{PushItem, Trace, TraceParent};
use std::time::SystemTime;

use crate::http::error::ApiError;
use crate::http::trace::of_request;

/// Maximum number of spans for single items of a request; further items keep the context that they came with.
const ITEM_SPANS_MAX: usize = 128;

/// The operation of a request, in the terms of the conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Push,
    Pop,
    Ack,
    Transaction,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Pop => "pop",
            Self::Ack => "ack",
            Self::Transaction => "transaction",
        }
    }

    fn kind(self) -> Option<&'static str> {
        match self {
            Self::Push => Some("send"),
            Self::Pop => Some("receive"),
            Self::Ack => Some("settle"),
            Self::Transaction => None,
        }
    }

    fn method(self) -> &'static str {
        if self == Self::Pop { "GET" } else { "POST" }
    }
}

/// Empty if spans are not exported.
pub struct Span(Option<Box<Active>>);

struct Active {
    tracer: SdkTracer,
    operation: Operation,
    parent: Context,
    started: SystemTime,
    queue: Option<String>,
    attributes: Vec<KeyValue>,
    links: Vec<Link>,
    /// Set once its id is needed.
    span: Option<SdkSpan>,
    /// The spans of items that came with a context of their own.
    items: Vec<SdkSpan>,
}

impl Span {
    pub fn off() -> Self {
        Self(None)
    }

    pub fn new(tracer: SdkTracer, operation: Operation, headers: &HeaderMap) -> Self {
        let mut attributes = vec![
            KeyValue::new("messaging.system", "queen"),
            KeyValue::new("messaging.operation.name", operation.name()),
            KeyValue::new("http.request.method", operation.method()),
        ];
        attributes.extend(operation.kind().map(|kind| KeyValue::new("messaging.operation.type", kind)));
        Self(Some(Box::new(Active {
            tracer,
            operation,
            parent: context(of_request(headers)),
            started: time::now(),
            queue: None,
            attributes,
            links: Vec::new(),
            span: None,
            items: Vec::new(),
        })))
    }

    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The queue of the request, if there is only one.
    pub fn destination<'q>(&mut self, mut queues: impl Iterator<Item = &'q str>) {
        let Some(active) = &mut self.0 else { return };
        let Some(first) = queues.next() else { return };
        if queues.all(|queue| queue == first) {
            active.queue = Some(first.to_owned());
            active.attributes.push(KeyValue::new("messaging.destination.name", first.to_owned()));
        }
    }

    pub fn partition(&mut self, partition: Option<&str>) {
        if let (Some(active), Some(partition)) = (&mut self.0, partition) {
            let partition = KeyValue::new("messaging.destination.partition.id", partition.to_owned());
            active.attributes.push(partition);
        }
    }

    pub fn group(&mut self, group: &str) {
        if let Some(active) = &mut self.0 {
            active.attributes.push(KeyValue::new("messaging.consumer.group.name", group.to_owned()));
        }
    }

    pub fn messages(&mut self, count: usize) {
        if let Some(active) = &mut self.0 {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            active.attributes.push(KeyValue::new("messaging.batch.message_count", count));
        }
    }

    /// Links the span to the traces of the delivered messages.
    pub fn links(&mut self, traces: &[TraceParent]) {
        if let Some(active) = &mut self.0 {
            let contexts = traces.iter().map(|parent| remote(Trace { parent: *parent, state: None }));
            active.links.extend(contexts.map(Link::with_context));
        }
    }

    /// Makes the span the parent of the pushed messages. An item with a context of its own gets a span of its
    /// own. If the span is not recorded, items keep the context that the client sent, so that the trace has no gap.
    pub fn relay<'i, 'a: 'i>(
        &mut self,
        request: Option<Trace<'a>>,
        items: impl Iterator<Item = &'i mut PushItem<'a>>,
    ) {
        let Some(active) = &mut self.0 else { return };
        let mut inherits = Vec::new();
        for item in items {
            match item.trace() {
                None => inherits.push(item),
                Some(trace) if active.items.len() < ITEM_SPANS_MAX => {
                    let span = active.item_span(trace, &item.queue);
                    if let Some(parent) = recorded(&span) {
                        item.relay(parent);
                        active.links.push(Link::with_context(span.span_context().clone()));
                    }
                    active.items.push(span);
                }
                Some(_) => {}
            }
        }
        let parent = recorded(active.open());
        for item in inherits {
            if let Some(trace) = request {
                item.inherit(trace);
            }
            if let Some(parent) = parent {
                item.relay(parent);
            }
        }
    }

    /// Ends the span with the status of the response.
    pub fn end(mut self, answer: Result<Response, ApiError>) -> Result<Response, ApiError> {
        if let Some(active) = &mut self.0 {
            let status = match &answer {
                Ok(response) => response.status(),
                Err(error) => error.status(),
            };
            // A pop that found nothing gets no span.
            if active.operation != Operation::Pop || status != axum::http::StatusCode::NO_CONTENT {
                let span = active.open();
                span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
                if status.is_server_error() {
                    span.set_attribute(KeyValue::new("error.type", status.as_u16().to_string()));
                    span.set_status(Status::error(status.as_str().to_owned()));
                }
            }
        }
        answer
    }
}

impl Active {
    fn open(&mut self) -> &mut SdkSpan {
        let span = self.span.take().unwrap_or_else(|| {
            let builder = SpanBuilder::from_name(self.name())
                .with_kind(SpanKind::Server)
                .with_start_time(self.started)
                .with_attributes(std::mem::take(&mut self.attributes))
                .with_links(std::mem::take(&mut self.links));
            self.tracer.build_with_context(builder, &self.parent)
        });
        let span = self.span.insert(span);
        // Attributes that were added since.
        span.set_attributes(std::mem::take(&mut self.attributes));
        span
    }

    fn name(&self) -> String {
        match &self.queue {
            Some(queue) => format!("{} {queue}", self.operation.name()),
            None => self.operation.name().to_owned(),
        }
    }

    fn item_span(&self, trace: Trace<'_>, queue: &str) -> SdkSpan {
        let builder = SpanBuilder::from_name(format!("create {queue}"))
            .with_kind(SpanKind::Producer)
            .with_start_time(self.started)
            .with_attributes([
                KeyValue::new("messaging.system", "queen"),
                KeyValue::new("messaging.operation.name", "create"),
                KeyValue::new("messaging.operation.type", "create"),
                KeyValue::new("messaging.destination.name", queue.to_owned()),
            ]);
        self.tracer.build_with_context(builder, &context(Some(trace)))
    }
}

fn recorded(span: &SdkSpan) -> Option<TraceParent> {
    let context = span.span_context();
    let trace_id = u128::from_be_bytes(context.trace_id().to_bytes());
    let span_id = u64::from_be_bytes(context.span_id().to_bytes());
    TraceParent::new(trace_id, span_id, context.trace_flags().to_u8()).filter(|_| context.is_sampled())
}

fn context(trace: Option<Trace<'_>>) -> Context {
    match trace {
        Some(trace) => Context::new().with_remote_span_context(remote(trace)),
        None => Context::new(),
    }
}

fn remote(trace: Trace<'_>) -> SpanContext {
    let (parent, state) = (trace.parent, trace.state.and_then(|state| state.parse::<TraceState>().ok()));
    SpanContext::new(
        parent.trace_id().into(),
        parent.span_id().into(),
        TraceFlags::new(parent.flags()),
        true,
        state.unwrap_or_default(),
    )
}
