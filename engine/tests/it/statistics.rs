//! Counts of queues and groups: exact when queried, and corrected in the background.

use std::time::Duration;

use queen_engine::{Config, Engine, QueueFigures, SeekTo};
use queen_protocol::AckStatus::{Completed, Dlq};
use queen_protocol::{PopRequest, QUEUE_MODE, Subscription};
use queen_testkit::database;
use serde_json::json;
use tokio_postgres::Client;

use crate::support::{
    Ask, ack, ack_operation, any, complete, config, configure, drain, engine, engine_with, eventually, named,
    number, pop, push, push_ids, push_operation, push_wide, transact, travel,
};

async fn figures(broker: &Engine, queue: &str) -> QueueFigures {
    broker.queue(queue).await.unwrap().expect("the queue is known")
}

async fn unread(broker: &Engine, queue: &str, group: &str) -> i64 {
    let groups = broker.groups(Some(group), Some(queue), 10, 0).await.unwrap();
    groups.first().unwrap_or_else(|| panic!("{group} reads {queue}")).unread
}

/// Disables measurements from here on: queries return what was counted.
async fn unmeasurable(sql: &Client) {
    let text = "create or replace function queen.measure(
                    p_queue uuid, p_wait boolean, p_replace boolean, p_quiet interval, p_reconcile interval) returns boolean
                language sql as 'select false'";
    sql.batch_execute(text).await.unwrap();
}

#[tokio::test]
async fn a_queue_without_readers_is_unread_and_an_unknown_one_is_unknown() {
    let db = database().await;
    let broker = engine(db.url()).await;
    assert!(broker.queue("q").await.unwrap().is_none());
    push(&broker, "q", "a", 0..3).await;
    push(&broker, "q", "b", 0..2).await;
    let seen = figures(&broker, "q").await;
    assert_eq!((seen.partitions, seen.stored, seen.unread, seen.leased), (2, 5, 5, 0));
}

#[tokio::test]
async fn the_queue_asked_for_is_measured_however_busy_the_machine_is() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    push(&broker, "q", "p", 0..3).await;
    let late =
        "select queen.freshen('q', 1000, interval '-1 second', interval '10 seconds', interval '1 hour')";
    sql.execute(late, &[]).await.unwrap();
    assert_eq!(number(&sql, "select stored::bigint from queen.queue_figures where name = 'q'").await, 3);
}

#[tokio::test]
async fn leased_completed_and_dead_lettered_messages_are_counted_separately() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..10).await;
    let held = pop(&broker, any("q").batch(4)).await.unwrap();
    let seen = figures(&broker, "q").await;
    assert_eq!((seen.stored, seen.unread, seen.leased, seen.dead_letters), (10, 10, 4, 0));
    ack(&broker, &held.messages[2], Completed).await;
    ack(&broker, &held.messages[3], Dlq).await;
    let seen = figures(&broker, "q").await;
    assert_eq!((seen.stored, seen.unread, seen.leased, seen.dead_letters), (10, 6, 0, 1));
}

#[tokio::test]
async fn queue_mode_decides_and_without_it_the_slowest_group() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..10).await;
    drain(&broker, "q", "p", "fast").await;
    complete(&broker, &pop(&broker, any("q").group("slow").batch(3)).await.unwrap()).await;
    assert_eq!(figures(&broker, "q").await.unread, 7);
    assert_eq!((unread(&broker, "q", "fast").await, unread(&broker, "q", "slow").await), (0, 7));
    complete(&broker, &pop(&broker, any("q").batch(9)).await.unwrap()).await;
    assert_eq!(figures(&broker, "q").await.unread, 1);
    assert_eq!(unread(&broker, "q", QUEUE_MODE).await, 1);
}

#[tokio::test]
async fn a_group_counts_what_came_after_it_began_and_only_where_it_reads() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p", 0..5).await;
    let late = PopRequest { subscription: Subscription::New, ..any("q").group("late") };
    assert!(pop(&broker, late).await.is_none());
    push(&broker, "q", "r", 0..2).await;
    assert_eq!(unread(&broker, "q", "late").await, 2);
    // This group reads one partition by its name, and is not a reader of the others.
    complete(&broker, &pop(&broker, named("q", "p").group("narrow")).await.unwrap()).await;
    assert_eq!(unread(&broker, "q", "narrow").await, 4);
}

#[tokio::test]
async fn counting_agrees_with_measuring_whatever_two_brokers_do() {
    let db = database().await;
    let (one, two) = (engine(db.url()).await, engine(db.url()).await);
    let sql = db.client().await;
    push_wide(&one, "q", 0..20).await;
    configure(&one, "q", json!({"retryLimit": 0})).await;
    for group in ["g", QUEUE_MODE] {
        complete(&one, &pop(&one, any("q").group(group)).await.unwrap()).await;
    }
    drain(&one, "q", "p3", "auto").await;
    // Makes every group known.
    figures(&one, "q").await;
    unmeasurable(&sql).await;

    push(&one, "q", "p1", 0..7).await;
    push(&two, "q", "new", 0..5).await;
    push_ids(&two, "q", "p2", &["x", "y", "x"]).await;
    push_ids(&one, "q", "p2", &["x", "z"]).await;
    let held = pop(&two, named("q", "p1").group("g").batch(5)).await.unwrap();
    ack(&two, &held.messages[3], Completed).await;
    drain(&two, "q", "p1", "auto").await;
    let popped = pop(&one, named("q", "p2").batch(2)).await.unwrap();
    let moving = json!({"operations": [
        push_operation("q", "p9", &json!(1)), ack_operation(&popped.messages[1], "completed")]});
    assert!(transact(&one, &moving).await.success);
    let rest = pop(&one, named("q", "p2")).await.unwrap();
    assert!(ack(&one, &rest.messages[0], Dlq).await.success);
    // A lease without an acknowledgement moves nothing.
    drop(pop(&two, named("q", "new").group("g")).await);

    let told = figures(&two, "q").await;
    let told = (figures(&one, "q").await.stored.max(told.stored), figures(&one, "q").await.unread);
    let mut groups = Vec::new();
    for group in ["g", QUEUE_MODE, "auto"] {
        groups.push(unread(&one, "q", group).await);
    }
    let text = "select sum(h.head - h.tail)::bigint from queen.heads h";
    assert_eq!(told.0, number(&sql, text).await);
    let truth = |group: &str, whole: bool| {
        format!(
            "select sum(h.head - greatest(h.tail, coalesce(c.cursor, case when {whole} then h.tail else h.head end)))::bigint
             from queen.heads h left join queen.consumers c
               on c.partition_id = h.partition_id and c.consumer_group = '{group}'"
        )
    };
    assert_eq!(groups[0], number(&sql, &truth("g", true)).await);
    assert_eq!(groups[1], number(&sql, &truth(QUEUE_MODE, true)).await);
    assert_eq!(told.1, groups[1]);
    let counted = number(&sql, "select count(*) from queen.queue_counts where suspect").await;
    assert_eq!(counted, 1, "a dead letter was made, and a broker told a moment ago");
}

#[tokio::test]
async fn seeks_clears_and_retention_are_measured_again() {
    let db = database().await;
    let broker =
        engine_with(Config { retention_interval: Duration::from_millis(50), ..config(db.url()) }).await;
    let sql = db.client().await;
    push(&broker, "q", "a", 0..5).await;
    push(&broker, "q", "b", 0..5).await;
    drain(&broker, "q", "a", "g").await;
    assert_eq!(unread(&broker, "q", "g").await, 0, "it reads a only");
    broker.seek("g", "q", SeekTo::Time(0)).await.unwrap();
    assert_eq!(unread(&broker, "q", "g").await, 10);
    assert_eq!(broker.seek_partition("g", "q", "a", SeekTo::End).await.unwrap(), Some(5));
    assert_eq!(broker.seek_partition("g", "q", "nowhere", SeekTo::End).await.unwrap(), None);
    assert_eq!(unread(&broker, "q", "g").await, 5);
    assert_eq!(broker.clear("q", Some("b")).await.unwrap(), Some(5));
    assert_eq!(broker.clear("q", Some("nowhere")).await.unwrap(), None);
    assert_eq!(broker.clear("nowhere", None).await.unwrap(), None);
    assert_eq!((unread(&broker, "q", "g").await, figures(&broker, "q").await.stored), (0, 5));
    configure(&broker, "q", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    travel(&sql, "2 minutes").await;
    eventually("the rest expires", async || (figures(&broker, "q").await.stored == 0).then_some(())).await;
}

#[tokio::test]
async fn what_was_cleared_is_gone_for_all_brokers_and_may_be_pushed_again() {
    let db = database().await;
    let (one, two) = (engine(db.url()).await, engine(db.url()).await);
    push_ids(&one, "q", "p", &["a", "b"]).await;
    let held = pop(&two, any("q").group("g")).await.unwrap();
    assert_eq!(one.clear("q", None).await.unwrap(), Some(2));
    assert!(drain(&one, "q", "p", "g").await.is_empty() && drain(&two, "q", "p", "g").await.is_empty());
    // An ack of removed messages does no harm.
    ack(&two, &held.messages[0], Completed).await;
    let again = push_ids(&two, "q", "p", &["a", "c"]).await;
    assert!(again.iter().all(|result| result.status == queen_protocol::PushStatus::Queued), "{again:?}");
    assert_eq!(drain(&one, "q", "p", "g").await.len(), 2);
    let seen = figures(&one, "q").await;
    assert_eq!((seen.stored, seen.unread), (2, 0));
}

#[tokio::test]
async fn a_deleted_group_and_a_deleted_queue_leave_no_numbers_behind() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    push(&broker, "q", "p", 0..3).await;
    drain(&broker, "q", "p", "g").await;
    assert_eq!(unread(&broker, "q", "g").await, 0);
    broker.delete_group("g", None, true).await.unwrap();
    assert!(broker.groups(Some("g"), None, 10, 0).await.unwrap().is_empty());
    sql.execute("delete from queen.queues where name = 'q'", &[]).await.unwrap();
    assert!(broker.queue("q").await.unwrap().is_none());
    for table in ["queue_counts", "group_counts", "notable_partitions"] {
        assert_eq!(number(&sql, &format!("select count(*) from queen.{table}")).await, 0, "{table}");
    }
    // A new queue with the same name starts from nothing.
    push(&broker, "q", "p", 0..1).await;
    assert_eq!(figures(&broker, "q").await.unread, 1);
}

#[tokio::test]
async fn the_job_measures_by_itself_and_finds_the_notable_partitions() {
    let db = database().await;
    let often = Duration::from_millis(50);
    let broker = engine_with(Config { statistics_interval: often, ..config(db.url()) }).await;
    let sql = db.client().await;
    push_wide(&broker, "q", 0..30).await;
    push(&broker, "q", "p7", 0..9).await;
    drop(pop(&broker, any("q").group("g")).await);
    travel(&sql, "2 hours").await;
    push(&broker, "q", "p9", 0..1).await;
    let text = "select count(*) from queen.notable_partitions where consumer_group = 'g'";
    eventually("it is measured", async || (number(&sql, text).await == 30).then_some(())).await;
    let worst = broker.lagging_partitions(3600, 100).await.unwrap();
    assert_eq!(worst.len(), 30, "all hold something old");
    assert!(worst.iter().all(|(group, _)| group == "g"));
    assert!(broker.lagging_partitions(3 * 3600, 100).await.unwrap().is_empty());
    let busiest = broker.busiest_partitions(None, Some("g"), 3).await.unwrap();
    assert_eq!((busiest[0].name.as_str(), busiest[0].unread), ("p7", 10));
    assert_eq!((busiest[1].name.as_str(), busiest[1].unread), ("p9", 2));
}

#[tokio::test]
async fn pages_of_partitions_neither_skip_nor_repeat() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..25).await;
    let queue = figures(&broker, "q").await;
    assert_eq!(queue.partitions, 25);
    let (mut by_offset, mut by_name) = (Vec::new(), Vec::new());
    for page in 0..4 {
        let found = broker.queue_partitions(queue.id, None, 8, page * 8).await.unwrap();
        by_offset.extend(found.into_iter().map(|partition| partition.name));
        let after = by_name.last().cloned();
        let found = broker.queue_partitions(queue.id, after.as_deref(), 8, 0).await.unwrap();
        by_name.extend(found.into_iter().map(|partition| partition.name));
    }
    let mut all: Vec<String> = (0..25).map(|n| format!("p{n}")).collect();
    all.sort();
    by_offset.sort();
    let mut sorted = by_name.clone();
    sorted.sort();
    assert_eq!((by_offset, sorted), (all.clone(), all));
}
