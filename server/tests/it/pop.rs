//! `GET /api/v1/pop…` without waiting.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::support::{Server, numbers};

fn distinct<'a>(messages: &'a [Value], key: &str) -> HashSet<&'a str> {
    messages.iter().map(|message| message[key].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_empty_or_unknown_queue_is_a_204() {
    let server = Server::start().await;
    assert_eq!(server.get("/api/v1/pop/queue/unknown").await.status, 204);
    assert_eq!(server.get("/api/v1/pop/queue/unknown/partition/p").await.status, 204);
    server.configure("empty", json!({})).await;
    assert_eq!(server.get("/api/v1/pop/queue/empty").await.status, 204);
    assert_eq!(server.get("/api/v1/pop?namespace=nowhere").await.status, 204);
}

#[tokio::test]
async fn a_message_is_found_right_after_its_push_with_all_its_fields() {
    let server = Server::start().await;
    server.push("orders", "eu", &[json!({"n": 1})]).await;
    let popped = server.pop("/queue/orders?consumerGroup=g&wait=false").await.unwrap();
    let (body, message) = (&popped.body, &popped.messages[0]);
    assert_eq!((&body["success"], &body["queue"]), (&json!(true), &json!("orders")));
    assert_eq!((&body["partition"], &body["consumerGroup"]), (&json!("eu"), &json!("g")));
    assert_eq!(body["partitionsClaimed"], 1);
    for key in ["id", "transactionId", "createdAt", "partitionId", "leaseId"] {
        assert!(message[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {message}");
    }
    assert_eq!((&message["partition"], &message["queue"]), (&json!("eu"), &json!("orders")));
    assert_eq!((&message["consumerGroup"], &message["data"]), (&json!("g"), &json!({"n": 1})));
    assert_eq!((&message["traceId"], &message["producerSub"]), (&json!(null), &json!(null)));
    assert_eq!((&message["leaseId"], &message["retryCount"]), (&body["leaseId"], &json!(0)));
    assert!(message["createdAt"].as_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn a_brief_answer_names_partition_and_lease_with_the_first_message_of_each_partition() {
    let server = Server::start().await;
    server.push("q", "a", &[json!(1), json!(2)]).await;
    server.push("q", "b", &[json!(3), json!(4)]).await;
    let popped = server.pop("/queue/q?batch=10&partitions=2&brief=true").await.unwrap();
    let messages = popped.body["messages"].as_array().unwrap();
    let named: Vec<bool> = messages.iter().map(|message| message.get("partitionId").is_some()).collect();
    assert_eq!(named, [true, false, true, false]);
    assert!(
        messages.iter().all(|message| message.get("traceId").is_none() && message.get("createdAt").is_some())
    );
    assert_eq!(messages[0]["leaseId"], popped.body["leaseId"]);
    assert_eq!(messages.iter().map(|message| message["data"].as_i64().unwrap()).sum::<i64>(), 10);
}

#[tokio::test]
async fn a_leased_message_is_not_delivered_twice_until_the_lease_ends() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    assert!(server.pop("/queue/q").await.is_some());
    assert!(server.pop("/queue/q").await.is_none());
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    server.travel("301 seconds").await;
    assert_eq!(server.pop("/queue/q/partition/p").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn the_request_may_choose_the_length_of_its_lease() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    assert!(server.pop("/queue/q?leaseSeconds=5").await.is_some());
    server.travel("6 seconds").await;
    let again = server.pop("/queue/q/partition/p?leaseSeconds=3600").await.unwrap();
    assert_eq!(again.data(), [1]);
    server.travel("400 seconds").await;
    assert!(server.pop("/queue/q/partition/p").await.is_none());
}

#[tokio::test]
async fn a_wildcard_pop_finds_a_message_again_when_its_lease_has_run_out() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    assert!(server.pop("/queue/q?leaseSeconds=1").await.is_some());
    assert!(server.pop("/queue/q").await.is_none());
    assert_eq!(server.pop_soon("/queue/q").await.data(), [1]);
}

#[tokio::test]
async fn after_an_ack_the_next_message_is_there_at_once() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..5)).await;
    for n in 0..5 {
        let popped = server.pop("/queue/q?wait=false").await.unwrap();
        assert_eq!(popped.data(), [n]);
        assert_eq!(server.ack(&popped.messages[0], "completed").await["success"], true);
    }
    assert!(server.pop("/queue/q").await.is_none());
}

#[tokio::test]
async fn auto_ack_delivers_once_and_leaves_no_lease() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..3)).await;
    let first = server.pop("/queue/q?autoAck=true&batch=2").await.unwrap();
    assert_eq!(first.data(), [0, 1]);
    assert_eq!((&first.body["leaseId"], &first.messages[0]["leaseId"]), (&json!(""), &json!("")));
    assert_eq!(server.pop("/queue/q?autoAck=true&batch=2").await.unwrap().data(), [2]);
    server.travel("1 hour").await;
    assert!(server.pop("/queue/q/partition/p?batch=10").await.is_none());
}

#[tokio::test]
async fn one_pop_over_three_partitions_has_one_lease() {
    let server = Server::start().await;
    for partition in ["a", "b", "c"] {
        server.push("q", partition, &numbers(0..2)).await;
    }
    let popped = server.pop("/queue/q?batch=10&partitions=3").await.unwrap();
    assert_eq!((popped.messages.len(), &popped.body["partitionsClaimed"]), (6, &json!(3)));
    assert_eq!(distinct(&popped.messages, "partitionId").len(), 3);
    assert_eq!(distinct(&popped.messages, "leaseId").len(), 1);
    for pair in popped.messages.chunks(2) {
        assert_eq!(pair[0]["partitionId"], pair[1]["partitionId"]);
        assert_eq!((&pair[0]["data"], &pair[1]["data"]), (&json!(0), &json!(1)));
    }
    let results = server.ack_all(&popped.messages, &["completed"; 6]).await;
    assert!(results.iter().all(|result| result["success"] == true && result["leaseReleased"] == true));
    assert!(server.pop("/queue/q?batch=10&partitions=3").await.is_none());
}

#[tokio::test]
async fn the_batch_bounds_the_sum_over_all_partitions() {
    let server = Server::start().await;
    for partition in 0..5 {
        server.push("q", &format!("p{partition}"), &numbers(0..100)).await;
    }
    let popped = server.pop("/queue/q?batch=10&partitions=5").await.unwrap();
    assert_eq!(popped.messages.len(), 10);
}

#[tokio::test]
async fn without_a_number_of_partitions_one_is_claimed_with_all_it_has() {
    let server = Server::start().await;
    for partition in ["a", "b", "c"] {
        server.push("q", partition, &numbers(0..5)).await;
    }
    let popped = server.pop("/queue/q?batch=100").await.unwrap();
    assert_eq!((popped.messages.len(), distinct(&popped.messages, "partitionId").len()), (5, 1));
}

#[tokio::test]
async fn an_answer_stays_below_its_size_and_the_rest_follows() {
    let server = Server::start_with(&["--pop-max-bytes", "1MiB"]).await;
    let payloads: Vec<_> = (0..10).map(|n| json!(format!("{n}{}", "x".repeat(300_000)))).collect();
    server.push("q", "p", &payloads).await;
    server.push("q", "p", &[json!("y".repeat(3 << 20))]).await;
    let mut seen = Vec::new();
    while let Some(popped) = server.pop("/queue/q?batch=100").await {
        let (data, last) = (popped.data(), popped.messages.last().unwrap());
        assert!(data.len() <= 4, "{} messages", data.len());
        assert_eq!(server.ack(last, "completed").await["leaseReleased"], true);
        seen.extend(data);
    }
    assert_eq!(seen.len(), 11);
    assert_eq!(seen[..10], payloads);
}

#[tokio::test]
async fn a_named_partition_is_the_only_one_touched() {
    let server = Server::start().await;
    server.push("q", "a", &[json!("a")]).await;
    server.push("q", "b", &[json!("b")]).await;
    assert_eq!(server.pop("/queue/q/partition/b?batch=10&partitions=5").await.unwrap().data(), ["b"]);
    assert!(server.pop("/queue/q/partition/b").await.is_none());
    assert_eq!(server.pop("/queue/q?batch=10&partitions=5").await.unwrap().data(), ["a"]);
}

#[tokio::test]
async fn empty_polls_of_a_second_worker_never_hide_a_leased_backlog() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..4)).await;
    let held = server.pop("/queue/q?batch=2").await.unwrap();
    for _ in 0..20 {
        assert!(server.pop("/queue/q").await.is_none());
    }
    server.ack(&held.messages[1], "completed").await;
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), [2, 3]);
}

#[tokio::test]
async fn groups_read_the_same_messages_each_at_its_own_pace() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..3)).await;
    for path in ["/queue/q?consumerGroup=one&batch=10", "/queue/q/partition/p?consumerGroup=two&batch=10"] {
        let popped = server.pop(path).await.unwrap();
        assert_eq!(popped.data(), [0, 1, 2]);
        server.ack(&popped.messages[2], "completed").await;
        assert!(server.pop(path).await.is_none());
    }
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), [0, 1, 2]);
}

#[tokio::test]
async fn labels_find_queues_by_namespace_and_task_and_priority_goes_first() {
    let server = Server::start().await;
    server.configure("low", json!({"namespace": "shop", "task": "mail", "priority": 1})).await;
    server.configure("high", json!({"namespace": "shop", "task": "bill", "priority": 9})).await;
    for queue in ["low", "high", "shop.mail.auto", "elsewhere"] {
        server.push(queue, "p", &[json!(queue)]).await;
    }
    let popped = server.pop("?namespace=shop").await.unwrap();
    assert_eq!((&popped.messages[0]["queue"], popped.data()), (&json!("high"), vec![json!("high")]));
    let mut mail = Vec::new();
    while let Some(popped) = server.pop("?namespace=shop&task=mail&autoAck=true").await {
        mail.extend(popped.data());
    }
    mail.sort_by_key(Value::to_string);
    assert_eq!(mail, ["low", "shop.mail.auto"]);
    assert!(server.get("/api/v1/pop?namespace=&task=").await.is_error(400, "bad_request"));
    assert!(server.get("/api/v1/pop?batch=5").await.is_error(400, "bad_request"));
}

#[tokio::test]
async fn a_batch_below_one_is_one_and_autopilot_takes_more() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..150)).await;
    assert_eq!(server.pop("/queue/q?batch=-3&consumerGroup=a").await.unwrap().messages.len(), 1);
    let many = server.pop("/queue/q?autopilot=true&consumerGroup=b").await.unwrap().messages.len();
    assert!((100..=150).contains(&many), "{many}");
}
