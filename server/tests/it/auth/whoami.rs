//! `GET /api/v1/whoami`: callers see their own rights, and no others.

use serde_json::json;

use super::issuer::Signer;
use super::{Holder, SECRET, claims, granted, keys, send, server, with};
use crate::support::Server;

const PATH: &str = "/api/v1/whoami";

#[tokio::test]
async fn without_access_control_every_caller_is_an_admin() {
    let server = Server::start().await;
    let everybody =
        json!({"authentication": false, "name": null, "kind": "none", "role": "admin", "grants": null});
    for authorization in [None, Some("Bearer nonsense")] {
        let reply = send(&server, authorization, "GET", PATH, None).await;
        assert_eq!((reply.status, reply.json()), (200, everybody.clone()), "{authorization:?}");
    }
}

#[tokio::test]
async fn who_shows_nothing_good_is_refused() {
    let server = server().await;
    let expired = Signer::secret(SECRET).sign(&with(claims("admin"), "exp", json!(1)));
    for authorization in [None, Some("Bearer nonsense"), Some(&*format!("Bearer {expired}"))] {
        let reply = send(&server, authorization, "GET", PATH, None).await;
        assert!(reply.is_error(401, "unauthorized"), "{authorization:?}: {}", reply.text);
    }
    let stranger = Signer::secret(SECRET).sign(&claims("juggler"));
    assert_eq!(Holder::new(&server, &stranger).get(PATH).await.status, 403, "no role of ours");
}

#[tokio::test]
async fn whoami_returns_the_role_and_grants_of_a_token() {
    let server = server().await;
    for role in ["read-only", "read-write", "admin"] {
        let token = Signer::secret(SECRET).sign(&claims(role));
        let told = Holder::new(&server, &token).get(PATH).await.json();
        let expected =
            json!({"authentication": true, "name": "ann", "kind": "token", "role": role, "grants": null});
        assert_eq!(told, expected);
    }
    let grants = json!([{"queues": ["orders*"], "rights": ["push", "pop"]}, {"queues": ["jobs"], "rights": ["admin"]}]);
    let told = Holder::new(&server, &granted("read-write", grants.clone())).get(PATH).await.json();
    assert_eq!((&told["role"], &told["grants"]), (&json!("read-write"), &grants));
    let none = Holder::new(&server, &granted("read-only", json!([]))).get(PATH).await.json();
    assert_eq!(none["grants"], json!([]), "no queue at all is not all queues");
}

#[tokio::test]
async fn whoami_returns_the_name_of_a_key_and_never_the_key() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    let key = keys::created(&server, "read-write", &["--queue", "orders.*:push,pop"]).await;
    let reply = Holder::new(&server, &key).get(PATH).await;
    let expected = json!({
        "authentication": true, "name": "ci", "kind": "key", "role": "read-write",
        "grants": [{"queues": ["orders.*"], "rights": ["push", "pop"]}],
    });
    assert_eq!(reply.json(), expected);
    assert!(!reply.text.contains(key.rsplit('_').next().unwrap()), "{}", reply.text);
}

#[tokio::test]
async fn whoami_on_an_open_path_is_anonymous() {
    let flags = ["--jwt-enabled", "--jwt-secret", SECRET, "--jwt-skip-paths", PATH];
    let server = Server::start_with(&flags).await;
    assert!(send(&server, None, "GET", PATH, None).await.is_error(401, "unauthorized"));
}
