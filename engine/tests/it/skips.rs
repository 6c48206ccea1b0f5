//! Messages deleted or dead-lettered by hand: they are no longer delivered, to any group or to one, and everything else continues.

use queen_engine::{Buried, Engine, MessageStatus};
use queen_protocol::{AckStatus, PopRequest, QUEUE_MODE};
use queen_testkit::database;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{
    Ask, ack, ack_all, any, at_once, complete, configure, data, dead_letters, drain, engine, named, number,
    pop, push_ids, push_wide, travel, twins,
};

const IDS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Six messages, `a` to `f`, in one partition.
async fn six(engine: &Engine) -> Uuid {
    push_ids(engine, "q", "p", &IDS).await[0].partition_id
}

async fn delete(engine: &Engine, partition: Uuid, ids: &[&str]) {
    for id in ids {
        assert!(engine.delete_message(partition, id).await.unwrap(), "{id}");
    }
}

async fn bury(engine: &Engine, partition: Uuid, id: &str, group: &str) -> Buried {
    engine.bury_message(partition, id, group, Some("by hand")).await.unwrap()
}

async fn ids(engine: &Engine, group: &str) -> Vec<Value> {
    drain(engine, "q", "p", group).await.iter().map(|message| json!(message.transaction_id)).collect()
}

async fn pending(sql: &Client, group: &str) -> i64 {
    number(sql, &format!("select pending from queen.lag where consumer_group = '{group}'")).await
}

#[tokio::test]
async fn a_deleted_message_is_not_delivered() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    // The first message is in the segment cache when it is deleted, because it was just written.
    delete(&broker, partition, &["a", "c", "f"]).await;
    assert_eq!(ids(&broker, "g").await, [json!("b"), json!("d"), json!("e")]);
    assert_eq!(ids(&broker, QUEUE_MODE).await, [json!("b"), json!("d"), json!("e")]);
    assert!(!broker.delete_message(partition, "c").await.unwrap(), "it is gone");
    assert!(broker.message(partition, "c").await.unwrap().is_none());
    let sql = db.client().await;
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 3);
    assert_eq!(pending(&sql, "g").await, 0);
    // It was stored, so its id is still taken.
    push_ids(&broker, "q", "p", &["c", "g"]).await;
    assert_eq!(ids(&broker, "g").await, [json!("g")]);
}

#[tokio::test]
async fn a_pop_that_would_find_only_deleted_messages_goes_on_behind_them() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    delete(&broker, partition, &["a", "b", "c"]).await;
    for request in [named("q", "p").batch(2).group("named"), any("q").batch(2).group("wild")] {
        let popped = pop(&broker, request).await.unwrap();
        assert_eq!(popped.data(), [json!("d"), json!("e")]);
    }
    let auto = PopRequest { auto_ack: true, ..any("q").batch(10) };
    assert_eq!(data(&broker, auto.clone()).await, [json!("d"), json!("e"), json!("f")]);
    delete(&broker, partition, &["d", "e", "f"]).await;
    assert!(pop(&broker, any("q").batch(2).group("late")).await.is_none());
    push_ids(&broker, "q", "p", &["g"]).await;
    assert_eq!(data(&broker, auto).await, [json!("g")]);
    assert_eq!(data(&broker, any("q").group("late")).await, [json!("g")]);
}

#[tokio::test]
async fn a_batch_ends_before_a_deleted_message_and_its_last_ack_ends_its_lease() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    delete(&broker, partition, &["c", "d"]).await;
    let popped = pop(&broker, named("q", "p").batch(10)).await.unwrap();
    assert_eq!(popped.data(), [json!("a"), json!("b")]);
    let last = ack(&broker, &popped.messages[1], AckStatus::Completed).await;
    assert!(last.success && last.lease_released, "{last:?}");
    let popped = pop(&broker, named("q", "p").batch(10)).await.unwrap();
    assert_eq!(popped.data(), [json!("e"), json!("f")]);
    complete(&broker, &popped).await;
    let sql = db.client().await;
    assert_eq!(pending(&sql, QUEUE_MODE).await, 0);
}

#[tokio::test]
async fn a_message_deleted_in_the_hands_of_a_consumer_is_settled_like_any_other() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    let popped = pop(&broker, named("q", "p").batch(3)).await.unwrap();
    delete(&broker, partition, &["b", "c"]).await;
    let statuses = [AckStatus::Completed, AckStatus::Failed, AckStatus::Completed];
    let results = ack_all(&broker, &popped.messages, &statuses).await;
    assert!(results.iter().all(|result| result.success), "{results:?}");
    assert!(results[2].lease_released);
    assert_eq!(
        dead_letters(&broker, "q").await.len(),
        0,
        "what is deleted does not come back as a dead letter"
    );
    assert_eq!(ids(&broker, QUEUE_MODE).await, [json!("d"), json!("e"), json!("f")]);
}

#[tokio::test]
async fn a_lease_given_back_does_not_bring_a_deleted_message_back() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    let popped = pop(&broker, named("q", "p").batch(3)).await.unwrap();
    delete(&broker, partition, &["a", "b"]).await;
    assert!(ack(&broker, &popped.messages[0], AckStatus::Retry).await.success);
    assert_eq!(data(&broker, named("q", "p").batch(3)).await, [json!("c"), json!("d"), json!("e")]);
}

#[tokio::test]
async fn another_broker_with_the_message_in_its_cache_does_not_deliver_it() {
    let db = database().await;
    let sql = db.client().await;
    let (first, second) = twins(db.url(), &sql).await;
    let partition = six(&first).await;
    for broker in [&first, &second] {
        assert_eq!(ids(broker, "warm").await.len(), 6);
        first.seek("warm", "q", queen_engine::SeekTo::Time(0)).await.unwrap();
    }
    delete(&first, partition, &["b", "c"]).await;
    let left = [json!("a"), json!("d"), json!("e"), json!("f")];
    assert_eq!(ids(&second, "g").await, left);
    delete(&second, partition, &["d"]).await;
    assert_eq!(ids(&first, "h").await, [json!("a"), json!("e"), json!("f")]);
}

#[tokio::test]
async fn deleting_under_traffic_loses_nothing_else() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let names: Vec<String> = (0..60).map(|n| format!("m{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let partition = push_ids(&broker, "q", "p", &names).await[0].partition_id;
    let deleting = names.iter().step_by(3).map(|id| {
        let (broker, id) = (broker.clone(), (*id).to_owned());
        async move { broker.delete_message(partition, &id).await.unwrap() }
    });
    let consuming = {
        let broker = broker.clone();
        async move { ids(&broker, "g").await }
    };
    let (deleted, seen) = tokio::join!(at_once(deleting), consuming);
    assert!(deleted.iter().all(|deleted| *deleted));
    let kept: Vec<Value> =
        names.iter().enumerate().filter(|(n, _)| n % 3 > 0).map(|(_, id)| json!(id)).collect();
    let seen_kept: Vec<Value> = seen.iter().filter(|id| kept.contains(id)).cloned().collect();
    assert_eq!(seen_kept, kept, "in order, each once");
    assert_eq!(ids(&broker, "late").await, kept);
}

#[tokio::test]
async fn deleting_takes_the_dead_letters_of_the_message_along() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    let partition = six(&broker).await;
    let popped = pop(&broker, named("q", "p").group("g")).await.unwrap();
    assert!(ack(&broker, &popped.messages[0], AckStatus::Failed).await.dlq);
    let message = broker.message(partition, "a").await.unwrap().unwrap();
    assert_eq!(message.standing.status, MessageStatus::DeadLetter);
    assert!(message.error.unwrap().contains("no use for a"));
    delete(&broker, partition, &["a"]).await;
    assert_eq!(dead_letters(&broker, "q").await.len(), 0);
    assert!(broker.message(partition, "a").await.unwrap().is_none());
    assert!(!broker.delete_message(Uuid::nil(), "a").await.unwrap());
}

#[tokio::test]
async fn a_message_buried_for_one_group_is_delivered_to_other_groups() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    for id in ["a", "c", "f"] {
        assert!(matches!(bury(&broker, partition, id, "g").await, Buried::Buried { .. }), "{id}");
    }
    let letters = dead_letters(&broker, "q").await;
    assert_eq!(
        letters.iter().map(|letter| letter.transaction_id.as_str()).collect::<Vec<_>>(),
        ["f", "c", "a"]
    );
    assert!(letters.iter().all(|letter| letter.group == "g" && letter.error.as_deref() == Some("by hand")));
    // The response was lost and the request is repeated, which changes nothing.
    assert!(matches!(bury(&broker, partition, "c", "g").await, Buried::Buried { .. }));
    assert_eq!(dead_letters(&broker, "q").await.len(), 3);
    assert_eq!(ids(&broker, "g").await, [json!("b"), json!("d"), json!("e")]);
    assert_eq!(ids(&broker, "other").await.len(), 6);
    let sql = db.client().await;
    assert_eq!(pending(&sql, "g").await, 0);
    // A group with the same name that starts over gets all messages.
    broker.delete_group("g", Some("q"), true).await.unwrap();
    assert_eq!(ids(&broker, "g").await.len(), 6);
}

#[tokio::test]
async fn what_is_leased_passed_or_unknown_is_not_buried() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = six(&broker).await;
    let popped = pop(&broker, named("q", "p").batch(2).group("g")).await.unwrap();
    assert_eq!(bury(&broker, partition, "b", "g").await, Buried::Leased);
    assert!(matches!(bury(&broker, partition, "c", "g").await, Buried::Buried { .. }), "behind the lease");
    assert!(matches!(bury(&broker, partition, "b", "other").await, Buried::Buried { .. }), "another group");
    complete(&broker, &popped).await;
    assert_eq!(bury(&broker, partition, "b", "g").await, Buried::Committed);
    assert_eq!(bury(&broker, partition, "zzz", "g").await, Buried::Missing);
    assert_eq!(bury(&broker, Uuid::nil(), "a", "g").await, Buried::Missing);
    // An expired lease does not prevent it.
    assert!(pop(&broker, named("q", "p").group("g")).await.is_some());
    let sql = db.client().await;
    travel(&sql, "1 hour").await;
    assert!(matches!(bury(&broker, partition, "d", "g").await, Buried::Buried { .. }));
    assert_eq!(ids(&broker, "g").await, [json!("e"), json!("f")]);
}

#[tokio::test]
async fn windows_and_many_partitions_work_around_what_is_skipped() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"windowBuffer": 3600})).await;
    let partition = six(&broker).await;
    delete(&broker, partition, &["a"]).await;
    // A full batch opens the window; what is deleted does not count.
    assert!(pop(&broker, named("q", "p").batch(6)).await.is_none());
    assert_eq!(data(&broker, named("q", "p").batch(5)).await.len(), 5);
    push_wide(&broker, "w", 0..3).await;
    let first = pop(&broker, any("w")).await.unwrap();
    broker.delete_message(first.partition_id, &first.messages[0].transaction_id).await.unwrap();
    let wide = PopRequest { partitions: 3, auto_ack: true, ..any("w").batch(10).group("g") };
    assert_eq!(data(&broker, wide).await.len(), 2);
}
