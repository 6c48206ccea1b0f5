//! The known defects of the specification's sample SQL, by their numbers in its README: for each, what would go wrong if it were
//! carried over.
//!
//! 4 (the claim of the operation queue) and 9 (an ack deferred with 202) concern deferred operations, which have tests
//! of their own (deferred.rs, deferred_acks.rs). Of 7, this file has order under concurrent pushes.

use std::collections::HashSet;

use queen_protocol::AckStatus::{Completed, Failed};
use queen_protocol::PushBody;
use queen_testkit::database;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    Ask, ack, ack_all, any, at_once, config, configure, data, drain, engine, engine_with, eventually, named,
    number, parked, pop, push, push_ids, travel,
};

#[tokio::test]
async fn defect_1_a_group_that_has_never_read_resolves_a_wildcard_and_only_one_consumer_wins() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push(&a, "q", "p", 0..1).await;
    for round in 0..5 {
        // This group has no consumer row yet, so there is nothing to lock, and still only one pop may get the message.
        let pops = (0..8).map(|n| {
            let broker = if n % 2 == 0 { a.clone() } else { b.clone() };
            let request = any("q").group(&format!("first contact {round}"));
            async move { pop(&broker, request).await.is_some() }
        });
        let served = at_once(pops).await.into_iter().filter(|served| *served).count();
        assert_eq!(served, 1, "round {round}");
    }
}

#[tokio::test]
async fn defect_2_a_fetch_returns_the_batch_and_not_the_partition() {
    let db = database().await;
    let writer = engine(db.url()).await;
    push(&writer, "q", "one segment", 0..1_000).await;
    for n in 0..50 {
        push(&writer, "q", "many segments", n..n + 1).await;
    }
    // A broker that has to read from the log, and one with the messages in its cache.
    for (reader, group) in [(&engine(db.url()).await, "cold"), (&writer, "warm")] {
        for partition in ["one segment", "many segments"] {
            for batch in [1, 7] {
                let request = named("q", partition).group(&format!("{group} {batch}")).batch(batch);
                assert_eq!(data(reader, request).await, (0..batch).map(Value::from).collect::<Vec<_>>());
            }
        }
    }
}

#[tokio::test]
async fn defect_3_two_sessions_never_get_the_same_messages() {
    let db = database().await;
    let brokers = [engine(db.url()).await, engine(db.url()).await, engine(db.url()).await];
    for n in 0..10 {
        push(&brokers[0], "q", &format!("p{n}"), n * 10..n * 10 + 3).await;
    }
    let pops = (0..30).map(|n| {
        let broker = brokers[n % 3].clone();
        async move { data(&broker, any("q").group("g").batch(3)).await }
    });
    let served: Vec<i64> =
        at_once(pops).await.into_iter().flatten().filter_map(|value| value.as_i64()).collect();
    assert_eq!(served.len(), 30, "everything was served");
    assert_eq!(served.iter().collect::<HashSet<_>>().len(), 30, "and nothing twice");
}

#[tokio::test]
async fn defect_5_ids_are_whole_uuids_of_version_7_and_unique() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let mut told = push(&broker, "q", "p", 0..300).await;
    told.extend(push(&broker, "q", "r", 0..300).await);
    let ids: HashSet<_> = told.iter().map(|result| result.message_id).collect();
    assert_eq!(ids.len(), 600);
    for id in &ids {
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122), "{id}");
        assert_eq!(id.simple().to_string().len(), 32);
    }
    let broken = "select count(*) from queen.messages where substr(id::text, 15, 1) <> '7'
                  or substr(id::text, 20, 1) not in ('8', '9', 'a', 'b')";
    assert_eq!(number(&sql, broken).await, 0);
}

#[tokio::test]
async fn defect_6_a_push_that_started_first_and_committed_last_is_not_skipped() {
    let db = database().await;
    let (broker, mut slow) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 1);
    // A session is writing to the partition, so a later push has to wait for its place.
    let transaction = slow.transaction().await.unwrap();
    transaction.execute("select 1 from queen.heads for no key update", &[]).await.unwrap();
    let pushing = {
        let broker = broker.clone();
        async move { push(&broker, "q", "p", 2..3).await }
    };
    let writing = async {
        let waiting = "select count(*) from pg_stat_activity where datname = current_database()
                       and wait_event_type = 'Lock'";
        let sql = db.client().await;
        eventually("the push waits for its turn", async || (number(&sql, waiting).await > 0).then_some(()))
            .await;
        let text = "with written as (update queen.heads set head = head + 1, last_push_at = queen.now()
                                     returning partition_id as id, head, last_push_at)
                    insert into queen.segments
                        (partition_id, base_offset, created_at, extent, count, transactions, frames)
                    select id, head - 1, last_push_at, 1, 1, decode(repeat('ab', 16), 'hex'),
                           '{\"transactionId\":\"first\",\"payload\":1}' from written";
        transaction.execute(text, &[]).await.unwrap();
        assert!(pop(&broker, named("q", "p").group("g")).await.is_none(), "nothing is committed");
        transaction.commit().await.unwrap();
    };
    let (later, ()) = tokio::join!(pushing, writing);
    let messages = drain(&broker, "q", "p", "g").await;
    assert_eq!(messages.iter().map(|m| m.json()).collect::<Vec<_>>(), [1, 2], "both, in commit order");
    assert_eq!(messages[1].id, later[0].message_id);
    assert!(messages[0].id.to_string() < messages[1].id.to_string());
}

#[tokio::test]
async fn defect_6_a_consumer_that_reads_along_misses_nothing_of_many_writers() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    push(&a, "q", "p", 0..1).await;
    let writers = (0..6).map(|writer| {
        let broker = if writer % 2 == 0 { a.clone() } else { b.clone() };
        async move {
            for n in 0..20 {
                push(&broker, "q", "p", writer * 100 + n..writer * 100 + n + 1).await;
            }
        }
    });
    let reading = async {
        let mut seen = Vec::new();
        let request = queen_protocol::PopRequest { auto_ack: true, ..named("q", "p").group("g").batch(7) };
        let until = Instant::now() + std::time::Duration::from_secs(10);
        while seen.len() < 121 && Instant::now() < until {
            if let Some(popped) = pop(&b, request.clone()).await {
                seen.extend(popped.messages.iter().map(|message| message.id));
            }
        }
        seen
    };
    let (_, seen) = tokio::join!(at_once(writers), reading);
    assert_eq!(seen.len(), 121);
    assert!(seen.is_sorted_by(|a, b| a < b), "each once, and none before an earlier one");
}

#[tokio::test]
async fn defect_7_pushes_that_do_not_wait_for_each_other_are_stored_in_the_order_they_were_sent() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    // No push waits for the previous response; some are large, so that they take longer.
    let pushes = (1..200).map(|n| {
        let broker = broker.clone();
        async move {
            let filler = "x".repeat(if n % 10 == 0 { 100_000 } else { 10 });
            let body = format!(
                r#"{{"items":[{{"queue":"q","partition":"p","payload":{{"n":{n},"x":"{filler}"}}}}]}}"#
            );
            broker.push(&PushBody::parse(body.as_bytes()).unwrap().items, None).await.unwrap()
        }
    });
    at_once(pushes).await;
    let stored: Vec<Value> =
        drain(&broker, "q", "p", "g").await[1..].iter().map(|m| m.json()["n"].clone()).collect();
    assert_eq!(stored, (1..200).map(Value::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn defect_8_acknowledging_a_higher_message_first_loses_no_failed_one_below_it() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..5).await;
    let popped = pop(&broker, any("q").group("g").batch(5)).await.unwrap();
    // Within one call the failure counts, wherever it is in the list.
    let messages = [popped.messages[3].clone(), popped.messages[1].clone(), popped.messages[2].clone()];
    ack_all(&broker, &messages, &[Completed, Failed, Completed]).await;
    let again = pop(&broker, any("q").group("g").batch(5)).await.unwrap();
    assert_eq!(again.data(), [0, 1, 2, 3, 4], "what is silent below a failure is not done either");
    // A cursor never moves back.
    ack(&broker, &again.messages[3], Completed).await;
    ack(&broker, &again.messages[0], Completed).await;
    travel(&sql, "301 seconds").await;
    assert_eq!(data(&broker, named("q", "p").group("g").batch(5)).await, [4]);
}

#[tokio::test]
async fn defect_10_one_bad_item_does_not_fail_its_batch() {
    let db = database().await;
    let settings = queen_engine::Config { linger: std::time::Duration::from_millis(30), ..config(db.url()) };
    let broker = engine_with(settings).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    push_ids(&broker, "q", "p", &["a"]).await;
    let waiting = parked(&broker, any("r").wait(std::time::Duration::from_secs(10))).await;
    // Valid JSON that a jsonb cast would refuse, together with duplicates, unknown queues and plain messages.
    let payloads = [r#""\u0000""#, "1e200000", r#""\udead""#, "1", "{}"];
    let pushes = payloads.into_iter().enumerate().map(|(n, payload)| {
        let broker = broker.clone();
        async move {
            let queue = if n % 2 == 0 { "q" } else { "r" };
            let body = format!(
                r#"{{"items":[{{"queue":"{queue}","partition":"p","payload":{payload}}},
                              {{"queue":"q","partition":"p","transactionId":"a"}}]}}"#
            );
            broker.push(&PushBody::parse(body.as_bytes()).unwrap().items, None).await
        }
    });
    for (n, results) in at_once(pushes).await.into_iter().enumerate() {
        let results = results.unwrap_or_else(|error| panic!("push {n}: {error}"));
        assert_eq!(results[0].status, queen_protocol::PushStatus::Queued);
        assert_eq!(results[1].status, queen_protocol::PushStatus::Duplicate);
    }
    assert!(waiting.answer().await.is_some());
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 4);
    assert_eq!(drain(&broker, "r", "p", "g").await.len(), 2);
}
