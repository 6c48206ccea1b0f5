//! Messages are removed when they expire and not before, and their space is freed while reading continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use queen_engine::{Config, Engine};
use queen_protocol::AckStatus::Completed;
use queen_protocol::{PopRequest, PushStatus, Subscription};
use queen_testkit::{Database, database};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::support::{
    Ask, Message, ack, any, complete, config, configure, data, drain, engine, engine_with, eventually, named,
    number, numbers, parked, pop, push, push_ids, send, travel,
};

/// An engine whose retention and eviction run often.
async fn tidy() -> (Database, Engine, Client) {
    let db = database().await;
    let often = Duration::from_millis(50);
    let settings = Config { retention_interval: often, eviction_interval: often, ..config(db.url()) };
    let broker = engine_with(settings).await;
    let sql = db.client().await;
    (db, broker, sql)
}

async fn stored(sql: &Client, queue: &str) -> i64 {
    number(sql, &format!("select count(*) from queen.messages where queue = '{queue}'")).await
}

async fn becomes(sql: &Client, queue: &str, messages: i64) {
    let what = format!("{queue} has {messages} messages");
    eventually(&what, async || (stored(sql, queue).await == messages).then_some(())).await;
}

#[tokio::test]
async fn expired_messages_leave_read_or_not_and_only_with_the_switch_on() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    configure(&broker, "kept", json!({"retentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..5).await;
    push(&broker, "q", "r", 0..1).await;
    push(&broker, "kept", "p", 0..5).await;
    let held = pop(&broker, named("q", "p").group("slow").batch(2)).await.unwrap();
    travel(&sql, "50 seconds").await;
    push(&broker, "q", "p", 5..7).await;
    travel(&sql, "70 seconds").await;
    becomes(&sql, "q", 2).await;
    assert_eq!(stored(&sql, "kept").await, 5);
    // A lease on removed messages does no harm, and its group continues with what is left.
    let late = ack(&broker, &held.messages[1], Completed).await;
    assert!(late.success || late.error.is_some());
    assert_eq!(data(&broker, named("q", "p").group("fresh").batch(9)).await, numbers(5..7));
    travel(&sql, "400 seconds").await;
    becomes(&sql, "q", 0).await;
    push(&broker, "q", "p", 7..8).await;
    assert_eq!(data(&broker, named("q", "p").group("slow").batch(9)).await, [7]);
}

#[tokio::test]
async fn completed_messages_stay_for_the_slowest_group() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..6).await;
    push(&broker, "q", "nobody reads this", 0..3).await;
    for (group, batch) in [("fast", 6), ("slow", 2)] {
        complete(&broker, &pop(&broker, named("q", "p").group(group).batch(batch)).await.unwrap()).await;
    }
    // All groups have passed them, but they are too young to be removed. Once old enough, two can be removed.
    assert_eq!(stored(&sql, "q").await, 9);
    travel(&sql, "61 seconds").await;
    becomes(&sql, "q", 7).await;
    let rest = pop(&broker, named("q", "p").group("slow").batch(9)).await.unwrap();
    assert_eq!(rest.data(), numbers(2..6));
    assert_eq!(stored(&sql, "q").await, 7, "a lease is not a read");
    complete(&broker, &rest).await;
    becomes(&sql, "q", 3).await;
}

/// A group has read the first of three messages, which was removed; the rest are old enough and kept for the group.
async fn waiting_for_a_group(broker: &Engine, sql: &Client, queue: &str) {
    push(broker, queue, "p", 0..3).await;
    complete(broker, &pop(broker, named(queue, "p").group("slow")).await.unwrap()).await;
    travel(sql, "61 seconds").await;
    becomes(sql, queue, 2).await;
}

async fn read_by_all(broker: &Engine, sql: &Client, queue: &str) {
    complete(broker, &pop(broker, named(queue, "p").group("slow").batch(9)).await.unwrap()).await;
    becomes(sql, queue, 0).await;
}

#[tokio::test]
async fn messages_that_wait_for_a_group_are_looked_at_again_after_an_error() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    waiting_for_a_group(&broker, &sql, "q").await;
    let text = "select pg_get_functiondef('queen.apply_policy(text, int, uuid[], bigint[])'::regprocedure)";
    let whole: String = sql.query_one(text, &[]).await.unwrap().get(0);
    let broken = "create sequence public.errors;
        create or replace function queen.apply_policy(
            p_kind text, p_seconds int, p_partitions uuid[], p_offsets bigint[])
        returns table (\"position\" int, removed bigint, waiting boolean) language plpgsql as $$
        begin perform nextval('public.errors'); raise 'broken'; end $$";
    sql.batch_execute(broken).await.unwrap();
    let errors = "select case when is_called then last_value else 0 end from public.errors";
    eventually("they are handed in again", async || (number(&sql, errors).await > 2).then_some(())).await;
    sql.batch_execute(&whole).await.unwrap();
    read_by_all(&broker, &sql, "q").await;
}

#[tokio::test]
async fn messages_that_wait_for_a_group_are_looked_at_again_after_another_queue_is_deleted() {
    let (_db, broker, sql) = tidy().await;
    for queue in ["a", "b", "c", "q"] {
        configure(&broker, queue, json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    }
    waiting_for_a_group(&broker, &sql, "q").await;
    for queue in ["a", "b", "c"] {
        broker.delete_queue(queue).await.unwrap();
    }
    read_by_all(&broker, &sql, "q").await;
}

/// Makes `rounds` able to count them from now on.
async fn count_rounds(sql: &Client) {
    let text = "create sequence public.rounds;
        alter function queen.retention_policies() rename to all_policies;
        create function queen.retention_policies()
        returns table (queue_id uuid, kind text, seconds int, cutoff timestamptz) language sql as $$
            select nextval('public.rounds'); select * from queen.all_policies() $$";
    sql.batch_execute(text).await.unwrap();
}

/// Waits until retention has started this many more rounds.
async fn rounds(sql: &Client, rounds: i64) {
    let text = "select case when is_called then last_value else 0 end from public.rounds";
    let before = number(sql, text).await;
    eventually("retention goes on", async || (number(sql, text).await >= before + rounds).then_some(()))
        .await;
}

/// Queues with the same policy, in each of which messages are kept for a group. Then all but the first one get the
/// policy `other`, which must not remove any more of their messages; then they get the policy of the first one again.
async fn a_changed_policy_no_longer_removes_what_waited(other: Value) {
    let db = database().await;
    let (quiet, sql) = (engine(db.url()).await, db.client().await);
    count_rounds(&sql).await;
    let queues = ["a", "b", "c", "d"];
    let policy = json!({"retentionEnabled": true, "completedRetentionSeconds": 60});
    for queue in queues {
        configure(&quiet, queue, policy.clone()).await;
        push(&quiet, queue, "p", 0..3).await;
        complete(&quiet, &pop(&quiet, named(queue, "p").group("slow")).await.unwrap()).await;
    }
    travel(&sql, "61 seconds").await;
    // Sees all queues for the first time in the same round, so they are examined together from then on.
    let often = Duration::from_millis(50);
    let broker = engine_with(Config { retention_interval: often, ..config(db.url()) }).await;
    for queue in queues {
        becomes(&sql, queue, 2).await;
    }
    for queue in &queues[1..] {
        configure(&broker, queue, other.clone()).await;
    }
    rounds(&sql, 2).await;
    for queue in queues {
        complete(&broker, &pop(&broker, named(queue, "p").group("slow").batch(9)).await.unwrap()).await;
    }
    becomes(&sql, "a", 0).await;
    rounds(&sql, 2).await;
    for queue in &queues[1..] {
        assert_eq!(stored(&sql, queue).await, 2, "{queue}");
    }
    for queue in &queues[1..] {
        configure(&broker, queue, policy.clone()).await;
        becomes(&sql, queue, 0).await;
    }
}

#[tokio::test]
async fn messages_that_wait_for_a_group_stay_once_their_retention_is_switched_off() {
    let off = json!({"retentionEnabled": false, "completedRetentionSeconds": 60});
    a_changed_policy_no_longer_removes_what_waited(off).await;
}

#[tokio::test]
async fn messages_that_wait_for_a_group_stay_once_their_retention_is_longer() {
    let longer = json!({"retentionEnabled": true, "completedRetentionSeconds": 3600});
    a_changed_policy_no_longer_removes_what_waited(longer).await;
}

#[tokio::test]
async fn a_policy_that_changes_while_retention_is_at_work_removes_nothing_more() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let policies = [
        ("age", json!({"retentionEnabled": true, "retentionSeconds": 60})),
        ("completed", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})),
        ("wait", json!({"maxWaitTimeSeconds": 60})),
    ];
    for (kind, policy) in policies {
        configure(&broker, kind, policy).await;
        push(&broker, kind, "p", 0..2).await;
        let partition = pop(&broker, named(kind, "p").group("g").batch(2)).await.unwrap();
        if kind == "completed" {
            complete(&broker, &partition).await;
        }
        let text =
            "select removed, waiting from queen.apply_policy($1, 60, array[$2::uuid], array[2::bigint])";
        let apply = async || -> (i64, bool) {
            let row = sql.query_one(text, &[&kind, &partition.partition_id]).await.unwrap();
            (row.get(0), row.get(1))
        };
        let longer = "update queen.queues set retention_seconds = 61, completed_retention_seconds = 61,
                          max_wait_time_seconds = 61";
        let off = "update queen.queues set retention_enabled = false, max_wait_time_seconds = 0";
        let shorter = "update queen.queues set retention_enabled = true, retention_seconds = 59,
                           completed_retention_seconds = 59, max_wait_time_seconds = 59";
        for changed in [longer, off] {
            sql.batch_execute(changed).await.unwrap();
            assert_eq!(apply().await, (0, true), "{kind}: {changed}");
        }
        sql.batch_execute(shorter).await.unwrap();
        assert_eq!(apply().await, (2, false), "{kind}");
    }
}

#[tokio::test]
async fn completed_messages_stay_for_a_registered_group_that_was_away_when_their_partition_was_created() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    push(&broker, "q", "old", 0..1).await;
    // Registered in four ways, and then absent.
    let registered = [
        (any("q").group("all"), Subscription::All),
        (any("q").group("new"), Subscription::New),
        (named("q", "created later").group("by name"), Subscription::New),
        (named("q", "another").group("of another partition"), Subscription::All),
    ];
    for (request, subscription) in registered {
        pop(&broker, PopRequest { subscription, auto_ack: true, ..request }).await;
    }
    push(&broker, "q", "created later", 1..5).await;
    push(&broker, "q", "nobody is away from this", 5..6).await;
    complete(&broker, &pop(&broker, named("q", "created later").group("fast").batch(9)).await.unwrap()).await;
    for group in ["fast", "all", "new"] {
        let read = pop(&broker, named("q", "nobody is away from this").group(group)).await.unwrap();
        complete(&broker, &read).await;
    }
    travel(&sql, "61 seconds").await;
    let left = "select count(*) from queen.messages where partition = 'nobody is away from this'";
    eventually("what every group has read is gone", async || (number(&sql, left).await == 0).then_some(()))
        .await;
    for group in ["all", "new", "by name"] {
        let read = pop(&broker, named("q", "created later").group(group).batch(9)).await.unwrap();
        assert_eq!(read.data(), numbers(1..5), "{group}");
        complete(&broker, &read).await;
    }
    let left = "select count(*) from queen.messages where partition = 'created later'";
    eventually("now it may go", async || (number(&sql, left).await == 0).then_some(())).await;
}

#[tokio::test]
async fn completed_messages_stay_for_a_registered_group_that_comes_back_while_retention_looks() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    push(&broker, "q", "old", 0..1).await;
    pop(&broker, PopRequest { auto_ack: true, ..any("q").group("away") }).await.unwrap();
    push(&broker, "q", "p", 1..5).await;
    let read = pop(&broker, named("q", "p").group("fast").batch(9)).await.unwrap();
    complete(&broker, &read).await;

    // Stops retention after it has read the cursors, and before it looks for registered groups that have none.
    let stop = db.client().await;
    stop.batch_execute("begin; lock table queen.group_counts").await.unwrap();
    let (retention, partition) = (db.client().await, read.partition_id);
    let expire =
        "select sum(removed)::bigint from queen.expire('completed', array[$1::uuid], array[4::bigint])";
    let (removed, first) = tokio::join!(async { retention.query_one(expire, &[&partition]).await }, async {
        let waits = "select count(*) from pg_stat_activity where datname = current_database()
                     and wait_event_type = 'Lock' and query like '%queen.expire%'";
        eventually("retention waits", async || (number(&sql, waits).await == 1).then_some(())).await;
        let first = pop(&broker, named("q", "p").group("away")).await.unwrap();
        stop.batch_execute("rollback").await.unwrap();
        first
    });
    assert_eq!(removed.unwrap().get::<_, i64>(0), 0);
    complete(&broker, &first).await;
    assert_eq!(data(&broker, named("q", "p").group("away").batch(9)).await, numbers(2..5));
}

#[tokio::test]
async fn completed_messages_from_before_a_group_starts_do_not_wait_for_it() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..3).await;
    complete(&broker, &pop(&broker, named("q", "p").group("fast").batch(9)).await.unwrap()).await;
    // This group has no cursor in any partition, only a time from which it reads.
    sql.batch_execute("select queen.subscribe('q', 'from now on', '', true, null)").await.unwrap();
    travel(&sql, "61 seconds").await;
    becomes(&sql, "q", 0).await;
}

#[tokio::test]
async fn completed_messages_stay_for_queue_mode_that_was_away_when_their_partition_was_created() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    push(&broker, "q", "old", 0..1).await;
    complete(&broker, &pop(&broker, any("q")).await.unwrap()).await;
    push(&broker, "q", "created later", 1..3).await;
    push(&broker, "q", "old", 3..4).await;
    complete(&broker, &pop(&broker, named("q", "created later").group("fast").batch(9)).await.unwrap()).await;
    complete(&broker, &pop(&broker, named("q", "old").group("fast").batch(9)).await.unwrap()).await;
    complete(&broker, &pop(&broker, named("q", "old")).await.unwrap()).await;
    broker.queue("q").await.unwrap();
    travel(&sql, "61 seconds").await;
    becomes(&sql, "q", 2).await;
    assert_eq!(data(&broker, any("q").batch(9)).await, numbers(1..3));
}

#[tokio::test]
async fn messages_that_waited_too_long_are_evicted_and_read_ones_stay() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"maxWaitTimeSeconds": 60})).await;
    push(&broker, "q", "read", 0..2).await;
    push(&broker, "q", "pending", 0..3).await;
    complete(&broker, &pop(&broker, named("q", "read").batch(2)).await.unwrap()).await;
    travel(&sql, "61 seconds").await;
    becomes(&sql, "q", 2).await;
    assert!(pop(&broker, named("q", "pending").batch(9)).await.is_none());
    push(&broker, "q", "pending", 3..4).await;
    assert_eq!(data(&broker, named("q", "pending").batch(9)).await, [3]);
}

#[tokio::test]
async fn offsets_ids_and_order_go_on_where_retention_has_cut() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    let first = push(&broker, "q", "p", 0..3).await;
    travel(&sql, "61 seconds").await;
    becomes(&sql, "q", 0).await;
    let second = push(&broker, "q", "p", 3..5).await;
    assert!(first[2].message_id.to_string() < second[0].message_id.to_string());
    let offset = number(&sql, "select min(message_offset) from queen.messages").await;
    assert_eq!(offset, 3);
    let popped = pop(&broker, named("q", "p").batch(9)).await.unwrap();
    assert_eq!(popped.data(), numbers(3..5));
    complete(&broker, &popped).await;
}

/// Does now what the engine's job does every few seconds. Returns how many extents were dropped.
async fn turn(sql: &Client, bytes: i64) -> usize {
    sql.query_one("select queen.rotate_extent($1, interval '1 day')", &[&bytes]).await.unwrap();
    let mut dropped = 0;
    while !sql.query("select * from queen.drop_extents()", &[]).await.unwrap().is_empty() {
        dropped += 1;
    }
    dropped
}

async fn log_bytes(sql: &Client) -> i64 {
    let text = "select coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint from pg_inherits
                where inhparent = 'queen.segments'::regclass";
    number(sql, text).await
}

/// Random text, so that compression does not hide its size.
fn bulk(messages: usize) -> Value {
    let item = |n: usize| {
        let noise: String = (0..60).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
        json!({"queue": "bulk", "partition": format!("p{}", n % 7), "payload": noise})
    };
    (0..messages).map(item).collect()
}

#[tokio::test]
async fn space_is_given_back_when_messages_have_expired() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "bulk", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    send(&broker, &bulk(500)).await.unwrap();
    let full = log_bytes(&sql).await;
    assert!(full > 500_000, "{full}");
    assert_eq!(turn(&sql, 1_000).await, 0, "everything in the old extent is live");
    assert_eq!(number(&sql, "select count(*) from queen.extents").await, 2, "a new one was started");
    travel(&sql, "2 minutes").await;
    becomes(&sql, "bulk", 0).await;
    assert_eq!(turn(&sql, 1_000).await, 1);
    assert!(log_bytes(&sql).await < full / 4, "{} of {full}", log_bytes(&sql).await);
    // The log continues.
    send(&broker, &bulk(20)).await.unwrap();
    assert_eq!(stored(&sql, "bulk").await, 20);
}

#[tokio::test]
async fn an_extent_in_use_is_not_replaced_before_it_is_large_or_old_enough() {
    let (_db, broker, sql) = tidy().await;
    push(&broker, "q", "p", 0..1).await;
    turn(&sql, 100 << 20).await;
    assert_eq!(number(&sql, "select count(*) from queen.extents").await, 1);
    travel(&sql, "25 hours").await;
    turn(&sql, 100 << 20).await;
    assert_eq!(number(&sql, "select count(*) from queen.extents").await, 2, "by age");
    turn(&sql, 0).await;
    assert_eq!(number(&sql, "select count(*) from queen.extents").await, 2, "an empty one is large enough");
}

#[tokio::test]
async fn a_deleted_queue_gives_its_space_back() {
    let (_db, broker, sql) = tidy().await;
    send(&broker, &bulk(500)).await.unwrap();
    let full = log_bytes(&sql).await;
    assert!(broker.delete_queue("bulk").await.unwrap());
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 0);
    turn(&sql, 1_000).await;
    travel(&sql, "2 minutes").await;
    assert_eq!(turn(&sql, 1_000).await, 1);
    assert!(log_bytes(&sql).await < full / 4);
    assert_eq!(number(&sql, "select count(*) from queen.segments").await, 0);
}

#[tokio::test]
async fn an_extent_of_which_much_is_live_stays() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "bulk", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    send(&broker, &bulk(70)).await.unwrap();
    let noise: String = (0..2_000).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect();
    send(&broker, &json!([{"queue": "kept", "partition": "p", "payload": noise}])).await.unwrap();
    turn(&sql, 1_000).await;
    travel(&sql, "2 minutes").await;
    becomes(&sql, "bulk", 0).await;
    assert_eq!(turn(&sql, 1_000).await, 0, "copying a third of it would be a waste");
    assert_eq!(stored(&sql, "kept").await, 1);
}

#[tokio::test]
async fn the_few_survivors_of_an_extent_move_on_and_are_read_in_order_under_traffic() {
    let (db, broker, sql) = tidy().await;
    configure(&broker, "bulk", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    configure(&broker, "slow", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    // A queue that keeps everything, and one that keeps what a slow group has not read.
    for n in 0..10 {
        push(&broker, "kept", "p", n..n + 1).await;
        push(&broker, "slow", "p", n..n + 1).await;
    }
    complete(&broker, &pop(&broker, any("slow").group("fast").batch(10)).await.unwrap()).await;
    complete(&broker, &pop(&broker, any("slow").group("slow").batch(4)).await.unwrap()).await;
    let first = push_ids(&broker, "kept", "ids", &["x", "y"]).await;
    send(&broker, &bulk(300)).await.unwrap();
    turn(&sql, 1_000).await;
    travel(&sql, "2 minutes").await;
    becomes(&sql, "bulk", 0).await;

    // Writers and readers that know nothing of the move, with cold caches.
    let other = engine(db.url()).await;
    let done = Arc::new(AtomicBool::new(false));
    let writing = async {
        let mut next = 10;
        while !done.load(Ordering::SeqCst) {
            push(&other, "kept", "p", next..next + 1).await;
            next += 1;
        }
        next
    };
    let reading = async {
        let mut rounds = 0;
        while !done.load(Ordering::SeqCst) {
            let group = format!("reader {rounds}");
            let read = drain(&other, "kept", "p", &group).await;
            assert!(read.len() >= 10, "{} messages", read.len());
            assert!(read.iter().map(Message::json).eq(numbers(0..read.len())), "in order, without a hole");
            rounds += 1;
        }
        rounds
    };
    let dropping = async {
        let dropped = turn(&sql, 1_000).await;
        assert_eq!(number(&sql, "select count(*) from queen.extents where number = 1").await, 0);
        for _ in 0..3 {
            turn(&sql, 1).await;
        }
        done.store(true, Ordering::SeqCst);
        dropped
    };
    let (written, rounds, dropped) = tokio::join!(writing, reading, dropping);
    assert_eq!(dropped, 1);
    assert!(rounds > 0);
    let young = engine(db.url()).await;
    let all = drain(&young, "kept", "p", "at last").await;
    assert!(all.iter().map(Message::json).eq(numbers(0..written)));
    assert_eq!(data(&young, named("slow", "p").group("slow").batch(10)).await, numbers(4..10));
    // Copies are found by their ids like the originals.
    let again = push_ids(&young, "kept", "ids", &["y"]).await.remove(0);
    assert_eq!((again.status, again.message_id), (PushStatus::Duplicate, first[1].message_id));
    let popped = pop(&young, named("kept", "ids").group("g").batch(2)).await.unwrap();
    assert_eq!(popped.messages[0].id, first[0].message_id);
    complete(&broker, &popped).await;
}

#[tokio::test]
async fn a_deleted_message_range_is_not_needed_by_dead_letters_or_leases() {
    let (_db, broker, sql) = tidy().await;
    let options = json!({"retentionEnabled": true, "retentionSeconds": 60, "retryLimit": 0});
    configure(&broker, "q", options).await;
    push(&broker, "q", "p", 0..3).await;
    let popped = pop(&broker, any("q").group("g").batch(3)).await.unwrap();
    assert!(ack(&broker, &popped.messages[0], queen_protocol::AckStatus::Failed).await.dlq);
    travel(&sql, "2 minutes").await;
    becomes(&sql, "q", 0).await;
    turn(&sql, 0).await;
    travel(&sql, "4 minutes").await;
    turn(&sql, 0).await;
    let letters = crate::support::dead_letters(&broker, "q").await;
    assert_eq!((letters.len(), letters[0].payload.as_str()), (1, "0"));
    // The rest of the lease covers removed messages: they cannot be acknowledged, and need not be.
    let results = broker.ack(vec![crate::support::ack_of(&popped.messages[2], Completed)]).await;
    assert!(results.is_ok());
    travel(&sql, "10 minutes").await;
    push(&broker, "q", "p", 3..4).await;
    assert_eq!(data(&broker, PopRequest { auto_ack: true, ..named("q", "p").group("g") }).await, [3]);
}

#[tokio::test]
async fn idle_partitions_are_removed_only_when_nothing_hangs_on_them() {
    let (_db, broker, sql) = tidy().await;
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 60, "retryLimit": 0})).await;
    for partition in ["idle", "dead letter"] {
        push(&broker, "q", partition, 0..1).await;
    }
    let popped = pop(&broker, named("q", "dead letter").group("g")).await.unwrap();
    assert!(ack(&broker, &popped.messages[0], queen_protocol::AckStatus::Failed).await.dlq);
    push(&broker, "keeps everything", "p", 0..1).await;
    travel(&sql, "40 days").await;
    becomes(&sql, "q", 0).await;
    push(&broker, "q", "used", 0..1).await;
    let text = "select queen.remove_idle_partitions(interval '30 days', 100)::bigint";
    assert_eq!(number(&sql, text).await, 1);
    let left = "select count(*) from queen.partitions where name in ('p', 'used', 'dead letter')";
    assert_eq!(number(&sql, left).await, 3);
    // The partition can be created again at any time.
    push(&broker, "q", "idle", 1..2).await;
    assert_eq!(data(&broker, named("q", "idle")).await, [1]);
}

#[tokio::test]
async fn a_group_that_came_before_its_queue_holds_back_what_others_have_read() {
    let (_db, broker, sql) = tidy().await;
    assert!(pop(&broker, any("q").group("early")).await.is_none());
    configure(&broker, "q", json!({"retentionEnabled": true, "completedRetentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..3).await;
    push(&broker, "q", "read", 0..1).await;
    drain(&broker, "q", "p", "g").await;
    drain(&broker, "q", "read", "g").await;
    drain(&broker, "q", "read", "early").await;
    travel(&sql, "2 minutes").await;
    eventually("what both have read goes", async || (stored(&sql, "q").await == 3).then_some(())).await;
    assert_eq!(drain(&broker, "q", "p", "early").await.len(), 3);
    eventually("the rest follows", async || (stored(&sql, "q").await == 0).then_some(())).await;
}

#[tokio::test]
async fn registrations_that_nothing_uses_are_removed_and_others_stay() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let sweep = "select queen.remove_unused_groups(interval '30 days', 100)::bigint";
    let left = async || -> String {
        let text = "select coalesce(string_agg(g.consumer_group, ' ' order by g.consumer_group), '') from queen.groups g";
        sql.query_one(text, &[]).await.unwrap().get(0)
    };
    push(&broker, "q", "p", 0..1).await;
    assert!(pop(&broker, any("nowhere").group("absent")).await.is_none());
    complete(&broker, &pop(&broker, any("q").group("reads")).await.unwrap()).await;
    let new = |group| PopRequest { subscription: Subscription::New, ..any("q").group(group) };
    for group in ["once", "waits"] {
        assert!(pop(&broker, new(group)).await.is_none());
    }
    assert!(
        pop(&broker, PopRequest { subscription: Subscription::New, ..named("q", "x").group("named") })
            .await
            .is_none()
    );
    assert_eq!(number(&sql, sweep).await, 0, "all of them are young");
    travel(&sql, "29 days").await;
    // What a broker does for consumers that are connected, and a pop at a broker that has forgotten the group.
    sql.batch_execute("select queen.touch_groups(array['q'], array['waits'])").await.unwrap();
    let other = engine(db.url()).await;
    push(&broker, "q", "p", 1..2).await;
    travel(&sql, "31 days").await;
    assert_eq!(
        number(&sql, "select queen.remove_unused_groups(interval '30 days', 1)::bigint").await,
        1,
        "a batch"
    );
    assert_eq!(number(&sql, sweep).await, 2);
    assert_eq!(left().await, "reads waits");
    assert_eq!(
        number(
            &sql,
            "select count(*) from queen.consumer_watermarks where consumer_group in ('absent', 'once')"
        )
        .await,
        0
    );
    // The group still starts where it was configured to.
    assert_eq!(data(&other, new("waits").batch(9)).await, [1]);
    assert!(pop(&other, any("nowhere").group("reads")).await.is_none());
    sql.batch_execute(
        "update queen.groups set used_at = used_at - interval '2 hours' where consumer_group = 'waits'",
    )
    .await
    .unwrap();
    let again = engine(db.url()).await;
    assert!(pop(&again, new("waits")).await.is_none());
    let used = "select (extract(epoch from queen.now() - used_at) < 60)::int::bigint from queen.groups where consumer_group = 'waits'";
    assert_eq!(number(&sql, used).await, 1, "a first pop counts as use");
}

#[tokio::test]
async fn a_broker_removes_registrations_that_nothing_uses_and_keeps_those_of_its_own_pops() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    sql.batch_execute("select queen.subscribe('nowhere', 'absent', '', false, null)").await.unwrap();
    let _waits = parked(&broker, any("nowhere").group("waits").wait(Duration::from_secs(86_400))).await;
    travel(&sql, "31 days").await;
    let left = "select count(*) from queen.groups";
    assert_eq!(number(&sql, left).await, 2);
    // Only one timer of the broker advances by an hour; its other clocks continue afterwards.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3_601)).await;
    tokio::time::resume();
    eventually("the one is removed", async || (number(&sql, left).await == 1).then_some(())).await;
    let left = "select count(*) from queen.groups where consumer_group = 'waits'";
    assert_eq!(number(&sql, left).await, 1);
}
