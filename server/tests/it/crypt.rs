//! Encryption at rest as clients and operators see it.

use std::path::Path;

use queen_testkit::Broker;
use serde_json::json;

use crate::support::Server;

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

async fn push(server: &Server, id: &str) -> String {
    let items = json!([{"queue": "q", "partition": "p", "payload": {"n": 1}, "transactionId": id}]);
    server.push_items(items).await[0]["partition_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_encrypted_queue_returns_what_was_sent_with_or_without_a_key() {
    for (flags, encrypted) in [(&["--encryption-key", KEY][..], true), (&[], false)] {
        let server = Server::start_with(flags).await;
        server.configure("q", json!({"encryptionEnabled": true})).await;
        let partition = push(&server, "a").await;
        let popped = server.get("/api/v1/pop/queue/q/partition/p?consumerGroup=g").await.json();
        assert_eq!(popped["messages"][0]["data"], json!({"n": 1}));
        let detail = server.get(&format!("/api/v1/messages/{partition}/a")).await.json();
        assert_eq!((&detail["isEncrypted"], &detail["payload"]), (&json!(encrypted), &json!({"n": 1})));
        assert!(detail.get("decryptionError").is_none());
        let listed = server.get("/api/v1/messages?queue=q").await.json();
        assert_eq!(listed["messages"][0]["data"], json!({"n": 1}));
    }
}

#[tokio::test]
async fn without_its_key_a_message_is_refused_by_name_and_shown_without_payload() {
    let server = Server::start_with(&["--encryption-key", KEY]).await;
    server.configure("q", json!({"encryptionEnabled": true})).await;
    let partition = push(&server, "a").await;
    let blind = server.twin().await;
    let refused = blind.get("/api/v1/pop/queue/q/partition/p?consumerGroup=g").await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (500, Some("internal")));
    assert!(refused.text.contains("630dcd29") && !refused.text.contains("authTag"), "{}", refused.text);
    assert_eq!(blind.get("/api/v1/pop/queue/q?consumerGroup=g").await.status, 204);
    let detail = blind.get(&format!("/api/v1/messages/{partition}/a")).await.json();
    assert_eq!((&detail["isEncrypted"], &detail["payload"]), (&json!(true), &json!(null)));
    assert!(detail["decryptionError"].as_str().unwrap().contains("630dcd29"));
    // The attempts did not count: a consumer with the key gets it as if for the first time.
    let popped = server.get("/api/v1/pop/queue/q/partition/p?consumerGroup=g").await.json();
    assert_eq!(
        (&popped["messages"][0]["data"], &popped["messages"][0]["retryCount"]),
        (&json!({"n": 1}), &json!(0))
    );
}

#[tokio::test]
async fn a_key_that_is_configured_and_bad_refuses_the_start_without_being_shown() {
    let database = queen_testkit::database().await;
    let bad = &KEY[..62];
    for (name, value) in [
        ("QUEEN_ENCRYPTION_KEY", bad),
        ("QUEEN_ENCRYPTION_KEY", ""),
        ("QUEEN_ENCRYPTION_OLD_KEYS", bad),
        ("QUEEN_ENCRYPTION_KEY_FILE", "/nowhere"),
    ] {
        let env = [("DATABASE_URL", database.url()), (name, value)];
        let refused = Broker::start(Path::new(QUEEN), &[], &env).await;
        let said = refused.err().unwrap_or_else(|| panic!("it started with {name}={value}")).to_string();
        assert!(said.contains(name) && !said.contains(&KEY[..8]), "{said}");
    }
}

#[tokio::test]
async fn a_key_that_is_required_and_missing_is_a_conflict_that_no_client_tries_again() {
    let server = Server::start_with(&["--encryption-required"]).await;
    let ask = json!({"queue": "q", "options": {"encryptionEnabled": true}});
    let refused = server.post("/api/v1/configure", ask).await;
    assert!(refused.is_error(409, "conflict"), "{} {}", refused.status, refused.text);
    assert!(refused.text.contains("no encryption key is configured"), "{}", refused.text);
    assert!(!refused.headers.contains_key("retry-after") && !refused.text.contains("encryptionEnabled"));

    server.configure("q", json!({"leaseTime": 60})).await;
    server.sql("update queen.queues set encryption_enabled = true").await;
    let items = json!({"items": [{"queue": "q", "payload": 1}]});
    let refused = server.post("/api/v1/push", items).await;
    assert!(refused.is_error(409, "conflict"), "{} {}", refused.status, refused.text);
    let operations = json!({"operations": [{"type": "push", "items": [{"queue": "q", "payload": 1}]}]});
    let refused = server.post("/api/v1/transaction", operations).await;
    assert_eq!(refused.status, 409, "{}", refused.text);
}
