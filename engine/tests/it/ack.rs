//! The acknowledgement rules of the contract, one test each.

use queen_engine::Engine;
use queen_protocol::AckStatus::{Completed, Dlq, Failed, Retry};
use queen_protocol::{AckItem, AckResult, PopRequest};
use queen_testkit::{Proxy, database};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    Ask, Message, Popped, ack, ack_all, ack_items, ack_of, any, at_once, complete, config, configure, data,
    dead_letters, drain, engine, engine_with, lane, leaseless, named, numbers, pop, push, push_ids, travel,
};

/// Five numbered messages of one partition, popped together by a named group.
pub async fn five(broker: &Engine) -> Popped {
    push(broker, "q", "p", 0..5).await;
    pop(broker, any("q").group("g").batch(5)).await.unwrap()
}

/// The messages that are left for the group.
pub async fn next(broker: &Engine) -> Vec<Value> {
    data(broker, named("q", "p").group("g").batch(100)).await
}

pub fn all_succeed(results: &[AckResult]) {
    assert!(results.iter().all(|result| result.success && result.error.is_none()), "{results:?}");
}

#[tokio::test]
async fn the_last_ack_finishes_everything_before_it_and_ends_the_lease() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let result = ack(&broker, &popped.messages[4], Completed).await;
    assert!(result.success && result.lease_released && !result.noop && !result.dlq, "{result:?}");
    assert_eq!((result.queue_name.as_deref(), result.partition_name.as_deref()), (Some("q"), Some("p")));
    push(&broker, "q", "p", 5..6).await;
    assert_eq!(next(&broker).await, [5]);
}

#[tokio::test]
async fn a_partial_ack_keeps_the_lease_and_the_rest_comes_back_when_it_ends() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let popped = five(&broker).await;
    let result = ack(&broker, &popped.messages[1], Completed).await;
    assert!(result.success && !result.lease_released, "{result:?}");
    assert!(next(&broker).await.is_empty(), "still leased");
    travel(&sql, "301 seconds").await;
    let rest = pop(&broker, named("q", "p").group("g").batch(100)).await.unwrap();
    assert_eq!(rest.data(), [2, 3, 4]);
    assert!(rest.messages.iter().all(|message| message.retry_count == 0), "running out costs nothing");
}

#[tokio::test]
async fn an_ack_out_of_order_never_takes_the_cursor_back() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let popped = five(&broker).await;
    assert!(ack(&broker, &popped.messages[3], Completed).await.success);
    let earlier = ack(&broker, &popped.messages[1], Completed).await;
    assert!(earlier.success && earlier.noop && !earlier.lease_released, "{earlier:?}");
    // The same in one call, in any order of the items.
    let both = [ack_of(&popped.messages[2], Completed), ack_of(&popped.messages[0], Completed)];
    all_succeed(&ack_items(&broker, both.to_vec()).await);
    travel(&sql, "301 seconds").await;
    assert_eq!(next(&broker).await, [4]);
}

#[tokio::test]
async fn what_is_committed_can_be_completed_again_and_not_taken_back() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    ack(&broker, &popped.messages[2], Completed).await;
    for status in [Failed, Retry, Dlq] {
        for item in [ack_of(&popped.messages[1], status), leaseless(&popped.messages[1], status)] {
            let refused = ack_items(&broker, vec![item]).await.remove(0);
            let text = refused.error.clone().unwrap_or_default();
            assert!(!refused.success && text.contains("committed") && !refused.dlq, "{refused:?}");
        }
    }
    let again = ack(&broker, &popped.messages[1], Completed).await;
    assert!(again.success && again.noop, "{again:?}");
    // A refused acknowledgement does not affect the others of its call.
    let mixed = ack_all(&broker, &popped.messages[1..], &[Failed, Completed, Completed, Completed]).await;
    assert!(mixed.iter().map(|result| result.success).eq([false, true, true, true]), "{mixed:?}");
    assert!(mixed[3].lease_released && !mixed[3].noop && mixed[1].noop);
    assert!(dead_letters(&broker, "q").await.is_empty());
}

#[tokio::test]
async fn an_ack_sent_twice_is_done_twice_also_when_the_first_ended_the_lease() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    complete(&broker, &popped).await;
    let again = ack_all(&broker, &popped.messages, &[Completed; 5]).await;
    all_succeed(&again);
    assert!(again.iter().all(|result| result.noop));
}

#[tokio::test]
async fn an_unknown_message_is_refused_and_harms_neither_lease_nor_neighbours() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let mut items: Vec<AckItem> = popped.messages[..2].iter().map(|m| ack_of(m, Completed)).collect();
    items.insert(1, AckItem { transaction_id: "nobody".to_owned(), ..items[0].clone() });
    for status in [Completed, Failed] {
        items[1].status = status;
        let results = ack_items(&broker, items.clone()).await;
        let text = results[1].error.clone().unwrap_or_default();
        assert!(text.contains("Message not found") && text.contains("unresolv"), "{text}");
        assert!(results.iter().map(|result| result.success).eq([true, false, true]), "{results:?}");
        assert!(results.iter().all(|result| !result.lease_released));
    }
    let alone = ack_items(&broker, vec![items[1].clone()]).await;
    assert!(!alone[0].success);
    assert!(ack(&broker, &popped.messages[4], Completed).await.lease_released, "the lease is still ours");
}

#[tokio::test]
async fn an_unknown_partition_is_an_unknown_message() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    for lease_id in [None, Some(popped.lease_id.clone())] {
        let item =
            AckItem { partition_id: Uuid::new_v4(), lease_id, ..ack_of(&popped.messages[0], Completed) };
        let result = ack_items(&broker, vec![item]).await.remove(0);
        assert!(result.error.unwrap_or_default().contains("Message not found"));
    }
}

#[tokio::test]
async fn without_a_lease_id_an_ack_counts_also_after_the_lease_has_run_out() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let popped = five(&broker).await;
    travel(&sql, "301 seconds").await;
    let stale = ack(&broker, &popped.messages[1], Completed).await;
    assert!(!stale.success);
    assert!(stale.error.unwrap_or_default().contains("Invalid or expired lease"));
    let late = ack_items(&broker, vec![leaseless(&popped.messages[1], Completed)]).await.remove(0);
    assert!(late.success && !late.noop, "{late:?}");
    assert_eq!(next(&broker).await, [2, 3, 4]);
    // By now the group has leased the rest again; a late handler may still commit.
    let later = ack_items(&broker, vec![leaseless(&popped.messages[2], Completed)]).await.remove(0);
    assert!(later.success, "{later:?}");
}

#[tokio::test]
async fn a_lease_that_was_taken_over_is_refused_whole_and_nothing_moves() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let old = five(&broker).await;
    travel(&sql, "301 seconds").await;
    let new = pop(&broker, named("q", "p").group("g").batch(2)).await.unwrap();
    assert_eq!(new.data(), [0, 1]);
    for status in [Completed, Failed, Retry, Dlq] {
        let results = ack_all(&broker, &old.messages, &[status; 5]).await;
        for result in results {
            assert!(!result.success && !result.lease_released && !result.dlq, "{result:?}");
            assert!(result.error.unwrap_or_default().contains("Invalid or expired lease"));
        }
    }
    assert!(dead_letters(&broker, "q").await.is_empty());
    assert!(ack(&broker, &new.messages[1], Completed).await.lease_released, "the new holder is undisturbed");
    assert_eq!(next(&broker).await, [2, 3, 4]);
}

#[tokio::test]
async fn a_lease_text_that_is_not_ours_is_refused() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let made_up = Uuid::new_v4().to_string();
    for lease in ["not-a-lease", &made_up, &format!("{made_up}.1"), "🐝"] {
        let item = AckItem { lease_id: Some(lease.to_owned()), ..ack_of(&popped.messages[4], Completed) };
        let refused = ack_items(&broker, vec![item]).await.remove(0);
        assert!(!refused.success, "{lease}");
        assert!(refused.error.unwrap_or_default().contains("Invalid or expired lease"), "{lease}");
    }
    assert!(ack(&broker, &popped.messages[4], Completed).await.lease_released);
}

#[tokio::test]
async fn good_and_bad_leases_in_one_call_are_judged_apart() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let items = vec![
        AckItem { lease_id: Some(Uuid::new_v4().to_string()), ..ack_of(&popped.messages[4], Completed) },
        ack_of(&popped.messages[1], Completed),
        leaseless(&popped.messages[0], Completed),
    ];
    let results = ack_items(&broker, items).await;
    assert!(results.iter().map(|result| result.success).eq([false, true, true]), "{results:?}");
    assert!(ack(&broker, &popped.messages[2], Completed).await.success);
}

#[tokio::test]
async fn one_call_may_acknowledge_many_partitions() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for partition in ["a", "b", "c"] {
        push(&broker, "q", partition, 0..3).await;
    }
    let popped = pop(&broker, PopRequest { partitions: 3, ..any("q").group("g").batch(9) }).await.unwrap();
    let last: Vec<Message> = popped.messages.iter().filter(|m| m.json() == 2).cloned().collect();
    let results = ack_all(&broker, &last, &[Completed, Retry, Completed]).await;
    all_succeed(&results);
    let mut names: Vec<_> = results.iter().filter_map(|result| result.partition_name.as_deref()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
    // The partition whose last message was nacked is delivered again completely, because no
    // message of it was acknowledged.
    let again = pop(&broker, PopRequest { partitions: 3, ..any("q").group("g").batch(9) }).await.unwrap();
    assert_eq!((again.partitions_claimed, again.messages.len()), (1, 3));
}

#[tokio::test]
async fn an_ack_may_go_through_another_broker_or_the_same_after_a_restart() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push_ids(&a, "q", "p", &["chosen", "too"]).await;
    push(&a, "q", "p", 0..4).await;
    let popped = pop(&a, any("q").group("g").batch(6)).await.unwrap();
    // A broker that has not served the messages finds both ids of clients and generated ones.
    assert!(ack(&b, &popped.messages[0], Completed).await.success);
    let results = ack_all(&b, &popped.messages[1..4], &[Completed, Completed, Failed]).await;
    all_succeed(&results);
    assert!(results.iter().all(|result| result.lease_released));
    let popped = crate::support::pop_soon(&a, &any("q").group("g").batch(6)).await;
    assert_eq!(popped.data(), [1, 2, 3]);
    for broker in [a, b] {
        broker.stop().await;
    }
    let reborn = engine(db.url()).await;
    let unknown = AckItem { transaction_id: "nobody".to_owned(), ..ack_of(&popped.messages[0], Completed) };
    assert!(!ack_items(&reborn, vec![unknown]).await[0].success);
    assert!(ack(&reborn, &popped.messages[2], Completed).await.lease_released);
    assert!(next(&reborn).await.is_empty());
}

#[tokio::test]
async fn an_id_that_stands_in_the_log_twice_means_the_unread_one() {
    let db = database().await;
    let (a, sql) = (engine(db.url()).await, db.client().await);
    push_ids(&a, "q", "p", &["x"]).await;
    complete(&a, &pop(&a, any("q").group("g")).await.unwrap()).await;
    travel(&sql, "2 hours").await;
    push_ids(&a, "q", "p", &["x", "y"]).await;
    let popped = pop(&a, named("q", "p").group("g").batch(2)).await.unwrap();
    let b = engine(db.url()).await;
    let result = ack(&b, &popped.messages[0], Completed).await;
    assert!(result.success && !result.noop, "{result:?}");
    assert!(ack(&b, &popped.messages[1], Completed).await.lease_released);
}

#[tokio::test]
async fn single_acks_of_one_lease_at_once_are_merged() {
    let db = database().await;
    // Long enough for the acknowledgements to collect.
    let settings = queen_engine::Config { linger: std::time::Duration::from_millis(20), ..config(db.url()) };
    let broker = engine_with(settings).await;
    push(&broker, "q", "p", 0..100).await;
    let popped = pop(&broker, any("q").group("g").batch(100)).await.unwrap();
    let before = lane(&broker, "ack");
    let acks = popped.messages.iter().cloned().map(|message| {
        let broker = broker.clone();
        async move { ack(&broker, &message, Completed).await }
    });
    let results = at_once(acks).await;
    all_succeed(&results);
    assert!(results.iter().any(|result| result.lease_released));
    let after = lane(&broker, "ack");
    assert_eq!(after.entries - before.entries, 100);
    assert!(after.flights - before.flights <= 10, "{} flights", after.flights - before.flights);
    assert!(next(&broker).await.is_empty());
}

#[tokio::test]
async fn an_ack_with_a_lost_answer_is_reported_as_success() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    push(&broker, "q", "p", 0..2).await;
    let popped = pop(&broker, any("q").group("needle").batch(2)).await.unwrap();
    proxy.cut_before_reply(Some(b"needle"));
    let result = ack(&broker, &popped.messages[1], Completed).await;
    assert_eq!(proxy.replies_withheld(), 1);
    assert!(result.success, "{result:?}");
    assert!(pop(&broker, any("q").group("needle")).await.is_none());
    // The broker knows as well that the lease has ended.
    push(&broker, "q", "p", 2..3).await;
    assert_eq!(data(&broker, any("q").group("needle")).await, [2]);
}

#[tokio::test]
async fn groups_do_not_touch_each_other() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    push(&broker, "q", "p", 0..5).await;
    let first = pop(&broker, any("q").group("first").batch(5)).await.unwrap();
    let second = pop(&broker, any("q").group("second").batch(2)).await.expect("leases are per group");
    let queue_mode = pop(&broker, any("q").batch(5)).await.expect("queue mode is a group too");
    let statuses = [Completed, Dlq, Completed, Completed, Completed];
    all_succeed(&ack_all(&broker, &first.messages, &statuses).await);
    ack(&broker, &queue_mode.messages[0], Retry).await;
    // A lease of one group is not valid in another.
    let foreign = AckItem { group: "second".to_owned(), ..ack_of(&first.messages[4], Completed) };
    assert!(!ack_items(&broker, vec![foreign]).await[0].success);
    complete(&broker, &second).await;
    let letters = dead_letters(&broker, "q").await;
    assert_eq!((letters.len(), letters[0].group.as_str()), (1, "first"));
    assert_eq!(data(&broker, any("q").group("second").batch(9)).await, numbers(2..5));
    assert_eq!(data(&broker, any("q").batch(9)).await, numbers(0..5));
    assert!(pop(&broker, any("q").group("first")).await.is_none());
    broker.delete_group("first", None, true).await.unwrap();
    assert_eq!(drain(&broker, "q", "p", "first").await.len(), 5);
    assert!(pop(&broker, any("q").group("second")).await.is_none(), "still leased");
}

#[tokio::test]
async fn an_ack_by_a_group_that_never_read_completes_up_to_there() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let item = AckItem { group: "stranger".to_owned(), ..leaseless(&popped.messages[2], Completed) };
    assert!(ack_items(&broker, vec![item]).await[0].success);
    assert_eq!(data(&broker, any("q").group("stranger").batch(9)).await, numbers(3..5));
}
