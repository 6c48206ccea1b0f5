//! `GET /api/v1/system/settings`.

use serde_json::{Value, json};

use crate::support::{Server, array};

async fn told(server: &Server) -> (Value, String) {
    let reply = server.get("/api/v1/system/settings").await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    (reply.json(), reply.text)
}

fn one(page: &Value, name: &str) -> Value {
    let all = array(page["settings"].clone());
    all.into_iter().find(|setting| setting["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

#[tokio::test]
async fn every_setting_is_told_with_its_value_and_where_it_came_from() {
    let server = Server::start_with(&["--default-batch-size", "7", "--rate-queues", "a=1,b=2"]).await;
    let (page, _) = told(&server).await;
    let health = server.get("/health").await.json();
    assert_eq!((&page["version"], &page["server"]), (&health["version"], &health["server"]));
    let expected = json!({
        "group": "Pop", "name": "default-batch-size", "variable": "DEFAULT_BATCH_SIZE", "value": "7",
        "source": "flag", "help": "Messages per pop if it has no `batch`", "secret": false,
    });
    assert_eq!(one(&page, "default-batch-size"), expected);
    assert_eq!(one(&page, "rate-queues")["value"], "a=1,b=2");
    let lock = one(&page, "db-lock-timeout");
    assert_eq!((&lock["value"], &lock["source"]), (&json!("10s"), &json!("default")));
    assert_eq!(one(&page, "tls-cert")["value"], Value::Null);
    assert!(array(page["settings"].clone()).len() > 60);
}

#[tokio::test]
async fn no_secret_is_ever_told() {
    let key = format!("hush:{}", "0123456789abcdef".repeat(4));
    let flags = [
        "--jwt-secret",
        "hush hush hush hush hush hush hush",
        "--pg-password",
        "hush",
        "--encryption-key",
        &key,
        "--encryption-old-keys",
        &format!("hushed:{}", "f".repeat(64)),
        "--database-url",
        "postgres://ann:hush@db/app",
    ];
    let server = Server::start_with(&flags).await;
    let (page, text) = told(&server).await;
    assert!(!text.contains("hush") && !text.contains("0123456789abcdef") && !text.contains("ffff"), "{text}");
    for name in ["jwt-secret", "pg-password", "encryption-key", "encryption-old-keys"] {
        let setting = one(&page, name);
        assert_eq!((&setting["value"], &setting["secret"]), (&json!("(set)"), &json!(true)), "{name}");
    }
    let unset = one(&page, "jwt-public-key");
    assert_eq!((&unset["value"], &unset["secret"]), (&Value::Null, &json!(true)));
    assert_eq!(one(&page, "database-url")["value"], "postgres://ann@db/app");
}
