//! The body of a pop's response, spliced together from frames: no payload is parsed on its way out.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use queen_protocol::{LeaseId, TraceParent, format_micros};
use uuid::Uuid;

use crate::crypt::{Keys, Unreadable};
use crate::life::TracedMessage;
use crate::log::Partition;
use crate::log::frames::{Frame, read_string, write_string};
use crate::log::ids::{message_id, original_id};
use crate::log::segments::Segment;

/// One partition's share of a pop.
pub struct Delivery {
    pub partition: Arc<Partition>,
    pub first: i64,
    pub last: i64,
    /// Of the partition, when it was claimed.
    pub head: i64,
    /// How often its first message has failed.
    pub attempts: i32,
    /// How long the lease lasts; 0 for an automatic ack.
    pub lease_ms: i64,
    pub segments: Vec<Arc<Segment>>,
}

/// What a pop found.
#[derive(Debug)]
pub struct Answer {
    /// The finished JSON.
    pub body: Bytes,
    pub messages: usize,
    /// Of the first partition.
    pub queue: Arc<str>,
    /// `None`: several partitions.
    pub partition: Option<Arc<str>>,
    /// The contexts that traced messages came with.
    pub traces: Vec<TraceParent>,
}

/// The JSON, and what has to be remembered of the messages in it, each with the number of its delivery.
pub struct Written {
    pub body: Bytes,
    pub traced: Vec<(usize, TracedMessage)>,
    /// Offsets of messages whose ids are not computed.
    pub promised: Vec<(usize, Uuid, i64)>,
}

/// A message that cannot be delivered, and the delivery it is in.
#[derive(Debug)]
pub struct Unread {
    pub delivery: usize,
    pub offset: i64,
    pub transaction_id: String,
    pub cause: Unreadable,
}

/// `lease`: `None` for an automatic ack. `brief`: a message states what it has in common with its partition only if
/// that differs from the message before it. Returns `None` if there is nothing to deliver.
pub fn write_answer(
    deliveries: &[Delivery],
    group: &str,
    lease: Option<&LeaseId>,
    brief: bool,
    keys: &Keys,
) -> Result<Option<Written>, Unread> {
    let Some(top) = deliveries.first() else { return Ok(None) };
    let lease = lease.map(LeaseId::to_string).unwrap_or_default();
    let bytes: usize = deliveries.iter().flat_map(|d| &d.segments).map(|s| s.transactions.len() * 20).sum();
    let mut out = String::with_capacity(bytes + 512);
    out.push_str("{\"success\":true,\"queue\":");
    write_string(&mut out, &top.partition.queue);
    out.push_str(",\"partition\":");
    write_string(&mut out, &top.partition.name);
    let _ = write!(out, ",\"partitionId\":\"{}\",\"leaseId\":\"{lease}\"", top.partition.id);
    // Renewing extends all of these leases, so the shortest counts.
    let lease_ms = deliveries.iter().map(|delivery| delivery.lease_ms).min().unwrap_or(0);
    let _ = write!(out, ",\"leaseSeconds\":{},\"consumerGroup\":", lease_ms / 1_000);
    write_string(&mut out, group);
    let _ = write!(out, ",\"partitionsClaimed\":{},\"messages\":[", deliveries.len());
    let mut first = true;
    let (mut traced, mut promised_ids) = (Vec::new(), Vec::new());
    for (index, delivery) in deliveries.iter().enumerate() {
        let first_tail = message_tail(delivery, group, &lease, delivery.attempts);
        // Failures are counted for the first message only.
        let second_tail = match delivery.attempts {
            0 => Cow::Borrowed(first_tail.as_str()),
            _ => Cow::Owned(message_tail(delivery, group, &lease, 0)),
        };
        let (second, rest) = match (brief, delivery.attempts) {
            (false, _) => (&*second_tail, &*second_tail),
            (true, 0) => (BRIEF_TAIL, BRIEF_TAIL),
            (true, _) => (&*second_tail, BRIEF_TAIL),
        };
        let mut tails = [first_tail.as_str(), second].into_iter();
        for segment in &delivery.segments {
            let created_at = format_micros(segment.created_at);
            let range = delivery.first.max(segment.base_offset)..delivery.last.min(segment.end());
            for offset in range {
                let Some(frame) = Frame::parse(segment.frame(offset)) else { continue };
                if !std::mem::take(&mut first) {
                    out.push(',');
                }
                out.push_str("{\"id\":");
                match frame.message_id {
                    Some(promised) => {
                        out.push_str(promised);
                        promised_ids.extend(frame.promised().map(|id| (index, id, offset)));
                    }
                    None => {
                        let id = message_id(segment.created_at, offset, delivery.partition.number);
                        let _ = write!(out, "\"{id}\"");
                    }
                }
                out.push_str(",\"transactionId\":");
                out.push_str(frame.transaction_id);
                if let Some(original) = original_id(frame.transaction_id.trim_matches('"')) {
                    let _ = write!(out, ",\"originalTransactionId\":\"{original}\"");
                }
                write_nullable(&mut out, ",\"traceId\":", frame.trace_id, brief);
                if frame.is_traced() {
                    write_trace(&mut out, &frame);
                    traced.push((index, traced_message(&frame, delivery, segment, offset)));
                }
                out.push_str(",\"data\":");
                match frame.key_id {
                    None => out.push_str(frame.payload),
                    Some(_) => {
                        let opened = frame.open(keys).map_err(|cause| Unread {
                            delivery: index,
                            offset,
                            transaction_id: read_string(frame.transaction_id),
                            cause,
                        });
                        out.push_str(&opened?);
                    }
                }
                write_nullable(&mut out, ",\"producerSub\":", frame.producer_sub, brief);
                out.push_str(",\"createdAt\":\"");
                out.push_str(&created_at);
                out.push_str(tails.next().unwrap_or(rest));
            }
        }
    }
    out.push_str("]}");
    Ok(Some(Written { body: Bytes::from(out), traced, promised: promised_ids }))
}

/// The brief form leaves nulls out.
fn write_nullable(out: &mut String, key: &str, value: Option<&str>, brief: bool) {
    if value.is_some() || !brief {
        out.push_str(key);
        out.push_str(value.unwrap_or("null"));
    }
}

fn write_trace(out: &mut String, frame: &Frame<'_>) {
    if let Some(parent) = frame.trace_parent {
        let _ = write!(out, ",\"traceparent\":{parent}");
    }
    if let Some(state) = frame.trace_state {
        let _ = write!(out, ",\"tracestate\":{state}");
    }
}

fn traced_message(frame: &Frame<'_>, delivery: &Delivery, segment: &Segment, offset: i64) -> TracedMessage {
    TracedMessage {
        offset,
        message_id: frame
            .promised()
            .unwrap_or_else(|| message_id(segment.created_at, offset, delivery.partition.number)),
        transaction_id: read_string(frame.transaction_id).into(),
        parent: frame.trace_parent.and_then(|parent| TraceParent::parse(parent.trim_matches('"'))),
    }
}

/// The end of a message that says nothing about its partition.
const BRIEF_TAIL: &str = "\"}";

/// What is the same for every message of a partition, except for the count of failures.
fn message_tail(delivery: &Delivery, group: &str, lease: &str, attempts: i32) -> String {
    let mut tail = String::new();
    let _ = write!(tail, "\",\"partitionId\":\"{}\",\"partition\":", delivery.partition.id);
    write_string(&mut tail, &delivery.partition.name);
    tail.push_str(",\"queue\":");
    write_string(&mut tail, &delivery.partition.queue);
    let _ = write!(tail, ",\"leaseId\":\"{lease}\",\"consumerGroup\":");
    write_string(&mut tail, group);
    let _ = write!(tail, ",\"retryCount\":{attempts}}}");
    tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::frames::write_frame;
    use queen_protocol::Trace;
    use serde_json::Value;

    #[test]
    fn an_answer_is_json_with_the_senders_payload_and_only_the_leased_range() {
        let mut frames = String::new();
        for (index, payload) in ["{\"a\": 1e400}", "null", "\"\\u0000\""].iter().enumerate() {
            if index > 0 {
                frames.push('\n');
            }
            let parent = TraceParent::new(7, 8, 1).filter(|_| index == 2);
            let trace = parent.map(|parent| Trace { parent, state: Some("a=\"1\"") });
            write_frame(&mut frames, &format!("t\"{index}"), None, None, trace, None, None, payload);
        }
        let segment = Arc::new(Segment::new(10, 1_767_261_600_123_456, vec![0; 48], frames));
        let partition =
            Partition { id: Uuid::from_u128(5), number: 3, queue: "q \"x\"".into(), name: "🐝".into() };
        let delivery = Delivery {
            partition: Arc::new(partition),
            first: 11,
            last: 13,
            head: 13,
            attempts: 2,
            lease_ms: 30_000,
            segments: vec![segment],
        };
        let lease = LeaseId { id: Uuid::from_u128(9), partitions: vec![3], traced: true };
        let written = write_answer(&[delivery], "g", Some(&lease), false, &Keys::default()).unwrap().unwrap();
        let text = std::str::from_utf8(&written.body).unwrap();
        let json: Value = serde_json::from_str(text).unwrap();
        assert_eq!(json["leaseSeconds"], 30);
        let messages = json["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0]["transactionId"], "t\"1");
        assert_eq!(messages[0]["data"], Value::Null);
        assert!(text.contains("\"data\":\"\\u0000\""));
        assert_eq!(messages[1]["queue"], "q \"x\"");
        assert_eq!((&messages[0]["retryCount"], &messages[1]["retryCount"]), (&2.into(), &0.into()));
        assert_eq!(messages[1]["createdAt"], "2026-01-01T10:00:00.123456Z");
        assert_eq!(messages[1]["leaseId"], json["leaseId"]);
        assert!(messages[0]["id"].as_str() < messages[1]["id"].as_str());
        assert!(messages[0].get("traceparent").is_none() && messages[0].get("tracestate").is_none());
        assert_eq!(messages[1]["traceparent"], "00-00000000000000000000000000000007-0000000000000008-01");
        assert_eq!(messages[1]["tracestate"], "a=\"1\"");
        let [(0, traced)] = &written.traced[..] else { panic!("one message is traced") };
        assert_eq!((traced.offset, &*traced.transaction_id), (12, "t\"2"));
        assert_eq!(messages[1]["id"], traced.message_id.to_string());
        assert_eq!(traced.parent, TraceParent::new(7, 8, 1));
    }

    #[test]
    fn a_brief_answer_says_once_what_the_messages_of_a_partition_have_in_common() {
        let delivery = |number: i64| {
            let mut frames = String::new();
            for id in ["a", "b", "c"] {
                let sub = (id == "b").then_some("bob");
                write_frame(&mut frames, id, None, None, None, sub, None, "1");
                frames.push('\n');
            }
            let segment = Segment::new(0, 0, vec![0; 48], frames.trim_end().to_owned());
            let partition =
                Partition { id: Uuid::nil(), number, queue: "q".into(), name: format!("p{number}").into() };
            let (partition, segments) = (Arc::new(partition), vec![Arc::new(segment)]);
            // One of them has failed before.
            let attempts = (number - 1) as i32;
            Delivery { partition, first: 0, last: 3, head: 3, attempts, lease_ms: 1_000, segments }
        };
        let deliveries = [delivery(1), delivery(2)];
        let read = |brief| -> Vec<Value> {
            let written = write_answer(&deliveries, "g", None, brief, &Keys::default()).unwrap().unwrap();
            let answer: Value = serde_json::from_slice(&written.body).unwrap();
            answer["messages"].as_array().unwrap().clone()
        };
        let (full, mut brief) = (read(false), read(true));
        let keys =
            |message: &Value| message.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(keys(&brief[1]), "createdAt data id producerSub transactionId");
        assert_eq!(keys(&brief[5]), "createdAt data id transactionId");
        let counts: Vec<&Value> = full.iter().map(|message| &message["retryCount"]).collect();
        assert_eq!(counts, [0, 0, 0, 1, 0, 0]);
        assert_eq!(brief[4]["retryCount"], 0, "the one before it has another");
        // Filling in what was left out gives the other form.
        let common = ["partitionId", "partition", "queue", "leaseId", "consumerGroup", "retryCount"];
        for index in 0..brief.len() {
            for key in common {
                let before = index.checked_sub(1).map(|before| brief[before][key].clone());
                let message = brief[index].as_object_mut().unwrap();
                message.entry(key).or_insert_with(|| before.unwrap());
            }
            for key in ["traceId", "producerSub"] {
                brief[index].as_object_mut().unwrap().entry(key).or_insert(Value::Null);
            }
        }
        assert_eq!(brief, full);
    }
}
