//! `/api/v1/dlq/redrive` and `/api/v1/dlq/redrives`.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Server, ack_of, array, drained, encoded, eventually, numbers};

/// Makes `count` dead letters of `g` in partition `p` of queue `q`.
async fn dead(server: &Server, count: usize) {
    server.push("q", "p", &numbers(0..count)).await;
    let popped = server.pop(&format!("/queue/q/partition/p?consumerGroup=g&batch={count}")).await.unwrap();
    let statuses = vec!["dlq"; count];
    server.ack_all(&popped.messages, &statuses).await;
}

async fn done(server: &Server, id: &Value) -> Value {
    let path = format!("/api/v1/dlq/redrives/{}", id.as_str().unwrap());
    eventually("the redrive is done", async || {
        let reply = server.get(&path).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        Some(reply.json()).filter(|redrive| redrive["status"] == "completed")
    })
    .await
}

#[tokio::test]
async fn dead_letters_are_counted_and_replayed_with_progress() {
    let server = Server::start().await;
    dead(&server, 20).await;
    let empty = server.get("/api/v1/dlq/redrives").await.json();
    assert_eq!(empty, json!({"redrives": [], "pagination": {"limit": 50, "offset": 0}}));
    let count =
        server.call("/api/v1/dlq/redrive", json!({"queue": "q", "dryRun": true, "error": "TEST SAYS"})).await;
    assert_eq!(count, json!({"dryRun": true, "total": 20}));
    let ask = json!({"queue": "q", "partition": "p", "consumerGroup": "g", "perSecond": 1000});
    let reply = server.post("/api/v1/dlq/redrive", ask).await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let started = reply.json();
    assert_eq!(
        (&started["status"], &started["total"], &started["done"]),
        (&json!("running"), &json!(20), &json!(0))
    );
    let redrive = done(&server, &started["id"]).await;
    assert_eq!(
        (&redrive["total"], &redrive["done"], &redrive["failed"]),
        (&json!(20), &json!(20), &json!(0))
    );
    assert!(redrive["rate"].as_f64().unwrap() > 0.0 && redrive["finishedAt"].is_string());
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.json()["total"], 0);
    assert_eq!(drained(&server.url, "p").await[20..], numbers(0..20));
    let list = server.get("/api/v1/dlq/redrives?limit=1").await.json();
    assert_eq!(list["redrives"][0]["id"], started["id"]);
    assert_eq!(array(server.get("/api/v1/dlq/redrives?offset=1").await.json()["redrives"].clone()).len(), 0);
}

/// Pops the only message that there is.
async fn only(server: &Server, path: &str) -> Value {
    let popped = server.pop(path).await.unwrap();
    assert_eq!(popped.messages.len(), 1);
    popped.messages[0].clone()
}

#[tokio::test]
async fn a_replayed_message_names_the_transaction_id_of_its_sender() {
    let server = Server::start().await;
    let item = json!({"queue": "q", "partition": "p", "payload": 1, "transactionId": "order-\"1"});
    server.push_items(json!([item])).await;
    let first = only(&server, "/queue/q?consumerGroup=g").await;
    assert_eq!(first.get("originalTransactionId"), None);
    server.ack(&first, "dlq").await;
    let partition = first["partitionId"].as_str().unwrap();
    let retry = format!("/api/v1/messages/{partition}/{}/retry", encoded("order-\"1"));
    let replayed = server.call(&retry, json!({})).await;

    // Each replay gets a transaction id of its own, and names that of the producer.
    let again = only(&server, "/queue/q?consumerGroup=g").await;
    assert_eq!(again["transactionId"], replayed["replayedAs"]["transaction_id"]);
    assert_ne!(again["transactionId"], first["transactionId"]);
    assert_eq!(again["originalTransactionId"], "order-\"1");
    server.ack(&again, "dlq").await;
    let letters = server.get("/api/v1/dlq?queue=q").await.json();
    assert_eq!(letters["messages"][0]["originalTransactionId"], "order-\"1");
    let started =
        server.post("/api/v1/dlq/redrive", json!({"queue": "q", "targetQueue": "other"})).await.json();
    done(&server, &started["id"]).await;
    let moved = only(&server, "/queue/other").await;
    assert_ne!(moved["transactionId"], again["transactionId"]);
    assert_eq!(moved["originalTransactionId"], "order-\"1");
    let listed = server.get("/api/v1/messages?queue=other").await.json();
    assert_eq!(listed["messages"][0]["originalTransactionId"], "order-\"1");
    // The producer can still push its transaction id to the queue that it was replayed to.
    let item = json!({"queue": "other", "partition": "p", "payload": 2, "transactionId": "order-\"1"});
    assert_eq!(server.push_items(json!([item])).await[0]["status"], "queued");
}

#[tokio::test]
async fn only_those_of_a_shape_are_replayed() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..4)).await;
    for reason in ["timeout after 5 s", "no such customer 1", "timeout after 11 s", "no such customer 2"] {
        let popped = server.pop("/queue/q/partition/p?consumerGroup=g").await.unwrap();
        let mut ack = ack_of(&popped.messages[0], "dlq");
        ack["error"] = json!(reason);
        server.call("/api/v1/ack", ack).await;
    }
    let redrive = "/api/v1/dlq/redrive";
    let count = async |shape: &str| {
        server.call(redrive, json!({"queue": "q", "shape": shape, "dryRun": true})).await["total"].clone()
    };
    assert_eq!(count("timeout after # s").await, 2);
    assert_eq!(count("timeout after 5 s").await, 0, "that is no shape");
    assert_eq!(count("").await, 0, "all have an error");
    let ask = json!({"queue": "q", "shape": "timeout after # s", "perSecond": 1000});
    let started = server.post(redrive, ask).await.json();
    assert_eq!((&started["shape"], &started["total"]), (&json!("timeout after # s"), &json!(2)));
    assert_eq!(done(&server, &started["id"]).await["done"], 2);
    assert_eq!(drained(&server.url, "p").await[4..], [json!(0), json!(2)]);
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.json()["total"], 2);
    let long = json!({"queue": "q", "shape": "x".repeat(256)});
    assert!(server.post(redrive, long).await.is_error(400, "bad_request"));
}

#[tokio::test]
async fn a_redrive_is_cancelled() {
    let server = Server::start().await;
    dead(&server, 20).await;
    let started = server.post("/api/v1/dlq/redrive", json!({"queue": "q", "perSecond": 1})).await.json();
    let path = format!("/api/v1/dlq/redrives/{}", started["id"].as_str().unwrap());
    let reply = server.delete(&path).await;
    assert_eq!((reply.status, &reply.json()["status"]), (200, &json!("cancelled")));
    let left = server.get("/api/v1/dlq?queue=q").await.json()["total"].as_i64().unwrap();
    let done = server.get(&path).await.json()["done"].as_i64().unwrap();
    assert_eq!(left + done, 20);
}

#[tokio::test]
async fn what_is_unknown_or_nonsense_is_refused() {
    let server = Server::start().await;
    server.configure("q", json!({})).await;
    for body in [json!({"queue": "none"}), json!({"queue": "none", "dryRun": true})] {
        assert!(server.post("/api/v1/dlq/redrive", body).await.is_error(404, "not_found"));
    }
    for body in [
        json!({}),
        json!([]),
        json!({"queue": 7}),
        json!({"queue": "x".repeat(256)}),
        json!({"queue": "q", "from": "soon"}),
        json!({"queue": "q", "to": "later"}),
        json!({"queue": "q", "perSecond": 0}),
        json!({"queue": "q", "perSecond": 1_000_000}),
        json!({"queue": "q", "perSecond": "fast"}),
        json!({"queue": "q", "error": "a\0b"}),
        json!({"queue": "q", "targetQueue": "."}),
        json!({"queue": "q", "targetQueue": "..", "dryRun": true}),
        json!({"queue": "q", "targetQueue": "x".repeat(256)}),
    ] {
        let reply = server.post("/api/v1/dlq/redrive", body.clone()).await;
        assert!(reply.is_error(400, "bad_request"), "{body}: {} {}", reply.status, reply.text);
    }
    for (id, status, code) in
        [(Uuid::nil().to_string(), 404, "not_found"), ("x".to_owned(), 400, "bad_request")]
    {
        let path = format!("/api/v1/dlq/redrives/{id}");
        assert!(server.get(&path).await.is_error(status, code));
        assert!(server.delete(&path).await.is_error(status, code));
    }
    // With no matches, the redrive is completed at once.
    let started = server.post("/api/v1/dlq/redrive", json!({"queue": "q"})).await.json();
    assert_eq!(done(&server, &started["id"]).await["total"], 0);
}

#[tokio::test]
async fn a_redrive_into_a_queue_that_must_not_be_made_is_refused() {
    for (flags, status, code) in
        [(["--auto-create", "false"], 404, "not_found"), (["--max-queues", "1"], 409, "conflict")]
    {
        let server = Server::start_with(&flags).await;
        server.configure("q", json!({})).await;
        let reply = server.post("/api/v1/dlq/redrive", json!({"queue": "q", "targetQueue": "new"})).await;
        assert!(reply.is_error(status, code), "{} {}", reply.status, reply.text);
        let reply = server.post("/api/v1/dlq/redrive", json!({"queue": "q", "targetQueue": "q"})).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
    }
}

#[tokio::test]
async fn a_filter_that_is_unknown_is_refused_and_touches_nothing() {
    let server = Server::start().await;
    dead(&server, 3).await;
    for (name, value) in [("dry_run", json!(true)), ("consumergroup", json!("x")), ("ERROR", json!("x"))] {
        let body = json!({"queue": "q", "perSecond": 1, name: value});
        let refused = server.post("/api/v1/dlq/redrive", body.clone()).await;
        assert!(refused.is_error(400, "bad_request"), "{body}: {}", refused.text);
    }
    for query in ["consumergroups=x", "Partition=x", "consumer_group=x", "consumerGroup%20=x", "cache=no"] {
        let refused = server.delete(&format!("/api/v1/dlq?queue=q&{query}")).await;
        assert!(refused.is_error(400, "bad_request"), "{query}: {}", refused.text);
    }
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.json()["total"], 3);
    assert_eq!(server.delete("/api/v1/dlq?queue=q&group=g").await.json()["purged"], 3);
}
