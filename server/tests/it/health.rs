//! Health and readiness, which are different questions.

use queen_testkit::Proxy;
use serde_json::json;

use crate::support::{Server, eventually};

#[tokio::test]
async fn a_healthy_server_reports_its_health_and_identity() {
    let server = Server::start().await;
    let reply = server.get("/health").await;
    let body = reply.json();
    assert_eq!(
        (reply.status, &body["status"], &body["database"]),
        (200, &json!("healthy"), &json!("connected"))
    );
    assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
    let port = server.url.rsplit(':').next().unwrap();
    for key in ["server", "worker_id"] {
        assert!(body[key].as_str().unwrap().ends_with(port), "{body}");
    }
    assert_eq!(server.get("/health/live").await.status, 200);
    assert_eq!(server.get("/health/ready").await.status, 200);
}

#[tokio::test]
async fn without_its_database_a_server_is_alive_but_not_ready_and_comes_back() {
    let database = queen_testkit::database().await;
    let proxy = Proxy::to_postgres(database.url()).await;
    let server = Server::start_on(database.into(), proxy.url(), &[]).await;
    proxy.refuse(true);
    proxy.cut();
    let body = eventually("the server notices", async || {
        let reply = server.get("/health").await;
        (reply.status == 503).then(|| reply.json())
    })
    .await;
    assert_eq!((&body["status"], &body["database"]), (&json!("unhealthy"), &json!("disconnected")));
    assert_eq!(server.get("/health/ready").await.status, 503);
    assert_eq!(server.get("/health/live").await.status, 200);

    proxy.refuse(false);
    eventually("the server is back", async || (server.get("/health").await.status == 200).then_some(()))
        .await;
    server.push("q", "p", &[json!(1)]).await;
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [1]);
}

/// Published consumers poll on only if the text says `timeout` or `connection`; any other ends them.
#[tokio::test]
async fn a_pop_without_a_database_fails_in_words_that_keep_consumers_alive() {
    let database = queen_testkit::database().await;
    let proxy = Proxy::to_postgres(database.url()).await;
    let server = Server::start_on(database.into(), proxy.url(), &[]).await;
    server.push("q", "p", &[json!(1)]).await;
    proxy.refuse(true);
    proxy.cut();
    let reply = server.get("/api/v1/pop/queue/q").await;
    assert!(reply.is_error(503, "unavailable"), "{} {}", reply.status, reply.text);
    assert!(reply.text.contains("timeout") && reply.text.contains("connection"), "{}", reply.text);
}
