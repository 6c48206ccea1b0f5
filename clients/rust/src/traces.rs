//! Traces: notes of consumers about messages.

use std::future::IntoFuture;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::admin::Get;
use crate::control::Control;
use crate::delivery::Envelope;
use crate::error::Error;
use crate::message::Message;
use crate::push::Pending;
use crate::queen::Queen;
use crate::wire;

/// A note about a message. Await it to send it.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct NewTrace {
    envelope: Envelope,
    data: Result<Box<RawValue>, String>,
    names: Vec<String>,
    event: Option<String>,
    deadline: Option<Duration>,
}

impl NewTrace {
    pub(crate) fn new<D: Serialize + ?Sized>(envelope: Envelope, data: &D) -> Self {
        let data = serde_json::value::to_raw_value(data).map_err(|error| error.to_string());
        Self { envelope, data, names: Vec::new(), event: None, deadline: None }
    }

    /// A name to find it by. May be called several times.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Type of the event. Default `info`.
    pub fn event(mut self, kind: impl Into<String>) -> Self {
        self.event = Some(kind.into());
        self
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// Id of the note.
impl IntoFuture for NewTrace {
    type Output = Result<String, Error>;
    type IntoFuture = Pending<String>;

    fn into_future(self) -> Self::IntoFuture {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Body<'a> {
            transaction_id: &'a str,
            partition_id: &'a str,
            consumer_group: &'a str,
            trace_names: &'a [String],
            #[serde(skip_serializing_if = "Option::is_none")]
            event_type: Option<&'a str>,
            data: &'a RawValue,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Added {
            trace_id: String,
        }
        Box::pin(async move {
            let data = self
                .data
                .map_err(|error| Error::bad_use(format!("the note cannot be written as JSON: {error}")))?;
            let body = Body {
                transaction_id: self.envelope.transaction_id(),
                partition_id: self.envelope.partition_id(),
                consumer_group: self.envelope.group(),
                trace_names: &self.names,
                event_type: self.event.as_deref(),
                data: &data,
            };
            let noting = Control::post("/api/v1/traces", &body).deadline(self.deadline);
            let added: Added = noting.send(self.envelope.shared()).await?;
            Ok(added.trace_id)
        })
    }
}

/// Reads notes.
#[derive(Debug, Clone)]
pub struct Traces {
    queen: Queen,
}

/// A page of notes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TraceList {
    /// The notes of this page.
    pub traces: Vec<Trace>,
    /// Total number, if known.
    pub total: u64,
}

/// A note about a message.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Trace {
    /// Id of the note.
    pub id: String,
    /// Type of the event.
    pub event_type: String,
    /// Contents of the note.
    pub data: serde_json::Value,
    /// The consumer group of the worker that wrote it.
    pub consumer_group: Option<String>,
    /// Time: ISO 8601, in UTC.
    pub created_at: String,
    /// The names it can be found by.
    pub trace_names: Vec<String>,
    /// Transaction id of the message, in a list by name.
    pub transaction_id: Option<String>,
    /// Id of the partition, in a list by name.
    pub partition_id: Option<String>,
    /// Name of the queue, in a list by name.
    pub queue_name: Option<String>,
    /// Name of the partition, in a list by name.
    pub partition_name: Option<String>,
}

/// A page of names, most recently used first.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TraceNames {
    /// The names of this page.
    #[serde(rename = "trace_names")]
    pub names: Vec<TraceName>,
    /// Total number.
    pub total: u64,
}

/// A name with notes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct TraceName {
    /// The name.
    #[serde(rename = "trace_name")]
    pub name: String,
    /// Number of notes.
    pub trace_count: u64,
    /// Number of messages.
    pub message_count: u64,
    /// When it was last used.
    pub last_seen: String,
}

impl Traces {
    pub(crate) fn new(queen: Queen) -> Self {
        Self { queen }
    }

    /// Notes of a message, oldest first.
    pub fn of<T>(&self, message: &Message<T>) -> Get<TraceList> {
        self.by_id(message.partition_id(), message.transaction_id())
    }

    /// Notes of a message by its ids, oldest first.
    pub fn by_id(&self, partition_id: &str, transaction_id: &str) -> Get<TraceList> {
        Get::new(&self.queen, wire::path(&["/api/v1/traces/", partition_id, "/", transaction_id]))
    }

    /// Notes under a name, newest first.
    pub fn by_name(&self, name: &str) -> Get<TraceList> {
        Get::new(&self.queen, wire::path(&["/api/v1/traces/by-name/", name]))
    }

    /// All names.
    pub fn names(&self) -> Get<TraceNames> {
        Get::new(&self.queen, "/api/v1/traces/names")
    }
}
