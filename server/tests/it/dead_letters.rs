//! `/api/v1/dlq`.

use serde_json::{Value, json};

use crate::support::{Server, array, encoded, numbers};

/// Five messages of `q` given up by `g`, oldest failure first.
async fn five_dead(server: &Server) {
    server.configure("q", json!({"retryLimit": 0})).await;
    server.push("q", "p", &numbers(0..5)).await;
    for _ in 0..5 {
        let popped = server.pop("/queue/q?consumerGroup=g").await.unwrap();
        server.ack(&popped.messages[0], "failed").await;
    }
}

async fn listed(server: &Server, query: &str) -> (Vec<Value>, Value) {
    let reply = server.get(&format!("/api/v1/dlq{query}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let body = reply.json();
    let data = array(body["messages"].clone()).iter().map(|message| message["data"].clone()).collect();
    (data, body)
}

#[tokio::test]
async fn the_newest_failure_is_listed_first_with_its_payload_and_reason() {
    let server = Server::start().await;
    five_dead(&server).await;
    let (data, body) = listed(&server, "?queue=q").await;
    assert_eq!((data, &body["total"]), (vec![json!(4), json!(3), json!(2), json!(1), json!(0)], &json!(5)));
    assert_eq!(body["pagination"], json!({"limit": 100, "offset": 0}));
    let first = &body["messages"][0];
    assert!(first["errorMessage"].as_str().unwrap().contains("because the test says so"), "{first}");
    assert_eq!((&first["queue"], &first["partition"]), (&json!("q"), &json!("p")));
    assert_eq!((&first["consumerGroup"], &first["producerSub"]), (&json!("g"), &json!(null)));
    for key in ["id", "transactionId", "partitionId", "createdAt", "failedAt"] {
        assert!(first[key].is_string(), "{key}: {first}");
    }
    assert!(first["retryCount"].is_number());
    let failed_at = first["failedAt"].as_str().unwrap();
    assert_eq!((failed_at.len(), failed_at.ends_with('Z')), ("2026-01-01T10:00:00.123Z".len(), true));
}

#[tokio::test]
async fn pages_follow_one_another() {
    let server = Server::start().await;
    five_dead(&server).await;
    for (query, expected) in [
        ("limit=2", vec![4, 3]),
        ("limit=2&offset=2", vec![2, 1]),
        ("limit=2&offset=4", vec![0]),
        ("offset=9", vec![]),
    ] {
        let (data, body) = listed(&server, &format!("?queue=q&{query}")).await;
        assert_eq!(
            (data, &body["total"]),
            (expected.into_iter().map(Value::from).collect(), &json!(5)),
            "{query}"
        );
    }
}

#[tokio::test]
async fn every_filter_counts_and_a_blank_one_does_not() {
    let server = Server::start().await;
    five_dead(&server).await;
    for (query, total) in [
        ("", 5),
        ("?queue=q&consumerGroup=g&partition=p", 5),
        ("?queue=&consumerGroup=&partition=&from=&to=", 5),
        ("?queue=other", 0),
        ("?consumerGroup=other", 0),
        ("?partition=other", 0),
        ("?from=2001-01-01T00:00:00Z&to=2999-01-01T00:00:00Z", 5),
        ("?error=the+TEST+says", 5),
        ("?error=another+reason", 0),
        ("?to=2001-01-01T00:00:00Z", 0),
        ("?from=2999-01-01T00:00:00Z", 0),
    ] {
        assert_eq!(listed(&server, query).await.1["total"], total, "{query}");
    }
    assert!(server.get("/api/v1/dlq?from=yesterday").await.is_error(400, "bad_request"));
}

#[tokio::test]
async fn the_reason_may_be_any_text_or_none() {
    let server = Server::start().await;
    for (n, reason) in [json!("ends with \0"), json!({"code": 7}), json!(null)].into_iter().enumerate() {
        let queue = format!("q {n}");
        server.push(&queue, "p", &[json!(n)]).await;
        let popped = server.pop(&format!("/queue/{}", encoded(&queue))).await.unwrap();
        let message = &popped.messages[0];
        let body = json!({
            "transactionId": message["transactionId"], "partitionId": message["partitionId"],
            "leaseId": message["leaseId"], "status": "dlq", "error": reason,
        });
        assert_eq!(server.call("/api/v1/ack", body).await[0]["dlq"], true, "{reason}");
        assert_eq!(listed(&server, &format!("?queue=q+{n}")).await.1["total"], 1, "{reason}");
    }
}

#[tokio::test]
async fn those_that_match_are_thrown_away_and_the_counts_follow() {
    let server = Server::start().await;
    five_dead(&server).await;
    let purge = async |query: &str| server.delete(&format!("/api/v1/dlq?{query}")).await;
    assert!(purge("").await.is_error(400, "bad_request"), "not those of all queues");
    assert!(purge("queue=&consumerGroup=g").await.is_error(400, "bad_request"));
    assert!(purge("queue=q&from=yesterday").await.is_error(400, "bad_request"));
    assert!(purge("queue=nothing").await.is_error(404, "not_found"));
    for query in ["partition=other", "consumerGroup=other", "error=another", "to=2001-01-01T00:00:00Z"] {
        let reply = purge(&format!("queue=q&{query}")).await;
        assert_eq!(reply.json(), json!({"success": true, "queue": "q", "purged": 0}), "{query}");
    }
    let dead = async || server.get("/api/v1/resources/queues/q").await.json()["totals"]["deadLetter"].clone();
    assert_eq!(dead().await, 5);
    let reply = purge("queue=q&partition=p&consumerGroup=g&error=TEST&limit=1").await;
    assert_eq!((reply.status, reply.json()), (200, json!({"success": true, "queue": "q", "purged": 5})));
    assert_eq!((dead().await, &listed(&server, "").await.1["total"]), (json!(0), &json!(0)));
}
