//! What pops cost the database: nothing while they wait, and no more with many partitions than with few.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use queen_protocol::PopRequest;
use queen_testkit::database;
use tokio::task::JoinSet;
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::support::{
    Ask, any, calls, complete, count_calls, disconnected, engine, eventually, lane, number, pop, push,
    push_wide,
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
        // The group has read what there is.
        let request = PopRequest { subscription: queen_protocol::Subscription::New, ..request };
        waiting.spawn(async move { pop(&broker, request.wait(Duration::from_secs(60))).await });
    }
    eventually("all are parked", async || (broker.stats().parked == 10_000).then_some(())).await;
    let parked = lane(&broker, "pop");
    // Not to wait for anything: this is the idle time that is measured.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(lane(&broker, "pop"), parked, "nobody asks for anything");

    // One message feeds one pop of each group, and nobody else is even woken.
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
    assert_eq!((of("seed"), of("subscribe")), (100, 100), "once per queue and group");
    assert!(of("lease") <= 10, "{calls:?}");
    assert!(of("discover") <= 8, "about one a second, however many wait: {calls:?}");
}

/// Rows that were read of the tables whose size grows with the partitions.
async fn rows_read(sql: &Client) -> i64 {
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let text = "select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint
                from pg_stat_user_tables where schemaname = 'queen'
                and (relname in ('partitions', 'consumers') or relname like 'segments%')";
    number(sql, text).await
}

/// What `pops` wildcard pops with their acks cost, beyond what the first one has to find out.
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
    let broker = engine(db.url()).await;
    never_analyze(&sql).await;
    let mut per_pop = Vec::new();
    for partitions in [0..100, 100..5_000] {
        push_wide(&broker, "q", partitions).await;
        let (few_calls, few_rows, few_flights) = cost(db.url(), &sql, 10).await;
        let (many_calls, many_rows, many_flights) = cost(db.url(), &sql, 40).await;
        assert_eq!((few_flights, many_flights), (10, 40), "one claim a pop");
        for name in ["lease", "fetch", "ack"] {
            assert_eq!((few_calls[name], many_calls[name]), (10, 40), "{name}");
        }
        for name in ["seed", "subscribe"] {
            assert_eq!((few_calls[name], many_calls[name]), (1, 1), "{name}");
        }
        per_pop.push((many_rows - few_rows) as f64 / 30.0);
    }
    assert!(per_pop[1] <= per_pop[0] * 1.5 + 2.0, "rows read per pop: {per_pop:?}");
    assert!(per_pop[1] < 40.0, "rows read per pop: {per_pop:?}");
}

/// No statistics ever, so that plans show what the planner does without.
async fn never_analyze(sql: &Client) {
    let text = "do $$ declare t text; begin
                    for t in select format('%I.%I', schemaname, tablename) from pg_tables
                             where schemaname = 'queen' and tablename <> 'segments' loop
                        execute format('alter table %s set (autovacuum_enabled = off)', t);
                    end loop;
                end $$";
    sql.batch_execute(text).await.unwrap();
}

/// A session as the engine's own, that says how each statement, also inside procedures, is carried out.
async fn explaining(url: &str, plans: Arc<Mutex<Vec<String>>>, running: &mut JoinSet<()>) -> Client {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    running.spawn(async move {
        let messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        let mut messages = std::pin::pin!(messages);
        while let Some(Ok(message)) = futures_util::StreamExt::next(&mut messages).await {
            if let AsyncMessage::Notice(notice) = message {
                plans.lock().unwrap().push(notice.message().to_owned());
            }
        }
    });
    client
        .batch_execute(
            "load 'auto_explain';
             set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;
             set auto_explain.log_level = notice;
             set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_hashjoin = off;
             set enable_mergejoin = off; set jit = off",
        )
        .await
        .unwrap();
    client
}

#[tokio::test]
async fn no_hot_statement_scans_a_table_that_grows() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    never_analyze(&sql).await;
    push_wide(&broker, "q", 0..1_000).await;
    let popped = pop(&broker, PopRequest { partitions: 3, ..any("q").group("g").batch(3) }).await.unwrap();
    assert_eq!(popped.partitions_claimed, 3);

    let (plans, mut running) = (Arc::default(), JoinSet::new());
    let client = explaining(db.url(), Arc::clone(&plans), &mut running).await;
    let ids =
        "(select array_agg(id order by id) from (select id from queen.partitions order by id limit 3) p)";
    let groups = "array['g', 'g', 'g']";
    for (procedure, statement) in [
        ("queen.push", format!(
            "select * from queen.push({ids}, array[-1, 0, -2], array[1, 1, 1], array[9, 9, 9],
                array_fill(decode(repeat('ab', 16), 'hex'), array[3]), array_fill('{{}}'::text, array[3]),
                array[false, true, false], array[false, false, true])")),
        ("queen.lease", format!(
            "select * from queen.lease(array[0, 1, 2], {ids}, {groups}, array_fill(gen_random_uuid(), array[3]),
                array[0, 0, 0], array[9, 9, 9], array[false, false, true], 1000000)")),
        ("queen.lease", format!(
            "select * from queen.lease(array[0, 1, 2], {ids}, array['new', 'new', 'new'],
                array_fill(gen_random_uuid(), array[3]), array[0, 0, 0], array[9, 9, 9],
                array[false, false, true], 1000000)")),
        ("queen.fetch", format!("select * from queen.fetch({ids}, array[0, 0, 0], array[9, 9, 9])")),
        ("queen.ack", format!(
            "select * from queen.ack({ids}, {groups}, array_fill(null::uuid, array[3]), array[0, 0, 0],
                array[false, false, true], array[1, 1, 0], array[false, false, true], array[false, false, false],
                array[1, 1, 1], array[false, false, false], array[false, false, true],
                array[3], array[false], array[0], array['why'])")),
        ("queen.locate", format!("select * from queen.locate(({ids})[1], 'g', decode(repeat('ab', 16), 'hex'))")),
        ("queen.release", format!(
            "select queen.release({ids}, {groups}, array_fill(gen_random_uuid(), array[3]),
                array[0, 0, 0], array[1, 1, 1])")),
        ("queen.renew", "select * from queen.renew(array_fill(gen_random_uuid(), array[3]), array[1, 2, 3],
                array[60, 60, 60])".to_owned()),
        ("queen.hold", format!(
            "select * from queen.hold(array_fill(gen_random_uuid(), array[3]), array[1, 2, 3], {ids}, {groups})")),
        ("queen.discover", "select * from queen.discover(
                (select max(xid)::text::bigint from queen.segments where partition_id = (select id from
                 queen.partitions order by id limit 1)), array[5::bigint])".to_owned()),
        ("queen.open", "select * from queen.open(array['q', 'q'], array['p1', 'fresh'],
                array[gen_random_uuid(), gen_random_uuid()], array[null, null], array[null, null], true)".to_owned()),
        ("queen.subscribe", "select queen.subscribe('q', 'another', '', true, null)".to_owned()),
    ] {
        plans.lock().unwrap().clear();
        client.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{procedure}: {error:?}"));
        let inner: Vec<String> =
            plans.lock().unwrap().iter().filter(|plan| !plan.contains("order by id limit")).cloned().collect();
        assert!(!inner.is_empty(), "{procedure} has no plans");
        for plan in &inner {
            for table in ["partitions", "consumers", "segments", "queues"] {
                assert!(!plan.contains(&format!("Seq Scan on {table}")), "{procedure}: {plan}");
            }
        }
        // The check above would also pass if nothing were told.
        let told = inner.join("\n");
        assert!(told.contains("Index") || procedure == "queen.subscribe", "{procedure}: {told}");
    }
}
