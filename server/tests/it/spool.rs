//! The spool with real processes: PostgreSQL stops, brokers are killed, files are damaged. Accepted messages are stored afterwards,
//! once and in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use queen_testkit::{Broker, Cluster, Database};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::support::{array, drained, eventually, numbers};

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");

/// Messages per request, and time between requests: eight clients push 2,000 messages a second.
const MESSAGES: usize = 10;
const PACE: Duration = Duration::from_millis(40);
const CLIENTS: usize = 8;

async fn broker(database: &Database, spool: &Path, flags: &[&str]) -> Broker {
    let mut args = vec!["--database-url", database.url(), "--file-buffer-dir", spool.to_str().unwrap()];
    args.extend(flags);
    Broker::start(Path::new(QUEEN), &args, &[]).await.unwrap()
}

/// Messages of one partition, numbered and named by their numbers.
fn items(partition: &str, first: usize, count: usize) -> Value {
    let item = |n: usize| json!({"queue": "q", "partition": partition, "payload": n, "transactionId": format!("{partition}-{n}")});
    json!({"items": (first..first + count).map(item).collect::<Vec<_>>()})
}

async fn push(http: &Client, url: &str, body: &Value) -> StatusCode {
    http.post(format!("{url}/api/v1/push")).body(body.to_string()).send().await.unwrap().status()
}

async fn buffered(url: &str) -> u64 {
    let status: Value =
        reqwest::get(format!("{url}/api/v1/system/maintenance")).await.unwrap().json().await.unwrap();
    status["bufferedMessages"].as_u64().unwrap()
}

async fn emptied(url: &str) {
    eventually("the spool is empty", async || (buffered(url).await == 0).then_some(())).await;
}

/// Asserts that both are equal. Shows only where they begin to differ, because there may be thousands.
fn assert_numbers(found: &[Value], expected: &[Value]) {
    let differs = (0..found.len().max(expected.len())).find(|&at| found.get(at) != expected.get(at));
    if let Some(at) = differs {
        let around = at.saturating_sub(2)..at + 3;
        let (found_there, expected_there) = (found.get(around.clone()), expected.get(around));
        panic!("{} and not {}: {found_there:?} and not {expected_there:?}", found.len(), expected.len());
    }
}

/// `QUEEN_TEST_OUTAGE_SECONDS=30` sets the length that the goal asks for.
fn outage() -> Duration {
    let asked = std::env::var_os("QUEEN_TEST_OUTAGE_SECONDS").and_then(|text| text.to_str()?.parse().ok());
    let seconds = asked.unwrap_or(4);
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn an_outage_of_postgres_under_load_loses_doubles_and_reorders_nothing() {
    let mut cluster: Cluster = queen_testkit::cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let folder = TempDir::new().unwrap();
    let brokers = [broker(&database, folder.path(), &[]).await, broker(&database, folder.path(), &[]).await];
    let stop = Arc::new(AtomicBool::new(false));
    let (stored, spooled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (url, stop) = (brokers[client % 2].url().to_owned(), stop.clone());
        let (stored, spooled) = (stored.clone(), spooled.clone());
        clients.spawn(async move {
            let (http, partition) = (Client::new(), format!("p{client}"));
            let mut sent = 0;
            let mut pace = tokio::time::interval(PACE);
            while !stop.load(SeqCst) {
                pace.tick().await;
                match push(&http, &url, &items(&partition, sent, MESSAGES)).await.as_u16() {
                    201 => {
                        stored.fetch_add(MESSAGES, SeqCst);
                        sent += MESSAGES;
                    }
                    202 => {
                        spooled.fetch_add(MESSAGES, SeqCst);
                        sent += MESSAGES;
                    }
                    // The outcome is unknown, so the client pushes again.
                    500 | 503 => {}
                    status => panic!("{status}"),
                }
            }
            (partition, sent)
        });
    }
    let url = brokers[0].url();
    eventually("traffic flows", async || (stored.load(SeqCst) > 200).then_some(())).await;
    cluster.stop().await;
    eventually("pushes are spooled", async || (spooled.load(SeqCst) > 200).then_some(())).await;
    let ended = tokio::time::Instant::now() + outage();
    while tokio::time::Instant::now() < ended {
        assert_eq!(reqwest::get(format!("{url}/health/live")).await.unwrap().status(), StatusCode::OK);
        let popped = reqwest::get(format!("{url}/api/v1/pop/queue/q/partition/p0")).await.unwrap();
        assert_eq!(popped.status(), StatusCode::SERVICE_UNAVAILABLE);
        let ack = json!({"transactionId": "p0-0", "partitionId": uuid::Uuid::nil(), "consumerGroup": "g"});
        let acked =
            Client::new().post(format!("{url}/api/v1/ack")).body(ack.to_string()).send().await.unwrap();
        assert_eq!(acked.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    cluster.start().await;
    for broker in &brokers {
        eventually("the broker is ready", async || {
            let ready = reqwest::get(format!("{}/health/ready", broker.url())).await.unwrap();
            ready.status().is_success().then_some(())
        })
        .await;
    }
    let before = stored.load(SeqCst);
    eventually("pushes go straight again", async || (stored.load(SeqCst) > before + 200).then_some(())).await;
    stop.store(true, SeqCst);
    let sent = clients.join_all().await;
    for broker in &brokers {
        emptied(broker.url()).await;
    }
    for (partition, sent) in sent {
        assert_numbers(&drained(brokers[1].url(), &partition).await, &numbers(0..sent));
    }
}

/// A spool with a numbered message in each of many requests, whose broker was killed while PostgreSQL was away.
struct Wreck {
    cluster: Cluster,
    database: Database,
    folder: TempDir,
    accepted: usize,
}

impl Wreck {
    async fn new() -> Self {
        let mut cluster = queen_testkit::cluster().await;
        let database = Database::create(&cluster.maintenance_url()).await;
        let folder = TempDir::new().unwrap();
        let mut broker = broker(&database, folder.path(), &["--file-buffer-max-bytes", "20KiB"]).await;
        let http = Client::new();
        assert_eq!(push(&http, broker.url(), &items("p", 0, 1)).await, StatusCode::CREATED);
        cluster.stop().await;
        let mut accepted = 1;
        loop {
            match push(&http, broker.url(), &items("p", accepted, 1)).await.as_u16() {
                202 => accepted += 1,
                429 => break,
                503 => {}
                status => panic!("{status}"),
            }
        }
        broker.kill9().await;
        cluster.start().await;
        Self { cluster, database, folder, accepted }
    }

    fn file(&self) -> PathBuf {
        let files = std::fs::read_dir(self.folder.path().join("0")).unwrap();
        let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "spool"));
        files.sort();
        files.remove(0)
    }
}

#[tokio::test]
async fn a_broker_killed_with_a_full_spool_hands_it_in_when_it_starts_again() {
    let wreck = Wreck::new().await;
    assert!(wreck.accepted > 20, "{} were accepted", wreck.accepted);
    let broker = broker(&wreck.database, wreck.folder.path(), &[]).await;
    emptied(broker.url()).await;
    let http = Client::new();
    assert_eq!(push(&http, broker.url(), &items("p", wreck.accepted, 1)).await, StatusCode::CREATED);
    assert_numbers(&drained(broker.url(), "p").await, &numbers(0..wreck.accepted + 1));
    drop(wreck.cluster);
}

#[tokio::test]
async fn a_damaged_byte_costs_one_request_and_a_torn_end_nothing() {
    let wreck = Wreck::new().await;
    let path = wreck.file();
    let mut bytes = std::fs::read(&path).unwrap();
    let lost = 10;
    let at = memchr_find(&bytes, format!("\"p-{lost}\"").as_bytes());
    bytes[at + 1] ^= 0x20;
    bytes.extend_from_slice(b"\x00QS\x01half a record");
    std::fs::write(&path, bytes).unwrap();
    let broker = broker(&wreck.database, wreck.folder.path(), &[]).await;
    broker.says("the spool is damaged").await;
    broker.says("cut off").await;
    emptied(broker.url()).await;
    let mut expected = numbers(0..wreck.accepted);
    expected.remove(lost);
    assert_numbers(&drained(broker.url(), "p").await, &expected);
    let kept = std::fs::read_dir(wreck.folder.path().join("0")).unwrap();
    let kept =
        kept.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "damaged"));
    assert_eq!(kept.count(), 1, "the damaged file is kept for people");
}

fn memchr_find(bytes: &[u8], wanted: &[u8]) -> usize {
    bytes.windows(wanted.len()).position(|window| window == wanted).expect("it is in the spool")
}

#[tokio::test]
async fn maintenance_as_an_operator_uses_it() {
    let database = queen_testkit::database().await;
    let folder = TempDir::new().unwrap();
    let broker = broker(&database, folder.path(), &[]).await;
    let http = Client::new();
    let switch = async |path: &str, body: Value| {
        let url = format!("{}/api/v1/system/maintenance{path}", broker.url());
        let response = http.post(url).body(body.to_string()).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    assert_eq!(switch("", json!({"enabled": "yes"})).await.0, 400);
    let (status, on) = switch("", json!({"enabled": true})).await;
    assert_eq!((status, &on["maintenanceMode"], &on["bufferHealthy"]), (200, &json!(true), &json!(true)));
    let body = items("p", 0, 3);
    let response =
        http.post(format!("{}/api/v1/push", broker.url())).body(body.to_string()).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let results: Value = response.json().await.unwrap();
    assert!(array(results.clone()).iter().all(|result| result["status"] == "buffered"), "{results}");
    assert_eq!(buffered(broker.url()).await, 3);
    assert!(drained(broker.url(), "p").await.is_empty());
    let (_, off) = switch("", json!({"enabled": false})).await;
    assert_eq!(off["maintenanceMode"], false);
    emptied(broker.url()).await;
    assert_eq!(drained(broker.url(), "p").await, numbers(0..3));
    assert_eq!(push(&http, broker.url(), &items("p", 3, 1)).await, StatusCode::CREATED);
    let (_, pops) = switch("/pop", json!({"enabled": true})).await;
    assert_eq!(pops["popMaintenanceMode"], true);
    assert!(drained(broker.url(), "p").await.is_empty(), "204 at once");
    switch("/pop", json!({"enabled": false})).await;
    assert_eq!(drained(broker.url(), "p").await, numbers(3..4));
}
