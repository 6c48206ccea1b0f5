//! Traces: found by message and by name, deleted with their queue and by age.

use std::time::Duration;

use queen_engine::{Config, Engine, NewTrace};
use queen_protocol::AckStatus;
use queen_testkit::database;
use uuid::Uuid;

use crate::support::{
    Ask, ack, config, engine, engine_with, eventually, named, number, pop, push_ids, travel,
};

fn event(partition: Uuid, transaction: &str, names: &[&str]) -> NewTrace {
    NewTrace {
        partition,
        transaction_id: transaction.to_owned(),
        group: Some("g".to_owned()),
        worker: None,
        event: "info".to_owned(),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        data: format!(r#"{{"of":"{transaction}"}}"#),
    }
}

async fn told(engine: &Engine, trace: &NewTrace) -> bool {
    engine.trace(trace).await.unwrap().is_some()
}

#[tokio::test]
async fn events_are_found_by_message_and_by_name() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let partition = push_ids(&broker, "q", "p", &["a", "b"]).await[0].partition_id;
    let popped = pop(&broker, named("q", "p").group("g")).await.unwrap();
    for names in [&["order-1"][..], &["order-1", "eu"], &[]] {
        assert!(told(&broker, &event(partition, "a", names)).await);
    }
    assert!(told(&broker, &event(partition, "b", &["order-1"])).await);
    assert!(!told(&broker, &event(partition, "zzz", &[])).await);
    assert!(!told(&broker, &event(Uuid::nil(), "a", &[])).await);

    let traces = broker.message_traces(partition, "a", 100).await.unwrap();
    let names: Vec<_> = traces.iter().map(|trace| trace.names.len()).collect();
    assert_eq!(names, [1, 2, 0], "oldest first");
    assert_eq!(traces[0].data, r#"{"of":"a"}"#);

    let (named, total) = broker.named_traces("order-1", 2, 0).await.unwrap();
    assert_eq!((named.len(), total), (2, 3));
    let (newest, payload) = &named[0];
    assert_eq!((newest.transaction_id.as_str(), payload.as_deref()), ("b", Some("\"b\"")));
    assert_eq!((newest.queue.as_str(), newest.partition.as_str()), ("q", "p"));
    let (rest, _) = broker.named_traces("order-1", 2, 2).await.unwrap();
    assert_eq!(rest.len(), 1);

    let (names, total) = broker.trace_names(10, 0).await.unwrap();
    let told: Vec<_> = names.iter().map(|name| (name.name.as_str(), name.traces, name.messages)).collect();
    assert_eq!((told, total), (vec![("order-1", 3, 2), ("eu", 1, 1)], 2));
    let (second, total) = broker.trace_names(1, 1).await.unwrap();
    assert_eq!((second[0].name.as_str(), total), ("eu", 2));
    assert_eq!(broker.trace_names(10, 5).await.unwrap().1, 2);
    ack(&broker, &popped.messages[0], AckStatus::Dlq).await;
}

#[tokio::test]
async fn traces_go_with_their_queue() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let sql = db.client().await;
    let partition = push_ids(&broker, "q", "p", &["a"]).await[0].partition_id;
    assert!(told(&broker, &event(partition, "a", &["n"])).await);
    broker.delete_queue("q").await.unwrap();
    for table in ["traces", "trace_names", "skips", "redrives"] {
        assert_eq!(number(&sql, &format!("select count(*) from queen.{table}")).await, 0, "{table}");
    }
}

#[tokio::test]
async fn old_traces_are_forgotten() {
    let db = database().await;
    let settings = Config { retention_interval: Duration::from_millis(50), ..config(db.url()) };
    let broker = engine_with(settings).await;
    let sql = db.client().await;
    let partition = push_ids(&broker, "q", "p", &["a"]).await[0].partition_id;
    assert!(told(&broker, &event(partition, "a", &["old"])).await);
    travel(&sql, "31 days").await;
    assert!(told(&broker, &event(partition, "a", &["new"])).await);
    eventually("only the new one is left", async || {
        let (names, total) = broker.trace_names(10, 0).await.unwrap();
        (total == 1 && names[0].name == "new").then_some(())
    })
    .await;
}
