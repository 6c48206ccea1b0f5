//! The database becomes unavailable under traffic. Acknowledged work stays, and nothing is delivered twice.

use std::time::Duration;

use futures_util::future::join_all;
use queen_testkit::{Database, Proxy};
use serde_json::{Value, json};

use crate::support::{Server, array, numbers};

/// Pushes until the message is confirmed as stored, as a client would.
async fn push_until_stored(server: &Server, partition: usize, n: usize) {
    let item = json!({
        "queue": "q", "partition": format!("p{partition}"), "payload": n, "transactionId": format!("{partition}-{n}"),
    });
    loop {
        let reply = server.post("/api/v1/push", json!({"items": [item]})).await;
        match reply.status {
            201 if array(reply.json())[0]["status"] != "failed" => return,
            201 | 500 | 503 => tokio::time::sleep(Duration::from_millis(50)).await,
            status => panic!("{status}: {}", reply.text),
        }
    }
}

async fn produced(server: &Server) {
    let produce = async |partition| {
        for n in 0..60 {
            push_until_stored(server, partition, n).await;
        }
    };
    join_all((0..4).map(produce)).await;
}

/// The payloads of a partition, read by a group that starts at the oldest message.
async fn stored(server: &Server, partition: usize) -> Vec<Value> {
    let path = format!("/queue/q/partition/p{partition}?consumerGroup=check&batch=1000");
    server.pop_soon(&path).await.data()
}

#[tokio::test]
async fn a_crash_of_postgres_loses_nothing_and_doubles_nothing() {
    let mut cluster = queen_testkit::cluster().await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let url = database.url().to_owned();
    let server = Server::start_on(database.into(), &url, &[]).await;
    server.push("warm", "p", &[json!(1)]).await;
    let crashes = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            cluster.restart_immediate().await;
        }
    };
    futures_util::join!(produced(&server), crashes);
    for partition in 0..4 {
        assert_eq!(stored(&server, partition).await, numbers(0..60), "p{partition}");
    }
}

#[tokio::test]
async fn connections_that_break_lose_nothing_and_double_nothing() {
    let database = queen_testkit::database().await;
    let proxy = Proxy::to_postgres(database.url()).await;
    let server = Server::start_on(database.into(), proxy.url(), &[]).await;
    let cuts = async {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(60)).await;
            proxy.cut();
        }
    };
    futures_util::join!(produced(&server), cuts);
    for partition in 0..4 {
        assert_eq!(stored(&server, partition).await, numbers(0..60), "p{partition}");
    }
}

#[tokio::test]
async fn deleting_queues_during_pushes_and_pops_causes_no_errors() {
    let server = Server::start().await;
    let push = async || {
        for n in 0..40 {
            let item = json!({"queue": "q", "partition": format!("p{}", n % 3), "payload": n});
            let reply = server.post("/api/v1/push", json!({"items": [item]})).await;
            assert_eq!(reply.status, 201, "{}", reply.text);
        }
    };
    let pop = async || {
        for _ in 0..40 {
            let reply = server.get("/api/v1/pop/queue/q?batch=10&partitions=3&autoAck=true").await;
            assert!(matches!(reply.status, 200 | 204), "{}: {}", reply.status, reply.text);
        }
    };
    let delete = async || {
        for _ in 0..15 {
            let reply = server.delete("/api/v1/resources/queues/q").await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            server.configure("q", json!({"leaseTime": 5})).await;
        }
    };
    futures_util::join!(push(), push(), pop(), pop(), delete());
}
