//! The scenario format (`clients/scenarios/README.md`) as types. Only parses; nothing is executed here.

#![expect(dead_code, reason = "only parsing is tested")]

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    #[serde(default)]
    pub urls: Option<u8>,
    #[serde(default)]
    client: Client,
    pub steps: Vec<Map<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Client {
    token: Option<String>,
    request_timeout: Option<Time>,
    deadline: Option<Time>,
    retry_delay: Option<Time>,
    max_retry_delay: Option<Time>,
    #[serde(rename = "retryOn429")]
    retry_on_429: Option<bool>,
    honor_retry_after: Option<bool>,
    queued_operation_behavior: Option<Behavior>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Behavior {
    Return,
    Poll,
}

/// Whole seconds or milliseconds.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub u64);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
            (Some(number), _) => (number, 1),
            (None, Some(number)) => (number, 1_000),
            _ => return Err(format!("{text:?} is not a duration")),
        };
        number
            .parse()
            .map(|number: u64| Self(number * unit))
            .map_err(|_| format!("{text:?} is not a duration"))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    queue: String,
    options: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    queue: String,
    partition: Option<String>,
    pub messages: Vec<Value>,
    deadline: Option<Time>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Long {
    payload: Value,
    transaction_id: Option<String>,
    traceparent: Option<String>,
    partition: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Buffer {
    queue: String,
    partition: Option<String>,
    pub messages: Vec<Value>,
    #[serde(default)]
    options: BufferOptions,
    #[serde(default)]
    pub close: bool,
    #[serde(default)]
    pub after_close: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BufferOptions {
    linger: Option<Time>,
    max_messages: Option<u64>,
    max_bytes: Option<u64>,
    when_full: Option<WhenFull>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    Wait,
    Reject,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pop {
    pub queue: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    partition: Option<String>,
    group: Option<String>,
    batch: Option<u32>,
    partitions: Option<u32>,
    wait: Option<Time>,
    pub lease: Option<Time>,
    auto_ack: Option<bool>,
    subscription: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Consume {
    pub queue: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    partition: Option<String>,
    group: Option<String>,
    batch: Option<u32>,
    partitions: Option<u32>,
    wait: Option<Time>,
    pub lease: Option<Time>,
    subscription: Option<String>,
    mode: Mode,
    concurrency: Option<u32>,
    limit: Option<u64>,
    idle_timeout: Option<Time>,
    auto_ack: Option<bool>,
    renew: Option<bool>,
    stop_after: Option<StopAfter>,
    decode: Option<Decode>,
    handler: Handler,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Each,
    Batches,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decode {
    Object,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum StopAfter {
    Messages(u64),
    Time(Time),
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "camelCase", deny_unknown_fields)]
pub enum Handler {
    Succeed {},
    Fail { text: String },
    FailFirst { text: String, times: Option<u32> },
    SucceedFirst { text: String, times: Option<u32> },
    Sleep { ms: u64 },
    Manual {},
    Hang {},
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ack {
    messages: String,
    status: Status,
    error: Option<String>,
    index: Option<Vec<usize>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Completed,
    Failed,
    Retry,
    Dlq,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    messages: String,
    seconds: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transaction {
    #[serde(default)]
    ack: Vec<Acked>,
    #[serde(default)]
    push: Vec<Pushed>,
    pub commits: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Acked {
    Saved(String),
    With(Ack),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pushed {
    queue: String,
    partition: Option<String>,
    payload: Value,
    transaction_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Letters {
    queue: String,
    partition: Option<String>,
    group: Option<String>,
    dry_run: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    queue: String,
    group: String,
    pub to: Option<End>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    Beginning,
    End,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    broker: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    path: Paths,
    method: Option<String>,
    broker: Option<usize>,
    clear: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum Paths {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    statuses: Option<Vec<Value>>,
    operation: Option<bool>,
    data: Option<Vec<Value>>,
    data_unordered: Option<Vec<Value>>,
    count: Option<u64>,
    partitions: Option<Vec<String>>,
    traceparents: Option<Vec<Option<String>>>,
    errors: Option<Vec<String>>,
    success: Option<Vec<bool>>,
    handled: Option<u64>,
    failed: Option<u64>,
    batches: Option<u64>,
    lease_lost: Option<bool>,
    errors_told_at_least: Option<u64>,
    stop_took_at_most_ms: Option<u64>,
    depth: Option<u64>,
    took_at_least_ms: Option<u64>,
    took_at_most_ms: Option<u64>,
    pub error: Option<Failure>,
    count_at_least: Option<u64>,
    count_at_most: Option<u64>,
    same_transaction_ids: Option<bool>,
    items_at_most: Option<u64>,
    gap_at_least_ms: Option<Vec<u64>>,
    gap_at_most_ms: Option<Vec<u64>>,
    brokers_used: Option<usize>,
    authorization: Option<Vec<Option<String>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Failure {
    pub kind: Option<String>,
    status: Option<u16>,
    contains: Option<String>,
    attempts: Option<u32>,
    attempts_at_least: Option<u32>,
    statuses: Option<Vec<String>>,
    undelivered: Option<u64>,
}
