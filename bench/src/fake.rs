//! An in-memory broker for tests, correct or with one fault. It has only what the scenarios call, and no time limits.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::client::Target;
use crate::measure::{CpuWatch, Meter};
use crate::options::Options;
use crate::scenarios::{self, Outcome, Scenario};
use crate::setup::Setup;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Responds "queued" and drops the message.
    Lose,
    /// Stores a message twice.
    Duplicate,
    /// Stores the last two messages of a request in the wrong order.
    Reorder,
    /// Responds with 500.
    Refuse,
}

/// One of this many push requests is treated wrongly.
const FAULT_EVERY: u64 = 5;

#[derive(Default)]
struct Partition {
    log: Vec<(String, Value)>,
    /// Position and end of the lease, by consumer group.
    cursors: HashMap<String, (usize, Option<usize>)>,
}

struct Fake {
    fault: Fault,
    pushes: Mutex<u64>,
    queues: Mutex<HashMap<String, BTreeMap<String, Partition>>>,
}

impl Fake {
    /// Runs until the returned set is dropped.
    async fn start(fault: Fault) -> (Arc<Fake>, Target, JoinSet<()>) {
        let fake = Arc::new(Fake { fault, pushes: Mutex::default(), queues: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        let served = Arc::clone(&fake);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let fake = Arc::clone(&served);
                let service = service_fn(move |request| Arc::clone(&fake).answer(request));
                let http = hyper::server::conn::http1::Builder::new();
                connections
                    .spawn(async move { drop(http.serve_connection(TokioIo::new(stream), service).await) });
            }
        });
        (fake, Target::from_url(&url).unwrap(), tasks)
    }

    async fn answer(
        self: Arc<Fake>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (head, body) = request.into_parts();
        let body: Value =
            serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
        let path: Vec<&str> = head.uri.path().split('/').skip(1).collect();
        let (status, answer) = match (head.method, path.as_slice()) {
            (Method::GET, ["health"]) => (200, json!({})),
            (Method::POST, ["api", "v1", "configure"]) => {
                let queue = body["queue"].as_str().unwrap().to_owned();
                self.queues.lock().unwrap().insert(queue, BTreeMap::new());
                (200, json!({"configured": true}))
            }
            (Method::DELETE, ["api", "v1", "resources", "queues", queue]) => {
                self.queues.lock().unwrap().remove(*queue);
                (200, json!({"deleted": true}))
            }
            (Method::POST, ["api", "v1", "push"]) => self.push(&body),
            (Method::POST, ["api", "v1", "ack", "batch"]) => self.ack(&body),
            (Method::GET, ["api", "v1", "pop", "queue", queue, rest @ ..]) => {
                let query =
                    head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
                self.pop(queue, rest.last().copied(), &query.collect()).await
            }
            _ => (404, json!({})),
        };
        let body = if status == 204 { Bytes::new() } else { Bytes::from(answer.to_string()) };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        Ok(response)
    }

    fn push(&self, body: &Value) -> (u16, Value) {
        let mut pushes = self.pushes.lock().unwrap();
        *pushes += 1;
        let fault = if pushes.is_multiple_of(FAULT_EVERY) { self.fault } else { Fault::None };
        if fault == Fault::Refuse {
            return (500, json!({"error": "refused"}));
        }
        let mut items = body["items"].as_array().unwrap().clone();
        let answer = items.iter().map(|_| json!({"status": "queued"})).collect();
        match fault {
            Fault::Lose => drop(items.pop()),
            Fault::Duplicate => items.push(items[0].clone()),
            Fault::Reorder => items.rotate_right(1),
            Fault::None | Fault::Refuse => {}
        }
        let mut queues = self.queues.lock().unwrap();
        for item in items {
            let text = |key: &str| item[key].as_str().unwrap().to_owned();
            let partition = queues.entry(text("queue")).or_default().entry(text("partition")).or_default();
            partition.log.push((text("transactionId"), item["payload"].clone()));
        }
        (201, answer)
    }

    async fn pop(&self, queue: &str, only: Option<&str>, query: &HashMap<&str, &str>) -> (u16, Value) {
        let number = |key: &str, default| query.get(key).map_or(default, |text| text.parse().unwrap());
        let waits = query.get("wait") == Some(&"true");
        let deadline =
            Instant::now() + Duration::from_millis(if waits { number("timeout", 30_000) } else { 0 });
        loop {
            let group = query.get("consumerGroup").copied().unwrap_or("");
            let auto_ack = query.contains_key("autoAck");
            let (batch, partitions) = (number("batch", 1) as usize, number("partitions", 1) as usize);
            let messages = self.claim(queue, only, group, auto_ack, batch, partitions);
            if !messages.is_empty() {
                return (200, json!({"messages": messages}));
            }
            if Instant::now() >= deadline {
                return (204, Value::Null);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn claim(
        &self,
        queue: &str,
        only: Option<&str>,
        group: &str,
        auto_ack: bool,
        batch: usize,
        partitions: usize,
    ) -> Vec<Value> {
        let mut queues = self.queues.lock().unwrap();
        let mut messages = Vec::new();
        let mut claimed = 0;
        for (name, partition) in queues.entry(queue.to_owned()).or_default() {
            if only.is_some_and(|only| only != name) || claimed == partitions || messages.len() == batch {
                continue;
            }
            let cursor = partition.cursors.entry(group.to_owned()).or_default();
            let end = partition.log.len().min(cursor.0 + batch - messages.len());
            if cursor.1.is_some() || end == cursor.0 {
                continue;
            }
            claimed += 1;
            for (transaction_id, data) in &partition.log[cursor.0..end] {
                messages
                    .push(json!({"transactionId": transaction_id, "partitionId": format!("{queue}/{name}"),
                    "leaseId": "L", "partition": name, "data": data}));
            }
            *cursor = if auto_ack { (end, None) } else { (cursor.0, Some(end)) };
        }
        messages
    }

    fn ack(&self, body: &Value) -> (u16, Value) {
        let group = body["consumerGroup"].as_str().unwrap_or("");
        let mut queues = self.queues.lock().unwrap();
        let mut results = Vec::new();
        for ack in body["acknowledgments"].as_array().unwrap() {
            let (queue, partition) = ack["partitionId"].as_str().unwrap().split_once('/').unwrap();
            let partition = queues.get_mut(queue).unwrap().get_mut(partition).unwrap();
            let cursor = partition.cursors.get_mut(group).unwrap();
            let end = cursor.1.unwrap_or(cursor.0);
            let is_it = |(id, _): &(String, Value)| ack["transactionId"] == id.as_str();
            if let Some(found) = partition.log[cursor.0..end].iter().position(is_it) {
                cursor.0 += found + 1;
            }
            cursor.1 = (cursor.0 < end).then_some(end);
            results.push(json!({"success": true}));
        }
        (200, Value::Array(results))
    }
}

#[derive(Parser)]
struct TestCli {
    #[command(flatten)]
    options: Options,
}

/// On a busy machine, a short window may have hardly any requests; then the window is extended.
async fn run_until(fault: Fault, scenario: Scenario, tells: impl Fn(&Outcome) -> bool) -> Outcome {
    for seconds in ["0.2", "2"] {
        let outcome = run_for(seconds, fault, scenario).await;
        if tells(&outcome) {
            return outcome;
        }
    }
    run_for("10", fault, scenario).await
}

async fn run_for(seconds: &str, fault: Fault, scenario: Scenario) -> Outcome {
    let (fake, target, _serving) = Fake::start(fault).await;
    let arguments = ["bench", "--quick", "--seconds", seconds, "--warmup", "0.05", "--stall", "3"];
    let mut options = TestCli::parse_from(arguments).options;
    options.parked = Some(20);
    let meter = Meter { watch: CpuWatch::default(), target: target.clone(), session: None, settles: false };
    let setup = Setup { target, options, meter, epoch: Instant::now() };
    let outcome = Box::pin(scenarios::run(&setup, scenario)).await.unwrap();
    assert!(fake.queues.lock().unwrap().is_empty(), "{scenario} left a queue behind");
    outcome
}

#[tokio::test]
async fn every_scenario_is_clean_against_an_honest_broker() {
    for scenario in scenarios::all() {
        let measured =
            |outcome: &Outcome| !outcome.rows.is_empty() && outcome.rows.iter().all(|row| row.messages > 0);
        let outcome = run_until(Fault::None, scenario, measured).await;
        assert!(measured(&outcome), "{scenario}");
        assert_eq!(outcome.violations, Vec::<String>::new(), "{scenario}");
        assert_eq!(outcome.error_texts, Vec::<String>::new(), "{scenario}");
    }
}

async fn violations(fault: Fault) -> String {
    let outcome = run_until(fault, Scenario::EndToEnd, |outcome| !outcome.violations.is_empty()).await;
    outcome.violations.join("\n")
}

#[tokio::test]
async fn end_to_end_finds_lost_messages() {
    let violations = violations(Fault::Lose).await;
    assert!(violations.contains("messages lost"), "{violations}");
    assert!(!violations.contains("more than once") && !violations.contains("order"), "{violations}");
}

#[tokio::test]
async fn end_to_end_finds_repeated_messages() {
    let violations = violations(Fault::Duplicate).await;
    assert!(violations.contains("more than once"), "{violations}");
    assert!(!violations.contains("lost"), "{violations}");
}

#[tokio::test]
async fn end_to_end_finds_messages_out_of_order() {
    let violations = violations(Fault::Reorder).await;
    assert!(violations.contains("out of order"), "{violations}");
    assert!(!violations.contains("lost") && !violations.contains("more than once"), "{violations}");
}

#[tokio::test]
async fn a_refused_push_is_an_error_and_no_lost_message() {
    let refused = |outcome: &Outcome| outcome.rows.first().is_some_and(|row| row.errors > 0);
    let outcome = run_until(Fault::Refuse, Scenario::EndToEnd, refused).await;
    assert!(outcome.rows[0].errors > 0);
    assert!(outcome.error_texts[0].contains("500"), "{:?}", outcome.error_texts);
    assert_eq!(outcome.violations, Vec::<String>::new());
}
