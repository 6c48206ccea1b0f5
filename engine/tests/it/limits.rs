//! The limit of partitions per queue, however they are created.

use queen_engine::{Config, Engine};
use queen_protocol::{PushResult, PushStatus};
use queen_testkit::{Proxy, database};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::spool::{buffered, cut_off, emptied, spooling};
use crate::support::{at_once, config, engine, engine_with, eventually, number, send, transact};

const PARTITIONS: &str =
    "select count(*) from queen.partitions p join queen.queues q on q.id = p.queue_id where q.name = 'q'";

fn limited(url: &str, partitions_max: i32) -> Config {
    Config { partitions_max, ..config(url) }
}

/// Pushes one message to each of these partitions.
async fn push_to(engine: &Engine, partitions: &[String]) -> Vec<PushResult> {
    let items: Vec<Value> =
        partitions.iter().map(|name| json!({"queue": "q", "partition": name, "payload": name})).collect();
    send(engine, &Value::Array(items)).await.unwrap()
}

fn failed(results: &[PushResult]) -> usize {
    results.iter().filter(|result| result.status == PushStatus::Failed).count()
}

#[tokio::test]
async fn brokers_that_race_make_as_many_as_there_may_be() {
    let db = database().await;
    let brokers = [engine_with(limited(db.url(), 25)).await, engine_with(limited(db.url(), 25)).await];
    let pushes = (0..40).map(|n| {
        let broker = brokers[n % 2].clone();
        async move {
            let names: Vec<String> = (0..3).map(|name| format!("p{n} {name}")).collect();
            push_to(&broker, &names).await
        }
    });
    let results: Vec<PushResult> = at_once(pushes).await.into_iter().flatten().collect();
    let sql = db.client().await;
    assert_eq!(number(&sql, PARTITIONS).await, 25);
    assert_eq!(number(&sql, "select count(*) from queen.messages").await, 25);
    assert_eq!(failed(&results), 120 - 25);
    let refused: u64 = brokers.iter().map(|broker| broker.stats().partitions_refused).sum();
    assert_eq!(refused, 120 - 25);
    let error = results.iter().find_map(|result| result.error.as_deref()).unwrap();
    assert!(error.contains("25 partitions"), "{error}");
    let there: Vec<String> = results
        .iter()
        .filter(|result| result.status == PushStatus::Queued)
        .map(|result| result.transaction_id.clone())
        .collect();
    assert_eq!(there.len(), 25);
    // Existing partitions accept pushes, also by a broker that has never seen them.
    let newcomer = engine_with(limited(db.url(), 25)).await;
    let name: String = sql.query_one("select min(name) from queen.partitions", &[]).await.unwrap().get(0);
    assert_eq!(failed(&push_to(&newcomer, &[name]).await), 0);
}

#[tokio::test]
async fn a_partition_that_goes_makes_room_and_a_broker_without_a_limit_has_none() {
    let db = database().await;
    let sql = db.client().await;
    let (first, free) = (engine_with(limited(db.url(), 2)).await, engine(db.url()).await);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(failed(&push_to(&first, &names(&["a", "b", "c", "c"])).await), 2);
    sql.batch_execute("delete from queen.partitions where name = 'a'").await.unwrap();
    assert_eq!(failed(&push_to(&first, &names(&["c"])).await), 0);
    assert_eq!(failed(&push_to(&free, &names(&["d", "e"])).await), 0);
    assert_eq!(failed(&push_to(&first, &names(&["d", "f", "b"])).await), 1);
    assert_eq!(number(&sql, PARTITIONS).await, 4);
    let outcome = transact(
        &first,
        &json!({"operations": [{"type": "push", "queue": "other", "payload": 1}, {"type": "push", "queue": "q", "partition": "g"}]}),
    )
    .await;
    assert!(!outcome.success && outcome.error.unwrap().contains("2 partitions"));
    assert_eq!(number(&sql, "select count(*) from queen.messages where queue = 'other'").await, 0);
}

#[tokio::test]
async fn what_was_accepted_before_is_stored_whatever_the_limit() {
    let db = database().await;
    let sql = db.client().await;
    let (dir, proxy) = (TempDir::new().unwrap(), Proxy::to_postgres(db.url()).await);
    let broker = engine_with(Config { partitions_max: 1, ..spooling(proxy.url(), dir.path()) }).await;
    assert_eq!(failed(&push_to(&broker, &["a".to_owned()]).await), 0);
    cut_off(&proxy);
    buffered(&broker).await;
    let spooled = push_to(&broker, &["b".to_owned(), "c".to_owned()]).await;
    assert!(spooled.iter().all(|result| result.status == PushStatus::Buffered), "{spooled:?}");
    proxy.refuse(false);
    emptied(&broker).await;
    assert_eq!(number(&sql, PARTITIONS).await, 3);
    // Its transaction was committed, so an application relies on it.
    sql.batch_execute("select queen.push('q', 'd', '4')").await.unwrap();
    eventually("it is moved", async || (number(&sql, PARTITIONS).await == 4).then_some(())).await;
    assert_eq!(failed(&push_to(&broker, &["e".to_owned()]).await), 1);
}
