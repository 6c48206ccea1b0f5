//! API keys, created and revoked with the program as an operator would.

use std::process::Output;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::process::Command;

use super::issuer::Signer;
use super::{Holder, SECRET, claims, now, send, with};
use crate::support::{Server, eventually};

pub async fn queen(server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_queen"));
    command
        .env_clear()
        .args(arguments)
        .args(["--database-url", server.database.url()])
        .output()
        .await
        .unwrap()
}

/// The output of a command that must succeed.
pub async fn printed(server: &Server, arguments: &[&str]) -> String {
    let output = queen(server, arguments).await;
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub async fn created(server: &Server, role: &str, more: &[&str]) -> String {
    printed(server, &[&["key", "create", "--name", "ci", "--role", role], more].concat()).await
}

pub fn id(key: &str) -> &str {
    key.split('_').nth(1).unwrap()
}

#[tokio::test]
async fn a_key_is_shown_once_works_at_once_and_ends_when_it_is_revoked() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    assert_eq!(send(&server, None, "GET", "/api/v1/resources/queues", None).await.status, 401);
    let key = created(&server, "read-write", &[]).await;
    let holder = Holder::new(&server, &key);
    assert_eq!(holder.push("q").await.status, 201);
    assert_eq!(send(&server, Some(&key), "GET", "/api/v1/resources/queues", None).await.status, 200);
    assert_eq!(holder.delete("/api/v1/resources/queues/q").await.status, 403);
    let popped = holder.get("/api/v1/pop/queue/q").await.json();
    assert_eq!(popped["messages"][0]["producerSub"], "ci");

    // A key that is created after the broker has read the keys.
    let second = created(&server, "admin", &["--expires", "30d"]).await;
    let works = async || {
        (Holder::new(&server, &second).delete("/api/v1/resources/queues/q").await.status == 200).then_some(())
    };
    eventually("it is known", works).await;

    // Only the hash of the secret is stored, and the list does not show even that.
    let secret = key.rsplit('_').next().unwrap();
    let rows =
        server.database.client().await.query("select k::text from queen.api_keys k", &[]).await.unwrap();
    assert!(rows.iter().all(|row| !row.get::<_, String>(0).contains(secret)));
    let listed: Value = serde_json::from_str(&printed(&server, &["key", "list", "--json"]).await).unwrap();
    assert_eq!((listed[0]["id"].as_str(), listed[0]["role"].as_str()), (Some(id(&key)), Some("read-write")));
    assert_eq!((&listed[0]["expiresAt"], listed[1]["expiresAt"].is_string()), (&Value::Null, true));
    assert!(!listed.to_string().contains(secret) && listed[0].get("hash").is_none());

    assert_eq!(printed(&server, &["key", "revoke", id(&key)]).await, format!("revoked {}", id(&key)));
    eventually("it ends", async || (holder.push("q").await.status == 401).then_some(())).await;
    assert!(!queen(&server, &["key", "revoke", id(&key)]).await.status.success());
    // Several keys may have the same name, so a name revokes none.
    let by_name = queen(&server, &["key", "revoke", "ci"]).await;
    let said = String::from_utf8(by_name.stderr).unwrap();
    assert!(!by_name.status.success() && said.contains(id(&second)) && !said.contains(id(&key)), "{said}");
    assert!(printed(&server, &["key", "list"]).await.contains("revoked"));
}

#[tokio::test]
async fn what_is_no_key_opens_nothing() {
    let server = Server::start_with(&["--auth-enabled", "--jwt-secret", SECRET]).await;
    let key = created(&server, "admin", &[]).await;
    let (start, secret) = key.rsplit_once('_').unwrap();
    let other = created(&server, "admin", &[]).await;
    let swapped = format!("{start}_{}", other.rsplit('_').next().unwrap());
    let flipped = format!("{start}_{}{}", if secret.starts_with('0') { '1' } else { '0' }, &secret[1..]);
    for bad in [swapped, flipped, start.to_owned(), format!("{key}0"), key.to_uppercase(), "qk_".to_owned()] {
        let reply = Holder::new(&server, &bad).get("/api/v1/resources/queues").await;
        assert!(reply.is_error(401, "unauthorized"), "{bad}: {}", reply.text);
        assert!(!reply.text.contains(secret), "{}", reply.text);
    }
    // Tokens are not enabled.
    let token = Signer::secret(SECRET).sign(&claims("admin"));
    let reply = Holder::new(&server, &token).get("/api/v1/resources/queues").await;
    assert_eq!(reply.json()["error"], "tokens are not accepted here, only API keys");
    for arguments in [
        &["key", "create", "--name", "", "--role", "admin"][..],
        &["key", "create", "--name", "x", "--role", "root"],
        &["key", "create", "--name", "x", "--role", "admin", "--queue", "orders"],
        &["key", "revoke", "nobody"],
    ] {
        assert!(!queen(&server, arguments).await.status.success(), "{arguments:?}");
    }
}

#[tokio::test]
async fn keys_work_beside_tokens_and_may_be_limited_and_expire() {
    let server = super::server().await;
    let key = created(&server, "read-write", &["--queue", "orders.*:push", "--queue", "jobs:push,pop"]).await;
    let holder = Holder::new(&server, &key);
    assert_eq!(holder.push("orders.eu").await.status, 201);
    let reply = holder.push("payments").await;
    assert!(reply.is_error(403, "forbidden"));
    assert_eq!(reply.json()["error"], "no right to push to queue \"payments\"");
    assert_eq!(holder.get("/api/v1/pop/queue/orders.eu").await.status, 403);
    assert_eq!(holder.get("/api/v1/pop/queue/jobs").await.status, 204);

    let short = created(&server, "read-only", &["--expires", "1s"]).await;
    let ended = async || {
        (Holder::new(&server, &short).get("/api/v1/resources/queues").await.status == 401).then_some(())
    };
    eventually("it expires", ended).await;
    let token = Signer::secret(SECRET).sign(&claims("read-only"));
    assert_eq!(Holder::new(&server, &token).get("/api/v1/resources/queues").await.status, 200);
}

#[tokio::test]
async fn known_keys_keep_working_while_the_database_is_away() {
    let database = queen_testkit::database().await;
    let proxy = queen_testkit::Proxy::to_postgres(database.url()).await;
    let connection = proxy.url().to_owned();
    let server = Server::start_on(database.into(), &connection, &["--auth-enabled"]).await;
    let key = created(&server, "admin", &[]).await;
    let holder = Holder::new(&server, &key);
    assert_eq!(holder.get("/api/v1/system/maintenance").await.status, 200);
    proxy.refuse(true);
    proxy.cut();
    // This takes longer than `FRESH_FOR`, so the broker has to work without reading the keys again.
    eventually("the broker has noticed", async || {
        (send(&server, None, "GET", "/health", None).await.status == 503).then_some(())
    })
    .await;
    let unknown = format!("{}{}", &key[..key.len() - 64], "0".repeat(64));
    for _ in 0..2 {
        let reply = holder.post("/internal/api/notify", json!({})).await;
        assert_eq!(reply.status, 400, "let in: {}", reply.text);
        assert_eq!(Holder::new(&server, &unknown).get("/api/v1/system/maintenance").await.status, 401);
    }
}

/// A key that exists at once, without starting a process: id and text.
async fn minted(server: &Server) -> (String, String) {
    let (id, secret) = (uuid::Uuid::new_v4().simple().to_string()[..16].to_owned(), "5".repeat(64));
    let hash = digest(&SHA256, secret.as_bytes());
    let sql = "select queen.create_key($1, 'minted', 'read-write', null, $2, null)";
    server.database.client().await.execute(sql, &[&id, &hash.as_ref()]).await.unwrap();
    (id.clone(), format!("qk_{id}_{secret}"))
}

#[tokio::test]
async fn a_new_key_works_at_once_while_unknown_keys_are_tried() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    let stranger = |n: usize| format!("qk_{n:016x}_{}", "0".repeat(64));
    let guess = async |n| {
        let reply = Holder::new(&server, &stranger(n)).get("/api/v1/whoami").await;
        assert!(reply.is_error(401, "unauthorized"), "{}", reply.text);
    };
    for round in 0..5 {
        guess(round).await;
        let (_, key) = minted(&server).await;
        assert_eq!(Holder::new(&server, &key).get("/api/v1/whoami").await.status, 200, "the first time");
    }
    // Guesses that arrive together share one read.
    futures_util::future::join_all((0..200).map(guess)).await;
    let (_, key) = minted(&server).await;
    assert_eq!(Holder::new(&server, &key).get("/api/v1/whoami").await.status, 200);
}

#[tokio::test]
async fn a_key_that_cannot_be_looked_up_is_not_called_unknown() {
    let database = queen_testkit::database().await;
    let proxy = queen_testkit::Proxy::to_postgres(database.url()).await;
    let connection = proxy.url().to_owned();
    let server = Server::start_on(database.into(), &connection, &["--auth-enabled"]).await;
    let (_, key) = minted(&server).await;
    assert_eq!(Holder::new(&server, &key).get("/api/v1/whoami").await.status, 200);
    let (_, later) = minted(&server).await;
    proxy.refuse(true);
    proxy.cut();
    eventually("the broker has noticed", async || {
        (send(&server, None, "GET", "/health", None).await.status == 503).then_some(())
    })
    .await;
    assert!(Holder::new(&server, &later).get("/api/v1/whoami").await.is_error(503, "unavailable"));
    assert_eq!(Holder::new(&server, &key).get("/api/v1/whoami").await.status, 200);
}

/// The status of a pop that could wait for a minute and must be answered much sooner. `then` runs once it waits.
async fn cut_short(server: &Server, token: &str, query: &str, then: impl AsyncFnOnce()) -> u16 {
    let holder = Holder::new(server, token);
    let path = format!("/api/v1/pop/queue/empty?wait=true&timeout=60000{query}");
    let end = async {
        eventually("it waits", async || {
            let metrics = send(server, None, "GET", "/metrics/prometheus", None).await.text;
            metrics.contains("queen_parked_pops 1\n").then_some(())
        })
        .await;
        then().await;
    };
    let (reply, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(20), holder.get(&path)), end);
    reply.expect("it waits no longer").status
}

#[tokio::test]
async fn a_waiting_pop_ends_when_its_key_is_revoked() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    for query in ["", "&waitId=00000000-0000-0000-0000-000000000007"] {
        let (id, key) = minted(&server).await;
        let revoke = async || {
            let client = server.database.client().await;
            client.execute("select queen.revoke_key($1)", &[&id]).await.unwrap();
        };
        assert_eq!(cut_short(&server, &key, query, revoke).await, 401, "{query}");
    }
}

#[tokio::test]
async fn a_waiting_pop_ends_when_its_token_expires() {
    let flags = ["--jwt-enabled", "--jwt-secret", SECRET, "--jwt-clock-skew", "0"];
    let server = Server::start_with(&flags).await;
    let token = Signer::secret(SECRET).sign(&with(claims("read-write"), "exp", json!(now() + 3)));
    assert_eq!(cut_short(&server, &token, "", async || {}).await, 204);
    assert_eq!(Holder::new(&server, &token).get("/api/v1/whoami").await.status, 401);
}
