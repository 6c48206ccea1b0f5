//! The guarantees of a push: order, ids, deduplication, and independence of its neighbors.

use std::collections::HashSet;
use std::time::Duration;

use queen_protocol::{PushBody, PushResult, PushStatus};
use queen_testkit::database;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::dedup::statuses;
use crate::support::{
    Ask, ack, ack_of, any, at_once, complete, data, disconnected, drain, engine, engine_with, listening,
    named, number, parked, pop, push, push_ids, send, travel, twins,
};

#[tokio::test]
async fn offsets_follow_commits_and_every_producer_keeps_its_order_through_two_brokers() {
    let db = database().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    let producers = (0..6).map(|producer| {
        let broker = if producer % 2 == 0 { a.clone() } else { b.clone() };
        async move {
            let mut told = Vec::new();
            for n in 0..25 {
                let items: Vec<Value> = (0..=n % 3)
                    .map(|item| json!({"queue": "q", "partition": "p", "payload": [producer, n, item]}))
                    .collect();
                let results = send(&broker, &Value::Array(items)).await.unwrap();
                assert!(results.iter().map(|result| result.index).eq(0..=n % 3));
                told.extend(results.into_iter().map(|result| result.message_id));
            }
            told
        }
    });
    let told: Vec<Vec<Uuid>> = at_once(producers).await;

    let sql = db.client().await;
    let rows = sql
        .query(
            "select message_offset, id, created_at, payload::text from queen.messages order by message_offset",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), told.iter().map(Vec::len).sum::<usize>());
    assert!(rows.iter().enumerate().all(|(index, row)| row.get::<_, i64>(0) == index as i64), "dense");
    let ids: Vec<Uuid> = rows.iter().map(|row| row.get(1)).collect();
    assert!(ids.is_sorted_by(|a, b| a.to_string() < b.to_string()), "ids sort like offsets");
    assert!(rows.is_sorted_by_key(|row| row.get::<_, std::time::SystemTime>(2)), "time never runs backwards");
    for (producer, told) in told.iter().enumerate() {
        let own = |row: &&tokio_postgres::Row| row.get::<_, String>(3).starts_with(&format!("[{producer},"));
        let stored: Vec<Uuid> = rows.iter().filter(own).map(|row| row.get(1)).collect();
        assert_eq!(&stored, told, "producer {producer}");
    }
    let delivered: Vec<Uuid> = drain(&b, "q", "p", "g").await.iter().map(|message| message.id).collect();
    assert_eq!(delivered, ids, "delivery order is commit order");
}

#[tokio::test]
async fn time_does_not_run_backwards_in_a_partition_when_the_clock_does() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    travel(&sql, "1 hour").await;
    push(&broker, "q", "p", 0..1).await;
    travel(&sql, "0").await;
    push(&broker, "q", "p", 1..2).await;
    let messages = drain(&broker, "q", "p", "g").await;
    assert!(messages[0].created_at <= messages[1].created_at);
    assert!(messages[0].id.to_string() < messages[1].id.to_string());
}

/// Valid JSON that `jsonb` refuses, and a payload that is merely large.
fn poison() -> Vec<String> {
    vec![
        r#""\u0000""#.to_owned(),
        r#"{"half":"\ud800"}"#.to_owned(),
        "1e200000".to_owned(),
        "1e-200000".to_owned(),
        "9".repeat(200_000),
        format!("{}{}", "[".repeat(10_000), "]".repeat(10_000)),
    ]
}

#[tokio::test]
async fn a_poisonous_neighbor_fails_no_other_item_and_arrives_byte_for_byte() {
    let db = database().await;
    // Long enough for all of them to share a flight.
    let config =
        queen_engine::Config { linger: Duration::from_millis(50), ..crate::support::config(db.url()) };
    let broker = engine_with(config).await;
    push(&broker, "q", "p", 0..1).await;
    let mut payloads = poison();
    payloads.insert(2, r#"{ "plain" :  true }"#.to_owned());
    let pushes = payloads.clone().into_iter().map(|payload| {
        let broker = broker.clone();
        async move {
            let body = format!(r#"{{"items":[{{"queue":"q","partition":"p","payload":{payload}}}]}}"#);
            broker.push(&PushBody::parse(body.as_bytes()).unwrap().items, None).await.unwrap()
        }
    });
    for results in at_once(pushes).await {
        assert_eq!(statuses(&results), [PushStatus::Queued]);
    }
    assert!(crate::support::lane(&broker, "push").flights <= 3, "they did not travel together");
    let stored: HashSet<String> =
        drain(&broker, "q", "p", "g").await[1..].iter().map(|m| m.data.get().to_owned()).collect();
    assert_eq!(stored, payloads.into_iter().collect());

    // A broker that reads them from the log instead of its cache returns the same.
    let young = engine(db.url()).await;
    assert_eq!(drain(&young, "q", "p", "h").await.len(), 8);
}

#[tokio::test]
async fn the_view_of_messages_shows_every_row_and_null_for_what_jsonb_cannot_hold() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let mut payloads = poison();
    payloads.truncate(3);
    payloads.push(r#"{"n":7}"#.to_owned());
    for payload in &payloads {
        let body = format!(r#"{{"items":[{{"queue":"q","partition":"p","payload":{payload}}}]}}"#);
        broker.push(&PushBody::parse(body.as_bytes()).unwrap().items, Some("someone")).await.unwrap();
    }
    let rows = sql
        .query(
            "select payload::text, queue, partition, producer_sub from queen.messages order by message_offset",
            &[],
        )
        .await
        .unwrap();
    let shown: Vec<Option<String>> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(shown, [None, None, None, Some(r#"{"n": 7}"#.to_owned())]);
    let (queue, partition): (String, String) = (rows[3].get(1), rows[3].get(2));
    assert_eq!((queue.as_str(), partition.as_str()), ("q", "p"));
    assert_eq!(rows[3].get::<_, Option<String>>(3).as_deref(), Some("someone"));
}

#[tokio::test]
async fn a_producer_name_that_jsonb_cannot_hold_does_not_break_the_view_for_others() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let body = br#"{"items":[{"queue":"q","partition":"p","payload":1}]}"#;
    let items = PushBody::parse(body).unwrap().items;
    broker.push(&items, Some("nul\0here")).await.unwrap();
    broker.push(&items, Some("plain")).await.unwrap();
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 2);
    let rows = sql.query("select payload::text from queen.messages order by message_offset", &[]).await;
    assert_eq!(rows.expect("the view can be read").len(), 2);
}

#[tokio::test]
async fn a_message_id_is_computed_alike_in_sql_and_by_the_broker() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let mut told = push(&broker, "q", "p", 0..3).await;
    told.extend(push(&broker, "q", "r", 0..2).await);
    for result in &told {
        let text = "select transaction_id, partition_id from queen.messages where id = $1";
        let row = sql.query_one(text, &[&result.message_id]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), result.transaction_id);
        assert_eq!(row.get::<_, Uuid>(1), result.partition_id);
        assert_eq!(result.message_id.get_version_num(), 7);
    }
    // Corner cases of the bits: large offsets, large numbers, the last microsecond of a millisecond.
    for (micros, offset, partition) in [
        (1_700_000_000_123_999_i64, 5_i64, 9_i64),
        (0, (1 << 30) - 1, 0xffff_ffff),
        (1_000, 1 << 30, 1),
        (1, (1 << 42) - 1, 7),
    ] {
        let high = ((micros / 1_000) as u128) << 80 | 0x7 << 76 | ((offset as u128) >> 30) << 64;
        let low = 0b10 << 62 | ((offset as u128) & 0x3fff_ffff) << 32 | partition as u128;
        let text = "select queen.message_id('epoch'::timestamptz + $1 * interval '1 microsecond', $2, $3)";
        let row = sql.query_one(text, &[&(micros as f64), &offset, &partition]).await.unwrap();
        assert_eq!(row.get::<_, Uuid>(0), Uuid::from_u128(high | low), "{micros} {offset} {partition}");
    }
}

#[tokio::test]
async fn three_thousand_messages_in_one_push_arrive_in_order_beside_another_three_thousand() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let pushes = ["a", "b"].map(|producer| {
        let broker = broker.clone();
        async move {
            let item = |n| json!({"queue": "q", "partition": "p", "payload": [producer, n]});
            send(&broker, &(0..3_000).map(item).collect()).await.unwrap()
        }
    });
    let told: Vec<Vec<PushResult>> = at_once(pushes).await;
    let stored = drain(&broker, "q", "p", "g").await;
    assert_eq!(stored.len(), 6_000);
    for (producer, told) in ["a", "b"].iter().zip(&told) {
        let own: Vec<_> = stored.iter().filter(|message| message.json()[0] == *producer).collect();
        assert!(own.iter().enumerate().all(|(n, message)| message.json()[1] == n));
        assert!(own.iter().map(|message| message.id).eq(told.iter().map(|result| result.message_id)));
    }
}

#[tokio::test]
async fn payloads_trace_ids_and_producers_come_back_as_they_were_sent() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let trace = Uuid::new_v4();
    let large = "x".repeat(2 << 20);
    let body = format!(
        r#"{{"items":[
            {{"queue":"q","partition":"p","payload":{{ "b" : 1, "a":1.00 }},"traceId":"{trace}"}},
            {{"queue":"q","partition":"p","payload":null,"traceId":"not-a-uuid"}},
            {{"queue":"q","partition":"p"}},
            {{"queue":"q","partition":"p","payload":"{large}"}}]}}"#
    );
    let results =
        broker.push(&PushBody::parse(body.as_bytes()).unwrap().items, Some("sub \"1\"")).await.unwrap();
    assert_eq!((results[0].trace_id, results[1].trace_id), (Some(trace), None));
    for reader in [broker.clone(), engine(db.url()).await] {
        let group = Uuid::new_v4().to_string();
        let stored = drain(&reader, "q", "p", &group).await;
        let texts: Vec<&str> = stored.iter().map(|message| message.data.get()).collect();
        assert_eq!(texts[..3], [r#"{ "b" : 1, "a":1.00 }"#, "null", "{}"]);
        assert!(texts[3].len() == large.len() + 2);
        assert_eq!((stored[0].trace_id, stored[1].trace_id), (Some(trace), None));
        assert!(stored.iter().all(|message| message.producer_sub.as_deref() == Some("sub \"1\"")));
        assert!(stored.iter().all(|message| message.queue == "q" && message.partition == "p"));
    }
}

#[tokio::test]
async fn names_may_be_anything_people_type() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let long = "ü".repeat(255);
    let bees = "🐝".repeat(255);
    for name in ["", "a b/c:d", "it's \"quoted\" \\ and\ttabbed", "🐝", &long, &bees] {
        push(&broker, name, name, 0..1).await;
        let partition = if name.is_empty() { "Default" } else { name };
        let popped = pop(&broker, named(name, partition).group(name)).await;
        assert_eq!(popped.map(|popped| popped.partition).as_deref(), Some(partition), "{name:?}");
        assert_eq!(data(&broker, any(name)).await, [0], "{name:?}");
    }
}

#[tokio::test]
async fn an_empty_push_answers_nothing() {
    let db = database().await;
    let broker = engine(db.url()).await;
    assert!(broker.push(&[], None).await.unwrap().is_empty());
}

#[tokio::test]
async fn queues_deleted_behind_the_brokers_back_are_simply_new_again() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = (engine(db.url()).await, engine(db.url()).await);
    for broker in [&a, &b] {
        push_ids(broker, "q", "p", &["old"]).await;
    }
    let old = pop(&a, any("q")).await.unwrap();
    assert!(pop(&b, any("q")).await.is_none());
    sql.batch_execute("delete from queen.queues").await.unwrap();

    // The acknowledgement of a removed message is refused, not an error.
    let refused = a.ack(vec![ack_of(&old.messages[0], queen_protocol::AckStatus::Completed)]).await.unwrap();
    assert!(!refused[0].success);
    for (broker, id) in [(&a, "one"), (&b, "two")] {
        let results = push_ids(broker, "q", "p", &["old", id]).await;
        assert_eq!(results[1].status, PushStatus::Queued);
        assert_ne!(results[1].partition_id, old.partition_id);
    }
    for (broker, expected) in [(&b, vec!["old", "one"]), (&a, vec!["two"])] {
        let popped = pop(broker, any("q").batch(2)).await.expect("a message of the new queue");
        assert_eq!(popped.data(), expected);
        complete(broker, &popped).await;
    }
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 3, "old, one, two");
}

#[tokio::test]
async fn a_parked_pop_outlives_the_deletion_of_its_queue() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    for request in [any("q"), named("q", "p")] {
        assert_eq!(data(&broker, request.clone()).await.len(), 1);
        let waiting = parked(&broker, request.wait(Duration::from_secs(10))).await;
        sql.batch_execute("delete from queen.queues").await.unwrap();
        push(&broker, "q", "p", 7..8).await;
        let popped = waiting.answer().await.expect("the new queue's message");
        assert_eq!(popped.data(), [7]);
        ack(&broker, &popped.messages[0], queen_protocol::AckStatus::Retry).await;
    }
}

#[tokio::test]
async fn a_deleted_queue_can_be_pushed_to_at_once_through_any_broker() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    for round in 0..5 {
        push_ids(&a, "q", "p", &["x"]).await;
        assert_eq!(push_ids(&b, "q", "p", &["x"]).await[0].status, PushStatus::Duplicate);
        assert!(a.delete_queue("q").await.unwrap());
        assert_eq!(push_ids(&b, "q", "p", &["x"]).await[0].status, PushStatus::Queued, "round {round}");
        assert_eq!(data(&b, any("q")).await, ["x"]);
        assert_eq!(data(&a, any("q").group("other")).await, ["x"]);
        assert!(b.delete_queue("q").await.unwrap());
    }
    assert!(!a.delete_queue("q").await.unwrap(), "there is none");
}

#[tokio::test]
async fn a_broker_stops_only_when_its_pushes_have_landed() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    listening(&sql, 1).await;
    let pushes = (0..20).map(|_| {
        let broker = broker.clone();
        async move { send(&broker, &json!([{"queue": "q", "partition": "p"}])).await.is_ok() }
    });
    let (accepted, ()) = tokio::join!(at_once(pushes), async {
        tokio::task::yield_now().await;
        broker.stop().await;
    });
    disconnected(&sql).await;
    let accepted = accepted.iter().filter(|accepted| **accepted).count() as i64;
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, accepted + 1);
}
