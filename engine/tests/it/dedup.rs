//! Deduplication: exact within its window, for any broker and any state of its caches.

use std::collections::{HashMap, HashSet};

use queen_engine::Config;
use queen_protocol::PushStatus::{Duplicate, Queued};
use queen_protocol::{PushResult, PushStatus};
use queen_testkit::database;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    any, at_once, complete, config, configure, data, drain, engine, engine_with, pop, push_ids, send, travel,
    with_ids, write_unnoticed,
};

pub fn statuses(results: &[PushResult]) -> Vec<PushStatus> {
    results.iter().map(|result| result.status).collect()
}

#[tokio::test]
async fn the_same_ids_from_two_brokers_at_once_are_stored_once_with_the_same_message_id() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push_ids(&a, "q", "p", &["warm"]).await;
    push_ids(&b, "q", "p", &["warm"]).await;
    let ids: Vec<String> = (0..30).map(|n| format!("id-{n}")).collect();
    let rivals = (0..8).map(|rival| {
        let broker = if rival % 2 == 0 { a.clone() } else { b.clone() };
        let mut ids = ids.clone();
        ids.rotate_left(rival * 4);
        async move {
            let mut told = Vec::new();
            for few in ids.chunks(rival + 1) {
                let few: Vec<&str> = few.iter().map(String::as_str).collect();
                told.extend(push_ids(&broker, "q", "p", &few).await);
            }
            told
        }
    });
    let mut by_id: HashMap<String, Vec<PushResult>> = HashMap::new();
    for result in at_once(rivals).await.into_iter().flatten() {
        by_id.entry(result.transaction_id.clone()).or_default().push(result);
    }
    assert_eq!(by_id.len(), 30);
    for (id, results) in &by_id {
        let queued = results.iter().filter(|result| result.status == Queued).count();
        assert_eq!((results.len(), queued), (8, 1), "{id}");
        let messages: HashSet<Uuid> = results.iter().map(|result| result.message_id).collect();
        assert_eq!(messages.len(), 1, "{id}");
    }
    let stored = drain(&a, "q", "p", "g").await;
    assert_eq!(stored.len(), 31);
    assert!(stored[1..].iter().all(|m| by_id[&m.transaction_id][0].message_id == m.id));
}

#[tokio::test]
async fn a_broker_that_has_just_started_knows_duplicates_of_the_one_before() {
    let db = database().await;
    let old = engine(db.url()).await;
    let first = push_ids(&old, "q", "p", &["a", "b", "c"]).await;
    old.stop().await;

    let young = engine(db.url()).await;
    let again = push_ids(&young, "q", "p", &["new", "b", "newer", "a"]).await;
    assert_eq!(statuses(&again), [Queued, Duplicate, Queued, Duplicate]);
    assert_eq!((again[1].message_id, again[3].message_id), (first[1].message_id, first[0].message_id));
    let stored: Vec<Value> = drain(&young, "q", "p", "g").await.iter().map(|m| m.json()).collect();
    assert_eq!(stored, ["a", "b", "c", "new", "newer"]);
}

#[tokio::test]
async fn an_id_that_comes_several_times_in_one_push_is_stored_once() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let results = push_ids(&broker, "q", "p", &["x", "y", "x", "x"]).await;
    assert_eq!(statuses(&results), [Queued, Queued, Duplicate, Duplicate]);
    assert_eq!(results[2].message_id, results[0].message_id);
    assert_eq!(results[3].message_id, results[0].message_id);
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 2);
}

#[tokio::test]
async fn an_id_in_another_partition_or_queue_is_another_message() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let mut items = Vec::new();
    for (queue, partition) in [("q", "p"), ("q", "r"), ("s", "p"), ("q", "p")] {
        items.extend(with_ids(queue, partition, &["x"]).as_array().unwrap().clone());
    }
    let results = send(&broker, &Value::Array(items)).await.unwrap();
    assert_eq!(statuses(&results), [Queued, Queued, Queued, Duplicate]);
    let partitions: HashSet<Uuid> = results.iter().map(|result| result.partition_id).collect();
    assert_eq!(partitions.len(), 3);
}

#[tokio::test]
async fn a_queue_without_a_dedup_window_stores_every_push() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"dedupWindowSeconds": 0})).await;
    for _ in 0..2 {
        let results = push_ids(&broker, "q", "p", &["x", "x"]).await;
        assert_eq!(statuses(&results), [Queued; 2]);
        assert_ne!(results[0].message_id, results[1].message_id);
    }
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 4);
}

#[tokio::test]
async fn an_id_is_taken_again_once_its_window_has_passed_and_not_before() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let first = push_ids(&broker, "q", "p", &["x"]).await.remove(0);
    travel(&sql, "59 minutes").await;
    let early = push_ids(&broker, "q", "p", &["x"]).await.remove(0);
    assert_eq!((early.status, early.message_id), (Duplicate, first.message_id));
    travel(&sql, "61 minutes").await;
    let second = push_ids(&broker, "q", "p", &["x"]).await.remove(0);
    assert_eq!(second.status, Queued);
    let third = push_ids(&broker, "q", "p", &["x"]).await.remove(0);
    assert_eq!((third.status, third.message_id), (Duplicate, second.message_id));

    // The window is stored in the database, so a broker with an empty cache decides the same.
    let young = engine(db.url()).await;
    let fourth = push_ids(&young, "q", "p", &["x"]).await.remove(0);
    assert_eq!((fourth.status, fourth.message_id), (Duplicate, second.message_id));
    travel(&sql, "123 minutes").await;
    assert_eq!(push_ids(&young, "q", "p", &["x"]).await[0].status, Queued);
}

#[tokio::test]
async fn an_id_is_not_remembered_long_after_its_message_had_to_go() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 10})).await;
    push_ids(&broker, "q", "p", &["x"]).await;
    travel(&sql, "79 seconds").await;
    assert_eq!(push_ids(&broker, "q", "p", &["x"]).await[0].status, Duplicate);
    travel(&sql, "81 seconds").await;
    assert_eq!(push_ids(&broker, "q", "p", &["x"]).await[0].status, Queued);
    configure(&broker, "q", json!({"retentionEnabled": false})).await;
    travel(&sql, "58 minutes").await;
    assert_eq!(
        push_ids(&broker, "q", "p", &["x"]).await[0].status,
        Duplicate,
        "without retention it is an hour"
    );
}

#[tokio::test]
async fn a_window_that_is_switched_on_later_covers_what_is_stored() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"dedupWindowSeconds": 0})).await;
    let first = push_ids(&broker, "q", "p", &["x"]).await.remove(0);
    configure(&broker, "q", json!({"dedupWindowSeconds": 3600})).await;
    let again = push_ids(&broker, "q", "p", &["x"]).await.remove(0);
    assert_eq!((again.status, again.message_id), (Duplicate, first.message_id));
}

#[tokio::test]
async fn a_duplicate_does_not_hide_the_original_that_another_broker_has_written() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push_ids(&broker, "q", "p", &["old"]).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    assert!(pop(&broker, any("q")).await.is_none());

    // Another broker's push, of which this one has not been notified yet.
    write_unnoticed(&sql, "q", "p", "x").await;
    assert_eq!(push_ids(&broker, "q", "p", &["x"]).await[0].status, Duplicate);
    assert_eq!(data(&broker, any("q")).await, ["x"]);
}

/// A broker with room for a long window reads it before the first append. Otherwise, and for more ids than are searched
/// one by one, it compares with the log. The result is exact in all cases.
#[tokio::test]
async fn a_long_window_is_exact_for_a_broker_that_starts_cold_whatever_it_can_remember() {
    let db = database().await;
    let writer = engine(db.url()).await;
    let ids = |partition: &str, range: std::ops::Range<usize>| -> Vec<String> {
        range.map(|n| format!("{partition}-{n}")).collect()
    };
    let partitions = ["a", "b", "c"];
    for partition in partitions {
        for start in (0..2_500).step_by(500) {
            let stored = ids(partition, start..start + 500);
            push_ids(&writer, "q", partition, &stored.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
    }
    for (round, dedup_cache_bytes) in [1 << 20, 1_000].into_iter().enumerate() {
        let cold = engine_with(Config { dedup_cache_bytes, ..config(db.url()) }).await;
        for (partition, count) in partitions.into_iter().zip([1, 3, 40]) {
            let known = ids(partition, 1_200..1_200 + count);
            let new = ids(&format!("{partition}-{round}"), 0..count);
            let both: Vec<&str> = known.iter().chain(&new).map(String::as_str).collect();
            let results = push_ids(&cold, "q", partition, &both).await;
            let expected: Vec<PushStatus> = [vec![Duplicate; count], vec![Queued; count]].concat();
            assert_eq!(statuses(&results), expected, "{partition}, {dedup_cache_bytes} bytes");
            let again = push_ids(&cold, "q", partition, &both).await;
            assert_eq!(statuses(&again), vec![Duplicate; 2 * count], "{partition} again");
            assert_eq!(again[count].message_id, results[count].message_id);
        }
        cold.stop().await;
    }
}

/// A broker searches what other brokers have written since it last looked, because this very push may have been
/// attempted before, but no further back than that is possible.
#[tokio::test]
async fn an_id_that_another_broker_wrote_before_the_window_is_no_duplicate() {
    let db = database().await;
    let (idle, busy, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    push_ids(&idle, "q", "p", &["warm"]).await;
    push_ids(&busy, "q", "p", &["x"]).await;
    travel(&sql, "61 minutes").await;
    assert_eq!(push_ids(&idle, "q", "p", &["x"]).await[0].status, Queued);
}
