//! Pop responses, which are spliced together from stored text: whatever was stored, the response is JSON with what was pushed.

use std::sync::Arc;

use queen_engine::Keys;
use queen_engine::fuzzing::{Delivery, Partition, Segment, TransactionHash, write_answer};
use queen_protocol::LeaseId;
use serde_json::Value;
use uuid::Uuid;

use crate::Input;
use crate::frames::{Parts, payload};

const MESSAGES_MAX: usize = 16;

pub fn answer(data: &[u8]) {
    let mut input = Input::new(data);
    let (queue, name, group, sub) = (input.text(), input.text(), input.text(), input.text());
    let traced = input.flag();
    let mut frames = String::new();
    let mut hashes = Vec::new();
    let mut pushed = Vec::new();
    while !input.is_empty() && pushed.len() < MESSAGES_MAX {
        let (id, payload) = (input.text(), payload(input.bytes()));
        if !pushed.is_empty() {
            frames.push('\n');
        }
        let trace_id = traced.then(|| Uuid::from_u128(3));
        let parts = Parts {
            transaction_id: &id,
            message_id: None,
            trace_id,
            trace: None,
            producer_sub: (!sub.is_empty()).then_some(sub.as_str()),
            key_id: None,
            payload: &payload,
        };
        parts.write(&mut frames);
        hashes.extend_from_slice(&TransactionHash::new(&id, true).to_bytes());
        pushed.push((id, payload));
    }
    if pushed.is_empty() {
        return;
    }
    let last = 5 + pushed.len() as i64;
    let partition = Partition {
        id: Uuid::from_u128(9),
        number: 1,
        queue: queue.as_str().into(),
        name: name.as_str().into(),
    };
    let delivery = Delivery {
        partition: Arc::new(partition),
        first: 5,
        last,
        head: last,
        attempts: 0,
        lease_ms: 60_000,
        segments: vec![Arc::new(Segment::new(5, 1_700_000_000_000_000, hashes, frames))],
    };
    let lease = LeaseId { id: Uuid::from_u128(11), partitions: vec![1], traced };
    let written = write_answer(&[delivery], &group, Some(&lease), false, &Keys::default());
    let written = written.ok().flatten().expect("there is a delivery, and it can be read");
    assert_eq!(written.traced.len(), if traced { pushed.len() } else { 0 });
    let text = std::str::from_utf8(&written.body).expect("JSON is UTF-8");
    // Deeper nesting than serde_json accepts was sent by a producer; consumers have to cope with it.
    let Ok(json) = serde_json::from_str::<Value>(text) else {
        assert!(crate::frames::is_json(text), "{text}");
        return;
    };
    let messages = json["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), pushed.len());
    assert_eq!(
        (json["queue"].as_str(), json["partition"].as_str()),
        (Some(queue.as_str()), Some(name.as_str()))
    );
    assert_eq!(json["consumerGroup"].as_str(), Some(group.as_str()));
    for (message, (id, payload)) in messages.iter().zip(&pushed) {
        assert_eq!(message["transactionId"].as_str(), Some(id.as_str()));
        assert_eq!(message["producerSub"].as_str(), Some(sub.as_str()).filter(|sub| !sub.is_empty()));
        assert_eq!(Some(&message["data"]), serde_json::from_str::<Value>(payload).ok().as_ref());
    }
}
