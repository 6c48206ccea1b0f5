//! Failures: retries and dead letters.

use queen_engine::{DeadLetterFilter, SeekTo};
use queen_protocol::AckStatus::{Completed, Dlq, Failed, Retry};
use queen_protocol::{AckItem, AckStatus};
use queen_testkit::{Proxy, database};
use serde_json::json;

use crate::ack::{all_succeed, five, next};
use crate::support::{
    Ask, ack, ack_all, ack_items, ack_of, any, at_once, config, configure, data, dead_letters, engine,
    engine_with, leaseless, named, number, numbers, pop, push, travel,
};

#[tokio::test]
async fn a_failure_is_not_jumped_over_by_later_completions() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let statuses = [Completed, Failed, Completed, Completed, Completed];
    let results = ack_all(&broker, &popped.messages, &statuses).await;
    all_succeed(&results);
    assert!(results.iter().all(|result| result.lease_released && !result.dlq));
    let again = pop(&broker, any("q").group("g").batch(100)).await.expect("at once");
    assert_eq!(again.data(), [1, 2, 3, 4]);
    let counts: Vec<i32> = again.messages.iter().map(|message| message.retry_count).collect();
    assert_eq!(counts, [1, 0, 0, 0], "the others were only delivered along");
}

#[tokio::test]
async fn a_retry_is_not_jumped_over_and_costs_nothing_however_often() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 1})).await;
    let mut popped = five(&broker).await;
    for _ in 0..6 {
        let statuses = vec![Retry; popped.messages.len()];
        all_succeed(&ack_all(&broker, &popped.messages, &statuses).await);
        popped = pop(&broker, any("q").group("g").batch(5)).await.unwrap();
        assert_eq!(popped.messages.len(), 5);
        assert_eq!(popped.messages[0].retry_count, 0);
    }
    let statuses = [Completed, Retry, Completed, Failed, Completed];
    all_succeed(&ack_all(&broker, &popped.messages, &statuses).await);
    let again = pop(&broker, any("q").group("g").batch(5)).await.unwrap();
    assert_eq!((again.data(), again.messages[0].retry_count), (numbers(1..5), 0));
    assert!(dead_letters(&broker, "q").await.is_empty());
}

#[tokio::test]
async fn a_batch_that_fails_is_charged_once_and_delivered_one_time_more_than_the_limit() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 2})).await;
    let mut popped = five(&broker).await;
    for attempt in 0..3 {
        assert_eq!(popped.messages[0].retry_count, attempt);
        assert_eq!(popped.messages.len(), 5);
        let results = ack_all(&broker, &popped.messages, &[Failed; 5]).await;
        all_succeed(&results);
        assert!(results.iter().all(|result| result.lease_released));
        assert!(results.iter().all(|result| result.dlq == (attempt == 2)), "{results:?}");
        if attempt < 2 {
            popped = pop(&broker, any("q").group("g").batch(5)).await.expect("again, at once");
        }
    }
    assert!(next(&broker).await.is_empty(), "all five are dead letters");
    let letters = dead_letters(&broker, "q").await;
    assert_eq!(letters.len(), 5);
    let mut payloads: Vec<&str> = letters.iter().map(|letter| letter.payload.as_str()).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["0", "1", "2", "3", "4"]);
    for letter in &letters {
        assert_eq!(letter.error.as_deref(), Some(format!("no use for {}", letter.transaction_id).as_str()));
        assert_eq!((letter.attempts, letter.group.as_str(), letter.partition.as_str()), (2, "g", "p"));
        assert!(popped.messages.iter().any(|message| message.id == letter.id));
    }
}

#[tokio::test]
async fn a_failure_of_one_message_is_not_held_against_those_behind_it() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..2).await;
    let both = async || pop(&broker, any("q").group("g").batch(10)).await.unwrap();
    for failures in 0..3 {
        let popped = both().await;
        let counts = (popped.messages[0].retry_count, popped.messages[1].retry_count);
        assert_eq!(counts, (failures, 0));
        assert!(!ack(&broker, &popped.messages[0], Failed).await.dlq);
    }
    // The lease continues for the second message.
    let popped = both().await;
    assert!(ack(&broker, &popped.messages[0], Completed).await.success);
    assert!(!ack(&broker, &popped.messages[1], Failed).await.dlq, "it has never failed before");
    for failures in 1..=3 {
        let popped = both().await;
        assert_eq!((popped.data(), popped.messages[0].retry_count), (numbers(1..2), failures));
        assert_eq!(ack(&broker, &popped.messages[0], Failed).await.dlq, failures == 3);
    }
    let letters = dead_letters(&broker, "q").await;
    assert_eq!((letters.len(), letters[0].payload.as_str(), letters[0].attempts), (1, "1", 3));
}

#[tokio::test]
async fn a_message_that_fails_first_in_the_same_call_in_which_those_before_it_are_done_starts_at_zero() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 1})).await;
    push(&broker, "q", "p", 0..3).await;
    let popped = pop(&broker, any("q").group("g").batch(3)).await.unwrap();
    ack(&broker, &popped.messages[0], Failed).await;
    let popped = pop(&broker, any("q").group("g").batch(3)).await.unwrap();
    let results = ack_all(&broker, &popped.messages, &[Completed, Failed, Failed]).await;
    assert!(results.iter().all(|result| result.success && !result.dlq), "{results:?}");
    let popped = pop(&broker, any("q").group("g").batch(3)).await.unwrap();
    assert_eq!((popped.data(), popped.messages[0].retry_count), (numbers(1..3), 1));
}

#[tokio::test]
async fn only_what_failed_with_the_first_message_each_time_is_dead_with_it() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 2})).await;
    push(&broker, "q", "p", 0..4).await;
    for batch in [2, 4] {
        let popped = pop(&broker, any("q").group("g").batch(batch)).await.unwrap();
        ack_all(&broker, &popped.messages, &vec![Failed; batch as usize]).await;
    }
    // The first two fail for the third time, the rest for the second time.
    let popped = pop(&broker, any("q").group("g").batch(4)).await.unwrap();
    assert_eq!(popped.messages[0].retry_count, 2);
    let results = ack_all(&broker, &popped.messages, &[Failed; 4]).await;
    assert!(results.iter().map(|result| result.dlq).eq([true, true, false, false]), "{results:?}");
    assert!(results.iter().all(|result| result.success && result.lease_released));
    // Their own count starts here.
    for failures in 1..=2 {
        let popped = pop(&broker, any("q").group("g").batch(4)).await.unwrap();
        assert_eq!((popped.data(), popped.messages[0].retry_count), (numbers(2..4), failures));
        let results = ack_all(&broker, &popped.messages, &[Failed; 2]).await;
        assert!(results.iter().all(|result| result.dlq == (failures == 2)), "{results:?}");
    }
    assert!(next(&broker).await.is_empty());
}

#[tokio::test]
async fn what_failed_behind_a_completed_message_keeps_its_own_budget_when_the_first_is_dead() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 1})).await;
    push(&broker, "q", "p", 0..4).await;
    for dead in [false, true] {
        let popped = pop(&broker, any("q").group("g").batch(4)).await.unwrap();
        let results = ack_all(&broker, &popped.messages, &[Failed, Completed, Failed, Completed]).await;
        assert!(results.iter().map(|result| result.dlq).eq([dead, false, false, false]), "{results:?}");
    }
    let popped = pop(&broker, any("q").group("g").batch(4)).await.unwrap();
    assert_eq!((popped.data(), popped.messages[0].retry_count), (numbers(2..4), 1));
}

#[tokio::test]
async fn a_message_that_fails_while_those_before_it_are_not_mentioned_has_a_budget_too() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 2})).await;
    push(&broker, "q", "p", 0..3).await;
    for failures in 0..3 {
        let popped = pop(&broker, any("q").group("g").batch(3)).await.unwrap();
        assert_eq!((popped.data(), popped.messages[0].retry_count), (numbers(0..3), 0));
        assert_eq!(ack(&broker, &popped.messages[2], Failed).await.dlq, failures == 2);
    }
    assert!(next(&broker).await.is_empty());
}

#[tokio::test]
async fn a_lease_that_runs_out_and_a_retry_cost_nothing_of_a_budget_that_was_begun() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"retryLimit": 2})).await;
    let popped = five(&broker).await;
    ack(&broker, &popped.messages[0], Failed).await;
    let popped = pop(&broker, named("q", "p").group("g")).await.unwrap();
    ack(&broker, &popped.messages[0], Retry).await;
    pop(&broker, named("q", "p").group("g")).await.unwrap();
    travel(&sql, "301 seconds").await;
    let popped = pop(&broker, named("q", "p").group("g").batch(5)).await.unwrap();
    assert_eq!(popped.messages[0].retry_count, 1);
}

#[tokio::test]
async fn the_budget_is_whole_again_after_a_dead_letter_and_after_a_finished_batch() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 1})).await;
    push(&broker, "q", "p", 0..3).await;
    let attempt = async |status: AckStatus| {
        let popped = pop(&broker, any("q").group("g")).await.unwrap();
        let result = ack(&broker, &popped.messages[0], status).await;
        (popped.messages[0].json(), popped.messages[0].retry_count, result.dlq)
    };
    assert_eq!(attempt(Failed).await, (json!(0), 0, false));
    assert_eq!(attempt(Failed).await, (json!(0), 1, true));
    assert_eq!(attempt(Failed).await, (json!(1), 0, false));
    assert_eq!(attempt(Completed).await, (json!(1), 1, false));
    assert_eq!(attempt(Failed).await, (json!(2), 0, false));
    assert_eq!(attempt(Failed).await, (json!(2), 1, true));
}

#[tokio::test]
async fn with_the_budget_spent_only_what_failed_is_dead_and_the_rest_is_done() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    let popped = five(&broker).await;
    let statuses = [Failed, Completed, Failed, Completed, Completed];
    let results = ack_all(&broker, &popped.messages, &statuses).await;
    all_succeed(&results);
    assert!(results.iter().map(|result| result.dlq).eq([true, false, true, false, false]));
    assert!(results.iter().all(|result| result.lease_released));
    assert!(next(&broker).await.is_empty());
    assert_eq!(dead_letters(&broker, "q").await.len(), 2);
}

#[tokio::test]
async fn a_message_can_be_declared_dead_whatever_its_budget() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let popped = five(&broker).await;
    let results = ack_all(&broker, &popped.messages, &[Dlq, Completed, Dlq, Failed, Completed]).await;
    all_succeed(&results);
    assert!(results.iter().map(|result| result.dlq).eq([true, false, true, false, false]));
    let again = pop(&broker, any("q").group("g").batch(5)).await.unwrap();
    assert_eq!((again.data(), again.messages[0].retry_count), (numbers(3..5), 1));
    assert_eq!(dead_letters(&broker, "q").await.len(), 2);
}

#[tokio::test]
async fn dead_letters_are_dropped_only_when_both_options_are_off() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for (queue, dead_letter_queue, after_max_retries, kept) in
        [("neither", false, false, 0), ("one", true, false, 1), ("other", false, true, 1)]
    {
        let options = json!({
            "retryLimit": 0, "deadLetterQueue": dead_letter_queue, "dlqAfterMaxRetries": after_max_retries,
        });
        configure(&broker, queue, options).await;
        push(&broker, queue, "p", 0..2).await;
        let popped = pop(&broker, any(queue)).await.unwrap();
        let result = ack(&broker, &popped.messages[0], Failed).await;
        assert!(result.success && result.lease_released, "{queue}: {result:?}");
        assert_eq!(result.dlq, kept == 1, "{queue}");
        assert_eq!(dead_letters(&broker, queue).await.len(), kept, "{queue}");
        assert_eq!(data(&broker, any(queue)).await, [1], "{queue}: the cursor moves past it");
    }
}

#[tokio::test]
async fn a_nack_among_merged_completions_is_neither_lost_nor_jumped_over() {
    let db = database().await;
    let settings = queen_engine::Config { linger: std::time::Duration::from_millis(20), ..config(db.url()) };
    let broker = engine_with(settings).await;
    push(&broker, "q", "p", 0..20).await;
    let popped = pop(&broker, any("q").group("g").batch(20)).await.unwrap();
    let acks = popped.messages.iter().cloned().enumerate().map(|(n, message)| {
        let broker = broker.clone();
        async move { ack(&broker, &message, if n == 10 { Failed } else { Completed }).await }
    });
    at_once(acks).await;
    let again = pop(&broker, named("q", "p").group("g").batch(100)).await.expect("the nack ended the lease");
    assert_eq!((again.data(), again.messages[0].retry_count), (numbers(10..20), 1));
}

#[tokio::test]
async fn an_error_text_postgresql_cannot_store_fails_no_other_item() {
    let db = database().await;
    let settings = queen_engine::Config { linger: std::time::Duration::from_millis(20), ..config(db.url()) };
    let broker = engine_with(settings).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    let mut items = Vec::new();
    for n in 0..10 {
        push(&broker, "q", &format!("p{n}"), 0..1).await;
        let popped = pop(&broker, named("q", &format!("p{n}")).group("g")).await.unwrap();
        let error = Some(if n == 4 { "nul \0 here".to_owned() } else { "plain".to_owned() });
        items.push(AckItem { error, ..ack_of(&popped.messages[0], Failed) });
    }
    let acks = items.into_iter().map(|item| {
        let broker = broker.clone();
        async move { broker.ack(vec![item]).await }
    });
    for (n, results) in at_once(acks).await.into_iter().enumerate().filter(|(n, _)| *n != 4) {
        assert!(results.unwrap()[0].dlq, "ack {n}");
    }
}

#[tokio::test]
async fn a_nack_with_a_lost_answer_counts_once_and_is_reported_as_success() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    push(&broker, "q", "p", 0..1).await;
    for with_lease in [true, false] {
        let group = if with_lease { "needle-leased" } else { "needle-free" };
        let popped = pop(&broker, any("q").group(group)).await.unwrap();
        let message = &popped.messages[0];
        let item = if with_lease { ack_of(message, Failed) } else { leaseless(message, Failed) };
        proxy.cut_before_reply(Some(group.as_bytes()));
        let result = ack_items(&broker, vec![item]).await.remove(0);
        let again = pop(&broker, named("q", "p").group(group)).await.expect("it is free again");
        assert_eq!(again.messages[0].retry_count, 1, "{group}");
        assert!(result.success, "{group}: {result:?}");
    }
    assert_eq!(proxy.replies_withheld(), 2);
}

#[tokio::test]
async fn dead_letters_outlive_their_messages_and_can_be_paged() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"retryLimit": 0, "retentionEnabled": true, "retentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..5).await;
    push(&broker, "other", "p", 0..1).await;
    let popped = pop(&broker, any("q").group("g").batch(5)).await.unwrap();
    for message in &popped.messages {
        assert!(ack_items(&broker, vec![leaseless(message, Dlq)]).await[0].dlq);
    }
    let text = "select sum(removed)::bigint from queen.expire('age', array[$1::uuid], array[5::bigint])";
    let gone: i64 = sql.query_one(text, &[&popped.partition_id]).await.unwrap().get(0);
    assert_eq!(gone, 5);
    assert_eq!(number(&sql, "select count(*) from queen.messages where queue = 'q'").await, 0);

    let filter = DeadLetterFilter { queue: Some("q".into()), limit: 2, offset: 1, ..Default::default() };
    let (page, total) = broker.dead_letters(&filter).await.unwrap();
    assert_eq!(total, 5);
    let payloads: Vec<&str> = page.iter().map(|letter| letter.payload.as_str()).collect();
    assert_eq!(payloads, ["3", "2"], "the newest failure first, one skipped");
    for (filter, expected) in [
        (DeadLetterFilter { group: Some("nobody".into()), ..Default::default() }, 0),
        (DeadLetterFilter { partition: Some("p".into()), group: Some("g".into()), ..Default::default() }, 5),
        (DeadLetterFilter { from: Some(page[0].failed_at), ..Default::default() }, 2),
        (DeadLetterFilter { to: Some(page[0].failed_at), ..Default::default() }, 4),
        (DeadLetterFilter { queue: Some("other".into()), ..Default::default() }, 0),
    ] {
        let (_, total) = broker.dead_letters(&DeadLetterFilter { limit: 1, ..filter.clone() }).await.unwrap();
        assert_eq!(total, expected, "{filter:?}");
    }
}

/// The response was lost, and before the ack is sent again a seek moves the cursor. The ack still reports its effect.
/// It is sent as plain SQL, because only that can be sent twice on purpose.
#[tokio::test]
async fn an_ack_sent_twice_around_a_seek_reports_its_effect() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    five(&broker).await;
    let same = "select statuses[1], cursors[1] from queen.ack(
        array['00000000-0000-7000-8000-000000000001'::uuid], array[(select id from queen.partitions)], array['g'],
        array[null]::uuid[], '{0}', '{t}', '{0}', '{t}', '{f}', '{1}', '{f}', '{t}',
        '{1}', '{t}', '{0}', array['failed once'], false)";
    let row = sql.query_one(same, &[]).await.unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (0, 0), "to be delivered again");
    broker.seek("g", "q", SeekTo::End).await.unwrap();
    let row = sql.query_one(same, &[]).await.unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (4, 0));
}
