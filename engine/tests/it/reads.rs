//! Lists and figures: however slow they are and however many, messages are not delayed.

use std::time::Duration;

use queen_engine::{Config, DeadLetterFilter, RedriveAsk};
use queen_testkit::database;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::*;

/// Much less than any time limit of these engines, much more than a call takes.
const USUAL: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn lists_that_take_long_keep_no_connection_from_messages() {
    let db = database().await;
    let broker = engine_with(Config { connections: 2, ..config(db.url()) }).await;
    push(&broker, "q", "p", 0..1).await;
    let holder = db.client().await;
    holder.batch_execute("begin; lock table queen.traces in access exclusive mode").await.unwrap();
    let mut lists = JoinSet::new();
    for _ in 0..10 {
        let broker = broker.clone();
        lists.spawn(async move { broker.trace_names(10, 0).await.map(drop) });
    }
    let sql = db.client().await;
    let text = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("all that may wait", async || (number(&sql, text).await == 2).then_some(())).await;
    for n in 1..20 {
        timeout(USUAL, push(&broker, "q", "p", n..n + 1)).await.expect("in its usual time");
    }
    holder.batch_execute("rollback").await.unwrap();
    while let Some(list) = lists.join_next().await {
        list.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_list_that_takes_too_long_is_cancelled_and_a_message_may_take_longer() {
    let db = database().await;
    let broker = engine_with(Config { read_timeout: Duration::from_millis(300), ..config(db.url()) }).await;
    push(&broker, "q", "p", 0..1).await;
    let holder = db.client().await;
    holder
        .batch_execute("begin; lock table queen.traces, queen.segments in access exclusive mode")
        .await
        .unwrap();
    let mut pushes = JoinSet::new();
    pushes.spawn({
        let broker = broker.clone();
        async move { push(&broker, "q", "p", 1..2).await }
    });
    let refused = broker.trace_names(10, 0).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("57014"), "cancelled by its timeout: {refused}");
    holder.batch_execute("rollback").await.unwrap();
    assert_eq!(pushes.join_all().await.len(), 1);
}

#[tokio::test]
async fn calls_that_look_for_dead_letters_keep_no_connection_from_messages() {
    let db = database().await;
    let patience = Duration::from_secs(60);
    let times = Config { lock_timeout: patience, statement_timeout: patience, ..config(db.url()) };
    let broker = engine_with(Config { read_timeout: patience, ..times }).await;
    let partition = push_ids(&broker, "q", "p", &["a"]).await[0].partition_id;
    let ask = RedriveAsk {
        queue: "q".to_owned(),
        target_queue: None,
        partition: None,
        group: None,
        from: None,
        to: None,
        error: Some("no such error".to_owned()),
        shape: None,
        per_second: 100,
    };
    let (holder, sql) = (db.client().await, db.client().await);
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    for kind in ["count", "redrive", "purge", "delete", "bury", "replay"] {
        holder
            .batch_execute("begin; lock table queen.dead_letter_rows in access exclusive mode")
            .await
            .unwrap();
        let mut calls = JoinSet::new();
        for _ in 0..40 {
            let (broker, ask) = (broker.clone(), ask.clone());
            calls.spawn(async move {
                match kind {
                    "count" => broker.count_redrive(&ask).await.map(drop),
                    "redrive" => broker.start_redrive(&ask).await.map(drop),
                    "purge" => broker.purge_dead_letters("q", &DeadLetterFilter::default()).await.map(drop),
                    "delete" => broker.delete_message(partition, "none").await.map(drop),
                    "bury" => broker.bury_message(partition, "a", "g", None).await.map(drop),
                    _ => broker.replay_message(partition, "none").await.map(drop),
                }
            });
        }
        eventually(kind, async || (number(&sql, waiting).await >= 2).then_some(())).await;
        for n in 0..20 {
            // To another partition, because that of the deleted or dead-lettered message is locked.
            timeout(USUAL, push(&broker, "q", "other", n..n + 1)).await.expect(kind);
        }
        holder.batch_execute("rollback").await.unwrap();
        while let Some(call) = calls.join_next().await {
            call.unwrap().expect(kind);
        }
    }
}
