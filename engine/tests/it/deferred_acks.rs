//! Deferred acknowledgements: their leases do not end before they are executed, and nothing overtakes them.

use std::time::Duration;

use queen_engine::{Config, Engine, SeekTo};
use queen_protocol::AckStatus::{Completed, Failed};
use queen_protocol::PopRequest;
use queen_testkit::database;
use serde_json::json;
use tokio_postgres::Client;

use crate::support::*;

/// An engine that takes its database to be overloaded by acknowledgements.
fn strained(url: &str) -> Config {
    let mut config = idle(url);
    config.deferring.ack_utilisation = 0.0;
    config.deferring.patience = Duration::ZERO;
    config
}

/// An engine that defers every acknowledgement and executes none of them.
pub async fn deferring(url: &str) -> Engine {
    let engine = engine_with(strained(url)).await;
    push(&engine, "probe", "p", 0..1).await;
    let probe = pop(&engine, any("probe")).await.unwrap();
    let again = || vec![leaseless(&probe.messages[0], Completed)];
    eventually("it defers", async || ack_items(&engine, again()).await[0].ticket.is_some().then_some(()))
        .await;
    engine
}

async fn pending(sql: &Client) -> i64 {
    number(sql, "select coalesce(sum(deferred_pending), 0)::bigint from queen.consumers").await
}

#[tokio::test]
async fn a_lease_is_held_until_its_deferred_acknowledgement_has_landed() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    configure(&busy, "q", json!({"leaseTime": 1})).await;
    push(&busy, "q", "p", 0..3).await;
    let popped = pop(&busy, named("q", "p").batch(2)).await.unwrap();
    let acked = ack_all(&busy, &popped.messages, &[Completed, Completed]).await;
    assert!(acked.iter().all(|result| result.success && !result.lease_released && result.ticket.is_some()));
    let waiting = operation(&busy, &acked[0].ticket).await;
    assert_eq!((waiting.operation_type.as_str(), waiting.priority, waiting.messages), ("ACK_BATCH", 3, 2));
    assert_eq!((waiting.queue_name.as_str(), waiting.partition_name.as_str()), ("q", "p"));

    travel(&sql, "10 minutes").await;
    assert!(pop(&busy, named("q", "p")).await.is_none(), "nobody else gets them meanwhile");
    let worker = engine(db.url()).await;
    let done = landed(&worker, &acked[0].ticket).await;
    let result: serde_json::Value = serde_json::from_str(done.result.unwrap().get()).unwrap();
    assert_eq!((&result[1]["success"], &result[1]["leaseReleased"]), (&json!(true), &json!(true)));
    assert_eq!(result[1]["transactionId"], popped.messages[1].transaction_id);
    assert_eq!(data(&worker, named("q", "p").batch(9)).await, numbers(2..3));
    assert_eq!(pending(&sql).await, 0);
}

#[tokio::test]
async fn a_transaction_waits_until_the_acknowledgements_ahead_of_it_have_landed() {
    let db = database().await;
    let sql = db.client().await;
    let (busy, calm) = (deferring(db.url()).await, engine_with(idle(db.url())).await);
    push(&calm, "q", "p", 0..2).await;
    let popped = pop(&calm, named("q", "p").batch(2)).await.unwrap();
    assert!(ack(&busy, &popped.messages[0], Completed).await.ticket.is_some());
    let body = json!({"requiredLeases": [popped.lease_id],
                      "operations": [ack_operation(&popped.messages[1], "completed")]});
    let (outcome, _worker) = tokio::join!(transact(&calm, &body), engine(db.url()));
    assert!(outcome.success, "{outcome:?}");
    assert!(pop(&calm, named("q", "p")).await.is_none());
    assert_eq!(number(&sql, "select count(*) from queen.leases where queue = 'q'").await, 0);
}

#[tokio::test]
async fn a_deferred_dead_letter_of_a_locked_queue_holds_up_no_other_deferred_ack() {
    let db = database().await;
    let busy = deferring(db.url()).await;
    configure(&busy, "given up", json!({"retryLimit": 0})).await;
    let mut tickets = Vec::new();
    for (queue, status) in [("given up", Failed), ("q", Completed), ("r", Completed)] {
        push(&busy, queue, "p", 0..1).await;
        let popped = pop(&busy, any(queue)).await.unwrap();
        tickets.push(ack(&busy, &popped.messages[0], status).await.ticket);
    }
    let held = db.client().await;
    held.batch_execute("begin; select from queen.queues where name = 'given up' for update").await.unwrap();
    let worker = engine(db.url()).await;
    for ticket in &tickets[1..] {
        landed(&worker, ticket).await;
    }
    // The acknowledgement that waits for the lock does not block anything else.
    push(&worker, "q", "p", 1..2).await;
    assert_eq!(data(&worker, named("q", "p")).await, [1]);
    assert!(dead_letters(&worker, "given up").await.is_empty());
    held.batch_execute("rollback").await.unwrap();
    landed(&worker, &tickets[0]).await;
    assert_eq!(dead_letters(&worker, "given up").await.len(), 1);
}

/// A later `completed` must not complete a message that a deferred `failed` returns for redelivery.
#[tokio::test]
async fn a_failed_one_that_was_deferred_is_delivered_again() {
    let db = database().await;
    let (busy, calm) = (deferring(db.url()).await, engine_with(idle(db.url())).await);
    push(&calm, "q", "p", 0..3).await;
    let popped = pop(&calm, named("q", "p").batch(3)).await.unwrap();
    let failed = ack(&busy, &popped.messages[0], Failed).await;
    let behind = ack(&calm, &popped.messages[2], Completed).await;
    assert_eq!(operation(&busy, &failed.ticket).await.operation_type, "ACK_SINGLE");
    assert_eq!(behind.ticket.as_ref().unwrap().reason, "maintaining_order");
    let worker = engine(db.url()).await;
    let done = landed(&worker, &behind.ticket).await;
    let result: serde_json::Value = serde_json::from_str(done.result.unwrap().get()).unwrap();
    assert_eq!(result[0]["success"], false, "the failure ended the lease: {result}");
    let again = pop(&worker, named("q", "p").batch(3)).await.unwrap();
    assert_eq!((again.data(), again.messages[0].retry_count), (numbers(0..3), 1));
}

#[tokio::test]
async fn a_long_lease_and_a_renewal_outlast_the_time_it_is_held() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    configure(&busy, "q", json!({"leaseTime": 30})).await;
    push(&busy, "q", "p", 0..3).await;
    let request = PopRequest { lease_seconds: 600, ..named("q", "p").batch(3) };
    let popped = pop(&busy, request).await.unwrap();
    let acked = ack(&busy, &popped.messages[0], Completed).await;
    let renewed = busy.renew(&popped.lease_id, 1_200).await.unwrap();
    let until = renewed.expires_at.unwrap();
    landed(&engine(db.url()).await, &acked.ticket).await;
    let ends = "select lease_until::text from queen.leases where queue = 'q'";
    let ends: String = sql.query_one(ends, &[]).await.unwrap().get(0);
    assert_eq!(until[11..19], ends[11..19], "what the renewal was told is true");
    travel(&sql, "19 minutes").await;
    assert!(pop(&busy, named("q", "p")).await.is_none(), "it is still leased");
}

#[tokio::test]
async fn a_deleted_group_takes_its_deferred_acknowledgements_along() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    push(&busy, "q", "p", 0..2).await;
    let popped = pop(&busy, named("q", "p").group("g").batch(2)).await.unwrap();
    let acked = ack(&busy, &popped.messages[1], Completed).await;
    busy.delete_group("g", Some("q"), true).await.unwrap();
    let gone = operation(&busy, &acked.ticket).await;
    assert_eq!(
        (gone.status.as_str(), gone.error_message.as_deref()),
        ("failed", Some("the group was deleted"))
    );
    let worker = engine(db.url()).await;
    let again = pop(&worker, named("q", "p").group("g").batch(2)).await.unwrap();
    assert_eq!(again.data(), numbers(0..2));
    let done = ack(&worker, &again.messages[1], Completed).await;
    assert!(done.success && done.lease_released && done.ticket.is_none(), "{done:?}");
    let open = "select count(*) from queen.consumers where consumer_group = 'g' and deferred_pending <> 0";
    assert_eq!(number(&sql, open).await, 0);
}

#[tokio::test]
async fn a_seek_cancels_the_deferred_acknowledgements_that_were_accepted_before_it() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    push(&busy, "q", "p", 0..6).await;
    push(&busy, "q", "elsewhere", 0..1).await;
    let popped = pop(&busy, named("q", "p").group("g").batch(3)).await.unwrap();
    let elsewhere = pop(&busy, named("q", "elsewhere").group("g")).await.unwrap();
    let acked = ack_items(&busy, vec![leaseless(&popped.messages[2], Completed)]).await.remove(0);
    let kept = ack_items(&busy, vec![leaseless(&elsewhere.messages[0], Completed)]).await.remove(0);
    let open =
        "select coalesce(sum(deferred_pending), 0)::bigint from queen.consumers where consumer_group = 'g'";
    assert_eq!(number(&sql, open).await, 2);
    busy.seek_partition("g", "q", "p", SeekTo::Time(0)).await.unwrap();
    let gone = operation(&busy, &acked.ticket).await;
    assert_eq!(
        (gone.status.as_str(), gone.error_message.as_deref()),
        ("cancelled", Some("the group was moved"))
    );
    let worker = engine(db.url()).await;
    landed(&worker, &kept.ticket).await;
    assert_eq!(data(&worker, named("q", "p").group("g").batch(9)).await, numbers(0..6));
    assert_eq!(number(&sql, open).await, 0);
}

#[tokio::test]
async fn a_seek_that_waits_stops_no_push_and_cancels_what_is_accepted_meanwhile() {
    let db = database().await;
    let (sql, holder) = (db.client().await, db.client().await);
    let busy = deferring(db.url()).await;
    push(&busy, "q", "a", 0..3).await;
    push(&busy, "q", "b", 0..3).await;
    let a = pop(&busy, named("q", "a").group("g").batch(3)).await.unwrap();
    let b = pop(&busy, named("q", "b").group("g").batch(3)).await.unwrap();
    let before = ack_items(&busy, vec![leaseless(&a.messages[2], Completed)]).await.remove(0);
    let lock = "begin; select from queen.consumers c join queen.partitions p on p.id = c.partition_id
                where p.name = 'a' and c.consumer_group = 'g' for update of c";
    holder.batch_execute(lock).await.unwrap();
    let seek = busy.seek("g", "q", SeekTo::Time(0));
    let meanwhile = async {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";
        eventually("the seek waits", async || (number(&sql, waiting).await > 0).then_some(())).await;
        push(&busy, "q", "a", 3..4).await;
        let late = ack_items(&busy, vec![leaseless(&b.messages[2], Completed)]).await.remove(0);
        let waits = number(&sql, waiting).await > 0;
        holder.batch_execute("rollback").await.unwrap();
        (late, waits)
    };
    let (moved, (late, waits)) = tokio::join!(seek, meanwhile);
    moved.unwrap();
    assert!(waits, "neither has waited for the seek");
    for ack in [before, late] {
        assert_eq!(operation(&busy, &ack.ticket).await.status, "cancelled");
    }
    let open =
        "select coalesce(sum(deferred_pending), 0)::bigint from queen.consumers where consumer_group = 'g'";
    assert_eq!(number(&sql, open).await, 0);
    let worker = engine(db.url()).await;
    assert_eq!(data(&worker, named("q", "a").group("g").batch(9)).await, numbers(0..4));
    assert_eq!(data(&worker, named("q", "b").group("g").batch(9)).await, numbers(0..3));
}

#[tokio::test]
async fn a_seek_cancels_nothing_in_a_partition_that_came_too_late_to_be_moved() {
    let db = database().await;
    let (sql, holder) = (db.client().await, db.client().await);
    let busy = deferring(db.url()).await;
    push(&busy, "q", "old", 0..2).await;
    drain(&busy, "q", "old", "g").await;
    holder.batch_execute("begin; select from queen.partitions where name = 'old' for update").await.unwrap();
    let seek = busy.seek("g", "q", SeekTo::Time(0));
    let meanwhile = async {
        let waiting = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";
        eventually("the seek waits", async || (number(&sql, waiting).await > 0).then_some(())).await;
        push(&busy, "q", "new", 0..2).await;
        let popped = pop(&busy, named("q", "new").group("g").batch(2)).await.unwrap();
        let acked = ack_items(&busy, vec![leaseless(&popped.messages[1], Completed)]).await.remove(0);
        holder.batch_execute("rollback").await.unwrap();
        acked
    };
    let (moved, acked) = tokio::join!(seek, meanwhile);
    assert_eq!(moved.unwrap(), 1);
    assert_eq!(operation(&busy, &acked.ticket).await.status, "pending");
}

#[tokio::test]
async fn a_lease_that_is_not_finished_gets_its_usual_time_back() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    configure(&busy, "q", json!({"leaseTime": 30})).await;
    push(&busy, "q", "p", 0..3).await;
    let popped = pop(&busy, named("q", "p").batch(3)).await.unwrap();
    let acked = ack(&busy, &popped.messages[0], Completed).await;
    let held = "select count(*) from queen.leases where lease_until > queen.now() + interval '1 day' and queue = 'q'";
    assert_eq!(number(&sql, held).await, 1);
    let worker = engine(db.url()).await;
    landed(&worker, &acked.ticket).await;
    assert_eq!(number(&sql, held).await, 0);
    let live = "select count(*) from queen.leases where queue = 'q'";
    assert_eq!(number(&sql, live).await, 1, "two are still to be acknowledged");
    travel(&sql, "31 seconds").await;
    assert_eq!(data(&worker, named("q", "p").batch(3)).await, numbers(1..3));
}

#[tokio::test]
async fn a_lease_that_is_over_is_refused_at_once_also_under_load() {
    let db = database().await;
    let sql = db.client().await;
    let busy = deferring(db.url()).await;
    push(&busy, "q", "p", 0..1).await;
    let popped = pop(&busy, named("q", "p")).await.unwrap();
    travel(&sql, "1 hour").await;
    let refused = ack(&busy, &popped.messages[0], Completed).await;
    assert!(!refused.success && refused.ticket.is_none(), "{refused:?}");
    assert_eq!(refused.error.as_deref(), Some("Invalid or expired lease"));
}
