//! Every route with every kind of caller, and the exact status each gets. The table is written by hand: derived from the code it would
//! only test the code against itself.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::issuer::{Signer, forged};
use super::{AUDIENCE, ISSUER, SECRET, claims, keys, now, send, with};
use crate::support::{Server, eventually};

/// P: public. R, W, A: roles that may read, write, do everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    P,
    R,
    W,
    A,
}
use Mark::{A, P, R, W};

const ID: &str = "00000000-0000-0000-0000-000000000001";

/// Method, route, mark, and the status for a permitted caller without a body. `{…}` is an unused name,
/// or the id above.
const ROUTES: &[(&str, &str, Mark, u16)] = &[
    ("POST", "/api/v1/push", W, 400),
    ("GET", "/api/v1/pop", W, 400),
    ("GET", "/api/v1/pop/queue/", W, 204),
    ("GET", "/api/v1/pop/queue/{queue}", W, 204),
    ("GET", "/api/v1/pop/queue/{queue}/partition/{partition}", W, 204),
    ("DELETE", "/api/v1/pop/waits/{wait}", W, 200),
    ("POST", "/api/v1/ack", W, 400),
    ("POST", "/api/v1/ack/batch", W, 400),
    ("POST", "/api/v1/transaction", W, 400),
    ("POST", "/api/v1/lease/{lease}/extend", W, 200),
    ("GET", "/api/v1/operations", R, 200),
    ("GET", "/api/v1/operations/stats", R, 200),
    ("GET", "/api/v1/operations/{operation}", R, 404),
    ("DELETE", "/api/v1/operations/{operation}", A, 404),
    ("POST", "/api/v1/operations/{operation}/retry", A, 404),
    ("POST", "/api/v1/configure", W, 400),
    ("GET", "/api/v1/resources/queues", R, 200),
    ("DELETE", "/api/v1/resources/queues/", A, 200),
    ("GET", "/api/v1/resources/queues/{queue}", R, 404),
    ("DELETE", "/api/v1/resources/queues/{queue}", A, 200),
    ("GET", "/api/v1/resources/queues/{queue}/depth", R, 404),
    ("GET", "/api/v1/resources/partitions", R, 200),
    ("GET", "/api/v1/resources/namespaces", R, 200),
    ("GET", "/api/v1/resources/tasks", R, 200),
    ("GET", "/api/v1/resources/overview", R, 200),
    ("DELETE", "/api/v1/queues/{queue}/clear", A, 404),
    ("POST", "/api/v1/stats/refresh", A, 200),
    ("GET", "/api/v1/consumer-groups", R, 200),
    ("GET", "/api/v1/consumer-groups/lagging", R, 200),
    ("GET", "/api/v1/consumer-groups/{group}", R, 200),
    ("DELETE", "/api/v1/consumer-groups/{group}", A, 200),
    ("POST", "/api/v1/consumer-groups/{group}/subscription", W, 400),
    ("DELETE", "/api/v1/consumer-groups/{group}/queues/{queue}", A, 200),
    ("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/seek", W, 400),
    ("POST", "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", W, 404),
    ("GET", "/api/v1/messages", R, 200),
    ("GET", "/api/v1/messages/{partition}/{transaction}", R, 404),
    ("DELETE", "/api/v1/messages/{partition}/{transaction}", W, 404),
    ("GET", "/api/v1/messages/{partition}/{transaction}/life", R, 404),
    ("POST", "/api/v1/messages/{partition}/{transaction}/retry", W, 404),
    ("POST", "/api/v1/messages/{partition}/{transaction}/dlq", W, 404),
    ("GET", "/api/v1/dlq", R, 200),
    ("DELETE", "/api/v1/dlq", A, 400),
    ("GET", "/api/v1/dlq/shapes", R, 200),
    ("POST", "/api/v1/dlq/redrive", W, 400),
    ("GET", "/api/v1/dlq/redrives", R, 200),
    ("GET", "/api/v1/dlq/redrives/{redrive}", R, 404),
    ("DELETE", "/api/v1/dlq/redrives/{redrive}", W, 404),
    ("POST", "/api/v1/traces", W, 400),
    ("GET", "/api/v1/traces/names", R, 200),
    ("GET", "/api/v1/traces/by-name/{name}", R, 200),
    ("GET", "/api/v1/traces/{partition}/{transaction}", R, 200),
    ("GET", "/api/v1/system/maintenance", A, 200),
    ("POST", "/api/v1/system/maintenance", A, 400),
    ("GET", "/api/v1/system/maintenance/pop", A, 200),
    ("POST", "/api/v1/system/maintenance/pop", A, 400),
    ("GET", "/api/v1/whoami", R, 200),
    ("GET", "/api/v1/system/settings", A, 200),
    ("GET", "/api/v1/system/doctor", R, 200),
    ("GET", "/api/v1/system/shared-state", A, 200),
    ("GET", "/internal/api/shared-state/stats", A, 200),
    ("GET", "/internal/api/inter-instance/stats", A, 200),
    ("POST", "/internal/api/notify", A, 400),
    ("GET", "/api/v1/analytics/system-metrics", R, 200),
    ("GET", "/api/v1/analytics/worker-metrics", R, 200),
    ("GET", "/api/v1/analytics/queue-lag", R, 200),
    ("GET", "/api/v1/analytics/queue-ops", R, 200),
    ("GET", "/api/v1/analytics/queue-parked-replicas", R, 200),
    ("GET", "/api/v1/analytics/retention", R, 200),
    ("GET", "/api/v1/analytics/postgres-stats", R, 200),
    ("GET", "/api/v1/status", R, 200),
    ("GET", "/api/v1/status/queues", R, 200),
    ("GET", "/api/v1/status/queues/{queue}", R, 404),
    ("GET", "/api/v1/status/queues/{queue}/messages", R, 404),
    ("GET", "/api/v1/status/analytics", R, 200),
    ("GET", "/api/v1/status/buffers", R, 200),
    ("GET", "/health", P, 200),
    ("GET", "/health/live", P, 200),
    ("GET", "/health/ready", P, 200),
    ("GET", "/metrics", P, 200),
    ("GET", "/metrics/prometheus", P, 200),
    ("GET", "/openapi.json", R, 200),
];

/// Paths that are not in the table of routes, but have to be closed as well.
const ELSEWHERE: &[(&str, &str, Mark, u16)] = &[
    ("GET", "/docs/", R, 200),
    ("GET", "/docs/swagger-ui.css", R, 200),
    ("GET", "/api/v1/nothing", R, 404),
    ("POST", "/streams/v1/queries", R, 404),
    ("GET", "/index.html", R, 404),
    ("GET", "/api/v1/push/", R, 404),
    ("GET", "/API/v1/system/maintenance", R, 404),
    ("GET", "//api/v1/system/maintenance", R, 404),
    ("GET", "/health/../api/v1/system/maintenance", A, 200),
    ("GET", "/", P, 200),
    ("HEAD", "/", P, 200),
    ("POST", "/", P, 405),
    ("GET", "/assets/nothing.js", P, 404),
    ("GET", "/assets/", R, 404),
    ("GET", "/assets/../api/v1/system/maintenance", A, 200),
    ("PATCH", "/api/v1/push", A, 405),
    ("HEAD", "/api/v1/resources/queues", R, 200),
    ("HEAD", "/api/v1/pop/queue/q", W, 405),
    ("OPTIONS", "/api/v1/system/maintenance", P, 204),
];

/// The rights of a caller; `Err` is a request without credentials.
type Standing = Result<Option<Mark>, ()>;

fn expected(standing: Standing, mark: Mark, status: u16) -> u16 {
    match standing {
        _ if mark == P => status,
        Err(()) => 401,
        Ok(Some(role)) if role >= mark => status,
        Ok(_) => 403,
    }
}

#[test]
fn every_route_and_method_is_in_the_table() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
    let document: Value = serde_json::from_str(&std::fs::read_to_string(page).unwrap()).unwrap();
    let described: BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, item)| {
            item.as_object().unwrap().keys().map(|method| (path.clone(), method.to_uppercase()))
        })
        .collect();
    let here: BTreeSet<(String, String)> =
        ROUTES.iter().map(|(method, path, ..)| ((*path).to_owned(), (*method).to_owned())).collect();
    assert_eq!(described, here);
}

fn concrete(path: &str) -> String {
    let by_id = path.contains("/messages/{partition}") || path.contains("/traces/{partition}");
    let mut path = path.to_owned();
    if by_id {
        path = path.replace("{partition}", ID);
    }
    for id in ["{operation}", "{redrive}", "{wait}"] {
        path = path.replace(id, ID);
    }
    path.replace(['{', '}'], "")
}

async fn walk(server: &Server, name: &str, authorization: Option<&str>, standing: Standing) {
    for (method, route, mark, status) in ROUTES.iter().chain(ELSEWHERE) {
        let reply = send(server, authorization, method, &concrete(route), None).await;
        let wanted = expected(standing, *mark, *status);
        assert_eq!(reply.status, wanted, "{name}: {method} {route}: {}", reply.text);
        if *method != "HEAD" && matches!(wanted, 401 | 403) {
            let code = if wanted == 401 { "unauthorized" } else { "forbidden" };
            assert!(reply.is_error(wanted, code), "{name}: {method} {route}: {}", reply.text);
            assert_eq!(reply.headers.contains_key("www-authenticate"), wanted == 401);
        }
    }
}

#[tokio::test]
async fn each_route_answers_each_caller_as_it_should() {
    let (rsa, secret) = (Signer::rsa(None), Signer::secret(SECRET));
    let flags = [
        "--jwt-enabled",
        "--jwt-algorithm",
        "auto",
        "--jwt-secret",
        SECRET,
        "--jwt-public-key",
        &rsa.pem,
        "--jwt-issuer",
        ISSUER,
        "--jwt-audience",
        AUDIENCE,
    ];
    let server = Server::start_with(&flags).await;
    let admin = claims("admin");
    let signed = |name: &str, value: Value| secret.sign(&with(admin.clone(), name, value));
    let foreign = Signer::rsa(None);
    let nobody: &[(&str, String)] = &[
        ("garbage", "garbage".to_owned()),
        ("expired", signed("exp", json!(now() - 3600))),
        ("not yet valid", signed("nbf", json!(now() + 3600))),
        ("from the future", signed("iat", json!(now() + 3600))),
        ("wrong audience", signed("aud", json!("another"))),
        ("wrong issuer", signed("iss", json!("https://another.test"))),
        ("alg none", forged(&json!({"alg": "none", "typ": "JWT"}), &admin, "")),
        ("the public key as a secret", Signer::secret(&rsa.pem).sign(&admin)),
        ("another secret", Signer::secret("another").sign(&admin)),
        ("another key", foreign.sign(&admin)),
        ("unknown key", format!("qk_{}_{}", "0".repeat(16), "0".repeat(64))),
    ];
    walk(&server, "no token", None, Err(())).await;
    for (name, token) in nobody {
        walk(&server, name, Some(&format!("Bearer {token}")), Err(())).await;
    }
    for (role, mark) in
        [("nothing", None), ("read-only", Some(R)), ("read-write", Some(W)), ("admin", Some(A))]
    {
        walk(&server, role, Some(&format!("Bearer {}", rsa.sign(&claims(role)))), Ok(mark)).await;
        walk(&server, role, Some(&secret.sign(&claims(role))), Ok(mark)).await;
        if mark.is_some() {
            let key = keys::created(&server, role, &[]).await;
            walk(&server, role, Some(&format!("Bearer {key}")), Ok(mark)).await;
        }
    }
    let revoked = keys::created(&server, "admin", &[]).await;
    keys::printed(&server, &["key", "revoke", keys::id(&revoked)]).await;
    let revoked = format!("Bearer {revoked}");
    let ended =
        async || (send(&server, Some(&revoked), "GET", "/docs/", None).await.status == 401).then_some(());
    eventually("it ends", ended).await;
    walk(&server, "revoked key", Some(&revoked), Err(())).await;
}
