//! All operations at once on few rows: locks are taken in one order, so there are no deadlocks.

use std::time::Duration;

use queen_engine::{Config, DeadLetterFilter, Engine, MessageFilter, NewTrace, RedriveAsk, Seek, SeekTo};
use queen_protocol::{AckStatus, ErrorCode, PopRequest};
use queen_testkit::{Random, database};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{
    Ask, ack_of, any, complete, config, configure, disconnected, drain, engine, engine_with, eventually,
    lane, named, number, pop, push, read, send,
};

const STORM: Duration = Duration::from_millis(3_500);

async fn one_of_everything(broker: &Engine, dice: &mut Random) -> Result<(), queen_engine::Error> {
    let queue = format!("q{}", dice.below(2));
    let partition = format!("p{}", dice.below(3));
    let group = format!("g{}", dice.below(2));
    let items = |dice: &mut Random| -> Value {
        let item = |_| {
            json!({"queue": format!("q{}", dice.below(2)), "partition": format!("p{}", dice.below(3)),
                   "transactionId": format!("t{}", dice.below(1_000)), "payload": 1})
        };
        (0..5).map(item).collect()
    };
    let request = PopRequest { partitions: 3, ..any(&queue).group(&group).batch(5) };
    match dice.below(110) {
        0..35 => drop(send(broker, &items(dice)).await?),
        35..75 => {
            let request = if dice.below(2) == 0 { request } else { named(&queue, &partition).group(&group) };
            let Some(body) = broker.pop(request).await? else { return Ok(()) };
            let popped = read(&body);
            let status = [AckStatus::Completed, AckStatus::Failed, AckStatus::Retry, AckStatus::Dlq];
            // Half of them are plain completions, which are executed in another way.
            let kinds = if dice.below(2) == 0 { 1 } else { 4 };
            let acks =
                popped.messages.iter().map(|m| ack_of(m, status[dice.below(kinds) as usize])).collect();
            if dice.below(3) == 0 {
                broker.renew(&popped.lease_id, 60).await?;
            }
            broker.ack(acks).await?;
        }
        75..95 => {
            let Some(body) = broker.pop(request).await? else { return Ok(()) };
            let popped = read(&body);
            let mut operations: Vec<Value> =
                popped.messages.iter().map(|m| crate::support::ack_operation(m, "completed")).collect();
            operations.push(json!({"type": "push", "items": items(dice)}));
            let body = json!({"operations": operations, "requiredLeases": [popped.lease_id]}).to_string();
            broker.transaction(&queen_protocol::TransactionBody::parse(body.as_bytes())?, None).await?;
        }
        95 | 96 => drop(broker.delete_group(&group, Some(&queue), dice.below(2) == 0).await?),
        roll @ (97 | 98) => {
            let to = if roll == 97 { SeekTo::Time(0) } else { SeekTo::End };
            match broker.seek(&group, &queue, Seek { to, create: true }).await {
                // The queue was deleted, and no push has created it again.
                Err(error) if error.code() == ErrorCode::NotFound => {}
                sought => drop(sought?),
            }
        }
        99 => drop(broker.delete_queue(&queue).await?),
        _ => by_hand(broker, dice, queue, &group).await?,
    }
    Ok(())
}

/// Actions on single messages and dead letters.
async fn by_hand(
    broker: &Engine,
    dice: &mut Random,
    queue: String,
    group: &str,
) -> Result<(), queen_engine::Error> {
    let choice = dice.below(6);
    if choice < 3 {
        let filter = MessageFilter { queue: Some(queue), limit: 20, ..Default::default() };
        let page = broker.messages(&filter).await?.messages;
        let Some(message) = page.get(dice.below(20) as usize) else { return Ok(()) };
        let (partition, transaction) = (message.partition_id, message.transaction_id.clone());
        match choice {
            0 => drop(broker.delete_message(partition, &transaction).await?),
            1 => drop(broker.bury_message(partition, &transaction, group, None).await?),
            _ => {
                let (event, data) = ("info".to_owned(), "{}".to_owned());
                let (group, worker, names) = (None, None, vec!["storm".to_owned()]);
                let trace =
                    NewTrace { partition, transaction_id: transaction, group, worker, event, names, data };
                broker.trace(&trace).await?;
            }
        }
    } else if choice == 3 {
        let filter = DeadLetterFilter { queue: Some(queue), limit: 5, ..Default::default() };
        for letter in broker.dead_letters(&filter).await?.0 {
            broker.replay_message(letter.partition_id, &letter.transaction_id).await?;
        }
    } else if choice == 4 {
        let filter = DeadLetterFilter { group: Some(group.to_owned()), ..Default::default() };
        broker.purge_dead_letters(&queue, &filter).await?;
    } else {
        let (target_queue, partition, group, error) = (None, None, None, None);
        let ask = RedriveAsk {
            queue,
            target_queue,
            partition,
            group,
            from: None,
            to: None,
            error,
            shape: None,
            per_second: 1_000,
        };
        broker.start_redrive(&ask).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_storm_of_all_operations_on_few_partitions_causes_no_deadlock_and_no_error() {
    let db = database().await;
    let sql = db.client().await;
    let engines = [engine(db.url()).await, engine(db.url()).await];
    for queue in ["q0", "q1"] {
        configure(&engines[0], queue, json!({"retryLimit": 1})).await;
    }
    let until = Instant::now() + STORM;
    let mut storm = JoinSet::new();
    for worker in 0..16 {
        let broker = engines[worker % 2].clone();
        storm.spawn(async move {
            let mut dice = Random::seeded(worker as u64);
            let (mut done, mut failures) = (0, Vec::new());
            while Instant::now() < until {
                match one_of_everything(&broker, &mut dice).await {
                    Ok(()) => done += 1,
                    Err(error) => failures.push(error.to_string()),
                }
            }
            (done, failures)
        });
    }
    let (mut done, mut least, mut failures) = (0, usize::MAX, Vec::new());
    for (count, failed) in storm.join_all().await {
        done += count;
        least = least.min(count);
        failures.extend(failed);
    }
    // The engines still work.
    for (n, broker) in engines.iter().enumerate() {
        let queue = format!("after{n}");
        push(broker, &queue, "p", 0..3).await;
        assert_eq!(drain(broker, &queue, "p", "g").await.len(), 3);
    }
    let retries: u64 = engines
        .iter()
        .flat_map(|broker| ["push", "pop", "ack", "transaction"].map(|name| lane(broker, name).retries))
        .sum();
    for broker in &engines {
        broker.stop().await;
    }
    disconnected(&sql).await;
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let text = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(number(&sql, text).await, 0, "deadlocks");
    assert!(
        failures.is_empty(),
        "{} of {done} failed ({retries} retries): {:?}",
        failures.len(),
        failures.first()
    );
    // How many there are depends on the machine, but every worker must have done some.
    assert!(least > 0, "of {done} operations one worker has done none");
}

/// A message may fail if its partition is deleted repeatedly; the call itself never returns an error.
#[tokio::test]
async fn pushes_and_pops_beside_deletions_of_their_queue_are_no_errors() {
    let db = database().await;
    let engines = [engine(db.url()).await, engine(db.url()).await];
    let until = Instant::now() + Duration::from_millis(2_500);
    let mut running = JoinSet::new();
    for worker in 0..8 {
        let broker = engines[worker % 2].clone();
        running.spawn(async move {
            let mut failures = Vec::new();
            while Instant::now() < until {
                let item =
                    json!([{"queue": "q", "partition": format!("p{}", worker % 3), "payload": worker}]);
                if let Err(error) = send(&broker, &item).await {
                    failures.push(format!("push: {error}"));
                }
                let request = any("q").group(&format!("g{}", worker % 2)).batch(10);
                if let Err(error) = broker.pop(request).await {
                    failures.push(format!("pop: {error}"));
                }
            }
            failures
        });
    }
    let mut deletions = 0;
    while Instant::now() < until {
        deletions += usize::from(engines[deletions % 2].delete_queue("q").await.unwrap());
    }
    let failures: Vec<String> = running.join_all().await.into_iter().flatten().collect();
    assert!(failures.is_empty(), "{} errors beside {deletions} deletions: {failures:?}", failures.len());
    assert!(deletions > 5, "only {deletions} deletions");
}

/// Flights wait for each other so that they can leave together, but not for one that is stuck.
#[tokio::test]
async fn a_flight_that_waits_for_a_lock_does_not_delay_other_flights() {
    let db = database().await;
    let broker = engine_with(Config { flights: 1, ..config(db.url()) }).await;
    push(&broker, "q", "stuck", 0..1).await;
    push(&broker, "q", "free", 0..1).await;
    let sql = db.client().await;
    sql.batch_execute(
        "begin; select from queen.heads h join queen.partitions p on p.id = h.partition_id
         where p.name = 'stuck' for update of h",
    )
    .await
    .unwrap();
    let mut stuck = JoinSet::new();
    stuck.spawn({
        let broker = broker.clone();
        async move { push(&broker, "q", "stuck", 1..2).await }
    });
    let watcher = db.client().await;
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("the push waits for its lock", async || (number(&watcher, waits).await > 0).then_some(()))
        .await;

    let others = async {
        push(&broker, "q", "free", 1..2).await;
        let popped = pop(&broker, named("q", "free").batch(2)).await.unwrap();
        assert_eq!(popped.data(), [0, 1]);
        complete(&broker, &popped).await;
    };
    tokio::time::timeout(Duration::from_secs(3), others).await.expect("nobody else waits");
    assert!(stuck.try_join_next().is_none());
    sql.batch_execute("rollback").await.unwrap();
    stuck.join_next().await.unwrap().unwrap();
}

/// Both need the deferred operation and the cursor of a group. They must not each hold one and wait for the other.
#[tokio::test]
async fn a_group_is_deleted_beside_its_deferred_acknowledgements() {
    let db = database().await;
    let busy = crate::deferred_acks::deferring(db.url()).await;
    push(&busy, "q", "p", 0..1).await;
    let popped = pop(&busy, named("q", "p").group("g")).await.unwrap();
    complete(&busy, &popped).await;
    let worker = "00000000-0000-7000-8000-000000000000";
    let (deleting, taking) = (db.client().await, db.client().await);
    let lane = "(select partition_id from queen.deferred where consumer_group = 'g')";
    let take = format!(
        "select count(*) from queen.take_deferred('{worker}', array[{lane}], array['g'], 1000, 100000)"
    );
    let claim = format!("select count(*) from queen.claim_deferred('{worker}', 10)");
    assert!(number(&taking, &claim).await > 0);
    // The state of a deletion just before it locks the cursors.
    deleting
        .batch_execute("begin; select from queen.deferred where consumer_group = 'g' for update")
        .await
        .unwrap();
    taking.batch_execute("begin; set local lock_timeout = '2s'").await.unwrap();
    assert_eq!(number(&taking, &take).await, 0, "it is left for later, without a wait");
    let deletion = async { deleting.query_one("select queen.delete_group('g', 'q', true)", &[]).await };
    let (deleted, ended) = tokio::join!(deletion, taking.batch_execute("commit"));
    ended.unwrap();
    assert_eq!(deleted.unwrap().get::<_, i64>(0), 1);
    deleting.batch_execute("commit").await.unwrap();
}

/// Operations behind a locked one do not overtake it.
#[tokio::test]
async fn deferred_operations_behind_a_locked_one_wait_for_it() {
    let db = database().await;
    let busy = crate::deferred::deferring(db.url()).await;
    for n in 0..3 {
        push(&busy, "q", "p", n..n + 1).await;
    }
    let worker = "00000000-0000-7000-8000-000000000000";
    let (holder, taking) = (db.client().await, db.client().await);
    let claim = format!("select count(*) from queen.claim_deferred('{worker}', 10)");
    assert!(number(&taking, &claim).await > 0);
    let second = "begin; select from queen.deferred where id =
        (select id from queen.deferred where queue_name = 'q' order by number offset 1 limit 1) for update";
    holder.batch_execute(second).await.unwrap();
    let lane = "(select distinct partition_id from queen.deferred where queue_name = 'q')";
    let take = format!(
        "select count(*) from queen.take_deferred('{worker}', array[{lane}], array[''], 1000, 100000)"
    );
    taking.batch_execute("set lock_timeout = '2s'").await.unwrap();
    assert_eq!(number(&taking, &take).await, 0, "none of the partition");
    holder.batch_execute("rollback").await.unwrap();
    assert_eq!(number(&taking, &take).await, 3);
}
