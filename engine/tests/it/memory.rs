//! An engine's memory is bounded, and dropping caches costs time, never correctness.

use std::collections::HashMap;

use queen_engine::{Config, Slots};
use queen_protocol::PushStatus;
use queen_testkit::database;
use serde_json::{Value, json};

use crate::support::{
    Ask, any, at_once, complete, config, drain, engine_with, named, pop, push, push_ids, send, transact,
};

const PARTITIONS: usize = 500;
const MESSAGES: usize = 20_000;
const BUDGET: usize = 100_000;

#[tokio::test]
async fn tiny_caches_hold_their_bounds_and_lose_nothing() {
    let db = database().await;
    let settings = Config { segment_cache_bytes: BUDGET, dedup_cache_bytes: BUDGET, ..config(db.url()) };
    let broker = engine_with(settings).await;
    let item = |n: usize| {
        let (partition, id) = (format!("p{}", n % PARTITIONS), format!("id-{n}"));
        json!({"queue": "q", "partition": partition, "payload": n, "transactionId": id})
    };
    let bounds = |when: &str| {
        let stats = broker.stats();
        // One entry may be larger than the whole budget: here, one partition or one segment.
        assert!(stats.segment_cache.bytes <= BUDGET + 20_000, "{when}: {stats:?}");
        assert!(stats.dedup_cache.bytes <= BUDGET + 20_000, "{when}: {stats:?}");
    };
    for batch in (0..MESSAGES).collect::<Vec<_>>().chunks(5_000) {
        let results = send(&broker, &batch.iter().map(|n| item(*n)).collect()).await.unwrap();
        assert!(results.iter().all(|result| result.status == PushStatus::Queued));
        bounds("after a push");
    }
    // These ids have long left the cache, and are still recognized.
    let old: Value = (0..PARTITIONS).map(|n| item(n * 7 % MESSAGES)).collect();
    let results = send(&broker, &old).await.unwrap();
    assert!(results.iter().all(|result| result.status == PushStatus::Duplicate));
    bounds("after duplicates");

    let mut found: HashMap<String, Vec<usize>> = HashMap::new();
    let consumers = (0..8).map(|_| {
        let broker = broker.clone();
        async move {
            let mut found = Vec::new();
            let request = queen_protocol::PopRequest { partitions: 20, ..any("q").group("g").batch(1_000) };
            while let Some(popped) = pop(&broker, request.clone()).await {
                complete(&broker, &popped).await;
                found.push(popped);
            }
            found
        }
    });
    for popped in at_once(consumers).await.into_iter().flatten() {
        for message in popped.messages {
            let n = usize::try_from(message.json().as_u64().unwrap()).unwrap();
            found.entry(message.partition).or_default().push(n);
        }
    }
    bounds("after pops");
    assert_eq!(found.values().map(Vec::len).sum::<usize>(), MESSAGES);
    assert!(found.values().all(|numbers| numbers.is_sorted_by(|a, b| a < b)), "in order, once each");
    assert_eq!(broker.stats().leases, 0, "finished leases are forgotten");
}

#[tokio::test]
async fn generated_ids_cost_no_dedup_memory() {
    let db = database().await;
    let broker = engine_with(config(db.url())).await;
    push(&broker, "q", "p", 0..1).await;
    let before = broker.stats().dedup_cache.bytes;
    push(&broker, "q", "p", 0..5_000).await;
    assert_eq!(broker.stats().dedup_cache.bytes, before);
    let ids: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
    push_ids(&broker, "q", "p", &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert!(broker.stats().dedup_cache.bytes > before + 8_000);
}

#[tokio::test]
async fn without_any_cache_everything_still_works() {
    let db = database().await;
    let settings = Config { segment_cache_bytes: 0, dedup_cache_bytes: 0, ..config(db.url()) };
    let broker = engine_with(settings).await;
    for round in 0..3 {
        for partition in ["a", "b"] {
            let results = push_ids(&broker, "q", partition, &["x", &round.to_string()]).await;
            let expected = if round == 0 { PushStatus::Queued } else { PushStatus::Duplicate };
            assert_eq!((results[0].status, results[1].status), (expected, PushStatus::Queued));
        }
    }
    for partition in ["a", "b"] {
        let stored: Vec<Value> = drain(&broker, "q", partition, "g").await.iter().map(|m| m.json()).collect();
        assert_eq!(stored, ["x", "0", "1", "2"]);
    }
}

#[tokio::test]
async fn one_connection_and_one_slot_are_enough_for_all_operations() {
    let db = database().await;
    let slots = Slots { push: 1, pop: 1, ack: 1, renew: 1, transaction: 1 };
    let broker = engine_with(Config { connections: 1, slots, ..config(db.url()) }).await;
    let work = (0..20).map(|n| {
        let broker = broker.clone();
        async move {
            let partition = format!("p{n}");
            push(&broker, "q", &partition, 0..3).await;
            let popped = pop(&broker, named("q", &partition).group("g").batch(2)).await.unwrap();
            assert!(broker.renew(&popped.lease_id, 60).await.unwrap().success);
            complete(&broker, &popped).await;
            let body =
                json!({"operations": [crate::support::push_operation("other", &partition, &json!(n))]});
            assert!(transact(&broker, &body).await.success);
            drain(&broker, "q", &partition, "g").await.len()
                + drain(&broker, "other", &partition, "g").await.len()
        }
    });
    assert!(at_once(work).await.into_iter().all(|left| left == 2));
    assert_eq!(broker.stats().connections, 1);
}

#[tokio::test]
async fn deleting_a_queue_frees_what_it_held() {
    let db = database().await;
    let broker = engine_with(config(db.url())).await;
    push_ids(&broker, "stays", "p", &["x"]).await;
    let before = broker.stats();
    let ids: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    push_ids(&broker, "q", "p", &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    pop(&broker, any("q").batch(500)).await.unwrap();
    let full = broker.stats();
    assert!(full.leases == 1 && full.dedup_cache.bytes > before.dedup_cache.bytes);
    assert!(full.segment_cache.bytes > before.segment_cache.bytes);
    assert!(broker.delete_queue("q").await.unwrap());
    let after = broker.stats();
    assert_eq!(after.leases, 0);
    assert_eq!(after.dedup_cache.bytes, before.dedup_cache.bytes);
    assert_eq!(after.segment_cache.bytes, before.segment_cache.bytes);
}
