//! Replays of dead letters, one or many: each once, in order, no matter which process dies meanwhile.

use std::time::Duration;

use queen_engine::{Config, Engine, Error, Redrive, RedriveAsk};
use queen_protocol::AckStatus;
use queen_testkit::{Proxy, database};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::crypt::{ONE, encrypt, holding};
use crate::letters::dead_of;
use crate::support::{
    Ask, ack_all, any, calls, config, count_calls, dead_letters, drain, engine, engine_with, eventually,
    named, number, pop, push, push_ids, travel,
};

fn all_of(queue: &str, per_second: i32) -> RedriveAsk {
    RedriveAsk {
        queue: queue.to_owned(),
        target_queue: None,
        partition: None,
        group: None,
        from: None,
        to: None,
        error: None,
        shape: None,
        per_second,
    }
}

/// Makes `count` messages in each of these partitions dead letters of `g`.
async fn dead(engine: &Engine, queue: &str, partitions: &[&str], count: usize) {
    for partition in partitions {
        push(engine, queue, partition, 0..count).await;
        let popped = pop(engine, named(queue, partition).group("g").batch(count as u32)).await.unwrap();
        assert_eq!(popped.messages.len(), count);
        ack_all(engine, &popped.messages, &vec![AckStatus::Dlq; count]).await;
    }
}

async fn started(engine: &Engine, ask: &RedriveAsk) -> Uuid {
    engine.start_redrive(ask).await.unwrap().expect("the queue exists").id
}

async fn state(engine: &Engine, id: Uuid) -> Redrive {
    engine.redrive(id).await.unwrap().expect("it is known")
}

async fn completed(engine: &Engine, id: Uuid) -> Redrive {
    eventually("the redrive is done", async || {
        Some(state(engine, id).await).filter(|redrive| redrive.status == "completed")
    })
    .await
}

/// What a new group reads in a partition after the first `behind` messages.
async fn replayed(engine: &Engine, queue: &str, partition: &str, behind: usize) -> Vec<i64> {
    let messages = drain(engine, queue, partition, &Uuid::new_v4().to_string()).await;
    messages.iter().skip(behind).map(|message| message.json().as_i64().unwrap()).collect()
}

async fn letters(sql: &Client) -> i64 {
    number(sql, "select count(*) from queen.dead_letters").await
}

#[tokio::test]
async fn one_dead_letter_is_pushed_again_under_a_new_transaction_and_is_gone() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = push_ids(&broker, "q", "p", &["a"]).await[0].partition_id;
    assert!(broker.replay_message(partition, "a").await.unwrap().is_none(), "it is alive");
    // Two groups gave up on it, and it is pushed once.
    for group in ["g", "h"] {
        let popped = pop(&broker, any("q").group(group)).await.unwrap();
        ack_all(&broker, &popped.messages, &[AckStatus::Dlq]).await;
    }
    let again = broker.replay_message(partition, "a").await.unwrap().unwrap();
    assert_eq!((again.queue.as_str(), again.partition.as_str()), ("q", "p"));
    assert_eq!((again.push.partition_id, again.push.queue_name.as_str()), (partition, "q"));
    assert_ne!(again.push.transaction_id, "a");
    assert_eq!(dead_letters(&broker, "q").await.len(), 0);
    let popped = pop(&broker, any("q").group("g")).await.unwrap();
    assert_eq!((popped.messages[0].id, popped.messages[0].data.get()), (again.push.message_id, "\"a\""));
    assert_eq!(popped.messages[0].transaction_id, again.push.transaction_id);
    assert!(broker.replay_message(partition, "a").await.unwrap().is_none());
    assert!(broker.replay_message(Uuid::nil(), "a").await.unwrap().is_none());
}

#[tokio::test]
async fn a_replay_whose_commit_was_not_confirmed_happened_once() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    dead(&broker, "q", &["p"], 1).await;
    let letter = dead_letters(&broker, "q").await.remove(0);
    proxy.cut_before_reply(Some(b"commit"));
    let again = broker.replay_message(letter.partition_id, &letter.transaction_id).await.unwrap();
    assert!(again.is_some());
    assert_eq!(replayed(&broker, "q", "p", 1).await, [0]);
    assert_eq!(dead_letters(&broker, "q").await.len(), 0);
}

#[tokio::test]
async fn a_redrive_replays_all_that_match_each_partition_in_order() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", &["p", "r", "s"], 30).await;
    dead(&broker, "other", &["p"], 1).await;
    assert_eq!(broker.count_redrive(&all_of("q", 100)).await.unwrap(), Some(90));
    assert_eq!(broker.count_redrive(&all_of("nothing", 100)).await.unwrap(), None);
    assert!(broker.start_redrive(&all_of("nothing", 100)).await.unwrap().is_none());
    let only = |partition: &str| RedriveAsk { partition: Some(partition.to_owned()), ..all_of("q", 5_000) };
    assert_eq!(broker.count_redrive(&only("r")).await.unwrap(), Some(30));
    let redrive = completed(&broker, started(&broker, &only("r")).await).await;
    assert_eq!((redrive.total, redrive.done, redrive.failed), (30, 30, 0));
    assert!(redrive.rate > 0.0 && redrive.finished_at.is_some());
    assert_eq!(dead_letters(&broker, "q").await.len(), 60);
    let redrive = completed(&broker, started(&broker, &all_of("q", 5_000)).await).await;
    assert_eq!((redrive.total, redrive.done), (60, 60));
    for partition in ["p", "r", "s"] {
        assert_eq!(replayed(&broker, "q", partition, 30).await, (0..30).collect::<Vec<i64>>(), "{partition}");
    }
    assert_eq!(dead_letters(&broker, "other").await.len(), 1);
    assert_eq!(broker.redrives(10, 0).await.unwrap().len(), 2);
    assert_eq!(broker.redrives(10, 0).await.unwrap()[0].id, redrive.id, "newest first");
}

#[tokio::test]
async fn filters_choose_and_another_queue_may_be_the_target() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", &["p"], 3).await;
    let mut ask = RedriveAsk { error: Some("NO USE".to_owned()), ..all_of("q", 1_000) };
    assert_eq!(broker.count_redrive(&ask).await.unwrap(), Some(3));
    let other = RedriveAsk { error: Some("timeout".to_owned()), ..ask.clone() };
    assert_eq!(broker.count_redrive(&other).await.unwrap(), Some(0));
    let other = RedriveAsk { group: Some("nobody".to_owned()), ..ask.clone() };
    assert_eq!(broker.count_redrive(&other).await.unwrap(), Some(0));
    let other = RedriveAsk { to: Some(0), ..ask.clone() };
    assert_eq!(broker.count_redrive(&other).await.unwrap(), Some(0));
    ask.target_queue = Some("fresh".to_owned());
    completed(&broker, started(&broker, &ask).await).await;
    assert_eq!(replayed(&broker, "fresh", "p", 0).await, [0, 1, 2]);
    assert_eq!(replayed(&broker, "q", "p", 3).await, [0_i64; 0]);
}

#[tokio::test]
async fn what_fails_again_is_not_taken_round_and_round() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", &["p"], 4).await;
    let id = started(&broker, &all_of("q", 20)).await;
    // The messages fail again as fast as they are replayed.
    let redrive = eventually("it ends", async || {
        if let Some(popped) = pop(&broker, named("q", "p").group("g").batch(10)).await {
            let statuses = vec![AckStatus::Dlq; popped.messages.len()];
            ack_all(&broker, &popped.messages, &statuses).await;
        }
        Some(state(&broker, id).await).filter(|redrive| redrive.status == "completed")
    })
    .await;
    assert_eq!((redrive.total, redrive.done), (4, 4));
}

#[tokio::test]
async fn the_reason_why_a_letter_stays_contains_no_procedure_names() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", &["p"], 1).await;
    let poison = "alter table queen.segments add constraint poison check (false) not valid";
    db.client().await.batch_execute(poison).await.unwrap();
    let id = started(&broker, &all_of("q", 20)).await;
    let redrive = eventually("it ends", async || {
        Some(state(&broker, id).await).filter(|redrive| redrive.status != "running" && redrive.failed > 0)
    })
    .await;
    let why = redrive.error.unwrap();
    assert!(why.contains("poison") && !why.contains("queen."), "{why}");
}

#[tokio::test]
async fn a_cancelled_redrive_stops_and_leaves_the_rest() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", &["p"], 50).await;
    let id = started(&broker, &all_of("q", 1)).await;
    eventually("it begins", async || (state(&broker, id).await.done > 0).then_some(())).await;
    let cancelled = broker.cancel_redrive(id).await.unwrap().unwrap();
    assert_eq!(cancelled.status, "cancelled");
    let left = dead_letters(&broker, "q").await.len();
    let done = state(&broker, id).await.done;
    assert_eq!((left as i64 + done, done < 10), (50, true));
    assert_eq!(replayed(&broker, "q", "p", 50).await, (0..done).collect::<Vec<i64>>());
    assert!(broker.cancel_redrive(Uuid::nil()).await.unwrap().is_none());
    assert_eq!(broker.cancel_redrive(id).await.unwrap().unwrap().status, "cancelled");
}

#[tokio::test]
async fn letters_of_two_groups_are_one_message() {
    let db = database().await;
    let broker = engine(db.url()).await;
    dead(&broker, "q", &["p"], 3).await;
    let popped = pop(&broker, named("q", "p").group("h").batch(3)).await.unwrap();
    ack_all(&broker, &popped.messages, &[AckStatus::Dlq; 3]).await;
    let redrive = completed(&broker, started(&broker, &all_of("q", 1_000)).await).await;
    assert_eq!((redrive.total, redrive.done), (6, 6));
    assert_eq!(replayed(&broker, "q", "p", 3).await, [0, 1, 2]);
}

#[tokio::test]
async fn when_its_broker_is_cut_off_another_goes_on_exactly_there() {
    let db = database().await;
    let sql = db.client().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let settings = Config { retry_for: Duration::from_millis(200), ..config(proxy.url()) };
    let first = engine_with(settings).await;
    dead(&first, "q", &["p", "r"], 60).await;
    let id = started(&first, &all_of("q", 20)).await;
    eventually("it is under way", async || (state(&first, id).await.done >= 20).then_some(())).await;
    // Interrupted at any point: a step may be half done.
    proxy.refuse(true);
    proxy.cut();
    let second = engine(db.url()).await;
    let before = state(&second, id).await;
    assert_eq!(before.status, "running");
    assert_eq!(before.done + letters(&sql).await, 120, "replayed or still there");
    travel(&sql, "1 minute").await;
    sql.batch_execute("update queen.redrives set per_second = 1000").await.unwrap();
    // The first broker comes back while the second one works, and must not interfere.
    eventually("the second goes on", async || (state(&second, id).await.done > before.done).then_some(()))
        .await;
    proxy.refuse(false);
    let redrive = completed(&second, id).await;
    assert_eq!((redrive.total, redrive.done), (120, 120));
    assert_eq!(letters(&sql).await, 0);
    for partition in ["p", "r"] {
        assert_eq!(replayed(&second, "q", partition, 60).await, (0..60).collect::<Vec<i64>>(), "{partition}");
    }
}

#[tokio::test]
async fn letters_of_one_shape_are_replayed_also_by_the_broker_that_takes_over() {
    let db = database().await;
    let sql = db.client().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let settings = Config { retry_for: Duration::from_millis(200), ..config(proxy.url()) };
    let first = engine_with(settings).await;
    let errors: Vec<String> = (0..60)
        .map(|n| if n % 2 == 0 { format!("timeout after {n} s") } else { format!("no such customer {n}") })
        .collect();
    let errors: Vec<Option<&str>> = errors.iter().map(|error| Some(error.as_str())).collect();
    dead_of(&first, "q", "p", &errors).await;
    let ask = RedriveAsk { shape: Some("timeout after # s".to_owned()), ..all_of("q", 10) };
    assert_eq!(first.count_redrive(&ask).await.unwrap(), Some(30));
    let none = RedriveAsk { shape: Some(String::new()), ..ask.clone() };
    assert_eq!(first.count_redrive(&none).await.unwrap(), Some(0), "all have an error");
    let id = started(&first, &ask).await;
    assert_eq!(state(&first, id).await.shape.as_deref(), Some("timeout after # s"));
    eventually("it is under way", async || (state(&first, id).await.done >= 5).then_some(())).await;
    proxy.refuse(true);
    proxy.cut();
    travel(&sql, "1 minute").await;
    sql.batch_execute("update queen.redrives set per_second = 1000").await.unwrap();
    let second = engine(db.url()).await;
    let redrive = completed(&second, id).await;
    assert_eq!((redrive.total, redrive.done), (30, 30));
    assert_eq!(replayed(&second, "q", "p", 60).await, (0..60).step_by(2).collect::<Vec<i64>>());
    let left = dead_letters(&second, "q").await;
    assert!(left.iter().all(|letter| letter.error.as_deref().unwrap().starts_with("no such customer")));
    assert_eq!(left.len(), 30);
}

#[tokio::test]
async fn steps_whose_commit_was_not_confirmed_happened_once() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    dead(&broker, "q", &["p"], 40).await;
    proxy.cut_before_reply(Some(b"commit"));
    let id = started(&broker, &all_of("q", 10)).await;
    eventually("it is under way", async || (state(&broker, id).await.done >= 10).then_some(())).await;
    proxy.cut_before_reply(Some(b"commit"));
    let redrive = completed(&broker, id).await;
    assert_eq!((redrive.total, redrive.done), (40, 40));
    assert_eq!(replayed(&broker, "q", "p", 40).await, (0..40).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_redrive_into_a_queue_that_must_not_be_made_does_not_begin() {
    let db = database().await;
    let (free, sql) = (engine(db.url()).await, db.client().await);
    dead(&free, "q", &["p"], 3).await;
    push(&free, "there", "p", 0..1).await;
    let into = |target: &str| RedriveAsk { target_queue: Some(target.to_owned()), ..all_of("q", 1_000) };
    for refusing in
        [Config { auto_create: false, ..config(db.url()) }, Config { queues_max: 2, ..config(db.url()) }]
    {
        let expected = match refusing.auto_create {
            true => Error::QueueLimit(2),
            false => Error::NoQueue("new".to_owned()),
        };
        let broker = engine_with(refusing).await;
        let refused = broker.start_redrive(&into("new")).await.unwrap_err();
        assert_eq!(refused.to_string(), expected.to_string());
        assert_eq!(broker.redrives(10, 0).await.unwrap().len(), 0);
        let nowhere = RedriveAsk { queue: "none".to_owned(), ..into("there") };
        assert!(broker.start_redrive(&nowhere).await.unwrap().is_none());
        broker.stop().await;
    }
    assert_eq!(letters(&sql).await, 3);
    let strict = engine_with(Config { auto_create: false, queues_max: 2, ..config(db.url()) }).await;
    let id = started(&strict, &into("there")).await;
    assert_eq!(completed(&strict, id).await.done, 3);
    dead(&free, "q", &["p"], 2).await;
    let id = started(&free, &into("new")).await;
    assert_eq!(completed(&free, id).await.done, 2);
    assert_eq!(replayed(&free, "new", "p", 0).await.len(), 2);
}

#[tokio::test]
async fn a_redrive_takes_what_was_counted_and_nothing_that_fails_between_the_count_and_its_beginning() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    dead(&broker, "q", &["p"], 3).await;
    sql.batch_execute(
        "create table counted as select * from queen.count_redrive('q', null, null, null, null, null, null)",
    )
    .await
    .unwrap();
    dead(&broker, "q", &["r"], 2).await;
    let id = Uuid::now_v7();
    let text = "select queen.add_redrive($1, 'q', null, null, null, null, c.until, null, null, 1000, c.total) from counted c";
    for _ in 0..2 {
        assert_eq!(
            sql.query_one(text, &[&id]).await.unwrap().get::<_, i32>(0),
            0,
            "sent twice it starts once"
        );
    }
    let done = completed(&broker, id).await;
    assert_eq!((done.total, done.done, letters(&sql).await), (3, 3, 2));
}

#[tokio::test]
async fn a_redrive_that_stands_before_a_locked_partition_does_not_spin() {
    let db = database().await;
    let (sql, mut other) = (db.client().await, db.client().await);
    let keeper = holding(db.url(), Some(ONE), None).await;
    dead(&keeper, "q", &["readable"], 1).await;
    encrypt(&keeper, "q").await;
    dead(&keeper, "q", &["unreadable"], 1).await;
    let first = "select count(*) from queen.partitions p
                 where p.name = 'readable' and p.id < (select o.id from queen.partitions o where o.name = 'unreadable')";
    assert_eq!(number(&sql, first).await, 1);
    keeper.stop().await;
    count_calls(&sql, db.name()).await;

    let lock = other.transaction().await.unwrap();
    let heads = "select from queen.heads h join queen.partitions p on p.id = h.partition_id
                 where p.name = 'readable' for update of h";
    lock.execute(heads, &[]).await.unwrap();
    let broker = engine(db.url()).await;
    let id = started(&broker, &all_of("q", 100)).await;
    let looks = async || calls(&sql).await.get("redrive_letters").copied().unwrap_or(0);
    let before = eventually("it begins", async || Some(looks().await).filter(|looks| *looks > 0)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let seen = looks().await - before;
    assert!(seen < 10, "{seen} looks in three seconds");

    lock.rollback().await.unwrap();
    let redrive = eventually("the rest is done", async || {
        Some(state(&broker, id).await).filter(|redrive| redrive.done + redrive.failed == 2)
    })
    .await;
    assert_eq!((redrive.done, redrive.failed), (1, 1));
    assert_eq!(dead_letters(&broker, "q").await[0].partition, "unreadable");
}

#[tokio::test]
async fn a_redrive_begins_while_another_is_never_at_rest() {
    let db = database().await;
    let keeper = holding(db.url(), Some(ONE), None).await;
    encrypt(&keeper, "slow").await;
    dead(&keeper, "slow", &["p"], 4_000).await;
    dead(&keeper, "quick", &["p"], 1).await;
    keeper.stop().await;
    // Without the key, each dead letter of the first queue is refused individually.
    let broker = engine(db.url()).await;
    let slow = started(&broker, &all_of("slow", 1_000)).await;
    eventually("it begins", async || (state(&broker, slow).await.failed > 0).then_some(())).await;
    let quick = started(&broker, &all_of("quick", 1_000)).await;
    completed(&broker, quick).await;
    assert_eq!(state(&broker, slow).await.status, "running");
}
