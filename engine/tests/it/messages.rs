//! Lists of messages: one page of many, newest first, with their states.

use queen_engine::{Engine, MessageFilter, MessageStatus, StoredMessage};
use queen_protocol::AckStatus;
use queen_testkit::database;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{
    Ask, ack, complete, configure, disconnected, engine, named, number, pop, push, push_ids, push_wide, send,
    travel,
};

fn of(queue: &str) -> MessageFilter {
    MessageFilter { queue: Some(queue.to_owned()), limit: 200, ..Default::default() }
}

async fn list(engine: &Engine, filter: &MessageFilter) -> Vec<StoredMessage> {
    let page = engine.messages(filter).await.unwrap();
    assert_eq!(page.looked_until, None);
    page.messages
}

async fn payloads(engine: &Engine, filter: &MessageFilter) -> Vec<String> {
    list(engine, filter).await.into_iter().map(|message| message.payload).collect()
}

/// The ids of all pages one after another, and those of a single list.
async fn paged(engine: &Engine, filter: &MessageFilter, limit: usize) -> (Vec<Uuid>, Vec<Uuid>) {
    let ids =
        |messages: Vec<StoredMessage>| messages.into_iter().map(|message| message.id).collect::<Vec<_>>();
    let whole = ids(list(engine, &MessageFilter { limit: 100_000, ..filter.clone() }).await);
    let mut pages = Vec::new();
    loop {
        let page = list(engine, &MessageFilter { limit, offset: pages.len(), ..filter.clone() }).await;
        if page.is_empty() {
            return (pages, whole);
        }
        pages.extend(ids(page));
    }
}

#[tokio::test]
async fn the_newest_message_is_listed_first_with_everything_about_it() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let items = json!([{"queue": "orders.eu", "partition": "p", "payload": {"n": 1}, "transactionId": "t",
                        "traceId": Uuid::from_u128(7)}]);
    let pushed = send(&broker, &items).await.unwrap();
    push(&broker, "orders.eu", "p", 2..4).await;
    let messages = list(&broker, &of("orders.eu")).await;
    assert_eq!(messages.iter().map(|m| m.payload.as_str()).collect::<Vec<_>>(), ["3", "2", r#"{"n":1}"#]);
    let oldest = &messages[2];
    assert_eq!((oldest.id, oldest.partition_id), (pushed[0].message_id, pushed[0].partition_id));
    assert_eq!((oldest.transaction_id.as_str(), oldest.trace_id), ("t", Some(Uuid::from_u128(7))));
    assert_eq!((oldest.queue.as_str(), oldest.partition.as_str()), ("orders.eu", "p"));
    assert_eq!((oldest.namespace.as_str(), oldest.task.as_str()), ("orders", "eu"));
    let one = broker.message(oldest.partition_id, "t").await.unwrap().unwrap();
    assert_eq!((one.id, one.payload.as_str(), one.retry_limit), (oldest.id, r#"{"n":1}"#, 3));
    assert!(list(&broker, &of("nothing")).await.is_empty());
    assert!(broker.message(oldest.partition_id, "unknown").await.unwrap().is_none());
    assert!(broker.message(Uuid::nil(), "t").await.unwrap().is_none());
}

#[tokio::test]
async fn statuses_follow_cursors_leases_and_dead_letters() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    push(&broker, "q", "p", 0..5).await;
    let popped = pop(&broker, named("q", "p").batch(2)).await.unwrap();
    ack(&broker, &popped.messages[0], AckStatus::Failed).await;
    ack(&broker, &popped.messages[1], AckStatus::Completed).await;
    pop(&broker, named("q", "p")).await.unwrap();
    let statuses: Vec<&str> =
        list(&broker, &of("q")).await.iter().map(|m| m.standing.status.word()).collect();
    assert_eq!(statuses, ["pending", "pending", "processing", "completed", "dead_letter"]);
    for (status, expected) in [
        (MessageStatus::Pending, vec!["4", "3"]),
        (MessageStatus::Processing, vec!["2"]),
        (MessageStatus::Completed, vec!["1"]),
        (MessageStatus::DeadLetter, vec!["0"]),
    ] {
        let filter = MessageFilter { status: Some(status), ..of("q") };
        assert_eq!(payloads(&broker, &filter).await, expected);
        let second = MessageFilter { offset: 1, ..filter };
        assert_eq!(payloads(&broker, &second).await, expected[1..]);
    }
    let page = broker.messages(&of("q")).await.unwrap();
    assert_eq!((page.mode.queue_mode, page.mode.groups), (true, 0));

    // With groups only: completed when all of them have passed it.
    push(&broker, "bus", "p", 0..2).await;
    assert_eq!(list(&broker, &of("bus")).await[0].standing.status, MessageStatus::Pending);
    for (group, batch) in [("a", 2), ("b", 1)] {
        let popped = pop(&broker, named("bus", "p").group(group).batch(batch)).await.unwrap();
        complete(&broker, &popped).await;
    }
    let messages = list(&broker, &of("bus")).await;
    let told: Vec<_> = messages
        .iter()
        .map(|m| (m.standing.status.word(), m.standing.consumed_by, m.standing.groups_total))
        .collect();
    assert_eq!(told, [("pending", 1, 2), ("completed", 2, 2)]);
}

#[tokio::test]
async fn pages_neither_skip_nor_repeat_in_few_partitions_and_in_many() {
    let db = database().await;
    let broker = engine(db.url()).await;
    // One flight writes all of these with the same time, to the microsecond.
    push_wide(&broker, "few", 0..40).await;
    push_wide(&broker, "few", 0..40).await;
    push(&broker, "few", "p3", 0..30).await;
    push_wide(&broker, "many", 0..300).await;
    push_wide(&broker, "many", 0..150).await;
    let deleted = push_ids(&broker, "many", "p7", &["x", "y", "z"]).await[1].partition_id;
    assert!(broker.delete_message(deleted, "y").await.unwrap());
    for (filter, count, limit) in [
        (of("few"), 110, 7),
        (of("many"), 452, 50),
        (MessageFilter { limit: 1, ..Default::default() }, 562, 60),
        (MessageFilter { partition: Some("p3".to_owned()), ..Default::default() }, 34, 5),
        (MessageFilter { namespace: Some("many".to_owned()), ..Default::default() }, 452, 100),
        (MessageFilter { status: Some(MessageStatus::Pending), ..of("many") }, 452, 90),
    ] {
        let (pages, whole) = paged(&broker, &filter, limit).await;
        assert_eq!(whole.len(), count, "{filter:?}");
        assert_eq!(pages, whole, "{filter:?}");
    }
}

#[tokio::test]
async fn the_window_is_the_last_hour_unless_it_is_given() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    push(&broker, "q", "p", 0..1).await;
    travel(&sql, "2 hours").await;
    push(&broker, "q", "p", 1..2).await;
    push_wide(&broker, "wide", 0..300).await;
    travel(&sql, "5 hours").await;
    assert!(payloads(&broker, &of("q")).await.is_empty());
    let from = MessageFilter { from: Some(0), ..of("q") };
    assert_eq!(payloads(&broker, &from).await, ["1", "0"]);
    let all = list(&broker, &from).await;
    let until_first = MessageFilter { to: Some(all[1].created_at), ..from.clone() };
    assert_eq!(payloads(&broker, &until_first).await, ["0"]);
    let hour_before = MessageFilter { to: Some(all[0].created_at), ..of("q") };
    assert_eq!(payloads(&broker, &hour_before).await, ["1"]);
    assert!(list(&broker, &of("wide")).await.is_empty());
    let wide = MessageFilter { from: Some(all[1].created_at), limit: 1_000, ..of("wide") };
    assert_eq!(list(&broker, &wide).await.len(), 300);
    assert!(list(&broker, &MessageFilter { to: Some(all[1].created_at), ..wide }).await.is_empty());
}

#[tokio::test]
async fn what_retention_has_taken_is_not_listed_but_its_dead_letter_is_found() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    let partition = push_ids(&broker, "q", "p", &["a", "b", "c"]).await[0].partition_id;
    let popped = pop(&broker, named("q", "p")).await.unwrap();
    ack(&broker, &popped.messages[0], AckStatus::Dlq).await;
    sql.batch_execute("update queen.heads set tail = 2").await.unwrap();
    assert_eq!(payloads(&broker, &of("q")).await, ["\"c\""]);
    assert!(broker.message(partition, "b").await.unwrap().is_none());
    let dead = broker.message(partition, "a").await.unwrap().unwrap();
    assert_eq!((dead.payload.as_str(), dead.standing.status), ("\"a\"", MessageStatus::DeadLetter));
    assert_eq!(dead.id, popped.messages[0].id);
}

/// Rows read so far from the log and from tables that grow with the number of partitions. Complete
/// once the engines have stopped.
async fn rows_read(sql: &Client) -> i64 {
    disconnected(sql).await;
    for statement in ["select pg_stat_force_next_flush()", "select pg_stat_clear_snapshot()"] {
        sql.batch_execute(statement).await.unwrap();
    }
    let text = "select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint
                from pg_stat_user_tables where schemaname = 'queen'
                and (relname in ('partitions', 'heads', 'consumers') or relname like 'segments%')";
    number(sql, text).await
}

#[tokio::test]
async fn however_much_is_stored_a_page_reads_little_of_it() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "big", 0..400).await;
    broker.stop().await;
    // Adds a hundred segments to each partition, over the last hour, as a broker would have written them.
    for statement in [
        // Autovacuum would be counted as well.
        "alter table queen.segments_1 set (autovacuum_enabled = off)",
        "alter table queen.heads set (autovacuum_enabled = off)",
        "update queen.segments set created_at = queen.now() - interval '58 minutes'",
        "insert into queen.segments (partition_id, base_offset, created_at, extent, count, transactions, frames)
         select p.id, 1 + n, queen.now() - make_interval(secs => 3400 - n * 30), 1, 1, decode(repeat('00', 16), 'hex'),
                '{\"transactionId\":\"t\",\"payload\":1}'
         from generate_series(0, 99) n cross join queen.partitions p order by n",
        "update queen.heads set head = 101, last_push_at = (select max(created_at) from queen.segments)",
        "vacuum queen.segments_1",
    ] {
        sql.batch_execute(statement).await.unwrap();
    }
    let last =
        number(&sql, "select (extract(epoch from max(created_at)) * 1000000)::bigint from queen.segments")
            .await;
    let one_partition = MessageFilter { partition: Some("p5".to_owned()), ..of("big") };
    for (what, filter, messages, rows_max) in [
        ("the newest of 400 partitions", of("big"), 200, 20_000),
        ("the newest of all", MessageFilter { limit: 200, ..Default::default() }, 200, 20_000),
        ("one partition", one_partition, 101, 1_500),
        ("a page far back", MessageFilter { offset: 2_000, ..of("big") }, 200, 40_000),
        ("long ago", MessageFilter { to: Some(last - 1_800_000_000), ..of("big") }, 200, 20_000),
    ] {
        let before = rows_read(&sql).await;
        let broker = engine(db.url()).await;
        let listed = list(&broker, &filter).await.len();
        broker.stop().await;
        let rows = rows_read(&sql).await - before;
        assert_eq!(listed, messages, "{what}");
        assert!(rows < rows_max, "{what}: {rows} rows were read, and all would be 120,000");
    }
}
