//! The trace context of a message is delivered as it was pushed, no matter which way the message took.

use queen_engine::Engine;
use queen_protocol::{PushStatus, TraceParent};
use queen_testkit::{Proxy, database};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::deferred::deferring;
use crate::spool::{buffered, cut_off, emptied, spooling};
use crate::support::*;

pub fn parent(n: u64) -> String {
    TraceParent::new(u128::from(n) << 64 | 0xabc, n, 1).unwrap().to_string()
}

/// One item with a parent, one that also has a state, one with an invalid parent, one without.
fn items() -> Value {
    json!([
        {"queue": "q", "partition": "p", "payload": 0, "traceparent": parent(1)},
        {"queue": "q", "partition": "p", "payload": 1, "traceparent": parent(2), "tracestate": "a=1,b=\"\\"},
        {"queue": "q", "partition": "p", "payload": 2, "traceparent": "00-nonsense", "tracestate": "a=1"},
        {"queue": "q", "partition": "p", "payload": 3},
    ])
}

async fn all_came_through(broker: &Engine) {
    let messages = drain(broker, "q", "p", "g").await;
    let contexts: Vec<_> =
        messages.iter().map(|m| (m.traceparent.as_deref(), m.tracestate.as_deref())).collect();
    let (first, second) = (parent(1), parent(2));
    let expected = [(Some(&*first), None), (Some(&*second), Some("a=1,b=\"\\")), (None, None), (None, None)];
    assert_eq!(contexts, expected);
    assert_eq!(messages.iter().map(Message::json).collect::<Vec<_>>(), numbers(0..4));
    assert!(messages.iter().all(|message| message.trace_id.is_none()));
}

#[tokio::test]
async fn a_context_is_stored_and_delivered_and_what_is_none_is_no_error() {
    let db = database().await;
    let broker = engine(db.url()).await;
    send(&broker, &items()).await.unwrap();
    let popped = pop(&broker, named("q", "p").batch(9)).await.unwrap();
    assert_eq!(popped.messages[0].traceparent, Some(parent(1)));
    // Read from the log, not from the cache of the engine that wrote them.
    all_came_through(&engine(db.url()).await).await;
}

#[tokio::test]
async fn a_context_survives_being_deferred() {
    let db = database().await;
    let busy = deferring(db.url()).await;
    let pushed = send(&busy, &items()).await.unwrap();
    let worker = engine(db.url()).await;
    landed(&worker, &pushed[0].ticket).await;
    all_came_through(&worker).await;
}

#[tokio::test]
async fn a_context_survives_the_spool() {
    let db = database().await;
    let proxy = Proxy::to_postgres(db.url()).await;
    let dir = TempDir::new().unwrap();
    let broker = engine_with(spooling(proxy.url(), dir.path())).await;
    cut_off(&proxy);
    buffered(&broker).await;
    let pushed = send(&broker, &items()).await.unwrap();
    assert!(pushed.iter().all(|result| result.status == PushStatus::Buffered));
    proxy.refuse(false);
    emptied(&broker).await;
    all_came_through(&broker).await;
}

#[tokio::test]
async fn a_context_survives_a_transaction() {
    let db = database().await;
    let broker = engine(db.url()).await;
    let outcome = transact(&broker, &json!({"operations": [{"type": "push", "items": items()}]})).await;
    assert!(outcome.success);
    all_came_through(&broker).await;
}
