//! `POST /api/v1/push`.

use std::collections::HashSet;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Server, array};

fn item(queue: &str, partition: &str, id: &str) -> Value {
    json!({"queue": queue, "partition": partition, "payload": {"id": id}, "transactionId": id})
}

fn statuses(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["status"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_push_is_queued_and_every_field_of_the_answer_is_there() {
    let server = Server::start().await;
    let trace = "0193a5e0-1111-4222-8333-444455556666";
    let items =
        json!([{"queue":"orders","partition":"eu","payload":1,"transactionId":"o-1","traceId":trace}]);
    let results = server.push_items(items).await;
    let result = &results[0];
    assert_eq!((&result["index"], &result["status"]), (&json!(0), &json!("queued")));
    assert_eq!((&result["transaction_id"], &result["queueName"]), (&json!("o-1"), &json!("orders")));
    assert_eq!(result["trace_id"], trace);

    let popped = server.pop("/queue/orders").await.unwrap();
    let message = &popped.messages[0];
    assert_eq!(message["id"], result["message_id"]);
    assert_eq!(message["partitionId"], result["partition_id"]);
    assert_eq!((&message["transactionId"], &message["traceId"]), (&json!("o-1"), &json!(trace)));
}

#[tokio::test]
async fn nothing_pushed_is_nothing_queued() {
    let server = Server::start().await;
    let reply = server.post("/api/v1/push", json!({"items": []})).await;
    assert_eq!((reply.status, reply.text.as_str()), (201, "[]"));
}

#[tokio::test]
async fn results_keep_the_order_of_the_request_across_queues_and_partitions() {
    let server = Server::start().await;
    let items: Vec<_> =
        (0..30).map(|n| item(&format!("q{}", n % 3), &format!("p{}", n % 5), &format!("t{n}"))).collect();
    let results = server.push_items(Value::Array(items)).await;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result["index"], n);
        assert_eq!(result["transaction_id"], format!("t{n}"));
        assert_eq!(result["queueName"], format!("q{}", n % 3));
    }
}

#[tokio::test]
async fn concurrent_requests_each_get_their_own_indexes() {
    let server = Server::start().await;
    let pushes = (0..20).map(|n| {
        server.push_items(json!([item("q", "p", &format!("a{n}")), item("q", "p", &format!("b{n}"))]))
    });
    for (n, results) in join_all(pushes).await.into_iter().enumerate() {
        assert_eq!((&results[0]["index"], &results[1]["index"]), (&json!(0), &json!(1)));
        assert_eq!(results[0]["transaction_id"], format!("a{n}"));
        assert_eq!(results[1]["transaction_id"], format!("b{n}"));
    }
}

#[tokio::test]
async fn a_hundred_messages_without_ids_get_a_hundred_ids() {
    let server = Server::start().await;
    let results = server.push("q", "p", &vec![json!({}); 100]).await;
    let distinct = |key: &str| results.iter().map(|r| r[key].as_str().unwrap()).collect::<HashSet<_>>().len();
    assert_eq!((distinct("message_id"), distinct("transaction_id")), (100, 100));
    assert!(statuses(&results).iter().all(|status| *status == "queued"));
}

#[tokio::test]
async fn a_second_push_of_an_id_is_a_duplicate_of_the_first_message() {
    let server = Server::start().await;
    let first = server.push_items(json!([item("q", "p", "t")])).await;
    let second = server.push_items(json!([item("q", "p", "t"), item("q", "p", "t")])).await;
    assert_eq!(statuses(&second), ["duplicate", "duplicate"]);
    assert!(second.iter().all(|result| result["message_id"] == first[0]["message_id"]));
    let elsewhere = server.push_items(json!([item("q", "other", "t")])).await;
    assert_eq!(statuses(&elsewhere), ["queued"]);
    assert_eq!(server.pop("/queue/q/partition/p?batch=10").await.unwrap().messages.len(), 1);
}

#[tokio::test]
async fn equal_ids_in_one_request_are_one_message() {
    let server = Server::start().await;
    let results =
        server.push_items(json!([item("q", "p", "t"), item("q", "p", "t"), item("q", "p", "t")])).await;
    assert_eq!(statuses(&results), ["queued", "duplicate", "duplicate"]);
    assert!(results.iter().all(|result| result["message_id"] == results[0]["message_id"]));
}

#[tokio::test]
async fn eight_concurrent_pushes_of_one_id_store_one_message() {
    let server = Server::start().await;
    let answers = join_all((0..8).map(|_| server.push_items(json!([item("q", "p", "t")])))).await;
    let results: Vec<_> = answers.into_iter().flatten().collect();
    assert_eq!(statuses(&results).iter().filter(|status| **status == "queued").count(), 1);
    assert!(results.iter().all(|result| result["message_id"] == results[0]["message_id"]));
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().messages.len(), 1);
}

#[tokio::test]
async fn payloads_of_every_kind_come_back_as_they_were_sent() {
    let server = Server::start().await;
    let large = json!({"text": "x".repeat(2_000_000)});
    let payloads = [json!(null), json!({}), json!([]), json!(0), json!(false), json!("text"), large];
    server.push("q", "p", &payloads).await;
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), payloads);
}

#[tokio::test]
async fn an_absent_payload_is_an_empty_object() {
    let server = Server::start().await;
    server.push_items(json!([{"queue": "q"}])).await;
    let popped = server.pop("/queue/q").await.unwrap();
    assert_eq!(popped.data(), [json!({})]);
    assert_eq!(popped.messages[0]["partition"], "Default");
}

/// Payloads that a `jsonb` column would refuse or return differently.
#[tokio::test]
async fn a_payload_round_trips_byte_for_byte() {
    let server = Server::start().await;
    for (n, payload) in [
        r#""a\u0000b""#,
        r#""\ud800""#,
        "1e200000",
        r#"{"b":1,"a":2,"b":3}"#,
        r#"{ "spaced" :  [ 1 , 2 ] }"#,
        "{\t\"tabs\" :\t1 }",
        r#""é \u00e9 🐝 \ud83d\udc1d""#,
        r#""back\\slash \"quote\" \n""#,
        "123456789012345678901234567890.10",
    ]
    .into_iter()
    .enumerate()
    {
        let queue = format!("q{n}");
        let body = format!(
            r#"{{"items":[{{"queue":"{queue}","payload":{payload}}},{{"queue":"{queue}","payload":"next"}}]}}"#
        );
        let reply = server.send(Method::POST, "/api/v1/push", Some(&body)).await;
        assert_eq!(reply.status, 201, "{payload}: {}", reply.text);
        let popped = server.get(&format!("/api/v1/pop/queue/{queue}?batch=2")).await;
        assert!(popped.text.contains(&format!(r#""data":{payload}"#)), "{payload}: {}", popped.text);
        assert!(popped.text.contains(r#""data":"next""#), "{payload}: {}", popped.text);
    }
}

/// The log stores one message per line, so a line break between tokens may become a space. Nothing else may change.
#[tokio::test]
async fn a_payload_of_several_lines_keeps_its_meaning() {
    let server = Server::start().await;
    let payload = "{\r\n  \"text\": \"a\\nb\",\n\t\"list\": [\n1,\n2\n]\n}";
    let body =
        format!(r#"{{"items":[{{"queue":"q","payload":{payload}}},{{"queue":"q","payload":"next"}}]}}"#);
    assert_eq!(server.send(Method::POST, "/api/v1/push", Some(&body)).await.status, 201);
    let popped = server.pop("/queue/q?batch=2").await.unwrap();
    assert_eq!(popped.data(), [json!({"text": "a\nb", "list": [1, 2]}), json!("next")]);
}

#[tokio::test]
async fn a_trace_id_that_is_no_uuid_is_dropped_and_the_message_kept() {
    let server = Server::start().await;
    let results = server.push_items(json!([{"queue": "q", "traceId": "not-a-uuid"}])).await;
    assert_eq!((&results[0]["status"], &results[0]["trace_id"]), (&json!("queued"), &json!(null)));
    assert_eq!(server.pop("/queue/q").await.unwrap().messages[0]["traceId"], json!(null));
}

#[tokio::test]
async fn a_producer_cannot_claim_an_identity() {
    let server = Server::start().await;
    server.push_items(json!([{"queue": "q", "producerSub": "mallory"}])).await;
    assert_eq!(server.pop("/queue/q").await.unwrap().messages[0]["producerSub"], json!(null));
}

#[tokio::test]
async fn one_bad_request_does_not_touch_its_neighbours() {
    let server = Server::start().await;
    let good =
        (0..10).map(|n| server.post("/api/v1/push", json!({"items": [item("q", "p", &format!("t{n}"))]})));
    let bad = (0..10).map(|n| server.post("/api/v1/push", json!({"items": [item("q", "p", "\0"), n]})));
    let (good, bad) = futures_util::join!(join_all(good), join_all(bad));
    for reply in good {
        assert_eq!((reply.status, &array(reply.json())[0]["status"]), (201, &json!("queued")));
    }
    assert!(bad.iter().all(|reply| reply.is_error(400, "bad_request")));
}

#[tokio::test]
async fn rows_deleted_behind_the_servers_back_do_not_break_later_calls() {
    let server = Server::start().await;
    server.push("test-q", "p", &[json!("old")]).await;
    assert_eq!(server.pop("/queue/test-q").await.unwrap().data(), ["old"]);
    server.sql("delete from queen.queues where name like 'test-%'").await;
    let results = server.push("test-q", "p", &[json!("new")]).await;
    assert_eq!(statuses(&results), ["queued"]);
    assert_eq!(server.pop_soon("/queue/test-q?batch=10").await.data(), ["new"]);
}
