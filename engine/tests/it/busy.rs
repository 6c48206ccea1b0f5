//! Rows that another session has locked: operations that need them wait, and all other operations in the same flight
//! respond in their usual time.

use std::time::Duration;

use queen_engine::{Config, Engine};
use queen_protocol::AckStatus::{Completed, Failed};
use queen_protocol::{PopRequest, PushStatus};
use queen_testkit::{Database, database};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use crate::support::*;

/// Much less than any time limit on a lock, much more than a flight takes.
const USUAL: Duration = Duration::from_millis(2_500);

/// Everything requested at once shares a flight.
fn crowded(url: &str) -> Config {
    Config { linger: Duration::from_millis(30), ..config(url) }
}

/// Locks the row of a partition in this table, until the client is dropped or the lock is rolled back.
async fn lock(db: &Database, table: &str, partition: &str) -> Client {
    let sql = db.client().await;
    let text = format!(
        "begin; select from queen.{table} t join queen.partitions p on p.id = t.partition_id
         where p.name = '{partition}' for update of t"
    );
    sql.batch_execute(&text).await.unwrap();
    sql
}

async fn unlock(sql: &Client) {
    sql.batch_execute("rollback").await.unwrap();
}

fn partition(number: usize) -> String {
    format!("p{number}")
}

/// One message in each of eight partitions, each with its own lease.
async fn leased(broker: &Engine) -> Vec<Popped> {
    push_wide(broker, "q", 0..8).await;
    let mut popped = Vec::new();
    for number in 0..8 {
        popped.push(pop(broker, named("q", &partition(number))).await.unwrap());
    }
    popped
}

/// Runs calls of which the first needs a locked row. The rest respond in their usual time, and the first one does not.
async fn only_the_first_waits<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> (JoinSet<T>, Vec<T>) {
    let mut calls = calls.into_iter();
    let mut stuck = JoinSet::new();
    stuck.spawn(calls.next().unwrap());
    let others = timeout(USUAL, at_once(calls)).await.expect("the others are answered in their usual time");
    assert!(stuck.try_join_next().is_none(), "the row is locked");
    (stuck, others)
}

#[tokio::test]
async fn an_ack_of_a_locked_cursor_holds_up_no_other_ack_and_no_pop() {
    for status in [Completed, Failed] {
        let db = database().await;
        let broker = engine_with(crowded(db.url())).await;
        let popped = leased(&broker).await;
        push(&broker, "r", "p", 0..1).await;
        let held = lock(&db, "consumers", "p0").await;
        let popping = broker.clone();
        let acks = popped.into_iter().map(|popped| {
            let broker = broker.clone();
            async move { ack(&broker, &popped.messages[0], status).await }
        });
        let ((mut stuck, acked), other) =
            tokio::join!(only_the_first_waits(acks), timeout(USUAL, pop(&popping, any("r"))));
        assert!(acked.iter().all(|result| result.success), "{acked:?}");
        assert!(other.expect("a pop is answered in its usual time").is_some());
        unlock(&held).await;
        let late = stuck.join_next().await.unwrap().unwrap();
        assert!(late.success && late.lease_released, "{late:?}");
    }
}

/// A dead letter refers to its queue and its partition, so writing it needs both rows.
#[tokio::test]
async fn a_dead_letter_of_a_locked_queue_or_partition_holds_up_no_other_ack() {
    for row in ["queen.queues where name = 'given up'", "queen.partitions where name = 'only here'"] {
        let db = database().await;
        let broker = engine_with(crowded(db.url())).await;
        configure(&broker, "given up", json!({"retryLimit": 0})).await;
        push(&broker, "given up", "only here", 0..1).await;
        let mut popped = vec![pop(&broker, any("given up")).await.unwrap()];
        popped.extend(leased(&broker).await);
        let held = db.client().await;
        held.batch_execute(&format!("begin; select from {row} for update")).await.unwrap();
        let acks = popped.into_iter().map(|popped| {
            let broker = broker.clone();
            let status = if popped.partition == "only here" { Failed } else { Completed };
            async move { ack(&broker, &popped.messages[0], status).await }
        });
        let (mut stuck, acked) = only_the_first_waits(acks).await;
        assert!(acked.iter().all(|result| result.success), "{acked:?}");
        unlock(&held).await;
        let late = stuck.join_next().await.unwrap().unwrap();
        assert!(late.success && late.dlq, "{late:?}");
        assert_eq!(dead_letters(&broker, "given up").await.len(), 1);
    }
}

#[tokio::test]
async fn a_new_partition_of_a_queue_that_is_locked_or_not_yet_committed_holds_up_no_other() {
    for lock in [
        "select from queen.queues where name = 'a' for update",
        "insert into queen.queues (name, namespace, task) values ('b', '', '')",
    ] {
        let db = database().await;
        let broker = engine_with(crowded(db.url())).await;
        push(&broker, "a", "p", 0..1).await;
        let held = db.client().await;
        held.batch_execute(&format!("begin; {lock}")).await.unwrap();
        let stuck = if lock.contains("'a'") { "a" } else { "b" };
        // Several pushes are stuck. Others are to new queues: some each to its own, some to the same one.
        let names = (0..8).map(|n| if n < 4 { format!("new {n}") } else { "new".to_owned() });
        let pushes = [stuck.to_owned(), "a".to_owned()].into_iter().chain(names).enumerate();
        let pushes = pushes.filter(|(n, queue)| *n != 1 || queue != stuck).map(|(n, queue)| {
            let broker = broker.clone();
            async move { push(&broker, &queue, &partition(n), n..n + 1).await.remove(0).status }
        });
        let (mut waiting, pushed) = only_the_first_waits(pushes).await;
        assert!(pushed.iter().all(|status| *status == PushStatus::Queued), "{pushed:?}");
        for n in 20..23 {
            let (broker, queue) = (broker.clone(), stuck.to_owned());
            waiting
                .spawn(async move { push(&broker, &queue, &partition(n), n..n + 1).await.remove(0).status });
        }
        let tried = lane(&broker, "open").retries;
        eventually("they are tried again", async || {
            (lane(&broker, "open").retries > tried + 20).then_some(())
        })
        .await;
        let other = timeout(USUAL, push(&broker, "another", "p", 0..1)).await;
        assert_eq!(other.expect("it is not behind them")[0].status, PushStatus::Queued);
        unlock(&held).await;
        let late = timeout(USUAL, waiting.join_all()).await.expect("they are made once the lock is gone");
        assert!(late.iter().all(|status| *status == PushStatus::Queued), "{late:?}");
    }
}

#[tokio::test]
async fn a_push_to_a_locked_partition_holds_up_no_other_and_keeps_its_order() {
    let db = database().await;
    let broker = engine_with(crowded(db.url())).await;
    push_wide(&broker, "q", 0..8).await;
    let held = lock(&db, "heads", "p0").await;
    let pushes = (0..8).map(|number| {
        let broker = broker.clone();
        async move { push(&broker, "q", &partition(number), 100..101).await.remove(0).status }
    });
    let (mut stuck, pushed) = only_the_first_waits(pushes).await;
    assert!(pushed.iter().all(|status| *status == PushStatus::Queued));
    // Later pushes to the same partition stay behind the stuck one.
    for number in 101..104 {
        let pushing = broker.clone();
        let arrived = lane(&broker, "push").retries;
        stuck.spawn(async move { push(&pushing, "q", "p0", number..number + 1).await.remove(0).status });
        eventually("it is tried again", async || (lane(&broker, "push").retries > arrived + 1).then_some(()))
            .await;
    }
    unlock(&held).await;
    timeout(USUAL, stuck.join_all()).await.expect("they are stored once the lock is gone");
    let stored: Vec<Value> = drain(&broker, "q", "p0", "g").await.iter().map(Message::json).collect();
    assert_eq!(stored, [0, 100, 101, 102, 103]);
}

#[tokio::test]
async fn a_request_is_stored_but_for_the_partition_that_stays_locked() {
    let db = database().await;
    let broker = engine_with(Config { retry_for: Duration::from_secs(1), ..crowded(db.url()) }).await;
    push_wide(&broker, "q", 0..3).await;
    let held = lock(&db, "heads", "p1").await;
    let items: Value =
        (0..3).map(|n| json!({"queue": "q", "partition": partition(n), "payload": 7})).collect();
    let pushed = send(&broker, &items).await.unwrap();
    use PushStatus::{Failed, Queued};
    assert_eq!(pushed.iter().map(|result| result.status).collect::<Vec<_>>(), [Queued, Failed, Queued]);
    let reason = pushed[1].error.as_deref().unwrap();
    assert!(reason.contains("locked by another database session"), "{reason}");
    unlock(&held).await;
    assert_eq!(drain(&broker, "q", "p1", "g").await.len(), 1, "it was not stored");
    push(&broker, "q", "p1", 8..9).await;
    assert_eq!(drain(&broker, "q", "p1", "g").await.len(), 1, "and what comes later is");
}

#[tokio::test]
async fn an_ack_of_a_cursor_that_stays_locked_may_be_tried_again() {
    let db = database().await;
    let broker = engine_with(Config { retry_for: Duration::from_secs(1), ..crowded(db.url()) }).await;
    push(&broker, "q", "p", 0..1).await;
    let popped = pop(&broker, any("q")).await.unwrap();
    let held = lock(&db, "consumers", "p").await;
    let error = broker.ack(vec![ack_of(&popped.messages[0], Completed)]).await.unwrap_err();
    assert_eq!(error.code(), queen_protocol::ErrorCode::Unavailable);
    assert!(error.to_string().contains("locked by another database session"), "{error}");
    unlock(&held).await;
    complete(&broker, &popped).await;
}

/// Sessions that wait for the row get it one after another, so that it is never free.
#[tokio::test]
async fn rows_that_are_never_free_are_waited_for() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p0", 0..1).await;
    let mut rivals = JoinSet::new();
    for _ in 0..4 {
        let sql = db.client().await;
        rivals.spawn(async move {
            let text = "begin; select from queen.heads for update; select pg_sleep(0.05); commit";
            while sql.batch_execute(text).await.is_ok() {}
        });
    }
    let watcher = db.client().await;
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("the row is never free", async || (number(&watcher, waits).await > 2).then_some(())).await;
    for number in 1..4 {
        timeout(USUAL, push(&broker, "q", "p0", number..number + 1)).await.expect("it gets its turn");
    }
    rivals.shutdown().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_its_row_is_locked_leaves_nothing_in_the_way() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push(&broker, "q", "p0", 0..1).await;
    let held = lock(&db, "heads", "p0").await;
    let left = timeout(Duration::from_millis(300), push(&broker, "q", "p0", 1..2)).await;
    assert!(left.is_err(), "the row is locked");
    unlock(&held).await;
    timeout(USUAL, push(&broker, "q", "p0", 2..3)).await.expect("the next one is stored");
}

#[tokio::test]
async fn a_renewal_of_a_locked_cursor_holds_up_no_other() {
    let db = database().await;
    let broker = engine_with(crowded(db.url())).await;
    let popped = leased(&broker).await;
    let held = lock(&db, "consumers", "p0").await;
    let renewals = popped.into_iter().map(|popped| {
        let broker = broker.clone();
        async move { broker.renew(&popped.lease_id, 600).await.unwrap().renewed }
    });
    let (mut stuck, renewed) = only_the_first_waits(renewals).await;
    assert_eq!(renewed, [1; 7]);
    unlock(&held).await;
    assert_eq!(stuck.join_next().await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn a_push_that_is_deferred_for_a_locked_partition_holds_up_no_other() {
    let db = database().await;
    let mut config = crowded(db.url());
    (config.deferring.push_utilisation, config.deferring.patience) = (-1.0, Duration::ZERO);
    config.deferring.claim_limit = 0;
    let broker = engine_with(config).await;
    eventually("it defers", async || push(&broker, "probe", "p", 0..1).await[0].ticket.as_ref().map(drop))
        .await;
    push_wide(&broker, "q", 0..8).await;
    let held = lock(&db, "heads", "p0").await;
    let pushes = (0..8).map(|number| {
        let broker = broker.clone();
        async move { push(&broker, "q", &partition(number), 100..101).await[0].ticket.is_some() }
    });
    let (mut stuck, pushed) = only_the_first_waits(pushes).await;
    assert_eq!(pushed, [true; 7]);
    unlock(&held).await;
    assert!(stuck.join_next().await.unwrap().unwrap());
    let worker = engine(db.url()).await;
    for number in 0..8 {
        eventually("both have landed", async || {
            let stored = number_stored(&worker, &partition(number)).await;
            (stored == 2).then_some(())
        })
        .await;
    }
}

async fn number_stored(broker: &Engine, partition: &str) -> usize {
    let request = PopRequest { auto_ack: false, lease_seconds: 1, ..named("q", partition).batch(10) };
    let request = PopRequest { group: uuid::Uuid::now_v7().to_string(), ..request };
    pop(broker, request).await.map_or(0, |popped| popped.messages.len())
}

/// Pushes that find deferred ones ahead of them, in a flight with other pushes.
#[tokio::test]
async fn a_push_behind_deferred_ones_of_a_locked_partition_holds_up_no_other() {
    let db = database().await;
    let busy = crate::deferred::deferring(db.url()).await;
    push(&busy, "q", "p0", 0..1).await;
    let mut config = crowded(db.url());
    config.deferring.claim_limit = 0;
    let broker = engine_with(config).await;
    push_wide(&broker, "q", 1..8).await;
    let held = lock(&db, "heads", "p0").await;
    let pushes = (0..8).map(|number| {
        let broker = broker.clone();
        async move { push(&broker, "q", &partition(number), 100..101).await[0].ticket.is_some() }
    });
    let (mut stuck, deferred) = only_the_first_waits(pushes).await;
    assert_eq!(deferred, [false; 7]);
    unlock(&held).await;
    assert!(stuck.join_next().await.unwrap().unwrap(), "it is put behind the other");
}

#[tokio::test]
async fn an_ack_that_is_deferred_for_a_locked_cursor_holds_up_no_other() {
    let db = database().await;
    let mut config = crowded(db.url());
    (config.deferring.ack_utilisation, config.deferring.patience) = (-1.0, Duration::ZERO);
    config.deferring.claim_limit = 0;
    let broker = engine_with(config).await;
    let popped = leased(&broker).await;
    push(&broker, "probe", "p", 0..1).await;
    let probe = pop(&broker, any("probe")).await.unwrap();
    let again = || vec![leaseless(&probe.messages[0], Completed)];
    eventually("it defers", async || ack_items(&broker, again()).await[0].ticket.is_some().then_some(()))
        .await;
    let held = lock(&db, "consumers", "p0").await;
    let acks = popped.into_iter().map(|popped| {
        let broker = broker.clone();
        async move { ack(&broker, &popped.messages[0], Completed).await.ticket.is_some() }
    });
    let (mut stuck, deferred) = only_the_first_waits(acks).await;
    assert_eq!(deferred, [true; 7]);
    unlock(&held).await;
    assert!(stuck.join_next().await.unwrap().unwrap());
}

/// More transactions than may be in flight at once.
#[tokio::test]
async fn transactions_on_locked_rows_hold_up_no_other() {
    for table in ["heads", "consumers"] {
        let db = database().await;
        let broker = engine(db.url()).await;
        let popped = leased(&broker).await;
        let held = lock(&db, table, "p0").await;
        let transaction = |popped: &Popped, n: usize| {
            let mut operations = vec![push_operation("q", &popped.partition, &json!(n))];
            if n == 0 {
                operations.push(ack_operation(&popped.messages[0], "completed"));
            }
            let body = json!({"operations": operations, "requiredLeases": [popped.lease_id]});
            let broker = broker.clone();
            async move { transact(&broker, &body).await.success }
        };
        let mut stuck = JoinSet::new();
        for n in 0..8 {
            stuck.spawn(transaction(&popped[0], n));
        }
        eventually("they are tried again", async || (lane(&broker, "transaction").retries > 8).then_some(()))
            .await;
        let others = at_once(popped[1..].iter().map(|popped| transaction(popped, 0)));
        let others = timeout(USUAL, others).await.expect("the others are answered in their usual time");
        assert_eq!(others, [true; 7]);
        assert!(stuck.try_join_next().is_none(), "the row is locked");
        unlock(&held).await;
        let done = timeout(2 * USUAL, stuck.join_all()).await.expect("they are done once the lock is gone");
        // The first acknowledgement ends the lease that the later ones depend on.
        assert!(done.iter().filter(|success| **success).count() > 0, "{done:?}");
    }
}

/// The first pop of a group in a partition adds its cursor, under the lock of the partition.
#[tokio::test]
async fn a_new_reader_of_a_locked_partition_holds_up_no_other_pop() {
    let db = database().await;
    let broker = engine_with(crowded(db.url())).await;
    push_wide(&broker, "q", 0..8).await;
    let held = db.client().await;
    held.batch_execute("begin; select from queen.partitions where name = 'p0' for no key update")
        .await
        .unwrap();
    let pops = (0..8).map(|number| {
        let broker = broker.clone();
        let request = named("q", &partition(number)).group("g").wait(Duration::from_secs(10));
        async move { data(&broker, request).await }
    });
    let (mut stuck, popped) = only_the_first_waits(pops).await;
    assert_eq!(popped.concat(), (1..8).map(Value::from).collect::<Vec<_>>());
    unlock(&held).await;
    assert_eq!(stuck.join_next().await.unwrap().unwrap(), [0]);
}

/// How many claims a broker has sent so far.
fn claims(broker: &Engine) -> u64 {
    lane(broker, "pop").flights
}

#[tokio::test]
async fn a_pop_that_waits_beside_a_locked_cursor_asks_ever_less_often() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for request in [any("q"), named("q", "p")] {
        push(&broker, "q", "p", 0..1).await;
        assert!(pop(&broker, PopRequest { auto_ack: true, ..request.clone() }).await.is_some());
        push(&broker, "q", "p", 1..2).await;
        let held = lock(&db, "consumers", "p").await;
        let before = claims(&broker);
        let waited = Instant::now();
        assert!(pop(&broker, request.clone().wait(Duration::from_secs(2))).await.is_none(), "it is locked");
        assert!(waited.elapsed() >= Duration::from_secs(2));
        let asked = claims(&broker) - before;
        assert!((3..30).contains(&asked), "{asked} claims in two seconds");

        let mut popping = JoinSet::new();
        let waiting = broker.clone();
        let request = PopRequest { auto_ack: true, ..request.wait(Duration::from_secs(20)) };
        popping.spawn(async move { data(&waiting, request).await });
        let before = claims(&broker);
        eventually("it has asked", async || (claims(&broker) > before).then_some(())).await;
        unlock(&held).await;
        let got = timeout(USUAL, popping.join_next()).await.expect("soon after the lock is gone");
        assert_eq!(got.unwrap().unwrap(), [1]);
    }
}

#[tokio::test]
async fn a_locked_cursor_keeps_a_wildcard_pop_from_no_other_partition() {
    let db = database().await;
    let broker = engine(db.url()).await;
    push_wide(&broker, "q", 0..2).await;
    for _ in 0..2 {
        let popped = pop(&broker, any("q")).await.unwrap();
        complete(&broker, &popped).await;
    }
    // This partition was served longest ago, so it is tried first.
    push_wide(&broker, "q", 0..1).await;
    let held = lock(&db, "consumers", "p0").await;
    push_wide(&broker, "q", 1..2).await;
    for wait in [None, Some(Duration::from_secs(5))] {
        let popping = pop(&broker, PopRequest { wait, ..any("q") });
        let popped = timeout(USUAL, popping).await.unwrap().expect("another partition is ready");
        assert_eq!(popped.partition, "p1");
        complete(&broker, &popped).await;
        push_wide(&broker, "q", 1..2).await;
    }
    unlock(&held).await;
}

/// A short lock is no reason to return nothing.
#[tokio::test]
async fn a_pop_that_does_not_wait_outlasts_a_moment_s_lock() {
    let db = database().await;
    let broker = engine(db.url()).await;
    for request in [any("q"), named("q", "p")] {
        push(&broker, "q", "p", 0..1).await;
        assert!(pop(&broker, PopRequest { auto_ack: true, ..request.clone() }).await.is_some());
        push(&broker, "q", "p", 1..2).await;
        let held = lock(&db, "consumers", "p").await;
        let before = claims(&broker);
        let (popped, ()) = tokio::join!(data(&broker, PopRequest { auto_ack: true, ..request }), async {
            eventually("it has asked", async || (claims(&broker) > before + 1).then_some(())).await;
            unlock(&held).await;
        });
        assert_eq!(popped, [1]);
    }
}

#[tokio::test]
async fn a_push_that_has_waited_behind_one_that_was_given_up_does_not_begin_to_wait_anew() {
    let db = database().await;
    let broker = engine_with(Config { retry_for: Duration::from_secs(1), ..config(db.url()) }).await;
    push(&broker, "q", "p", 0..1).await;
    let _held = lock(&db, "heads", "p").await;
    let pushes = (0..6).map(|_| {
        let broker = broker.clone();
        async move { send(&broker, &large("q", "p", 1)).await.map(drop) }
    });
    let began = Instant::now();
    for refused in at_once(pushes).await {
        assert_eq!(refused.unwrap_err().code(), queen_protocol::ErrorCode::Unavailable);
    }
    assert!(began.elapsed() < Duration::from_secs(4), "not one after the other: {:?}", began.elapsed());
}

#[tokio::test]
async fn what_comes_behind_a_part_of_a_request_that_was_given_up_is_given_up_as_well() {
    let db = database().await;
    let broker = engine_with(Config { retry_for: Duration::from_millis(500), ..config(db.url()) }).await;
    push(&broker, "q", "p", 0..1).await;
    let held = lock(&db, "heads", "p").await;
    let items = large("q", "p", 3);
    let others = async {
        eventually("the first part is given up", async || (lane(&broker, "push").errors > 0).then_some(()))
            .await;
        unlock(&held).await;
    };
    let (pushed, ()) = tokio::join!(send(&broker, &items), others);
    assert!(pushed.is_err(), "{pushed:?}");
    assert_eq!(drain(&broker, "q", "p", "g").await.len(), 1);
}
