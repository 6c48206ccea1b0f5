//! Pushes from SQL: in the application's own transaction, moved into the log in commit order.

use std::time::Duration;

use queen_engine::{Config, Engine, SpoolConfig};
use queen_protocol::PopRequest;
use queen_testkit::{Database, Proxy, cluster_with, database};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{
    Ask, Message, any, complete, config, configure, disconnected, drain, engine, engine_with, eventually,
    idle, named, number, numbers, parked, pop, push_ids, send, travel, twins,
};

const LONG: Duration = Duration::from_secs(12);

/// Pushes like an application.
async fn push(sql: &Client, queue: &str, partition: &str, payload: impl Into<Value>) -> Uuid {
    let text = "select queen.push($1, $2, $3::text::jsonb)";
    sql.query_one(text, &[&queue, &partition, &payload.into().to_string()]).await.unwrap().get(0)
}

async fn run(sql: &Client, text: &str) {
    sql.batch_execute(text).await.unwrap();
}

/// The error message of a statement that must be refused.
async fn refusal(sql: &Client, text: &str) -> String {
    let error = sql.batch_execute(text).await.expect_err(text);
    error.as_db_error().expect("PostgreSQL says so").message().to_owned()
}

/// Waits until the inbox is empty.
async fn moved(sql: &Client) {
    eventually("the inbox is empty", async || {
        let left = "select (select count(*) from queen.inbox) + (select count(*) from queen.inbox_commits)";
        (number(sql, left).await == 0).then_some(())
    })
    .await;
}

/// How many sessions hold an exclusive lock of the inbox.
async fn holders(sql: &Client, lock: &str) -> i64 {
    let text = format!(
        "select count(*) from pg_locks l join pg_database d on d.oid = l.database
         where d.datname = current_database() and l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and l.granted
           and l.objid = (hashtextextended('{lock}', 0) & 4294967295)::oid"
    );
    number(sql, &text).await
}

/// Waits until a broker rests, or until none does.
async fn resting(sql: &Client, rests: bool) {
    let rested = async || ((holders(sql, "queen.inbox.rest").await > 0) == rests).then_some(());
    eventually("the broker rests, or does not", rested).await;
}

fn payloads(messages: &[Message]) -> Vec<Value> {
    messages.iter().map(Message::json).collect()
}

#[tokio::test]
async fn a_message_is_pushed_when_its_transaction_commits_and_has_the_promised_id() {
    let db = database().await;
    let (broker, mut sql) = (engine(db.url()).await, db.client().await);
    let waiting = parked(&broker, any("q").wait(LONG)).await;
    let transaction = sql.transaction().await.unwrap();
    let text = "select queen.push('q', 'p', '{\"b\": 1, \"a\": [null]}', transaction_id => 'mine',
                                  trace_id => '00000000-0000-0000-0000-000000000007')";
    let id: Uuid = transaction.query_one(text, &[]).await.unwrap().get(0);
    assert_eq!(id.get_version_num(), 7);
    transaction.commit().await.unwrap();
    let popped = waiting.answer().await.expect("the message");
    let message = &popped.messages[0];
    assert_eq!((message.id, message.transaction_id.as_str()), (id, "mine"));
    assert_eq!(message.trace_id, Some(Uuid::from_u128(7)));
    assert_eq!(message.json(), json!({"a": [null], "b": 1}));
    moved(&sql).await;
    let stored: Uuid = sql.query_one("select id from queen.messages", &[]).await.unwrap().get(0);
    assert_eq!(stored, id);
}

#[tokio::test]
async fn what_is_rolled_back_whole_or_to_a_savepoint_was_never_pushed() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    run(&sql, "begin; select queen.push('q', 'p', '1'); rollback").await;
    // Even the first push of a transaction may be rolled back to a savepoint.
    run(
        &sql,
        "begin; savepoint s; select queen.push('q', 'p', '2'); rollback to s; select queen.push('q', 'p', '3');
         savepoint s; select queen.push('q', 'p', '4'); rollback to s; select queen.push('q', 'p', '5'); commit",
    )
    .await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), [3, 5]);
}

#[tokio::test]
async fn the_order_of_commits_is_the_order_of_messages() {
    let db = database().await;
    let (early, late, sql) = (db.client().await, db.client().await, db.client().await);
    // Rows from before any broker moves them, so that it finds all of them at once and has
    // only their numbers to sort by.
    engine(db.url()).await.stop().await;
    for session in [&early, &late] {
        run(session, "begin isolation level repeatable read").await;
    }
    push(&early, "q", "p", 4).await;
    push(&late, "q", "p", 2).await;
    push(&early, "q", "p", 5).await;
    push(&sql, "q", "p", 1).await;
    push(&late, "q", "p", 3).await;
    run(&late, "commit").await;
    run(&early, "commit").await;
    push(&sql, "q", "p", 6).await;
    let broker = engine(db.url()).await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), numbers(1..7));
    // The same while a broker moves rows.
    for session in [&early, &late] {
        run(session, "begin").await;
    }
    push(&early, "q", "r", 3).await;
    push(&late, "q", "r", 1).await;
    run(&late, "commit").await;
    push(&sql, "q", "r", 2).await;
    run(&early, "commit").await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "r", "g").await), numbers(1..4));
}

#[tokio::test]
async fn a_message_that_was_pushed_within_the_window_is_a_duplicate_however_long_it_waits_for_a_broker() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    configure(&broker, "q", json!({"dedupWindowSeconds": 3600})).await;
    push_ids(&broker, "q", "p", &["x"]).await;
    broker.stop().await;
    run(&sql, "select queen.push('q', 'p', '1', 'x'), queen.push('q', 'p', '2', 'y')").await;
    travel(&sql, "2 hours").await;
    let broker = engine(db.url()).await;
    moved(&sql).await;
    let ids: Vec<_> = drain(&broker, "q", "p", "g").await.into_iter().map(|m| m.transaction_id).collect();
    assert_eq!(ids, ["x", "y"]);
}

/// A transaction that notifies cannot be prepared, and a push notifies a broker that rests.
#[tokio::test]
async fn a_transaction_that_pushes_may_be_prepared_also_while_the_broker_rests() {
    let cluster = cluster_with(&[("max_prepared_transactions", "5"), ("fsync", "off")]).await;
    let url = cluster.url();
    let (broker, sql) = (engine(&url).await, cluster.client().await);
    resting(&sql, true).await;
    run(&sql, "begin; select queen.push('q', 'p', '1')").await;
    run(&sql, "prepare transaction 'alone'").await;
    run(&sql, "begin; select queen.push('q', 'p', '2'); PREPARE /* for\ngood */ TRANSACTION 'with others'")
        .await;
    run(&sql, "begin; select queen.push('q', 'p', '3')").await;
    sql.execute("prepare transaction 'by the extended protocol'", &[]).await.unwrap();
    run(&sql, "begin; select queen.push('q', 'p', '4'); prepare transaction 'given up'").await;
    assert_eq!(holders(&sql, "queen.inbox.rest").await, 1, "nobody was woken");
    // This push wakes the broker, so the transactions prepared from here on find it awake.
    let waiting = parked(&broker, named("q", "other").wait(LONG)).await;
    run(&sql, "begin; select queen.push('q', 'other', '5'); commit").await;
    assert_eq!(waiting.answer().await.unwrap().data(), [5]);
    run(&sql, "begin; select queen.push('q', 'p', '6'); prepare transaction 'awake'").await;
    assert!(pop(&broker, named("q", "p")).await.is_none(), "none of them is committed");
    run(&sql, "rollback prepared 'given up'").await;
    let mut popped = Vec::new();
    for transaction in ["awake", "by the extended protocol", "with others", "alone"] {
        let waiting = parked(&broker, named("q", "p").wait(LONG)).await;
        run(&sql, &format!("commit prepared '{transaction}'")).await;
        let found = waiting.answer().await.expect("the message");
        popped.extend(found.data());
        complete(&broker, &found).await;
    }
    assert_eq!(popped, [6, 3, 2, 1]);
    moved(&sql).await;
}

#[tokio::test]
async fn sessions_that_push_at_once_each_keep_their_own_order() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let mut sessions = JoinSet::new();
    for session in 0..6 {
        let sql = db.client().await;
        sessions.spawn(async move {
            for n in 0..40 {
                // Some pushes alone, some in transactions, and some of those are rolled back.
                let text = match n % 4 {
                    0 => "select queen.push('q', 'p', jsonb_build_array($1::int, $2::int))",
                    _ => "with r as (select queen.push('q', 'p', jsonb_build_array($1::int, $2::int))) select * from r",
                };
                sql.batch_execute("begin").await.unwrap();
                sql.execute(text, &[&session, &n]).await.unwrap();
                sql.batch_execute(if n % 5 == 4 { "rollback" } else { "commit" }).await.unwrap();
            }
        });
    }
    sessions.join_all().await;
    let sql = db.client().await;
    moved(&sql).await;
    let mut found = vec![Vec::new(); 6];
    for message in drain(&broker, "q", "p", "g").await {
        let pair: (usize, usize) = serde_json::from_str(message.data.get()).unwrap();
        found[pair.0].push(pair.1);
    }
    let expected: Vec<usize> = (0..40).filter(|n| n % 5 != 4).collect();
    assert!(found.iter().all(|session| *session == expected), "{found:?}");
}

#[tokio::test]
async fn serialisable_transactions_push_without_getting_in_each_others_way() {
    let db = database().await;
    let _broker = engine(db.url()).await;
    let (a, b) = (db.client().await, db.client().await);
    for n in 0..20 {
        for session in [&a, &b] {
            run(session, "begin isolation level serializable").await;
        }
        for session in [&a, &b] {
            push(session, "q", "p", n).await;
            push(session, "q", "p", n).await;
        }
        run(&a, "commit").await;
        run(&b, "commit").await;
    }
    moved(&a).await;
    assert_eq!(number(&a, "select count(*) from queen.messages").await, 80);
}

/// From the commit to the response of a parked pop.
async fn delivery(broker: &Engine, sql: &Client, partition: &str) -> Duration {
    let waiting = parked(broker, any("q").wait(LONG)).await;
    run(sql, "begin").await;
    push(sql, "q", partition, 1).await;
    let began = Instant::now();
    run(sql, "commit").await;
    assert_eq!(waiting.answer().await.unwrap().data(), [1]);
    began.elapsed()
}

#[tokio::test]
async fn a_parked_pop_has_it_within_50_ms_of_the_commit() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let mut waits = Vec::new();
    for n in 0..5 {
        waits.push(delivery(&broker, &sql, &format!("p{n}")).await);
    }
    // A machine that runs a dozen other tests may be slow for a while.
    while waits.iter().all(|wait| *wait >= Duration::from_millis(50)) {
        assert!(waits.len() < 100, "{waits:?}");
        waits.push(delivery(&broker, &sql, &format!("p{}", waits.len())).await);
    }
    waits.sort_unstable();
    assert!(waits[waits.len() / 2] < Duration::from_millis(250), "{waits:?}");
}

#[tokio::test]
async fn a_parked_pop_does_not_wait_for_the_slow_look_of_a_resting_broker() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let mut waits = Vec::new();
    for n in 0..5 {
        resting(&sql, true).await;
        waits.push(delivery(&broker, &sql, &format!("p{n}")).await);
    }
    // A resting broker looks once a second; waiting for that would take half a second on average.
    waits.sort_unstable();
    assert!(waits[2] < Duration::from_millis(250), "{waits:?}");
}

#[tokio::test]
async fn a_pusher_notifies_a_resting_broker_and_otherwise_keeps_it_from_resting_until_it_is_committed() {
    let db = database().await;
    let _broker = engine(db.url()).await;
    let (sql, other) = (db.client().await, db.client().await);
    // A push with everything that its commit does before committing.
    let pushing = "begin; select queen.push('q', 'p', '1'); set constraints all immediate";
    let shares = "select count(*) from pg_locks
                  where locktype = 'advisory' and mode = 'ShareLock' and pid = pg_backend_pid()";
    eventually("it rests", async || {
        resting(&sql, true).await;
        run(&sql, pushing).await;
        let share = number(&sql, shares).await;
        run(&sql, if share == 0 { "commit" } else { "rollback" }).await;
        (share == 0).then_some(())
    })
    .await;
    eventually("it is awake", async || {
        run(&sql, pushing).await;
        let share = number(&sql, shares).await;
        if share == 0 {
            run(&sql, "commit").await;
        }
        (share == 1).then_some(())
    })
    .await;
    let rests: bool = other.query_one("select queen.rest_inbox()", &[]).await.unwrap().get(0);
    assert!(!rests, "what this one commits would be found by nobody");
    run(&sql, "commit").await;
    moved(&sql).await;
    resting(&sql, true).await;
}

#[tokio::test]
async fn an_open_transaction_delays_no_other() {
    let db = database().await;
    let (broker, open, sql) = (engine(db.url()).await, db.client().await, db.client().await);
    run(&open, "begin isolation level repeatable read").await;
    push(&open, "q", "p", 100).await;
    for n in 0..5 {
        let waiting = parked(&broker, named("q", "p").wait(LONG)).await;
        push(&sql, "q", "p", n).await;
        let popped = waiting.answer().await.expect("those of others");
        assert_eq!(popped.data(), [n]);
        complete(&broker, &popped).await;
        // Nor do pushes over HTTP wait.
        push_ids(&broker, "q", "other", &[&n.to_string()]).await;
    }
    let waiting = parked(&broker, named("q", "p").wait(LONG)).await;
    run(&open, "commit").await;
    assert_eq!(waiting.answer().await.unwrap().data(), [100]);
}

#[tokio::test]
async fn a_locked_partition_holds_up_its_own_rows_only_and_keeps_their_order() {
    let db = database().await;
    let (broker, locker, sql) = (engine(db.url()).await, db.client().await, db.client().await);
    push_ids(&broker, "q", "p", &["a"]).await;
    run(&locker, "begin; select 1 from queen.heads for update").await;
    for n in 0..6 {
        // Each transaction has a message for both partitions.
        run(&sql, &format!("select queen.push('q', 'p', '{n}'), queen.push('q', 'free', '{n}')")).await;
        let popped = pop(&broker, named("q", "free").wait(LONG)).await.expect("the other partition");
        assert_eq!(popped.data(), [n]);
        complete(&broker, &popped).await;
    }
    assert_eq!(number(&sql, "select count(*) from queen.inbox where partition = 'p'").await, 6);
    run(&locker, "rollback").await;
    run(&sql, "select queen.push('q', 'p', '6')").await;
    moved(&sql).await;
    let mut expected = numbers(0..7);
    expected.insert(0, json!("a"));
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), expected);
}

#[tokio::test]
async fn looks_do_not_grow_with_what_an_open_transaction_keeps_alive() {
    let db = database().await;
    let (broker, open, sql) = (engine(db.url()).await, db.client().await, db.client().await);
    run(&open, "begin isolation level repeatable read; select 1").await;
    // Queries of this test itself must not count, so they use no index.
    run(&sql, "set enable_indexscan = off; set enable_indexonlyscan = off; set enable_bitmapscan = off")
        .await;
    for _ in 0..5 {
        run(
            &sql,
            "do $$ begin for n in 1..400 loop perform queen.push('q', 'p', '1'); commit; end loop; end $$",
        )
        .await;
        moved(&sql).await;
    }
    broker.stop().await;
    disconnected(&sql).await;
    let reads = "select sum(idx_tup_read)::bigint from pg_stat_user_indexes where relname in ('inbox', 'inbox_commits')";
    run(&sql, "select pg_stat_clear_snapshot()").await;
    let before = number(&sql, reads).await;
    let broker = engine(db.url()).await;
    // One complete look at the start, and from then on only at new rows.
    for n in 0..20 {
        push(&sql, "q", "p", n).await;
        moved(&sql).await;
    }
    broker.stop().await;
    disconnected(&sql).await;
    run(&sql, "select pg_stat_clear_snapshot()").await;
    let read = number(&sql, reads).await - before;
    assert!(read < 3 * 2_000 + 2_000, "{read} index entries were read for 20 rows and one full look");
}

#[tokio::test]
async fn ten_thousand_rows_of_one_transaction_arrive_whole_and_in_order() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let began = Instant::now();
    run(&sql, "select queen.push('q', 'p' || n % 3, to_jsonb(n)) from generate_series(0, 9999) n").await;
    let pushed = began.elapsed();
    moved(&sql).await;
    println!("10,000 rows: {pushed:?} in SQL, {:?} until they were in the log", began.elapsed());
    for partition in 0..3 {
        let found = drain(&broker, "q", &format!("p{partition}"), "g").await;
        assert!(found.is_sorted_by_key(|message| message.id), "ids of one transaction sort like its calls");
        let found = payloads(&found);
        let expected: Vec<Value> = (0..10_000).filter(|n| n % 3 == partition).map(Value::from).collect();
        assert!(found == expected, "{} of {}", found.len(), expected.len());
    }
    let widest = number(&sql, "select max(count)::bigint from queen.segments").await;
    assert!(widest <= 1_000, "a segment is read in one piece, and this one has {widest} messages");
}

#[tokio::test]
async fn a_transaction_id_is_stored_once_whichever_way_it_comes() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push_ids(&broker, "q", "p", &["http"]).await;
    run(
        &sql,
        "select queen.push('q', 'p', '1', 'http'); select queen.push('q', 'p', '2', 'sql');
         begin; select queen.push('q', 'p', '3', 'sql'), queen.push('q', 'p', '4', 'new'), queen.push('q', 'p', '5', 'new'); commit;
         select queen.push('q', 'r', '6', 'sql')",
    )
    .await;
    moved(&sql).await;
    assert_eq!(push_ids(&broker, "q", "p", &["sql"]).await[0].status, queen_protocol::PushStatus::Duplicate);
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), [json!("http"), json!(2), json!(4)]);
    assert_eq!(payloads(&drain(&broker, "q", "r", "g").await), [6]);
    configure(&broker, "free", json!({"dedupWindowSeconds": 0})).await;
    run(&sql, "select queen.push('free', 'p', '1', 'x'), queen.push('free', 'p', '2', 'x')").await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "free", "p", "g").await), [1, 2]);
}

#[tokio::test]
async fn payloads_keep_their_meaning_and_as_json_their_spelling() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    let spelt = "{ \"b\":1,\n \"a\" : 1e400, \"b\":2, \"s\": \"\\u0000 \\n\" }";
    sql.execute("select queen.push_json('q', '', $1::text::json)", &[&spelt]).await.unwrap();
    run(
        &sql,
        "select queen.push('q', null, null), queen.push('q', '', '\"ü\\n\\\"\"'), queen.push('', 'p', '[]')",
    )
    .await;
    let large = "x".repeat(3 << 20);
    push(&sql, "q", "", large.clone()).await;
    moved(&sql).await;
    let found = drain(&broker, "q", "Default", "g").await;
    assert_eq!(found[0].data.get(), spelt.replace('\n', " "));
    assert_eq!(payloads(&found[1..]), [Value::Null, json!("ü\n\""), json!(large)]);
    assert_eq!(found[1].transaction_id, found[1].id.to_string());
    assert_eq!(payloads(&drain(&broker, "", "p", "g").await), [json!([])]);
    let labels = "select count(*) from queen.queues where name = 'q' and namespace = 'q' and task = ''";
    assert_eq!(number(&sql, labels).await, 1, "made as by any push");
}

#[tokio::test]
async fn what_cannot_be_a_message_is_refused_in_words() {
    let db = database().await;
    let (_broker, sql) = (engine(db.url()).await, db.client().await);
    for (call, words) in [
        ("queen.push(null, 'p', '1')", "the queue must not be null"),
        ("queen.push(repeat('ü', 256), 'p', '1')", "queue's name is longer than 255"),
        ("queen.push('q', repeat('x', 256), '1')", "partition's name is longer than 255"),
        ("queen.push('q', 'p', '1', repeat('x', 256))", "transaction id is longer than 255"),
        ("queen.push('q', 'p', '1', '')", "transaction id must not be empty"),
        ("queen.push('q', 'p', to_jsonb(repeat('x', 67108864)))", "larger than 64 MiB"),
        ("queen.push('q', 'p', 'no json')", "invalid input syntax for type json"),
    ] {
        let said = refusal(&sql, &format!("select {call}")).await;
        assert!(said.contains(words), "{call}: {said}");
    }
    run(&sql, "select queen.push(repeat('ü', 255), repeat('x', 255), '1', repeat('x', 255))").await;
    moved(&sql).await;
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 1);
}

#[tokio::test]
async fn pushes_from_sql_do_not_overtake_deferred_ones() {
    let db = database().await;
    let (broker, sql) = (engine_with(idle(db.url())).await, db.client().await);
    push_ids(&broker, "q", "p", &["a"]).await;
    // A deferred push, as a broker under load leaves it.
    let defer = "select queen.defer_pushes(array[gen_random_uuid()], array[p.id], array[1],
                        array[queen.transaction_hash('b', true)],
                        array['{\"transactionId\":\"b\",\"messageId\":\"' || gen_random_uuid() || '\",\"payload\":\"b\"}'], 30, 3, 5)
                 from queen.partitions p";
    run(&sql, defer).await;
    let id = push(&sql, "q", "p", "c").await;
    moved(&sql).await;
    assert_eq!(
        number(&sql, "select count(*) from queen.messages").await,
        1,
        "it waits behind the deferred one"
    );
    let other = engine(db.url()).await;
    let popped = eventually("deferred operations land", async || {
        let popped = pop(&other, named("q", "p").batch(9)).await?;
        if popped.messages.len() < 3 {
            crate::support::ack(&other, &popped.messages[0], queen_protocol::AckStatus::Retry).await;
            return None;
        }
        Some(popped)
    })
    .await;
    assert_eq!(popped.data(), ["a", "b", "c"]);
    assert_eq!(popped.messages[2].id, id);
}

#[tokio::test]
async fn deleting_a_queue_takes_its_rows_along_and_a_later_push_makes_it_anew() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push_ids(&broker, "q", "p", &["old"]).await;
    broker.stop().await;
    run(&sql, "select queen.push('q', 'p', '1'); select queen.push('kept', 'p', '2')").await;
    run(&sql, "delete from queen.queues where name = 'q'").await;
    assert_eq!(number(&sql, "select count(*) from queen.inbox").await, 1);
    let broker = engine(db.url()).await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "kept", "p", "g").await), [2]);
    assert!(pop(&broker, any("q")).await.is_none());
    // Unnoticed by a running broker, repeatedly while it moves rows.
    let (pusher, deleter) = (db.client().await, db.client().await);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        for n in 0..200 {
            push(&pusher, "q", &format!("p{}", n % 3), n).await;
        }
    });
    tasks.spawn(async move {
        for n in 0..30 {
            let text = match n % 2 {
                0 => "delete from queen.queues where name = 'q'",
                _ => "select queen.delete_queue('q')",
            };
            // It may fail because of another session's lock; deletions by hand are repeated.
            let _ = deleter.batch_execute(text).await;
        }
    });
    tasks.join_all().await;
    moved(&sql).await;
    run(&sql, "delete from queen.queues where name = 'q'").await;
    push(&sql, "q", "p0", 1000).await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "p0", "last").await), [1000]);
}

#[tokio::test]
async fn a_second_broker_takes_over_and_only_one_moves_at_a_time() {
    let db = database().await;
    let sql = db.client().await;
    let (a, b) = twins(db.url(), &sql).await;
    let waiting = parked(&b, any("q").wait(LONG)).await;
    push(&sql, "q", "p", 1).await;
    assert_eq!(waiting.answer().await.unwrap().data(), [1], "through either broker");
    assert_eq!(holders(&sql, "queen.inbox.lead").await, 1);
    a.stop().await;
    let waiting = parked(&b, any("q").wait(LONG)).await;
    push(&sql, "q", "r", 2).await;
    assert_eq!(waiting.answer().await.unwrap().data(), [2]);
}

/// Pushes numbers from 0 in several sessions, each into its own partition, until `harm` is over.
/// Then each must be stored once.
async fn under_harm(db: &Database, harm: impl AsyncFnOnce()) {
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut pushers = JoinSet::new();
    for session in 0..3 {
        let (sql, stop) = (db.client().await, stop.clone());
        pushers.spawn(async move {
            let mut n: i32 = 0;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let text = "select queen.push('q', $1, to_jsonb(n), case when n % 2 = 0 then n::text end)
                            from generate_series($2::int, $2 + 2) n";
                sql.execute(text, &[&format!("p{session}"), &n]).await.unwrap();
                n += 3;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (session, usize::try_from(n).unwrap())
        });
    }
    harm().await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    let pushed = pushers.join_all().await;
    let sql = db.client().await;
    let fresh = engine(db.url()).await;
    moved(&sql).await;
    for (session, count) in pushed {
        let found = payloads(&drain(&fresh, "q", &format!("p{session}"), "check").await);
        assert!(found == numbers(0..count), "session {session}: {} of {count}", found.len());
    }
}

#[tokio::test]
async fn whatever_ends_the_moving_session_no_row_is_lost_or_moved_twice() {
    let db = database().await;
    let sql = db.client().await;
    let _brokers = twins(db.url(), &sql).await;
    let busy = "select count(*) from queen.messages";
    under_harm(&db, async || {
        for _ in 0..6 {
            let before = number(&sql, busy).await;
            eventually("rows are moved", async || (number(&sql, busy).await > before).then_some(())).await;
            run(
                &sql,
                "select pg_terminate_backend(l.pid) from pg_locks l
                 where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())
                   and l.objid = (hashtextextended('queen.inbox.lead', 0) & 4294967295)::oid",
            )
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_not_repeated() {
    let db = database().await;
    let sql = db.client().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let _broker = engine(proxy.url()).await;
    under_harm(&db, async || {
        for (round, pattern) in
            ["commit", "commit", "select pg_current_xact_id", "rollback"].into_iter().enumerate()
        {
            if pattern == "rollback" {
                proxy.cut();
                continue;
            }
            proxy.cut_before_reply(Some(pattern.as_bytes()));
            eventually("it is lost", async || (proxy.replies_withheld() > round).then_some(())).await;
        }
    })
    .await;
    drop(sql);
}

#[tokio::test]
async fn rows_wait_during_maintenance() {
    let db = database().await;
    let sql = db.client().await;
    let dir = tempfile::tempdir().unwrap();
    let spool =
        SpoolConfig { dir: dir.path().into(), bytes_max: 1 << 20, file_bytes: 1 << 20, file_records: 100 };
    let broker = engine_with(Config { spool: Some(spool), ..config(db.url()) }).await;
    broker.set_push_maintenance(true).await.unwrap();
    resting(&sql, false).await;
    push(&sql, "q", "p", 1).await;
    // Several times as long as anything else would take.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(number(&sql, "select count(*) from queen.inbox").await, 1);
    broker.set_push_maintenance(false).await.unwrap();
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), [1]);
}

#[tokio::test]
async fn a_row_that_the_log_refuses_is_set_aside_and_other_rows_are_stored() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    // The log refuses no row by itself, so this trigger makes it refuse one.
    push_ids(&broker, "q", "p", &["x"]).await;
    run(
        &sql,
        "create function refuse() returns trigger language plpgsql as $$
         begin
             if new.frames like '%poison%' then raise 'no' using errcode = 'string_data_right_truncation'; end if;
             return new;
         end $$;
         create trigger refuse before insert on queen.segments for each row execute function refuse()",
    )
    .await;
    run(
        &sql,
        "select queen.push('q', 'p', to_jsonb(case n when 2 then 'poison' else 'fine' end)) from generate_series(1, 4) n",
    )
    .await;
    eventually("the others pass", async || {
        (number(&sql, "select count(*) from queen.messages").await == 4).then_some(())
    })
    .await;
    let kept = "select count(*) from queen.inbox where payload = '\"poison\"' and error like '%no (22001)%'";
    assert_eq!(number(&sql, kept).await, 1);
    let text = "select (queen.diagnose(true) #>> '{contents,inbox,refused}')::bigint";
    assert_eq!(number(&sql, text).await, 1);
    let auto = PopRequest { auto_ack: true, ..named("q", "p").batch(9) };
    assert_eq!(pop(&broker, auto).await.unwrap().messages.len(), 4);
}

#[tokio::test]
async fn rows_without_a_place_in_the_order_are_found_by_the_next_leader() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    run(&sql, "set session_replication_role = replica; select queen.push('q', 'p', '1'); reset session_replication_role")
        .await;
    broker.stop().await;
    let broker = engine(db.url()).await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), [1]);
    // The same with a transaction that claims to have pushed before.
    run(&sql, "begin; select set_config('queen.pushed', pg_current_xact_id()::text, true); select queen.push('q', 'p', '2'); commit")
        .await;
    assert_eq!(number(&sql, "select count(*) from queen.inbox_commits").await, 0);
    broker.stop().await;
    let broker = engine(db.url()).await;
    moved(&sql).await;
    assert_eq!(payloads(&drain(&broker, "q", "p", "g").await), [2]);
    send(&broker, &json!([])).await.unwrap();
}
