//! What a pop has brought. The answer is kept as it came; messages are places in it, so that reading a large batch costs few
//! allocations, and a payload is parsed once, when somebody says as what.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde_json::value::RawValue;

use crate::ack::{Ack, Status};
use crate::call::Answered;
use crate::error::{Error, ErrorKind};
use crate::message::{Message, Taken, whole_seconds};
use crate::queen::Shared;
use crate::want::Want;
use crate::wire;

/// What a broker calls all who name no group.
const QUEUE_MODE: &str = "__QUEUE_MODE__";
const NOTHING: u16 = 204;
/// If a broker does not say: what it does without a queue's option.
const LEASE_SECONDS: u64 = 60;

/// An answer with at least one message.
pub(crate) struct Batch {
    pub shared: Arc<Shared>,
    /// Who delivered it.
    pub broker: usize,
    pub lease_seconds: u64,
    /// By somebody else, who told us. It may have no lease and is not done all the same.
    taken: bool,
    body: String,
    popped: Popped,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Popped {
    #[serde(default)]
    success: Option<bool>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    queue: Text,
    #[serde(default)]
    lease_id: Text,
    #[serde(default)]
    lease_seconds: Option<u64>,
    #[serde(default)]
    messages: Vec<Line>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    id: Text,
    transaction_id: Text,
    data: Json,
    #[serde(default)]
    created_at: Text,
    partition_id: Text,
    #[serde(default)]
    partition: Text,
    #[serde(default)]
    queue: Option<Text>,
    #[serde(default)]
    lease_id: Option<Text>,
    #[serde(default)]
    consumer_group: Text,
    #[serde(default)]
    retry_count: u32,
    #[serde(default)]
    trace_id: Option<Text>,
    #[serde(default)]
    traceparent: Option<Text>,
    #[serde(default)]
    tracestate: Option<Text>,
    #[serde(default)]
    producer_sub: Option<Text>,
    #[serde(skip)]
    settled: AtomicU8,
}

/// What has become of a message so far, as somebody has told the broker or is about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its consumer will tell that it is done.
    Handled = 1,
    /// With everything before it in its partition.
    Done = 2,
    /// It comes again, or will soon be a dead letter: nothing more is to be told of its partition.
    GivenBack = 3,
}

/// A text of the answer: where it is, or, if it has escapes, what it is.
enum Text {
    /// Its address, which stays the same as long as the body is not touched, and its length.
    At(usize, usize),
    Own(Box<str>),
}

impl Default for Text {
    fn default() -> Self {
        Self::Own(Box::default())
    }
}

impl Text {
    fn at(text: &str) -> Self {
        Self::At(text.as_ptr().addr(), text.len())
    }

    fn of<'a>(&'a self, body: &'a str) -> &'a str {
        match self {
            Self::Own(text) => text,
            Self::At(address, length) => {
                let start = address.wrapping_sub(body.as_ptr().addr());
                body.get(start..start + length).unwrap_or_default()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Text;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a text")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text, E> {
                Ok(Text::at(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text::Own(text.into()))
            }
        }
        deserializer.deserialize_str(Reader)
    }
}

/// A payload, which is not looked into.
struct Json(Text);

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Self(Text::at(raw.get()))).map_err(D::Error::custom)
    }
}

/// `None`: there was nothing.
pub(crate) fn read(shared: &Arc<Shared>, want: &Want, answer: Answered) -> Result<Option<Arc<Batch>>, Error> {
    if answer.status == NOTHING || answer.body.is_empty() {
        return Ok(None);
    }
    let body =
        String::from_utf8(answer.body).map_err(|error| Error::new(ErrorKind::Decode, error.to_string()))?;
    let popped: Popped = serde_json::from_str(&body).map_err(|error| wire::unreadable(&body, error))?;
    if popped.success == Some(false) {
        let why = popped.error.unwrap_or_else(|| "the broker refused, without a reason".to_owned());
        return Err(Error::new(ErrorKind::Refused, why).with_attempts(answer.attempts));
    }
    if popped.messages.is_empty() {
        return Ok(None);
    }
    let asked = want.lease.and_then(|lease| whole_seconds("a lease", lease).ok());
    let told = popped.lease_seconds.filter(|&seconds| seconds > 0);
    let lease_seconds = told.or(asked).unwrap_or(LEASE_SECONDS);
    let (shared, broker) = (shared.clone(), answer.broker);
    Ok(Some(Arc::new(Batch { shared, broker, lease_seconds, taken: false, body, popped })))
}

impl Batch {
    /// Of one message that somebody else has popped.
    pub fn taken(shared: Arc<Shared>, message: Taken) -> Arc<Self> {
        let own = |text: String| Text::Own(text.into());
        let line = Line {
            id: Text::default(),
            transaction_id: own(message.transaction_id),
            data: Json(own("null".to_owned())),
            created_at: Text::default(),
            partition_id: own(message.partition_id),
            partition: Text::default(),
            queue: None,
            lease_id: message.lease_id.map(own),
            consumer_group: own(message.group.unwrap_or_else(|| QUEUE_MODE.to_owned())),
            retry_count: 0,
            trace_id: None,
            traceparent: None,
            tracestate: None,
            producer_sub: None,
            settled: AtomicU8::default(),
        };
        let popped = Popped {
            success: None,
            error: None,
            queue: Text::default(),
            lease_id: Text::default(),
            lease_seconds: None,
            messages: vec![line],
        };
        // Who delivered it is not known; any broker will do.
        let (broker, lease_seconds, body) = (0, LEASE_SECONDS, String::new());
        Arc::new(Self { shared, broker, lease_seconds, taken: true, body, popped })
    }

    pub fn len(&self) -> usize {
        self.popped.messages.len()
    }

    pub fn partition_id(&self, index: usize) -> &str {
        self.popped.messages[index].partition_id.of(&self.body)
    }

    /// Of the whole answer.
    pub fn lease_id(&self) -> &str {
        let first = self.popped.messages.first().and_then(|line| line.lease_id.as_ref());
        first.unwrap_or(&self.popped.lease_id).of(&self.body)
    }

    pub fn envelope(self: &Arc<Self>, index: usize) -> Envelope {
        Envelope { batch: self.clone(), index }
    }

    pub fn decode<T: DeserializeOwned>(self: &Arc<Self>, index: usize) -> Result<Message<T>, Error> {
        let envelope = self.envelope(index);
        match serde_json::from_str(self.popped.messages[index].data.0.of(&self.body)) {
            Ok(data) => Ok(Message { data, envelope }),
            Err(error) => Err(envelope.undecodable(error)),
        }
    }

    /// All of them, or the first error.
    pub fn decode_all<T: DeserializeOwned>(self: &Arc<Self>) -> Result<Vec<Message<T>>, Error> {
        (0..self.len()).map(|index| self.decode(index)).collect()
    }

    pub fn ack(self: &Arc<Self>, index: usize, status: Status, error: Option<String>) -> Ack {
        Ack { envelope: self.envelope(index), status, error }
    }

    /// Of each partition its first message, and the one behind that.
    pub fn heads(&self) -> Vec<(usize, Option<usize>)> {
        let mut heads: Vec<(usize, Option<usize>)> = Vec::new();
        for index in 0..self.len() {
            let known =
                heads.iter_mut().find(|(first, _)| self.partition_id(*first) == self.partition_id(index));
            match known {
                None => heads.push((index, None)),
                Some((_, next)) => _ = next.get_or_insert(index),
            }
        }
        heads
    }

    pub fn settle(&self, index: usize, settled: Settled) {
        self.popped.messages[index].settled.store(settled as u8, Relaxed);
    }

    fn is(&self, index: usize, settled: Settled) -> bool {
        self.popped.messages[index].settled.load(Relaxed) == settled as u8
    }

    /// Its consumer will tell that it is done, unless its handler has told something else.
    pub fn handled(&self, index: usize) {
        // Two steps are enough: the handler is through.
        if self.popped.messages[index].settled.load(Relaxed) == 0 {
            self.settle(index, Settled::Handled);
        }
    }

    /// Whether somebody has told the broker that it is done.
    pub fn is_done(&self, index: usize) -> bool {
        self.is(index, Settled::Done)
    }

    /// Whether somebody has told the broker that it is to come again.
    pub fn is_given_back(&self, index: usize) -> bool {
        self.is(index, Settled::GivenBack)
    }

    /// Of each message: whether somebody has told the broker that it, or one behind it in its partition, is done.
    pub fn done(&self) -> Vec<bool> {
        let mut known: Vec<&str> = Vec::new();
        let mut done = vec![false; self.len()];
        for index in (0..self.len()).rev() {
            let partition = self.partition_id(index);
            if self.is(index, Settled::Done) && !known.contains(&partition) {
                known.push(partition);
            }
            done[index] = known.contains(&partition);
        }
        done
    }

    /// Whether the broker has been told about all of it, so that there is no lease left to lose.
    pub fn is_settled(&self) -> bool {
        let given_back: Vec<&str> = (0..self.len())
            .filter(|&index| self.is_given_back(index))
            .map(|index| self.partition_id(index))
            .collect();
        let done = self.done();
        (0..self.len()).all(|index| done[index] || given_back.contains(&self.partition_id(index)))
    }

    /// The message before this one in its partition, if its consumer has still to tell that it is done.
    fn handled_before(&self, index: usize) -> Option<usize> {
        let partition = self.partition_id(index);
        let before = (0..index).rfind(|&before| self.partition_id(before) == partition);
        before.filter(|&before| self.is(before, Settled::Handled))
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// All about a message but its payload.
#[derive(Clone)]
pub(crate) struct Envelope {
    batch: Arc<Batch>,
    index: usize,
}

impl Envelope {
    fn line(&self) -> &Line {
        &self.batch.popped.messages[self.index]
    }

    fn some<'a>(&'a self, text: &'a Option<Text>) -> Option<&'a str> {
        text.as_ref().map(|text| text.of(&self.batch.body))
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.batch.shared
    }

    pub fn broker(&self) -> usize {
        self.batch.broker
    }

    pub fn id(&self) -> &str {
        self.line().id.of(&self.batch.body)
    }

    pub fn transaction_id(&self) -> &str {
        self.line().transaction_id.of(&self.batch.body)
    }

    pub fn created_at(&self) -> &str {
        self.line().created_at.of(&self.batch.body)
    }

    pub fn partition_id(&self) -> &str {
        self.line().partition_id.of(&self.batch.body)
    }

    pub fn partition(&self) -> &str {
        self.line().partition.of(&self.batch.body)
    }

    pub fn queue(&self) -> &str {
        self.line().queue.as_ref().unwrap_or(&self.batch.popped.queue).of(&self.batch.body)
    }

    pub fn group(&self) -> &str {
        self.line().consumer_group.of(&self.batch.body)
    }

    pub fn lease_id(&self) -> &str {
        self.line().lease_id.as_ref().unwrap_or(&self.batch.popped.lease_id).of(&self.batch.body)
    }

    pub fn retry_count(&self) -> u32 {
        self.line().retry_count
    }

    pub fn trace_id(&self) -> Option<&str> {
        self.some(&self.line().trace_id)
    }

    pub fn traceparent(&self) -> Option<&str> {
        self.some(&self.line().traceparent)
    }

    pub fn tracestate(&self) -> Option<&str> {
        self.some(&self.line().tracestate)
    }

    pub fn producer(&self) -> Option<&str> {
        self.some(&self.line().producer_sub)
    }

    pub fn is_auto_acked(&self) -> bool {
        !self.batch.taken && self.lease_id().is_empty()
    }

    /// Its position in what was delivered with it.
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn settle(&self, settled: Settled) {
        self.batch.settle(self.index, settled);
    }

    /// See [`Batch::handled_before`].
    pub fn handled_before(&self) -> Option<Self> {
        self.batch.handled_before(self.index).map(|index| self.batch.envelope(index))
    }

    pub fn undecodable(&self, error: serde_json::Error) -> Error {
        let text = format!("the payload of message {} cannot be decoded: {error}", self.transaction_id());
        Error::new(ErrorKind::Decode, text).with_source(error)
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Envelope").field("transaction_id", &self.transaction_id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Queen;
    use crate::want::Source;
    use serde_json::Value;

    pub fn batch(body: &str) -> Arc<Batch> {
        let shared = Queen::connect("http://localhost").unwrap().shared;
        let body = body.as_bytes().to_vec();
        let answer = Answered { status: 200, body, broker: 0, attempts: 1, uncertain: false };
        let want = Want::new(Source::Queue { queue: "orders".into(), partition: None }, None);
        read(&shared, &want, answer).unwrap().unwrap()
    }

    /// Of the group `billing` in the partition `p1`, under the lease `lease`.
    pub fn message(transaction_id: &str) -> Message<u8> {
        let id = serde_json::to_string(transaction_id).unwrap();
        let body = format!(
            r#"{{"leaseId":"lease","messages":[{{"id":"1","transactionId":{id},"data":7,"partitionId":"p1",
                "consumerGroup":"billing"}}]}}"#
        );
        batch(&body).decode(0).unwrap()
    }

    #[test]
    fn an_answer_is_read_with_its_payloads_left_alone() {
        let batch = batch(
            r#"{"success":true,"queue":"orders","leaseId":"L","leaseSeconds":7,"later":[1],"messages":[
            {"id":"1","transactionId":"a\"b","data":{"n": 1e400},"createdAt":"t","partitionId":"p1","partition":"x",
             "queue":"orders","leaseId":"L","consumerGroup":"ü","retryCount":2,"traceparent":"00-1","traceId":null},
            {"id":"2","transactionId":"c","data":null,"partitionId":"p2","partition":"y","consumerGroup":"g"}]}"#,
        );
        assert_eq!((batch.lease_seconds, batch.broker, batch.lease_id()), (7, 0, "L"));
        let first: Message<Box<RawValue>> = batch.decode(0).unwrap();
        assert_eq!(
            (first.data.get(), first.transaction_id(), first.retry_count()),
            (r#"{"n": 1e400}"#, "a\"b", 2)
        );
        assert_eq!((first.traceparent(), first.trace_id(), first.group()), (Some("00-1"), None, "ü"));
        let second: Message<Value> = batch.decode(1).unwrap();
        assert_eq!((second.data.clone(), second.queue(), second.lease_id()), (Value::Null, "orders", "L"));
        assert_eq!((second.id(), second.created_at(), second.partition()), ("2", "", "y"));
        assert_eq!(batch.heads(), [(0, None), (1, None)]);
        assert_eq!(batch.decode::<u8>(1).unwrap_err().kind(), ErrorKind::Decode);
        assert_eq!(
            batch.decode_all::<Value>().unwrap_err().kind(),
            ErrorKind::Decode,
            "1e400 is no number of serde's"
        );
    }

    /// Messages of these partitions, in this order.
    fn of(partitions: &str) -> Arc<Batch> {
        let line = |(index, partition): (usize, &str)| {
            format!(r#"{{"id":"{index}","transactionId":"t{index}","data":1,"partitionId":"{partition}"}}"#)
        };
        let lines: Vec<String> = partitions.split(' ').enumerate().map(line).collect();
        batch(&format!(r#"{{"leaseId":"L","messages":[{}]}}"#, lines.join(",")))
    }

    #[test]
    fn the_heads_of_partitions_are_found_however_they_are_mixed() {
        assert_eq!(of("a b a a c b").heads(), [(0, Some(2)), (1, Some(5)), (4, None)]);
    }

    #[test]
    fn a_batch_is_settled_when_every_partition_is_done_to_its_end_or_given_back() {
        let batch = of("a a b b");
        batch.settle(0, Settled::Done);
        batch.settle(3, Settled::Done);
        assert_eq!(batch.done(), [true, false, true, true]);
        assert!(!batch.is_settled());
        batch.settle(0, Settled::GivenBack);
        assert!(batch.is_settled() && batch.is_given_back(0));
        let handled = of("a a");
        handled.settle(1, Settled::Handled);
        assert!(!handled.is_settled(), "nobody has told the broker");
    }

    #[test]
    fn what_is_handled_before_a_message_is_known_as_long_as_it_is_not_told() {
        let batch = of("a b a a");
        assert_eq!(batch.handled_before(2), None);
        batch.settle(0, Settled::Handled);
        assert_eq!((batch.handled_before(2), batch.handled_before(3)), (Some(0), None));
        batch.settle(0, Settled::Done);
        assert_eq!((batch.handled_before(2), batch.handled_before(1)), (None, None));
    }
}
