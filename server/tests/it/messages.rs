//! `/api/v1/messages` and `GET /api/v1/status/queues/:queue/messages`.

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Server, array, encoded, numbers};

async fn listed(server: &Server, query: &str) -> Value {
    let reply = server.get(&format!("/api/v1/messages{query}")).await;
    assert_eq!(reply.status, 200, "{query}: {}", reply.text);
    reply.json()
}

fn data(body: &Value) -> Vec<Value> {
    array(body["messages"].clone()).iter().map(|message| message["data"].clone()).collect()
}

/// The path of a message that was pushed.
fn path(pushed: &Value) -> String {
    let transaction = encoded(pushed["transaction_id"].as_str().unwrap());
    format!("/api/v1/messages/{}/{transaction}", pushed["partition_id"].as_str().unwrap())
}

#[tokio::test]
async fn messages_are_listed_newest_first_with_all_the_fields_of_the_contract() {
    let server = Server::start().await;
    assert_eq!(
        listed(&server, "").await,
        json!({"messages": [], "mode": {"hasQueueMode": false, "busGroupsCount": 0, "type": "none"}, "total": 0})
    );
    let trace = Uuid::from_u128(3);
    let item = json!({"queue": "shop.eu", "partition": "a/b", "payload": {"n": 1}, "transactionId": "t 1", "traceId": trace});
    let pushed = server.push_items(json!([item])).await.remove(0);
    server.push("shop.eu", "a/b", &numbers(2..4)).await;
    let body = listed(&server, "?queue=shop.eu").await;
    assert_eq!((data(&body), &body["total"]), (vec![json!(3), json!(2), json!({"n": 1})], &json!(3)));
    let mut oldest = body["messages"][2].clone();
    assert_eq!(oldest["createdAt"].take().as_str().unwrap().len(), "2026-01-01T10:00:00.123Z".len());
    assert_eq!(
        oldest,
        json!({
            "id": pushed["message_id"], "transactionId": "t 1", "partitionId": pushed["partition_id"],
            "queuePath": "shop.eu/a/b", "queue": "shop.eu", "partition": "a/b", "namespace": "shop", "task": "eu",
            "status": "pending", "queueStatus": "pending", "busStatus": {"consumedBy": 0, "totalGroups": 0},
            "traceId": trace, "producerSub": null, "queuePriority": 0, "createdAt": null, "leaseExpiresAt": null,
            "data": {"n": 1}, "payload": {"n": 1},
        })
    );
}

#[tokio::test]
async fn every_filter_counts_and_pages_follow_one_another() {
    let server = Server::start().await;
    server.push("shop.eu", "p", &numbers(0..5)).await;
    server.push("other", "p", &numbers(9..10)).await;
    for (query, expected) in [
        ("?queue=shop.eu&limit=2", vec![4, 3]),
        ("?queue=shop.eu&limit=2&offset=2", vec![2, 1]),
        ("?queue=shop.eu&limit=2&offset=4", vec![0]),
        ("?queue=shop.eu&limit=2&offset=9", vec![]),
        ("?ns=shop", vec![4, 3, 2, 1, 0]),
        ("?namespace=shop&task=eu", vec![4, 3, 2, 1, 0]),
        ("?task=us", vec![]),
        ("?queue=shop.eu&partition=p&status=pending&limit=1", vec![4]),
        ("?queue=shop.eu&status=completed", vec![]),
        ("?queue=shop.eu&partition=r", vec![]),
        ("?queue=&partition=&ns=&task=&status=&from=&to=", vec![9, 4, 3, 2, 1, 0]),
        ("?to=2001-01-01T00:00:00Z", vec![]),
        ("?from=2001-01-01T00:00:00Z&to=2001-01-02T00:00:00Z", vec![]),
        ("?from=2001-01-01T00:00:00Z&limit=x&offset=y", vec![9, 4, 3, 2, 1, 0]),
    ] {
        let expected: Vec<Value> = expected.into_iter().map(Value::from).collect();
        assert_eq!(data(&listed(&server, query).await), expected, "{query}");
    }
    // `to` includes the whole minute in which the message was pushed.
    let at = listed(&server, "?queue=other").await["messages"][0]["createdAt"].as_str().unwrap().to_owned();
    assert_eq!(data(&listed(&server, &format!("?queue=other&to={}:00Z", &at[..16])).await), [json!(9)]);
    for bad in ["from=soon", "to=soon", "status=gone", &format!("queue={}", "x".repeat(256))] {
        assert!(server.get(&format!("/api/v1/messages?{bad}")).await.is_error(400, "bad_request"), "{bad}");
    }
}

#[tokio::test]
async fn a_message_lists_the_groups_that_have_read_it() {
    let server = Server::start().await;
    server.configure("q", json!({"leaseTime": 60, "retryLimit": 2, "priority": 4})).await;
    let pushed = server.push("q", "p", &numbers(0..2)).await;
    let done = server.pop("/queue/q/partition/p?consumerGroup=a").await.unwrap();
    server.ack(&done.messages[0], "completed").await;
    server.pop("/queue/q/partition/p?consumerGroup=b").await.unwrap();
    let one = server.get(&path(&pushed[0])).await;
    assert_eq!(one.status, 200, "{}", one.text);
    let one = one.json();
    assert_eq!((&one["status"], &one["queueStatus"]), (&json!("processing"), &json!(null)));
    assert_eq!(one["busStatus"], json!({"consumedBy": 1, "totalGroups": 2}));
    assert_eq!(
        one["mode"],
        json!({"hasQueueMode": false, "busGroupsCount": 2, "type": "bus", "consumedByGroups": 1})
    );
    assert_eq!(
        one["queueConfig"],
        json!({"leaseTime": 60, "retryLimit": 2, "retryDelay": 1000, "ttl": 3600, "priority": 4})
    );
    assert_eq!(
        (&one["isEncrypted"], &one["errorMessage"], &one["retryCount"]),
        (&json!(false), &json!(null), &json!(0))
    );
    assert_eq!((&one["data"], &one["payload"]), (&json!(0), &json!(0)));
    let mut groups = array(one["consumerGroups"].clone());
    groups.sort_by_key(|group| group["name"].to_string());
    assert_eq!(groups[0], json!({"name": "a", "consumed": true, "leaseExpiresAt": null}));
    assert_eq!((&groups[1]["name"], &groups[1]["consumed"]), (&json!("b"), &json!(false)));
    assert_eq!(groups[1]["leaseExpiresAt"], one["leaseExpiresAt"]);
    assert!(one["leaseExpiresAt"].is_string());

    let partition = pushed[0]["partition_id"].as_str().unwrap();
    for unknown in [format!("{partition}/nothing"), format!("{}/t", Uuid::nil())] {
        for (method, tail) in
            [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/retry"), (Method::POST, "/dlq")]
        {
            let reply = server.send(method.clone(), &format!("/api/v1/messages/{unknown}{tail}"), None).await;
            assert!(reply.is_error(404, "not_found"), "{method} {unknown}{tail}: {}", reply.text);
            assert!(reply.json()["error"].as_str().unwrap().ends_with("not found"));
        }
    }
    for (method, tail) in
        [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/retry"), (Method::POST, "/dlq")]
    {
        for place in ["no-uuid/t".to_owned(), format!("{partition}/{}", "x".repeat(256))] {
            let reply = server.send(method.clone(), &format!("/api/v1/messages/{place}{tail}"), None).await;
            assert!(reply.is_error(400, "bad_request"), "{method} {place}{tail}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn deleting_a_message_does_not_affect_others() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &numbers(0..3)).await;
    let reply = server.delete(&path(&pushed[1])).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let body = reply.json();
    assert_eq!((&body["success"], &body["partitionId"]), (&json!(true), &pushed[1]["partition_id"]));
    assert_eq!((&body["transactionId"], body["message"].is_string()), (&pushed[1]["transaction_id"], true));
    let again = server.delete(&path(&pushed[1])).await;
    assert_eq!((again.status, &again.json()["success"]), (404, &json!(false)));
    assert_eq!(server.get(&path(&pushed[1])).await.status, 404);
    assert_eq!(data(&listed(&server, "?queue=q").await), [json!(2), json!(0)]);
    let twin = server.twin().await;
    assert_eq!(twin.pop("/queue/q?batch=10&autoAck=true").await.unwrap().data(), [json!(0)]);
    assert_eq!(twin.pop("/queue/q?batch=10&autoAck=true").await.unwrap().data(), [json!(2)]);
    assert!(server.pop("/queue/q").await.is_none());
}

#[tokio::test]
async fn a_dead_letter_is_pushed_again_and_a_live_message_is_not() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &[json!({"a": 1})]).await.remove(0);
    assert!(
        server.send(Method::POST, &format!("{}/retry", path(&pushed)), None).await.is_error(404, "not_found")
    );
    let popped = server.pop("/queue/q?consumerGroup=g").await.unwrap();
    assert_eq!(server.ack(&popped.messages[0], "dlq").await["dlq"], true);
    let dead = server.get(&path(&pushed)).await.json();
    assert_eq!(dead["status"], "dead_letter");
    assert!(dead["errorMessage"].as_str().unwrap().contains("because the test says so"));
    let reply = server.send(Method::POST, &format!("{}/retry", path(&pushed)), None).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let body = reply.json();
    assert_eq!(
        (&body["success"], &body["queue"], &body["partition"], &body["dlqRowRemoved"]),
        (&json!(true), &json!("q"), &json!("p"), &json!(true))
    );
    let again = &body["replayedAs"];
    assert_eq!((&again["status"], &again["queueName"]), (&json!("queued"), &json!("q")));
    assert_ne!(again["transaction_id"], pushed["transaction_id"]);
    let popped = server.pop("/queue/q?consumerGroup=g").await.unwrap();
    assert_eq!((popped.data(), &popped.messages[0]["id"]), (vec![json!({"a": 1})], &again["message_id"]));
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.json()["total"], 0);
    assert_eq!(server.get(&path(&pushed)).await.json()["status"], "completed");
}

#[tokio::test]
async fn a_waiting_message_is_given_up_by_hand() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &numbers(0..4)).await;
    let bury = async |n: usize, body: Option<&str>| {
        server.send(Method::POST, &format!("{}/dlq", path(&pushed[n])), body).await
    };
    let reply = bury(0, None).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let body = reply.json();
    assert_eq!((&body["success"], &body["dlq"]), (&json!(true), &json!(true)));
    assert_eq!(
        (&body["consumerGroup"], &body["messageId"]),
        (&json!("__QUEUE_MODE__"), &pushed[0]["message_id"])
    );
    assert_eq!(bury(2, Some(r#"{"consumerGroup":null,"error":"no good"}"#)).await.status, 200);
    let letters = server.get("/api/v1/dlq?queue=q").await.json();
    assert_eq!((&letters["total"], &letters["messages"][0]["errorMessage"]), (&json!(2), &json!("no good")));
    let popped = server.pop("/queue/q?batch=10").await.unwrap();
    assert_eq!(popped.data(), [json!(1)]);
    assert!(bury(1, Some("{}")).await.is_error(409, "conflict"));
    server.ack(&popped.messages[0], "completed").await;
    assert!(bury(1, None).await.is_error(409, "conflict"));
    assert_eq!(bury(1, Some(r#"{"consumerGroup":"g"}"#)).await.status, 200, "another group has not");
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), [json!(3)]);
    for bad in ["{", "7", r#"{"consumerGroup":7}"#] {
        assert!(bury(3, Some(bad)).await.is_error(400, "bad_request"), "{bad}");
    }
}

#[tokio::test]
async fn the_messages_of_a_queue_in_short() {
    let server = Server::start().await;
    server.configure("empty", json!({})).await;
    let pushed = server.push("a b", "p", &numbers(0..60)).await;
    let list = async |path: &str| {
        let reply = server.get(&format!("/api/v1/status/queues/{path}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        array(reply.json())
    };
    assert_eq!(list("empty/messages").await.len(), 0);
    let all = list("a%20b/messages").await;
    assert_eq!((all.len(), &all[0]["id"]), (50, &pushed[59]["message_id"]));
    let mut keys: Vec<&String> = all[0].as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(
        keys,
        ["createdAt", "id", "partition", "partitionId", "queue", "queuePath", "status", "transactionId"]
    );
    let page = list("a%20b/messages?limit=7&offset=55").await;
    assert_eq!((page.len(), &page[4]["id"]), (5, &pushed[0]["message_id"]));
    assert!(server.get("/api/v1/status/queues/none/messages").await.is_error(404, "not_found"));
    let long = format!("/api/v1/status/queues/{}/messages", "x".repeat(256));
    assert!(server.get(&long).await.is_error(400, "bad_request"));
    // However old the messages are.
    server.travel("3 days").await;
    assert_eq!(list("a%20b/messages?limit=1").await.len(), 1);
}
