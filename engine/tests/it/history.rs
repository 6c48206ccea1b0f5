//! History: what brokers did is recorded minute by minute, adds up, and stays as long as it should.

use std::time::Duration;

use queen_engine::{Config, DAY, Engine, HOUR, HistoryFilter, Point};
use queen_protocol::AckStatus::{Completed, Dlq};
use queen_testkit::{Proxy, database};
use serde_json::json;
use tokio_postgres::Client;

use crate::support::{
    Ask, ack_all, any, at_once, calls, complete, config, configure, count_calls, disconnected, engine,
    engine_with, eventually, named, number, parked, pop, push, push_operation, push_wide, send, transact,
    travel,
};

const MINUTE: i64 = 60_000_000;

fn of(queue: &str) -> HistoryFilter {
    HistoryFilter { queue: Some(queue.to_owned()), ..HistoryFilter::default() }
}

async fn total(engine: &Engine, filter: &HistoryFilter) -> Point {
    engine.history(filter).await.unwrap().total
}

/// A broker of this name.
async fn named_engine(url: &str, name: &str) -> Engine {
    engine_with(Config { name: name.to_owned(), ..config(url) }).await
}

/// Microseconds since 1970 by the clock of this database.
async fn now(sql: &Client) -> i64 {
    number(sql, "select (extract(epoch from queen.now()) * 1000000)::bigint").await
}

#[tokio::test]
async fn work_is_reported_at_once_and_exactly_once() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "q", json!({"retryLimit": 0})).await;
    push(&broker, "q", "p", 0..3).await;
    push(&broker, "q", "r", 0..1).await;
    let popped = pop(&broker, named("q", "p").batch(3)).await.unwrap();
    assert!(pop(&broker, named("q", "empty")).await.is_none());
    ack_all(&broker, &popped.messages, &[Completed, Completed, Dlq]).await;
    transact(&broker, &json!({"operations": [push_operation("q", "p", &json!(1))]})).await;
    for _ in 0..2 {
        let told = total(&broker, &of("q")).await;
        let counts = &told.counts;
        assert_eq!((counts.push_requests, counts.push_messages), (2, 5));
        assert_eq!((counts.pop_requests, counts.pop_messages, counts.pop_empty), (2, 3, 1));
        assert_eq!((counts.ack_requests, counts.ack_success, counts.ack_failed), (1, 3, 0));
        assert_eq!((counts.transactions, counts.dead_letters, counts.lag_count), (1, 1, 3));
        assert!(counts.lag_us_max > 0 && counts.lag_us >= counts.lag_us_max);
        assert_eq!(
            total(&broker, &HistoryFilter::default()).await.counts,
            *counts,
            "the sum over all queues"
        );
    }
    let (_, points) = broker.queue_history(&of("q")).await.unwrap();
    assert_eq!(points.iter().map(|point| point.counts.partitions_created).sum::<u64>(), 2);
    assert_eq!(broker.partition_counts(&["q", "gone"]).await.unwrap(), [("q".to_owned(), 2)].into());
    for (namespace, messages) in [("q", 5), ("other", 0)] {
        let labels = HistoryFilter { namespace: Some(namespace.to_owned()), ..HistoryFilter::default() };
        assert_eq!(total(&broker, &labels).await.counts.push_messages, messages);
    }
    assert_eq!(total(&broker, &of("nothing")).await.counts.push_messages, 0);
}

#[tokio::test]
async fn what_two_brokers_do_adds_up() {
    let db = database().await;
    let first = named_engine(db.url(), "one:1").await;
    let second = named_engine(db.url(), "two:2").await;
    push(&first, "q", "p", 0..3).await;
    push(&second, "q", "p", 0..4).await;
    total(&first, &of("q")).await;
    // The first broker's counts have to be stored before the second one can report them.
    assert_eq!(total(&second, &of("q")).await.counts.push_messages, 7);
    assert_eq!(total(&second, &HistoryFilter::default()).await.counts.push_messages, 7);
    for (host, messages) in [("one", 3), ("two", 4), ("three", 0)] {
        let filter = HistoryFilter { hostname: Some(host.to_owned()), ..HistoryFilter::default() };
        assert_eq!(total(&second, &filter).await.counts.push_messages, messages);
        let filter = HistoryFilter { queue: Some("q".to_owned()), ..filter };
        assert_eq!(total(&second, &filter).await.counts.push_messages, messages, "{host}");
    }
    let workers = second.history(&HistoryFilter::default()).await.unwrap().workers;
    let names: Vec<_> = workers.iter().map(|worker| (worker.hostname.as_str(), worker.port)).collect();
    assert_eq!(names, [("one", 1), ("two", 2)]);
    assert_eq!(second.cluster_totals().push_messages, 7);
    total(&first, &of("q")).await;
    push(&first, "q", "p", 0..1).await;
    assert_eq!(first.cluster_totals().push_messages, 8, "also what is not written down yet");
    let state = second.cluster_state().await;
    assert_eq!(state.brokers.len(), 2);
    first.stop().await;
    assert_eq!(second.cluster_state().await.brokers.len(), 1, "it said goodbye");
    assert_eq!(
        total(&second, &of("q")).await.counts.push_messages,
        8,
        "and had its last minute written down"
    );
}

#[tokio::test]
async fn steps_are_as_wide_as_the_range_asks_for() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    push(&broker, "q", "p", 0..1).await;
    total(&broker, &of("q")).await;
    let began = now(&sql).await;
    // The clock moves by two minutes, and then by more than an hour.
    for (interval, messages) in [("2 minutes", 2), ("67 minutes", 4)] {
        travel(&sql, interval).await;
        total(&broker, &of("q")).await;
        push(&broker, "q", "p", 0..messages).await;
    }
    total(&broker, &of("q")).await;
    for (length, step) in [(2 * HOUR, 5), (20 * HOUR, 15), (3 * DAY, 60), (20 * DAY, 360)] {
        let to = now(&sql).await;
        let filter = HistoryFilter { from: Some(to - length), to: Some(to), ..of("q") };
        let told = broker.history(&filter).await.unwrap();
        assert_eq!(told.range.bucket, step);
        assert_eq!(told.total.counts.push_messages, 7);
        let width = i64::from(step) * MINUTE;
        assert!(told.points.iter().all(|point| point.at % width == 0), "{:?}", told.points);
        let busy: Vec<_> = told.points.iter().filter(|point| point.counts.push_messages > 0).collect();
        assert!(busy.windows(2).all(|pair| pair[0].at < pair[1].at));
        assert_eq!(busy.len() > 1, busy[0].at < to - width, "{busy:?}");
    }
    let minute = HistoryFilter { from: Some(began - MINUTE), to: Some(began), ..of("q") };
    let told = broker.history(&minute).await.unwrap();
    assert_eq!((told.range.bucket, told.total.counts.push_messages), (1, 1), "the others came later");
}

#[tokio::test]
async fn the_past_outlives_the_broker_and_goes_with_its_queue() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..3).await;
    push(&broker, "kept", "p", 0..2).await;
    broker.stop().await;
    let again = engine(db.url()).await;
    assert_eq!(total(&again, &of("q")).await.counts.push_messages, 3);
    assert_eq!(again.cluster_totals().push_messages, 5);
    again.delete_queue("q").await.unwrap();
    assert_eq!(number(&sql, "select count(*) from queen.queue_minutes where queue_name = 'q'").await, 0);
    assert_eq!(total(&again, &of("kept")).await.counts.push_messages, 2);
    assert_eq!(total(&again, &HistoryFilter::default()).await.counts.push_messages, 5, "it did happen");
    // Later counts of a deleted queue are not stored either.
    assert!(pop(&again, any("q")).await.is_none());
    total(&again, &of("q")).await;
    assert_eq!(number(&sql, "select count(*) from queen.queue_minutes where queue_name = 'q'").await, 0);
}

#[tokio::test]
async fn a_minute_of_a_thousand_queues_is_one_call() {
    let db = database().await;
    let sql = db.client().await;
    count_calls(&sql, db.name()).await;
    let broker = engine(db.url()).await;
    let items = (0..1_000).map(|n| json!({"queue": format!("q{n}"), "partition": "p", "payload": n}));
    send(&broker, &items.collect()).await.unwrap();
    broker.stop().await;
    disconnected(&sql).await;
    assert_eq!(number(&sql, "select count(*) from queen.queue_minutes").await, 1_000);
    let recorded = calls(&sql).await["record_minute"];
    assert!(recorded <= 2, "one for each minute that the test ran in: {recorded}");
    assert_eq!(number(&sql, "select value from queen.totals where name = 'push_messages'").await, 1_000);
}

#[tokio::test]
async fn an_answer_that_gets_lost_is_not_counted_twice() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    for round in 1..=5 {
        push(&broker, "q", "p", 0..1).await;
        // The name of a result column, so the response is lost after the commit.
        proxy.cut_before_reply(Some(b"ack_messages"));
        let (asking, filter) = (broker.clone(), of("q"));
        let cut = async {
            eventually("an answer is withheld", async || (proxy.replies_withheld() == round).then_some(()))
                .await;
        };
        let (told, ()) = tokio::join!(total(&asking, &filter), cut);
        assert_eq!(told.counts.push_messages, round as u64);
    }
    assert_eq!(broker.cluster_totals().push_messages, 5);
}

#[tokio::test]
async fn old_minutes_become_hours_and_leave_in_the_end() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    total(&broker, &of("q")).await;
    let text = "insert into queen.queue_minutes (minute, broker, queue_name, push_messages, lag_us_max, parked)
                select date_trunc('hour', now()) - interval '5 days' + n * interval '1 minute', gen.id, 'q', 1, n, 3
                from generate_series(0, 119) n, (values ('00000000-0000-0000-0000-00000000000a'::uuid)) gen (id);
                insert into queen.broker_minutes (minute, broker, port, hostname, worker_id, samples, loop_lag_us,
                                                  loop_lag_us_max, free_slots_min, db_connections, metrics)
                select m.minute, m.broker, 7, 'old', 'old:7', 2, 10, m.lag_us_max, m.lag_us_max, 4,
                       jsonb_build_object('memory.rss_bytes', jsonb_build_object(
                           'avg', m.lag_us_max, 'min', m.lag_us_max - 1, 'max', m.lag_us_max + 1, 'last', m.lag_us_max))
                from queen.queue_minutes m where m.parked = 3";
    sql.batch_execute(text).await.unwrap();
    let to = now(&sql).await;
    let filter = HistoryFilter { from: Some(to - 6 * DAY), to: Some(to), ..of("q") };
    let before = broker.history(&filter).await.unwrap();
    let metrics = broker.broker_metrics(&filter).await.unwrap().1;
    assert_eq!(
        (before.points[0].samples, before.points[0].free_slots_min, metrics[0].samples),
        (120, 0, 120)
    );
    while sql.query_one("select queen.fold_minutes('3 days')", &[]).await.unwrap().get(0) {}
    let old = "select count(*) from queen.queue_minutes where minute < now() - interval '1 day'";
    assert_eq!(number(&sql, old).await, 2, "an hour each");
    let after = broker.history(&filter).await.unwrap();
    assert_eq!(after.total.counts.push_messages, 121);
    assert_eq!(after.points[..2], before.points[..2], "in steps of an hour nothing has changed");
    assert_eq!(broker.broker_metrics(&filter).await.unwrap().1[..2], metrics[..2]);
    assert_eq!((metrics[1].lowest, metrics[1].highest, metrics[1].latest), (59.0, 120.0, 119.0));
    let swept = number(&sql, "select queen.sweep_minutes('4 days', 1)").await;
    assert_eq!((swept, number(&sql, old).await), (1, 1), "no more than asked for");
    number(&sql, "select queen.sweep_minutes('4 days', 100)").await;
    assert_eq!(number(&sql, old).await, 0);
    assert_eq!(total(&broker, &of("q")).await.counts.push_messages, 1);
}

#[tokio::test]
async fn a_broker_that_was_started_again_within_a_minute_is_counted_once() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..1).await;
    total(&broker, &of("q")).await;
    let minute = |broker: &str, worker: &str, samples: u32, active: u32| {
        format!(
            r#"insert into queen.broker_minutes (minute, broker, port, hostname, worker_id, samples, free_slots, db_connections, metrics)
               values (date_trunc('hour', now()) - interval '2 days', '{broker}', 7, 'old', '{worker}', {samples}, {samples} * (32 - {active}), 32,
                       '{{"database.pool_active": {{"avg": {active}}}, "database.pool_size": {{"avg": 32}}}}')"#
        )
    };
    let told = async || {
        let to = now(&sql).await;
        let filter =
            HistoryFilter { from: Some(to - 3 * DAY), to: Some(to - DAY), ..HistoryFilter::default() };
        let points = broker.history(&filter).await.unwrap().points;
        assert_eq!(points.len(), 1);
        (points[0].db_connections, points[0].pool_size, points[0].pool_active)
    };
    sql.batch_execute(&minute("00000000-0000-0000-0000-00000000000a", "old:7", 3, 0)).await.unwrap();
    assert_eq!(told().await, (32.0, 32.0, 0.0));
    sql.batch_execute(&minute("00000000-0000-0000-0000-00000000000b", "old:7", 9, 4)).await.unwrap();
    assert_eq!(told().await, (32.0, 32.0, 3.0), "each for its part of the minute");
    sql.batch_execute(&minute("00000000-0000-0000-0000-00000000000c", "other:7", 12, 5)).await.unwrap();
    assert_eq!(told().await, (64.0, 64.0, 8.0), "another broker is another one");
}

#[tokio::test]
async fn parked_pops_and_removed_messages_are_reported() {
    let db = database().await;
    let sql = db.client().await;
    let often = Duration::from_millis(50);
    let settings = Config { metrics_sample: often, retention_interval: often, ..config(db.url()) };
    let broker = engine_with(settings).await;
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    push(&broker, "q", "p", 0..4).await;
    complete(&broker, &pop(&broker, named("q", "p").batch(4)).await.unwrap()).await;
    let waiting = parked(&broker, any("q").wait(Duration::from_secs(20))).await;
    let told = eventually("the parked pop is seen", async || {
        let (_, points) = broker.parked_history(&of("q")).await.unwrap();
        points.first().cloned()
    })
    .await;
    assert_eq!((told.queue.as_str(), told.hostname.as_str(), told.parked), ("q", "test", 1));
    drop(waiting);
    travel(&sql, "61 seconds").await;
    let removed = eventually("messages are removed", async || {
        let told = total(&broker, &HistoryFilter::default()).await;
        (told.expired_age > 0).then_some(told)
    })
    .await;
    assert_eq!((removed.expired_age, removed.expired_completed, removed.expired_wait), (4, 0, 0));
    assert!(removed.expiries >= 1);
}

#[tokio::test]
async fn brokers_measure_themselves() {
    let db = database().await;
    let settings = Config { metrics_sample: Duration::from_millis(20), ..config(db.url()) };
    let broker = engine_with(settings).await;
    let told = eventually("some samples were taken", async || {
        let (_, metrics) = broker.broker_metrics(&HistoryFilter::default()).await.unwrap();
        (metrics.first()?.samples > 3).then_some(metrics)
    })
    .await;
    let metric = |name: &str| told.iter().find(|metric| metric.name == name).unwrap();
    assert!(metric("memory.rss_bytes").latest > 1e6);
    assert_eq!(metric("database.pool_size").average, 8.0);
    for metric in &told {
        assert!(
            metric.lowest <= metric.average + 1e-6 && metric.average <= metric.highest + 1e-6,
            "{metric:?}"
        );
        assert_eq!((metric.hostname.as_str(), metric.port, metric.worker_id.as_str()), ("test", 1, "test:1"));
    }
    let point = total(&broker, &HistoryFilter::default()).await;
    assert!(point.samples > 3 && point.free_slots_min <= 8 && point.rss_bytes > 1e6, "{point:?}");
}

#[tokio::test]
async fn partitions_that_were_deleted_are_counted() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..3).await;
    sql.batch_execute("delete from queen.partitions where name in ('p0', 'p1')").await.unwrap();
    let (_, points) = broker.queue_history(&of("q")).await.unwrap();
    assert_eq!(points.iter().map(|point| point.partitions_deleted).sum::<u64>(), 2);
    assert_eq!(broker.partition_counts(&["q"]).await.unwrap()["q"], 1);
}

#[tokio::test]
async fn rates_are_those_of_the_last_full_minute() {
    let db = database().await;
    let sql = db.client().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..3).await;
    push(&broker, "r", "p", 0..5).await;
    total(&broker, &of("q")).await;
    // Moves the clock into the minute after the recorded one, far enough for all brokers to have stored it.
    let text = "do $do$ begin execute format($f$
                    create or replace function queen.now() returns timestamptz language sql volatile parallel safe
                    as $$ select timestamptz %L + interval '70 seconds' $$ $f$,
                    (select max(m.minute) from queen.queue_minutes m where m.queue_name = 'r')); end $do$";
    sql.batch_execute(text).await.unwrap();
    broker.cluster_state().await;
    let rates: Vec<_> =
        broker.queue_rates().into_iter().map(|rate| (rate.queue, rate.push_messages)).collect();
    assert!(rates.contains(&("r".to_owned(), 5)), "{rates:?}");
    assert_eq!(rates[0].0, "r", "the busiest first");
}

#[tokio::test]
async fn history_is_recorded_without_a_request() {
    let db = database().await;
    let sql = db.client().await;
    let settings = Config {
        metrics_sample: Duration::from_millis(20),
        metrics_aggregate: Duration::from_millis(100),
        ..config(db.url())
    };
    let broker = engine_with(settings).await;
    for round in 1..=3 {
        push(&broker, "q", "p", 0..1).await;
        let written = "select coalesce(sum(push_messages), 0)::bigint from queen.queue_minutes";
        eventually("it is written", async || (number(&sql, written).await == round).then_some(())).await;
    }
}

#[tokio::test]
async fn unwritten_history_is_kept_and_written_later() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let settings = Config { retry_for: Duration::from_millis(100), ..config(proxy.url()) };
    let broker = engine_with(settings).await;
    push(&broker, "q", "p", 0..3).await;
    proxy.refuse(true);
    proxy.cut();
    for _ in 0..3 {
        assert!(broker.history(&of("q")).await.is_err());
    }
    assert_eq!(broker.cluster_totals().push_messages, 3);
    assert_eq!(broker.cluster_state().await.brokers.len(), 1, "as it was last known");
    proxy.refuse(false);
    let told = eventually("the database is back", async || broker.history(&of("q")).await.ok()).await;
    assert_eq!(told.total.counts.push_messages, 3);
    assert_eq!(broker.cluster_totals().push_messages, 3);
}

#[tokio::test]
async fn many_may_ask_at_once() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..2).await;
    let asking = (0..8).map(|_| {
        let broker = broker.clone();
        async move { total(&broker, &of("q")).await.counts.push_messages }
    });
    assert_eq!(at_once(asking).await, [2; 8]);
}
