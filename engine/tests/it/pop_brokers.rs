//! Pops through several brokers of one database: none misses what another has written, released or leased.

use std::collections::HashSet;
use std::time::Duration;

use queen_engine::SeekTo;
use queen_protocol::AckStatus::{Completed, Retry};
use queen_testkit::database;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    Ask, ack, any, at_once, complete, engine, named, numbers, pop, push, push_wide, send, twins, within,
    write_unnoticed,
};

/// A response that took longer did not come "at once".
const AT_ONCE: Duration = Duration::from_millis(700);

#[tokio::test]
async fn a_leased_partition_is_answered_empty_at_once_by_any_broker() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push(&a, "exclusive", "singleton", 0..5).await;
    let held = pop(&a, named("exclusive", "singleton").group("worker")).await.unwrap();
    for broker in [&a, &b] {
        for request in [named("exclusive", "singleton"), any("exclusive")] {
            let began = Instant::now();
            assert!(pop(broker, request.group("worker").batch(5)).await.is_none());
            assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        }
    }
    let ended = ack(&a, &held.messages[0], Completed).await;
    assert!(ended.success && ended.lease_released, "the holder was not disturbed");
}

#[tokio::test]
async fn a_push_through_one_broker_is_found_at_once_through_another() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    assert!(pop(&b, any("q")).await.is_none());
    for n in 0..30 {
        // New and known partitions in turn.
        push(&a, "q", &format!("p{}", n % 10), n..n + 1).await;
        let popped = pop(&b, any("q")).await.unwrap_or_else(|| panic!("message {n} was not found"));
        assert_eq!(popped.data(), [n]);
        complete(&b, &popped).await;
    }
}

#[tokio::test]
async fn a_message_of_which_no_hint_came_is_found_before_a_pop_answers_empty() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    for id in ["one", "two", "three"] {
        write_unnoticed(&sql, "q", "p", id).await;
        let popped = pop(&broker, any("q")).await.expect("it is committed");
        assert_eq!(popped.data(), [id]);
        complete(&broker, &popped).await;
    }
}

#[tokio::test]
async fn a_partition_released_through_one_broker_is_found_at_once_through_another() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    push(&a, "q", "p", 0..1).await;
    for round in 0..5 {
        let held = pop(&a, named("q", "p")).await.unwrap();
        assert!(pop(&b, any("q")).await.is_none(), "it is leased");
        ack(&a, &held.messages[0], Retry).await;
        let popped = pop(&b, any("q")).await;
        let popped = popped.unwrap_or_else(|| panic!("round {round}: it is free, and B says empty"));
        ack(&b, &popped.messages[0], Retry).await;
    }
}

#[tokio::test]
async fn after_an_ack_through_another_broker_the_next_message_is_found_through_the_first() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    for round in 0..3 {
        push(&a, "q", "p", round..round + 1).await;
        // All messages, so that none is left when B completes them.
        let popped = pop(&a, any("q").batch(10)).await;
        let popped = popped.unwrap_or_else(|| panic!("round {round}: A does not find its own push"));
        assert_eq!(popped.data(), [round]);
        complete(&b, &popped).await;
    }
}

#[tokio::test]
async fn after_a_seek_through_one_broker_the_messages_are_soon_found_again_through_another() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    push(&a, "q", "p", 0..3).await;
    for _ in 0..3 {
        // B learns of it through a notification, which takes a moment.
        let popped = within(Duration::from_secs(1), "B finds them", async || {
            pop(&b, any("q").group("g").batch(10)).await
        });
        let popped = popped.await;
        assert_eq!(popped.data(), numbers(0..3));
        complete(&b, &popped).await;
        assert_eq!(a.seek("g", "q", SeekTo::Time(0)).await.unwrap(), 1);
    }
}

#[tokio::test]
async fn many_consumers_at_once_get_every_message_exactly_once_and_in_order() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push_wide(&a, "q", 0..20).await;
    for n in 1..10 {
        let items =
            (0..20).map(|p| json!({"queue": "q", "partition": format!("p{p}"), "payload": n * 100 + p}));
        send(&b, &items.collect()).await.unwrap();
    }
    let consumers = (0..8).map(|consumer| {
        let broker = if consumer % 2 == 0 { a.clone() } else { b.clone() };
        async move {
            let mut got = Vec::new();
            while let Some(popped) = pop(&broker, any("q").group("g").batch(3)).await {
                got.extend(popped.messages.iter().map(|m| (m.created_at.clone(), m.id, m.partition.clone())));
                complete(&broker, &popped).await;
            }
            got
        }
    });
    let mut got: Vec<_> = at_once(consumers).await.into_iter().flatten().collect();
    // A pop that came while everything was leased has ended; the rest is still there.
    while let Some(popped) = pop(&a, any("q").group("g").batch(100)).await {
        got.extend(popped.messages.iter().map(|m| (m.created_at.clone(), m.id, m.partition.clone())));
        complete(&a, &popped).await;
    }
    assert_eq!(got.len(), 200);
    let ids: HashSet<_> = got.iter().map(|(_, id, _)| id).collect();
    assert_eq!(ids.len(), 200, "no message twice");
}
