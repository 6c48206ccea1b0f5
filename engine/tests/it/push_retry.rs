//! Pushes over connections that break: committed or not, each message ends up in the log once.

use std::time::Duration;

use queen_engine::Engine;
use queen_protocol::{PushResult, PushStatus};
use queen_testkit::{Database, Proxy, database};
use serde_json::{Value, json};

use crate::support::{
    Ask, any, at_once, configure, data, drain, engine, eventually, named, parked, pop, push, push_ids, send,
    travel, with_ids, write_unnoticed,
};

/// An engine behind a network that breaks on request.
async fn behind_a_proxy() -> (Database, Proxy, Engine) {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let broker = engine(proxy.url()).await;
    (db, proxy, broker)
}

/// Items of one push, with text that the proxy looks for.
fn needles(ids: bool) -> Value {
    let item = |n: usize| {
        let mut item = json!({"queue": "q", "partition": "p", "payload": format!("needle {n}")});
        if ids {
            item["transactionId"] = json!(format!("id {n}"));
        }
        item
    };
    (0..3).map(item).collect()
}

/// The push commits, its response is lost, and the engine retries by itself.
async fn commit_without_an_answer(proxy: &Proxy, broker: &Engine, items: &Value) -> Vec<PushResult> {
    let before = proxy.replies_withheld();
    proxy.cut_before_reply(Some(b"needle 0"));
    let results = send(broker, items).await.unwrap();
    assert_eq!(proxy.replies_withheld(), before + 1, "the answer was not lost");
    results
}

/// Checks that the messages are stored once each, in the order in which they were sent, under the returned ids.
async fn stored_once(url: &str, results: &[PushResult]) {
    assert!(results.iter().all(|result| result.status == PushStatus::Queued), "{results:?}");
    let fresh = engine(url).await;
    let stored = drain(&fresh, "q", "p", "check").await;
    let (_, needles) = stored.split_at(1);
    let payloads: Vec<Value> = needles.iter().map(|message| message.json()).collect();
    assert_eq!(payloads, ["needle 0", "needle 1", "needle 2"]);
    assert!(needles.iter().map(|message| message.id).eq(results.iter().map(|result| result.message_id)));
}

#[tokio::test]
async fn a_push_whose_answer_was_lost_is_stored_once_with_ids_of_the_clients() {
    let (db, proxy, broker) = behind_a_proxy().await;
    push(&broker, "q", "p", 0..1).await;
    let results = commit_without_an_answer(&proxy, &broker, &needles(true)).await;
    stored_once(db.url(), &results).await;
}

#[tokio::test]
async fn a_push_whose_answer_was_lost_is_stored_once_with_minted_ids() {
    let (db, proxy, broker) = behind_a_proxy().await;
    push(&broker, "q", "p", 0..1).await;
    let results = commit_without_an_answer(&proxy, &broker, &needles(false)).await;
    stored_once(db.url(), &results).await;
}

#[tokio::test]
async fn a_push_whose_answer_was_lost_is_stored_once_without_deduplication() {
    for ids in [true, false] {
        let (db, proxy, broker) = behind_a_proxy().await;
        configure(&broker, "q", json!({"dedupWindowSeconds": 0})).await;
        push(&broker, "q", "p", 0..1).await;
        let results = commit_without_an_answer(&proxy, &broker, &needles(ids)).await;
        stored_once(db.url(), &results).await;
    }
}

#[tokio::test]
async fn a_push_whose_answer_was_lost_is_stored_once_by_a_broker_that_is_not_the_only_writer() {
    let (db, proxy, broker) = behind_a_proxy().await;
    let other = engine(db.url()).await;
    push(&other, "q", "p", 0..1).await;
    let results = commit_without_an_answer(&proxy, &broker, &needles(true)).await;
    stored_once(db.url(), &results).await;
}

#[tokio::test]
async fn what_a_lost_answer_leaves_behind_wakes_a_parked_pop_and_deduplicates() {
    let (_db, proxy, broker) = behind_a_proxy().await;
    push(&broker, "q", "p", 0..1).await;
    assert_eq!(data(&broker, any("q").group("g")).await, [0]);
    let waiting = parked(&broker, any("r").wait(Duration::from_secs(10))).await;
    proxy.cut_before_reply(Some(b"needle 0"));
    let items = json!([{"queue": "r", "partition": "p", "payload": "needle 0", "transactionId": "x"}]);
    send(&broker, &items).await.unwrap();
    assert_eq!(waiting.answer().await.unwrap().data(), ["needle 0"]);
    assert_eq!(push_ids(&broker, "r", "p", &["x"]).await[0].status, PushStatus::Duplicate);
}

/// The request never reaches the server, because the connection breaks first.
async fn lose_the_request(proxy: &Proxy, broker: &Engine, items: &Value) -> Vec<PushResult> {
    proxy.black_hole(true);
    let (results, ()) = tokio::join!(send(broker, items), async {
        eventually("the push is sent", async || (broker.stats().connections_busy > 0).then_some(())).await;
        proxy.cut();
        proxy.black_hole(false);
    });
    results.unwrap()
}

#[tokio::test]
async fn a_push_that_never_arrived_is_stored_by_the_retry() {
    let (db, proxy, broker) = behind_a_proxy().await;
    push(&broker, "q", "p", 0..1).await;
    let results = lose_the_request(&proxy, &broker, &needles(true)).await;
    stored_once(db.url(), &results).await;
}

#[tokio::test]
async fn without_deduplication_a_retry_does_not_take_an_older_message_of_the_same_id_for_its_own() {
    let (_db, proxy, broker) = behind_a_proxy().await;
    configure(&broker, "q", json!({"dedupWindowSeconds": 0})).await;
    let first = push_ids(&broker, "q", "p", &["x"]).await;
    let items = json!([{"queue": "q", "partition": "p", "payload": "again", "transactionId": "x"}]);
    let second = lose_the_request(&proxy, &broker, &items).await;
    assert_eq!(second[0].status, PushStatus::Queued);
    assert_ne!(second[0].message_id, first[0].message_id);
    let stored: Vec<Value> = drain(&broker, "q", "p", "g").await.iter().map(|m| m.json()).collect();
    assert_eq!(stored, ["x", "again"]);
}

#[tokio::test]
async fn without_deduplication_a_broker_that_did_not_write_the_older_message_does_not_take_it_for_its_own() {
    let (db, proxy, broker) = behind_a_proxy().await;
    let other = engine(db.url()).await;
    configure(&other, "q", json!({"dedupWindowSeconds": 0})).await;
    push_ids(&other, "q", "p", &["x"]).await;
    push_ids(&broker, "q", "p", &["y"]).await;
    let items = json!([{"queue": "q", "partition": "p", "payload": "again", "transactionId": "x"}]);
    let second = lose_the_request(&proxy, &broker, &items).await;
    assert_eq!(second[0].status, PushStatus::Queued);
    let stored: Vec<Value> = drain(&broker, "q", "p", "g").await.iter().map(|m| m.json()).collect();
    assert_eq!(stored, ["x", "y", "again"]);
}

#[tokio::test]
async fn a_retry_does_not_take_a_message_from_before_the_window_for_its_own() {
    let (db, proxy, broker) = behind_a_proxy().await;
    push_ids(&broker, "q", "p", &["x"]).await;
    travel(&db.client().await, "61 minutes").await;
    let items = json!([{"queue": "q", "partition": "p", "payload": "again", "transactionId": "x"}]);
    let second = lose_the_request(&proxy, &broker, &items).await;
    assert_eq!(second[0].status, PushStatus::Queued);
    let stored: Vec<Value> = drain(&broker, "q", "p", "g").await.iter().map(|m| m.json()).collect();
    assert_eq!(stored, ["x", "again"]);
}

#[tokio::test]
async fn a_retry_knows_what_another_broker_stored_meanwhile_for_a_duplicate() {
    let (db, proxy, broker) = behind_a_proxy().await;
    push_ids(&broker, "q", "p", &["y"]).await;
    let sql = db.client().await;
    write_unnoticed(&sql, "q", "p", "x").await;
    let second = lose_the_request(&proxy, &broker, &with_ids("q", "p", &["x"])).await;
    let stored = drain(&broker, "q", "p", "g").await;
    assert_eq!(stored.len(), 2);
    assert_eq!(second[0].message_id, stored[1].id);
}

#[tokio::test]
async fn merged_pushes_whose_answer_was_lost_are_all_stored_once() {
    let (db, proxy, broker) = behind_a_proxy().await;
    push(&broker, "q", "p", 0..1).await;
    proxy.cut_before_reply(Some(b"needle 7"));
    let pushes = (0..40).map(|n| {
        let broker = broker.clone();
        async move {
            let partition = if n % 2 == 0 { "p" } else { "other" };
            let mut item = json!({"queue": "q", "partition": partition, "payload": format!("needle {n}")});
            if n % 3 == 0 {
                item["transactionId"] = json!(format!("id {n}"));
            }
            send(&broker, &json!([item])).await.unwrap()
        }
    });
    let results: Vec<PushResult> = at_once(pushes).await.into_iter().flatten().collect();
    assert_eq!(proxy.replies_withheld(), 1);
    assert!(results.iter().all(|result| result.status == PushStatus::Queued));
    let fresh = engine(db.url()).await;
    let mut stored = drain(&fresh, "q", "p", "check").await.split_off(1);
    stored.extend(drain(&fresh, "q", "other", "check").await);
    assert_eq!(stored.len(), 40, "nothing lost, nothing doubled");
    for result in &results {
        let message = stored.iter().find(|message| message.id == result.message_id).expect("it is stored");
        assert_eq!(message.transaction_id, result.transaction_id);
    }
}

/// Each call follows a cut at once, before the engine has noticed that its idle connections are closed.
#[tokio::test]
async fn no_caller_hears_of_a_cut_however_new_its_partition_or_group() {
    let (_db, proxy, broker) = behind_a_proxy().await;
    for round in 0..4 {
        let (partition, group) = (format!("p{round}"), format!("g{round}"));
        let item = json!([{"queue": "q", "partition": partition, "payload": round}]);
        proxy.cut();
        let pushed = send(&broker, &item).await;
        assert!(pushed.is_ok(), "a first push: {pushed:?}");
        proxy.cut();
        let popped = broker.pop(named("q", &partition).group(&group)).await;
        assert!(matches!(popped, Ok(Some(_))), "a first pop by name: {popped:?}");
        proxy.cut();
        let popped = broker.pop(any("q").group("all").batch(10)).await;
        assert!(matches!(popped, Ok(Some(_))), "a pop from anywhere: {popped:?}");
        proxy.cut();
        let empty = broker.pop(any("q").group("all").batch(10)).await;
        assert!(matches!(empty, Ok(None)), "a pop that finds nothing: {empty:?}");
        proxy.cut();
        let popped = broker.pop(any("q").group(&group).batch(10)).await;
        assert!(popped.is_ok(), "the first of a group from anywhere: {popped:?}");
    }
}

#[tokio::test]
async fn a_lease_whose_answer_was_lost_is_delivered_by_the_retry() {
    let (_db, proxy, broker) = behind_a_proxy().await;
    push(&broker, "q", "p", 0..2).await;
    // The group is known already, so that the claim is the next statement that names it.
    assert_eq!(pop(&broker, any("q").group("needle")).await.unwrap().data(), [0]);
    push(&broker, "q", "r", 5..6).await;
    proxy.cut_before_reply(Some(b"needle"));
    let popped = pop(&broker, any("q").group("needle")).await.unwrap();
    assert_eq!(proxy.replies_withheld(), 1);
    assert_eq!(popped.data(), [5]);
    crate::support::complete(&broker, &popped).await;
}

/// What the network held back arrives after the retry was stored. It is sent as plain SQL, because only that
/// can be delayed on purpose.
#[tokio::test]
async fn a_push_overtaken_by_its_own_retry_is_not_stored_again() {
    let db = database().await;
    let (broker, sql) = (engine(db.url()).await, db.client().await);
    push(&broker, "q", "p", 0..1).await;
    let same = "select statuses[1] from queen.push(
        array[(select id from queen.partitions)], '{-2}', '{1}', '{1}',
        array['\\x00000000000000000000000000000001'::bytea], array['{\"transactionId\":\"minted\",\"payload\":1}'],
        '{f}', '{1}', false)";
    let stored: i32 = sql.query_one(same, &[]).await.unwrap().get(0);
    let overtaken: i32 = sql.query_one(same, &[]).await.unwrap().get(0);
    assert_eq!((stored, overtaken), (0, 1), "appended, then recognised");
    let messages: i64 = sql.query_one("select count(*) from queen.messages", &[]).await.unwrap().get(0);
    assert_eq!(messages, 2);
}

/// A flight resolves conflicts in further rounds. What the first round has committed is not sent
/// again when a later one fails.
#[tokio::test]
async fn a_round_that_fails_repeats_nothing_of_the_rounds_before_it() {
    let db = database().await;
    let broker = engine(db.url()).await;
    configure(&broker, "plain", json!({"dedupWindowSeconds": 0})).await;
    push_ids(&broker, "plain", "p", &["first"]).await;
    push_ids(&broker, "deduplicated", "p", &["known"]).await;
    // The second round stores the message whose id is new. It fails once.
    let fails_once = "create sequence public.tries;
        create function public.fail_once() returns trigger language plpgsql as $$
        begin
            if new.frames like '%unseen%' and nextval('public.tries') = 1 then
                raise 'not now' using errcode = 'lock_not_available';
            end if;
            return new;
        end $$;
        create trigger fail_once before insert on queen.segments for each row execute function public.fail_once()";
    let sql = db.client().await;
    sql.batch_execute(fails_once).await.unwrap();
    let items = json!([
        {"queue": "plain", "partition": "p", "payload": "once", "transactionId": "x"},
        {"queue": "deduplicated", "partition": "p", "payload": "known", "transactionId": "known"},
        {"queue": "deduplicated", "partition": "p", "payload": "unseen", "transactionId": "unseen"},
    ]);
    let results = send(&broker, &items).await.unwrap();
    use PushStatus::{Duplicate, Queued};
    assert_eq!(results.iter().map(|result| result.status).collect::<Vec<_>>(), [Queued, Duplicate, Queued]);
    let tries: i64 = sql.query_one("select last_value from public.tries", &[]).await.unwrap().get(0);
    assert_eq!(tries, 2, "the second round failed once");
    let stored = drain(&broker, "plain", "p", "g").await;
    assert_eq!(stored.iter().map(|m| m.json()).collect::<Vec<_>>(), ["first", "once"]);
    assert_eq!(stored[1].id, results[0].message_id);
    assert_eq!(drain(&broker, "deduplicated", "p", "g").await.len(), 2);
}
