//! Order within a partition, for any batch size and number of consumers.

use std::collections::HashMap;
use std::sync::Mutex;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::{Server, numbers};

async fn consumed(server: &Server, batch: usize) -> Vec<Value> {
    let mut data = Vec::new();
    while let Some(popped) = server.pop(&format!("/queue/q?batch={batch}")).await {
        data.extend(popped.data());
        let last = popped.messages.last().unwrap();
        assert_eq!(server.ack(last, "completed").await["success"], true);
    }
    data
}

#[tokio::test]
async fn a_hundred_single_pushes_are_read_in_order_one_by_one_and_at_once() {
    let server = Server::start().await;
    for batch in [1, 7, 100] {
        for n in 0..100 {
            server.push("q", "p", &[json!(n)]).await;
        }
        assert_eq!(consumed(&server, batch).await, numbers(0..100), "batch {batch}");
    }
}

#[tokio::test]
async fn ten_consumers_of_one_partition_still_read_in_order() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..100)).await;
    let seen = Mutex::new(Vec::new());
    let consumer = async || {
        while seen.lock().unwrap().len() < 100 {
            let Some(popped) = server.pop("/queue/q?wait=true&timeout=300").await else { continue };
            seen.lock().unwrap().extend(popped.data());
            server.ack(&popped.messages[0], "completed").await;
        }
    };
    join_all((0..10).map(|_| consumer())).await;
    assert_eq!(*seen.lock().unwrap(), numbers(0..100));
}

#[tokio::test]
async fn ten_thousand_messages_are_each_read_once_and_in_order() {
    let server = Server::start().await;
    for start in (0..10_000).step_by(1000) {
        server.push("q", "p", &numbers(start..start + 1000)).await;
    }
    assert_eq!(consumed(&server, 1000).await, numbers(0..10_000));
}

#[tokio::test]
async fn concurrent_producers_and_consumers_keep_every_partition_in_order() {
    let server = Server::start().await;
    let partitions = 8;
    let produce = async |partition: usize| {
        for n in 0..50 {
            server.push("q", &format!("p{partition}"), &[json!(n)]).await;
        }
    };
    let seen: Mutex<HashMap<String, Vec<Value>>> = Mutex::default();
    let total = || seen.lock().unwrap().values().map(Vec::len).sum::<usize>();
    let consume = async || {
        while total() < partitions * 50 {
            let Some(popped) = server.pop("/queue/q?wait=true&timeout=300&batch=10&partitions=3").await
            else {
                continue;
            };
            for message in &popped.messages {
                let partition = message["partition"].as_str().unwrap().to_owned();
                seen.lock().unwrap().entry(partition).or_default().push(message["data"].clone());
            }
            let statuses = vec!["completed"; popped.messages.len()];
            server.ack_all(&popped.messages, &statuses).await;
        }
    };
    futures_util::join!(join_all((0..partitions).map(produce)), join_all((0..4).map(|_| consume())));
    for (partition, data) in &*seen.lock().unwrap() {
        assert_eq!(*data, numbers(0..50), "{partition}");
    }
}

#[tokio::test]
async fn ids_and_times_sort_as_messages_are_delivered() {
    let server = Server::start().await;
    for start in 0..20 {
        server.push("q", "p", &numbers(start..start + 3)).await;
    }
    let popped = server.pop("/queue/q?batch=100").await.unwrap();
    let keys =
        |key: &str| popped.messages.iter().map(|m| m[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    for key in ["id", "createdAt"] {
        assert!(keys(key).is_sorted(), "{key}");
    }
}
