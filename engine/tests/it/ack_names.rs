//! Which message an acknowledgement applies to if its transaction id occurs in a partition more than once, and what a refused one
//! leaves behind.

use queen_engine::Engine;
use queen_protocol::AckItem;
use queen_protocol::AckStatus::{self, Completed, Dlq, Failed, Retry};
use queen_testkit::database;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::*;

/// Pushes messages whose ids may repeat, and leases the first `batch` of them.
async fn leased(broker: &Engine, ids: &[&str], batch: u32) -> Popped {
    configure(broker, "q", json!({"dedupWindowSeconds": 0})).await;
    for id in ids {
        push_ids(broker, "q", "p", &[id]).await;
    }
    let popped = pop(broker, named("q", "p").group("g").batch(batch)).await.unwrap();
    assert_eq!(popped.messages.len(), batch as usize);
    popped
}

/// With its message id, as our clients acknowledge it.
fn by_id(message: &Message, status: AckStatus) -> AckItem {
    AckItem { message_id: Some(message.id), ..ack_of(message, status) }
}

/// The messages that are delivered after the lease has expired.
async fn left(broker: &Engine, sql: &Client) -> Vec<Value> {
    travel(sql, "301 seconds").await;
    data(broker, named("q", "p").group("g").batch(100)).await
}

#[tokio::test]
async fn an_ack_under_a_lease_moves_nothing_behind_its_end() {
    let db = database().await;
    let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    let popped = leased(&a, &["x", "y", "x", "z"], 2).await;
    assert!(ack(&a, &popped.messages[0], Completed).await.success);
    for broker in [&b, &a] {
        // Sent again, it must not apply to the next message with this id, which was not delivered.
        let again = ack(broker, &popped.messages[0], Completed).await;
        assert!(again.success && again.noop && !again.lease_released, "{again:?}");
        for status in [Failed, Retry, Dlq] {
            let refused = ack(broker, &popped.messages[0], status).await;
            assert!(!refused.success && !refused.lease_released && !refused.dlq, "{refused:?}");
        }
        let unknown = AckItem { transaction_id: "z".to_owned(), ..ack_of(&popped.messages[0], Completed) };
        let refused = ack_items(broker, vec![unknown]).await.remove(0);
        assert!(refused.error.unwrap_or_default().contains("Message not found"), "z was not delivered");
    }
    assert_eq!(left(&b, &sql).await, ["y", "x", "z"]);
    assert!(dead_letters(&b, "q").await.is_empty());
}

#[tokio::test]
async fn by_its_transaction_id_alone_the_first_message_in_the_lease_is_meant() {
    let db = database().await;
    let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    let popped = leased(&a, &["x", "y", "x"], 3).await;
    assert!(ack(&a, &popped.messages[0], Completed).await.success);
    for broker in [&b, &a] {
        let again = ack(broker, &popped.messages[2], Completed).await;
        assert!(again.success && again.noop && !again.lease_released, "{again:?}");
        // Nor does the second one apply to another message because the first is in the same call.
        let twice = [ack_of(&popped.messages[0], Completed), ack_of(&popped.messages[2], Completed)];
        let twice = ack_items(broker, twice.to_vec()).await;
        assert!(twice.iter().all(|result| result.noop && !result.lease_released), "{twice:?}");
    }
    assert_eq!(left(&a, &sql).await, ["y", "x"]);
}

#[tokio::test]
async fn an_id_that_was_settled_before_the_lease_means_the_message_in_the_lease() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    configure(&a, "q", json!({"dedupWindowSeconds": 0})).await;
    // All in one segment, so that a search finds the first `x` first.
    push_ids(&a, "q", "p", &["x", "y", "x"]).await;
    for id in ["x", "y", "x"] {
        let popped = pop(&a, named("q", "p").group("g")).await.unwrap();
        assert_eq!(popped.data(), [id]);
        assert!(ack(&b, &popped.messages[0], Completed).await.lease_released, "{id}");
    }
}

#[tokio::test]
async fn an_ack_after_its_lease_does_not_pass_for_an_earlier_message_with_this_id() {
    let db = database().await;
    let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    complete(&a, &leased(&a, &["x", "y", "x"], 1).await).await;
    let popped = pop(&a, named("q", "p").group("g").batch(2)).await.unwrap();
    travel(&sql, "301 seconds").await;
    for broker in [&b, &a] {
        let late = ack(broker, &popped.messages[1], Completed).await;
        assert_eq!(late.error.as_deref(), Some("Invalid or expired lease"));
    }
    let again = pop(&b, named("q", "p").group("g").batch(2)).await.unwrap();
    assert_eq!(again.data(), ["y", "x"]);
    complete(&b, &again).await;
    // Both messages with this id are completed by now.
    for broker in [&b, &a] {
        let late = ack(broker, &popped.messages[1], Completed).await;
        assert!(late.success && late.noop, "{late:?}");
    }
}

#[tokio::test]
async fn a_message_deleted_after_its_lease_leaves_its_id_to_no_other_in_that_lease() {
    let db = database().await;
    let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    let popped = leased(&a, &["x", "y", "x", "z"], 3).await;
    travel(&sql, "301 seconds").await;
    assert!(a.delete_message(popped.messages[0].partition_id, "x").await.unwrap());
    let late = ack_items(&b, vec![leaseless(&popped.messages[0], Completed)]).await.remove(0);
    assert!(late.success && late.noop, "{late:?}");
    assert_eq!(left(&b, &sql).await[0], "y", "it was not acknowledged");
}

#[tokio::test]
async fn a_lease_that_retention_has_cut_into_keeps_its_beginning() {
    for settled_before in [false, true] {
        let db = database().await;
        let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
        let popped = leased(&a, &["x", "y", "x", "z"], 4).await;
        sql.batch_execute("update queen.heads set tail = 1").await.unwrap();
        if settled_before {
            let second = ack(&b, &popped.messages[1], Completed).await;
            assert!(second.success && !second.noop, "{second:?}");
        }
        let first = ack(&b, &popped.messages[0], Completed).await;
        assert!(first.success && first.noop, "{first:?}");
        let left = left(&b, &sql).await;
        assert_eq!(left.first().unwrap(), if settled_before { "x" } else { "y" }, "it was not acknowledged");
    }
}

#[tokio::test]
async fn a_message_id_decides_between_messages_with_one_transaction_id() {
    for here in [true, false] {
        let db = database().await;
        let (a, sql) = (engine(db.url()).await, db.client().await);
        let popped = leased(&a, &["x", "y", "x", "x"], 3).await;
        let broker = if here { a.clone() } else { engine(db.url()).await };
        let second = ack_items(&broker, vec![by_id(&popped.messages[2], Completed)]).await.remove(0);
        assert!(second.success && !second.noop && second.lease_released, "{second:?}");
        let first = ack_items(&broker, vec![by_id(&popped.messages[0], Completed)]).await.remove(0);
        assert!(first.success && first.noop, "{first:?}");
        assert_eq!(left(&broker, &sql).await, ["x"]);
    }
}

#[tokio::test]
async fn a_message_id_that_disagrees_with_the_transaction_id_refuses_its_item_alone() {
    for here in [true, false] {
        let db = database().await;
        let (a, sql) = (engine(db.url()).await, db.client().await);
        let popped = leased(&a, &["x", "y", "x", "x"], 3).await;
        let broker = if here { a.clone() } else { engine(db.url()).await };
        let last = pop(&a, named("q", "p").group("other").batch(4)).await.unwrap().messages.remove(3);
        for wrong in [popped.messages[1].id, Uuid::now_v7(), Uuid::new_v4(), last.id] {
            for status in [Completed, Failed, Retry, Dlq] {
                let wrong = AckItem { message_id: Some(wrong), ..ack_of(&popped.messages[2], status) };
                let results = ack_items(&broker, vec![wrong, by_id(&popped.messages[0], Completed)]).await;
                let text = results[0].error.clone().unwrap_or_default();
                assert!(!results[0].success && text.contains("do not name the same message"), "{text}");
                assert!(results[1].success && !results[1].lease_released, "{results:?}");
            }
        }
        assert_eq!(left(&broker, &sql).await, ["y", "x", "x"]);
    }
}

#[tokio::test]
async fn a_message_that_was_promised_its_id_is_acknowledged_by_it() {
    let db = database().await;
    let sql = db.client().await;
    let busy = crate::deferred::deferring(db.url()).await;
    configure(&busy, "q", json!({"dedupWindowSeconds": 0})).await;
    let ids = ["x", "y", "x", "x"];
    let mut pushed = Vec::new();
    for id in ids {
        pushed.extend(push_ids(&busy, "q", "p", &[id]).await);
    }
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    landed(&a, &pushed[3].ticket).await;
    let popped = pop(&a, named("q", "p").group("g").batch(3)).await.unwrap();
    assert_eq!(popped.messages[2].id, pushed[2].message_id);
    // This broker has to look it up; the other one has served it.
    let one = ack_items(&b, vec![by_id(&popped.messages[1], Completed)]).await.remove(0);
    assert!(one.success && !one.noop && !one.lease_released, "{one:?}");
    for broker in [&a, &b] {
        let wrong =
            AckItem { message_id: Some(pushed[1].message_id), ..ack_of(&popped.messages[2], Completed) };
        let beyond =
            AckItem { message_id: Some(pushed[3].message_id), ..ack_of(&popped.messages[2], Completed) };
        let refused = ack_items(broker, vec![wrong, beyond]).await;
        assert!(refused.iter().all(|result| !result.success), "{refused:?}");
        let first = ack_items(broker, vec![by_id(&popped.messages[0], Completed)]).await.remove(0);
        assert!(first.success && first.noop, "{first:?}");
    }
    let last = ack_items(&a, vec![by_id(&popped.messages[2], Completed)]).await.remove(0);
    assert!(last.success && last.lease_released, "{last:?}");
    assert_eq!(left(&b, &sql).await, ["x"]);
}

#[tokio::test]
async fn a_transaction_takes_message_ids_and_moves_nothing_behind_its_lease() {
    let db = database().await;
    let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    let popped = leased(&a, &["x", "y", "x", "x"], 3).await;
    let body = |operation: &Value| json!({"requiredLeases": [popped.lease_id], "operations": [operation]});
    let operation = |message: &Message, id: Uuid, lease: bool| {
        let mut operation = ack_operation(message, "completed");
        operation["messageId"] = json!(id);
        if lease {
            operation["leaseId"] = json!(popped.lease_id);
        }
        operation
    };
    let wrong = operation(&popped.messages[2], popped.messages[1].id, true);
    let refused = transact(&b, &body(&wrong)).await;
    assert!(!refused.success && refused.error.unwrap().contains("do not name the same message"));
    // Published clients send neither a message id nor a lease. Sent twice, it applies to the first message both times.
    for _ in 0..2 {
        let outcome = transact(&b, &body(&ack_operation(&popped.messages[0], "completed"))).await;
        assert!(outcome.success, "{outcome:?}");
    }
    let second = transact(&b, &body(&operation(&popped.messages[2], popped.messages[2].id, false))).await;
    assert!(second.success, "{second:?}");
    assert_eq!(left(&b, &sql).await, ["x"]);
}

#[tokio::test]
async fn a_broker_of_the_last_release_moves_nothing_behind_a_lease() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let popped = leased(&broker, &["x", "y", "x"], 2).await;
    let lease: Uuid = popped.lease_id.split('.').next().unwrap().parse().unwrap();
    let old = "select statuses[1], cursors[1] from queen.ack(
        array['00000000-0000-7000-8000-000000000001'::uuid], array[(select id from queen.partitions)], array['g'],
        array[$1::uuid], '{0}', '{f}', '{3}', '{f}', '{f}', '{3}', '{f}', '{f}', '{}', '{}', '{}', '{}', false)";
    let row = sql.query_one(old, &[&lease]).await.unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (2, 0));
}

#[tokio::test]
async fn a_refused_ack_leaves_nothing_behind() {
    let db = database().await;
    let (a, b, sql) = (engine(db.url()).await, engine(db.url()).await, db.client().await);
    let popped = leased(&a, &["x", "y"], 2).await;
    let readers = "select count(*) from queen.consumers";
    let groups = "select count(*) from queen.groups";
    let before = (number(&sql, readers).await, number(&sql, groups).await);
    for broker in [&a, &b] {
        for group in [queen_protocol::QUEUE_MODE, "stranger"] {
            for status in [Completed, Failed, Retry, Dlq] {
                let foreign = AckItem { group: group.to_owned(), ..ack_of(&popped.messages[1], status) };
                let mut ghost = foreign.clone();
                (ghost.lease_id, ghost.transaction_id) = (None, "ghost".to_owned());
                let results = ack_items(broker, vec![foreign, ghost]).await;
                assert_eq!(results[0].error.as_deref(), Some("Invalid or expired lease"));
                assert!(results[1].error.as_deref().unwrap_or_default().contains("Message not found"));
            }
        }
    }
    assert_eq!((number(&sql, readers).await, number(&sql, groups).await), before);
    // Therefore messages that the only group has completed can be removed.
    complete(&a, &popped).await;
    let text =
        "select sum(removed)::bigint from queen.expire('completed', array[$1::uuid], array[2::bigint])";
    let gone: i64 = sql.query_one(text, &[&popped.partition_id]).await.unwrap().get(0);
    assert_eq!(gone, 2);
}

#[tokio::test]
async fn an_accepted_ack_of_a_group_that_never_read_counts_in_every_way_it_may_be_sent() {
    let db = database().await;
    let (broker, busy) = (engine(db.url()).await, crate::deferred_acks::deferring(db.url()).await);
    let popped = leased(&broker, &["x", "y", "z"], 3).await;
    let named_as =
        |group: &str| AckItem { group: group.to_owned(), ..leaseless(&popped.messages[1], Completed) };
    assert!(ack_items(&broker, vec![named_as("direct")]).await[0].success);
    let deferred = ack_items(&busy, vec![named_as("deferred")]).await.remove(0);
    landed(&broker, &deferred.ticket).await;
    let mut operation = ack_operation(&popped.messages[1], "completed");
    operation["consumerGroup"] = json!("transacted");
    assert!(transact(&broker, &json!({"operations": [operation]})).await.success);
    for group in ["direct", "deferred", "transacted"] {
        assert_eq!(data(&broker, named("q", "p").group(group).batch(9)).await, ["z"], "{group}");
    }
}
