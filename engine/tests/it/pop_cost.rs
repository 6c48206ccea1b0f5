//! The database cost of pops: nothing while they wait, and no more with many partitions than with few.

use std::collections::HashMap;
use std::time::Duration;

use queen_protocol::AckStatus::{Completed, Failed};
use queen_protocol::PopRequest;
use queen_testkit::database;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::support::{
    Ask, ack, ack_operation, any, calls, complete, configure, count_calls, disconnected, engine, eventually,
    lane, named, number, pop, push, push_ids, push_operation, push_wide, transact,
};

#[tokio::test]
async fn ten_thousand_parked_pops_cost_the_database_nothing() {
    let db = database().await;
    let sql = db.client().await;
    count_calls(&sql, db.name()).await;
    let broker = engine(db.url()).await;
    push(&broker, "q0", "p", 0..1).await;
    let mut waiting = JoinSet::new();
    for n in 0..10_000 {
        let broker = broker.clone();
        let request = any(&format!("q{}", n % 10)).group(&format!("g{}", n / 10 % 10));
        // The group starts after the existing messages.
        let request = PopRequest { subscription: queen_protocol::Subscription::New, ..request };
        waiting.spawn(async move { pop(&broker, request.wait(Duration::from_secs(60))).await });
    }
    eventually("all are parked", async || (broker.stats().parked == 10_000).then_some(())).await;
    let parked = lane(&broker, "pop");
    // This waits for nothing: it is the idle time that is measured.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(lane(&broker, "pop"), parked, "nobody asks for anything");

    // One message is delivered to one pop of each group, and no other pop is even woken.
    push(&broker, "q0", "p", 1..2).await;
    for _ in 0..10 {
        let popped = waiting.join_next().await.unwrap().unwrap().expect("one of each group gets it");
        assert_eq!(popped.data(), [1]);
    }
    assert_eq!(broker.stats().parked, 9_990);
    assert_eq!(lane(&broker, "pop").entries - parked.entries, 10);

    broker.stop().await;
    waiting.shutdown().await;
    disconnected(&sql).await;
    let calls = calls(&sql).await;
    let of = |name: &str| calls.get(name).copied().unwrap_or(0);
    assert_eq!((of("seed"), of("register_group")), (100, 100), "once per queue and group");
    assert!(of("lease") <= 10, "{calls:?}");
    assert!(of("discover") <= 8, "about one a second, however many wait: {calls:?}");
}

/// Rows read from tables that grow with the number of partitions.
async fn rows_read(sql: &Client) -> i64 {
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let text = "select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint
                from pg_stat_user_tables where schemaname = 'queen'
                and (relname in ('partitions', 'heads', 'consumers') or relname like 'segments%')";
    number(sql, text).await
}

/// The cost of `pops` wildcard pops with their acks, beyond what the first one has to look up.
async fn cost(url: &str, sql: &Client, pops: usize) -> (HashMap<String, i64>, i64, u64) {
    let (calls_before, rows_before) = (calls(sql).await, rows_read(sql).await);
    let broker = engine(url).await;
    for _ in 0..pops {
        let popped = pop(&broker, any("q").group("g")).await.expect("there is enough for all");
        complete(&broker, &popped).await;
    }
    let flights = lane(&broker, "pop").flights;
    broker.stop().await;
    disconnected(sql).await;
    let mut spent = calls(sql).await;
    for (name, before) in calls_before {
        *spent.entry(name).or_default() -= before;
    }
    (spent, rows_read(sql).await - rows_before, flights)
}

#[tokio::test]
async fn a_wildcard_pop_costs_the_same_with_a_hundred_partitions_and_with_five_thousand() {
    let db = database().await;
    let sql = db.client().await;
    count_calls(&sql, db.name()).await;
    let mut per_pop = Vec::new();
    for partitions in [0..100, 100..5_000] {
        let broker = engine(db.url()).await;
        never_analyze(&sql).await;
        push_wide(&broker, "q", partitions).await;
        broker.stop().await;
        disconnected(&sql).await;
        let (few_calls, few_rows, few_flights) = cost(db.url(), &sql, 10).await;
        let (many_calls, many_rows, many_flights) = cost(db.url(), &sql, 40).await;
        assert_eq!((few_flights, many_flights), (10, 40), "one claim a pop");
        for name in ["lease", "fetch", "complete"] {
            assert_eq!((few_calls[name], many_calls[name]), (10, 40), "{name}");
        }
        for name in ["seed", "register_group"] {
            assert_eq!((few_calls[name], many_calls[name]), (1, 1), "{name}");
        }
        per_pop.push((many_rows - few_rows) as f64 / 30.0);
    }
    assert!(per_pop[1] <= per_pop[0] * 1.5 + 2.0, "rows read per pop: {per_pop:?}");
    assert!(per_pop[1] < 40.0, "rows read per pop: {per_pop:?}");
}

/// Keeps the tables without statistics, so that plans show what the planner chooses without them.
async fn never_analyze(sql: &Client) {
    let text = "do $$ declare t text; begin
                    for t in select format('%I.%I', schemaname, tablename) from pg_tables
                             where schemaname = 'queen' and tablename <> 'segments' loop
                        execute format('alter table %s set (autovacuum_enabled = off)', t);
                    end loop;
                end $$";
    sql.batch_execute(text).await.unwrap();
}

/// How often tables that grow with the queue were scanned completely.
async fn scans(sql: &Client) -> i64 {
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let text = "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_user_tables where schemaname = 'queen'
                and (relname in ('partitions', 'heads', 'consumers', 'dead_letter_rows') or relname like 'segments%')";
    number(sql, text).await
}

/// Counted by PostgreSQL itself for the engine's own sessions and statements, so a scan shows
/// whatever the plan looks like.
#[tokio::test]
async fn no_hot_statement_scans_a_table_that_grows_even_without_statistics() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    never_analyze(&sql).await;
    push_wide(&broker, "q", 0..1_000).await;
    configure(&broker, "q", json!({"retryLimit": 0, "windowBuffer": 0})).await;
    // Filling a ready list may scan, once.
    assert!(pop(&broker, any("q").group("g")).await.is_some());
    broker.stop().await;
    disconnected(&sql).await;
    let filled = scans(&sql).await;

    every_operation(db.url()).await;
    disconnected(&sql).await;
    assert_eq!(scans(&sql).await - filled, 0, "tables were read from end to end");
}

/// A queue that was emptied and analyzed leaves statistics of empty tables. A plan made for them must not scan whole
/// indexes when the partitions are back.
#[tokio::test]
async fn no_hot_statement_reads_more_rows_after_statistics_of_empty_tables() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    never_analyze(&sql).await;
    sql.batch_execute(
        "vacuum analyze queen.queues, queen.partitions, queen.heads, queen.consumers, queen.segments_1",
    )
    .await
    .unwrap();
    push_wide(&broker, "q", 0..1_000).await;
    configure(&broker, "q", json!({"retryLimit": 0, "windowBuffer": 0})).await;
    assert!(pop(&broker, any("q").group("g")).await.is_some());
    broker.stop().await;
    disconnected(&sql).await;
    let filled = rows_read(&sql).await;
    every_operation(db.url()).await;
    disconnected(&sql).await;
    let read = rows_read(&sql).await - filled;
    assert!(read < 1_000, "5 rounds of every operation read {read} rows");
}

/// Index entries that were read, including those of dead versions.
async fn entries_read(sql: &Client) -> i64 {
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let text = "select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes
                where schemaname = 'queen' and relname in ('heads', 'consumers')";
    number(sql, text).await
}

/// Dead rows stay while any transaction of the database is open. Reads of frequently updated
/// rows must not go through them.
#[tokio::test]
async fn a_transaction_held_open_elsewhere_makes_no_operation_read_more() {
    let db = database().await;
    let (sql, holder) = (db.client().await, db.client().await);
    engine(db.url()).await.stop().await;
    never_analyze(&sql).await;
    // With some statistics, a bitmap of all entries of a key looks cheaper than reading the newest of them. This
    // setting forces that choice.
    sql.batch_execute(&format!("alter database {} set enable_indexscan = off", db.name())).await.unwrap();
    holder
        .batch_execute("begin isolation level repeatable read; select count(*) from queen.heads")
        .await
        .unwrap();
    let mut read = Vec::new();
    for quarter in 0..4 {
        // Statistics of one live row among many dead ones must not change anything either.
        if quarter == 2 {
            sql.batch_execute("analyze queen.heads, queen.consumers").await.unwrap();
        }
        let before = entries_read(&sql).await;
        let broker = engine(db.url()).await;
        for n in 0..250 {
            push(&broker, "q", "p", n..n + 1).await;
            let popped = pop(&broker, named("q", "p").group("g")).await.unwrap();
            assert!(broker.renew(&popped.lease_id, 60).await.unwrap().success);
            complete(&broker, &popped).await;
        }
        broker.stop().await;
        disconnected(&sql).await;
        read.push(entries_read(&sql).await - before);
    }
    assert_eq!(number(&holder, "select count(*) from queen.heads").await, 0, "it saw none of it");
    assert!(read[3] < read[0] * 3 / 2, "index entries read, quarter by quarter: {read:?}");
}

/// Every operation of the message plane, by two brokers that start with empty caches.
async fn every_operation(url: &str) {
    let (a, b) = (engine(url).await, engine(url).await);
    for n in 0..5 {
        let partition = format!("p{n}");
        push(&a, "q", &partition, 0..3).await;
        push_ids(&b, "q", &partition, &["x", "y"]).await;
        push_ids(&a, "q", &partition, &["x", "z"]).await;
        let popped = pop(&a, named("q", &partition).group("named").batch(6)).await.unwrap();
        assert!(b.renew(&popped.lease_id, 60).await.unwrap().success);
        assert!(ack(&b, &popped.messages[0], Completed).await.success);
        assert!(ack(&a, &popped.messages[1], Failed).await.dlq);
        assert!(ack(&a, &popped.messages[5], Completed).await.lease_released);
        let unread = pop(&a, named("q", &partition).group("named")).await.unwrap();
        let body = json!({"requiredLeases": [unread.lease_id], "operations": [
            push_operation("q", &partition, &json!(n)), ack_operation(&unread.messages[0], "completed")]});
        assert!(transact(&b, &body).await.success);
    }
    configure(&a, "held", json!({"windowBuffer": 60, "delayedProcessing": 60})).await;
    push(&a, "held", "p", 0..3).await;
    assert!(pop(&a, named("held", "p").batch(9)).await.is_none());
    for broker in [a, b] {
        broker.stop().await;
    }
}

/// A consumer that reads on finds the next segments in the cache.
#[tokio::test]
async fn a_cold_read_brings_the_next_segments_along() {
    let db = database().await;
    let writer = engine(db.url()).await;
    for n in 0..4 {
        push(&writer, "q", "p", n..n + 1).await;
    }
    writer.stop().await;
    let cold = engine(db.url()).await;
    for n in 0..4 {
        let popped = pop(&cold, named("q", "p")).await.unwrap();
        assert_eq!(popped.data(), [n]);
        complete(&cold, &popped).await;
    }
    assert_eq!(lane(&cold, "fetch").flights, 1, "one read for four segments");
}

/// From the first pop the broker learns that one partition fills a batch. That must not make the second pop incomplete.
#[tokio::test]
async fn a_pop_of_many_partitions_asks_for_more_when_they_hold_less_than_the_last() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "full", 0..10).await;
    let request = || PopRequest { partitions: 5, ..any("q").batch(10) };
    let full = pop(&broker, request()).await.unwrap();
    assert_eq!(full.data().len(), 10);
    push_wide(&broker, "q", 0..4).await;
    let before = lane(&broker, "pop").items;
    let spread = pop(&broker, request()).await.unwrap();
    assert_eq!(spread.data().len(), 4, "one of each");
    assert_eq!(lane(&broker, "pop").items - before, 4, "one first, then the rest");
    complete(&broker, &spread).await;
}

/// A broker that believes that a group has read a partition omits what only a new reader needs.
#[tokio::test]
async fn a_reader_that_was_forgotten_by_the_database_is_made_again() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..2).await;
    complete(&broker, &pop(&broker, named("q", "p")).await.unwrap()).await;
    sql.execute("delete from queen.consumers", &[]).await.unwrap();
    assert_eq!(pop(&broker, named("q", "p")).await.unwrap().data(), [0]);
}
