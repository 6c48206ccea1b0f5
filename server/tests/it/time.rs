//! Messages over time: delays, retention, expiry.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Server, eventually, numbers};

#[tokio::test]
async fn a_delayed_message_is_delivered_once_it_is_old_enough() {
    let server = Server::start().await;
    server.configure("q", json!({"delayedProcessing": 60})).await;
    server.push("q", "p", &[json!(1)]).await;
    assert!(server.pop("/queue/q").await.is_none());
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    server.travel("59 seconds").await;
    server.push("q", "p", &[json!(2)]).await;
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    server.travel("61 seconds").await;
    assert_eq!(
        server.pop("/queue/q/partition/p?batch=10").await.unwrap().data(),
        [1],
        "the second is too young"
    );
}

#[tokio::test]
async fn a_parked_pop_gets_a_delayed_message_when_its_time_comes() {
    let server = Server::start().await;
    server.configure("q", json!({"delayedProcessing": 1})).await;
    server.push("q", "p", &[json!(1)]).await;
    let began = Instant::now();
    let popped = server.pop("/queue/q?wait=true&timeout=15000").await.unwrap();
    assert_eq!(popped.data(), [1]);
    let waited = began.elapsed();
    assert!(waited > Duration::from_millis(900) && waited < Duration::from_secs(4), "{waited:?}");
}

#[tokio::test]
async fn a_delay_taken_back_lets_its_messages_go() {
    let server = Server::start().await;
    server.configure("q", json!({"delayedProcessing": 3600})).await;
    server.push("q", "p", &[json!(1)]).await;
    assert!(server.pop("/queue/q").await.is_none());
    server.configure("q", json!({"delayedProcessing": 0})).await;
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn a_window_collects_and_then_delivers_all_at_once() {
    let server = Server::start().await;
    server.configure("q", json!({"windowBuffer": 60})).await;
    for n in 0..3 {
        server.push("q", "p", &[json!(n)]).await;
    }
    assert!(server.pop("/queue/q?batch=10").await.is_none());
    server.travel("61 seconds").await;
    server.push("q", "p", &[json!(3)]).await;
    assert_eq!(server.pop("/queue/q/partition/p?batch=10").await.unwrap().data(), [0, 1, 2, 3]);
}

/// `batch` is 1 unless the request says otherwise.
#[tokio::test]
async fn a_pop_of_one_message_waits_for_the_window() {
    let server = Server::start().await;
    server.configure("q", json!({"windowBuffer": 60})).await;
    server.push("q", "p", &numbers(0..3)).await;
    assert!(server.pop("/queue/q").await.is_none());
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    server.travel("61 seconds").await;
    assert_eq!(server.pop("/queue/q/partition/p").await.unwrap().data(), [0]);
}

#[tokio::test]
async fn a_full_batch_does_not_wait_for_its_window() {
    let server = Server::start().await;
    server.configure("q", json!({"windowBuffer": 60})).await;
    server.push("q", "p", &numbers(0..5)).await;
    assert!(server.pop("/queue/q?batch=6").await.is_none());
    assert_eq!(server.pop("/queue/q?batch=5").await.unwrap().data(), numbers(0..5));
}

#[tokio::test]
async fn a_batch_that_fills_up_does_not_wait_for_its_window() {
    let server = Server::start().await;
    server.configure("q", json!({"windowBuffer": 60})).await;
    server.push("q", "p", &numbers(0..2)).await;
    assert!(server.pop("/queue/q?batch=5").await.is_none());
    server.push("q", "p", &numbers(2..5)).await;
    assert_eq!(server.pop("/queue/q?batch=5").await.unwrap().data(), numbers(0..5));
}

#[tokio::test]
async fn a_parked_pop_gets_a_window_when_it_closes() {
    let server = Server::start().await;
    server.configure("q", json!({"windowBuffer": 1})).await;
    server.push("q", "p", &numbers(0..3)).await;
    let popped = server.pop("/queue/q?batch=10&wait=true&timeout=15000").await.unwrap();
    assert_eq!(popped.data(), [0, 1, 2]);
}

#[tokio::test]
async fn expired_messages_leave_whether_read_or_not() {
    let server = Server::start_with(&["--retention-interval", "100ms"]).await;
    server.configure("q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    server.push("q", "p", &numbers(0..5)).await;
    assert_eq!(server.pop("/queue/q?consumerGroup=early&batch=10").await.unwrap().messages.len(), 5);
    server.travel("61 seconds").await;
    nothing_left(&server).await;
    server.push("q", "p", &[json!("young")]).await;
    assert_eq!(server.pop("/queue/q/partition/p?batch=10").await.unwrap().data(), ["young"]);
}

#[tokio::test]
async fn retention_needs_its_switch() {
    let server = Server::start_with(&["--retention-interval", "100ms"]).await;
    server.configure("kept", json!({"retentionSeconds": 60})).await;
    server.configure("q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    server.push("kept", "p", &[json!(1)]).await;
    server.push("q", "p", &[json!(1)]).await;
    server.travel("1 hour").await;
    nothing_left(&server).await;
    assert_eq!(server.pop("/queue/kept").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn completed_messages_leave_when_every_group_has_passed_them() {
    let server = Server::start_with(&["--retention-interval", "100ms"]).await;
    server.configure("q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    server.push("q", "p", &numbers(0..4)).await;
    for (group, batch) in [("fast", 4), ("slow", 2)] {
        let path = format!("/queue/q?consumerGroup={group}&batch={batch}&autoAck=true");
        assert!(server.pop(&path).await.is_some());
    }
    server.travel("61 seconds").await;
    // Queried in SQL, because a group that looked would have a cursor and keep the messages from being deleted.
    let client = server.database.client().await;
    eventually("what both have read is gone", async || {
        let row = client.query_one("select count(*) from queen.messages", &[]).await.unwrap();
        (row.get::<_, i64>(0) == 2).then_some(())
    })
    .await;
    assert_eq!(server.pop("/queue/q?consumerGroup=new&batch=10").await.unwrap().data(), [2, 3]);
    assert_eq!(server.pop("/queue/q/partition/p?consumerGroup=slow&batch=10").await.unwrap().data(), [2, 3]);
}

#[tokio::test]
async fn messages_that_waited_too_long_are_evicted() {
    let server = Server::start_with(&["--eviction-interval", "100ms"]).await;
    server.configure("q", json!({"maxWaitTimeSeconds": 60})).await;
    server.push("q", "p", &numbers(0..5)).await;
    server.travel("61 seconds").await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn dead_letters_outlive_retention() {
    let server = Server::start_with(&["--retention-interval", "100ms"]).await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 60, "retryLimit": 0});
    server.configure("q", options).await;
    server.push("q", "p", &[json!("poison"), json!("rest")]).await;
    let popped = server.pop("/queue/q").await.unwrap();
    server.ack(&popped.messages[0], "failed").await;
    server.travel("1 hour").await;
    nothing_left(&server).await;
    let letters = server.get("/api/v1/dlq?queue=q").await.json();
    assert_eq!((&letters["total"], &letters["messages"][0]["data"]), (&json!(1), &json!("poison")));
}

/// Waits until a new group, which sees everything that is stored, finds nothing.
async fn nothing_left(server: &Server) {
    let group = std::cell::Cell::new(0);
    eventually("the queue is empty", async || {
        group.set(group.get() + 1);
        let popped = server.pop(&format!("/queue/q?consumerGroup=probe{}&batch=10", group.get())).await;
        popped.is_none().then_some(())
    })
    .await;
}
