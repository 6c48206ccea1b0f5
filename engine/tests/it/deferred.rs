//! Deferred pushes: accepted, durable, in order, exactly once, no matter which broker executes them and which one dies.

use std::time::Duration;

use queen_engine::{Config, Engine, Error, Operations};
use queen_protocol::PushStatus;
use queen_testkit::database;
use serde_json::json;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::*;

/// An engine that takes its database to be overloaded.
fn strained(url: &str) -> Config {
    let mut config = idle(url);
    config.deferring.push_utilisation = 0.0;
    config.deferring.patience = Duration::ZERO;
    config
}

/// An engine that defers every push and executes none of them.
pub async fn deferring(url: &str) -> Engine {
    engine_with(strained(url)).await
}

#[tokio::test]
async fn a_deferred_push_lands_with_the_ids_it_was_promised_and_says_so() {
    let db = database().await;
    let busy = deferring(db.url()).await;
    let items = json!([
        {"queue": "q", "partition": "a", "payload": 1, "transactionId": "x"},
        {"queue": "q", "partition": "b", "payload": 2},
        {"queue": "q", "partition": "a", "payload": 3, "transactionId": "x"},
        {"queue": "q", "partition": "a", "payload": 4},
    ]);
    let pushed = send(&busy, &items).await.unwrap();
    use PushStatus::{Duplicate, Queued};
    assert_eq!(pushed.iter().map(|r| r.status).collect::<Vec<_>>(), [Queued, Queued, Duplicate, Queued]);
    assert_eq!(pushed[2].message_id, pushed[0].message_id);
    let waiting = operation(&busy, &pushed[0].ticket).await;
    assert_eq!((waiting.status.as_str(), waiting.operation_type.as_str()), ("pending", "PUSH"));
    assert_eq!((waiting.queue_name.as_str(), waiting.partition_name.as_str()), ("q", "a"));
    assert_eq!((waiting.priority, waiting.messages, waiting.retry_count), (5, 2, 0));
    let tickets: Vec<Uuid> = pushed.iter().map(|r| r.ticket.as_ref().unwrap().operation_id).collect();
    assert_eq!(tickets[0], tickets[3], "one operation for each partition");
    assert_ne!(tickets[0], tickets[1]);
    assert!(pop(&busy, named("q", "a")).await.is_none(), "not stored yet");

    let worker = engine(db.url()).await;
    let done = landed(&worker, &pushed[0].ticket).await;
    assert!(done.processing_started_at.is_some() && done.processed_at.is_some() && done.worker.is_some());
    let result: serde_json::Value = serde_json::from_str(done.result.unwrap().get()).unwrap();
    assert_eq!(result[0]["message_id"], pushed[0].message_id.to_string());
    assert_eq!((&result[0]["status"], &result[1]["status"]), (&json!("queued"), &json!("queued")));
    let messages = drain(&worker, "q", "a", "g").await;
    assert_eq!(
        messages.iter().map(|m| m.id).collect::<Vec<_>>(),
        [pushed[0].message_id, pushed[3].message_id]
    );
    let sql = db.client().await;
    let text = "select count(*) from queen.messages m where m.id = any ($1)";
    let ids: Vec<Uuid> = pushed.iter().map(|result| result.message_id).collect();
    assert_eq!(sql.query_one(text, &[&ids]).await.unwrap().get::<_, i64>(0), 3, "the view knows them, too");

    // Pushed again it is a duplicate, and the response has the id that was promised.
    let again = push_ids(&worker, "q", "a", &["x"]).await;
    assert_eq!((again[0].status, again[0].message_id), (Duplicate, pushed[0].message_id));
    assert!(again[0].ticket.is_none());
}

#[tokio::test]
async fn a_clock_that_goes_back_holds_up_no_deferred_push() {
    let db = database().await;
    let (busy, sql) = (deferring(db.url()).await, db.client().await);
    travel(&sql, "1 hour").await;
    let pushed = push(&busy, "q", "p", 0..1).await;
    travel(&sql, "0 seconds").await;
    landed(&engine(db.url()).await, &pushed[0].ticket).await;
}

#[tokio::test]
async fn a_push_that_was_accepted_within_the_window_is_a_duplicate_however_long_it_waits() {
    let db = database().await;
    let (busy, calm) = (deferring(db.url()).await, engine_with(idle(db.url())).await);
    configure(&calm, "q", json!({"dedupWindowSeconds": 3600})).await;
    let first = push_ids(&calm, "q", "p", &["x"]).await;
    let again = push_ids(&busy, "q", "p", &["x", "y"]).await;
    travel(&db.client().await, "2 hours").await;
    let worker = engine(db.url()).await;
    let done = landed(&worker, &again[0].ticket).await;
    let result: serde_json::Value = serde_json::from_str(done.result.unwrap().get()).unwrap();
    assert_eq!(result[0]["message_id"], first[0].message_id.to_string());
    assert_eq!((&result[0]["status"], &result[1]["status"]), (&json!("duplicate"), &json!("queued")));
    let ids: Vec<_> =
        drain(&worker, "q", "p", "g").await.into_iter().map(|message| message.transaction_id).collect();
    assert_eq!(ids, ["x", "y"]);
}

#[tokio::test]
async fn with_no_utilisation_and_no_patience_every_push_is_deferred() {
    let db = database().await;
    let mut config = idle(db.url());
    config.deferring.push_utilisation = 0.0;
    config.deferring.patience = Duration::ZERO;
    let broker = engine_with(config).await;
    for n in 0..3 {
        let pushed = push(&broker, "q", "p", n..n + 1).await;
        let reason = pushed[0].ticket.as_ref().map(|ticket| ticket.reason.to_string());
        assert_eq!(reason.as_deref(), Some("system_busy"), "push {n}");
    }
}

#[tokio::test]
async fn a_large_request_is_one_operation_for_each_partition() {
    let db = database().await;
    let busy = deferring(db.url()).await;
    let pushed = push(&busy, "q", "p", 0..2_500).await;
    let first = operation(&busy, &pushed[0].ticket).await;
    assert!(pushed.iter().all(|result| result.ticket.as_ref().unwrap().operation_id == first.id));
    assert_eq!(first.messages, 2_500);
    let worker = engine(db.url()).await;
    landed(&worker, &pushed[0].ticket).await;
    let delivered = drain(&worker, "q", "p", "g").await;
    assert_eq!(delivered.iter().map(Message::json).collect::<Vec<_>>(), numbers(0..2_500));
    assert!(delivered.iter().map(|message| message.id).eq(pushed.iter().map(|result| result.message_id)));
}

#[tokio::test]
async fn a_calm_broker_goes_behind_what_another_has_deferred() {
    let db = database().await;
    let (busy, calm) = (deferring(db.url()).await, engine_with(idle(db.url())).await);
    push(&calm, "q", "p", 0..1).await;
    push(&busy, "q", "p", 1..2).await;
    let pushed = push(&calm, "q", "p", 2..3).await;
    assert_eq!(pushed[0].ticket.as_ref().unwrap().reason, "maintaining_order");
    assert!(push(&calm, "q", "other", 0..1).await[0].ticket.is_none(), "its neighbours go on");
    let pushed = push(&calm, "q", "p", 3..4).await;
    assert_eq!(pushed[0].ticket.as_ref().unwrap().reason, "maintaining_order");

    let worker = engine(db.url()).await;
    landed(&worker, &pushed[0].ticket).await;
    let direct = eventually("pushes go straight again", async || {
        let pushed = push(&calm, "q", "p", 4..5).await;
        pushed[0].ticket.is_none().then_some(pushed)
    });
    direct.await;
    let data: Vec<_> = drain(&worker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data[..4], numbers(0..4));
    assert!(data[4..].iter().all(|data| *data == 4));
    let sql = db.client().await;
    let open = "select coalesce(sum(deferred_pending), 0)::bigint from queen.heads";
    eventually("nothing is pending", async || (number(&sql, open).await == 0).then_some(())).await;
}

/// Three clients, two brokers of which one is overloaded, and one partition: each client's messages are stored once, in
/// the order in which they were sent.
#[tokio::test]
async fn order_holds_while_pushes_switch_between_straight_and_deferred() {
    let db = database().await;
    let calm = engine(db.url()).await;
    let busy = deferring(db.url()).await;
    let mut clients = JoinSet::new();
    for client in 0..3 {
        let brokers = [calm.clone(), busy.clone()];
        clients.spawn(async move {
            let mut deferred = 0;
            for n in 0..60 {
                // Several in a row use the same broker, so that the deferred queue is empty now and then.
                let broker = &brokers[usize::from((n + client * 7) % 20 < 4)];
                let items = json!([{"queue": "q", "partition": "p", "payload": [client, n]}]);
                deferred += usize::from(send(broker, &items).await.unwrap()[0].ticket.is_some());
            }
            deferred
        });
    }
    let deferred: usize = clients.join_all().await.into_iter().sum();
    assert!((36..180).contains(&deferred), "both ways were taken: {deferred} of 180 were deferred");
    let sql = db.client().await;
    let open = "select count(*) from queen.deferred where status in ('pending', 'processing')";
    eventually("all have landed", async || (number(&sql, open).await == 0).then_some(())).await;
    let delivered = drain(&calm, "q", "p", "g").await;
    for client in 0..3 {
        let own = delivered.iter().map(Message::json).filter(|data| data[0] == client);
        let own: Vec<_> = own.map(|data| data[1].clone()).collect();
        assert_eq!(own, numbers(0..60), "client {client}");
    }
}

#[tokio::test]
async fn what_a_dead_broker_was_working_on_is_taken_over_after_its_timeout() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    let pushed = push(&busy, "q", "p", 0..1).await;
    let behind = push(&busy, "q", "p", 1..2).await;
    sql.batch_execute(
        "update queen.deferred set status = 'processing', worker = gen_random_uuid(), started_at = queen.now(),
                                   timeout_seconds = 2 where number = (select min(number) from queen.deferred d
                                                               where d.queue_name = 'q')",
    )
    .await
    .unwrap();
    let worker = engine(db.url()).await;
    let probe = push(&busy, "q", "other", 0..1).await;
    landed(&worker, &probe[0].ticket).await;
    assert_eq!(
        operation(&worker, &pushed[0].ticket).await.status,
        "processing",
        "it has time until its timeout"
    );
    assert_eq!(operation(&worker, &behind[0].ticket).await.status, "pending", "and nobody overtakes it");
    landed(&worker, &behind[0].ticket).await;
    assert_eq!(operation(&worker, &pushed[0].ticket).await.status, "completed");
    let data: Vec<_> = drain(&worker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(0..2));
}

#[tokio::test]
async fn an_operation_that_never_works_fails_alone_and_can_be_tried_again() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    sql.batch_execute("alter table queen.segments add constraint poison check (frames not like '%poison%')")
        .await
        .unwrap();
    let bad = send(&busy, &json!([{"queue": "q", "partition": "p", "payload": "poison"}])).await.unwrap();
    let behind = push(&busy, "q", "p", 1..3).await;
    let neighbour = push(&busy, "q", "other", 0..1).await;
    let worker = engine(db.url()).await;
    landed(&worker, &neighbour[0].ticket).await;
    landed(&worker, &behind[0].ticket).await;
    let failed = operation(&worker, &bad[0].ticket).await;
    assert_eq!((failed.status.as_str(), failed.retry_count), ("failed", 3));
    let why = failed.error_message.unwrap();
    assert!(why.contains("poison") && !why.contains("queen.push") && !why.contains("procedure"), "{why}");
    let filter = Operations { status: Some("failed"), limit: 10, ..Operations::default() };
    assert_eq!(worker.operations(&filter).await.unwrap().len(), 1);

    sql.batch_execute("alter table queen.segments drop constraint poison").await.unwrap();
    assert_eq!(worker.retry_operation(failed.id).await.unwrap().as_deref(), Some("pending"));
    landed(&worker, &bad[0].ticket).await;
    let data: Vec<_> = drain(&worker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, [json!(1), json!(2), json!("poison")], "behind those that came after it");
    assert_eq!(worker.retry_operation(Uuid::nil()).await.unwrap(), None);
}

#[tokio::test]
async fn a_pending_operation_can_be_cancelled_and_the_next_goes_on() {
    let db = database().await;
    let busy = deferring(db.url()).await;
    let pushed = push(&busy, "q", "p", 0..1).await;
    let kept = push(&busy, "q", "p", 1..2).await;
    let id = operation(&busy, &pushed[0].ticket).await.id;
    assert_eq!(busy.cancel_operation(id).await.unwrap().as_deref(), Some("cancelled"));
    assert_eq!(busy.cancel_operation(Uuid::nil()).await.unwrap(), None);
    let worker = engine(db.url()).await;
    landed(&worker, &kept[0].ticket).await;
    assert_eq!(drain(&worker, "q", "p", "g").await.len(), 1);
    assert_eq!(
        busy.cancel_operation(operation(&busy, &kept[0].ticket).await.id).await.unwrap().unwrap(),
        "completed"
    );
}

#[tokio::test]
async fn a_full_queue_turns_pushes_away_until_it_has_drained() {
    let db = database().await;
    let mut config = strained(db.url());
    config.deferring.push_depth_max = 5;
    let busy = engine_with(config).await;
    let refusal = eventually("it is full", async || {
        send(&busy, &json!([{"queue": "q", "partition": "p", "payload": 1}])).await.err()
    })
    .await;
    let Error::Overloaded { depth, retry_after } = refusal else { panic!("{refusal}") };
    assert!(depth >= 5 && retry_after >= 1);
    let mut calm = idle(db.url());
    calm.deferring.push_depth_max = 5;
    let calm = engine_with(calm).await;
    let behind = send(&calm, &json!([{"queue": "q", "partition": "p", "payload": 2}])).await;
    assert!(
        matches!(behind, Err(Error::Overloaded { .. })),
        "it must not overtake them, and there is no room"
    );
    assert!(push(&calm, "q", "other", 0..1).await[0].ticket.is_none());
    let worker = engine(db.url()).await;
    eventually("accepted again", async || {
        send(&busy, &json!([{"queue": "q", "partition": "p", "payload": 3}])).await.ok()
    })
    .await;
    drop(worker);
}

#[tokio::test]
async fn a_transaction_waits_until_what_is_ahead_of_it_has_landed() {
    let db = database().await;
    let (busy, calm) = (deferring(db.url()).await, engine_with(idle(db.url())).await);
    push(&busy, "q", "p", 0..1).await;
    let body = json!({"operations": [
        {"type": "push", "items": [{"queue": "q", "partition": "p", "payload": 1}]}]});
    let (worker, outcome) = tokio::join!(engine(db.url()), transact(&calm, &body));
    assert!(outcome.success, "{outcome:?}");
    let data: Vec<_> = drain(&worker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(0..2));
}

#[tokio::test]
async fn what_was_deferred_for_a_queue_goes_with_it_and_says_so() {
    let db = database().await;
    let busy = deferring(db.url()).await;
    let pushed = push(&busy, "q", "p", 0..1).await;
    assert!(busy.delete_queue("q").await.unwrap());
    let gone = operation(&busy, &pushed[0].ticket).await;
    assert_eq!(
        (gone.status.as_str(), gone.error_message.unwrap().as_str()),
        ("failed", "the partition was deleted")
    );
    let worker = engine(db.url()).await;
    let again = push(&busy, "q", "p", 1..2).await;
    landed(&worker, &again[0].ticket).await;
    let data: Vec<_> = drain(&worker, "q", "p", "g").await.iter().map(Message::json).collect();
    assert_eq!(data, numbers(1..2));
    assert_eq!(worker.retry_operation(gone.id).await.unwrap(), None, "there is no such partition any more");
    assert_eq!(worker.cancel_operation(gone.id).await.unwrap().as_deref(), Some("cancelled"), "given up");
}

#[tokio::test]
async fn done_operations_are_forgotten_and_failed_ones_are_not() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    let done = push(&busy, "q", "p", 0..1).await;
    let failed = push(&busy, "gone", "p", 0..1).await;
    busy.delete_queue("gone").await.unwrap();
    landed(&engine(db.url()).await, &done[0].ticket).await;
    travel(&sql, "2 hours").await;
    number(&sql, "select queen.sweep_deferred('1 hour')").await;
    assert!(busy.operation(done[0].ticket.as_ref().unwrap().operation_id).await.unwrap().is_none());
    assert_eq!(operation(&busy, &failed[0].ticket).await.status, "failed");
    let (stats, health) = busy.operations_stats().await.unwrap();
    assert_eq!(stats.iter().find(|line| line.status == "failed").map(|line| line.count), Some(1));
    assert!(health.pool_utilization <= 1.0);
}
