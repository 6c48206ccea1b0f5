//! Limits: what a client beyond them gets, and that other clients are not affected.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{Server, eventually, numbers};

const LIVE: &str = "GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Another address of this machine: another client.
const NEIGHBOUR: [u8; 4] = [127, 0, 0, 2];

async fn connected(server: &Server) -> TcpStream {
    TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap()
}

async fn connected_from(server: &Server, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((IpAddr::from(address), 0).into()).unwrap();
    socket.connect(server.url.trim_start_matches("http://").parse().unwrap()).await.unwrap()
}

fn neighbour() -> reqwest::Client {
    reqwest::Client::builder().local_address(IpAddr::from(NEIGHBOUR)).build().unwrap()
}

/// Everything that arrives until the connection ends.
async fn heard(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset ends the connection as well; what came before counts.
    _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// The status of the next small response on a connection that stays open.
async fn status(stream: &mut TcpStream, request: &str) -> u16 {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    std::str::from_utf8(&answer[..length]).unwrap()[9..12].parse().unwrap()
}

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

pub async fn metric(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics/prometheus").await.text;
    let line = page.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next().unwrap().parse().unwrap()
}

async fn refused(server: &Server, limit: &str) -> u64 {
    metric(server, &format!("queen_refused_total{{limit=\"{limit}\"}}")).await
}

#[tokio::test]
async fn headers_that_are_too_large_are_a_431() {
    let server = Server::start_with(&["--max-header-bytes", "8KiB"]).await;
    let request = |length: usize| {
        format!(
            "GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: {}\r\n\r\n",
            "x".repeat(length)
        )
    };
    let send = async |request: String| {
        let mut stream = connected(&server).await;
        // The response may arrive before everything is sent.
        _ = stream.write_all(request.as_bytes()).await;
        heard(&mut stream).await
    };
    assert!(send(request(8_000)).await.starts_with("HTTP/1.1 200 "));
    let answer = send(request(10_000)).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(body(&answer)["code"], "headers_too_large");
    // At twice the limit and above, the response has no body, and the request is not read to its end.
    for length in [20_000, 5_000_000] {
        let answer = send(request(length)).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{length}: {answer}");
    }
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    let answer = send(format!("GET /health/live HTTP/1.1\r\nHost: localhost\r\n{many}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let path =
        format!("GET /{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "p".repeat(10_000));
    assert!(send(path).await.starts_with("HTTP/1.1 431 "));
    assert_eq!(refused(&server, "headers").await, 5);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_408_and_others_are_served_meanwhile() {
    let server = Server::start_with(&["--body-idle", "500ms"]).await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut stream = connected(&server).await;
        let head = "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"items\":";
        stream.write_all(head.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    server.push("q", "p", &[json!(1)]).await;
    for stream in &mut stalled {
        let answer = heard(stream).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert_eq!(body(&answer)["code"], "request_timeout");
    }
    assert_eq!(refused(&server, "body_time").await, 20);
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn a_body_that_trickles_is_a_408_after_its_whole_time() {
    let server = Server::start_with(&["--body-idle", "10s", "--body-timeout", "1s"]).await;
    let mut stream = connected(&server).await;
    stream
        .write_all(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        .await
        .unwrap();
    let begun = Instant::now();
    let mut answer = vec![0; 1024];
    let length = loop {
        stream.write_all(b" ").await.unwrap();
        match timeout(Duration::from_millis(20), stream.read(&mut answer)).await {
            Ok(length) => break length.unwrap(),
            Err(_) => assert!(begun.elapsed() < Duration::from_secs(20), "nobody minds"),
        }
    };
    assert!(answer[..length].starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer[..length]));
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_a_504_and_may_still_happen_once() {
    let server = Server::start_with(&["--request-timeout", "1s", "--operation-queue-enabled=false"]).await;
    server.push("q", "p", &[json!(0)]).await;
    let session = server.database.client().await;
    session.batch_execute("begin; lock table queen.segments in share mode").await.unwrap();
    let push = json!({"items": [{"queue": "q", "partition": "p", "payload": 1, "transactionId": "once"}]});
    let reply = server.post("/api/v1/push", push.clone()).await;
    assert!(reply.is_error(504, "timeout"), "{} {}", reply.status, reply.text);
    assert!(reply.json()["error"].as_str().unwrap().contains("timeout"));
    session.batch_execute("rollback").await.unwrap();
    assert_eq!(server.post("/api/v1/push", push).await.status, 201);
    assert_eq!(server.pop("/queue/q/partition/p?batch=10").await.unwrap().data(), [0, 1]);
    assert_eq!(refused(&server, "request_time").await, 1);
}

#[tokio::test]
async fn a_waiting_pop_has_its_own_time() {
    let server = Server::start_with(&["--request-timeout", "1s"]).await;
    let begun = Instant::now();
    let reply = server.get("/api/v1/pop/queue/none?wait=true&timeout=2500").await;
    assert_eq!(reply.status, 204, "{}", reply.text);
    assert!(begun.elapsed() >= Duration::from_millis(2400), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_message_that_is_too_large_is_a_413_and_nothing_is_stored() {
    let server = Server::start_with(&["--max-message-bytes", "1000"]).await;
    let large = "x".repeat(1000);
    let items = json!([{"queue": "q", "payload": "small"}, {"queue": "q", "payload": large}]);
    let reply = server.post("/api/v1/push", json!({"items": items})).await;
    assert!(reply.is_error(413, "payload_too_large"), "{} {}", reply.status, reply.text);
    assert!(reply.json()["error"].as_str().unwrap().starts_with("items[1]: "));
    let transaction = json!({"operations": [{"type": "push", "items": items}]});
    assert_eq!(server.post("/api/v1/transaction", transaction).await.status, 413);
    assert!(server.pop("/queue/q").await.is_none());
    server.push("q", "p", &[json!("x".repeat(998))]).await;
    let message = server.pop("/queue/q").await.unwrap().messages[0].clone();
    let trace = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"], "data": large});
    assert_eq!(server.post("/api/v1/traces", trace).await.status, 413);
    assert_eq!(refused(&server, "message").await, 3);
}

#[tokio::test]
async fn a_large_body_is_for_messages() {
    let server = Server::start().await;
    let padded = |body: &str| format!("{body}{}", " ".repeat(1 << 20));
    for path in ["/api/v1/configure", "/api/v1/traces", "/api/v1/dlq/redrive", "/api/v1/lease/l/extend"] {
        let reply = server.send(Method::POST, path, Some(&padded("{}"))).await;
        assert!(reply.is_error(413, "payload_too_large"), "{path}: {} {}", reply.status, reply.text);
    }
    let push = padded(r#"{"items":[{"queue":"q","payload":1}]}"#);
    assert_eq!(server.send(Method::POST, "/api/v1/push", Some(&push)).await.status, 201);
    let acks = format!(
        r#"{{"acknowledgments":[{}]}}"#,
        vec![r#"{"transactionId":"","partitionId":""}"#; 50_001].join(",")
    );
    let reply = server.send(Method::POST, "/api/v1/ack/batch", Some(&acks)).await;
    assert!(
        reply.is_error(400, "bad_request") && reply.text.contains("50001 acknowledgments"),
        "{}",
        reply.text
    );
    assert_eq!(refused(&server, "body").await, 4);
}

#[tokio::test]
async fn a_large_body_that_finds_no_room_is_a_429_and_small_ones_are_taken() {
    let server = Server::start_with(&["--max-body-bytes", "1MiB", "--max-bodies-bytes", "1MiB"]).await;
    let push = |queue: &str, length: usize| {
        format!("{}{}", json!({"items": [{"queue": queue, "payload": 1}]}), " ".repeat(length))
    };
    let send = async |body: &str| server.send(Method::POST, "/api/v1/push", Some(body)).await;
    let slow = push("slow", 1_000_000);
    let (most, rest) = slow.split_at(900_000);
    let mut stream = connected(&server).await;
    let head = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        slow.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(most.as_bytes()).await.unwrap();
    // The broker reads more of the slow body meanwhile. A large body before that would take its room.
    for _ in 0..100 {
        assert_eq!(server.get("/health/live").await.status, 200);
    }
    let large = push("large", 200_000);
    let reply = eventually("most of it has arrived", async || {
        let reply = send(&large).await;
        (reply.status != 201).then_some(reply)
    })
    .await;
    assert!(reply.is_error(429, "rate_limited"), "{} {}", reply.status, reply.text);
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(refused(&server, "bodies").await, 1);
    assert_eq!(send(&push("small", 1_000)).await.status, 201);
    stream.write_all(rest.as_bytes()).await.unwrap();
    let answer = heard(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    eventually("its memory is free", async || (send(&large).await.status == 201).then_some(())).await;
}

#[tokio::test]
async fn one_connection_too_many_is_a_503_and_is_closed() {
    let server = Server::start_with(&["--max-connections", "3"]).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = connected(&server).await;
        assert_eq!(status(&mut stream, LIVE).await, 200);
        open.push(stream);
    }
    for _ in 0..5 {
        let mut stream = connected(&server).await;
        stream.write_all(LIVE.as_bytes()).await.unwrap();
        let answer = heard(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
        assert_eq!(
            body(&answer),
            json!({"error": "connection timeout: too many connections", "code": "unavailable"})
        );
    }
    assert_eq!(status(&mut open[2], LIVE).await, 200, "who was there before stays");
    drop(open.swap_remove(0));
    eventually("there is room again", async || {
        let mut stream = connected(&server).await;
        (status(&mut stream, LIVE).await == 200).then_some(())
    })
    .await;
    drop(open);
    eventually("there is room for more", async || {
        let page = server
            .http
            .get(format!("{}/metrics/prometheus", server.url))
            .send()
            .await
            .ok()?
            .text()
            .await
            .ok()?;
        page.contains("queen_http_connections_max 3\n").then_some(())
    })
    .await;
    assert!(refused(&server, "connections").await >= 5);
}

#[tokio::test]
async fn one_client_with_too_many_connections_takes_none_of_its_neighbours() {
    let server = Server::start_with(&["--max-connections-per-client", "2"]).await;
    let (mut first, mut second) = (connected(&server).await, connected(&server).await);
    assert_eq!((status(&mut first, LIVE).await, status(&mut second, LIVE).await), (200, 200));
    let mut third = connected(&server).await;
    assert!(heard(&mut third).await.starts_with("HTTP/1.1 503 "));
    let (mut fourth, mut fifth) =
        (connected_from(&server, NEIGHBOUR).await, connected_from(&server, NEIGHBOUR).await);
    assert_eq!((status(&mut fourth, LIVE).await, status(&mut fifth, LIVE).await), (200, 200));
    drop((first, second));
    eventually("it is counted", async || {
        let reply = server.http.get(format!("{}/metrics/prometheus", server.url)).send().await.ok()?;
        let page = reply.text().await.ok()?;
        let refused = "queen_refused_total{limit=\"client_connections\"} ";
        page.lines().find_map(|line| line.strip_prefix(refused)).filter(|count| *count != "0").map(|_| ())
    })
    .await;
}

#[tokio::test]
async fn a_head_that_is_not_complete_in_time_is_cut_off_and_idle_connections_are_not() {
    let server = Server::start_with(&["--header-timeout", "300ms"]).await;
    let (mut silent, mut idle) = (connected(&server).await, connected(&server).await);
    assert_eq!(status(&mut idle, LIVE).await, 200);
    let mut first = connected(&server).await;
    first.write_all(b"GET /health/live HTTP/1.1\r\nHo").await.unwrap();
    assert_eq!(heard(&mut first).await, "");
    // On a connection that has served a request, and after a body.
    let mut second = connected(&server).await;
    assert_eq!(status(&mut second, LIVE).await, 200);
    second.write_all(b"G").await.unwrap();
    assert_eq!(heard(&mut second).await, "");
    let mut third = connected(&server).await;
    let filler = "x".repeat(20_000);
    let push = r#"{"items":[]}"#;
    let behind = format!(
        "POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{push}GET /{filler}",
        push.len()
    );
    third.write_all(behind.as_bytes()).await.unwrap();
    let answer = heard(&mut third).await;
    assert!(answer.starts_with("HTTP/1.1 201 ") && answer.matches("HTTP/1.1 ").count() == 1, "{answer}");
    // After complete requests, in the same read.
    let body = format!("Host: localhost\r\nContent-Length: {}\r\n\r\n{push}", push.len());
    let chunked = "Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nC\r\n{\"items\":[]}\r\n0\r\n\r\n";
    for (request, status) in [
        (LIVE.to_owned(), "HTTP/1.1 200 "),
        (format!("POST /api/v1/push HTTP/1.1\r\n{body}"), "HTTP/1.1 201 "),
        (format!("POST /api/v1/push HTTP/1.1\r\n{chunked}"), "HTTP/1.1 201 "),
    ] {
        for requests in [1, 3] {
            let mut stream = connected(&server).await;
            let sent = request.repeat(requests) + "GET /health/live HTTP/1.1\r\nHo";
            stream.write_all(sent.as_bytes()).await.unwrap();
            let answer = timeout(Duration::from_secs(5), heard(&mut stream)).await.expect("it is cut off");
            assert_eq!(answer.matches(status).count(), requests, "{answer}");
        }
    }
    assert_eq!(refused(&server, "header_time").await, 9);
    assert_eq!((status(&mut silent, LIVE).await, status(&mut idle, LIVE).await), (200, 200));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let server = Server::start_with(&["--write-timeout", "300ms"]).await;
    let large = json!("x".repeat(8 << 20));
    for _ in 0..5 {
        server.push("q", "p", std::slice::from_ref(&large)).await;
    }
    let mut stream = connected(&server).await;
    stream
        .write_all(b"GET /api/v1/pop/queue/q/partition/p?batch=5 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    eventually("it is cut off", async || (refused(&server, "write_time").await == 1).then_some(())).await;
    let mut answer = Vec::new();
    _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.len() < 40 << 20, "{}", answer.len());
}

/// Starts pops with `http` until `total` of them wait. Returns their tasks.
async fn parked(server: &Server, http: &reqwest::Client, count: u64, total: u64) -> JoinSet<u16> {
    let mut pops = JoinSet::new();
    for _ in 0..count {
        let request =
            http.get(format!("{}/api/v1/pop/queue/q?wait=true&timeout=60000&autoAck=true", server.url));
        pops.spawn(async move { request.send().await.unwrap().status().as_u16() });
    }
    eventually("they wait", async || (metric(server, "queen_parked_pops").await == total).then_some(()))
        .await;
    pops
}

#[tokio::test]
async fn one_list_too_many_at_once_is_refused_and_a_neighbours_and_messages_are_not() {
    let server = Server::start_with(&["--max-reads-per-client", "2"]).await;
    let holder = server.database.client().await;
    holder.batch_execute("begin; lock table queen.traces in access exclusive mode").await.unwrap();
    let names = format!("{}/api/v1/traces/names", server.url);
    let mut lists = JoinSet::new();
    for _ in 0..2 {
        let list = server.http.get(&names);
        lists.spawn(async move { list.send().await.unwrap().status().as_u16() });
    }
    let text = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let watcher = server.database.client().await;
    eventually("they are under way", async || {
        (watcher.query_one(text, &[]).await.unwrap().get::<_, i64>(0) == 2).then_some(())
    })
    .await;
    let refusal = server.get("/api/v1/traces/names").await;
    assert!(refusal.is_error(429, "rate_limited"), "{}", refusal.text);
    assert_eq!(refusal.headers["retry-after"], "1");
    let seek = json!({"toEnd": true});
    let searches = [
        (Method::POST, "/api/v1/dlq/redrive", Some(json!({"queue": "q"}))),
        (Method::POST, "/api/v1/dlq/redrive", Some(json!({"queue": "q", "dryRun": true}))),
        (Method::DELETE, "/api/v1/dlq?queue=q", None),
        (Method::POST, "/api/v1/consumer-groups/g/queues/q/seek", Some(seek.clone())),
        (Method::POST, "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", Some(seek)),
        (Method::POST, "/api/v1/stats/refresh", None),
    ];
    for (method, path, body) in searches.clone() {
        let reply = server.send(method, path, body.map(|body| body.to_string()).as_deref()).await;
        assert!(reply.is_error(429, "rate_limited"), "{path}: {} {}", reply.status, reply.text);
    }
    assert_eq!(neighbour().get(format!("{}/api/v1/whoami", server.url)).send().await.unwrap().status(), 200);
    server.push("q", "p", &[json!(1)]).await;
    assert_eq!(server.pop("/queue/q").await.unwrap().messages.len(), 1, "messages are no list");
    holder.batch_execute("rollback").await.unwrap();
    while let Some(status) = lists.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(server.get("/api/v1/traces/names").await.status, 200, "its places are free");
    assert_eq!(refused(&server, "client_reads").await, 1 + searches.len() as u64);
    for (method, path, body) in searches {
        let reply = server.send(method, path, body.map(|body| body.to_string()).as_deref()).await;
        assert_ne!(reply.status, 429, "{path}: {}", reply.text);
    }
}

#[tokio::test]
async fn one_waiting_pop_too_many_does_not_wait_and_a_neighbours_do() {
    let server = Server::start_with(&["--max-parked-per-client", "2"]).await;
    let mut pops = parked(&server, &server.http, 2, 2).await;
    let waiting = "/api/v1/pop/queue/q?wait=true&timeout=60000&autoAck=true";
    let begun = Instant::now();
    assert_eq!(server.get(waiting).await.status, 204);
    assert!(begun.elapsed() < Duration::from_secs(20), "it waits");
    assert_eq!(server.get("/api/v1/pop/queue/q").await.status, 204, "who does not wait is not counted");
    let mut others = parked(&server, &neighbour(), 2, 4).await;
    assert_eq!(refused(&server, "client_parked").await, 1);
    for partition in ["a", "b", "c", "d"] {
        server.push("q", partition, &[json!(1)]).await;
    }
    for pops in [&mut pops, &mut others] {
        while let Some(status) = pops.join_next().await {
            assert_eq!(status.unwrap(), 200);
        }
    }
    let pops = parked(&server, &server.http, 2, 2).await;
    drop(pops);
}

#[tokio::test]
async fn one_waiting_pop_too_many_is_a_429_where_that_is_wanted() {
    let server =
        Server::start_with(&["--max-parked-per-client", "1", "--pop-overload-response", "429"]).await;
    let pops = parked(&server, &server.http, 1, 1).await;
    let reply = server.get("/api/v1/pop/queue/q?wait=true&timeout=60000").await;
    assert!(reply.is_error(429, "rate_limited"), "{} {}", reply.status, reply.text);
    assert_eq!(reply.headers["retry-after"], "1");
    drop(pops);
    // When a client disconnects, its place is free again.
    eventually("there is a place", async || {
        let reply = server.get("/api/v1/pop/queue/q?wait=true&timeout=1").await;
        (reply.status == 204).then_some(())
    })
    .await;
}

/// A broker whose lane of pops is full while this holds a lock: one pop is in flight, and one
/// waits, which is the maximum.
struct Overload {
    session: tokio_postgres::Client,
    pops: JoinSet<u16>,
}

impl Overload {
    const FLAGS: [&str; 6] = ["--max-waiting", "1", "--pop-max-concurrent", "1", "--ack-max-concurrent", "1"];

    async fn on(server: &Server) -> Self {
        server.push("q", "p", &[json!(1)]).await;
        let session = server.database.client().await;
        let mut pops = JoinSet::new();
        session.batch_execute("begin; lock table queen.consumers in access exclusive mode").await.unwrap();
        let mut pop = |group: &str| {
            let request = server
                .http
                .get(format!("{}/api/v1/pop/queue/q/partition/p?consumerGroup={group}", server.url));
            pops.spawn(async move { request.send().await.unwrap().status().as_u16() });
        };
        pop("flies");
        let watcher = server.database.client().await;
        // This statement only: jobs of the broker may wait for the lock as well.
        let stuck = "select count(*) from pg_stat_activity where datname = current_database()
                     and wait_event_type = 'Lock' and query like '%queen.lease(%'";
        eventually("it flies", async || {
            let waiting: i64 = watcher.query_one(stuck, &[]).await.unwrap().get(0);
            (waiting > 0).then_some(())
        })
        .await;
        pop("waits");
        let lane = "queen_lane_waiting{lane=\"consume\"}";
        eventually("it waits", async || (metric(server, lane).await == 1).then_some(())).await;
        Self { session, pops }
    }

    /// The statuses of the two pops that were there before.
    async fn off(self) -> Vec<u16> {
        self.session.batch_execute("rollback").await.unwrap();
        self.pops.join_all().await
    }
}

#[tokio::test]
async fn a_pop_beyond_the_limit_returns_nothing_or_waits() {
    let server = Server::start_with(&Overload::FLAGS).await;
    let overload = Overload::on(&server).await;
    assert_eq!(server.get("/api/v1/pop/queue/q/partition/p?consumerGroup=c").await.status, 204);
    let request = server.http.get(format!(
        "{}/api/v1/pop/queue/q/partition/p?consumerGroup=c&wait=true&timeout=60000",
        server.url
    ));
    let mut patient = JoinSet::new();
    patient.spawn(async move { request.send().await.unwrap().status().as_u16() });
    assert_eq!(overload.off().await, [200, 200]);
    assert_eq!(patient.join_all().await, [200]);
}

#[tokio::test]
async fn a_pop_that_finds_no_room_is_a_429_where_that_is_wanted() {
    let flags = [&Overload::FLAGS[..], &["--pop-overload-response", "429"]].concat();
    let server = Server::start_with(&flags).await;
    let overload = Overload::on(&server).await;
    let reply = server.get("/api/v1/pop/queue/q/partition/p?consumerGroup=c").await;
    assert!(reply.is_error(429, "rate_limited"), "{} {}", reply.status, reply.text);
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!(overload.off().await, [200, 200]);
}

#[tokio::test]
async fn a_queue_that_is_pushed_to_too_fast_is_a_429_before_anything_is_stored() {
    let server = Server::start_with(&["--rate-per-queue", "1", "--rate-queues", "free=0,wide=1000"]).await;
    // More than the burst: a full bucket accepts it, and takes a hundred seconds to refill.
    server.push("q", "p", &numbers(0..100)).await;
    let reply = server.post("/api/v1/push", json!({"items": [{"queue": "q", "payload": "late"}]})).await;
    assert!(reply.is_error(429, "rate_limited"), "{} {}", reply.status, reply.text);
    let wait: u64 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((50..=100).contains(&wait), "{wait}");
    let mixed = json!([{"queue": "other", "payload": 1}, {"queue": "q", "payload": "late"}]);
    assert_eq!(server.post("/api/v1/push", json!({"items": mixed})).await.status, 429);
    let transaction = json!({"operations": [{"type": "push", "items": mixed}]});
    assert_eq!(server.post("/api/v1/transaction", transaction).await.status, 429);
    assert!(server.pop("/queue/other").await.is_none());
    server.push("other", "p", &numbers(0..2)).await;
    for _ in 0..5 {
        server.push("free", "p", &numbers(0..1000)).await;
    }
    server.push("wide", "p", &numbers(0..1000)).await;
    server.push("wide", "p", &numbers(0..900)).await;
    assert_eq!(server.pop("/queue/q/partition/p?batch=1000").await.unwrap().messages.len(), 100);
    assert_eq!(refused(&server, "queue_rate").await, 3);
}

#[tokio::test]
async fn a_client_that_asks_too_often_is_a_429_and_its_neighbour_is_served() {
    let server = Server::start_with(&["--rate-per-client", "1"]).await;
    let begun = Instant::now();
    let mut passed = 0;
    for _ in 0..30 {
        let reply = server.get("/api/v1/resources/namespaces").await;
        match reply.status {
            200 => passed += 1,
            _ => {
                assert!(reply.is_error(429, "rate_limited"), "{} {}", reply.status, reply.text);
                assert_eq!(reply.headers["retry-after"], "1");
            }
        }
    }
    let most = 3 + begun.elapsed().as_secs();
    assert!((2..=most).contains(&passed), "{passed} of at most {most}");
    assert_eq!(refused(&server, "client_rate").await, 30 - passed);
    for _ in 0..10 {
        assert_eq!(server.get("/health/live").await.status, 200, "who watches is not counted");
    }
    let url = format!("{}/api/v1/push", server.url);
    let push = neighbour().post(url).body(json!({"items": [{"queue": "q", "payload": 1}]}).to_string());
    assert_eq!(push.send().await.unwrap().status().as_u16(), 201);
    // A 429 would end published consumers: a pop that does not wait returns nothing, and one that waits gets its turn.
    let reply = server.get("/api/v1/pop/queue/q?wait=true&timeout=30000").await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let statuses: Vec<u16> =
        futures_util::future::join_all((0..20).map(|_| server.get("/api/v1/pop/queue/q")))
            .await
            .iter()
            .map(|reply| reply.status)
            .collect();
    assert!(statuses.iter().all(|status| *status == 204), "{statuses:?}");
}

#[tokio::test]
async fn who_is_not_let_in_is_counted_by_address() {
    let secret = "a secret that is only used here, and long enough";
    let server =
        Server::start_with(&["--rate-per-client", "1", "--jwt-enabled", "--jwt-secret", secret]).await;
    let begun = Instant::now();
    let mut told = 0;
    for _ in 0..30 {
        match server.get("/api/v1/resources/namespaces").await.status {
            401 => told += 1,
            status => assert_eq!(status, 429),
        }
    }
    let most = 3 + begun.elapsed().as_secs();
    assert!((2..=most).contains(&told), "{told} of at most {most}");
    let url = format!("{}/api/v1/resources/namespaces", server.url);
    assert_eq!(neighbour().get(url).send().await.unwrap().status().as_u16(), 401);
}

#[tokio::test]
async fn a_partition_too_many_fails_alone() {
    let server = Server::start_with(&["--max-partitions-per-queue", "2"]).await;
    let item = |queue: &str, partition: &str| json!({"queue": queue, "partition": partition, "payload": 1});
    let results = server
        .push_items(json!([item("q", "a"), item("q", "b"), item("q", "c"), item("q", "a"), item("r", "c")]))
        .await;
    let statuses: Vec<_> = results.iter().map(|result| result["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["queued", "queued", "failed", "queued", "queued"]);
    assert!(results[2]["error"].as_str().unwrap().contains("2 partitions"), "{}", results[2]);
    assert_eq!(server.push_items(json!([item("q", "d")])).await[0]["status"], "failed");
    let transaction = json!({"operations": [{"type": "push", "queue": "q", "partition": "e"}]});
    assert_eq!(server.call("/api/v1/transaction", transaction).await["success"], false);
    assert_eq!(server.send(Method::GET, "/api/v1/pop/queue/q/partition/c", None).await.status, 204);
    assert_eq!(refused(&server, "partitions").await, 3);
}

#[tokio::test]
async fn a_queue_too_many_fails_alone_and_configure_makes_none() {
    let server = Server::start_with(&["--max-queues", "2"]).await;
    let item = |queue: &str| json!({"queue": queue, "payload": 1});
    server.push_items(json!([item("a"), item("b")])).await;
    let results = server.push_items(json!([item("c"), item("a")])).await;
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!("failed"), &json!("queued")));
    assert_eq!(results[0]["error"], "there are 2 queues, the most allowed (QUEEN_MAX_QUEUES)");
    let transaction = json!({"operations": [{"type": "push", "queue": "c"}]});
    assert_eq!(server.call("/api/v1/transaction", transaction).await["success"], false);
    let reply = server.post("/api/v1/configure", json!({"queue": "c"})).await;
    assert!(reply.is_error(409, "conflict"), "{} {}", reply.status, reply.text);
    // An existing queue can be changed, and deleting one makes room.
    assert_eq!(server.configure("b", json!({"leaseTime": 7})).await["options"]["leaseTime"], 7);
    server.delete("/api/v1/resources/queues/b").await;
    server.configure("c", json!({})).await;
    assert_eq!(refused(&server, "queues").await, 2);
}

#[tokio::test]
async fn without_automatic_creation_only_configure_makes_a_queue() {
    let server = Server::start_with(&["--auto-create", "false"]).await;
    let push = |queues: &[&str]| {
        let items: Vec<_> = queues.iter().map(|queue| json!({"queue": queue, "payload": 1})).collect();
        json!({"items": items})
    };
    let said = "queue \"typo\" does not exist; create it with POST /api/v1/configure, because QUEEN_AUTO_CREATE is off";
    let transaction = json!({"operations": [{"type": "push", "queue": "typo", "payload": 1}]});
    for (path, body) in [("/api/v1/push", push(&["typo"])), ("/api/v1/transaction", transaction)] {
        let reply = server.post(path, body).await;
        assert!(reply.is_error(404, "not_found"), "{path}: {} {}", reply.status, reply.text);
        assert_eq!(reply.json()["error"], said);
    }
    for path in [
        "/api/v1/pop/queue/typo",
        "/api/v1/pop/queue/typo?consumerGroup=g&wait=true",
        "/api/v1/pop/queue/typo/partition/p",
        "/api/v1/pop/queue/typo/partition/p?consumerGroup=g&subscriptionMode=new",
    ] {
        let reply = server.get(path).await;
        assert!(reply.is_error(404, "not_found"), "{path}: {} {}", reply.status, reply.text);
    }
    assert_eq!(server.get("/api/v1/consumer-groups").await.json(), json!([]), "nothing is registered");
    server.configure("q", json!({})).await;
    // New partitions are created as usual, and other items are not affected.
    let results = server.post("/api/v1/push", push(&["q", "typo"])).await.json();
    assert_eq!((&results[0]["status"], &results[1]["status"]), (&json!("queued"), &json!("failed")));
    assert_eq!(results[1]["error"], said);
    assert_eq!(server.pop("/queue/q?consumerGroup=g").await.unwrap().data(), [1]);
    server.sql("select queen.push('q', 'by sql', '2')").await;
    // Wait until the inbox is empty: a row left there would create the queue again after it is deleted.
    assert_eq!(server.pop("/queue/q?consumerGroup=g&wait=true").await.unwrap().data(), [2]);
    let sql = server.database.client().await;
    let error = sql.batch_execute("select queen.push('typo', 'p', '1')").await.unwrap_err();
    assert_eq!(error.as_db_error().unwrap().message(), "queue \"typo\" does not exist");
    // Deleting the queue makes it unknown again, also for a group that read it.
    server.delete("/api/v1/resources/queues/q").await;
    assert!(server.get("/api/v1/pop/queue/q?consumerGroup=g").await.is_error(404, "not_found"));
}
