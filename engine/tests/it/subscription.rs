//! Where a group starts to read. This is decided once, however early the group comes.

use queen_engine::Engine;
use queen_protocol::{PopRequest, QUEUE_MODE, Subscription};
use queen_testkit::database;
use serde_json::Value;

use crate::support::{Ask, any, complete, configure, data, engine, named, number, pop, push, push_wide};

fn from(subscription: Subscription, request: PopRequest) -> PopRequest {
    PopRequest { subscription, ..request }
}

/// Reads and completes everything that the group can read now. Sorted, because partitions come in any order.
async fn read(broker: &Engine, group: &str, subscription: Subscription) -> Vec<i64> {
    let request = from(subscription, any("q").group(group).batch(100));
    let mut found = Vec::new();
    while let Some(popped) = pop(broker, request.clone()).await {
        found.extend(popped.data().iter().filter_map(Value::as_i64));
        complete(broker, &popped).await;
    }
    found.sort_unstable();
    found
}

#[tokio::test]
async fn a_new_group_gets_history_only_if_it_asks_for_all() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..2).await;
    assert!(read(&broker, "new", Subscription::New).await.is_empty());
    assert_eq!(read(&broker, "all", Subscription::All).await, [0, 1]);
    push(&broker, "q", "p", 2..3).await;
    push(&broker, "q", "later", 3..4).await;
    // Later pops need not repeat the mode, and cannot change it.
    assert_eq!(read(&broker, "new", Subscription::All).await, [2, 3]);
    assert_eq!(read(&broker, "all", Subscription::New).await, [2, 3]);
}

#[tokio::test]
async fn a_registration_stands_for_other_brokers_and_after_a_restart() {
    let db = database().await;
    let first = engine(db.url()).await;
    push(&first, "q", "p", 0..2).await;
    assert!(read(&first, "g", Subscription::New).await.is_empty());
    push(&first, "q", "p", 2..3).await;
    first.stop().await;
    let second = engine(db.url()).await;
    push(&second, "q", "r", 3..4).await;
    assert_eq!(read(&second, "g", Subscription::All).await, [2, 3]);
}

#[tokio::test]
async fn a_group_may_register_before_its_queue_exists() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    assert!(read(&a, "g", Subscription::New).await.is_empty());
    assert!(pop(&a, from(Subscription::New, named("q", "p").group("by name"))).await.is_none());
    push(&b, "q", "p", 0..2).await;
    assert_eq!(read(&a, "g", Subscription::All).await, [0, 1], "the first message was not skipped");
    assert_eq!(data(&b, named("q", "p").group("by name").batch(9)).await, [0, 1]);
}

#[tokio::test]
async fn partitions_born_later_are_measured_against_the_registration_and_not_the_first_contact() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push(&a, "q", "old", 0..1).await;
    assert!(read(&a, "g", Subscription::New).await.is_empty());
    // Pushed through another broker and found long after that, but still younger than the registration.
    push(&b, "q", "born later", 1..3).await;
    push(&b, "q", "old", 3..4).await;
    let young = engine(db.url()).await;
    assert_eq!(read(&young, "g", Subscription::New).await, [1, 2, 3]);
}

#[tokio::test]
async fn a_time_means_everything_after_it() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..2).await;
    let between = number(&sql, "select (extract(epoch from clock_timestamp()) * 1e6)::bigint").await;
    push(&broker, "q", "p", 2..4).await;
    push(&broker, "q", "r", 4..5).await;
    assert_eq!(read(&broker, "g", Subscription::From(between)).await, [2, 3, 4]);
    assert_eq!(read(&broker, "h", Subscription::From(0)).await.len(), 5);
    let future = between + 3_600_000_000;
    assert!(read(&broker, "i", Subscription::From(future)).await.is_empty());
}

#[tokio::test]
async fn queue_mode_starts_at_the_oldest_message_whatever_it_is_asked() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..2).await;
    assert_eq!(read(&broker, QUEUE_MODE, Subscription::New).await, [0, 1]);
}

#[tokio::test]
async fn a_registration_for_one_partition_goes_before_the_one_for_the_queue() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "a", 0..1).await;
    push(&broker, "q", "b", 1..2).await;
    assert!(pop(&broker, from(Subscription::New, named("q", "a").group("g"))).await.is_none());
    assert_eq!(read(&broker, "g", Subscription::All).await, [1], "a is read from its registration on");
    push(&broker, "q", "a", 2..3).await;
    assert_eq!(read(&broker, "g", Subscription::All).await, [2]);
}

#[tokio::test]
async fn a_partition_registered_from_an_early_time_is_found_by_a_group_that_is_new_to_the_queue() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", serde_json::json!({})).await;
    // Registered by the partition's name before it exists, so there is no cursor yet.
    assert!(pop(&broker, from(Subscription::From(1), named("q", "p").group("g"))).await.is_none());
    push(&broker, "q", "p", 0..1).await;
    push(&broker, "q", "r", 1..2).await;
    let young = engine(db.url()).await;
    assert_eq!(read(&young, "g", Subscription::New).await, [0], "p from its start, r from now on");
}

#[tokio::test]
async fn a_deleted_group_starts_over_and_keeps_its_registration_on_request() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    assert!(read(&broker, "g", Subscription::New).await.is_empty());
    push(&broker, "q", "p", 1..2).await;
    assert_eq!(read(&broker, "g", Subscription::New).await, [1]);
    assert_eq!(broker.delete_group("g", None, false).await.unwrap().cursors, 1);
    assert_eq!(read(&broker, "g", Subscription::All).await, [1], "still from its registration on");
    assert_eq!(broker.delete_group("g", Some("q"), true).await.unwrap().cursors, 1);
    assert_eq!(read(&broker, "g", Subscription::All).await, [0, 1], "as if it had never been");
    assert_eq!(broker.delete_group("nobody", None, true).await.unwrap().cursors, 0);
}

#[tokio::test]
async fn a_registration_can_be_moved_for_partitions_that_were_not_read_yet() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..2).await;
    assert!(read(&broker, "g", Subscription::New).await.is_empty());
    assert_eq!(broker.set_subscription("g", 0).await.unwrap(), 1);
    assert_eq!(read(&broker, "g", Subscription::New).await, [0, 1]);
    assert_eq!(broker.set_subscription("nobody", 0).await.unwrap(), 0, "nothing is registered by it");
}

#[tokio::test]
async fn a_group_is_new_to_five_thousand_partitions_in_one_quick_pop() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..5_000).await;
    let began = tokio::time::Instant::now();
    assert!(pop(&broker, from(Subscription::New, any("q").group("g"))).await.is_none());
    assert!(began.elapsed() < std::time::Duration::from_secs(3), "{:?}", began.elapsed());
    // Later messages reach the group, in old partitions and in new ones.
    push_wide(&broker, "q", 4_950..5_010).await;
    let mut found: Vec<i64> = Vec::new();
    while let Some(popped) = pop(&broker, any("q").group("g")).await {
        found.extend(popped.data().iter().filter_map(Value::as_i64));
        complete(&broker, &popped).await;
    }
    found.sort_unstable();
    assert!(found.iter().copied().eq(4_950..5_010), "{found:?}");
}
