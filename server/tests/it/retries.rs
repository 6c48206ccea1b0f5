//! Failed messages: redelivered, then dead-lettered, never skipped.

use serde_json::{Value, json};

use crate::support::{Server, numbers};

async fn dead(server: &Server) -> Vec<Value> {
    let reply = server.get("/api/v1/dlq?queue=q").await.json();
    reply["messages"].as_array().unwrap().iter().rev().map(|message| message["data"].clone()).collect()
}

#[tokio::test]
async fn a_batch_that_fails_twice_succeeds_the_third_time_whole() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 3})).await;
    server.push("q", "p", &numbers(0..3)).await;
    let other = server.pop("/queue/q?consumerGroup=other&batch=10").await.unwrap();
    for status in ["failed", "failed", "completed"] {
        let popped = server.pop("/queue/q?batch=10").await.unwrap();
        assert_eq!(popped.data(), [0, 1, 2]);
        let results = server.ack_all(&popped.messages, &[status; 3]).await;
        assert!(results.iter().all(|result| result["leaseReleased"] == true), "{results:?}");
    }
    assert!(server.pop("/queue/q?batch=10").await.is_none());
    assert_eq!(dead(&server).await, Vec::<Value>::new());
    assert_eq!(server.ack(&other.messages[2], "completed").await["success"], true);
}

#[tokio::test]
async fn a_poison_message_is_delivered_one_time_more_than_its_retries() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 2})).await;
    server.push("q", "p", &numbers(0..2)).await;
    for attempt in 0..3 {
        let popped = server.pop("/queue/q").await.unwrap();
        assert_eq!(popped.data(), [0]);
        let result = server.ack(&popped.messages[0], "failed").await;
        assert_eq!((&result["success"], &result["dlq"]), (&json!(true), &json!(attempt == 2)), "{attempt}");
    }
    assert_eq!(dead(&server).await, [0]);
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn the_failures_of_a_message_do_not_count_for_the_next_one_in_its_batch() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    for (failures, brief) in [(0, ""), (1, ""), (2, "&brief=true")] {
        let popped = server.pop(&format!("/queue/q?batch=10{brief}")).await.unwrap();
        let counts: Vec<&Value> = popped.messages.iter().map(|message| &message["retryCount"]).collect();
        assert_eq!(counts, [failures, 0]);
        assert_eq!(server.ack(&popped.messages[0], "failed").await["dlq"], false);
    }
    let popped = server.pop("/queue/q?batch=10").await.unwrap();
    assert_eq!(server.ack(&popped.messages[0], "completed").await["success"], true);
    let failed = server.ack(&popped.messages[1], "failed").await;
    assert_eq!((&failed["success"], &failed["dlq"]), (&json!(true), &json!(false)), "its first failure");
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().messages[0]["retryCount"], 1);
    assert_eq!(dead(&server).await, Vec::<Value>::new());
}

#[tokio::test]
async fn after_a_dead_letter_the_next_message_has_its_full_budget() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 1})).await;
    server.push("q", "p", &numbers(0..2)).await;
    for expected in [0, 0, 1, 1] {
        let popped = server.pop("/queue/q").await.unwrap();
        assert_eq!(popped.data(), [expected]);
        server.ack(&popped.messages[0], "failed").await;
    }
    assert_eq!(dead(&server).await, [0, 1]);
}

#[tokio::test]
async fn without_retries_the_first_failure_is_the_last() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 0})).await;
    server.push("q", "p", &numbers(0..3)).await;
    let popped = server.pop("/queue/q?batch=3").await.unwrap();
    let results = server.ack_all(&popped.messages, &["completed", "failed", "completed"]).await;
    let flags: Vec<_> = results.iter().map(|result| result["dlq"].as_bool().unwrap()).collect();
    assert_eq!(flags, [false, true, false]);
    assert!(results.iter().all(|result| result["leaseReleased"] == true));
    assert_eq!(dead(&server).await, [1]);
    assert!(server.pop("/queue/q").await.is_none());
}

#[tokio::test]
async fn every_message_that_failed_when_retries_ran_out_is_dead_lettered() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 0})).await;
    server.push("q", "p", &numbers(0..3)).await;
    let popped = server.pop("/queue/q?batch=3").await.unwrap();
    server.ack_all(&popped.messages, &["failed"; 3]).await;
    let mut letters = dead(&server).await;
    letters.sort_by_key(Value::to_string);
    assert_eq!(letters, [0, 1, 2]);
}

#[tokio::test]
async fn a_failed_message_is_never_jumped_over_by_a_later_completion() {
    let server = Server::start().await;
    for status in ["failed", "retry"] {
        server.push("q", status, &numbers(0..3)).await;
        let path = format!("/queue/q/partition/{status}?batch=3");
        let popped = server.pop(&path).await.unwrap();
        let results = server.ack_all(&popped.messages, &["completed", status, "completed"]).await;
        assert!(results.iter().all(|result| result["success"] == true), "{results:?}");
        assert_eq!(server.pop(&path).await.unwrap().data(), [1, 2], "{status}");
    }
}

#[tokio::test]
async fn retries_asked_for_cost_nothing() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 1})).await;
    server.push("q", "p", &[json!(0)]).await;
    for _ in 0..4 {
        let popped = server.pop("/queue/q").await.unwrap();
        let result = server.ack(&popped.messages[0], "retry").await;
        assert_eq!((&result["leaseReleased"], &result["dlq"]), (&json!(true), &json!(false)));
    }
    assert_eq!(dead(&server).await, Vec::<Value>::new());
}

#[tokio::test]
async fn an_expired_lease_costs_nothing() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 0})).await;
    server.push("q", "p", &[json!(0)]).await;
    for hour in 1..4 {
        assert_eq!(server.pop("/queue/q/partition/p").await.unwrap().data(), [0]);
        server.travel(&format!("{hour} hours")).await;
    }
    assert_eq!(dead(&server).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_message_can_be_given_up_at_once() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..2)).await;
    let popped = server.pop("/queue/q?batch=2").await.unwrap();
    let results = server.ack_all(&popped.messages, &["dlq", "completed"]).await;
    assert_eq!((&results[0]["dlq"], &results[1]["leaseReleased"]), (&json!(true), &json!(true)));
    assert_eq!(dead(&server).await, [0]);
}

#[tokio::test]
async fn a_queue_that_wants_no_dead_letters_drops_them() {
    let server = Server::start().await;
    let options = json!({"retryLimit": 0, "deadLetterQueue": false, "dlqAfterMaxRetries": false});
    server.configure("q", options).await;
    server.push("q", "p", &numbers(0..2)).await;
    let popped = server.pop("/queue/q").await.unwrap();
    assert_eq!(server.ack(&popped.messages[0], "failed").await["success"], true);
    assert_eq!(dead(&server).await, Vec::<Value>::new());
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn an_unknown_status_is_a_failure() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 0})).await;
    server.push("q", "p", &[json!(0)]).await;
    let popped = server.pop("/queue/q").await.unwrap();
    assert_eq!(server.ack(&popped.messages[0], "exploded").await["dlq"], true);
}
