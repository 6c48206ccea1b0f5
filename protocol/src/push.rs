//! `POST /api/v1/push`. Payloads are borrowed from the body and never inspected.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::bounded::Bounded;
use crate::object::Object;
use crate::trace::is_state;
use crate::{
    BadRequest, Ticket, Trace, TraceParent, check_name, check_new_name, check_transaction_id, read_object,
};

/// Larger pushes are refused rather than split: they are a mistake, or an attack.
pub(crate) const PUSH_ITEMS_MAX: usize = 50_000;

#[derive(Debug)]
pub struct PushBody<'a> {
    pub items: Vec<PushItem<'a>>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    items: Bounded<Object<PushItem<'a>>, PUSH_ITEMS_MAX>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PushItem<'a> {
    #[serde(borrow)]
    pub queue: Cow<'a, str>,
    #[serde(borrow, default)]
    partition: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub transaction_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    trace_id: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "trace_parent")]
    traceparent: Option<TraceParent>,
    #[serde(borrow, default, deserialize_with = "trace_state")]
    tracestate: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub task: Option<Cow<'a, str>>,
}

/// An explicit `null` is a payload; only an absent field means that there is none.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Anything but a valid string counts as absent.
fn trace_parent<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<TraceParent>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str::<Cow<'_, str>>(raw.get()).ok().and_then(|text| TraceParent::parse(&text)))
}

fn trace_state<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Cow<'de, str>>, D::Error> {
    let raw = <&RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str::<String>(raw.get()).ok().filter(|text| is_state(text)).map(Cow::Owned))
}

impl<'a> PushBody<'a> {
    pub fn parse(body: &'a [u8]) -> Result<Self, BadRequest> {
        if body.trim_ascii_start().starts_with(b"[") {
            return Err(BadRequest::new(
                "the body is a list; a push is an object with a list of items: \
                 {\"items\": [{\"queue\": \"orders\", \"payload\": {}}]}",
            ));
        }
        let items = read_object::<Body<'a>>(body)?.items.checked("items in one push")?;
        let items: Vec<PushItem<'a>> = items.into_iter().map(|Object(item)| item).collect();
        for (index, item) in items.iter().enumerate() {
            item.check().map_err(|BadRequest(text)| BadRequest(format!("items[{index}]: {text}")))?;
        }
        Ok(Self { items })
    }
}

impl<'a> PushItem<'a> {
    /// Applies the context of the request, unless the item has its own.
    pub fn inherit(&mut self, trace: Trace<'a>) {
        if self.traceparent.is_none() {
            self.traceparent = Some(trace.parent);
            self.tracestate = trace.state.map(Cow::Borrowed);
        }
    }

    /// Inserts a span: the consumer of the message continues from there.
    pub fn relay(&mut self, parent: TraceParent) {
        // A state without its parent has no meaning.
        self.tracestate = self.traceparent.and_then(|_| self.tracestate.take());
        self.traceparent = Some(parent);
    }

    pub fn trace(&self) -> Option<Trace<'_>> {
        self.traceparent.map(|parent| Trace { parent, state: self.tracestate.as_deref() })
    }

    pub(crate) fn check(&self) -> Result<(), BadRequest> {
        check_new_name("queue", &self.queue)?;
        check_new_name("partition", self.partition())?;
        check_name("namespace", self.namespace.as_deref().unwrap_or_default())?;
        check_name("task", self.task.as_deref().unwrap_or_default())?;
        match &self.transaction_id {
            Some(id) => check_transaction_id(id),
            None => Ok(()),
        }
    }

    pub fn partition(&self) -> &str {
        match self.partition.as_deref() {
            None | Some("") => "Default",
            Some(name) => name,
        }
    }

    /// The producer's bytes; `{}` if there is no payload at all.
    pub fn payload(&self) -> &str {
        self.payload.or(self.data).map_or("{}", RawValue::get)
    }

    /// A trace id that is not a UUID is dropped, as in published servers.
    pub fn trace_id(&self) -> Option<Uuid> {
        self.trace_id.as_deref().and_then(|id| Uuid::try_parse(id).ok())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PushStatus {
    Queued,
    Duplicate,
    Failed,
    /// Accepted into the spool.
    Buffered,
}

/// The mixed casing is the published contract.
#[derive(Debug, Clone, Serialize)]
pub struct PushResult {
    pub index: usize,
    pub message_id: Uuid,
    pub transaction_id: String,
    #[serde(rename = "queueName")]
    pub queue_name: String,
    pub status: PushStatus,
    pub partition_id: Uuid,
    pub trace_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Set if the message was deferred.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ticket: Option<Ticket>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_keeps_the_senders_bytes_and_null_is_not_absent() {
        let body = br#"{"items":[{"queue":"q","payload":{ "b":1, "a":1e400 }},{"queue":"q","payload":null},{"queue":"q"}]}"#;
        let parsed = PushBody::parse(body).unwrap();
        let payloads: Vec<_> = parsed.items.iter().map(PushItem::payload).collect();
        assert_eq!(payloads, [r#"{ "b":1, "a":1e400 }"#, "null", "{}"]);
        assert_eq!(parsed.items[0].partition(), "Default");
    }

    #[test]
    fn what_cannot_be_stored_is_refused_with_the_index_of_the_item() {
        for (body, word) in [
            (r#"{"items":[{"queue":1}]}"#, "invalid type"),
            (r#"{"items":{}}"#, "invalid type"),
            (r#"{}"#, "items"),
            (r#"{"items":[{"queue":"a\u0000b"}]}"#, "items[0]: queue must not contain"),
            (r#"{"items":[{"queue":"q"},{"queue":"q","partition":7}]}"#, "invalid type"),
            (r#"{"items":[{"queue":"q","transactionId":""}]}"#, "must not be empty"),
            (r#"[{"queue":"q"}]"#, r#"{"items": ["#),
            (r#" [[{"queue":"q"}]]"#, r#"{"items": ["#),
            (r#"{"items":[["q","p",1]]}"#, "expected an object"),
            (r#"{"items":[{"queue":".."}]}"#, r#"items[0]: queue must not be "..""#),
            (r#"{"items":[{"queue":"q","partition":"."}]}"#, r#"items[0]: partition must not be ".""#),
            ("", "EOF"),
        ] {
            let error = PushBody::parse(body.as_bytes()).unwrap_err();
            assert!(error.0.contains(word), "{body}: {error}");
        }
    }

    #[test]
    fn the_context_of_an_item_goes_before_that_of_its_request_and_nonsense_is_no_error() {
        let (own, request) = (TraceParent::new(0xa1, 0xb2, 1).unwrap(), TraceParent::new(3, 4, 0).unwrap());
        let body = format!(
            r#"{{"items":[{{"queue":"q","traceparent":"{own}","tracestate":"a=\u0031"}},{{"queue":"q","tracestate":"b=2"}},
                {{"queue":"q","traceparent":7,"tracestate":[]}},{{"queue":"q","traceparent":"{}"}},
                {{"queue":"q","traceparent":null}}]}}"#,
            own.to_string().to_uppercase(),
        );
        let mut items = PushBody::parse(body.as_bytes()).unwrap().items;
        assert_eq!(items[0].trace(), Some(Trace { parent: own, state: Some("a=1") }));
        assert!(items[1..].iter().all(|item| item.trace().is_none()));
        let inherited = Trace { parent: request, state: Some("c=3") };
        items.iter_mut().for_each(|item| item.inherit(inherited));
        assert_eq!(items[0].trace().unwrap().parent, own);
        assert!(items[1..].iter().all(|item| item.trace() == Some(inherited)));
        items[0].relay(request);
        assert_eq!(items[0].trace(), Some(Trace { parent: request, state: Some("a=1") }));
    }

    #[test]
    fn a_push_of_a_hundred_thousand_items_is_refused() {
        let body = format!(r#"{{"items":[{}]}}"#, vec![r#"{"queue":"q"}"#; 100_000].join(","));
        assert!(PushBody::parse(body.as_bytes()).unwrap_err().0.contains("100000 items"));
    }
}
