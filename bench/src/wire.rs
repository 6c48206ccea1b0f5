//! Request bodies, and the parts of responses that are checked. Pure: it sends nothing.

use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use memchr::memmem;
use queen_testkit::Random;
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::client::Reply;

/// Contents of each payload, with which a receiver detects loss, repetition and disorder.
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

/// The part of a pop's query that names its group. The start is explicit because brokers have different defaults: some start with
/// new messages.
pub fn group_query(group: &str) -> String {
    format!("&consumerGroup={group}&subscriptionMode=all")
}

/// Writes payloads with a stamp, padded to their size, and their transaction ids: version 7 UUIDs, as the published clients send.
pub struct Payloads {
    bytes: usize,
    random: Random,
    pad: Pad,
    unix_ms: u64,
}

impl Payloads {
    pub fn new(bytes: usize) -> Payloads {
        let mut random = Random::from_entropy();
        let pad = Pad::new(&mut random);
        Payloads { bytes, random, pad, unix_ms: 0 }
    }

    /// Sets the time of the following ids; once per request is enough.
    pub fn look_at_clock(&mut self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
        self.unix_ms = now.as_millis() as u64;
    }

    pub fn write(&mut self, stamp: Stamp, out: &mut Vec<u8>) {
        let Stamp { producer, partition, seq, sent } = stamp;
        let start = out.len();
        write!(out, r#"{{"producer":{producer},"partition":{partition},"seq":{seq},"sent":{sent},"pad":""#)
            .expect("a Vec takes every write");
        let pad_bytes = self.bytes.saturating_sub(out.len() - start + 2);
        out.extend_from_slice(self.pad.next(pad_bytes));
        out.extend_from_slice(br#""}"#);
    }

    pub fn write_id(&mut self, out: &mut Vec<u8>) {
        write_uuid(&mut self.random, self.unix_ms, out);
    }
}

/// Writes push requests.
pub struct PushBody {
    item_head: Arc<str>,
    payloads: Payloads,
    body: Vec<u8>,
    items: usize,
}

impl PushBody {
    pub fn new(queue: &str, payload_bytes: usize) -> PushBody {
        let item_head = format!(r#"{{"queue":"{queue}","partition":"p"#).into();
        PushBody { item_head, payloads: Payloads::new(payload_bytes), body: Vec::new(), items: 0 }
    }

    pub fn add(&mut self, stamp: Stamp) {
        if self.items == 0 {
            self.body.clear();
            self.body.extend_from_slice(br#"{"items":["#);
            self.payloads.look_at_clock();
        } else {
            self.body.push(b',');
        }
        self.items += 1;
        self.body.extend_from_slice(self.item_head.as_bytes());
        write!(self.body, r#"{}","payload":"#, stamp.partition).expect("a Vec takes every write");
        self.payloads.write(stamp, &mut self.body);
        self.body.extend_from_slice(br#","transactionId":""#);
        self.payloads.write_id(&mut self.body);
        self.body.extend_from_slice(br#""}"#);
    }

    pub fn items(&self) -> usize {
        self.items
    }

    /// Starts a new request in the same memory.
    pub fn finish(&mut self) -> &[u8] {
        self.body.extend_from_slice(b"]}");
        self.items = 0;
        &self.body
    }
}

const STATUS: &[u8] = br#""status""#;
const QUEUED: &[u8] = br#""queued""#;
const SUCCESS: &[u8] = br#""success""#;
const SUCCESS_TRUE: &[u8] = br#""success":true"#;
const TRANSACTION_ID: &[u8] = br#""transactionId""#;

/// Fails unless every one of `items` messages was stored.
pub fn check_pushed(reply: &Reply, items: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Pushed<'a> {
        status: &'a str,
    }
    expect_status("push", reply, 201)?;
    // Nothing else in a response looks like these, and counting is far cheaper than parsing.
    if [QUEUED, STATUS].iter().all(|word| count(&reply.body, word) == items) {
        return Ok(());
    }
    let pushed: Vec<Pushed<'_>> = serde_json::from_slice(&reply.body).context("push response")?;
    if pushed.len() != items {
        bail!("push of {items} returned {} entries", pushed.len());
    }
    match pushed.iter().find(|item| item.status != "queued") {
        Some(item) => bail!("push returned an item with status `{}`", item.status),
        None => Ok(()),
    }
}

/// Ids stay raw JSON: they are sent back unchanged.
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
    /// None if the payload is not one of ours.
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
    if reply.status == 204 {
        return Ok(Vec::new());
    }
    expect_status("pop", reply, 200)?;
    let popped: Popped<'_> = serde_json::from_slice(&reply.body).context("pop response")?;
    if popped.messages.is_empty() {
        bail!("pop returned 200 without messages");
    }
    Ok(popped.messages)
}

/// The number of messages of a pop. Our payloads do not look like one.
pub fn count_popped(reply: &Reply) -> Result<usize> {
    if reply.status == 204 {
        return Ok(0);
    }
    expect_status("pop", reply, 200)?;
    match count(&reply.body, TRANSACTION_ID) {
        0 => bail!("pop returned 200 without messages"),
        messages => Ok(messages),
    }
}

/// Acknowledges every message by name, as the published clients do for a list.
pub fn ack_body(messages: &[Message<'_>], group: Option<&str>) -> Vec<u8> {
    let mut body = Vec::with_capacity(64 + messages.len() * 192);
    body.extend_from_slice(br#"{"acknowledgments":["#);
    for (index, message) in messages.iter().enumerate() {
        let Message { transaction_id, partition_id, lease_id, .. } = message;
        let before = if index == 0 { r#"{"transactionId":"# } else { r#",{"transactionId":"# };
        let parts = [
            before,
            transaction_id.get(),
            r#","partitionId":"#,
            partition_id.get(),
            r#","leaseId":"#,
            lease_id.get(),
            r#","status":"completed"}"#,
        ];
        for part in parts {
            body.extend_from_slice(part.as_bytes());
        }
    }
    match group {
        Some(group) => write!(body, r#"],"consumerGroup":"{group}"}}"#),
        None => write!(body, r#"],"consumerGroup":null}}"#),
    }
    .expect("a Vec takes every write");
    body
}

/// Fails unless every one of `items` acknowledgements was accepted.
pub fn check_acked(reply: &Reply, items: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Acked {
        success: bool,
    }
    expect_status("ack", reply, 200)?;
    // As in `check_pushed`. Brokers that write JSON with spaces take the long way.
    if [SUCCESS, SUCCESS_TRUE].iter().all(|word| count(&reply.body, word) == items) {
        return Ok(());
    }
    let acked: Vec<Acked> = serde_json::from_slice(&reply.body).context("ack answer")?;
    if acked.len() != items {
        bail!("ack of {items} answered {} entries", acked.len());
    }
    match acked.iter().filter(|item| !item.success).count() {
        0 => Ok(()),
        refused => bail!("ack refused {refused} of {items} items: {}", excerpt(&reply.body)),
    }
}

pub fn expect_status(operation: &str, reply: &Reply, expected: u16) -> Result<()> {
    if reply.status != expected {
        bail!("{operation} answered {}: {}", reply.status, excerpt(&reply.body));
    }
    Ok(())
}

fn count(text: &[u8], word: &[u8]) -> usize {
    memmem::find_iter(text, word).count()
}

fn excerpt(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()
}

fn write_uuid(random: &mut Random, unix_ms: u64, body: &mut Vec<u8>) {
    let mut tail = [0; 10];
    tail[..8].copy_from_slice(&random.draw().to_le_bytes());
    tail[8..].copy_from_slice(&random.draw().to_le_bytes()[..2]);
    let id = uuid::Builder::from_unix_timestamp_millis(unix_ms, &tail).into_uuid();
    let mut text = Uuid::encode_buffer();
    body.extend_from_slice(id.hyphenated().encode_lower(&mut text).as_bytes());
}

/// Random text to fill payloads with: equal text would let a broker or a disk compress it.
struct Pad {
    pool: &'static [u8],
    at: usize,
}

impl Pad {
    /// Begins at a place of its own.
    fn new(random: &mut Random) -> Pad {
        static POOL: OnceLock<Vec<u8>> = OnceLock::new();
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let pool = POOL.get_or_init(|| {
            let mut random = Random::from_entropy();
            (0..2 << 20).map(|_| ALPHABET[(random.draw() >> 58) as usize]).collect()
        });
        Pad { pool, at: random.below(pool.len()) }
    }

    /// Goes through the pool from front to back, because the processor then fetches ahead. A piece is repeated only
    /// after two megabytes.
    fn next(&mut self, bytes: usize) -> &'static [u8] {
        let bytes = bytes.min(self.pool.len() / 2);
        if self.at + bytes > self.pool.len() {
            self.at = 0;
        }
        let start = self.at;
        self.at += bytes;
        &self.pool[start..self.at]
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_push_body_is_json_with_fresh_ids_and_payloads_of_the_asked_size() {
        let mut body = PushBody::new("orders", 256);
        for seq in 0..3 {
            body.add(Stamp { producer: 1, partition: 7, seq, sent: 99 });
        }
        let parsed: Value = serde_json::from_slice(body.finish()).unwrap();
        let items = parsed["items"].as_array().unwrap();
        assert_eq!(items.len(), 3);
        assert_eq!(items[2]["queue"], "orders");
        assert_eq!(items[2]["partition"], "p7");
        assert_eq!(items[2]["payload"].to_string().len(), 256);
        let stamp: Stamp = serde_json::from_value(items[2]["payload"].clone()).unwrap();
        assert_eq!(stamp, Stamp { producer: 1, partition: 7, seq: 2, sent: 99 });
        let id: Uuid = items[0]["transactionId"].as_str().unwrap().parse().unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_ne!(items[0]["transactionId"], items[1]["transactionId"]);
        assert_eq!(body.items(), 0);
    }

    #[test]
    fn an_ack_sends_ids_back_as_they_came() {
        let body = r#"{"messages":[{"transactionId":"t\"1","partitionId":"P","leaseId":"L","partition":"p0","data":1}]}"#;
        let reply = Reply { status: 200, body: Bytes::from_static(body.as_bytes()) };
        let messages = popped(&reply).unwrap();
        assert_eq!(messages[0].stamp(), None);
        assert_eq!(count_popped(&reply).unwrap(), messages.len());
        let ack: Value = serde_json::from_slice(&ack_body(&messages, Some("g"))).unwrap();
        assert_eq!(ack["consumerGroup"], "g");
        assert_eq!(ack["acknowledgments"][0]["transactionId"], "t\"1");
        assert_eq!(ack["acknowledgments"][0]["leaseId"], "L");
    }

    #[test]
    fn answers_other_than_success_are_errors() {
        let reply = |status, body: &'static str| Reply { status, body: Bytes::from_static(body.as_bytes()) };
        assert!(check_pushed(&reply(201, r#"[{"status":"queued"}]"#), 1).is_ok());
        assert!(check_pushed(&reply(201, r#"[{"status":"queued"}]"#), 2).is_err());
        assert!(check_pushed(&reply(201, r#"[{"status":"buffered"}]"#), 1).is_err());
        assert!(check_pushed(&reply(202, r#"[{"status":"queued"}]"#), 1).is_err());
        assert!(check_pushed(&reply(201, r#"[{"status": "queued"}]"#), 1).is_ok());
        assert!(check_acked(&reply(200, r#"[{"success":true}]"#), 1).is_ok());
        assert!(check_acked(&reply(200, r#"[{"success": true}]"#), 1).is_ok());
        assert!(check_acked(&reply(200, r#"[{"success":true},{"success":false}]"#), 1).is_err());
        assert!(check_acked(&reply(200, r#"[{"success":false}]"#), 1).is_err());
        assert!(popped(&reply(204, "")).unwrap().is_empty());
        assert!(popped(&reply(500, "")).is_err());
        assert_eq!(count_popped(&reply(204, "")).unwrap(), 0);
        assert!(count_popped(&reply(200, r#"{"messages":[]}"#)).is_err());
    }
}
