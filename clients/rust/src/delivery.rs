//! The result of a pop. The response is kept as received and messages are positions in it, so that reading a large batch costs
//! few allocations, and each payload is parsed once, into the requested type.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use bytestring::ByteString;
use serde::de::DeserializeOwned;

use crate::ack::{Ack, Status};
use crate::call::Answered;
use crate::error::{Error, ErrorKind};
use crate::message::{Message, Taken, whole_seconds};
use crate::queen::Shared;
use crate::scan::{Malformed, Place, Scanner, Text};
use crate::want::Want;
use crate::wire;

/// The broker's name for the group of consumers without a group.
const QUEUE_MODE: &str = "__QUEUE_MODE__";
const NOTHING: u16 = 204;
/// The broker's default lease time, if the response does not contain one.
const LEASE_SECONDS: u64 = 60;
/// Typical size of a message in a response, to estimate their number.
const USUAL_BYTES: usize = 256;

/// A response with at least one message.
pub(crate) struct Batch {
    pub shared: Arc<Shared>,
    /// The broker that delivered it.
    pub broker: usize,
    pub lease_seconds: u64,
    /// Popped elsewhere and described by the caller. Without a lease, it may still need an acknowledgement.
    taken: bool,
    body: ByteString,
    popped: Popped,
}

/// The parsed response.
#[derive(Default)]
struct Popped {
    success: Option<bool>,
    error: Option<Text>,
    queue: Option<Text>,
    lease_id: Option<Text>,
    lease_seconds: Option<u64>,
    messages: Vec<Line>,
    lanes: Vec<Lane>,
}

/// A message in the response.
struct Line {
    /// Index of its partition.
    lane: usize,
    id: Option<Text>,
    transaction_id: Text,
    data: Payload,
    created_at: Option<Text>,
    /// Fields that most messages do not have.
    rare: Option<Box<Rare>>,
    settled: AtomicU8,
}

#[derive(Default)]
struct Rare {
    trace_id: Option<Text>,
    traceparent: Option<Text>,
    tracestate: Option<Text>,
    producer: Option<Text>,
    original_transaction_id: Option<Text>,
}

/// Fields that a message shares with its neighbors.
struct Lane {
    partition_id: Text,
    partition: Option<Text>,
    queue: Option<Text>,
    lease_id: Option<Text>,
    group: Option<Text>,
    retry_count: u32,
    /// The raw text of these fields, if it ends the message as brokers write it. If it repeats, it need not be parsed again.
    tail: Option<Place>,
}

/// An unparsed payload.
enum Payload {
    At(Place),
    /// Of a message that was popped elsewhere.
    Unknown,
}

impl Payload {
    fn of<'a>(&self, body: &'a str) -> &'a str {
        match self {
            Self::At(place) => place.of(body),
            Self::Unknown => "null",
        }
    }
}

impl Popped {
    fn read(body: &str) -> Result<Self, Malformed> {
        let mut popped = Self::default();
        let mut scanner = Scanner::new(body)?;
        scanner.object(|scanner, key| {
            match key {
                "success" => popped.success = scanner.flag()?,
                "error" => popped.error = scanner.text()?,
                "queue" => popped.queue = scanner.text()?,
                "leaseId" => popped.lease_id = scanner.text()?,
                "leaseSeconds" => popped.lease_seconds = scanner.number()?,
                "messages" => {
                    popped.messages.reserve(body.len() / USUAL_BYTES);
                    scanner.array(|scanner| popped.message(scanner))?;
                }
                _ => _ = scanner.skip()?,
            }
            Ok(())
        })?;
        scanner.end()?;
        Ok(popped)
    }

    fn message(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Malformed> {
        let (mut id, mut transaction_id, mut data, mut created_at) = (None, None, None, None);
        let (mut partition_id, mut partition, mut queue) = (None, None, None);
        let (mut lease_id, mut group, mut retry_count) = (None, None, None);
        let (mut rare, mut tail, mut repeats) = (None, None, false);
        let before = self.lanes.last().and_then(|lane| lane.tail);
        scanner.object(|scanner, key| {
            // What follows the partition id is the shared tail, unless it contains a field of this message only.
            let own = !matches!(key, "partition" | "queue" | "leaseId" | "consumerGroup" | "retryCount");
            if own {
                tail = None;
            }
            match key {
                "id" => id = scanner.text()?,
                "transactionId" => transaction_id = scanner.text()?,
                "data" => data = Some(Payload::At(scanner.skip()?)),
                "createdAt" => created_at = scanner.text()?,
                "partitionId" => {
                    repeats = before.is_some_and(|before| scanner.repeats(before));
                    if !repeats {
                        tail = Some(scanner.here());
                        partition_id = scanner.text()?;
                    }
                }
                "partition" => partition = scanner.text()?,
                "queue" => queue = scanner.text()?,
                "leaseId" => lease_id = scanner.text()?,
                "consumerGroup" => group = scanner.text()?,
                "retryCount" => retry_count = scanner.number()?,
                "traceId" => keep(scanner, &mut rare, |rare| &mut rare.trace_id)?,
                "traceparent" => keep(scanner, &mut rare, |rare| &mut rare.traceparent)?,
                "tracestate" => keep(scanner, &mut rare, |rare| &mut rare.tracestate)?,
                "producerSub" => keep(scanner, &mut rare, |rare| &mut rare.producer)?,
                "originalTransactionId" => {
                    keep(scanner, &mut rare, |rare| &mut rare.original_transaction_id)?
                }
                _ => _ = scanner.skip()?,
            }
            Ok(())
        })?;
        let (Some(transaction_id), Some(data)) = (transaction_id, data) else {
            return Err(scanner.malformed("a message without a transactionId or data"));
        };
        // In a brief response, only the first message of a partition names it.
        if !repeats && (partition_id.is_some() || self.lanes.is_empty()) {
            let missing = || scanner.malformed("a message without a partitionId");
            let partition_id = partition_id.ok_or_else(missing)?;
            let retry_count = retry_count.unwrap_or_default();
            // Without the brace.
            let tail = tail.map(|start| scanner.since(start).shorter());
            self.lanes.push(Lane { partition_id, partition, queue, lease_id, group, retry_count, tail });
        }
        let (lane, settled) = (self.lanes.len() - 1, AtomicU8::default());
        self.messages.push(Line { lane, id, transaction_id, data, created_at, rare, settled });
        Ok(())
    }
}

/// A text that is almost always null.
fn keep(
    scanner: &mut Scanner<'_>,
    rare: &mut Option<Box<Rare>>,
    place: impl FnOnce(&mut Rare) -> &mut Option<Text>,
) -> Result<(), Malformed> {
    if let Some(text) = scanner.text()? {
        *place(rare.get_or_insert_default()) = Some(text);
    }
    Ok(())
}

/// The reported outcome of a message so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Its consumer will acknowledge it.
    Handled = 1,
    /// Completed, with everything before it in its partition.
    Done = 2,
    /// Returned for redelivery or dead-lettering: nothing more is reported for its partition.
    GivenBack = 3,
}

/// `None`: no messages.
pub(crate) fn read(shared: &Arc<Shared>, want: &Want, answer: Answered) -> Result<Option<Arc<Batch>>, Error> {
    if answer.status == NOTHING || answer.body.is_empty() {
        return Ok(None);
    }
    let body = ByteString::try_from(answer.body)
        .map_err(|error| Error::new(ErrorKind::Decode, error.to_string()))?;
    let popped = Popped::read(&body).map_err(|why| wire::unreadable(&body, &why))?;
    if popped.success == Some(false) {
        let why = popped.error.as_ref().map(|error| error.of(&body));
        let why = why.unwrap_or("the broker refused without giving a reason").to_owned();
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
    /// A batch of one message that was popped elsewhere.
    pub fn taken(shared: Arc<Shared>, message: Taken) -> Arc<Self> {
        let line = Line {
            lane: 0,
            id: message.id.map(Text::from),
            transaction_id: message.transaction_id.into(),
            data: Payload::Unknown,
            created_at: None,
            rare: None,
            settled: AtomicU8::default(),
        };
        let lane = Lane {
            partition_id: message.partition_id.into(),
            partition: None,
            queue: None,
            lease_id: message.lease_id.map(Text::from),
            group: Some(message.group.unwrap_or_else(|| QUEUE_MODE.to_owned()).into()),
            retry_count: 0,
            tail: None,
        };
        let popped = Popped { messages: vec![line], lanes: vec![lane], ..Popped::default() };
        // The delivering broker is unknown; any broker will do.
        let (broker, lease_seconds, body) = (0, LEASE_SECONDS, ByteString::new());
        Arc::new(Self { shared, broker, lease_seconds, taken: true, body, popped })
    }

    pub fn len(&self) -> usize {
        self.popped.messages.len()
    }

    fn lane(&self, index: usize) -> &Lane {
        &self.popped.lanes[self.popped.messages[index].lane]
    }

    pub fn partition_id(&self, index: usize) -> &str {
        self.lane(index).partition_id.of(&self.body)
    }

    /// Of the whole response.
    pub fn lease_id(&self) -> &str {
        let first = self.popped.lanes.first().and_then(|lane| lane.lease_id.as_ref());
        first.or(self.popped.lease_id.as_ref()).map_or("", |id| id.of(&self.body))
    }

    pub fn envelope(self: &Arc<Self>, index: usize) -> Envelope {
        Envelope { batch: self.clone(), index }
    }

    pub fn decode<T: DeserializeOwned>(self: &Arc<Self>, index: usize) -> Result<Message<T>, Error> {
        let envelope = self.envelope(index);
        match serde_json::from_str(self.popped.messages[index].data.of(&self.body)) {
            Ok(data) => Ok(Message { data, envelope }),
            Err(error) => Err(envelope.undecodable(error)),
        }
    }

    /// All messages, or the first error.
    pub fn decode_all<T: DeserializeOwned>(self: &Arc<Self>) -> Result<Vec<Message<T>>, Error> {
        (0..self.len()).map(|index| self.decode(index)).collect()
    }

    pub fn ack(self: &Arc<Self>, index: usize, status: Status, error: Option<String>) -> Ack {
        Ack { envelope: self.envelope(index), status, error }
    }

    /// The first message of each partition, and the one after it.
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

    /// Its consumer will acknowledge it, unless its handler has reported another outcome.
    pub fn handled(&self, index: usize) {
        // A plain exchange is enough, because the handler has returned.
        if self.popped.messages[index].settled.load(Relaxed) == 0 {
            self.settle(index, Settled::Handled);
        }
    }

    /// Whether it was acknowledged.
    pub fn is_done(&self, index: usize) -> bool {
        self.is(index, Settled::Done)
    }

    /// Whether it was returned for redelivery.
    pub fn is_given_back(&self, index: usize) -> bool {
        self.is(index, Settled::GivenBack)
    }

    /// For each message, whether it or a later one of its partition was acknowledged.
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

    /// Whether all messages were acknowledged or returned, so that there is no lease left to lose.
    pub fn is_settled(&self) -> bool {
        let given_back: Vec<&str> = (0..self.len())
            .filter(|&index| self.is_given_back(index))
            .map(|index| self.partition_id(index))
            .collect();
        let done = self.done();
        (0..self.len()).all(|index| done[index] || given_back.contains(&self.partition_id(index)))
    }

    /// The message before this one in its partition, if its consumer has not acknowledged it yet.
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

/// Everything about a message except its payload.
#[derive(Clone)]
pub(crate) struct Envelope {
    batch: Arc<Batch>,
    index: usize,
}

impl Envelope {
    fn line(&self) -> &Line {
        &self.batch.popped.messages[self.index]
    }

    fn lane(&self) -> &Lane {
        self.batch.lane(self.index)
    }

    fn some<'a>(&'a self, text: &'a Option<Text>) -> Option<&'a str> {
        text.as_ref().map(|text| text.of(&self.batch.body))
    }

    fn rare(&self, text: impl FnOnce(&Rare) -> &Option<Text>) -> Option<&str> {
        self.line().rare.as_deref().and_then(|rare| self.some(text(rare)))
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.batch.shared
    }

    pub fn broker(&self) -> usize {
        self.batch.broker
    }

    pub fn id(&self) -> &str {
        self.some(&self.line().id).unwrap_or_default()
    }

    pub fn transaction_id(&self) -> &str {
        self.line().transaction_id.of(&self.batch.body)
    }

    pub fn created_at(&self) -> &str {
        self.some(&self.line().created_at).unwrap_or_default()
    }

    pub fn partition_id(&self) -> &str {
        self.batch.partition_id(self.index)
    }

    pub fn partition(&self) -> &str {
        self.some(&self.lane().partition).unwrap_or_default()
    }

    pub fn queue(&self) -> &str {
        self.some(&self.lane().queue).or(self.some(&self.batch.popped.queue)).unwrap_or_default()
    }

    pub fn group(&self) -> &str {
        self.some(&self.lane().group).unwrap_or_default()
    }

    pub fn lease_id(&self) -> &str {
        self.some(&self.lane().lease_id).or(self.some(&self.batch.popped.lease_id)).unwrap_or_default()
    }

    pub fn retry_count(&self) -> u32 {
        self.lane().retry_count
    }

    pub fn trace_id(&self) -> Option<&str> {
        self.rare(|rare| &rare.trace_id)
    }

    pub fn traceparent(&self) -> Option<&str> {
        self.rare(|rare| &rare.traceparent)
    }

    pub fn tracestate(&self) -> Option<&str> {
        self.rare(|rare| &rare.tracestate)
    }

    pub fn producer(&self) -> Option<&str> {
        self.rare(|rare| &rare.producer)
    }

    pub fn original_transaction_id(&self) -> Option<&str> {
        self.rare(|rare| &rare.original_transaction_id)
    }

    pub fn is_auto_acked(&self) -> bool {
        !self.batch.taken && self.lease_id().is_empty()
    }

    /// Its index in the delivery.
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
    use serde_json::value::RawValue;

    pub fn batch(body: &str) -> Arc<Batch> {
        let shared = Queen::connect("http://localhost").unwrap().shared;
        let body = body.to_owned().into();
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

    #[test]
    fn what_messages_have_in_common_is_read_once_and_what_differs_for_each() {
        let line = |id: u8, more: &str, retries: u32| {
            format!(
                r#"{{"id":"{id}","transactionId":"t{id}","traceId":null,"data":{{"partitionId":{id}}}{more},"partitionId":"p1",
                "partition":"x","queue":"orders","leaseId":"L","consumerGroup":"g","retryCount":{retries}}}"#
            )
        };
        let other = line(7, "", 1).replace("p1", "p2");
        let brief = r#"{"transactionId":"t9","data":1}"#;
        let mixed = r#"{"partitionId":"p2","transactionId":"t8","partition":"z","data":1,"retryCount":9}"#;
        let lines = [
            &*line(1, "", 1),
            &line(2, r#","producerSub":"bob""#, 1),
            &line(3, "", 12),
            &other,
            &other,
            mixed,
            mixed,
            brief,
        ];
        let batch = batch(&format!(r#"{{"leaseId":"all","messages":[{}]}}"#, lines.join(",")));
        let told: Vec<String> = (0..batch.len())
            .map(|index| {
                let message: Message<Value> = batch.decode(index).unwrap();
                let (lane, id) = (message.partition_id(), message.transaction_id());
                let name = message.partition();
                format!(
                    "{id} {lane} {name} {} {} {:?}",
                    message.retry_count(),
                    message.lease_id(),
                    message.producer()
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                "t1 p1 x 1 L None",
                "t2 p1 x 1 L Some(\"bob\")",
                "t3 p1 x 12 L None",
                "t7 p2 x 1 L None",
                "t7 p2 x 1 L None",
                "t8 p2 z 9 all None",
                "t8 p2 z 9 all None",
                "t9 p2 z 9 all None",
            ]
        );
        assert_eq!(batch.popped.lanes.len(), 5, "two were repeated");
    }

    #[test]
    fn a_message_that_lacks_what_it_needs_makes_the_answer_unreadable() {
        let shared = Queen::connect("http://localhost").unwrap().shared;
        let want = Want::new(Source::Queue { queue: "orders".into(), partition: None }, None);
        for line in [
            r#"{"transactionId":"t","data":1}"#,
            r#"{"partitionId":"p","data":1}"#,
            r#"{"transactionId":"t","partitionId":"p"}"#,
        ] {
            let body = format!(r#"{{"messages":[{line}]}}"#).into();
            let answer = Answered { status: 200, body, broker: 0, attempts: 1, uncertain: false };
            let error = read(&shared, &want, answer).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Decode && error.text().contains("a message without"),
                "{error}"
            );
        }
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
    fn earlier_handled_messages_are_known_until_they_are_reported() {
        let batch = of("a b a a");
        assert_eq!(batch.handled_before(2), None);
        batch.settle(0, Settled::Handled);
        assert_eq!((batch.handled_before(2), batch.handled_before(3)), (Some(0), None));
        batch.settle(0, Settled::Done);
        assert_eq!((batch.handled_before(2), batch.handled_before(1)), (None, None));
    }
}
