//! `/api/v1/dlq`.

use serde_json::{Value, json};

use crate::support::{Server, ack_of, array, encoded, numbers};

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

/// One message of `q` for each of these reasons, given up because of it.
async fn dead_of(server: &Server, partition: &str, reasons: &[Value]) {
    server.push("q", partition, &numbers(0..reasons.len())).await;
    for reason in reasons {
        let popped = server.pop(&format!("/queue/q/partition/{partition}?consumerGroup=g")).await.unwrap();
        let mut ack = ack_of(&popped.messages[0], "dlq");
        ack["error"] = reason.clone();
        assert_eq!(server.call("/api/v1/ack", ack).await[0]["dlq"], true, "{reason}");
    }
}

#[tokio::test]
async fn those_alike_are_counted_together_and_a_shape_lists_and_throws_away_the_same() {
    let server = Server::start().await;
    let nothing = server.get("/api/v1/dlq/shapes").await;
    assert_eq!((nothing.status, nothing.json()), (200, json!({"shapes": [], "total": 0, "counted": 0})));
    let reasons =
        [json!("no such customer 42"), json!("no such customer 7"), json!({"code": 7}), json!(null)];
    dead_of(&server, "p", &reasons).await;
    dead_of(&server, "r", &[json!("no such customer 8 & co"), json!("no such customer 9")]).await;
    let page = server.get("/api/v1/dlq/shapes?queue=q&consumerGroup=g").await.json();
    assert_eq!((&page["total"], &page["counted"]), (&json!(6), &json!(6)));
    let shapes = array(page["shapes"].clone());
    let first = &shapes[0];
    assert_eq!(
        (&first["shape"], &first["count"], &first["queues"]),
        (&json!("no such customer #"), &json!(3), &json!(1))
    );
    assert!(first["example"].as_str().unwrap().starts_with("no such customer "), "{first}");
    assert!(first["firstFailedAt"].as_str().unwrap() <= first["lastFailedAt"].as_str().unwrap(), "{first}");
    assert!(first["lastFailedAt"].as_str().unwrap().ends_with('Z'), "{first}");
    let mut seen: Vec<&str> = shapes.iter().map(|shape| shape["shape"].as_str().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, ["", "no such customer #", "no such customer # & co", "{code:#}"]);
    for shape in &shapes {
        let text = encoded(shape["shape"].as_str().unwrap());
        let (_, body) = listed(&server, &format!("?queue=q&shape={text}")).await;
        assert_eq!(body["total"], shape["count"], "{shape}");
    }
    assert_eq!(listed(&server, "?shape=").await.1["total"], 1, "empty is the shape of no error, and not any");
    let narrow = server.get("/api/v1/dlq/shapes?partition=r&error=CUSTOMER&limit=1").await.json();
    assert_eq!((array(narrow["shapes"].clone()).len(), &narrow["total"]), (1, &json!(2)));
    let long = "x".repeat(256);
    for query in ["from=yesterday".to_owned(), format!("error={long}")] {
        assert!(
            server.get(&format!("/api/v1/dlq/shapes?{query}")).await.is_error(400, "bad_request"),
            "{query}"
        );
    }
    assert!(server.get(&format!("/api/v1/dlq?shape={long}")).await.is_error(400, "bad_request"));

    let purge = format!("/api/v1/dlq?queue=q&shape={}", encoded("no such customer #"));
    assert_eq!(server.delete(&purge).await.json()["purged"], 3);
    assert_eq!(server.delete("/api/v1/dlq?queue=q&shape=").await.json()["purged"], 1);
    assert_eq!(listed(&server, "").await.1["total"], 2);
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
