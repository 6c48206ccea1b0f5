//! W3C trace context on push and transaction: by header, by item, or both; returned on pop.

use serde_json::{Value, json};

use crate::support::Server;

const REQUEST: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const ITEM: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

fn items() -> Value {
    json!([
        {"queue": "q", "partition": "p", "payload": 0},
        {"queue": "q", "partition": "p", "payload": 1, "traceparent": ITEM},
        {"queue": "q", "partition": "p", "payload": 2, "traceparent": ITEM, "tracestate": "item=2"},
        {"queue": "q", "partition": "p", "payload": 3, "traceparent": ITEM.to_uppercase(), "tracestate": "item=3"},
        {"queue": "q", "partition": "p", "payload": 4, "traceparent": 17, "tracestate": {}},
    ])
}

/// The trace context with which each message is delivered.
async fn delivered(server: &Server) -> Vec<(Value, Value)> {
    let popped = server.pop("/queue/q/partition/p?batch=10&autoAck=true").await.unwrap();
    let context = |message: &Value| {
        let get = |key| message.get(key).cloned().unwrap_or(json!("absent"));
        (get("traceparent"), get("tracestate"))
    };
    popped.messages.iter().map(context).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(Value, Value)> {
    expected.iter().map(|(parent, state)| (json!(parent), json!(state))).collect()
}

const NONE: (&str, &str) = ("absent", "absent");
const BY_HEADER: [(&str, &str); 5] = [
    (REQUEST, "request=1"),
    (ITEM, "absent"),
    (ITEM, "item=2"),
    (REQUEST, "request=1"),
    (REQUEST, "request=1"),
];

#[tokio::test]
async fn the_header_counts_for_all_items_that_bring_no_context_of_their_own() {
    let server = Server::start().await;
    let headers = [("traceparent", REQUEST), ("tracestate", "request=1")];
    let reply = server.post_with("/api/v1/push", &headers, json!({ "items": items() })).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    assert_eq!(delivered(&server).await, pairs(&BY_HEADER));
    let body = json!({"operations": [{"type": "push", "items": items()}]});
    let reply = server.post_with("/api/v1/transaction", &headers, body).await;
    assert_eq!((reply.status, &reply.json()["success"]), (200, &json!(true)), "{}", reply.text);
    assert_eq!(delivered(&server).await, pairs(&BY_HEADER));
}

#[tokio::test]
async fn what_cannot_be_read_is_dropped_and_nothing_else_happens() {
    let server = Server::start().await;
    let by_item = pairs(&[NONE, (ITEM, "absent"), (ITEM, "item=2"), NONE, NONE]);
    let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    for header in ["", "nonsense", zeros, &REQUEST.to_uppercase(), &format!("{REQUEST}-x")] {
        let headers = [("traceparent", header), ("tracestate", "request=1")];
        let reply = server.post_with("/api/v1/push", &headers, json!({ "items": items() })).await;
        assert_eq!(reply.status, 201, "{header}: {}", reply.text);
        assert_eq!(delivered(&server).await, by_item, "{header}");
    }
    server.push_items(items()).await;
    assert_eq!(delivered(&server).await, by_item);
}
