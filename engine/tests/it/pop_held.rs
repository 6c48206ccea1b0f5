//! Messages that are stored and not deliverable yet: delays and windows.

use std::time::Duration;

use queen_testkit::database;
use serde_json::json;
use tokio::time::Instant;

use crate::support::{
    Ask, any, configure, data, engine, lane, named, number, numbers, parked, pop, push, travel,
};

#[tokio::test]
async fn a_delayed_message_is_not_delivered_before_its_time() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"delayedProcessing": 60})).await;
    push(&broker, "q", "p", 0..2).await;
    assert!(pop(&broker, any("q").batch(10)).await.is_none());
    travel(&sql, "59 seconds").await;
    push(&broker, "q", "p", 2..3).await;
    assert!(pop(&broker, named("q", "p").batch(10)).await.is_none());
    travel(&sql, "61 seconds").await;
    assert_eq!(data(&broker, named("q", "p").batch(10)).await, numbers(0..2), "the third is too young");
    assert_eq!(number(&sql, "select count(*) from queen.leases").await, 1);
}

#[tokio::test]
async fn a_window_holds_a_partition_until_its_oldest_message_is_old_enough() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"windowBuffer": 60})).await;
    push(&broker, "q", "p", 0..2).await;
    travel(&sql, "59 seconds").await;
    push(&broker, "q", "p", 2..3).await;
    assert!(pop(&broker, named("q", "p").batch(10)).await.is_none());
    travel(&sql, "61 seconds").await;
    assert_eq!(data(&broker, named("q", "p").batch(10)).await, numbers(0..3), "the young one comes along");
}

#[tokio::test]
async fn a_batch_of_one_waits_for_the_window() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"windowBuffer": 60})).await;
    push(&broker, "q", "p", 0..3).await;
    assert!(pop(&broker, any("q").batch(10)).await.is_none());
    assert!(pop(&broker, any("q")).await.is_none());
    assert!(pop(&broker, named("q", "p")).await.is_none());
    travel(&sql, "59 seconds").await;
    assert!(pop(&broker, named("q", "p")).await.is_none());
    travel(&sql, "61 seconds").await;
    assert_eq!(data(&broker, named("q", "p")).await, numbers(0..1));
}

#[tokio::test]
async fn a_full_batch_does_not_wait_for_its_window() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"windowBuffer": 60})).await;
    push(&broker, "q", "p", 0..5).await;
    assert!(pop(&broker, any("q").batch(6)).await.is_none());
    assert_eq!(data(&broker, any("q").batch(5)).await, numbers(0..5));
}

#[tokio::test]
async fn a_batch_that_a_push_fills_does_not_wait_for_its_window() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"windowBuffer": 60})).await;
    push(&broker, "q", "p", 0..2).await;
    assert!(pop(&broker, any("q").batch(5)).await.is_none());
    push(&broker, "q", "p", 2..5).await;
    assert_eq!(data(&broker, any("q").batch(5)).await, numbers(0..5));
}

#[tokio::test]
async fn messages_too_young_to_be_delivered_do_not_fill_a_batch_that_waits_for_its_window() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"windowBuffer": 120, "delayedProcessing": 60})).await;
    push(&broker, "q", "p", 0..2).await;
    travel(&sql, "61 seconds").await;
    push(&broker, "q", "p", 2..20).await;
    let asked = lane(&broker, "pop").entries;
    assert!(pop(&broker, any("q").batch(5).wait(Duration::from_millis(500))).await.is_none());
    assert!(lane(&broker, "pop").entries - asked <= 2, "it asks once, and waits");
}

#[tokio::test]
async fn a_batch_that_fills_up_as_messages_mature_does_not_wait_for_its_window() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"windowBuffer": 60, "delayedProcessing": 1})).await;
    push(&broker, "q", "p", 0..1).await;
    let long = Duration::from_secs(20);
    let waiting = parked(&broker, any("q").batch(2).wait(long)).await;
    push(&broker, "q", "p", 1..2).await;
    let began = Instant::now();
    assert_eq!(waiting.answer().await.expect("a full batch").data(), numbers(0..2));
    assert!(began.elapsed() < long / 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn delay_and_window_must_both_be_satisfied() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"windowBuffer": 20, "delayedProcessing": 60})).await;
    push(&broker, "q", "p", 0..2).await;
    travel(&sql, "50 seconds").await;
    push(&broker, "q", "p", 2..3).await;
    assert!(pop(&broker, named("q", "p").batch(10)).await.is_none(), "too young for the delay");
    travel(&sql, "61 seconds").await;
    assert_eq!(data(&broker, named("q", "p").batch(10)).await, numbers(0..2));
}
