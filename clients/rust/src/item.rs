//! Messages to push, and their serialization. The transaction id is generated here, once.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::error::Error;
use crate::wire;

/// The broker's partition for messages that name none.
pub(crate) const DEFAULT_PARTITION: &str = "Default";

/// What can be pushed: a reference to anything serializable, or an [`Item`] with further fields.
pub trait Pushable: private::Sealed {
    #[doc(hidden)]
    fn into_item(self) -> Item;

    /// Appends the message, or nothing after an error.
    #[doc(hidden)]
    fn write(self, body: &mut Vec<u8>, place: Place<'_>) -> Result<(), Error>;

    /// Its own partition, if set.
    #[doc(hidden)]
    fn own_partition(&self) -> Option<&str>;
}

mod private {
    pub trait Sealed {}
}

/// The default destination of messages.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub(crate) queue: &'a str,
    pub(crate) partition: &'a str,
}

/// A message to push: a payload with optional fields.
#[derive(Debug, Clone)]
#[must_use = "a message is not sent by itself"]
pub struct Item {
    payload: Result<Vec<u8>, String>,
    about: About,
}

#[derive(Debug, Clone, Default)]
struct About {
    partition: Option<String>,
    transaction_id: Option<String>,
    trace_id: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl Item {
    /// Serializes the payload immediately.
    pub fn new<T: Serialize + ?Sized>(payload: &T) -> Self {
        let payload = serde_json::to_vec(payload).map_err(|error| error.to_string());
        Self { payload, about: About::default() }
    }

    /// Partition of the message, if it differs from the call's.
    pub fn partition(mut self, name: impl Into<String>) -> Self {
        self.about.partition = Some(name.into());
        self
    }

    /// Your id of the message, for deduplication. Default: a new UUIDv7.
    pub fn transaction_id(mut self, id: impl Into<String>) -> Self {
        self.about.transaction_id = Some(id.into());
        self
    }

    /// A UUID of your choice that is stored with the message.
    pub fn trace_id(mut self, id: impl Into<String>) -> Self {
        self.about.trace_id = Some(id.into());
        self
    }

    /// W3C trace context. It is delivered to the consumer.
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.about.traceparent = Some(traceparent.into());
        self
    }

    /// The `tracestate` for a `traceparent`.
    pub fn tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.about.tracestate = Some(tracestate.into());
        self
    }
}

impl private::Sealed for Item {}

impl Pushable for Item {
    fn into_item(self) -> Item {
        self
    }

    fn write(self, body: &mut Vec<u8>, place: Place<'_>) -> Result<(), Error> {
        let payload = self.payload.map_err(|error| no_json(&error))?;
        self.about.write(body, place)?;
        body.extend_from_slice(&payload);
        body.push(b'}');
        Ok(())
    }

    fn own_partition(&self) -> Option<&str> {
        self.about.partition.as_deref()
    }
}

impl<T: Serialize + ?Sized> private::Sealed for &T {}

impl<T: Serialize + ?Sized> Pushable for &T {
    fn into_item(self) -> Item {
        Item::new(self)
    }

    /// Serializes directly into the body.
    fn write(self, body: &mut Vec<u8>, place: Place<'_>) -> Result<(), Error> {
        let start = body.len();
        About::default().write(body, place)?;
        if let Err(error) = serde_json::to_writer(&mut *body, self) {
            body.truncate(start);
            return Err(no_json(&error.to_string()));
        }
        body.push(b'}');
        Ok(())
    }

    fn own_partition(&self) -> Option<&str> {
        None
    }
}

/// A message that was serialized here, parsed again.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Written {
    pub queue: String,
    pub partition: String,
    pub transaction_id: String,
    #[serde(default)]
    pub trace_id: Option<String>,
    #[serde(default)]
    pub traceparent: Option<String>,
    #[serde(default)]
    pub tracestate: Option<String>,
    pub payload: Box<RawValue>,
}

fn no_json(error: &str) -> Error {
    Error::bad_use(format!("the payload cannot be written as JSON: {error}"))
}

impl About {
    /// Everything up to the payload. The id is generated here; retries use the same bytes.
    fn write(&self, body: &mut Vec<u8>, place: Place<'_>) -> Result<(), Error> {
        let partition = self.partition.as_deref().unwrap_or(place.partition);
        wire::check_name("the name of a queue", place.queue)?;
        wire::check_name("the name of a partition", partition)?;
        if let Some(id) = &self.transaction_id {
            wire::check_name("a transaction id", id)?;
        }
        wire::field(body, "{\"queue\":", place.queue);
        wire::field(body, ",\"partition\":", partition);
        match &self.transaction_id {
            Some(id) => wire::field(body, ",\"transactionId\":", id),
            None => {
                body.extend_from_slice(b",\"transactionId\":\"");
                let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
                body.extend_from_slice(Uuid::now_v7().hyphenated().encode_lower(&mut text).as_bytes());
                body.push(b'"');
            }
        }
        for (before, value) in [
            (",\"traceId\":", &self.trace_id),
            (",\"traceparent\":", &self.traceparent),
            (",\"tracestate\":", &self.tracestate),
        ] {
            if let Some(value) = value {
                wire::field(body, before, value);
            }
        }
        body.extend_from_slice(b",\"payload\":");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use serde_json::{Value, json};

    const PLACE: Place<'_> = Place { queue: "orders", partition: "customer-7" };

    fn written(message: impl Pushable) -> Result<Value, Error> {
        let mut body = Vec::new();
        message.write(&mut body, PLACE)?;
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn a_message_is_written_with_all_that_was_said_about_it() {
        let item =
            Item::new(&json!({"a": "\"ü\n"})).partition("p/1").transaction_id("t\"1").traceparent("00-1");
        assert_eq!(
            written(item).unwrap(),
            json!({"queue": "orders", "partition": "p/1", "transactionId": "t\"1", "traceparent": "00-1",
                   "payload": {"a": "\"ü\n"}})
        );
        let plain = written("x").unwrap();
        assert_eq!((&plain["partition"], &plain["payload"]), (&json!("customer-7"), &json!("x")));
    }

    #[test]
    fn an_id_is_a_uuid_of_version_7_and_no_two_are_the_same() {
        let id = || written(&1).unwrap()["transactionId"].as_str().unwrap().parse::<Uuid>().unwrap();
        let (one, two) = (id(), id());
        assert!(one < two && one.get_version_num() == 7);
    }

    #[test]
    fn what_cannot_be_sent_is_refused_before_it_is_and_leaves_nothing_behind() {
        let map = std::collections::HashMap::from([(vec![1], 2)]);
        for item in [
            Item::new(&1).transaction_id(""),
            Item::new(&1).partition("x".repeat(256)),
            Item::new(&1).partition(""),
            Item::new(&map),
        ] {
            assert_eq!(written(item).unwrap_err().kind(), ErrorKind::BadUse);
        }
        let mut body = b"before".to_vec();
        assert_eq!((&map).write(&mut body, PLACE).unwrap_err().kind(), ErrorKind::BadUse);
        assert_eq!(body, b"before");
    }
}
