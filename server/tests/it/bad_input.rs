//! Invalid requests: refused with a message, and without effect on neighbors.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Reply, Server, eventually};

async fn posted(server: &Server, path: &str, body: &str) -> Reply {
    server.send(Method::POST, path, Some(body)).await
}

#[tokio::test]
async fn broken_json_is_a_400_on_every_route_with_a_body() {
    let server = Server::start().await;
    for path in [
        "/api/v1/push",
        "/api/v1/ack",
        "/api/v1/ack/batch",
        "/api/v1/transaction",
        "/api/v1/configure",
        "/api/v1/lease/l/extend",
        "/api/v1/consumer-groups/g/subscription",
        "/api/v1/consumer-groups/g/queues/q/seek",
        "/api/v1/messages/0193a5e0-1111-7222-8333-444455556666/t/dlq",
        "/api/v1/dlq/redrive",
        "/api/v1/traces",
    ] {
        for body in ["{", "[1,2", "{\"items\":", "nonsense", "{}{}", "\u{1}"] {
            let reply = posted(&server, path, body).await;
            assert!(reply.is_error(400, "bad_request"), "{path} {body:?}: {} {}", reply.status, reply.text);
        }
    }
}

#[tokio::test]
async fn an_empty_body_is_a_400_where_fields_are_required() {
    let server = Server::start().await;
    for path in
        ["/api/v1/push", "/api/v1/ack", "/api/v1/ack/batch", "/api/v1/transaction", "/api/v1/configure"]
    {
        assert!(server.send(Method::POST, path, None).await.is_error(400, "bad_request"), "{path}");
        assert!(posted(&server, path, "").await.is_error(400, "bad_request"), "{path}");
    }
}

#[tokio::test]
async fn missing_fields_and_wrong_types_are_refused() {
    let server = Server::start().await;
    let id = "0193a5e0-1111-7222-8333-444455556666";
    for (path, body) in [
        ("/api/v1/push", json!({})),
        ("/api/v1/push", json!([])),
        ("/api/v1/push", json!({"items": {}})),
        ("/api/v1/push", json!({"items": [{}]})),
        ("/api/v1/push", json!({"items": [{"queue": 5}]})),
        ("/api/v1/push", json!({"items": [{"queue": null}]})),
        ("/api/v1/push", json!({"items": [{"queue": "q", "partition": 5}]})),
        ("/api/v1/push", json!({"items": [{"queue": "q", "transactionId": 5}]})),
        ("/api/v1/push", json!({"items": [{"queue": "q", "transactionId": ""}]})),
        ("/api/v1/push", json!({"items": ["q"]})),
        ("/api/v1/ack", json!({"partitionId": id})),
        ("/api/v1/ack", json!({"transactionId": "t"})),
        ("/api/v1/ack", json!({"transactionId": 5, "partitionId": id})),
        ("/api/v1/ack", json!({"transactionId": "t", "partitionId": "not-a-uuid"})),
        ("/api/v1/ack/batch", json!({"acknowledgments": {}})),
        ("/api/v1/ack/batch", json!({"acknowledgments": [{"transactionId": "t"}]})),
        ("/api/v1/ack/batch", json!({"acknowledgments": [{"transactionId": "t", "partitionId": "nope"}]})),
        ("/api/v1/transaction", json!({"operations": []})),
        ("/api/v1/transaction", json!({"operations": [{"type": "ack", "transactionId": "t"}]})),
        ("/api/v1/transaction", json!({"operations": [{"type": "push", "items": [{"queue": 1}]}]})),
        ("/api/v1/transaction", json!({"operations": [{}]})),
        ("/api/v1/configure", json!({"queue": null})),
        ("/api/v1/configure", json!({"queue": "q", "options": 5})),
        ("/api/v1/configure", json!({"queue": "q", "options": {"leaseTime": "long"}})),
        ("/api/v1/configure", json!({"queue": "q", "options": {"leaseTime": -1}})),
        ("/api/v1/configure", json!({"queue": "q", "options": {"retentionEnabled": "yes"}})),
        ("/api/v1/lease/l/extend", json!({"seconds": "many"})),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert!(reply.is_error(400, "bad_request"), "{path} {body}: {} {}", reply.status, reply.text);
    }
}

#[tokio::test]
async fn names_too_long_or_with_a_nul_are_refused_everywhere() {
    let server = Server::start().await;
    let id = "0193a5e0-1111-7222-8333-444455556666";
    for name in ["x".repeat(256), "a\0b".to_owned()] {
        for (path, body) in [
            ("/api/v1/push", json!({"items": [{"queue": name}]})),
            ("/api/v1/push", json!({"items": [{"queue": "q", "partition": name}]})),
            ("/api/v1/push", json!({"items": [{"queue": "q", "transactionId": name}]})),
            ("/api/v1/push", json!({"items": [{"queue": "q", "namespace": name}]})),
            ("/api/v1/configure", json!({"queue": name})),
            ("/api/v1/ack", json!({"transactionId": name, "partitionId": id})),
            ("/api/v1/ack", json!({"transactionId": "t", "partitionId": id, "consumerGroup": name})),
            ("/api/v1/transaction", json!({"operations": [{"type": "push", "queue": name}]})),
        ] {
            let reply = server.post(path, body).await;
            assert!(reply.is_error(400, "bad_request"), "{path}: {} {}", reply.status, reply.text);
        }
        let name = name.replace('\0', "%00");
        for path in [
            format!("/api/v1/pop/queue/{name}"),
            format!("/api/v1/pop/queue/q/partition/{name}"),
            format!("/api/v1/pop/queue/q?consumerGroup={name}"),
            format!("/api/v1/pop?namespace={name}"),
            format!("/api/v1/dlq?queue={name}"),
        ] {
            let reply = server.get(&path).await;
            assert!(reply.is_error(400, "bad_request"), "{path}: {} {}", reply.status, reply.text);
        }
        for path in [format!("/api/v1/resources/queues/{name}"), format!("/api/v1/consumer-groups/{name}")] {
            assert!(server.delete(&path).await.is_error(400, "bad_request"), "{path}");
        }
    }
}

/// A browser takes `..` for the parent, so a seek of such a partition would move the group in all partitions.
#[tokio::test]
async fn a_name_that_is_a_step_in_a_path_is_refused_for_what_is_new_and_what_there_is_can_be_read() {
    let server = Server::start().await;
    for name in [".", ".."] {
        for (path, body) in [
            ("/api/v1/push", json!({"items": [{"queue": name}]})),
            ("/api/v1/push", json!({"items": [{"queue": "q", "partition": name}]})),
            (
                "/api/v1/transaction",
                json!({"operations": [{"type": "push", "queue": "q", "partition": name}]}),
            ),
            ("/api/v1/configure", json!({"queue": name})),
        ] {
            let reply = server.post(path, body).await;
            assert!(reply.is_error(400, "bad_request"), "{path}: {} {}", reply.status, reply.text);
            assert!(
                reply.json()["error"].as_str().unwrap().contains("in the path of a URL"),
                "{}",
                reply.text
            );
        }
    }
    server.configure("q", json!({})).await;
    let sql = server.database.client().await;
    sql.query("select queen.push('q', '..', '1')", &[]).await.unwrap();
    let popped = eventually("it is delivered", async || {
        let reply = server.get("/api/v1/pop/queue/q?autoAck=true").await;
        (reply.status == 200).then(|| reply.json())
    });
    assert_eq!(popped.await["messages"][0]["partition"], "..");
    let listed = server.get("/api/v1/messages?queue=q&partition=..").await.json();
    assert_eq!(listed["messages"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_group_by_both_names_is_refused() {
    let server = Server::start().await;
    let id = "0193a5e0-1111-7222-8333-444455556666";
    let both = json!({"group": "g", "consumerGroup": "g"});
    let with = |mut body: Value| {
        body.as_object_mut().unwrap().extend(both.as_object().unwrap().clone());
        body.to_string()
    };
    let ack = json!({"transactionId": "t", "partitionId": id});
    for (path, body) in [
        ("/api/v1/ack".to_owned(), with(ack.clone())),
        ("/api/v1/ack/batch".to_owned(), with(json!({"acknowledgments": [ack]}))),
        ("/api/v1/dlq/redrive".to_owned(), with(json!({"queue": "q"}))),
        (format!("/api/v1/messages/{id}/t/dlq"), both.to_string()),
        ("/api/v1/traces".to_owned(), with(json!({"partitionId": id, "transactionId": "t", "data": {}}))),
    ] {
        let reply = posted(&server, &path, &body).await;
        assert!(reply.is_error(400, "bad_request"), "{path}: {}", reply.text);
        assert!(reply.text.contains("group and consumerGroup are both given"), "{path}: {}", reply.text);
    }
    let query = "group=g&consumerGroup=g";
    for path in
        ["/api/v1/pop/queue/q", "/api/v1/dlq", "/api/v1/dlq/shapes", "/api/v1/resources/queues/q/depth"]
    {
        let reply = server.get(&format!("{path}?{query}")).await;
        assert!(reply.is_error(400, "bad_request"), "{path}: {}", reply.text);
    }
    assert!(server.delete(&format!("/api/v1/dlq?queue=q&{query}")).await.is_error(400, "bad_request"));
}

#[tokio::test]
async fn a_group_goes_by_either_name() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    for key in ["group", "consumerGroup"] {
        let popped = server.get(&format!("/api/v1/pop/queue/q?{key}={key}-1&batch=1")).await.json();
        assert_eq!(popped["consumerGroup"], format!("{key}-1"));
        let message = &popped["messages"][0];
        let ack = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"],
            "leaseId": message["leaseId"], "status": "dlq", key: format!("{key}-1")});
        assert_eq!(server.call("/api/v1/ack", ack).await[0]["dlq"], true);
        let depth = server.get(&format!("/api/v1/resources/queues/q/depth?{key}={key}-1")).await.json();
        assert_eq!((&depth["group"], &depth["pending"]), (&json!(format!("{key}-1")), &json!(0)));
        let letters = server.get(&format!("/api/v1/dlq?queue=q&{key}={key}-1")).await.json();
        assert_eq!(letters["total"], 1);
        let redrive = json!({"queue": "q", key: format!("{key}-1"), "dryRun": true});
        assert_eq!(server.call("/api/v1/dlq/redrive", redrive).await["total"], 1);
    }
    let readers = server.get("/api/v1/consumer-groups").await.json();
    let names: Vec<&str> =
        readers.as_array().unwrap().iter().map(|reader| reader["name"].as_str().unwrap()).collect();
    assert!(!names.contains(&"__QUEUE_MODE__"), "{names:?}");
}

#[tokio::test]
async fn a_list_is_no_object_and_the_error_says_what_is_allowed() {
    let server = Server::start().await;
    let item = json!({"queue": "q", "payload": 1});
    for body in [json!([item]), json!([[item]]), json!({"items": [["q", "p", 1]]}), json!({"items": item})] {
        let reply = server.post("/api/v1/push", body.clone()).await;
        assert!(reply.is_error(400, "bad_request"), "{body}: {} {}", reply.status, reply.text);
        let says = reply.json()["error"].as_str().unwrap().to_owned();
        let expected = if body.is_array() { r#"{"items": ["# } else { "expected a" };
        assert!(says.contains(expected), "{body}: {says}");
    }
    for (path, body) in [
        ("/api/v1/ack", json!(["t", "0193a5e0-1111-7222-8333-444455556666"])),
        ("/api/v1/ack/batch", json!([[]])),
        ("/api/v1/transaction", json!([[item]])),
        ("/api/v1/consumer-groups/g/queues/q/seek", json!([true])),
        ("/api/v1/lease/l/extend", json!([60])),
        ("/api/v1/system/maintenance", json!([true])),
    ] {
        let reply = server.post(path, body).await;
        assert!(reply.is_error(400, "bad_request"), "{path}: {} {}", reply.status, reply.text);
    }
    assert_eq!(
        server.get("/api/v1/resources/queues").await.json()["queues"],
        json!([]),
        "nothing was stored"
    );
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused() {
    let server = Server::start().await;
    for segment in ["%FF", "%C3%28", "100%", "%zz", "%2"] {
        let reply = server.get(&format!("/api/v1/pop/queue/{segment}")).await;
        assert!(reply.is_error(400, "bad_request"), "{segment}: {} {}", reply.status, reply.text);
    }
}

#[tokio::test]
async fn a_start_that_is_no_time_is_refused() {
    let server = Server::start().await;
    let reply = server.get("/api/v1/pop/queue/q?consumerGroup=g&subscriptionFrom=yesterday").await;
    assert!(reply.is_error(400, "bad_request"), "{} {}", reply.status, reply.text);
}

#[tokio::test]
async fn bytes_that_are_no_utf8_are_refused() {
    let server = Server::start().await;
    for body in [
        &b"{\"items\":[{\"queue\":\"q\xff\"}]}"[..],
        &b"{\"items\":[{\"queue\":\"q\",\"payload\":\"\xc3\x28\"}]}"[..],
        &b"\xff\xfe{}"[..],
    ] {
        let request = server.http.post(format!("{}/api/v1/push", server.url)).body(body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 400);
        assert!(response.json::<Value>().await.unwrap()["error"].is_string());
    }
    assert!(server.pop("/queue/q").await.is_none());
}

#[tokio::test]
async fn a_hundred_thousand_items_are_refused_whole() {
    let server = Server::start().await;
    let items = vec![json!({"queue": "q", "payload": 1}); 100_000];
    let reply = server.post("/api/v1/push", json!({ "items": items })).await;
    assert!(reply.is_error(400, "bad_request"), "{} {}", reply.status, reply.text);
    assert!(server.pop("/queue/q").await.is_none());
}

#[tokio::test]
async fn a_body_over_the_limit_is_a_413_in_json_and_the_limit_itself_is_fine() {
    let server = Server::start_with(&["--max-body-bytes", "1MiB"]).await;
    let body = |length: usize| {
        let frame = r#"{"items":[{"queue":"q","payload":""}]}"#.len();
        format!(r#"{{"items":[{{"queue":"q","payload":"{}"}}]}}"#, "x".repeat(length - frame))
    };
    assert_eq!(posted(&server, "/api/v1/push", &body(1 << 20)).await.status, 201);
    for length in [(1 << 20) + 1, 20 << 20] {
        let reply = posted(&server, "/api/v1/push", &body(length)).await;
        assert!(reply.is_error(413, "payload_too_large"), "{} {}", reply.status, reply.text);
    }
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().messages.len(), 1);
}

#[tokio::test]
async fn deep_nesting_is_a_payload_like_any_other() {
    let server = Server::start().await;
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let body = format!(r#"{{"items":[{{"queue":"q","payload":{deep}}}]}}"#);
    assert_eq!(posted(&server, "/api/v1/push", &body).await.status, 201);
    assert!(server.get("/api/v1/pop/queue/q").await.text.contains(&deep));
}
