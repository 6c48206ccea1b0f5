//! `GET /api/v1/status`, and its part about queues.

use serde_json::json;

use crate::support::{Server, numbers};

#[tokio::test]
async fn an_idle_broker_has_every_key_of_the_page() {
    let server = Server::start().await;
    let page = server.get("/api/v1/status").await.json();
    for key in [
        "timeRange",
        "bucketMinutes",
        "pointCount",
        "throughput",
        "queues",
        "messages",
        "leases",
        "deadLetterQueue",
        "workers",
        "errors",
        "findings",
        "statsAge",
    ] {
        assert!(page.get(key).is_some(), "{key} in {page}");
    }
    assert_eq!((&page["bucketMinutes"], &page["queues"]), (&json!(1), &json!([])));
    assert_eq!(page["messages"]["requests"], json!({"push": 0, "pop": 0, "ack": 0}));
    assert_eq!(
        page["deadLetterQueue"],
        json!({"totalMessages": 0, "affectedPartitions": 0, "topErrors": []})
    );
    assert_eq!(server.get("/api/v1/status/queues").await.json()["queues"], json!([]));
    assert_eq!(server.get("/api/v1/status/queues/none").await.status, 404);
    for query in ["from=soon", "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z"] {
        assert_eq!(server.get(&format!("/api/v1/status?{query}")).await.status, 400, "{query}");
    }
}

#[tokio::test]
async fn the_page_follows_what_is_pushed_leased_done_and_given_up() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..5)).await;
    let held = server.pop("/queue/q?batch=4").await.unwrap();
    server.ack(&held.messages[0], "completed").await;
    server.ack(&held.messages[1], "dlq").await;
    let page = server.get("/api/v1/status").await.json();
    let messages = &page["messages"];
    assert_eq!((&messages["total"], &messages["completed"]), (&json!(5), &json!(2)));
    assert_eq!((&messages["processing"], &messages["pending"]), (&json!(2), &json!(1)));
    assert_eq!(messages["requests"], json!({"push": 1, "pop": 1, "ack": 2}));
    assert_eq!((&page["leases"]["active"], &page["leases"]["totalBatchSize"]), (&json!(1), &json!(2)));
    assert_eq!(page["deadLetterQueue"]["topErrors"][0]["count"], 1);
    let queues = page["queues"].as_array().unwrap();
    assert_eq!((queues.len(), &queues[0]["totalConsumed"]), (1, &json!(2)));
    let ingested: u64 =
        page["throughput"].as_array().unwrap().iter().map(|point| point["ingested"].as_u64().unwrap()).sum();
    assert_eq!(ingested, 5, "{page}");
    assert_eq!(page["workers"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_queue_tells_its_options_and_partitions() {
    let server = Server::start().await;
    server.configure("q", json!({"leaseTime": 7, "maxSize": 9, "priority": 3})).await;
    server.push("q", "a", &numbers(0..2)).await;
    server.push("q", "b", &numbers(0..1)).await;
    let held = server.pop("/queue/q/partition/a").await.unwrap();
    server.ack(&held.messages[0], "completed").await;
    let detail = server.get("/api/v1/status/queues/q").await.json();
    assert_eq!(detail["queue"]["options"], server.configure("q", json!({})).await["options"]);
    let config = &detail["queue"]["config"];
    assert_eq!((&config["leaseTime"], &config["maxQueueSize"]), (&json!(7), &json!(9)));
    assert_eq!((&detail["queue"]["priority"], &config["deadLetterQueue"]), (&json!(3), &json!(true)));
    let [a, b] = detail["partitions"].as_array().unwrap().as_slice() else { panic!("{detail}") };
    assert_eq!((&a["messages"]["completed"], &a["cursor"]["totalConsumed"]), (&json!(1), &json!(1)));
    assert_eq!((&b["messages"]["pending"], &b["cursor"]["totalConsumed"]), (&json!(1), &json!(0)));
    assert!(a["lastActivity"].is_string() && b["newestMessage"].is_string());
    assert_eq!((&detail["totals"]["total"], &detail["totals"]["messages"]["total"]), (&json!(3), &json!(3)));
    let page = server.get("/api/v1/status/queues?limit=1").await.json();
    assert_eq!(page["pagination"], json!({"limit": 1, "offset": 0}));
}
