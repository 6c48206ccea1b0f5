//! `POST /api/v1/transaction`: pushes and acks together or not at all.

use serde_json::{Value, json};

use crate::support::{Server, ack_of, array, numbers};

fn push(queue: &str, payloads: &[Value]) -> Value {
    let items: Vec<_> = payloads
        .iter()
        .map(|payload| json!({"queue": queue, "partition": "p", "payload": payload}))
        .collect();
    json!({"type": "push", "items": items})
}

/// An acknowledgement as the JavaScript and Python clients send it: without a lease of its own.
fn ack(message: &Value, status: &str) -> Value {
    let mut body = ack_of(message, status);
    body["type"] = json!("ack");
    body.as_object_mut().unwrap().remove("leaseId");
    body
}

async fn commit(server: &Server, operations: &[Value], leases: &[&Value]) -> Value {
    let body = json!({"operations": operations, "requiredLeases": leases});
    let outcome = server.call("/api/v1/transaction", body).await;
    assert!(outcome["transactionId"].is_string(), "{outcome}");
    outcome
}

#[tokio::test]
async fn a_message_moves_from_one_queue_to_the_next() {
    let server = Server::start().await;
    server.push("source", "p", &[json!("work")]).await;
    let popped = server.pop("/queue/source").await.unwrap();
    let operations = [push("target", &[json!("done")]), ack(&popped.messages[0], "completed")];
    let outcome = commit(&server, &operations, &[&popped.body["leaseId"]]).await;
    assert_eq!((&outcome["success"], outcome.get("error")), (&json!(true), None));
    let results = array(outcome["results"].clone());
    assert_eq!((&results[0]["index"], &results[0]["type"]), (&json!(0), &json!("push")));
    assert_eq!((&results[1]["index"], &results[1]["type"]), (&json!(1), &json!("ack")));
    assert_eq!((&results[0]["queueName"], &results[0]["success"]), (&json!("target"), &json!(true)));
    assert_eq!((&results[1]["success"], &results[1]["dlq"]), (&json!(true), &json!(false)));
    assert_eq!(results[1]["transactionId"], popped.messages[0]["transactionId"]);

    let moved = server.pop("/queue/target?wait=false").await.unwrap();
    assert_eq!(moved.data(), ["done"]);
    assert_eq!(moved.messages[0]["id"], results[0]["messageId"]);
    assert_eq!(moved.messages[0]["transactionId"], results[0]["transactionId"]);
    assert!(server.pop("/queue/source?wait=false").await.is_none());
}

#[tokio::test]
async fn results_are_flat_one_per_item_in_order() {
    let server = Server::start().await;
    let flat = json!({"type": "push", "queue": "b", "data": "flat"});
    let operations = [push("a", &numbers(0..5)), flat, push("a", &numbers(5..7))];
    let outcome = commit(&server, &operations, &[]).await;
    let indexes: Vec<_> =
        array(outcome["results"].clone()).iter().map(|result| result["index"].clone()).collect();
    assert_eq!(indexes, numbers(0..8));
    assert_eq!(server.pop("/queue/a?batch=10").await.unwrap().data(), numbers(0..7));
    assert_eq!(server.pop("/queue/b").await.unwrap().data(), ["flat"]);
}

#[tokio::test]
async fn a_chain_of_three_queues_carries_a_message_through() {
    let server = Server::start().await;
    server.push("one", "p", &[json!(1)]).await;
    for (from, to) in [("one", "two"), ("two", "three")] {
        let popped = server.pop(&format!("/queue/{from}")).await.unwrap();
        let next = popped.data()[0].as_i64().unwrap() + 1;
        let operations = [ack(&popped.messages[0], "completed"), push(to, &[json!(next)])];
        assert_eq!(commit(&server, &operations, &[&popped.body["leaseId"]]).await["success"], true);
    }
    assert_eq!(server.pop("/queue/three").await.unwrap().data(), [3]);
}

#[tokio::test]
async fn several_acks_over_several_partitions_commit_together() {
    let server = Server::start().await;
    for partition in ["a", "b"] {
        server.push("q", partition, &numbers(0..2)).await;
    }
    let popped = server.pop("/queue/q?batch=10&partitions=2").await.unwrap();
    let acks: Vec<_> = popped.messages.iter().map(|message| ack(message, "completed")).collect();
    assert_eq!(commit(&server, &acks, &[&popped.body["leaseId"]]).await["success"], true);
    server.travel("1 hour").await;
    assert!(server.pop("/queue/q/partition/a").await.is_none());
    assert!(server.pop("/queue/q/partition/b").await.is_none());
}

#[tokio::test]
async fn one_bogus_ack_undoes_everything() {
    let server = Server::start().await;
    server.push("source", "p", &[json!("work")]).await;
    let popped = server.pop("/queue/source?leaseSeconds=60").await.unwrap();
    let mut ghost = popped.messages[0].clone();
    ghost["transactionId"] = json!("ghost");
    let operations =
        [push("target", &[json!(1)]), ack(&popped.messages[0], "completed"), ack(&ghost, "completed")];
    let outcome = commit(&server, &operations, &[&popped.body["leaseId"]]).await;
    assert_eq!((&outcome["success"], &outcome["results"]), (&json!(false), &json!([])));
    assert!(outcome["error"].as_str().is_some_and(|text| !text.is_empty()), "{outcome}");
    assert!(server.pop("/queue/target").await.is_none());
    assert!(server.pop("/queue/source").await.is_none(), "the lease still stands");
    server.travel("61 seconds").await;
    assert_eq!(server.pop("/queue/source/partition/p").await.unwrap().data(), ["work"]);
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_leaves_no_queue_and_no_partition_behind() {
    let server = Server::start().await;
    let twin = server.twin().await;
    server.push("source", "p", &[json!("work")]).await;
    server.push("old", "p", &[json!(0)]).await;
    let popped = server.pop("/queue/source").await.unwrap();
    server.ack(&popped.messages[0], "completed").await;
    let items = json!([{"queue": "new", "partition": "p", "payload": 1}, {"queue": "old", "partition": "new", "payload": 2}]);
    let operations = json!([{"type": "push", "items": items}]);
    let stale = json!({"operations": operations, "requiredLeases": [popped.body["leaseId"]]});
    for broker in [&server, &twin] {
        let outcome = broker.call("/api/v1/transaction", stale.clone()).await;
        assert_eq!(outcome["success"], false, "{outcome}");
        let queues = broker.get("/api/v1/resources/queues").await.json();
        let mut names: Vec<_> =
            array(queues["queues"].clone()).iter().map(|queue| queue["name"].clone()).collect();
        names.sort_by_key(Value::to_string);
        assert_eq!(names, ["old", "source"]);
        let partitions = broker.get("/api/v1/resources/queues/old").await.json();
        assert_eq!(array(partitions["partitions"].clone()).len(), 1, "{partitions}");
    }
    // Queues and partitions of the failed attempts are not remembered as existing.
    let operations = json!({"operations": operations});
    for broker in [&twin, &server] {
        assert_eq!(broker.call("/api/v1/transaction", operations.clone()).await["success"], true);
    }
    for path in ["/queue/new/partition/p?batch=9", "/queue/old/partition/new?batch=9"] {
        assert_eq!(server.pop(path).await.unwrap().messages.len(), 2, "{path}");
    }
}

#[tokio::test]
async fn a_transaction_into_a_queue_that_is_encrypted_and_has_no_such_partition_yet_commits() {
    let key = "k1:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let server = Server::start_with(&["--encryption-key", key]).await;
    server.configure("q", json!({"encryptionEnabled": true, "dedupWindowSeconds": 0})).await;
    let push = json!({"operations": [{"type": "push", "queue": "q", "partition": "p", "payload": "secret"}]});
    assert_eq!(server.call("/api/v1/transaction", push).await["success"], true);
    let popped = server.pop("/queue/q").await.unwrap();
    assert_eq!((popped.data(), &popped.messages[0]["isEncrypted"]), (vec![json!("secret")], &Value::Null));
}

#[tokio::test]
async fn a_stale_lease_rolls_back_and_is_named() {
    let server = Server::start().await;
    server.push("source", "p", &[json!("work")]).await;
    let popped = server.pop("/queue/source").await.unwrap();
    server.travel("1 hour").await;
    let operations = [push("target", &[json!(1)]), ack(&popped.messages[0], "completed")];
    let lease = &popped.body["leaseId"];
    let outcome = commit(&server, &operations, &[lease]).await;
    assert_eq!(outcome["success"], false);
    assert!(outcome["error"].as_str().unwrap().contains(lease.as_str().unwrap()), "{outcome}");
    assert!(server.pop("/queue/target").await.is_none());
    assert_eq!(server.pop("/queue/source/partition/p").await.unwrap().data(), ["work"]);
}

#[tokio::test]
async fn an_ack_that_names_a_foreign_lease_rolls_back() {
    let server = Server::start().await;
    server.push("source", "p", &[json!("work")]).await;
    let popped = server.pop("/queue/source").await.unwrap();
    let mut foreign = ack(&popped.messages[0], "completed");
    foreign["leaseId"] = json!("0193a5e0-1111-7222-8333-444455556666.1");
    let outcome = commit(&server, &[push("target", &[json!(1)]), foreign], &[]).await;
    assert_eq!(outcome["success"], false);
    assert!(server.pop("/queue/target").await.is_none());
    assert_eq!(server.ack(&popped.messages[0], "completed").await["success"], true);
}

#[tokio::test]
async fn an_unknown_lease_rolls_back_and_is_named() {
    let server = Server::start().await;
    let outcome = commit(&server, &[push("target", &[json!(1)])], &[&json!("no-such-lease")]).await;
    assert_eq!(outcome["success"], false);
    assert!(outcome["error"].as_str().unwrap().contains("no-such-lease"), "{outcome}");
    assert!(server.pop("/queue/target").await.is_none());
}

#[tokio::test]
async fn an_unknown_type_fails_the_transaction_and_not_the_request() {
    let server = Server::start().await;
    let outcome = commit(&server, &[push("q", &[json!(1)]), json!({"type": "dance"})], &[]).await;
    assert_eq!(outcome["success"], false);
    assert!(server.pop("/queue/q").await.is_none());
}

#[tokio::test]
async fn pushing_an_id_again_is_a_success_that_says_duplicate() {
    let server = Server::start().await;
    let item = json!({"queue": "q", "partition": "p", "payload": 1, "transactionId": "t"});
    let first = server.push_items(json!([item])).await;
    let operation = json!({"type": "push", "items": [item]});
    let outcome = commit(&server, &[operation], &[]).await;
    let result = &outcome["results"][0];
    assert_eq!((&result["success"], &result["duplicate"]), (&json!(true), &json!(true)));
    assert_eq!(result["messageId"], first[0]["message_id"]);
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().messages.len(), 1);
}

#[tokio::test]
async fn a_failure_inside_follows_the_rules_of_a_plain_ack() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 0})).await;
    server.push("q", "p", &numbers(0..2)).await;
    let popped = server.pop("/queue/q").await.unwrap();
    let outcome = commit(&server, &[ack(&popped.messages[0], "failed")], &[&popped.body["leaseId"]]).await;
    assert_eq!((&outcome["success"], &outcome["results"][0]["dlq"]), (&json!(true), &json!(true)));
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [1]);
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.json()["total"], 1);
}

#[tokio::test]
async fn the_ack_of_a_group_moves_that_group_only() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    let popped = server.pop("/queue/q?consumerGroup=one&batch=2").await.unwrap();
    commit(&server, &[ack(&popped.messages[1], "completed")], &[&popped.body["leaseId"]]).await;
    assert!(server.pop("/queue/q?consumerGroup=one&batch=2").await.is_none());
    assert_eq!(server.pop("/queue/q?consumerGroup=two&batch=2").await.unwrap().data(), [0, 1]);
}

#[tokio::test]
async fn a_large_payload_commits() {
    let server = Server::start().await;
    let payload = json!({"text": "x".repeat(1_000_000)});
    assert_eq!(commit(&server, &[push("q", std::slice::from_ref(&payload))], &[]).await["success"], true);
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [payload]);
}
