//! Request bodies and the parts of answers that are checked. Pure: it sends nothing.

use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::client::Reply;

/// What each payload carries, so that a receiver can tell loss, repetition and disorder.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Stamp {
    pub producer: u32,
    pub partition: u32,
    /// Counts from 0 per (producer, partition).
    pub seq: u32,
    /// Nanoseconds since the bench started.
    pub sent: u64,
}

pub fn partition_name(partition: u32) -> String {
    format!("p{partition}")
}

/// Writes push requests. Transaction ids are fresh version 7 UUIDs, as the published clients send.
pub struct PushBody {
    item_head: Arc<str>,
    payload_bytes: usize,
    random: Random,
    unix_ms: u64,
    body: Vec<u8>,
    items: usize,
}

impl PushBody {
    pub fn new(queue: &str, payload_bytes: usize) -> PushBody {
        let item_head = format!(r#"{{"queue":"{queue}","partition":"p"#).into();
        let random = Random::from_entropy();
        PushBody { item_head, payload_bytes, random, unix_ms: 0, body: Vec::new(), items: 0 }
    }

    pub fn add(&mut self, stamp: Stamp) {
        if self.items == 0 {
            self.body.extend_from_slice(br#"{"items":["#);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
            self.unix_ms = now.as_millis() as u64;
        } else {
            self.body.push(b',');
        }
        self.items += 1;
        let Stamp { producer, partition, seq, sent } = stamp;
        self.body.extend_from_slice(self.item_head.as_bytes());
        write!(self.body, r#"{partition}","payload":"#).expect("a Vec takes every write");
        let start = self.body.len();
        write!(
            self.body,
            r#"{{"producer":{producer},"partition":{partition},"seq":{seq},"sent":{sent},"pad":""#
        )
        .expect("a Vec takes every write");
        let pad_bytes = self.payload_bytes.saturating_sub(self.body.len() - start + 2);
        self.body.extend_from_slice(self.random.pad(pad_bytes));
        self.body.extend_from_slice(br#""},"transactionId":""#);
        self.random.write_uuid(self.unix_ms, &mut self.body);
        self.body.extend_from_slice(br#""}"#);
    }

    pub fn items(&self) -> usize {
        self.items
    }

    pub fn finish(&mut self) -> Bytes {
        self.body.extend_from_slice(b"]}");
        self.items = 0;
        let capacity = self.body.len();
        Bytes::from(std::mem::replace(&mut self.body, Vec::with_capacity(capacity)))
    }
}

/// Fails unless every one of `items` messages was stored.
pub fn check_pushed(reply: &Reply, items: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Pushed<'a> {
        status: &'a str,
    }
    expect_status("push", reply, StatusCode::CREATED)?;
    let pushed: Vec<Pushed<'_>> = serde_json::from_slice(&reply.body).context("push answer")?;
    if pushed.len() != items {
        bail!("push of {items} answered {} entries", pushed.len());
    }
    match pushed.iter().find(|item| item.status != "queued") {
        Some(item) => bail!("push answered an item with status `{}`", item.status),
        None => Ok(()),
    }
}

/// Ids stay raw JSON: they are only ever sent back as they came.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message<'a> {
    #[serde(borrow)]
    transaction_id: &'a RawValue,
    #[serde(borrow)]
    partition_id: &'a RawValue,
    #[serde(borrow)]
    lease_id: &'a RawValue,
    pub partition: &'a str,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Message<'_> {
    /// None when the payload is not one of ours.
    pub fn stamp(&self) -> Option<Stamp> {
        serde_json::from_str(self.data.get()).ok()
    }
}

/// The messages of a pop; none for 204.
pub fn popped(reply: &Reply) -> Result<Vec<Message<'_>>> {
    #[derive(Deserialize)]
    struct Popped<'a> {
        #[serde(borrow)]
        messages: Vec<Message<'a>>,
    }
    if reply.status == StatusCode::NO_CONTENT {
        return Ok(Vec::new());
    }
    expect_status("pop", reply, StatusCode::OK)?;
    let popped: Popped<'_> = serde_json::from_slice(&reply.body).context("pop answer")?;
    if popped.messages.is_empty() {
        bail!("pop answered 200 without messages");
    }
    Ok(popped.messages)
}

/// Acknowledges every message by name, as the published clients do for a list.
pub fn ack_body(messages: &[Message<'_>], group: Option<&str>) -> Bytes {
    let mut body = Vec::with_capacity(64 + messages.len() * 192);
    body.extend_from_slice(br#"{"acknowledgments":["#);
    for (index, message) in messages.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let Message { transaction_id, partition_id, lease_id, .. } = message;
        write!(
            body,
            r#"{comma}{{"transactionId":{transaction_id},"partitionId":{partition_id},"leaseId":{lease_id},"status":"completed"}}"#,
        )
        .expect("a Vec takes every write");
    }
    match group {
        Some(group) => write!(body, r#"],"consumerGroup":"{group}"}}"#),
        None => write!(body, r#"],"consumerGroup":null}}"#),
    }
    .expect("a Vec takes every write");
    Bytes::from(body)
}

/// Fails unless every one of `items` acknowledgements was taken.
pub fn check_acked(reply: &Reply, items: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Acked {
        success: bool,
    }
    expect_status("ack", reply, StatusCode::OK)?;
    let acked: Vec<Acked> = serde_json::from_slice(&reply.body).context("ack answer")?;
    if acked.len() != items {
        bail!("ack of {items} answered {} entries", acked.len());
    }
    match acked.iter().filter(|item| !item.success).count() {
        0 => Ok(()),
        refused => bail!("ack refused {refused} of {items} items: {}", excerpt(&reply.body)),
    }
}

pub fn expect_status(operation: &str, reply: &Reply, expected: StatusCode) -> Result<()> {
    if reply.status != expected {
        bail!("{operation} answered {}: {}", reply.status.as_u16(), excerpt(&reply.body));
    }
    Ok(())
}

fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()
}

/// SplitMix64: a few nanoseconds a number, where the system's generator costs a system call.
pub struct Random(u64);

impl Random {
    pub fn from_entropy() -> Random {
        Random(uuid::Uuid::new_v4().as_u64_pair().1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit)) as u32
    }

    fn write_uuid(&mut self, unix_ms: u64, body: &mut Vec<u8>) {
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.next().to_le_bytes());
        random[8..].copy_from_slice(&self.next().to_le_bytes()[..2]);
        let id = uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid();
        let mut text = uuid::Uuid::encode_buffer();
        body.extend_from_slice(id.hyphenated().encode_lower(&mut text).as_bytes());
    }

    /// A window of random text at a random place: equal padding would let a broker or a disk compress it.
    fn pad(&mut self, bytes: usize) -> &'static [u8] {
        static POOL: OnceLock<Vec<u8>> = OnceLock::new();
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let pool = POOL.get_or_init(|| {
            let mut random = Random::from_entropy();
            (0..2 << 20).map(|_| ALPHABET[(random.next() >> 58) as usize]).collect()
        });
        let bytes = bytes.min(pool.len() / 2);
        let start = self.below((pool.len() - bytes) as u32) as usize;
        &pool[start..start + bytes]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_push_body_is_json_with_fresh_ids_and_payloads_of_the_asked_size() {
        let mut body = PushBody::new("orders", 256);
        for seq in 0..3 {
            body.add(Stamp { producer: 1, partition: 7, seq, sent: 99 });
        }
        let parsed: Value = serde_json::from_slice(&body.finish()).unwrap();
        let items = parsed["items"].as_array().unwrap();
        assert_eq!(items.len(), 3);
        assert_eq!(items[2]["queue"], "orders");
        assert_eq!(items[2]["partition"], "p7");
        assert_eq!(items[2]["payload"].to_string().len(), 256);
        let stamp: Stamp = serde_json::from_value(items[2]["payload"].clone()).unwrap();
        assert_eq!(stamp, Stamp { producer: 1, partition: 7, seq: 2, sent: 99 });
        let id: uuid::Uuid = items[0]["transactionId"].as_str().unwrap().parse().unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_ne!(items[0]["transactionId"], items[1]["transactionId"]);
        assert_eq!(body.items(), 0);
    }

    #[test]
    fn an_ack_sends_ids_back_as_they_came() {
        let body = r#"{"messages":[{"transactionId":"t\"1","partitionId":"P","leaseId":"L","partition":"p0","data":1}]}"#;
        let reply = Reply { status: StatusCode::OK, body: Bytes::from_static(body.as_bytes()) };
        let messages = popped(&reply).unwrap();
        assert_eq!(messages[0].stamp(), None);
        let ack: Value = serde_json::from_slice(&ack_body(&messages, Some("g"))).unwrap();
        assert_eq!(ack["consumerGroup"], "g");
        assert_eq!(ack["acknowledgments"][0]["transactionId"], "t\"1");
        assert_eq!(ack["acknowledgments"][0]["leaseId"], "L");
    }

    #[test]
    fn answers_other_than_success_are_errors() {
        let reply = |status, body: &'static str| Reply { status, body: Bytes::from_static(body.as_bytes()) };
        assert!(check_pushed(&reply(StatusCode::CREATED, r#"[{"status":"queued"}]"#), 1).is_ok());
        assert!(check_pushed(&reply(StatusCode::CREATED, r#"[{"status":"queued"}]"#), 2).is_err());
        assert!(check_pushed(&reply(StatusCode::CREATED, r#"[{"status":"buffered"}]"#), 1).is_err());
        assert!(check_pushed(&reply(StatusCode::ACCEPTED, r#"[{"status":"queued"}]"#), 1).is_err());
        assert!(check_acked(&reply(StatusCode::OK, r#"[{"success":true}]"#), 1).is_ok());
        assert!(check_acked(&reply(StatusCode::OK, r#"[{"success":false}]"#), 1).is_err());
        assert!(popped(&reply(StatusCode::NO_CONTENT, "")).unwrap().is_empty());
        assert!(popped(&reply(StatusCode::INTERNAL_SERVER_ERROR, "")).is_err());
    }
}
