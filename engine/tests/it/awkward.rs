//! Administration during traffic: objects that are deleted, moved or expire while they are in use.

use std::time::Duration;

use queen_engine::{Buried, Config, Seek, SeekTo};
use queen_protocol::AckStatus::{Completed, Failed};
use queen_protocol::QUEUE_MODE;
use queen_testkit::database;
use serde_json::json;

use crate::support::{
    Ask, ack, any, complete, config, configure, data, dead_letters, drain, engine, engine_with, eventually,
    named, number, numbers, parked, pop, pop_soon, push, travel, twins,
};

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn pops_parked_at_a_queue_that_is_deleted_wait_for_its_namesake() {
    let db = database().await;
    let (one, two) = twins(db.url(), &db.client().await).await;
    push(&one, "q", "p", 0..1).await;
    for group in ["g", "h"] {
        drain(&one, "q", "p", group).await;
    }
    let here = parked(&one, any("q").group("g").wait(LONG)).await;
    let there = parked(&two, named("q", "p").group("h").wait(LONG)).await;
    assert!(two.delete_queue("q").await.unwrap());
    push(&two, "q", "p", 7..8).await;
    assert_eq!(here.answer().await.unwrap().data(), [7]);
    assert_eq!(there.answer().await.unwrap().data(), [7]);
}

#[tokio::test]
async fn a_seek_ends_leases_at_all_brokers() {
    let db = database().await;
    let (one, two) = twins(db.url(), &db.client().await).await;
    push(&one, "q", "p", 0..5).await;
    complete(&one, &pop(&one, any("q").group("g").batch(2)).await.unwrap()).await;
    let held = pop(&two, any("q").group("g").batch(2)).await.unwrap();
    one.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    // The next reader gets all messages again, and the ack of the old holder moves nothing.
    let late = ack(&two, &held.messages[1], Completed).await;
    assert!(!late.success, "{late:?}");
    for broker in [&one, &two] {
        let seen = pop_soon(broker, &any("q").group("g").batch(9)).await;
        assert_eq!(seen.data(), numbers(0..5));
        broker.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    }
}

#[tokio::test]
async fn a_partition_skipped_through_one_broker_is_skipped_by_the_other() {
    let db = database().await;
    let (one, two) = twins(db.url(), &db.client().await).await;
    push(&one, "q", "p", 0..3).await;
    complete(&two, &pop(&two, any("q").group("g")).await.unwrap()).await;
    assert_eq!(one.seek_partition("g", "q", "p", SeekTo::End).await.unwrap(), Some(3));
    eventually("the other hears of it", async || {
        pop(&two, any("q").group("g")).await.is_none().then_some(())
    })
    .await;
    push(&one, "q", "p", 3..4).await;
    assert_eq!(pop_soon(&two, &any("q").group("g").batch(9)).await.data(), [3]);
}

#[tokio::test]
async fn a_queue_cleared_under_a_lease_goes_on_with_what_comes_after() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..4).await;
    let held = pop(&broker, any("q").group("g").batch(2)).await.unwrap();
    broker.clear("q", None).await.unwrap();
    push(&broker, "q", "p", 4..6).await;
    ack(&broker, &held.messages[1], Completed).await;
    let seen = eventually("the lease is over", async || {
        broker.seek("nobody", "q", Seek { to: SeekTo::End, create: true }).await.unwrap();
        Some(data(&broker, named("q", "p").group("g").batch(9)).await).filter(|seen| !seen.is_empty())
    });
    assert_eq!(seen.await, numbers(4..6));
}

#[tokio::test]
async fn a_slow_group_and_retention_never_disagree_about_what_is_left() {
    let db = database().await;
    let often = Duration::from_millis(10);
    let broker = engine_with(Config { retention_interval: often, ..config(db.url()) }).await;
    let sql = db.client().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..50).await;
    travel(&sql, "40 seconds").await;
    push(&broker, "q", "p", 50..100).await;
    // The first half expires while a group is reading it.
    let reading = async {
        let mut seen = Vec::new();
        while let Some(popped) = pop(&broker, named("q", "p").group("slow").batch(3)).await {
            seen.extend(popped.data());
            for message in &popped.messages {
                ack(&broker, message, Completed).await;
            }
        }
        seen
    };
    let (seen, ()) = tokio::join!(reading, travel(&sql, "70 seconds"));
    let numbers: Vec<i64> = seen.iter().map(|number| number.as_i64().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert_eq!(&numbers[numbers.len() - 50..], (50..100).collect::<Vec<_>>(), "what is young is all there");
}

#[tokio::test]
async fn a_poison_message_deleted_under_its_lease_takes_its_attempts_with_it() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let pushed = push(&broker, "q", "p", 0..2).await;
    for _ in 0..2 {
        let held = pop(&broker, named("q", "p").group("g")).await.unwrap();
        ack(&broker, &held.messages[0], Failed).await;
    }
    let held = pop(&broker, named("q", "p").group("g")).await.unwrap();
    assert_eq!((held.data(), held.messages[0].retry_count), (numbers(0..1), 2));
    assert!(broker.delete_message(pushed[0].partition_id, &pushed[0].transaction_id).await.unwrap());
    ack(&broker, &held.messages[0], Failed).await;
    let next = pop(&broker, named("q", "p").group("g")).await.unwrap();
    assert_eq!((next.data(), next.messages[0].retry_count), (numbers(1..2), 0));
}

#[tokio::test]
async fn burying_for_a_group_that_does_not_read_leaves_no_reader_behind() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    let pushed = push(&broker, "q", "p", 0..1).await;
    drop(pop(&broker, named("q", "p").group("g")).await);
    let (partition, transaction) = (pushed[0].partition_id, pushed[0].transaction_id.as_str());
    let buried = broker.bury_message(partition, transaction, QUEUE_MODE, None).await.unwrap();
    assert!(matches!(buried, Buried::Buried { .. }), "{buried:?}");
    let again = broker.bury_message(partition, transaction, QUEUE_MODE, None).await.unwrap();
    assert!(matches!(again, Buried::Buried { .. }), "{again:?}");
    let missing = broker.bury_message(partition, "no such thing", "other", None).await.unwrap();
    assert!(matches!(missing, Buried::Missing), "{missing:?}");
    assert_eq!(number(&sql, "select count(*) from queen.consumers").await, 1, "of g alone");
    push(&broker, "q", "p", 1..2).await;
    assert_eq!(data(&broker, named("q", "p").batch(9)).await, numbers(1..2), "queue mode has given it up");
    assert_eq!(dead_letters(&broker, "q").await.len(), 1);
}
