//! What is accessible without credentials.

use super::issuer::Signer;
use super::{Holder, SECRET, claims, granted, send, server};
use crate::limits::metric;
use crate::support::{Server, eventually};
use serde_json::json;

const METRICS: &str = "/metrics/prometheus";

/// Whether the page shows the name of a queue to this caller. A queue has to be counted first.
async fn names_a_queue(server: &Server, token: Option<&str>) -> bool {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let reply = send(server, authorization.as_deref(), "GET", METRICS, None).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert!(reply.text.contains("queen_dlq_depth 0\n") && reply.text.contains("queen_uptime_seconds"));
    reply.text.contains("secret-project")
}

async fn counted(server: &Server, token: Option<&str>) {
    let boss = Signer::secret(SECRET).sign(&claims("admin"));
    let boss = Holder::new(server, &boss);
    assert_eq!(boss.push("secret-project").await.status, 201);
    assert_eq!(boss.get("/api/v1/pop/queue/secret-project?consumerGroup=g").await.status, 200);
    assert_eq!(boss.post("/api/v1/stats/refresh", json!({})).await.status, 200);
    eventually("it is counted", async || names_a_queue(server, token).await.then_some(())).await;
}

#[tokio::test]
async fn metrics_name_queues_only_to_callers_with_access_to_all_of_them() {
    let server = server().await;
    let reader = Signer::secret(SECRET).sign(&claims("read-only"));
    counted(&server, Some(&reader)).await;
    let limited = granted("admin", json!([{"queues": ["*"], "rights": ["pop"]}]));
    let forged = Signer::secret("another secret, as long as this one is").sign(&claims("admin"));
    let stranger = Signer::secret(SECRET).sign(&claims("juggler"));
    for token in [None, Some(&*limited), Some(&*forged), Some(&*stranger), Some("nonsense")] {
        assert!(!names_a_queue(&server, token).await, "{token:?}");
    }
    let refused = metric(&server, "queen_auth_refused_total{status=\"401\",reason=\"signature\"}").await;
    assert_eq!(refused, 1, "the forged one is counted");
    for path in ["/metrics", "/health"] {
        let reply = send(&server, None, "GET", path, None).await;
        assert!(reply.status == 200 && !reply.text.contains("secret-project"), "{path}: {}", reply.text);
    }
}

#[tokio::test]
async fn open_metrics_name_queues_if_configured_or_without_access_control() {
    let server = Server::start_with(&["--jwt-enabled", "--jwt-secret", SECRET, "--open-metrics"]).await;
    counted(&server, None).await;
    counted(&Server::start().await, None).await;
}

#[tokio::test]
async fn guessing_keys_through_metrics_is_rate_limited() {
    let flags = ["--jwt-enabled", "--jwt-secret", SECRET, "--rate-per-client", "3"];
    let server = Server::start_with(&flags).await;
    let tried = async || send(&server, Some("Bearer nonsense"), "GET", METRICS, None).await;
    eventually("it is held up", async || (tried().await.status == 429).then_some(())).await;
    assert_eq!(send(&server, None, "GET", METRICS, None).await.status, 200, "who shows nothing may look");
}
