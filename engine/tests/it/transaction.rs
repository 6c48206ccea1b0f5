//! Transactions: pushes and acks together or not at all, whatever happens to the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queen_engine::{Config, Engine};
use queen_protocol::AckStatus::{Completed, Retry};
use queen_protocol::PushStatus::{Duplicate, Queued};
use queen_protocol::{TransactionBody, TransactionOutcome, TransactionResult};
use queen_testkit::{Proxy, cluster, database};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Ask, Message, Popped, ack, ack_operation, any, at_once, config, configure, data, dead_letters, drain,
    engine, engine_with, eventually, named, number, pop, push, push_ids, push_operation, transact, travel,
    twins,
};

/// A message of a source queue, popped by a group.
async fn source(broker: &Engine) -> Popped {
    push(broker, "source", "p", 0..2).await;
    pop(broker, any("source").group("g")).await.unwrap()
}

/// Moves a message: acknowledges it, and pushes it to the target.
fn moving(message: &Message, required: &[&str]) -> Value {
    json!({
        "operations": [
            push_operation("target", "p", &json!("moved needle")), ack_operation(message, "completed")],
        "requiredLeases": required,
    })
}

fn rolled_back(outcome: &TransactionOutcome, word: &str) {
    assert!(!outcome.success && outcome.results.is_empty(), "{outcome:?}");
    let text = outcome.error.clone().unwrap_or_default();
    assert!(text.contains(word), "{text:?} does not name {word:?}");
}

/// Checks that nothing happened: the target is empty, and the source message is still leased to its holder.
async fn nothing_happened(broker: &Engine, held: &Popped) {
    assert!(pop(broker, any("target")).await.is_none());
    assert!(pop(broker, any("source").group("g")).await.is_none(), "still leased");
    let ended = ack(broker, &held.messages[0], Retry).await;
    assert!(ended.success && ended.lease_released, "{ended:?}");
    assert_eq!(data(broker, any("source").group("g")).await, held.data());
}

#[tokio::test]
async fn pushes_and_acks_happen_together_and_are_answered_in_order() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let held = source(&broker).await;
    let body = json!({"operations": [
        {"type": "push", "items": [
            {"queue": "target", "partition": "a", "payload": 1, "transactionId": "one"},
            {"queue": "target", "partition": "b", "payload": 2}]},
        ack_operation(&held.messages[0], "completed"),
        {"type": "push", "queue": "other", "data": 3},
    ], "requiredLeases": [held.lease_id]});
    let outcome = transact(&broker, &body).await;
    assert!(outcome.success && outcome.error.is_none(), "{outcome:?}");
    let told: Vec<(usize, &str, bool)> = outcome
        .results
        .iter()
        .map(|result| match result {
            TransactionResult::Push { index, queue_name, success, .. } => {
                (*index, queue_name.as_str(), *success)
            }
            TransactionResult::Ack { index, success, .. } => (*index, "ack", *success),
        })
        .collect();
    assert_eq!(told, [(0, "target", true), (1, "target", true), (2, "ack", true), (3, "other", true)]);
    let TransactionResult::Push { message_id, transaction_id, duplicate, partition_id, .. } =
        &outcome.results[0]
    else {
        panic!("a push")
    };
    let first = &drain(&broker, "target", "a", "check").await[0];
    assert_eq!((&first.id, &first.partition_id), (message_id, partition_id));
    assert_eq!((transaction_id.as_str(), *duplicate), ("one", false));
    assert_eq!(data(&broker, named("target", "b")).await, [2]);
    assert_eq!(data(&broker, named("other", "Default")).await, [3]);
    assert_eq!(data(&broker, any("source").group("g")).await, [1]);
}

#[tokio::test]
async fn half_of_a_transaction_is_never_visible() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "source", "p", 0..40).await;
    push(&broker, "target", "p", 0..1).await;
    let held = pop(&broker, any("source").group("g").batch(40)).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let watching = {
        let done = done.clone();
        async move {
            let text = "select (select sum(head) from queen.heads h join queen.queues q on q.id = h.queue_id
                                where q.name in ('target', 'other'))::bigint - 1
                             - 2 * (select max(cursor) from queen.consumers where consumer_group = 'g')";
            let mut looks = 0;
            while !done.load(Ordering::SeqCst) {
                assert_eq!(number(&sql, text).await, 0, "two pushes for every ack");
                looks += 1;
            }
            looks
        }
    };
    let moving = async {
        for message in &held.messages {
            let body = json!({"operations": [
                push_operation("target", "p", &message.json()), ack_operation(message, "completed"),
                push_operation("other", "p", &message.json())]});
            assert!(transact(&broker, &body).await.success);
        }
        done.store(true, Ordering::SeqCst);
    };
    let (looks, ()) = tokio::join!(watching, moving);
    assert!(looks > 20, "{looks} looks");
    assert_eq!(drain(&broker, "target", "p", "check").await.len(), 41);
}

#[tokio::test]
async fn a_bogus_ack_takes_the_push_back_with_it() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let held = source(&broker).await;
    let mut body = moving(&held.messages[0], &[]);
    let mut bogus = ack_operation(&held.messages[0], "completed");
    bogus["transactionId"] = json!("nobody");
    body["operations"].as_array_mut().unwrap().push(bogus);
    rolled_back(&transact(&broker, &body).await, "nobody");
    nothing_happened(&broker, &held).await;
}

#[tokio::test]
async fn a_required_lease_that_is_not_live_is_named_and_nothing_happens() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let held = source(&broker).await;
    let made_up = format!("{}.1", uuid::Uuid::new_v4());
    for lease in ["not-a-lease", &made_up] {
        let body = moving(&held.messages[0], &[&held.lease_id, lease]);
        rolled_back(&transact(&broker, &body).await, lease);
    }
    nothing_happened(&broker, &held).await;
    travel(&sql, "301 seconds").await;
    let body = moving(&held.messages[0], &[&held.lease_id]);
    rolled_back(&transact(&broker, &body).await, &held.lease_id);
    assert!(pop(&broker, any("target")).await.is_none());
    // Without the lease, a late handler may still commit.
    assert!(transact(&broker, &moving(&held.messages[0], &[])).await.success);
}

#[tokio::test]
async fn an_ack_with_a_dead_lease_or_of_something_committed_rolls_back() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let held = source(&broker).await;
    let mut stale = ack_operation(&held.messages[0], "completed");
    stale["leaseId"] = json!(format!("{}.1", uuid::Uuid::new_v4()));
    let body = json!({"operations": [push_operation("target", "p", &json!(1)), stale]});
    rolled_back(&transact(&broker, &body).await, "lease");
    assert!(ack(&broker, &held.messages[0], Completed).await.success);
    for status in ["failed", "retry", "dlq"] {
        let body = json!({"operations": [
            push_operation("target", "p", &json!(1)), ack_operation(&held.messages[0], status)]});
        rolled_back(&transact(&broker, &body).await, "committed");
    }
    assert!(pop(&broker, any("target")).await.is_none());
    // Completing it again changes nothing and is accepted.
    assert!(transact(&broker, &moving(&held.messages[0], &[])).await.success);
}

#[tokio::test]
async fn an_unknown_operation_fails_the_transaction() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let body = json!({"operations": [push_operation("target", "p", &json!(1)), {"type": "dance"}]});
    rolled_back(&transact(&broker, &body).await, "dance");
    assert!(pop(&broker, any("target")).await.is_none());
}

#[tokio::test]
async fn a_transaction_may_go_through_another_broker_than_the_pop() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    let held = source(&a).await;
    assert!(transact(&b, &moving(&held.messages[0], &[&held.lease_id])).await.success);
    assert_eq!(data(&a, any("target")).await, ["moved needle"]);
    assert_eq!(data(&b, any("source").group("g")).await, [1]);
}

#[tokio::test]
async fn nacks_in_a_transaction_follow_the_same_rules() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "source", json!({"retryLimit": 1})).await;
    push(&broker, "source", "p", 0..2).await;
    for (status, dead) in [("failed", 0), ("failed", 1), ("dlq", 2)] {
        let held = pop(&broker, any("source").group("g")).await.unwrap();
        let outcome =
            transact(&broker, &json!({"operations": [ack_operation(&held.messages[0], status)]})).await;
        assert!(outcome.success, "{outcome:?}");
        assert_eq!(dead_letters(&broker, "source").await.len(), dead);
    }
    let letters = dead_letters(&broker, "source").await;
    assert!(letters.iter().all(|letter| letter.error.as_deref() == Some("said in a transaction")));
    assert!(pop(&broker, any("source").group("g")).await.is_none());
}

#[tokio::test]
async fn several_acks_and_groups_move_together() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "source", "p", 0..3).await;
    push(&broker, "source", "r", 3..5).await;
    let one = pop(&broker, named("source", "p").group("one").batch(3)).await.unwrap();
    let other = pop(&broker, named("source", "p").group("other").batch(3)).await.unwrap();
    let rest = pop(&broker, named("source", "r").group("one").batch(3)).await.unwrap();
    let body = json!({"operations": [
        ack_operation(&one.messages[2], "completed"), ack_operation(&one.messages[0], "completed"),
        ack_operation(&other.messages[0], "completed"), ack_operation(&rest.messages[1], "completed"),
        ack_operation(&one.messages[1], "completed")]});
    let outcome = transact(&broker, &body).await;
    assert!(outcome.success, "{outcome:?}");
    assert_eq!(outcome.results.len(), 5);
    assert!(pop(&broker, any("source").group("one")).await.is_none());
    assert!(ack(&broker, &other.messages[2], Completed).await.lease_released);
}

#[tokio::test]
async fn a_duplicate_in_a_transaction_is_reported_and_not_stored() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let first = push_ids(&broker, "target", "p", &["x"]).await.remove(0);
    let body = json!({"operations": [{"type": "push", "items": [
        {"queue": "target", "partition": "p", "transactionId": "x"},
        {"queue": "target", "partition": "p", "transactionId": "y"},
        {"queue": "target", "partition": "p", "transactionId": "y"}]}]});
    let outcome = transact(&broker, &body).await;
    assert!(outcome.success);
    let told: Vec<(bool, uuid::Uuid)> = outcome
        .results
        .iter()
        .map(|result| match result {
            TransactionResult::Push { duplicate, message_id, .. } => (*duplicate, *message_id),
            TransactionResult::Ack { .. } => panic!("there is no ack"),
        })
        .collect();
    assert_eq!((told[0], told[1].0, told[2]), ((true, first.message_id), false, (true, told[1].1)));
    assert_eq!(drain(&broker, "target", "p", "check").await.len(), 2);
}

#[tokio::test]
async fn after_a_rollback_its_ids_are_as_new_as_before() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let held = source(&broker).await;
    push_ids(&broker, "target", "p", &["before"]).await;
    let mut bogus = ack_operation(&held.messages[0], "completed");
    bogus["leaseId"] = json!(format!("{}.1", uuid::Uuid::new_v4()));
    let items = crate::support::with_ids("target", "p", &["x", "y", "before"]);
    let body = json!({"operations": [{"type": "push", "items": items}, bogus]});
    rolled_back(&transact(&broker, &body).await, "lease");
    // If the hashes of the rolled-back transaction were remembered, or its head believed, one of these would fail.
    let other = engine(db.url()).await;
    assert_eq!(push_ids(&other, "target", "p", &["y"]).await[0].status, Queued);
    let results = push_ids(&broker, "target", "p", &["x", "y", "before"]).await;
    assert!(results.iter().map(|result| result.status).eq([Queued, Duplicate, Duplicate]), "{results:?}");
    let stored: Vec<Value> = drain(&broker, "target", "p", "check").await.iter().map(Message::json).collect();
    assert_eq!(stored, ["before", "y", "x"]);
}

#[tokio::test]
async fn new_partitions_are_remembered_once_their_transaction_is_committed() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let push = push_operation("target", "new", &json!("moved needle"));
    let before = broker.stats().dedup_cache;
    let over = format!("{}.1", uuid::Uuid::new_v4());
    let body = json!({"operations": [push], "requiredLeases": [over]});
    rolled_back(&transact(&broker, &body).await, "lease");
    assert_eq!(broker.stats().dedup_cache.bytes, before.bytes, "a partition that never was");
    assert!(transact(&broker, &json!({"operations": [push]})).await.success);
    let after = broker.stats().dedup_cache;
    assert!(after.bytes > before.bytes);
    push_ids(&broker, "target", "new", &["y"]).await;
    assert_eq!(broker.stats().dedup_cache.hits, after.hits + 1, "all of it is known");
}

#[tokio::test]
async fn a_commit_with_a_lost_answer_is_reported_as_success_and_executed_once() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    let held = source(&broker).await;
    proxy.cut_before_reply(Some(b"commit"));
    let outcome = transact(&broker, &moving(&held.messages[0], &[&held.lease_id])).await;
    assert_eq!(proxy.replies_withheld(), 1, "it was not the commit that lost its answer");
    assert!(outcome.success, "{outcome:?}");
    assert_eq!(drain(&broker, "target", "p", "check").await.len(), 1, "pushed once");
    assert_eq!(data(&broker, any("target")).await, ["moved needle"]);
    assert_eq!(data(&broker, any("source").group("g")).await, [1]);
}

/// Transaction numbers that left no trace on disk are assigned again after a crash. The commit of another transaction
/// must not be taken for this one.
#[tokio::test]
async fn what_became_of_a_commit_is_not_asked_by_number_after_a_crash() {
    let mut cluster = cluster().await;
    let proxy = Proxy::to_postgres(&cluster.url()).await;
    let broker = engine(proxy.url()).await;
    let held = source(&broker).await;
    proxy.cut_before_reply(Some(b"commit"));
    // The engine must not notice the crash earlier.
    proxy.refuse(true);
    let body = moving(&held.messages[0], &[&held.lease_id]);
    let text = body.to_string();
    let parsed = TransactionBody::parse(text.as_bytes()).unwrap();
    let crash = async {
        eventually("the answer is lost", async || (proxy.replies_withheld() == 1).then_some(())).await;
        cluster.restart_immediate().await;
        proxy.refuse(false);
    };
    let (outcome, ()) = tokio::join!(broker.transaction(&parsed, None), crash);
    assert!(outcome.is_err(), "told as known: {outcome:?}");
    // It was committed, as sending it again shows: its lease has ended.
    rolled_back(&transact(&broker, &body).await, "lease");
    assert_eq!(drain(&broker, "target", "p", "check").await.len(), 1);
}

#[tokio::test]
async fn a_transaction_whose_connection_breaks_before_its_commit_is_done_once() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    let held = source(&broker).await;
    // Loses the response to the push inside the transaction, then that to its `begin`.
    for (target, pattern) in [("first", "moved needle"), ("second", "begin")] {
        proxy.cut_before_reply(Some(pattern.as_bytes()));
        let body = json!({"operations": [push_operation(target, "p", &json!("moved needle"))]});
        let outcome = transact(&broker, &body).await;
        assert!(outcome.success, "{outcome:?}");
        assert_eq!(drain(&broker, target, "p", "check").await.len(), 1, "{target}");
    }
    assert_eq!(proxy.replies_withheld(), 2);
    assert!(ack(&broker, &held.messages[0], Completed).await.success);
}

#[tokio::test]
async fn a_lost_commit_is_settled_even_on_the_only_connection() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine_with(Config { connections: 1, ..config(proxy.url()) }).await;
    let held = source(&broker).await;
    proxy.cut_before_reply(Some(b"commit"));
    let body = moving(&held.messages[0], &[]);
    let outcome = timeout(Duration::from_secs(5), transact(&broker, &body)).await;
    assert!(outcome.expect("it is answered").success);
    assert_eq!(drain(&broker, "target", "p", "check").await.len(), 1);
}

#[tokio::test]
async fn transactions_at_once_on_the_same_partitions_all_succeed() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push(&a, "target", "a", 0..1).await;
    push(&a, "target", "b", 0..1).await;
    let transactions = (0..16).map(|n| {
        let broker = if n % 2 == 0 { a.clone() } else { b.clone() };
        async move {
            // Pushes to the two partitions in opposite orders, which would deadlock if they were locked
            // in the order of the request.
            let (first, second) = if n % 4 < 2 { ("a", "b") } else { ("b", "a") };
            let body = json!({"operations": [
                push_operation("target", first, &json!(n)), push_operation("target", second, &json!(n))]});
            transact(&broker, &body).await.success
        }
    });
    assert!(at_once(transactions).await.into_iter().all(|success| success));
    for partition in ["a", "b"] {
        assert_eq!(drain(&a, "target", partition, "check").await.len(), 17);
    }
}

#[tokio::test]
async fn a_transaction_survives_the_deletion_of_its_target_behind_the_brokers_back() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let held = source(&broker).await;
    push(&broker, "target", "p", 0..1).await;
    sql.batch_execute("delete from queen.queues where name = 'target'").await.unwrap();
    assert!(transact(&broker, &moving(&held.messages[0], &[&held.lease_id])).await.success);
    assert_eq!(data(&broker, any("target")).await, ["moved needle"]);
}
