//! The audit log: changes and refusals with their callers, and never a secret.

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::issuer::Signer;
use super::{Holder, SECRET, claims, granted, keys, send, server, with};
use crate::support::{Server, ack_of, eventually};

/// Everything this process has logged, as a broker with `--log-format json` writes it.
struct Log(Mutex<Vec<u8>>);

static LOG: OnceLock<Log> = OnceLock::new();

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> &'static Self {
        LOG.get_or_init(|| {
            let to = || LOG.get().expect("it is there before anything is logged");
            tracing_subscriber::fmt()
                .json()
                .flatten_event(true)
                // As brokers do: the driver would log the parameters of statements.
                .with_env_filter("debug,tokio_postgres::query=info")
                .with_writer(to)
                .init();
            Self(Mutex::default())
        })
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
    }

    /// Lines of the audit log with all of these fields.
    fn lines(&self, fields: &Value) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let wanted = fields.as_object().unwrap();
        let fits = |line: &Value| wanted.iter().all(|(name, value)| line[name] == *value);
        lines.filter(|line| line["target"] == "audit" && fits(line)).collect()
    }

    /// The only line of the audit log with these fields.
    async fn line(&self, fields: Value) -> Value {
        let found = eventually(&format!("{fields} is logged"), async || {
            let lines = self.lines(&fields);
            (!lines.is_empty()).then_some(lines)
        })
        .await;
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    }
}

/// A caller with a name that no other test of this process uses.
fn token(name: &str, role: &str) -> String {
    Signer::secret(SECRET).sign(&with(claims(role), "sub", json!(name)))
}

#[tokio::test]
async fn a_change_is_logged_with_caller_address_action_target_and_outcome() {
    let log = Log::start();
    let server = server().await;
    let token = token("carol", "admin");
    let carol = Holder::new(&server, &token);
    let options =
        json!({"queue": "orders\nforged", "options": {"retentionEnabled": true, "retentionSeconds": 60}});
    assert_eq!(carol.post("/api/v1/configure", options).await.status, 200);
    let line = log.line(json!({"who": "carol", "route": "/api/v1/configure"})).await;
    assert_eq!(
        (&line["event"], &line["method"], &line["status"]),
        (&json!("act"), &json!("POST"), &json!(200))
    );
    assert_eq!((&line["address"], &line["kind"]), (&json!("127.0.0.1"), &json!("token")));
    assert_eq!(line["queue"], "orders\nforged");
    assert!(line["details"].as_str().unwrap().contains("\"retentionSeconds\":60"), "{line}");

    let seek = "/api/v1/consumer-groups/billing/queues/orders%0Aforged/seek";
    assert_eq!(carol.post(seek, json!({"toEnd": true})).await.status, 404);
    let line = log.line(json!({"who": "carol", "group": "billing"})).await;
    assert_eq!((&line["queue"], &line["details"]), (&json!("orders\nforged"), &json!("{\"toEnd\":true}")));

    assert_eq!(carol.post("/api/v1/system/maintenance/pop", json!({"enabled": true})).await.status, 200);
    let line = log.line(json!({"who": "carol", "route": "/api/v1/system/maintenance/pop"})).await;
    assert_eq!(line["details"], "{\"enabled\":true}");
    carol.post("/api/v1/system/maintenance/pop", json!({"enabled": false})).await;

    let id = "00000000-0000-0000-0000-000000000001";
    assert_eq!(carol.delete(&format!("/api/v1/operations/{id}")).await.status, 404);
    let line = log.line(json!({"who": "carol", "id": id})).await;
    assert_eq!((&line["route"], &line["status"]), (&json!("/api/v1/operations/{operation}"), &json!(404)));
    assert_eq!(carol.delete(&format!("/api/v1/messages/{id}/t%2F1")).await.status, 404);
    let line = log.line(json!({"who": "carol", "transaction": "t/1"})).await;
    assert_eq!(line["partition"], id);
    assert_eq!(carol.delete("/api/v1/dlq?queue=orders%0Aforged&consumerGroup=g2").await.status, 200);
    assert_eq!(log.line(json!({"who": "carol", "group": "g2"})).await["queue"], "orders\nforged");
    assert_eq!(carol.delete("/api/v1/resources/queues/orders%0Aforged").await.status, 200);
    log.line(json!({"who": "carol", "method": "DELETE", "route": "/api/v1/resources/queues/{queue}"})).await;
}

#[tokio::test]
async fn what_is_logged_of_an_act_is_what_its_handler_has_read() {
    let log = Log::start();
    let server = server().await;
    let mallory = Holder::new(&server, &token("mallory", "admin"));
    let path = "/api/v1/configure?queue=harmless&retentionSeconds=9999999";
    let body = json!({"queue": "payments", "retentionSeconds": 86_400, "options": {"retentionSeconds": 60}});
    let reply = mallory.post(path, body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let line = log.line(json!({"who": "mallory", "route": "/api/v1/configure"})).await;
    assert_eq!((&line["queue"], &line["status"]), (&json!("payments"), &json!(200)));
    assert_eq!(line["details"], "{\"retentionSeconds\":60}");
}

#[tokio::test]
async fn a_name_that_no_handler_reads_is_not_logged() {
    let log = Log::start();
    let server = server().await;
    let oscar = Holder::new(&server, &token("oscar", "admin"));
    let harmless = json!({"queue": "harmless", "consumerGroup": "harmless", "perSecond": 1, "toEnd": true});
    let redrive = json!({"queue": "payments", "group": "billing", "dryRun": true, "options": harmless});
    assert_eq!(oscar.post("/api/v1/dlq/redrive", redrive).await.status, 400, "no field of a redrive");
    let line = log.line(json!({"who": "oscar", "route": "/api/v1/dlq/redrive"})).await;
    assert_eq!((&line["queue"], &line["group"]), (&json!("payments"), &json!("billing")));
    assert_eq!(line["details"], "{\"dryRun\":true}");

    let seek = "/api/v1/consumer-groups/billing/queues/payments/seek";
    let body =
        json!({"toEnd": false, "timestamp": "2026-01-01T00:00:00Z", "create": true, "options": harmless});
    assert_eq!(oscar.post(seek, body).await.status, 404);
    let line = log
        .line(json!({"who": "oscar", "route": "/api/v1/consumer-groups/{group}/queues/{queue}/seek"}))
        .await;
    let details: Value = serde_json::from_str(line["details"].as_str().unwrap()).unwrap();
    assert_eq!(details, json!({"toEnd": false, "timestamp": "2026-01-01T00:00:00Z", "create": true}));

    let configure = json!({"options": harmless, "queue": "payments", "retryLimit": 5});
    assert_eq!(oscar.post("/api/v1/configure", configure).await.status, 400, "no options of a queue");
    let line = log.line(json!({"who": "oscar", "route": "/api/v1/configure"})).await;
    assert_eq!((&line["queue"], &line["group"]), (&json!("payments"), &Value::Null));
    assert_eq!(line["details"], "{\"retryLimit\":5}");

    let grants = json!([{"queues": ["orders"], "rights": ["push", "pop"]}]);
    let forget = "/api/v1/consumer-groups/billing?queue=harmless&deleteMetadata=false";
    assert_eq!(oscar.delete(forget).await.status, 200);
    let line = log.line(json!({"who": "oscar", "method": "DELETE"})).await;
    assert_eq!((&line["queue"], &line["group"]), (&Value::Null, &json!("billing")));
    assert_eq!(line["details"], "{\"deleteMetadata\":\"false\"}");
    assert_eq!(oscar.delete("/api/v1/dlq?queue=payments&consumerGroup=&group=g").await.status, 404);
    assert_eq!(log.line(json!({"who": "oscar", "route": "/api/v1/dlq"})).await["group"], "g");

    let limited = with(with(claims("read-write"), "queen", grants), "sub", json!("trudy"));
    let limited = Signer::secret(SECRET).sign(&limited);
    let trudy = Holder::new(&server, &limited);
    let items = json!({"items": [{"queue": "payments", "payload": 1}], "options": harmless});
    assert_eq!(trudy.post("/api/v1/push?queue=harmless", items).await.status, 403);
    let line = log.line(json!({"who": "trudy", "route": "/api/v1/push"})).await;
    assert_eq!(line["queue"], Value::Null);
    assert_eq!(oscar.push("payments").await.status, 201);
    let message = oscar.get("/api/v1/pop/queue/payments").await.json()["messages"][0].clone();
    let mut ack = ack_of(&message, "completed");
    ack["options"] = harmless.clone();
    assert_eq!(trudy.post("/api/v1/ack?queue=harmless", ack).await.status, 403);
    assert_eq!(log.line(json!({"who": "trudy", "route": "/api/v1/ack"})).await["queue"], Value::Null);
}

#[tokio::test]
async fn messages_tokens_and_payloads_are_not_logged() {
    let log = Log::start();
    let server = server().await;
    let token = token("dave", "admin");
    let dave = Holder::new(&server, &token);
    let items = json!([{"queue": "quiet", "payload": "a payload to be seen nowhere", "transactionId": "t"}]);
    assert_eq!(dave.post("/api/v1/push", json!({ "items": items })).await.status, 201);
    let message = dave.get("/api/v1/pop/queue/quiet").await.json()["messages"][0].clone();
    let trace = json!({"transactionId": "t", "partitionId": message["partitionId"], "data": "a payload to be seen nowhere"});
    assert_eq!(dave.post("/api/v1/traces", trace).await.status, 201);
    let mut body = ack_of(&message, "completed");
    body["payload"] = json!("a payload to be seen nowhere");
    assert_eq!(dave.post("/api/v1/ack", body.clone()).await.status, 200);
    body["queue"] = json!("quiet");
    assert_eq!(dave.post("/api/v1/configure", body).await.status, 400, "most of it is no option");
    log.line(json!({"who": "dave"})).await;
    let text = log.text();
    let secret = |line: &&str| line.contains("seen nowhere") || line.contains(&token);
    assert_eq!(text.lines().find(secret), None);
}

#[tokio::test]
async fn every_refusal_is_logged_and_counted_by_its_reason() {
    let log = Log::start();
    let server = server().await;
    let erin = token("erin", "read-only");
    let limited = Signer::secret(SECRET).sign(&with(
        with(claims("read-write"), "queen", json!([{"queues": ["mine"], "rights": ["push"]}])),
        "sub",
        json!("frank"),
    ));
    let expired = Signer::secret(SECRET).sign(&with(claims("admin"), "exp", json!(1)));
    let nowhere = "/api/v1/system/settings";
    assert_eq!(send(&server, None, "GET", nowhere, None).await.status, 401);
    assert_eq!(send(&server, Some("Bearer a.b.c"), "DELETE", "/no/such\u{7f}route", None).await.status, 401);
    assert_eq!(Holder::new(&server, &expired).get(nowhere).await.status, 401);
    assert_eq!(Holder::new(&server, &erin).push("q").await.status, 403);
    assert_eq!(Holder::new(&server, &limited).push("theirs\nforged").await.status, 403);
    let line = log.line(json!({"event": "refused", "reason": "missing", "route": nowhere})).await;
    assert_eq!((&line["who"], &line["status"]), (&json!("anonymous"), &json!(401)));
    assert_eq!(line["address"], "127.0.0.1");
    let line = log.line(json!({"event": "refused", "reason": "malformed"})).await;
    assert!(line["path"].as_str().unwrap().starts_with("/no/such"), "{line}");
    log.line(json!({"event": "refused", "reason": "expired", "route": nowhere})).await;
    let line = log.line(json!({"event": "refused", "who": "erin"})).await;
    assert_eq!((&line["reason"], &line["status"]), (&json!("role"), &json!(403)));
    let line = log.line(json!({"event": "refused", "who": "frank"})).await;
    assert_eq!((&line["reason"], &line["route"]), (&json!("grants"), &json!("/api/v1/push")));
    assert_eq!(line["error"], "no right to push to queue \"theirs\\nforged\"");
    assert!(!log.text().contains(&erin) && !log.text().contains(&limited) && !log.text().contains("a.b.c"));

    let page = send(&server, None, "GET", "/metrics/prometheus", None).await.text;
    for (status, reason, count) in [
        (401, "missing", 1),
        (401, "malformed", 1),
        (401, "expired", 1),
        (401, "api_key", 0),
        (403, "role", 1),
        (403, "grants", 1),
    ] {
        let sample = format!("queen_auth_refused_total{{status=\"{status}\",reason=\"{reason}\"}} {count}\n");
        assert!(page.contains(&sample), "{sample} {page}");
    }
}

#[tokio::test]
async fn a_key_is_logged_when_it_is_first_used_and_when_it_ends() {
    let log = Log::start();
    let server = Server::start_with(&["--auth-enabled"]).await;
    let key = keys::created(&server, "read-write", &[]).await;
    let id = keys::id(&key);
    let holder = Holder::new(&server, &key);
    for _ in 0..3 {
        assert_eq!(holder.push("q").await.status, 201);
    }
    let line = log.line(json!({"event": "key_used", "key": id})).await;
    assert_eq!(
        (&line["who"], &line["kind"], &line["address"]),
        (&json!("ci"), &json!("key"), &json!("127.0.0.1"))
    );
    let second = keys::created(&server, "admin", &[]).await;
    assert_eq!(Holder::new(&server, &second).get("/api/v1/system/settings").await.status, 200);
    let line = log.line(json!({"event": "key_added", "key": keys::id(&second)})).await;
    assert_eq!(line["role"], "admin");
    keys::printed(&server, &["key", "revoke", id]).await;
    eventually("it ends", async || (holder.push("q").await.status == 401).then_some(())).await;
    log.line(json!({"event": "key_ended", "key": id})).await;
    assert_eq!(
        log.lines(&json!({"event": "key_used", "key": id})).len(),
        1,
        "once, and not with each request"
    );
    for key in [&key, &second] {
        assert!(!log.text().contains(key.rsplit('_').next().unwrap()));
    }
}

#[tokio::test]
async fn changes_are_logged_without_access_control_too() {
    let log = Log::start();
    let server = Server::start().await;
    server.configure("nobodys", json!({"leaseTime": 7})).await;
    let line = log.line(json!({"queue": "nobodys"})).await;
    assert_eq!((&line["who"], &line["address"]), (&json!("anonymous"), &json!("127.0.0.1")));
    assert_eq!((&line["event"], &line["route"]), (&json!("act"), &json!("/api/v1/configure")));
    server.push("nobodys", "p", &[json!(1)]).await;
    let reply = server.post_with("/api/v1/configure", &[("Origin", "https://evil.test")], json!({})).await;
    assert_eq!(reply.status, 403);
    let line = log.line(json!({"event": "refused", "reason": "origin"})).await;
    assert_eq!(line["path"], "/api/v1/configure");
    assert_eq!(log.lines(&json!({"queue": "nobodys"})).len(), 1, "a push is no change");
}

#[tokio::test]
async fn what_a_limited_caller_may_not_name_is_in_the_log_and_not_in_the_answer() {
    let log = Log::start();
    let server = server().await;
    let token = granted("admin", json!([{"queues": ["mine"], "rights": ["admin"]}]));
    let reply = Holder::new(&server, &token).delete("/api/v1/queues/grace%2Fs/clear").await;
    assert_eq!(reply.status, 403);
    let line = log.line(json!({"event": "refused", "queue": "grace/s"})).await;
    assert_eq!(line["route"], "/api/v1/queues/{queue}/clear");
}
