//! Tests of each fault, as seen by a client and by a minimal broker behind the proxy.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::door::Door;
use super::faults::Armed;
use super::proxy::{Answer, FaultProxy};
use super::stage::{Stage, Wanted};

/// Responds to every push, and to nothing else.
#[derive(Debug, Default)]
struct Stub {
    pushed: AtomicUsize,
    waiting: AtomicUsize,
}

/// Counts itself while it exists.
struct Counted(Arc<Stub>);

impl Counted {
    fn new(stub: &Arc<Stub>) -> Self {
        stub.waiting.fetch_add(1, SeqCst);
        Self(stub.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

async fn stand_in(stub: Arc<Stub>, request: Request<Incoming>) -> Result<Answer> {
    if request.uri().path() != "/api/v1/push" {
        let _counted = Counted::new(&stub);
        return std::future::pending().await;
    }
    let asked = format!("{} {}", request.method(), request.uri());
    let body: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?;
    stub.pushed.fetch_add(1, SeqCst);
    let results: Vec<Value> = body["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|item| json!({"queueName": item["queue"]}))
        .collect();
    let answer = Response::builder().status(201).header("x-asked", asked);
    Ok(answer.body(Full::from(json!(results).to_string()))?)
}

struct Setup {
    stage: Arc<Stage>,
    stub: Arc<Stub>,
    proxy: FaultProxy,
    _upstream: Door,
}

impl Setup {
    async fn new() -> Self {
        let (stage, stub) = (Arc::new(Stage::new()), Arc::new(Stub::default()));
        let upstream = Door::new().unwrap();
        let answering = stub.clone();
        let serve = move |stream| {
            let stub = answering.clone();
            async move {
                let service = service_fn(|request| stand_in(stub.clone(), request));
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            }
        };
        upstream.open(serve).await.unwrap();
        let proxy = FaultProxy::new(0, stage.clone()).unwrap();
        proxy.stand_before(upstream.address());
        proxy.open().await.unwrap();
        Self { stage, stub, proxy, _upstream: upstream }
    }

    fn address(&self) -> SocketAddr {
        super::address(&self.proxy.url()).unwrap()
    }

    async fn client(&self) -> Client {
        Client::connect(self.address()).await.unwrap()
    }

    fn arm(&self, fault: &Value) {
        let armed = json!({"path": "/api/v1/push", "fault": fault});
        self.stage.arm(serde_json::from_value::<Armed>(armed).unwrap());
    }

    fn pushed(&self) -> usize {
        self.stub.pushed.load(SeqCst)
    }

    /// Statuses of all recorded requests.
    fn statuses(&self) -> Vec<Value> {
        let lines = serde_json::to_value(self.stage.record(&Wanted::default())).unwrap();
        lines.as_array().unwrap().iter().map(|line| line["status"].clone()).collect()
    }
}

/// One connection.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

impl Client {
    async fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Ok(Self { sender, _driver: driver })
    }

    async fn send(&mut self, method: &str, path: &str, body: &Value) -> Result<(u16, HeaderMap, Value)> {
        let request = Request::builder().method(method).uri(path).header("Host", "queen");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (parts, body) = self.sender.send_request(request.body(Full::from(body))?).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((parts.status.as_u16(), parts.headers, serde_json::from_slice(&body).unwrap_or_default()))
    }

    async fn push(&mut self) -> Result<(u16, HeaderMap, Value)> {
        self.send("POST", "/api/v1/push", &json!({"items": [{"queue": "q", "transactionId": "t"}]})).await
    }
}

#[tokio::test]
async fn requests_pass_unchanged_over_one_connection_and_are_written_down() {
    let setup = Setup::new().await;
    let mut client = setup.client().await;
    for n in 1..=2 {
        let path = format!("/api/v1/push?n={n}&s=a%20b");
        let (status, headers, body) =
            client.send("POST", &path, &json!({"items": [{"queue": "q"}]})).await.unwrap();
        assert_eq!((status, &body), (201, &json!([{"queueName": "q"}])));
        assert_eq!(headers["x-asked"], format!("POST {path}"));
    }
    client.push().await.unwrap();
    let lines = serde_json::to_value(setup.stage.record(&Wanted::default())).unwrap();
    assert_eq!(lines.as_array().unwrap().len(), 3);
    assert_eq!((&lines[1]["query"], &lines[1]["broker"]), (&json!({"n": "2", "s": "a b"}), &json!(0)));
    assert_eq!((&lines[1]["items"], &lines[1]["transactionIds"]), (&json!(1), &json!([])));
    assert_eq!((&lines[2]["status"], &lines[2]["transactionIds"]), (&json!(201), &json!(["t"])));
    assert!(lines[0]["atMs"].as_u64() <= lines[2]["atMs"].as_u64());
    let elsewhere = Wanted { paths: vec!["/api/v1/pop".to_owned()], clear: true, ..Wanted::default() };
    assert!(setup.stage.record(&elsewhere).is_empty());
    assert!(setup.stage.record(&Wanted::default()).is_empty(), "it was cleared");
}

#[tokio::test]
async fn an_answer_that_is_made_up_comes_instead_of_the_brokers() {
    let setup = Setup::new().await;
    let mut client = setup.client().await;
    setup.arm(&json!({"status": 429, "retryAfter": 7}));
    setup.arm(&json!({"status": 503, "retryAfterDateIn": 60, "body": {"error": "x"}}));
    let (status, headers, body) = client.push().await.unwrap();
    assert_eq!((status, &headers["retry-after"]), (429, &"7".parse().unwrap()));
    assert_eq!(body["code"], "rate_limited");
    let (status, headers, body) = client.push().await.unwrap();
    assert_eq!((status, body), (503, json!({"error": "x"})));
    let date = headers["retry-after"].to_str().unwrap();
    assert!(date.ends_with(" GMT") && date.len() == "Sun, 06 Nov 1994 08:49:37 GMT".len(), "{date}");
    assert_eq!(client.push().await.unwrap().0, 201);
    assert_eq!((setup.pushed(), setup.statuses()), (1, vec![json!(429), json!(503), json!(201)]));
}

#[tokio::test]
async fn a_connection_is_closed_before_or_after_the_broker_has_done_it() {
    let setup = Setup::new().await;
    for (fault, done) in [("closeBeforeForward", 0), ("closeAfterAnswer", 1)] {
        setup.arm(&json!({fault: true}));
        assert!(setup.client().await.push().await.is_err(), "{fault}");
        assert_eq!(setup.pushed(), done, "{fault}");
    }
    assert_eq!(setup.client().await.push().await.unwrap().0, 201);
    assert_eq!(setup.statuses(), [json!(null), json!(null), json!(201)]);
}

#[tokio::test]
async fn a_black_hole_answers_nothing_until_the_reset() {
    let setup = Setup::new().await;
    let mut client = setup.client().await;
    setup.arm(&json!({"blackHole": true}));
    {
        let mut push = Box::pin(client.push());
        assert!(timeout(Duration::from_millis(200), &mut push).await.is_err());
        setup.stage.reset();
        assert!(push.await.is_err());
    }
    assert_eq!((setup.pushed(), setup.statuses().len()), (0, 0));
    assert_eq!(setup.client().await.push().await.unwrap().0, 201);
}

#[tokio::test]
async fn a_delay_delays() {
    let setup = Setup::new().await;
    setup.arm(&json!({"delayMs": 200}));
    let began = Instant::now();
    assert_eq!(setup.client().await.push().await.unwrap().0, 201);
    assert!(began.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_push_is_reported_as_deferred_and_its_operation_progresses() {
    let setup = Setup::new().await;
    let mut client = setup.client().await;
    setup.arm(&json!({"accepted202": {"operation": ["processing", "completed"]}}));
    let (status, headers, body) = client.push().await.unwrap();
    assert_eq!((status, &body[0]["queuePosition"], &body[0]["queueName"]), (202, &json!(1), &json!("q")));
    let path = headers["location"].to_str().unwrap().to_owned();
    assert_eq!(path, format!("/api/v1/operations/{}", body[0]["operationId"].as_str().unwrap()));
    let told = [client.send("GET", &path, &Value::Null).await, client.send("GET", &path, &Value::Null).await];
    let [(200, _, first), (200, _, second)] = told.map(Result::unwrap) else { panic!("it is known") };
    assert_eq!((&first["status"], &first["result"]), (&json!("processing"), &Value::Null));
    assert_eq!((&second["status"], &second["result"]), (&json!("completed"), &json!([{"queueName": "q"}])));
    assert_eq!(setup.pushed(), 1);
}

#[tokio::test]
async fn a_push_may_be_reported_as_deferred_with_one_object() {
    let setup = Setup::new().await;
    let mut client = setup.client().await;
    setup.arm(&json!({"accepted202": {"operation": ["completed"], "object": true}}));
    let items = json!({"items": [{"queue": "q", "partition": "a"}, {"queue": "q"}]});
    let (status, headers, body) = client.send("POST", "/api/v1/push", &items).await.unwrap();
    assert_eq!(
        (status, &body["status"], &body["operations"][1]["partition"]),
        (202, &json!("queued"), &json!("Default"))
    );
    let (first, second) = (&body["operations"][0]["operationId"], &body["operations"][1]["operationId"]);
    assert!(first != second && *first == body["operationId"]);
    assert_eq!(headers["x-queen-operation-id"].to_str().ok(), first.as_str());
    for id in [first, second] {
        let path = format!("/api/v1/operations/{}", id.as_str().unwrap());
        let (_, _, told) = client.send("GET", &path, &Value::Null).await.unwrap();
        assert_eq!(told["result"], json!([{"queueName": "q"}]));
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_is_seen_by_the_broker() {
    let setup = Setup::new().await;
    let mut client = setup.client().await;
    let waiting = async |wanted: usize| {
        let reached = async {
            while setup.stub.waiting.load(SeqCst) != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(10), reached).await.expect("the broker notices");
    };
    tokio::select! {
        answer = client.send("GET", "/api/v1/pop/queue/q", &Value::Null) => panic!("{answer:?}"),
        () = waiting(1) => {}
    }
    drop(client);
    waiting(0).await;
}

#[tokio::test]
async fn a_closed_port_refuses_cuts_what_is_open_and_opens_again() {
    let setup = Setup::new().await;
    for round in 0..20 {
        let mut client = setup.client().await;
        assert_eq!(client.push().await.unwrap().0, 201, "round {round}");
        setup.proxy.close().await.unwrap();
        setup.proxy.close().await.unwrap();
        assert!(client.push().await.is_err());
        let refused = TcpStream::connect(setup.address()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        setup.proxy.open().await.unwrap();
        setup.proxy.open().await.unwrap();
    }
}
