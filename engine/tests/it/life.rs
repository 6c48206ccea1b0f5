//! The history of a message: where it is, its state in every group, and, if it is traced, what happened when.

use queen_engine::{Engine, MessageLife};
use queen_protocol::AckStatus::{Completed, Dlq, Failed, Retry};
use queen_protocol::PopRequest;
use queen_testkit::database;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::deferred_acks;
use crate::support::*;
use crate::trace::parent;

fn traced(queue: &str, id: &str) -> Value {
    json!({"queue": queue, "partition": "p", "payload": id, "transactionId": id, "traceparent": parent(7)})
}

async fn life(engine: &Engine, partition: Uuid, id: &str) -> MessageLife {
    engine.life(partition, id).await.unwrap().expect("the message is known")
}

/// Each event as one line: what, which group, which attempt.
fn told(life: &MessageLife) -> Vec<String> {
    let line = |event: &queen_engine::Recorded| {
        let group = event.group.as_deref().unwrap_or("-");
        let attempt = event.attempt.map_or("-".to_owned(), |attempt| attempt.to_string());
        format!("{} {group} {attempt}", event.event)
    };
    life.events.iter().map(line).collect()
}

#[tokio::test]
async fn a_failing_message_is_traced_from_its_push_to_its_dead_letter() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 1})).await;
    let pushed = send(&broker, &json!([traced("q", "x"), traced("q", "y")])).await.unwrap();
    let partition = pushed[1].partition_id;
    let fresh = life(&broker, partition, "y").await;
    assert_eq!((fresh.id, fresh.offset), (pushed[1].message_id, 1));
    assert_eq!((fresh.queue.as_str(), fresh.partition.as_str()), ("q", "p"));
    assert_eq!((fresh.trace_parent, fresh.trace_id, fresh.producer_sub), (Some(parent(7)), None, None));
    assert_eq!(fresh.segment, Some((0, 2, 1)));
    assert!(fresh.created_at.is_some() && fresh.groups.is_empty() && fresh.events.is_empty());

    let ask = || any("q").group("g").batch(2);
    let first = pop(&broker, ask()).await.unwrap();
    let now = life(&broker, partition, "y").await;
    let [reader] = &now.groups[..] else { panic!("one group reads") };
    assert!(reader.delivered && !reader.consumed && reader.leased_until.is_some() && reader.dead.is_none());
    ack_all(&broker, &first.messages, &[Completed, Failed]).await;
    let failed = life(&broker, partition, "y").await;
    assert_eq!(failed.groups[0].attempts, 1);
    assert!(failed.groups[0].leased_until.is_none() && failed.groups[0].delivered);
    let second = pop(&broker, ask()).await.unwrap();
    ack_all(&broker, &second.messages, &[Retry]).await;
    let third = pop(&broker, ask()).await.unwrap();
    ack_all(&broker, &third.messages, &[Failed]).await;

    let dead = life(&broker, partition, "y").await;
    assert_eq!(
        told(&dead),
        ["delivered g 1", "failed g 1", "delivered g 2", "retry g 2", "delivered g 2", "dead_letter g 2"]
    );
    assert!(dead.events.is_sorted_by_key(|event| event.at));
    assert!(dead.events[0].at >= dead.created_at.unwrap());
    assert_eq!(dead.events[1].error.as_deref(), Some("no use for y"));
    let reader = &dead.groups[0];
    let letter = reader.dead.as_ref().unwrap();
    assert_eq!((letter.error.as_deref(), letter.attempts), (Some("no use for y"), 1));
    assert!(reader.consumed && reader.delivered);
    assert_eq!(told(&life(&broker, partition, "x").await), ["delivered g 1", "completed g 1"]);
    assert_eq!(broker.life_counts().dropped, 0);
}

#[tokio::test]
async fn groups_live_apart_and_one_that_has_not_come_by_yet_is_named() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let pushed = send(&broker, &json!([traced("q", "x"), traced("q", "y")])).await.unwrap();
    let partition = pushed[0].partition_id;
    let popped = pop(&broker, named("q", "p").group("a").batch(2)).await.unwrap();
    // Completing the last message completes the ones before it.
    ack(&broker, &popped.messages[1], Completed).await;
    let auto = PopRequest { auto_ack: true, ..named("q", "p").group("b") };
    pop(&broker, auto).await.unwrap();
    push(&broker, "q", "other", 0..1).await;
    let sql = db.client().await;
    sql.batch_execute("insert into queen.groups (queue_name, consumer_group) values ('q', 'c')")
        .await
        .unwrap();
    let life = life(&broker, partition, "x").await;
    assert_eq!(told(&life), ["delivered a 1", "completed a 1", "delivered b 1", "completed b -"]);
    let state: Vec<_> =
        life.groups.iter().map(|group| (group.group.as_str(), group.delivered, group.consumed)).collect();
    assert_eq!(state, [("a", true, true), ("b", true, true), ("c", false, false)]);
}

#[tokio::test]
async fn an_untraced_message_has_a_state_and_no_events() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let pushed = push_ids(&broker, "q", "p", &["x"]).await;
    let popped = pop(&broker, any("q")).await.unwrap();
    let leased = life(&broker, pushed[0].partition_id, "x").await;
    assert!(leased.groups[0].delivered && leased.groups[0].leased_until.is_some());
    complete(&broker, &popped).await;
    let done = life(&broker, pushed[0].partition_id, "x").await;
    assert!(done.groups[0].consumed && done.events.is_empty());
    assert_eq!(broker.life_counts().recorded, 0);
}

#[tokio::test]
async fn a_trace_id_is_enough_to_be_traced_and_a_minted_transaction_id_is_found() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let trace = Uuid::now_v7();
    let items = json!([{"queue": "q", "partition": "p", "payload": 1, "traceId": trace}]);
    let pushed = send(&broker, &items).await.unwrap().remove(0);
    let popped = pop(&broker, any("q")).await.unwrap();
    ack(&broker, &popped.messages[0], Dlq).await;
    let life = life(&broker, pushed.partition_id, &pushed.transaction_id).await;
    assert_eq!(life.trace_id, Some(trace.to_string()));
    assert_eq!(told(&life), ["delivered __QUEUE_MODE__ 1", "dead_letter __QUEUE_MODE__ 1"]);
}

#[tokio::test]
async fn a_transaction_makes_parents_and_children() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let pushed = send(&broker, &json!([traced("q", "x"), traced("q", "y")])).await.unwrap();
    push_ids(&broker, "next", "p", &["old"]).await;
    let popped = pop(&broker, any("q").group("g").batch(2)).await.unwrap();
    let body = json!({"operations": [
        ack_operation(&popped.messages[0], "completed"),
        {"type": "push", "items": [
            {"queue": "next", "partition": "p", "payload": 1, "transactionId": "child 1"},
            {"queue": "next", "partition": "p", "payload": 1, "transactionId": "old"},
            {"queue": "after", "partition": "p", "payload": 2, "transactionId": "child 2"}]},
    ]});
    let outcome = transact(&broker, &body).await;
    assert!(outcome.success);
    let parent = life(&broker, pushed[0].partition_id, "x").await;
    assert_eq!(told(&parent), ["delivered g 1", "child - -", "child - -", "completed g 1"]);
    let children: Vec<_> = parent.events.iter().filter_map(|event| event.relation.as_ref()).collect();
    assert!(children.iter().all(|child| child.operation == outcome.transaction_id));
    let mut names: Vec<_> = children
        .iter()
        .map(|child| (child.queue.as_str(), child.partition.as_str(), child.transaction_id.as_str()))
        .collect();
    names.sort_unstable();
    assert_eq!(names, [("after", "p", "child 2"), ("next", "p", "child 1")]);
    for child in children {
        let life = life(&broker, child.partition_id, &child.transaction_id).await;
        assert_eq!((life.id, told(&life)), (child.message_id, vec!["parent - -".to_owned()]));
        let parent = life.events[0].relation.as_ref().unwrap();
        assert_eq!((parent.message_id, parent.transaction_id.as_str()), (pushed[0].message_id, "x"));
        assert_eq!((parent.partition_id, parent.queue.as_str()), (pushed[0].partition_id, "q"));
    }
    assert_eq!(
        told(&life(&broker, pushed[1].partition_id, "y").await),
        ["delivered g 1"],
        "not acknowledged"
    );

    // Rolled back, so it has no effect.
    let bad = json!({"operations": [
        ack_operation(&popped.messages[1], "completed"), push_operation("next", "p", &json!(1)),
        {"type": "ack", "transactionId": "nobody", "partitionId": pushed[0].partition_id}]});
    assert!(!transact(&broker, &bad).await.success);
    assert_eq!(told(&life(&broker, pushed[1].partition_id, "y").await), ["delivered g 1"]);
}

#[tokio::test]
async fn events_outlive_the_log_and_go_with_the_queue_and_with_age() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    let pushed = send(&broker, &json!([traced("q", "x"), traced("r", "x")])).await.unwrap();
    for queue in ["q", "r"] {
        let popped = pop(&broker, any(queue)).await.unwrap();
        complete(&broker, &popped).await;
    }
    let life = life(&broker, pushed[0].partition_id, "x").await;
    // What retention does.
    sql.batch_execute("update queen.heads set tail = head").await.unwrap();
    let rest = self::life(&broker, pushed[0].partition_id, "x").await;
    assert_eq!((rest.id, rest.offset, rest.created_at, rest.segment), (life.id, 0, None, None));
    assert_eq!(told(&rest), ["delivered __QUEUE_MODE__ 1", "completed __QUEUE_MODE__ 1"]);
    assert!(broker.life(pushed[0].partition_id, "never").await.unwrap().is_none());
    assert!(broker.life(Uuid::now_v7(), "x").await.unwrap().is_none());

    assert!(broker.delete_queue("q").await.unwrap());
    assert!(broker.life(pushed[0].partition_id, "x").await.unwrap().is_none());
    assert_eq!(number(&sql, "select count(*) from queen.life_events").await, 2, "those of the other queue");
    let sweep = "select queen.sweep_life(interval '1 hour', 100)::bigint";
    assert_eq!(number(&sql, sweep).await, 0);
    travel(&sql, "61 minutes").await;
    assert_eq!(number(&sql, sweep).await, 2);
}

#[tokio::test]
async fn events_are_written_without_a_request_and_at_the_latest_when_the_broker_stops() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    send(&broker, &json!([traced("q", "x"), traced("q", "y")])).await.unwrap();
    pop(&broker, any("q")).await.unwrap();
    let events = "select count(*) from queen.life_events";
    eventually("it is written", async || (number(&sql, events).await == 1).then_some(())).await;
    pop(&broker, any("q").group("g")).await.unwrap();
    broker.stop().await;
    assert_eq!(number(&sql, events).await, 2);
}

/// A queue that is deleted meanwhile takes its events with it, and no others.
#[tokio::test]
async fn an_event_of_a_partition_that_is_gone_does_not_cost_its_neighbours() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    let pushed = send(&broker, &json!([traced("q", "x"), traced("r", "x")])).await.unwrap();
    // No event can be written while this is held.
    sql.batch_execute("begin; lock table queen.life_events in exclusive mode").await.unwrap();
    for queue in ["q", "r"] {
        pop(&broker, any(queue)).await.unwrap();
    }
    sql.batch_execute("delete from queen.queues where name = 'r'; commit").await.unwrap();
    assert_eq!(told(&life(&broker, pushed[0].partition_id, "x").await), ["delivered __QUEUE_MODE__ 1"]);
}

/// The broker that executes a deferred acknowledgement need not be the one that delivered the message.
#[tokio::test]
async fn a_deferred_acknowledgement_is_recorded_when_it_is_executed() {
    let db = database().await;
    let busy = deferred_acks::deferring(db.url()).await;
    let pushed = send(&busy, &json!([traced("q", "x"), traced("q", "y")])).await.unwrap();
    let popped = pop(&busy, any("q").group("g").batch(2)).await.unwrap();
    let acked = ack_all(&busy, &popped.messages, &[Completed, Dlq]).await;
    assert_eq!(told(&life(&busy, pushed[0].partition_id, "x").await), ["delivered g 1"]);
    let worker = engine(db.url()).await;
    landed(&worker, &acked[0].ticket).await;
    for (id, end) in [("x", "completed g -"), ("y", "dead_letter g -")] {
        eventually("it is recorded", async || {
            let life = life(&worker, pushed[0].partition_id, id).await;
            (told(&life) == ["delivered g 1", end]).then_some(())
        })
        .await;
    }
}
