//! The listener with clients that speak invalid HTTP, by mistake or on purpose. Whatever they send, the process survives, other clients
//! are served, and nothing is left behind.

use std::path::Path;
use std::time::{Duration, Instant};

use queen_testkit::{Broker, Database, Random};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::eventually;

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");
/// A response that takes longer never comes.
const PATIENCE: Duration = Duration::from_secs(10);

/// A broker in a process of its own, so that its open files are not mixed with ours.
struct Site {
    broker: Broker,
    address: String,
    http: reqwest::Client,
    files: usize,
    _database: Database,
}

impl Site {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(flags: &[&str]) -> Self {
        let database = queen_testkit::database().await;
        let arguments = [&["--database-url", database.url()], flags].concat();
        let broker = Broker::start(Path::new(QUEEN), &arguments, &[]).await.unwrap();
        let address = broker.url().trim_start_matches("http://").to_owned();
        // It keeps no connections, so open ones belong to other clients.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        let mut site = Self { broker, address, http, files: 0, _database: database };
        site.works("before").await;
        site.files = site.open_files();
        site
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    /// A normal client: pushes a message and pops it again. Returns how long that took.
    async fn works(&self, partition: &str) -> Duration {
        let began = Instant::now();
        let body = json!({"items": [{"queue": "normal", "partition": partition, "payload": partition}]});
        let push = self.http.post(format!("{}/api/v1/push", self.broker.url())).body(body.to_string());
        assert_eq!(push.send().await.unwrap().status(), 201);
        let path = format!("/api/v1/pop/queue/normal/partition/{partition}?autoAck=true");
        let popped: Value = self.get(&path).await.json().await.unwrap();
        assert_eq!(popped["messages"][0]["data"], partition);
        began.elapsed()
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        self.http.get(format!("{}{path}", self.broker.url())).send().await.unwrap()
    }

    async fn open_connections(&self) -> usize {
        let page = self.get("/metrics/prometheus").await.text().await.unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("queen_http_connections ")).unwrap();
        line.parse().unwrap()
    }

    fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.broker.pid())).unwrap().count()
    }

    /// Only the client of the test is connected, and no other client was affected.
    async fn is_sound(&self) {
        assert_eq!(self.get("/health").await.status(), 200);
        self.works("after").await;
        eventually("all connections are closed", async || (self.open_connections().await <= 1).then_some(()))
            .await;
        // The connection pool may have grown meanwhile.
        assert!(self.open_files() <= self.files + 50, "{} files, once {}", self.open_files(), self.files);
        assert!(!self.broker.output().contains("panicked"), "{}", self.broker.output());
    }

    /// Sends these bytes, and reads until the other side closes. The client closes its side after sending, which ends
    /// an incomplete request.
    async fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // The request may be refused before all of it is sent.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        match timeout(PATIENCE, read_all(&mut stream)).await {
            Ok(answer) => answer,
            Err(_) => panic!("neither answered nor closed: {:?}", String::from_utf8_lossy(bytes)),
        }
    }
}

/// Everything that arrives until the end; a reset counts as the end.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Closed silently or with a 4xx, and nothing after it was processed.
fn is_refusal(answer: &str) -> bool {
    answer.is_empty() || answer.starts_with("HTTP/1.1 4") && answer.matches("HTTP/1.1 ").count() == 1
}

fn post(path: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}").into_bytes()
}

const PUSH: &str = r#"{"items":[{"queue":"raw","partition":"p","payload":{"n":1},"transactionId":"t"}]}"#;

fn pushed(headers: &str) -> Vec<u8> {
    post("/api/v1/push", &format!("Content-Length: {}\r\n{headers}", PUSH.len()), PUSH)
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let site = Site::start().await;
    let long = "x".repeat(1 << 20);
    let many: String = (0..10_000).map(|n| format!("h{n}: {n}\r\n")).collect();
    let get = |rest: &str| format!("GET /health HTTP/1.1\r\n{rest}\r\n\r\n").into_bytes();
    let chunked = |body: &str| post("/api/v1/push", "Transfer-Encoding: chunked\r\n", body);
    let length = |length: &str| post("/api/v1/push", &format!("Content-Length: {length}\r\n"), PUSH);
    let hello =
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x5a\x5a\x5a\x5a\x00\x00\x00\x20\x13\x01\x13\x02";
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("a word", b"hello\r\n\r\n".to_vec()),
        ("HTTP/0.9", b"GET /health\r\n\r\n".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
        ("HTTP/9.9", b"GET /health HTTP/9.9\r\n\r\n".to_vec()),
        ("TLS", [hello.as_slice(), &[0; 500]].concat()),
        ("zeros", vec![0; 100_000]),
        ("a NUL in the path", b"GET /hea\0lth HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("a space in the path", b"GET /hea lth HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("no path", b"GET HTTP/1.1\r\n\r\n".to_vec()),
        ("a method of noise", b"G\xffT / HTTP/1.1\r\n\r\n".to_vec()),
        ("a huge path", format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()),
        ("a huge header", get(&format!("Host: localhost\r\nX: {long}"))),
        ("a huge name of a header", get(&format!("{long}: x"))),
        ("10,000 headers", get(&format!("Host: localhost\r\n{many}"))),
        ("a header without a colon", get("Host queen")),
        ("a header with a space in its name", get("Ho st: queen")),
        ("a NUL in a header", get("Host: que\0en")),
        ("a folded header", get("Host: localhost\r\n folded")),
        ("a length below zero", length("-1")),
        ("a length with a sign", length("+5")),
        ("a length in words", length("many")),
        ("a length beyond all numbers", length("99999999999999999999999999")),
        ("two lengths", length("5\r\nContent-Length: 6")),
        ("a list of lengths", length("5, 6")),
        ("a chunk size of noise", chunked("zz\r\n{}\r\n0\r\n\r\n")),
        ("a chunk size beyond all numbers", chunked("fffffffffffffffffffff\r\n{}\r\n0\r\n\r\n")),
        ("a chunk size below zero", chunked("-1\r\n{}\r\n0\r\n\r\n")),
        ("a chunk that is longer than it says", chunked("1\r\n{}\r\n0\r\n\r\n")),
        ("chunks that never end", chunked("2\r\n{}\r\n")),
        ("endless chunk extensions", chunked(&format!("2;{long}\r\n{{}}\r\n0\r\n\r\n"))),
        ("endless trailers", chunked(&format!("2\r\n{{}}\r\n0\r\nX: {long}\r\n\r\n"))),
        ("an encoding nobody knows", post("/api/v1/push", "Transfer-Encoding: gzip\r\n", PUSH)),
        ("chunked, but not last", post("/api/v1/push", "Transfer-Encoding: chunked, gzip\r\n", PUSH)),
        ("half a body", length("100000")),
        ("half a header", b"GET /health HTTP/1.1\r\nHo".to_vec()),
        (
            "a gzip bomb's label",
            post("/api/v1/push", "Content-Encoding: gzip\r\nContent-Length: 4\r\n", "\x1f\u{8}  "),
        ),
    ];
    let mut failures = Vec::new();
    for (name, bytes) in cases {
        let answer = site.exchange(&bytes).await;
        if !is_refusal(&answer) {
            failures.push(format!("{name}: {}", &answer[..answer.len().min(300)]));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    site.is_sound().await;
}

#[tokio::test]
async fn a_length_beside_chunks_smuggles_nothing() {
    let site = Site::start().await;
    // According to its length the body ends after the hidden request, according to its chunks before it.
    let hidden = "GET /api/v1/operations/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let body = format!("0\r\n\r\n{hidden}");
    let headers = format!("Transfer-Encoding: chunked\r\nContent-Length: {}\r\n", body.len());
    let answer = site.exchange(&post("/api/v1/push", &headers, &body)).await;
    assert!(is_refusal(&answer), "the second request was served: {answer}");
    site.is_sound().await;
}

#[tokio::test]
async fn a_thousand_requests_sent_at_once_are_answered_in_order() {
    let site = Site::start().await;
    let mut requests = String::new();
    for n in 0..1_000 {
        requests += &format!("GET /api/v1/operations/n{n} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    }
    requests += "GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = site.connect().await;
    let (mut read, mut write) = stream.split();
    let mut answer = Vec::new();
    let both = async { tokio::join!(write.write_all(requests.as_bytes()), read.read_to_end(&mut answer)) };
    let (written, _) = timeout(PATIENCE, both).await.unwrap();
    written.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let mut at = 0;
    for n in 0..1_000 {
        at += answer[at..]
            .find(&format!("n{n}\\\""))
            .unwrap_or_else(|| panic!("no answer to n{n} in its place"));
    }
    assert_eq!(answer.matches("HTTP/1.1 400").count(), 1_000);
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1);
    site.is_sound().await;
}

#[tokio::test]
async fn a_client_that_expects_100_continue_gets_it() {
    let site = Site::start().await;
    let mut stream = site.connect().await;
    let request = pushed("Expect: 100-continue\r\nConnection: close\r\n");
    let (head, body) = request.split_at(request.len() - PUSH.len());
    stream.write_all(head).await.unwrap();
    let mut told = [0; 25];
    timeout(PATIENCE, stream.read_exact(&mut told)).await.unwrap().unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body).await.unwrap();
    let answer = timeout(PATIENCE, read_all(&mut stream)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    site.is_sound().await;
}

#[tokio::test]
async fn clients_that_hang_up_in_the_middle_take_nothing_with_them() {
    let site = Site::start().await;
    let text = "x".repeat(1_000);
    let items: Vec<_> =
        (0..500).map(|n| json!({"queue": "big", "partition": "p", "payload": [n, text]})).collect();
    let body = json!({ "items": items }).to_string();
    let push = site.http.post(format!("{}/api/v1/push", site.broker.url())).body(body);
    assert_eq!(push.send().await.unwrap().status(), 201);
    for n in 0..50 {
        // Half a response, half a body, half a header, and a pop that is left waiting.
        let mut stream = site.connect().await;
        let pop = format!(
            "GET /api/v1/pop/queue/big?batch=500&consumerGroup=g{n} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        );
        stream.write_all(pop.as_bytes()).await.unwrap();
        timeout(PATIENCE, stream.read_exact(&mut [0; 100])).await.unwrap().unwrap();
        for half in [
            "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"items\"",
            "POST /api/v1/push HTTP/1.1\r\nHost: que",
            "GET /api/v1/pop/queue/none?wait=true&timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            site.connect().await.write_all(half.as_bytes()).await.unwrap();
        }
    }
    let all: Value =
        site.get("/api/v1/pop/queue/big?batch=500&consumerGroup=whole").await.json().await.unwrap();
    assert_eq!(all["messages"].as_array().unwrap().len(), 500);
    site.is_sound().await;
}

#[tokio::test]
async fn requests_that_arrive_byte_by_byte_do_not_delay_others() {
    let site = Site::start().await;
    let mut slow = JoinSet::new();
    for n in 0..200 {
        let address = site.address.clone();
        slow.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let request =
                format!("GET /health/live?{n} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            for byte in request.as_bytes() {
                stream.write_all(&[*byte]).await.unwrap();
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
            read_all(&mut stream).await
        });
    }
    let mut served = 0;
    while !slow.is_empty() && slow.try_join_next().is_none() {
        let took = site.works(&format!("p{served}")).await;
        assert!(took < Duration::from_secs(2), "{took:?} beside slow clients");
        served += 1;
    }
    assert!(served > 0);
    for answer in slow.join_all().await {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    site.is_sound().await;
}

/// As many connections as the limit on open files allows here and in the broker, up to ten thousand.
fn idle_connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // The broker inherits the limit.
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let files = limit.maximum.map_or(usize::MAX, |files| files as usize);
    let count = files.saturating_sub(1_000).min(10_000);
    assert!(count >= 2_000, "{files} open files are too few to tell anything");
    eprintln!("{count} idle connections");
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_cost_others_nothing() {
    let count = idle_connections();
    // Without a header timeout, so that connections with half a request stay open too.
    let site = Site::start_with(&["--header-timeout", "0"]).await;
    let mut idle = Vec::with_capacity(count);
    for n in 0..count {
        let mut stream = timeout(PATIENCE, site.connect()).await.unwrap();
        // Some have sent half a request.
        if n % 10 == 0 {
            stream.write_all(b"GET /health HTTP/1.1\r\nHo").await.unwrap();
        }
        idle.push(stream);
    }
    eventually("all of them are open", async || (site.open_connections().await >= count).then_some(())).await;
    let mut times = Vec::new();
    for n in 0..100 {
        times.push(site.works(&format!("p{n}")).await);
    }
    times.sort_unstable();
    assert!(times[50] < Duration::from_millis(500), "push and pop took {:?} and {:?}", times[50], times[99]);
    drop(idle);
    site.is_sound().await;
}

/// The random numbers are seeded, so every run sends the same requests.
#[tokio::test]
async fn thousands_of_broken_requests_break_nothing() {
    let site = std::sync::Arc::new(Site::start().await);
    let ack =
        r#"{"transactionId":"t","partitionId":"0193a5e0-1111-7222-8333-444455556666","status":"failed"}"#;
    let transaction = format!(
        r#"{{"operations":[{{"type":"push","queue":"raw","data":1}},{{"type":"ack",{}]}}"#,
        &ack[1..]
    );
    let configure = r#"{"queue":"raw","options":{"leaseTime":60,"retryLimit":1}}"#;
    let whole = |path: &str, body: &str| post(path, &format!("Content-Length: {}\r\n", body.len()), body);
    let requests = [
        pushed("Content-Type: application/json\r\n"),
        post("/api/v1/push", "Transfer-Encoding: chunked\r\n", &format!("{:x}\r\n{PUSH}\r\n0\r\n\r\n", PUSH.len())),
        b"GET /api/v1/pop/queue/raw?batch=10&consumerGroup=g&subscriptionMode=new HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        whole("/api/v1/ack", ack),
        whole("/api/v1/transaction", &transaction),
        whole("/api/v1/configure", configure),
        b"GET /api/v1/messages?queue=raw&limit=5 HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".to_vec(),
    ];
    let mut dice = Random::seeded(0x2545_f491_4f6c_dd1d);
    let mut running = JoinSet::new();
    for n in 0..3_000 {
        let bytes = mutated(&requests[n % requests.len()], &mut dice);
        let site = site.clone();
        running.spawn(async move {
            let answer = site.exchange(&bytes).await;
            let fault = answer.starts_with("HTTP/1.1 5");
            assert!(!fault, "{:?} was answered {answer}", String::from_utf8_lossy(&bytes));
        });
        if running.len() >= 50 {
            running.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    site.is_sound().await;
}

fn mutated(request: &[u8], dice: &mut Random) -> Vec<u8> {
    const AWKWARD: [&[u8]; 10] = [
        b"\r\n",
        b"\n",
        b"\0",
        b" ",
        b"%00",
        b"\xff",
        b"\\u0000",
        b"99999999999999999999",
        b"-1",
        b"{\"a\":",
    ];
    let mut bytes = request.to_vec();
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len() + 1);
        let to = (at + dice.below(20)).min(bytes.len());
        match dice.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 => drop(bytes.drain(at..to)),
            2 => drop(bytes.splice(at..at, AWKWARD[dice.below(AWKWARD.len())].iter().copied())),
            3 => {
                let piece = bytes[at..to].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            4 => bytes.truncate(at),
            _ => bytes.extend_from_within(..at),
        }
    }
    bytes
}
