//! `POST /api/v1/configure`, `DELETE /api/v1/resources/queues/:queue`, and valid queue names.

use queen_protocol::{OPTIONS, QueueOption};
use serde_json::{Map, Value, json};

use crate::support::{Server, encoded, numbers};

#[tokio::test]
async fn configure_echoes_every_option_sent() {
    let server = Server::start().await;
    let options: Map<String, Value> =
        OPTIONS.iter().map(|option| (option.name.to_owned(), other(option))).collect();
    let answer = server.configure("q", options.clone().into()).await;
    assert_eq!((&answer["configured"], &answer["queue"]), (&json!(true), &json!("q")));
    assert!(answer["queueId"].is_string());
    for (name, value) in &options {
        assert_eq!(&answer["options"][name], value, "{name}");
    }
}

/// A value that is not the default.
fn other(option: &QueueOption) -> Value {
    match &option.default {
        Value::Bool(default) => (!default).into(),
        default => (default.as_i64().unwrap() + 1).into(),
    }
}

#[tokio::test]
async fn the_least_wait_of_a_pop_is_brought_into_its_range_and_not_refused() {
    let server = Server::start().await;
    for (sent, kept) in [(json!(-5), 0), (json!(60_001), 60_000), (json!(-1e12), 0), (json!(1e12), 60_000)] {
        let answer = server.configure("q", json!({"minPopWaitTime": sent})).await;
        assert_eq!(answer["options"]["minPopWaitTime"], kept, "{sent}");
    }
}

#[tokio::test]
async fn what_is_not_sent_stays_null_resets_and_replace_starts_over() {
    let server = Server::start().await;
    server.configure("q", json!({"leaseTime": 11, "retryLimit": 7})).await;
    let merged = server.configure("q", json!({"priority": 2, "retryLimit": null})).await;
    assert_eq!((&merged["options"]["leaseTime"], &merged["options"]["retryLimit"]), (&json!(11), &json!(3)));
    let body = json!({"queue": "q", "mode": "replace", "options": {"priority": 4}});
    let replaced = server.call("/api/v1/configure", body).await;
    assert_eq!(
        (&replaced["options"]["leaseTime"], &replaced["options"]["priority"]),
        (&json!(300), &json!(4))
    );
}

#[tokio::test]
async fn labels_are_accepted_at_both_levels_and_null_keeps_them() {
    let server = Server::start().await;
    let body = json!({"queue": "q", "namespace": "shop", "options": {"task": "mail", "leaseTime": 5}});
    let answer = server.call("/api/v1/configure", body).await;
    assert_eq!((&answer["namespace"], &answer["task"]), (&json!("shop"), &json!("mail")));
    let body = json!({"queue": "q", "namespace": null, "task": null, "leaseTime": 6});
    let answer = server.call("/api/v1/configure", body).await;
    assert_eq!((&answer["namespace"], &answer["task"]), (&json!("shop"), &json!("mail")));
    assert_eq!(answer["options"]["leaseTime"], 6);
}

#[tokio::test]
async fn a_change_holds_from_the_next_pop_on() {
    let server = Server::start().await;
    server.configure("q", json!({"leaseTime": 3600})).await;
    server.push("q", "p", &numbers(0..1)).await;
    server.configure("q", json!({"leaseTime": 5})).await;
    assert!(server.pop("/queue/q").await.is_some());
    server.travel("6 seconds").await;
    assert_eq!(server.pop("/queue/q/partition/p").await.unwrap().messages.len(), 1);
}

#[tokio::test]
async fn a_deleted_queue_is_gone_with_all_it_held_and_may_come_back_empty() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 0, "leaseTime": 9})).await;
    server.push("q", "p", &numbers(0..3)).await;
    let popped = server.pop("/queue/q").await.unwrap();
    server.ack(&popped.messages[0], "failed").await;
    let answer = server.delete("/api/v1/resources/queues/q").await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"deleted": true, "queue": "q", "existed": true}))
    );
    assert!(server.pop("/queue/q?batch=10").await.is_none());
    assert_eq!(server.get("/api/v1/dlq?queue=q").await.json()["total"], 0);
    assert_eq!(server.ack(&popped.messages[0], "completed").await["success"], false);

    server.push("q", "p", &[json!("fresh")]).await;
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), ["fresh"]);
    assert_eq!(server.configure("q", json!({})).await["options"]["leaseTime"], 300);
}

#[tokio::test]
async fn deleting_what_does_not_exist_is_no_error() {
    let server = Server::start().await;
    let answer = server.delete("/api/v1/resources/queues/none").await;
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({"deleted": false, "queue": "none", "existed": false}))
    );
}

#[tokio::test]
async fn a_name_may_be_anything_a_person_types() {
    let server = Server::start().await;
    let long = "ü".repeat(200);
    for name in
        ["a b", "a/b", "a:b", "🐝🐝", long.as_str(), "100%", "a+b", "../x", "?#&=", "'\"\\", "partition"]
    {
        let path = encoded(name);
        assert_eq!(server.configure(name, json!({"leaseTime": 60})).await["queue"], name);
        server.push(name, name, &[json!(name), json!("next")]).await;
        let first = server.pop(&format!("/queue/{path}/partition/{path}?consumerGroup={path}")).await;
        let first = first.unwrap_or_else(|| panic!("{name}"));
        let message = &first.messages[0];
        assert_eq!((&message["queue"], &message["partition"]), (&json!(name), &json!(name)));
        assert_eq!((&message["consumerGroup"], &message["data"]), (&json!(name), &json!(name)));
        server.ack(message, "completed").await;
        let second = server.pop(&format!("/queue/{path}?consumerGroup={path}")).await.unwrap();
        assert_eq!(second.data(), ["next"]);
        let gone = server.delete(&format!("/api/v1/resources/queues/{path}")).await.json();
        assert_eq!((&gone["deleted"], &gone["queue"]), (&json!(true), &json!(name)));
    }
}

#[tokio::test]
async fn the_empty_name_is_a_name() {
    let server = Server::start().await;
    let answer = server.configure("", json!({"leaseTime": 60})).await;
    assert_eq!((&answer["configured"], &answer["queue"]), (&json!(true), &json!("")));
    server.push("", "p", &[json!("nameless")]).await;
    assert_eq!(server.pop("/queue/").await.unwrap().data(), ["nameless"]);
    assert_eq!(server.delete("/api/v1/resources/queues/").await.json()["deleted"], true);
}
