//! State that both proxies share: pending faults, the record of requests, and made-up operations.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use hyper::http::request::Parts;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use uuid::Uuid;

use super::faults::{self, Armed, Fault, State};

#[derive(Debug)]
pub struct Stage {
    began: Instant,
    set: Mutex<Set>,
    resets: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Set {
    faults: Vec<Armed>,
    lines: Vec<Line>,
    /// Number of lines ever recorded, so that lines of an earlier scenario are not mistaken for current ones.
    came: u64,
    operations: HashMap<Uuid, Operation>,
}

/// A request, as `GET /record` returns it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    #[serde(skip)]
    number: u64,
    broker: usize,
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    at_ms: u128,
    status: Option<u16>,
    items: usize,
    transaction_ids: Vec<String>,
    authorization: Option<String>,
    body: Option<Value>,
}

#[derive(Debug)]
struct Operation {
    /// `PUSH` or `ACK_BATCH`.
    kind: &'static str,
    /// The last state stays.
    states: VecDeque<State>,
    result: Value,
}

/// A filter for the record.
#[derive(Debug, Default)]
pub struct Wanted {
    pub paths: Vec<String>,
    pub method: Option<String>,
    pub broker: Option<usize>,
    pub clear: bool,
}

impl Stage {
    pub fn new() -> Self {
        Self { began: Instant::now(), set: Mutex::default(), resets: watch::Sender::new(0) }
    }

    pub fn arm(&self, fault: Armed) {
        self.set().faults.push(fault);
    }

    pub fn take(&self, broker: usize, method: &str, path: &str) -> Option<Fault> {
        faults::take(&mut self.set().faults, broker, method, path)
    }

    /// Lets all held requests go.
    pub fn reset(&self) {
        let mut set = self.set();
        let came = set.came;
        *set = Set { came, ..Set::default() };
        drop(set);
        self.resets.send_modify(|count| *count += 1);
    }

    /// Returns at the next reset.
    pub async fn is_reset(&self) {
        // We own the sender, so it cannot be gone.
        let _ = self.resets.subscribe().changed().await;
    }

    /// Records a request; the number refers to it when the response is known.
    pub fn came(&self, broker: usize, parts: &Parts, body: &[u8]) -> u64 {
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let ids = body.as_ref().map(transaction_ids).unwrap_or_default();
        let header = parts.headers.get("authorization").and_then(|value| value.to_str().ok());
        let mut set = self.set();
        set.came += 1;
        let number = set.came;
        set.lines.push(Line {
            number,
            broker,
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: query(parts.uri.query().unwrap_or_default()),
            at_ms: self.began.elapsed().as_millis(),
            status: None,
            items: ids.len(),
            transaction_ids: ids.into_iter().flatten().collect(),
            authorization: header.map(str::to_owned),
            body,
        });
        number
    }

    pub fn answered(&self, number: u64, status: u16) {
        if let Some(line) = self.set().lines.iter_mut().find(|line| line.number == number) {
            line.status = Some(status);
        }
    }

    pub fn record(&self, wanted: &Wanted) -> Vec<Line> {
        let mut set = self.set();
        let matches = |line: &&Line| {
            (wanted.paths.is_empty() || wanted.paths.iter().any(|path| line.path.starts_with(path)))
                && wanted.method.as_ref().is_none_or(|method| *method == line.method)
                && wanted.broker.is_none_or(|broker| broker == line.broker)
        };
        let lines = set.lines.iter().filter(matches).cloned().collect();
        if wanted.clear {
            set.lines.clear();
        }
        lines
    }

    /// Makes up an operation that will have this result.
    pub fn defer(&self, kind: &'static str, states: Vec<State>, result: Value) -> Uuid {
        let id = Uuid::now_v7();
        self.set().operations.insert(id, Operation { kind, states: states.into(), result });
        id
    }

    /// The next state of a made-up operation, as a broker returns it.
    pub fn operation(&self, id: Uuid) -> Option<Value> {
        let mut set = self.set();
        let Operation { kind, states, result } = set.operations.get_mut(&id)?;
        let state = if states.len() > 1 { states.pop_front() } else { states.front().copied() }?;
        let error = (state == State::Failed).then_some("made up by the test");
        let result = (state == State::Completed).then_some(result.clone());
        let first = |key: &str| result.as_ref().and_then(|items| items[0].get(key).cloned());
        Some(json!({
            "id": id, "operation_type": kind, "queue_name": first("queueName").unwrap_or_else(|| json!("")),
            "partition_name": "", "status": state.word(), "priority": 5, "created_at": "2026-01-01T00:00:00.000Z",
            "processing_started_at": null, "processed_at": null, "retry_count": 0, "error_message": error,
            "latency_seconds": 0.0, "messages": 1, "worker": null, "result": result,
        }))
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().expect("never poisoned")
    }
}

/// One id per pushed or acknowledged item; `None` where a client left it to the broker.
fn transaction_ids(body: &Value) -> Vec<Option<String>> {
    let id = |item: &Value| item["transactionId"].as_str().map(str::to_owned);
    let list = |key: &str| body[key].as_array().into_iter().flatten();
    let mut ids: Vec<Option<String>> = list("items").chain(list("acknowledgments")).map(id).collect();
    for operation in list("operations").filter(|operation| operation["type"] == "push") {
        match operation["items"].as_array() {
            Some(items) => ids.extend(items.iter().map(id)),
            None => ids.push(id(operation)),
        }
    }
    if ids.is_empty() && body["transactionId"].is_string() {
        ids.push(id(body));
    }
    ids
}

/// If a key occurs twice, the last value counts.
pub fn query(text: &str) -> BTreeMap<String, String> {
    pairs(text).collect()
}

pub fn pairs(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key), decoded(value))
    })
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_wherever_a_client_puts_them() {
        let ids = |body: Value| transaction_ids(&body);
        let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
        assert_eq!(ids(json!({"items": [{"transactionId": "a"}, {"payload": 1}]})), [a.clone(), None]);
        assert_eq!(ids(json!({"transactionId": "a", "status": "completed"})), std::slice::from_ref(&a));
        assert_eq!(
            ids(json!({"acknowledgments": [{"transactionId": "a"}], "consumerGroup": "g"})),
            std::slice::from_ref(&a)
        );
        let mixed = json!({"operations": [
            {"type": "ack", "transactionId": "x"}, {"type": "push", "transactionId": "a"},
            {"type": "push", "items": [{"transactionId": "b"}]},
        ]});
        assert_eq!(ids(mixed), [a, b]);
        assert!(ids(json!([1])).is_empty());
    }

    #[test]
    fn a_query_is_decoded() {
        let read = query("a=b+c&d=%C3%BC%2F&e&f=100%&a=%zz");
        let read: Vec<(&str, &str)> = read.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert_eq!(read, [("a", "%zz"), ("d", "ü/"), ("e", ""), ("f", "100%")]);
    }

    #[test]
    fn an_operation_goes_through_its_states_and_stays_in_the_last() {
        let stage = Stage::new();
        let id = stage.defer("PUSH", vec![State::Pending, State::Completed], json!([{"queueName": "q"}]));
        let told = || stage.operation(id).unwrap();
        assert_eq!((&told()["status"], &told()["result"]), (&json!("pending"), &json!([{"queueName": "q"}])));
        assert_eq!(told()["status"], "completed");
        assert!(stage.operation(Uuid::nil()).is_none());
        stage.reset();
        assert!(stage.operation(id).is_none());
    }
}
