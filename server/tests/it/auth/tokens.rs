//! Good and bad tokens, each with its response, and the use of their subject.

use std::path::Path;

use queen_testkit::Broker;
use serde_json::{Value, json};

use super::issuer::{Signer, forged};
use super::{AUDIENCE, Holder, ISSUER, SECRET, claims, now, send, server, with};
use crate::support::Server;

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");
/// Any route that reads.
const ROUTE: &str = "/api/v1/resources/overview";

async fn said(server: &Server, authorization: &str) -> (u16, Value) {
    let reply = send(server, Some(authorization), "GET", ROUTE, None).await;
    (reply.status, reply.json()["error"].clone())
}

#[tokio::test]
async fn a_refusal_says_what_is_wrong_and_how_to_authenticate() {
    let flags = ["--jwt-enabled", "--jwt-secret", SECRET, "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE];
    let server = Server::start_with(&flags).await;
    let signer = Signer::secret(SECRET);
    let good = claims("read-only");
    let token = |claims: Value| format!("Bearer {}", signer.sign(&claims));
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        claims
    };
    let (_, signature) =
        signer.sign(&good).rsplit_once('.').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    for (authorization, reason) in [
        (
            "Basic dXNlcjpwYXNz".to_owned(),
            "the Authorization header holds neither a bearer token nor an API key",
        ),
        ("Bearer nonsense".to_owned(), "not a token"),
        ("Bearer a.b.c.d".to_owned(), "not a token"),
        ("Bearer ..".to_owned(), "not a token"),
        (token(with(good.clone(), "exp", json!(now() - 60))), "token expired"),
        (token(without("exp")), "token never expires"),
        (token(with(good.clone(), "exp", json!("tomorrow"))), "exp is not a time"),
        (token(with(good.clone(), "nbf", json!(now() + 60))), "token not valid yet"),
        (token(with(good.clone(), "iat", json!(now() + 60))), "token issued in the future"),
        (token(with(good.clone(), "aud", json!("another"))), "wrong audience"),
        (token(without("aud")), "wrong audience"),
        (token(with(good.clone(), "iss", json!("https://else"))), "wrong issuer"),
        (
            token(with(good.clone(), "sub", json!("a\0b"))),
            "the subject of the token is not usable: a text of up to 255 characters without NUL",
        ),
        (token(with(good.clone(), "queen", json!("all"))), "the grants of the token cannot be read"),
        (format!("Bearer {}", Signer::secret("another secret").sign(&good)), "signature does not match"),
        (forged(&json!({"alg": "none"}), &good, ""), "algorithm not allowed"),
        (forged(&json!({"alg": "None"}), &good, &signature), "algorithm not allowed"),
        (forged(&json!({"alg": "HS512"}), &good, &signature), "algorithm not allowed"),
        (forged(&json!({"alg": "RS256"}), &good, &signature), "algorithm not allowed"),
        (forged(&json!({"alg": "HS256"}), &claims("admin"), &signature), "signature does not match"),
        (forged(&json!({"alg": "HS256"}), &good, ""), "signature does not match"),
        (
            forged(&json!({"alg": "HS256", "crit": ["b64"]}), &good, &signature),
            "the token wants an extension that is not known here",
        ),
    ] {
        let reply = send(&server, Some(&authorization), "GET", ROUTE, None).await;
        assert!(reply.is_error(401, "unauthorized"), "{authorization}: {} {}", reply.status, reply.text);
        assert_eq!(reply.json()["error"], reason, "{authorization}");
        let challenge = reply.headers["www-authenticate"].to_str().unwrap();
        assert!(challenge.starts_with("Bearer error=\"invalid_token\""), "{challenge}");
        assert_eq!(reply.headers["access-control-allow-origin"], "*");
    }
    let reply = send(&server, None, "GET", ROUTE, None).await;
    assert!(reply.is_error(401, "unauthorized"));
    assert_eq!(
        (reply.json()["error"].clone(), reply.headers["www-authenticate"].to_str().unwrap()),
        (json!("Authentication required"), "Bearer")
    );

    // The same token is valid in each spelling of the header, a little late, and with other audiences beside ours.
    let late = with(with(good.clone(), "exp", json!(now() - 20)), "aud", json!(["else", AUDIENCE]));
    for authorization in [token(good.clone()), signer.sign(&good), token(late)] {
        assert_eq!(said(&server, &authorization).await.0, 200);
    }
    let no_role = "Insufficient permissions: the token names no known role, this needs read-only";
    assert_eq!(said(&server, &token(without("role"))).await, (403, json!(no_role)));
    assert_eq!(said(&server, &token(with(good, "role", json!("root")))).await.0, 403);
}

#[tokio::test]
async fn each_key_verifies_its_own_algorithm_and_no_other() {
    let (rsa, ed, secret) = (Signer::rsa(None), Signer::ed(None), Signer::secret(SECRET));
    let escaped = rsa.pem.replace('\n', "\\n");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key.pem");
    std::fs::write(&file, &ed.pem).unwrap();
    let file = file.to_str().unwrap();
    // Flags, and which of the three signers they accept.
    for (flags, allowed) in [
        (
            vec!["--jwt-algorithm", "HS256", "--jwt-secret", SECRET, "--jwt-public-key", &rsa.pem],
            [false, false, true],
        ),
        (
            vec!["--jwt-algorithm", "RS256", "--jwt-secret", SECRET, "--jwt-public-key", &escaped],
            [true, false, false],
        ),
        (
            vec!["--jwt-algorithm", "EdDSA", "--jwt-secret", SECRET, "--jwt-public-key", file],
            [false, true, false],
        ),
        (
            vec!["--jwt-algorithm", "auto", "--jwt-secret", SECRET, "--jwt-public-key", &rsa.pem],
            [true, false, true],
        ),
        (vec!["--jwt-algorithm", "auto", "--jwt-public-key", &rsa.pem], [true, false, false]),
    ] {
        let server = Server::start_with(&[&["--jwt-enabled"], &flags[..]].concat()).await;
        for (signer, allowed) in [&rsa, &ed, &secret].into_iter().zip(allowed) {
            let token = signer.sign(&claims("read-only"));
            let status = if allowed { 200 } else { 401 };
            assert_eq!(said(&server, &token).await.0, status, "{flags:?}");
            // The same result the second time: accepted tokens are cached, refused ones are not accepted later.
            assert_eq!(said(&server, &token).await.0, status, "{flags:?}");
        }
        // Anybody can know a public key. It must not be accepted as a secret, in any form.
        for known in [&rsa.pem, rsa.pem.trim_end(), &escaped, &ed.pem, ed.pem.trim_end(), file] {
            let confused = Signer::secret(known).sign(&claims("admin"));
            assert_eq!(said(&server, &confused).await.0, 401, "{flags:?}");
        }
    }
}

#[tokio::test]
async fn roles_and_claims_may_have_other_names() {
    let flags = [
        "--jwt-enabled",
        "--jwt-secret",
        SECRET,
        "--jwt-require-exp",
        "false",
        "--jwt-role-admin",
        "boss",
        "--jwt-roles-array-claim",
        "realm_access.roles",
        "--jwt-roles-claim",
        "level",
        "--jwt-grants-claim",
        "limits",
        "--jwt-skip-paths",
        "/health,/docs/",
    ];
    let server = Server::start_with(&flags).await;
    let status = async |claims: Value, path: &str| {
        let token = Signer::secret(SECRET).sign(&claims);
        Holder::new(&server, &token).get(path).await.status
    };
    let (admins, readers) = ("/api/v1/system/maintenance", ROUTE);
    assert_eq!(status(json!({"realm_access": {"roles": ["x", "boss"]}}), admins).await, 200);
    assert_eq!(status(json!({"level": "boss"}), admins).await, 200);
    assert_eq!(status(json!({"level": "read-only"}), readers).await, 200);
    assert_eq!(status(json!({"level": "admin", "role": "boss"}), readers).await, 403);
    assert_eq!(status(json!({"level": "boss", "queen": "ignored"}), readers).await, 200);
    assert_eq!(status(json!({"level": "boss", "limits": []}), readers).await, 403);
    // The open paths are those of the setting, the health checks, and the dashboard.
    for (path, expected) in [
        ("/health", 200),
        ("/health/live", 200),
        ("/health/ready", 200),
        ("/metrics", 401),
        ("/docs/", 200),
        ("/", 200),
        ("/index.html", 401),
    ] {
        assert_eq!(send(&server, None, "GET", path, None).await.status, expected, "{path}");
    }
}

#[tokio::test]
async fn messages_carry_the_subject_of_the_token_and_never_what_the_body_says() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().to_str().unwrap();
    let server =
        Server::start_with(&["--jwt-enabled", "--jwt-secret", SECRET, "--file-buffer-dir", spool]).await;
    let token = Signer::secret(SECRET).sign(&claims("admin"));
    let ann = Holder::new(&server, &token);
    let item = |n: u8| json!({"queue": "q", "payload": n, "producerSub": "eve"});
    assert_eq!(ann.post("/api/v1/push", json!({"items": [item(1)]})).await.status, 201);
    let operations = json!([
        {"type": "push", "items": [item(2)]},
        {"type": "push", "queue": "q", "payload": 3, "producerSub": "eve"},
    ]);
    let outcome = ann.post("/api/v1/transaction", json!({"operations": operations})).await;
    assert_eq!(outcome.json()["success"], true, "{}", outcome.text);
    // Through the spool and back.
    assert_eq!(ann.post("/api/v1/system/maintenance", json!({"enabled": true})).await.status, 200);
    let spooled = ann.post("/api/v1/push", json!({"items": [item(4)]})).await;
    assert_eq!(spooled.json()[0]["status"], "buffered", "{}", spooled.text);
    assert_eq!(ann.post("/api/v1/system/maintenance", json!({"enabled": false})).await.status, 200);
    let mut subjects = Vec::new();
    crate::support::eventually("all four arrive", async || {
        let popped = ann.get("/api/v1/pop/queue/q?batch=10&autoAck=true").await;
        if popped.status == 200 {
            let messages = popped.json()["messages"].as_array().unwrap().clone();
            subjects.extend(messages.iter().map(|message| message["producerSub"].clone()));
        }
        (subjects.len() == 4).then_some(())
    })
    .await;
    assert_eq!(subjects, ["ann"; 4]);

    // Without access control there is no subject, whatever the body or the headers contain.
    let open = Server::start().await;
    let reply = send(
        &open,
        Some(&format!("Bearer {token}")),
        "POST",
        "/api/v1/push",
        Some(json!({"items": [item(1)]})),
    )
    .await;
    assert_eq!(reply.status, 201);
    assert_eq!(open.pop("/queue/q").await.unwrap().messages[0]["producerSub"], Value::Null);
}

#[tokio::test]
async fn a_large_body_of_a_stranger_is_answered_and_not_read_to_its_end() {
    let server = server().await;
    let body = json!({"items": [{"queue": "q", "payload": "x".repeat(600_000)}]});
    assert_eq!(send(&server, None, "POST", "/api/v1/push", Some(body)).await.status, 401);
    assert_eq!(send(&server, None, "OPTIONS", "/api/v1/push", None).await.status, 204);
}

#[tokio::test]
async fn a_variable_that_is_empty_and_would_open_the_door_refuses_the_start() {
    let database = queen_testkit::database().await;
    for (name, flag) in [
        ("JWT_ISSUER", "--jwt-issuer"),
        ("JWT_AUDIENCE", "--jwt-audience"),
        ("JWT_SKIP_PATHS", "--jwt-skip-paths"),
        ("QUEEN_TLS_CERT", "--tls-cert"),
        ("QUEEN_TLS_KEY", "--tls-key"),
        ("QUEEN_TLS_CLIENT_CA", "--tls-client-ca"),
    ] {
        let env = [("DATABASE_URL", database.url()), (name, "")];
        let refused = Broker::start(Path::new(QUEEN), &[], &env).await;
        let said = refused.err().unwrap_or_else(|| panic!("it started with an empty {name}")).to_string();
        assert!(said.contains(flag), "{name}: {said}");
    }
}
