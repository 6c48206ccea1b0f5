//! Calls that are abandoned at any moment, and statements that the network delays: no other call is affected.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use queen_engine::{Config, Engine, Error, Keys, SeekTo};
use queen_protocol::AckStatus::Completed;
use queen_protocol::{Configure, PushStatus, TransactionBody};
use queen_testkit::{Database, Proxy, database};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::support::*;

/// Much less than any time limit of these engines, much more than a call takes.
const USUAL: Duration = Duration::from_millis(2_500);

/// Drops a call at its `n`th await, counted from 1. `None` if the call was done before.
async fn dropped_at<T>(n: usize, call: impl Future<Output = T>) -> Option<()> {
    let mut call = pin!(call);
    let mut polls = 0;
    std::future::poll_fn(|context| {
        if call.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        polls += 1;
        if polls == n { Poll::Ready(Some(())) } else { Poll::Pending }
    })
    .await
}

/// Few connections, so that the next call gets the one that the abandoned call has used.
fn narrow(url: &str) -> Config {
    Config { connections: 2, ..config(url) }
}

/// Checks that no session of an engine is in a transaction that would never end.
async fn no_transaction_is_left(sql: &Client) {
    let text = "select count(*) from pg_stat_activity where datname = current_database()
                and application_name = 'queen' and state like 'idle in transaction%'";
    eventually("no transaction is left", async || (number(sql, text).await == 0).then_some(())).await;
}

/// Pushes a message, and checks that another session sees it once the push is reported as stored.
async fn a_push_is_committed(broker: &Engine, sql: &Client, id: &str) {
    let stored = push_ids(broker, "probe", "p", &[id]).await;
    assert_eq!(stored[0].status, PushStatus::Queued);
    let text =
        format!("select count(*) from queen.messages where queue = 'probe' and transaction_id = '{id}'");
    assert_eq!(number(sql, &text).await, 1, "{id} was answered and is not stored");
}

/// Makes one message of queue `q`, partition `p`, a dead letter of group `g`.
async fn bury(broker: &Engine, id: &str) -> queen_protocol::PushResult {
    let pushed = push_ids(broker, "q", "p", &[id]).await.remove(0);
    broker.bury_message(pushed.partition_id, id, "g", None).await.unwrap();
    pushed
}

#[tokio::test]
async fn a_replay_may_be_abandoned_at_any_await() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    pop(&broker, named("q", "p").group("g")).await.unwrap();
    let mut abandoned = 0;
    for n in 1.. {
        let id = format!("dead {n}");
        let letter = bury(&broker, &id).await;
        let gone = dropped_at(n, broker.replay_message(letter.partition_id, &id)).await;
        a_push_is_committed(&broker, &sql, &format!("probe {n}")).await;
        if gone.is_none() {
            break;
        }
        abandoned += 1;
        // The replay continues without its caller.
        let text = format!("select count(*) from queen.dead_letters where transaction_id = '{id}'");
        eventually("it is replayed", async || (number(&sql, &text).await == 0).then_some(())).await;
    }
    assert!(abandoned > 0, "it waits at least once");
    no_transaction_is_left(&sql).await;
}

/// Waits until a session of an engine waits for a lock.
async fn blocked(sql: &Client, sessions: i64) {
    let text = "select count(*) from pg_stat_activity where datname = current_database()
                and application_name = 'queen' and wait_event_type = 'Lock'";
    eventually("a call is blocked", async || (number(sql, text).await == sessions).then_some(())).await;
}

#[tokio::test]
async fn a_replay_abandoned_inside_its_transaction_affects_no_other_call() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    pop(&broker, named("q", "p").group("g")).await.unwrap();
    let letter = bury(&broker, "dead").await;
    let holder = db.client().await;
    holder.batch_execute("begin; select from queen.heads for update").await.unwrap();
    let mut replay = JoinSet::new();
    replay.spawn({
        let broker = broker.clone();
        async move { broker.replay_message(letter.partition_id, "dead").await }
    });
    blocked(&sql, 1).await;
    replay.shutdown().await;
    holder.batch_execute("rollback").await.unwrap();
    for n in 0..20 {
        a_push_is_committed(&broker, &sql, &format!("probe {n}")).await;
    }
    no_transaction_is_left(&sql).await;
}

/// The sessions of an engine, from `pg_stat_activity`.
async fn sessions(sql: &Client) -> BTreeSet<String> {
    let text = "select pid || ' since ' || backend_start from pg_stat_activity
                where datname = current_database() and application_name = 'queen'";
    sql.query(text, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn reads_that_are_abandoned_cost_no_connection() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    listening(&sql, 1).await;
    push(&broker, "q", "p", 0..1).await;
    let before = sessions(&sql).await;
    let mut abandoned = 0;
    for _ in 0..25 {
        for n in 1..=3 {
            abandoned += usize::from(dropped_at(n, broker.live_keys()).await.is_some());
        }
    }
    assert!(abandoned >= 25, "{abandoned} calls were dropped before their answer");
    broker.live_keys().await.unwrap();
    let after = sessions(&sql).await;
    assert!(before.is_subset(&after), "{before:?} became {after:?}");
}

#[tokio::test]
async fn a_session_with_many_abandoned_calls_is_replaced_with_what_they_left_in_it() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    listening(&sql, 1).await;
    push(&broker, "q", "p", 0..1).await;
    let before = sessions(&sql).await;
    let mut abandoned = 0;
    while before.is_subset(&sessions(&sql).await) {
        abandoned += usize::from(dropped_at(1, broker.live_keys()).await.is_some());
        assert!(abandoned < 1_000, "the sessions of {abandoned} abandoned calls are still there");
    }
    assert!(abandoned >= 50, "{abandoned} abandoned calls have cost a session");
    a_push_is_committed(&broker, &sql, "afterward").await;
}

#[tokio::test]
async fn a_rewind_that_is_abandoned_is_heard_by_the_broker_itself() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    listening(&sql, 1).await;
    push(&broker, "q", "p", 0..3).await;
    for n in 1.. {
        drain(&broker, "q", "p", "g").await;
        assert!(pop(&broker, any("q").group("g")).await.is_none());
        let gone = dropped_at(n, broker.seek("g", "q", SeekTo::Time(0))).await;
        let text = "select cursor from queen.consumers where consumer_group = 'g'";
        eventually("the cursor is moved", async || (number(&sql, text).await == 0).then_some(())).await;
        eventually("it is read again", async || pop(&broker, any("q").group("g")).await).await;
        broker.seek("g", "q", SeekTo::Time(0)).await.unwrap();
        if gone.is_none() {
            break;
        }
    }
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_heard_by_the_broker_itself() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine_with(Config { retry_for: Duration::ZERO, ..config(proxy.url()) }).await;
    let sql = db.client().await;
    listening(&sql, 1).await;
    push(&broker, "q", "p", 0..3).await;
    drain(&broker, "q", "p", "rewound").await;
    assert!(pop(&broker, any("q").group("rewound")).await.is_none());
    proxy.cut_before_reply(Some(b"rewound"));
    assert!(broker.seek("rewound", "q", SeekTo::Time(0)).await.is_err());
    assert_eq!(number(&sql, "select cursor from queen.consumers").await, 0, "it was committed");
    eventually("it is read again", async || pop(&broker, any("q").group("rewound")).await).await;
}

/// A change of queue `q` that its broker has to act on.
#[derive(Debug, Clone, Copy)]
enum Change {
    Seek,
    Encrypt,
    Delete,
}

impl Change {
    const ALL: [Self; 3] = [Self::Seek, Self::Encrypt, Self::Delete];

    async fn make(self, broker: &Engine) -> Result<(), Error> {
        match self {
            Self::Seek => broker.seek("g", "q", SeekTo::Time(0)).await.map(drop),
            Self::Encrypt => {
                let body = json!({"queue": "q", "options": {"encryptionEnabled": true}}).to_string();
                broker.configure(&Configure::parse(body.as_bytes()).unwrap()).await.map(drop)
            }
            Self::Delete => broker.delete_queue("q").await.map(drop),
        }
    }

    /// `cached`: bytes of messages in the cache before the change.
    async fn is_acted_on(self, broker: &Engine, cached: usize) {
        let mut n = 0;
        eventually("the broker acts on it", async || match self {
            Self::Seek => pop(broker, any("q").group("g")).await.map(drop),
            Self::Encrypt => {
                n += 1;
                let id = format!("secret {n}");
                let pushed = push_ids(broker, "q", "p", &[&id]).await.remove(0);
                let stored = broker.message(pushed.partition_id, &id).await.unwrap().unwrap();
                stored.encrypted.then_some(())
            }
            Self::Delete => {
                assert!(broker.queue("q").await.unwrap().is_none());
                // Its messages are no longer in memory.
                (broker.stats().segment_cache.bytes < cached).then_some(())
            }
        })
        .await;
        if let Self::Delete = self {
            assert!(pop(broker, any("q").group("g")).await.is_none());
            push_ids(broker, "q", "p", &["another"]).await;
            let popped = pop(broker, any("q").group("g").batch(9)).await.unwrap();
            assert_eq!(popped.data(), ["another"]);
        }
    }
}

#[tokio::test]
async fn a_change_that_is_abandoned_at_its_commit_or_whose_answer_is_lost_is_acted_on() {
    const KEY: &str = "one:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    for change in Change::ALL {
        for lost in [false, true] {
            let db = database().await;
            let proxy = Proxy::to_postgres(db.url()).await;
            let keys = Keys::parse(Some(KEY), None).unwrap();
            let broker = engine_with(Config { keys, retry_for: Duration::ZERO, ..config(proxy.url()) }).await;
            let sql = db.client().await;
            listening(&sql, 1).await;
            push(&broker, "q", "p", 0..3).await;
            drain(&broker, "q", "p", "g").await;
            assert!(pop(&broker, any("q").group("g")).await.is_none());
            let mut cached = broker.stats().segment_cache.bytes;
            if lost {
                // Every note that a change sends as part of its commit contains these bytes.
                proxy.cut_before_reply(Some(b"\"committed\":true"));
                assert!(change.make(&broker).await.is_err(), "{change:?}");
                assert_eq!(proxy.replies_withheld(), 1);
            } else {
                let holder = db.client().await;
                holder
                    .batch_execute(
                        "begin; select from queen.queues for update; select from queen.consumers for update",
                    )
                    .await
                    .unwrap();
                let mut call = JoinSet::new();
                call.spawn({
                    let broker = broker.clone();
                    async move { change.make(&broker).await }
                });
                blocked(&sql, 1).await;
                call.shutdown().await;
                // If the change were ended, this would be long enough.
                for n in 0..20 {
                    a_push_is_committed(&broker, &sql, &format!("probe {n}")).await;
                }
                blocked(&sql, 1).await;
                cached = broker.stats().segment_cache.bytes;
                holder.batch_execute("rollback").await.unwrap();
            }
            change.is_acted_on(&broker, cached).await;
        }
    }
}

#[tokio::test]
async fn a_message_is_deleted_or_buried_although_its_caller_went_away() {
    let db = database().await;
    let patience = Duration::from_secs(60);
    let patient = Config { lock_timeout: patience, statement_timeout: patience, ..narrow(db.url()) };
    let (broker, sql) = (engine_with(patient).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    pop(&broker, named("q", "p").group("g")).await.unwrap();
    for deletes in [true, false] {
        let id = if deletes { "deleted" } else { "buried" };
        let pushed = push_ids(&broker, "q", "p", &[id]).await.remove(0);
        let holder = db.client().await;
        let head =
            format!("select from queen.heads where partition_id = '{}' for update", pushed.partition_id);
        holder.batch_execute(&format!("begin; {head}")).await.unwrap();
        let mut call = JoinSet::new();
        call.spawn({
            let broker = broker.clone();
            async move {
                match deletes {
                    true => broker.delete_message(pushed.partition_id, id).await.map(drop),
                    false => broker.bury_message(pushed.partition_id, id, "g", None).await.map(drop),
                }
            }
        });
        blocked(&sql, 1).await;
        call.shutdown().await;
        // If the call were ended, this would be long enough.
        for n in 0..20 {
            a_push_is_committed(&broker, &sql, &format!("probe {id} {n}")).await;
        }
        blocked(&sql, 1).await;
        holder.batch_execute("rollback").await.unwrap();
        let done = match deletes {
            true => "select count(*) from queen.skips where consumer_group is null",
            false => "select count(*) from queen.dead_letters where transaction_id = 'buried'",
        };
        eventually("it is done", async || (number(&sql, done).await == 1).then_some(())).await;
    }
    no_transaction_is_left(&sql).await;
}

#[tokio::test]
async fn a_blocked_call_that_is_abandoned_is_ended_and_delays_no_other() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    let holder = db.client().await;
    holder.batch_execute("begin; lock table queen.traces in access exclusive mode").await.unwrap();
    for n in 0..5 {
        let mut read = JoinSet::new();
        read.spawn({
            let broker = broker.clone();
            async move { broker.named_traces("t", 10, 0).await.map(drop) }
        });
        blocked(&sql, 1).await;
        read.shutdown().await;
        let probe = format!("probe {n}");
        timeout(USUAL, a_push_is_committed(&broker, &sql, &probe)).await.expect("in its usual time");
        timeout(USUAL, blocked(&sql, 0)).await.expect("long before its own timeouts");
    }
}

#[tokio::test]
async fn the_connection_of_a_blocked_pop_that_is_abandoned_is_not_reused() {
    let db = database().await;
    let settings = Config { connections: 1, ..config(db.url()) };
    let (broker, sql) = (engine_with(settings).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    let holder = db.client().await;
    holder.batch_execute("begin; lock table queen.groups in share mode").await.unwrap();
    for n in 0..5 {
        let mut registers = JoinSet::new();
        registers.spawn({
            let broker = broker.clone();
            async move { pop(&broker, any("q").group(&format!("g{n}"))).await }
        });
        blocked(&sql, 1).await;
        registers.shutdown().await;
        // The probe has a connection of its own; on the same one it would wait behind the call.
        let probe = format!("probe {n}");
        timeout(USUAL, a_push_is_committed(&broker, &sql, &probe)).await.expect("in its usual time");
        timeout(USUAL, blocked(&sql, 0)).await.expect("long before its own timeouts");
    }
}

#[tokio::test]
async fn a_blocked_seek_that_is_abandoned_delays_no_other_call() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    pop(&broker, named("q", "p").group("g")).await.unwrap();
    let holder = db.client().await;
    holder.batch_execute("begin; select from queen.consumers for update").await.unwrap();
    let mut seek = JoinSet::new();
    seek.spawn({
        let broker = broker.clone();
        async move { broker.seek("g", "q", SeekTo::Time(0)).await }
    });
    blocked(&sql, 1).await;
    seek.shutdown().await;
    timeout(USUAL, a_push_is_committed(&broker, &sql, "probe")).await.expect("in its usual time");
}

#[tokio::test]
async fn what_an_abandoned_pop_has_claimed_is_given_back() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    for n in 1.. {
        let gone = dropped_at(n, pop(&broker, named("q", "p").group("g"))).await;
        if gone.is_none() {
            break;
        }
        let popped = eventually("it is given back", async || pop(&broker, named("q", "p").group("g")).await);
        let popped = timeout(USUAL, popped).await.expect("long before its lease ends");
        complete(&broker, &popped).await;
        push(&broker, "q", "p", 0..1).await;
    }
    no_transaction_is_left(&sql).await;
}

#[tokio::test]
async fn any_call_may_be_abandoned_at_any_await() {
    let db = database().await;
    let (broker, sql) = (engine_with(narrow(db.url())).await, db.client().await);
    let mut probes = 0;
    for call in 0..6 {
        for n in 1.. {
            push(&broker, "q", "p", n..n + 1).await;
            let gone = match call {
                0 => dropped_at(n, push(&broker, "q", "new", 0..1)).await,
                1 => dropped_at(n, drain(&broker, "q", "p", "g")).await,
                2 => dropped_at(n, broker.delete_group("g", Some("q"), true)).await,
                3 => dropped_at(n, broker.clear("q", None)).await,
                4 => dropped_at(n, configure(&broker, "q", json!({"leaseTime": 60}))).await,
                _ => dropped_at(n, broker.delete_queue("q")).await,
            };
            probes += 1;
            a_push_is_committed(&broker, &sql, &format!("probe {probes}")).await;
            if gone.is_none() {
                break;
            }
        }
    }
    no_transaction_is_left(&sql).await;
}

/// An engine with one connection and a deadline that passes within the test, and the process of its session.
async fn impatient(db: &Database) -> (Engine, Proxy, Client, i64) {
    let proxy = Proxy::to_postgres(db.url()).await;
    let patience = (Duration::from_millis(200), Duration::from_secs(60));
    let narrow = Config { connections: 1, ..config(proxy.url()) };
    let broker = engine_with(Config { statement_timeout: patience.0, retry_for: patience.1, ..narrow }).await;
    configure(&broker, "q", json!({"dedupWindowSeconds": 0})).await;
    push_ids(&broker, "q", "p", &["first", "second"]).await;
    let first = pop(&broker, named("q", "p").group("g").batch(1)).await.unwrap();
    complete(&broker, &first).await;
    let sql = db.client().await;
    let text = "select pid::bigint from pg_stat_activity where datname = current_database()
                and application_name = 'queen' and query !~* 'listen|inbox'";
    // On a slow machine the deadline may have passed before, and the session of that attempt is still ending.
    let pid = eventually("one connection", async || match &sql.query(text, &[]).await.unwrap()[..] {
        [row] => Some(row.get(0)),
        _ => None,
    })
    .await;
    (broker, proxy, sql, pid)
}

/// Releases what was held back, and waits until the session that it was sent to has ended.
async fn arrives(proxy: &Proxy, sql: &Client, pid: i64) {
    proxy.release();
    let text = format!("select count(*) from pg_stat_activity where pid = {pid}");
    eventually("the session has ended", async || (number(sql, &text).await == 0).then_some(())).await;
}

#[tokio::test]
async fn a_push_that_arrives_after_its_retry_is_not_stored_again() {
    let db = database().await;
    let (broker, proxy, sql, pid) = impatient(&db).await;
    proxy.strand();
    let pushed = push_ids(&broker, "q", "p", &["third"]).await;
    assert_eq!(pushed[0].status, PushStatus::Queued);
    arrives(&proxy, &sql, pid).await;
    let text = "select count(*) from queen.messages where queue = 'q' and transaction_id = 'third'";
    assert_eq!(number(&sql, text).await, 1);
}

#[tokio::test]
async fn a_push_that_is_tried_again_is_not_taken_for_another_of_the_same_id() {
    let db = database().await;
    let (broker, proxy, sql, pid) = impatient(&db).await;
    let other = engine(db.url()).await;
    let stored = "select count(*) from queen.messages where queue = 'q' and transaction_id = 'twin'";
    push_ids(&other, "q", "p", &["twin"]).await;
    // The first attempt never arrives.
    proxy.strand();
    let second = push_ids(&broker, "q", "p", &["twin"]).await.remove(0);
    assert_eq!((second.status, number(&sql, stored).await), (PushStatus::Queued, 2));
    arrives(&proxy, &sql, pid).await;
    // The first attempt is stored, and its response is lost.
    push_ids(&other, "q", "p", &["twin"]).await;
    proxy.cut_before_reply(Some(b"twin"));
    let fourth = push_ids(&broker, "q", "p", &["twin"]).await.remove(0);
    assert_eq!(proxy.replies_withheld(), 1);
    assert_eq!((fourth.status, number(&sql, stored).await), (PushStatus::Queued, 4));
    let messages = pop(&broker, named("q", "p").group("g").batch(9)).await.unwrap().messages;
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!((ids[2], ids[4]), (second.message_id, fourth.message_id), "first, twin, twin, twin, twin");
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_retry_leases_nothing() {
    let db = database().await;
    let (broker, proxy, sql, pid) = impatient(&db).await;
    push_ids(&broker, "q", "p", &["third"]).await;
    proxy.strand();
    let second = pop(&broker, named("q", "p").group("g").batch(1)).await.expect("the retry finds it");
    complete(&broker, &second).await;
    arrives(&proxy, &sql, pid).await;
    assert!(
        pop(&broker, named("q", "p").group("g").batch(1)).await.is_some(),
        "the third is leased to nobody"
    );
}

/// Replaces a procedure with one that returns an invalid result. Returns the old definition.
async fn answers_nonsense(sql: &Client, name: &str, nonsense: &str) -> String {
    let definition = format!("select pg_get_functiondef('queen.{name}'::regproc)");
    let definition: String = sql.query_one(&definition, &[]).await.unwrap().get(0);
    sql.batch_execute(&format!("create or replace function queen.{name}{nonsense}")).await.unwrap();
    definition
}

#[tokio::test]
async fn a_flight_that_panics_lets_go_of_its_keys() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    let popped = pop(&broker, named("q", "p").group("g")).await.unwrap();
    let nonsense = "(p_leases uuid[], p_numbers bigint[], p_seconds int[], p_wait int)
                    returns table (lease_id uuid, lease_until timestamptz)
                    language sql as $$ select null::uuid, null::timestamptz $$";
    let definition = answers_nonsense(&sql, "renew_unlocked", nonsense).await;
    assert!(broker.renew(&popped.lease_id, 60).await.is_err(), "nobody can make sense of the answer");
    sql.batch_execute(&definition).await.unwrap();
    let renewed = timeout(USUAL, broker.renew(&popped.lease_id, 60)).await.expect("its key is free");
    assert_eq!(renewed.unwrap().renewed, 1);
}

#[tokio::test]
async fn the_connection_of_a_transaction_that_panics_is_not_reused() {
    let db = database().await;
    let settings = Config { connections: 1, retry_for: Duration::ZERO, ..config(db.url()) };
    let (broker, sql) = (engine_with(settings).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    let held = pop(&broker, named("q", "p").group("g")).await.unwrap();
    let nonsense = "(p_leases uuid[], p_numbers bigint[], p_partitions uuid[], p_groups text[])
                    returns table (partition_id uuid, consumer_group text, cursor bigint, lease_id uuid)
                    language sql as $$ select null::uuid, null, null::bigint, null::uuid $$";
    let definition = answers_nonsense(&sql, "hold", nonsense).await;
    let moved = json!({"type": "push", "items": with_ids("target", "p", &["moved"])});
    let body = json!({"operations": [moved, ack_operation(&held.messages[0], "completed")]}).to_string();
    let body = TransactionBody::parse(body.as_bytes()).unwrap();
    assert!(broker.transaction(&body, None).await.is_err(), "it panics between its begin and its commit");
    a_push_is_committed(&broker, &sql, "probe").await;
    no_transaction_is_left(&sql).await;
    sql.batch_execute(&definition).await.unwrap();
    assert!(broker.transaction(&body, None).await.unwrap().success);
    assert_eq!(number(&sql, "select count(*) from queen.messages where queue = 'target'").await, 1);
}

#[tokio::test]
async fn the_connection_of_a_replay_that_panics_is_not_reused() {
    let db = database().await;
    let settings = Config { connections: 1, ..config(db.url()) };
    let (broker, sql) = (engine_with(settings).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    pop(&broker, named("q", "p").group("g")).await.unwrap();
    let letter = bury(&broker, "dead").await;
    let nonsense = "(p_ids uuid[]) returns bigint language sql as $$ select null::bigint $$";
    let definition = answers_nonsense(&sql, "drop_letters", nonsense).await;
    assert!(broker.replay_message(letter.partition_id, "dead").await.is_err());
    a_push_is_committed(&broker, &sql, "probe").await;
    no_transaction_is_left(&sql).await;
    sql.batch_execute(&definition).await.unwrap();
    broker.replay_message(letter.partition_id, "dead").await.unwrap().expect("it is still there");
}

#[tokio::test]
async fn what_comes_behind_a_push_that_panicked_is_not_stored_before_it() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    let definition = "select pg_get_functiondef('queen.push_unlocked'::regproc)";
    let definition: String = sql.query_one(definition, &[]).await.unwrap().get(0);
    // The first call returns an invalid result, and stores nothing.
    let (head, body) = definition.split_once("begin\n").expect("PL/pgSQL");
    let nonsense = format!(
        "create sequence calls;
         grant all on calls to public;
         {head}begin
             if nextval('calls') = 1 then positions := array[1]; return; end if;
         {body}"
    );
    sql.batch_execute(&nonsense).await.unwrap();
    if let Ok(pushed) = send(&broker, &large("q", "p", 2)).await {
        assert!(pushed.iter().all(|one| one.status == PushStatus::Failed), "{pushed:?}");
    }
    assert_eq!(
        number(&sql, "select last_value from calls").await,
        1,
        "the second may not overtake the first"
    );
    assert_eq!(number(&sql, "select count(*) from queen.messages where queue = 'q'").await, 1);
}

#[tokio::test]
async fn an_ack_that_joins_one_that_was_applied_before_is_applied_as_well() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine_with(Config { connections: 1, ..config(proxy.url()) }).await;
    let sql = db.client().await;
    push(&broker, "q", "p", 0..4).await;
    let messages = pop(&broker, named("q", "p").group("merged").batch(4)).await.unwrap().messages;
    let mut acks = JoinSet::new();
    let acked = |acks: &mut JoinSet<_>, index: usize| {
        let (broker, message) = (broker.clone(), messages[index].clone());
        acks.spawn(async move { ack(&broker, &message, Completed).await });
    };
    // The acknowledgement is applied, and its response is lost. When it is sent again its cursor is locked, so
    // it waits for the next flight.
    proxy.cut_before_reply(Some(b"merged"));
    proxy.refuse(true);
    acked(&mut acks, 0);
    eventually("it is applied", async || (proxy.replies_withheld() == 1).then_some(())).await;
    let holder = db.client().await;
    holder.batch_execute("begin; select from queen.consumers for update").await.unwrap();
    proxy.refuse(false);
    let waiting = || broker.waiting().iter().find(|(lane, _)| *lane == "consume").unwrap().1;
    eventually("it is left out", async || (waiting() == 1).then_some(())).await;
    acked(&mut acks, 2);
    eventually("another waits behind it", async || (waiting() == 2).then_some(())).await;
    holder.batch_execute("rollback").await.unwrap();
    assert!(acks.join_all().await.iter().all(|acked| acked.success));
    assert_eq!(number(&sql, "select max(cursor) from queen.consumers").await, 3);
}
