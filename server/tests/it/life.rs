//! `GET /api/v1/messages/:partitionId/:transactionId/life`.

use serde_json::{Value, json};

use crate::support::{Server, encoded, eventually};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn life(server: &Server, result: &Value) -> Value {
    let (partition, id) =
        (result["partition_id"].as_str().unwrap(), result["transaction_id"].as_str().unwrap());
    let reply = server.get(&format!("/api/v1/messages/{partition}/{}/life", encoded(id))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()
}

fn events(life: &Value) -> Vec<&str> {
    life["events"].as_array().unwrap().iter().map(|event| event["event"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_message_is_traced_from_its_push_to_its_dead_letter() {
    let server = Server::start().await;
    server.configure("q", json!({"retryLimit": 1})).await;
    let item = json!([{"queue": "q", "partition": "p", "payload": 1, "transactionId": "a/b 🐝", "traceparent": PARENT}]);
    let pushed = server.push_items(item).await.remove(0);
    for _ in 0..2 {
        let popped = server.pop_soon("/queue/q?consumerGroup=g").await;
        server.ack(&popped.messages[0], "failed").await;
    }
    let life = life(&server, &pushed).await;
    let push = &life["push"];
    assert_eq!((&push["id"], &push["transactionId"]), (&pushed["message_id"], &json!("a/b 🐝")));
    assert_eq!((&push["queue"], &push["partition"], &push["offset"]), (&json!("q"), &json!("p"), &json!(0)));
    assert_eq!((&push["traceparent"], &push["traceId"]), (&json!(PARENT), &Value::Null));
    assert_eq!(push["segment"], json!({"baseOffset": 0, "count": 1, "extent": 1}));
    assert_eq!(events(&life), ["delivered", "failed", "delivered", "dead_letter"]);
    assert_eq!(life["events"][3]["error"], "because the test says so");
    let group = &life["groups"][0];
    assert_eq!((&group["consumerGroup"], &group["consumed"]), (&json!("g"), &json!(true)));
    assert_eq!(group["deadLetter"]["error"], "because the test says so");
}

#[tokio::test]
async fn an_unknown_message_is_a_404_and_a_bad_id_a_400() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &[json!(1)]).await.remove(0);
    let partition = pushed["partition_id"].as_str().unwrap();
    let at = async |partition: &str, id: &str| {
        server.get(&format!("/api/v1/messages/{partition}/{id}/life")).await
    };
    assert!(at(partition, "never").await.is_error(404, "not_found"));
    assert!(at(&uuid::Uuid::nil().to_string(), "never").await.is_error(404, "not_found"));
    assert!(at("nonsense", "never").await.is_error(400, "bad_request"));
    assert!(at(partition, "a%00b").await.is_error(400, "bad_request"));
    assert!(at(partition, &"x".repeat(256)).await.is_error(400, "bad_request"));
    let untraced = life(&server, &pushed).await;
    assert_eq!((&untraced["groups"], &untraced["events"]), (&json!([]), &json!([])));
}

/// Delivered by one broker, acknowledged at another.
#[tokio::test]
async fn every_broker_knows_what_any_has_recorded() {
    let server = Server::start().await;
    let twin = server.twin().await;
    let item = json!([{"queue": "q", "partition": "p", "payload": 1, "traceparent": PARENT},
                      {"queue": "q", "partition": "p", "payload": 2},
                      {"queue": "q", "partition": "p", "payload": 3, "traceparent": PARENT}]);
    let pushed = server.push_items(item).await;
    let popped = server.pop_soon("/queue/q?batch=3").await;
    twin.ack_all(&popped.messages[..2], &["completed", "completed"]).await;
    twin.ack(&popped.messages[2], "dlq").await;
    for (index, end) in [(0, "completed"), (2, "dead_letter")] {
        for broker in [&server, &twin] {
            eventually("all is recorded", async || {
                let life = life(broker, &pushed[index]).await;
                (events(&life) == ["delivered", end]).then_some(())
            })
            .await;
        }
    }
    assert!(events(&life(&twin, &pushed[1]).await).is_empty());
}
