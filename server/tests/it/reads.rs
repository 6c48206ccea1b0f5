//! Lists and statistics use their own database connections, and none of those for messages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::support::{Server, eventually};

/// Routes with a short query that the broker's jobs run all the time anyway.
const SHORT: [&str; 4] = [
    "/api/v1/system/maintenance",
    "/api/v1/system/maintenance/pop",
    "/api/v1/system/doctor",
    "/api/v1/system/shared-state",
];

/// Routes that first store what this broker did in the current minute, one at a time.
const RECORDED: &[&str] = &[
    "/api/v1/analytics/queue-lag",
    "/api/v1/analytics/queue-ops",
    "/api/v1/analytics/queue-parked-replicas",
    "/api/v1/analytics/retention",
    "/api/v1/analytics/system-metrics",
    "/api/v1/analytics/worker-metrics",
    "/api/v1/status",
    "/api/v1/status/analytics",
];

/// Routes that the broker answers from memory.
const KNOWN: &[&str] = &["/api/v1/status/buffers", "/api/v1/system/settings", "/api/v1/whoami"];

/// Shorter than every timeout of these servers, much longer than a list takes.
const USUAL: Duration = Duration::from_secs(10);

const FLAGS: [&str; 10] = [
    "--sidecar-pool-size",
    "2",
    "--db-lock-timeout",
    "100s",
    "--db-statement-timeout",
    "120s",
    "--read-timeout",
    "120s",
    "--max-reads-per-client",
    "0",
];

/// A server with a message, a dead letter and a redrive. Returns a message, and the path of each list by its route.
async fn with_lists() -> (Server, Value, BTreeMap<String, String>) {
    let server = Server::start_with(&FLAGS).await;
    server.push("q", "p", &[json!(1), json!(2)]).await;
    let popped = server.pop("/queue/q?consumerGroup=g&batch=2").await.unwrap();
    server.ack_all(&popped.messages, &["dlq", "completed"]).await;
    let message = popped.messages[0].clone();
    let redrive = server.post("/api/v1/dlq/redrive", json!({"queue": "q"})).await.json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let described = server.get("/openapi.json").await.json();
    let described = described["paths"].as_object().unwrap().iter();
    let lists: BTreeMap<String, String> = described
        .filter(|(route, methods)| route.starts_with("/api/v1/") && methods["get"].is_object())
        .filter(|(route, _)| !route.starts_with("/api/v1/pop") && !SHORT.contains(&route.as_str()))
        .map(|(route, _)| {
            let of_message = route.contains("{transaction}");
            let partition = if of_message { text(&message["partitionId"]) } else { "p".to_owned() };
            let path = route
                .replace("{queue}", "q")
                .replace("{group}", "g")
                .replace("{name}", "n")
                .replace("{partition}", &partition)
                .replace("{transaction}", &text(&message["transactionId"]))
                .replace("{redrive}", &text(&redrive["id"]))
                .replace("{operation}", "00000000-0000-0000-0000-000000000001");
            (route.clone(), path)
        })
        .collect();
    assert!(lists.len() > 30, "{lists:?}");
    // Before a list, this broker reports its pending counts. It does so here, while connections are free.
    for (route, path) in &lists {
        assert_eq!(server.get(path).await.status, status_of(route), "{route}");
    }
    (server, message, lists)
}

fn status_of(route: &str) -> u16 {
    if route.contains("{operation}") { 404 } else { 200 }
}

async fn two_wait(watcher: &Client) {
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("no connection is left", async || {
        (watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 2).then_some(())
    })
    .await;
}

/// Makes adding a trace wait as long as this lock is held. Reading traces does not wait.
const SLOW: &str = "
    create function queen.slow() returns trigger language plpgsql as
    $$ begin perform pg_advisory_xact_lock_shared(77); return new; end $$;
    create trigger slow before insert on queen.traces for each row execute function queen.slow();
    select pg_advisory_lock(77)";

#[tokio::test]
async fn lists_are_answered_while_messages_have_no_connection_left() {
    let (server, message, lists) = with_lists().await;
    let (holder, watcher) = (server.database.client().await, server.database.client().await);
    holder.batch_execute(SLOW).await.unwrap();
    let mut stuck = JoinSet::new();
    let trace = json!({
        "transactionId": message["transactionId"], "partitionId": message["partitionId"], "data": {},
    });
    for _ in 0..4 {
        let add = server.http.post(format!("{}/api/v1/traces", server.url)).body(trace.to_string());
        stuck.spawn(async move { add.send().await.unwrap().status().as_u16() });
    }
    two_wait(&watcher).await;
    for (route, path) in lists.iter().filter(|(route, _)| !RECORDED.contains(&route.as_str())) {
        let reply = timeout(USUAL, server.get(path)).await;
        let reply = reply.unwrap_or_else(|_| panic!("{route} waits for a connection of messages"));
        assert_eq!(reply.status, status_of(route), "{route}: {}", reply.text);
    }
    assert!(stuck.try_join_next().is_none(), "messages had no connection all the time");
    holder.batch_execute("select pg_advisory_unlock(77)").await.unwrap();
    while let Some(status) = stuck.join_next().await {
        assert_eq!(status.unwrap(), 201);
    }
}

#[tokio::test]
async fn lists_wait_for_their_own_connections_and_messages_do_not() {
    let (server, _, lists) = with_lists().await;
    let (holder, watcher) = (server.database.client().await, server.database.client().await);
    holder.batch_execute("begin; lock table queen.traces in access exclusive mode").await.unwrap();
    let mut waiting = JoinSet::new();
    let ask = |route: String, path: &str| {
        let get = server.http.get(format!("{}{path}", server.url));
        async move { (route, get.send().await.unwrap().status().as_u16()) }
    };
    for n in 0..2 {
        waiting.spawn(ask(format!("first {n}"), "/api/v1/traces/names"));
    }
    two_wait(&watcher).await;
    for (route, path) in &lists {
        waiting.spawn(ask(route.clone(), path));
    }
    let mut answered = BTreeSet::new();
    while answered.len() < KNOWN.len() {
        answered.insert(waiting.join_next().await.unwrap().unwrap().0);
    }
    // Meanwhile a list that does not wait would have been answered.
    for n in 0..100 {
        timeout(USUAL, server.push("q", "other", &[json!(n)])).await.expect("messages go on");
    }
    while let Some(answer) = waiting.try_join_next() {
        answered.insert(answer.unwrap().0);
    }
    assert!(answered.iter().eq(KNOWN), "{answered:?}");
    holder.batch_execute("rollback").await.unwrap();
    while let Some(answer) = waiting.join_next().await {
        let (route, status) = answer.unwrap();
        assert_eq!(status, status_of(&route), "{route}");
    }
}

#[tokio::test]
async fn slow_reads_of_one_client_leave_a_connection_for_other_clients() {
    let server = Server::start().await;
    let from =
        |last: u8| reqwest::Client::builder().local_address(IpAddr::from([127, 0, 0, last])).build().unwrap();
    let (one, another) = (from(2), from(3));
    let (holder, watcher) = (server.database.client().await, server.database.client().await);
    holder.batch_execute("begin; lock table queen.traces in access exclusive mode").await.unwrap();
    let mut slow = JoinSet::new();
    for _ in 0..32 {
        let get = one.get(format!("{}/api/v1/traces/names", server.url));
        slow.spawn(async move { get.send().await.unwrap().status().as_u16() });
    }
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("a read waits in the database", async || {
        (watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    let list = another.get(format!("{}/api/v1/resources/queues", server.url));
    let reply = timeout(USUAL, list.send()).await.expect("another client is served");
    assert_eq!(reply.unwrap().status().as_u16(), 200);
    holder.batch_execute("rollback").await.unwrap();
    while let Some(status) = slow.join_next().await {
        assert!([200, 429, 504].contains(&status.unwrap()));
    }
}

#[tokio::test]
async fn neither_a_quick_read_nor_another_waits_for_a_body_that_arrives_slowly() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let mut slow = Vec::new();
    // More requests than may read at once.
    for _ in 0..8 {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let head = "POST /api/v1/dlq/redrive HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    content-length: 13\r\n\r\n{\"queue\"";
        socket.write_all(head.as_bytes()).await.unwrap();
        slow.push(socket);
    }
    for route in ["/api/v1/whoami", "/api/v1/resources/queues"] {
        let reply = timeout(USUAL, server.get(route)).await.expect("no read waits for them");
        assert_eq!(reply.status, 200, "{route}");
    }
    for mut socket in slow {
        socket.write_all(b":\"q\"}").await.unwrap();
        let mut reply = [0; 12];
        timeout(USUAL, socket.read_exact(&mut reply)).await.expect("their turn comes").unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&reply));
    }
}

#[tokio::test]
async fn what_the_broker_knows_waits_for_no_turn() {
    let server = Server::start().await;
    let (holder, watcher) = (server.database.client().await, server.database.client().await);
    holder.batch_execute("begin; lock table queen.traces in access exclusive mode").await.unwrap();
    let mut slow = JoinSet::new();
    for _ in 0..8 {
        let get = reqwest::Client::new().get(format!("{}/api/v1/traces/names", server.url));
        slow.spawn(async move { get.send().await.unwrap().status().as_u16() });
    }
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("a read waits in the database", async || {
        (watcher.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    for route in KNOWN.iter().chain(&SHORT) {
        let reply = timeout(USUAL, server.get(route)).await.expect("it needs no connection for reads");
        assert_eq!(reply.status, 200, "{route}");
    }
    holder.batch_execute("rollback").await.unwrap();
    while let Some(status) = slow.join_next().await {
        assert!([200, 504].contains(&status.unwrap()));
    }
}

#[tokio::test]
async fn examinations_on_request_count_as_reads_of_their_client() {
    let server = Server::start_with(&["--max-reads-per-client", "2"]).await;
    let holder = server.database.client().await;
    holder.batch_execute("begin; lock table queen.segments in access exclusive mode").await.unwrap();
    let mut asked = JoinSet::new();
    for _ in 0..20 {
        let get = reqwest::Client::new().get(format!("{}/api/v1/system/doctor?fresh=true", server.url));
        asked.spawn(async move { get.send().await.unwrap().status().as_u16() });
    }
    let statuses = asked.join_all().await;
    assert!(statuses.contains(&429), "{statuses:?}");
    holder.batch_execute("rollback").await.unwrap();
}
