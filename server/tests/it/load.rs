//! Load management as clients see it: 202, 429, operations; and the three tests of its specification, with real brokers, real locks
//! and real kills.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use queen_testkit::Broker;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::{EASILY_STRAINED, Server, Strain, array, drained, eventually, numbers};

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");

async fn broker(database: &queen_testkit::Database, flags: &[&str]) -> Broker {
    let mut args = vec!["--database-url", database.url()];
    args.extend(EASILY_STRAINED);
    args.extend(flags);
    Broker::start(Path::new(QUEEN), &args, &[]).await.unwrap()
}

/// The status, the headers' operation id, and the body of a push of one message.
async fn push(url: &str, partition: &str, payload: Value) -> (StatusCode, Value) {
    let body = json!({"items": [{"queue": "q", "partition": partition, "payload": payload}]}).to_string();
    let request = reqwest::Client::new().post(format!("{url}/api/v1/push")).body(body);
    let response = request.send().await.unwrap();
    (response.status(), response.json().await.unwrap())
}

async fn idle(url: &str) {
    eventually("nothing is deferred any more", async || {
        let stats: Value =
            reqwest::get(format!("{url}/api/v1/operations/stats")).await.unwrap().json().await.unwrap();
        (stats["systemHealth"]["queueDepth"] == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_push_under_load_is_a_202_in_the_form_that_was_asked_for() {
    let server = Server::start_with(&EASILY_STRAINED).await;
    let strain = Strain::on(&server.database, &[&server.url]).await;
    let items = json!({"items": [
        {"queue": "orders", "partition": "eu", "payload": 1, "transactionId": "a"},
        {"queue": "orders", "partition": "us", "payload": 2},
        {"queue": "orders", "partition": "eu", "payload": 3},
    ]});
    let reply = server.post("/api/v1/push", items.clone()).await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let results = array(reply.json());
    assert_eq!(results.len(), 3);
    for result in &results {
        assert_eq!((&result["status"], &result["reason"]), (&json!("queued"), &json!("system_busy")));
        assert!(result["queuePosition"].as_u64() >= Some(1) && result["estimatedWait"].as_u64() >= Some(1));
    }
    let id = results[0]["operationId"].as_str().unwrap();
    assert_eq!(reply.headers["location"], format!("/api/v1/operations/{id}"));
    assert_eq!(reply.headers["x-queen-operation-id"], id);
    assert_eq!(Uuid::try_parse(id).unwrap().get_version_num(), 7);

    let wanted = [("orders", "eu"), ("orders", "us")];
    let by_query = server.post("/api/v1/push?async=true", items.clone()).await;
    let request = server.http.post(format!("{}/api/v1/push", server.url)).body(items.to_string());
    let by_header = request.header("Prefer", "wait=10, respond-async").send().await.unwrap();
    assert_eq!((by_query.status, by_header.status().as_u16()), (202, 202));
    for object in [by_query.json(), by_header.json().await.unwrap()] {
        assert_eq!((&object["status"], &object["reason"]), (&json!("queued"), &json!("system_busy")));
        let operations = array(object["operations"].clone());
        let named: Vec<_> = operations
            .iter()
            .map(|o| (o["queue"].as_str().unwrap(), o["partition"].as_str().unwrap()))
            .collect();
        assert_eq!(named, wanted);
        assert_eq!(object["operationId"], operations[0]["operationId"]);
    }

    let operation = server.get(&format!("/api/v1/operations/{id}")).await.json();
    assert_eq!((&operation["operation_type"], &operation["queue_name"]), (&json!("PUSH"), &json!("orders")));
    assert!(["pending", "processing"].contains(&operation["status"].as_str().unwrap()), "{operation}");
    let listed = server.get("/api/v1/operations?queue=orders&limit=2").await.json();
    assert_eq!(array(listed["operations"].clone()).len(), 2);
    assert!(server.get("/api/v1/operations?status=soon").await.is_error(400, "bad_request"));
    assert!(server.get("/api/v1/operations/nonsense").await.is_error(400, "bad_request"));
    let unknown = server.get(&format!("/api/v1/operations/{}", Uuid::nil())).await;
    assert!(unknown.is_error(404, "not_found"));
    assert_eq!(unknown.json()["error"], "Not found");
    let stats = server.get("/api/v1/operations/stats").await.json();
    assert!(array(stats["stats"].clone()).iter().any(|line| line["operation_type"] == "PUSH"));
    assert!(stats["systemHealth"]["queueDepth"].as_u64() >= Some(4), "{stats}");

    strain.off(&[&server.url]).await;
    idle(&server.url).await;
    let done = server.get(&format!("/api/v1/operations/{id}")).await.json();
    assert_eq!((&done["status"], &done["error_message"]), (&json!("completed"), &Value::Null));
    assert_eq!(done["result"][0]["message_id"], results[0]["message_id"]);
    assert!(done["latency_seconds"].as_f64() > Some(0.0) && done["processed_at"].is_string());
    let popped = server.pop("/queue/orders/partition/eu?batch=10").await.unwrap();
    assert_eq!(
        popped.data(),
        [json!(1), json!(3), json!(3), json!(3)],
        "the id that was chosen is stored once"
    );
    assert_eq!(popped.messages[0]["id"], results[0]["message_id"]);
}

/// Several clients, two brokers, one partition: executed directly, deferred, executed again, and once more.
#[tokio::test]
async fn order_under_load() {
    let database = queen_testkit::database().await;
    let (a, b) = (broker(&database, &[]).await, broker(&database, &[]).await);
    let urls = [a.url().to_owned(), b.url().to_owned()];
    let brokers = [a.url(), b.url()];
    let stop = Arc::new(AtomicBool::new(false));
    let deferred = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (urls, stop, deferred) = (urls.clone(), stop.clone(), deferred.clone());
        clients.spawn(async move {
            let mut sent = 0;
            while !stop.load(SeqCst) {
                let (status, body) = push(&urls[(sent + client) % 2], "p", json!([client, sent])).await;
                assert!(matches!(status.as_u16(), 201 | 202), "{status}: {body}");
                deferred.fetch_add(usize::from(status == StatusCode::ACCEPTED), SeqCst);
                sent += 1;
            }
            sent
        });
    }
    for _ in 0..2 {
        Strain::on(&database, &brokers).await.off(&brokers).await;
    }
    stop.store(true, SeqCst);
    let sent = clients.join_all().await;
    assert!(deferred.load(SeqCst) > 0, "some of {sent:?} were deferred");
    idle(&urls[0]).await;
    let delivered = drained(&urls[1], "p").await;
    let mut by_client: Vec<Vec<Value>> = vec![Vec::new(); 4];
    for data in &delivered {
        by_client[data[0].as_u64().unwrap() as usize].push(data[1].clone());
    }
    let mut counts: Vec<usize> = by_client.iter().map(Vec::len).collect();
    for own in &by_client {
        assert_eq!(*own, numbers(0..own.len()), "in the order it was sent, each once");
    }
    let mut sent = sent;
    counts.sort_unstable();
    sent.sort_unstable();
    assert_eq!(counts, sent, "and none is missing");
}

#[tokio::test]
async fn worker_crash() {
    let database = queen_testkit::database().await;
    let sql = database.client().await;
    let mut first = broker(&database, &["--opq-timeout", "2"]).await;
    let strain = Strain::on(&database, &[first.url()]).await;
    let (status, body) = push(first.url(), "p", json!(1)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let id = body[0]["operationId"].as_str().unwrap().to_owned();
    let working = "select count(*) from queen.deferred where status = 'processing'";
    eventually("it is working on one", async || {
        (sql.query_one(working, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    let second = broker(&database, &["--opq-timeout", "2"]).await;
    first.kill9().await;
    let killed = Instant::now();
    drop(strain);
    let url = format!("{}/api/v1/operations/{id}", second.url());
    eventually("the other finishes all of them", async || {
        let operation: Value = reqwest::get(&url).await.unwrap().json().await.unwrap();
        (operation["status"] == "completed").then_some(())
    })
    .await;
    // The operation's timeout and two seconds, and two more for a machine that runs a dozen other tests.
    assert!(killed.elapsed() < Duration::from_secs(2 + 2 + 2), "{:?}", killed.elapsed());
    idle(second.url()).await;
    assert_eq!(drained(second.url(), "p").await, numbers(1..2), "exactly once");
}

async fn doctor(database: &queen_testkit::Database) -> (Option<i32>, String) {
    let command =
        tokio::process::Command::new(QUEEN).args(["doctor", "--database-url", database.url()]).output();
    let output = command.await.unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test]
async fn the_doctor_and_the_metrics_name_what_is_wrong() {
    let server = Server::start_with(&EASILY_STRAINED).await;
    let (code, said) = doctor(&server.database).await;
    // The clusters of tests run without `fsync` and `full_page_writes`, and the doctor reports
    // that. Nothing else is wrong.
    let codes: Vec<&str> = said.lines().filter_map(|line| line.split([' ', ':']).nth(1)).collect();
    assert_eq!((code, &codes[..]), (Some(1), &["fsync_off", "full_page_writes_off"][..]), "{said}");
    let strain = Strain::on(&server.database, &[&server.url]).await;
    push(&server.url, "p", json!(1)).await;
    let (code, said) = doctor(&server.database).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("! blocked: ")
            && said.contains("are waiting for a lock held by session")
            && said.contains("last statement: not shown"),
        "{said}"
    );
    assert!(said.contains("deferred operation(s) pending"), "{said}");
    let metrics = server.get("/metrics/prometheus").await;
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    let value = |name: &str| {
        let line = metrics.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {}", metrics.text)).parse::<f64>().unwrap()
    };
    assert!(value("queen_decisions_total{op=\"push\",decision=\"defer\"}") >= 1.0);
    assert!(value("queen_decisions_total{op=\"push\",decision=\"execute\"}") >= 1.0);
    assert!(value("queen_deferred_depth") >= 1.0 && value("queen_db_pool_active") >= 1.0);
    assert_eq!((value("queen_file_buffer_pending"), value("queen_file_buffer_db_healthy")), (0.0, 1.0));
    drop(strain);
    server.sql("update queen.deferred set status = 'failed', error = 'why not', finished_at = now()").await;
    let (_, said) = doctor(&server.database).await;
    assert!(said.contains("failed, most recently with: why not"), "{said}");
}

#[tokio::test]
async fn queue_full() {
    let mut flags = EASILY_STRAINED.to_vec();
    flags.extend(["--opq-push-max-depth", "5"]);
    let server = Server::start_with(&flags).await;
    let strain = Strain::on(&server.database, &[&server.url]).await;
    let mut accepted = 0;
    let refused = loop {
        let item = json!({"queue": "q", "partition": "p", "payload": accepted});
        let reply = server.post("/api/v1/push", json!({"items": [item]})).await;
        if reply.status != 202 {
            break reply;
        }
        accepted += 1;
        assert!(accepted < 1_000, "it never says no");
    };
    assert!(refused.is_error(429, "rate_limited"), "{}", refused.text);
    assert!(refused.json()["queueDepth"].as_u64() >= Some(5));
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    strain.off(&[&server.url]).await;
    idle(&server.url).await;
    assert_eq!(push(&server.url, "p", json!(accepted)).await.0, StatusCode::CREATED);
    assert_eq!(drained(&server.url, "p").await, numbers(0..accepted + 1));
}

#[tokio::test]
async fn an_acknowledgement_under_load_is_a_202_and_lands_later() {
    let server = Server::start_with(&EASILY_STRAINED).await;
    let (strain, reply, message) = Strain::on_acks(&server).await;
    let results = array(reply.json());
    assert_eq!(results.len(), 1, "as many as were asked for");
    let result = &results[0];
    assert_eq!((&result["success"], &result["leaseReleased"]), (&json!(true), &json!(false)));
    assert_eq!((&result["reason"], &result["queueName"]), (&json!("system_busy"), &json!("acks")));
    let id = result["operationId"].as_str().unwrap();
    assert_eq!(reply.headers["location"], format!("/api/v1/operations/{id}"));
    assert_eq!(result["transactionId"], message["transactionId"]);
    drop(strain);
    let operation = eventually("it has landed", async || {
        let operation = server.get(&format!("/api/v1/operations/{id}")).await.json();
        (operation["status"] == "completed").then_some(operation)
    })
    .await;
    assert_eq!(operation["operation_type"], "ACK_SINGLE");
    assert_eq!(operation["result"][0]["success"], true, "{operation}");
    let path = format!("/queue/acks/partition/{}", message["partition"].as_str().unwrap());
    assert_eq!(server.pop_soon(&path).await.data(), numbers(2..3), "the lease has ended with it");
}

#[tokio::test]
async fn an_operation_can_be_cancelled_while_it_waits_and_not_afterwards() {
    let server = Server::start_with(&EASILY_STRAINED).await;
    let strain = Strain::on(&server.database, &[&server.url]).await;
    let (first, second) =
        (push(&server.url, "p", json!(1)).await.1, push(&server.url, "p", json!(2)).await.1);
    let path = |body: &Value| format!("/api/v1/operations/{}", body[0]["operationId"].as_str().unwrap());
    let cancelled = server.delete(&path(&second)).await;
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")));
    strain.off(&[&server.url]).await;
    idle(&server.url).await;
    let late = server.delete(&path(&first)).await;
    assert_eq!((late.status, &late.json()["status"]), (409, &json!("completed")));
    assert_eq!(server.post(&format!("{}/retry", path(&first)), json!({})).await.status, 409);
    assert_eq!(server.delete(&format!("/api/v1/operations/{}", Uuid::nil())).await.status, 404);
    assert_eq!(drained(&server.url, "p").await, numbers(1..2));
}
