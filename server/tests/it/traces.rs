//! `/api/v1/traces`.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Server, array, encoded};

async fn traced(server: &Server, pushed: &Value, extra: Value) -> Uuid {
    let mut body = json!({
        "transactionId": pushed["transaction_id"], "partitionId": pushed["partition_id"], "data": {"step": 1},
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let reply = server.post("/api/v1/traces", body).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    assert_eq!(reply.json()["success"], true);
    reply.json()["traceId"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn events_are_stored_and_found() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &[json!({"n": 1})]).await.remove(0);
    let none = server.get("/api/v1/traces/names").await.json();
    assert_eq!(none, json!({"trace_names": [], "total": 0, "pagination": {"limit": 50, "offset": 0}}));
    let first = traced(&server, &pushed, json!({"traceNames": "a/b", "consumerGroup": "g"})).await;
    let second = traced(
        &server,
        &pushed,
        json!({"traceNames": ["a/b", "c"], "eventType": "error", "consumerGroup": null}),
    )
    .await;
    traced(&server, &pushed, json!({"traceNames": null, "data": null, "workerId": "w"})).await;

    let place = format!(
        "{}/{}",
        pushed["partition_id"].as_str().unwrap(),
        pushed["transaction_id"].as_str().unwrap()
    );
    let of_message = array(server.get(&format!("/api/v1/traces/{place}")).await.json()["traces"].clone());
    assert_eq!(of_message.len(), 3);
    let mut oldest = of_message[0].clone();
    assert!(oldest["created_at"].take().is_string());
    assert_eq!(
        oldest,
        json!({"id": first, "event_type": "info", "data": {"step": 1}, "consumer_group": "g", "worker_id": null,
               "created_at": null, "trace_names": ["a/b"]})
    );
    assert_eq!((&of_message[2]["data"], &of_message[2]["worker_id"]), (&json!(null), &json!("w")));

    let by_name = format!("/api/v1/traces/by-name/{}", encoded("a/b"));
    let page = server.get(&by_name).await.json();
    assert_eq!((&page["total"], &page["pagination"]), (&json!(2), &json!({"limit": 100, "offset": 0})));
    let newest = &page["traces"][0];
    assert_eq!((&newest["id"], &newest["message_payload"]), (&json!(second), &json!({"n": 1})));
    assert_eq!((&newest["queue_name"], &newest["partition_name"]), (&json!("q"), &json!("p")));
    assert_eq!(newest["transaction_id"], pushed["transaction_id"]);
    let rest = server.get(&format!("{by_name}?limit=1&offset=1")).await.json();
    assert_eq!((&rest["traces"][0]["id"], &rest["total"]), (&json!(first), &json!(2)));

    let names = server.get("/api/v1/traces/names?limit=1").await.json();
    assert_eq!((&names["total"], array(names["trace_names"].clone()).len()), (&json!(2), 1));
    let all = array(server.get("/api/v1/traces/names").await.json()["trace_names"].clone());
    let a = all.iter().find(|name| name["trace_name"] == "a/b").unwrap();
    assert_eq!(
        (&a["trace_count"], &a["message_count"], a["last_seen"].is_string()),
        (&json!(2), &json!(1), true)
    );

    // The message is removed and its notes stay; deleting the queue removes both.
    let path = format!("/api/v1/messages/{place}");
    assert_eq!(server.delete(&path).await.status, 200);
    assert_eq!(server.get(&by_name).await.json()["total"], 2);
    server.delete("/api/v1/resources/queues/q").await;
    assert_eq!(server.get(&by_name).await.json()["total"], 0);
    assert_eq!(server.get(&format!("/api/v1/traces/{place}")).await.json(), json!({"traces": []}));
}

#[tokio::test]
async fn an_event_about_nothing_or_without_data_is_refused() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &[json!(1)]).await.remove(0);
    let partition = &pushed["partition_id"];
    for (partition, transaction) in [(partition, "unknown"), (&json!(Uuid::nil()), "t")] {
        let body = json!({"transactionId": transaction, "partitionId": partition, "data": {}});
        assert!(server.post("/api/v1/traces", body).await.is_error(404, "not_found"));
    }
    for body in [
        json!({}),
        json!({"transactionId": "t", "data": {}}),
        json!({"partitionId": partition, "data": {}}),
        json!({"transactionId": "t", "partitionId": partition}),
        json!({"transactionId": "t", "partitionId": "x", "data": {}}),
        json!({"transactionId": "t", "partitionId": partition, "data": {}, "traceNames": [7]}),
        json!({"transactionId": "t", "partitionId": partition, "data": {}, "traceNames": "a\0"}),
        json!({"transactionId": "t", "partitionId": partition, "data": {}, "eventType": "x".repeat(256)}),
    ] {
        let reply = server.post("/api/v1/traces", body.clone()).await;
        assert!(reply.is_error(400, "bad_request"), "{body}: {} {}", reply.status, reply.text);
    }
    assert!(server.get("/api/v1/traces/no-uuid/t").await.is_error(400, "bad_request"));
    assert_eq!(server.get("/api/v1/traces/by-name/nothing").await.json()["total"], 0);
}
