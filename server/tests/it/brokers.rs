//! Two brokers on one database: each sees the other's changes.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Server, numbers};
use crate::waiting::{answer, parked};

#[tokio::test]
async fn a_push_on_one_broker_wakes_a_parked_pop_on_the_other() {
    let here = Server::start().await;
    let there = here.twin().await;
    for path in [
        "/api/v1/pop/queue/a?wait=true&timeout=30000",
        "/api/v1/pop/queue/b/partition/p?wait=true&timeout=30000",
    ] {
        let poll = parked(&there.url, path).await;
        let queue = if path.contains("/a?") { "a" } else { "b" };
        let began = Instant::now();
        here.push(queue, "p", &[json!("over there")]).await;
        assert!(answer(poll).await.contains("over there"));
        assert!(began.elapsed() < Duration::from_secs(3), "{path}: {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_message_pushed_here_is_read_acknowledged_and_renewed_there() {
    let here = Server::start().await;
    let there = here.twin().await;
    here.push("q", "p", &numbers(0..4)).await;
    let popped = there.pop_soon("/queue/q?batch=2").await;
    assert_eq!(popped.data(), [0, 1]);
    let lease = popped.body["leaseId"].as_str().unwrap();
    assert_eq!(here.call(&format!("/api/v1/lease/{lease}/extend"), json!({})).await["success"], true);
    assert_eq!(here.ack(&popped.messages[1], "completed").await["leaseReleased"], true);
    assert_eq!(here.pop_soon("/queue/q?batch=10").await.data(), [2, 3]);
}

#[tokio::test]
async fn a_lease_ended_on_one_broker_is_free_for_a_wildcard_pop_on_the_other() {
    let here = Server::start().await;
    let there = here.twin().await;
    here.push("q", "p", &numbers(0..2)).await;
    let held = here.pop("/queue/q").await.unwrap();
    assert!(here.pop("/queue/q").await.is_none());
    there.ack(&held.messages[0], "retry").await;
    assert_eq!(here.pop_soon("/queue/q").await.data(), [0]);
}

#[tokio::test]
async fn one_id_pushed_through_both_is_one_message() {
    let here = Server::start().await;
    let there = here.twin().await;
    for round in 0..10 {
        let item =
            json!([{"queue": "q", "partition": "p", "payload": round, "transactionId": format!("t{round}")}]);
        let both = [&here, &there, &here, &there];
        let results: Vec<_> = join_all(both.map(|server| server.push_items(item.clone()))).await.concat();
        assert_eq!(results.iter().filter(|result| result["status"] == "queued").count(), 1, "{results:?}");
        assert!(results.iter().all(|result| result["message_id"] == results[0]["message_id"]));
    }
    assert_eq!(here.pop("/queue/q?batch=100").await.unwrap().data(), numbers(0..10));
}

#[tokio::test]
async fn two_brokers_never_deliver_a_message_twice_to_a_group() {
    let here = Server::start().await;
    let there = here.twin().await;
    for partition in 0..10 {
        here.push("q", &format!("p{partition}"), &numbers(partition * 10..partition * 10 + 10)).await;
    }
    let drain = async |server: &Server| {
        let mut seen = Vec::new();
        while let Some(popped) = server.pop("/queue/q?batch=7&partitions=2&wait=true&timeout=1500").await {
            let statuses = vec!["completed"; popped.messages.len()];
            let results = server.ack_all(&popped.messages, &statuses).await;
            assert!(results.iter().all(|result| result["success"] == true), "{results:?}");
            seen.extend(popped.data());
        }
        seen
    };
    let (one, two) = futures_util::join!(drain(&here), drain(&there));
    let mut all = [one, two].concat();
    all.sort_by_key(Value::as_u64);
    assert_eq!(all, numbers(0..100));
}

#[tokio::test]
async fn a_queue_deleted_on_one_broker_is_gone_on_the_other() {
    let here = Server::start().await;
    let there = here.twin().await;
    here.push("q", "p", &[json!("old")]).await;
    assert_eq!(there.pop_soon("/queue/q").await.data(), ["old"]);
    assert_eq!(there.delete("/api/v1/resources/queues/q").await.json()["deleted"], true);
    assert_eq!(here.push("q", "p", &[json!("new")]).await[0]["status"], "queued");
    assert_eq!(there.pop_soon("/queue/q?batch=10").await.data(), ["new"]);
    assert!(here.pop("/queue/q?batch=10").await.is_none());
}
