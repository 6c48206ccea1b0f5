//! Requests of web pages: without access control a broker only accepts configured origins, under its own host names.

use std::path::Path;

use queen_testkit::Broker;
use reqwest::Method;
use serde_json::json;

use crate::support::{Reply, Server};

const QUEEN: &str = env!("CARGO_BIN_EXE_queen");
const PUSH: &str = r#"{"items":[{"queue":"q","payload":1}]}"#;
const ALLOWED: &str = "https://app.example.com";

async fn send(server: &Server, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
    let body = if method == Method::POST { PUSH } else { "" };
    let mut request = server.http.request(method, format!("{}{path}", server.url)).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Reply { status, headers, text: response.text().await.unwrap() }
}

#[tokio::test]
async fn a_page_of_another_origin_can_neither_push_nor_pop_nor_read() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let pages: [&[(&str, &str)]; 6] = [
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:1")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
    ];
    for headers in pages {
        for (method, path) in [
            (Method::POST, "/api/v1/push"),
            (Method::GET, "/api/v1/pop/queue/q?autoAck=true"),
            (Method::DELETE, "/api/v1/resources/queues/q"),
            (Method::GET, "/api/v1/resources/queues"),
            (Method::GET, "/metrics"),
        ] {
            let reply = send(&server, method.clone(), path, headers).await;
            assert!(reply.is_error(403, "forbidden"), "{method} {path} {headers:?}: {}", reply.status);
            assert!(!reply.headers.contains_key("access-control-allow-origin"), "{headers:?}");
        }
        let preflight = send(&server, Method::OPTIONS, "/api/v1/push", headers).await;
        assert_eq!(preflight.status, 204);
        assert!(!preflight.headers.contains_key("access-control-allow-origin"), "{headers:?}");
    }
    assert_eq!(server.pop("/queue/q?batch=10").await.unwrap().data(), [1]);
}

#[tokio::test]
async fn the_pages_of_the_broker_itself_may_do_everything() {
    let server = Server::start().await;
    let own = server.url.clone();
    for headers in [
        &[("origin", own.as_str())][..],
        &[("sec-fetch-site", "same-origin"), ("origin", own.as_str())],
        // Behind a proxy that rewrites `Host`.
        &[("sec-fetch-site", "same-origin"), ("origin", "https://queen.example.com")],
        &[("sec-fetch-site", "none")],
    ] {
        let reply = send(&server, Method::POST, "/api/v1/push", headers).await;
        assert_eq!(reply.status, 201, "{headers:?}: {}", reply.text);
    }
}

#[tokio::test]
async fn a_listed_origin_is_answered_and_no_other() {
    let server =
        Server::start_with(&["--cors-origins", "http://localhost:3000, https://App.example.com:443"]).await;
    for origin in [ALLOWED, "http://localhost:3000"] {
        for headers in [&[("origin", origin)][..], &[("origin", origin), ("sec-fetch-site", "cross-site")]] {
            let reply = send(&server, Method::POST, "/api/v1/push", headers).await;
            assert_eq!(reply.status, 201, "{headers:?}: {}", reply.text);
            assert_eq!(reply.headers["access-control-allow-origin"], origin);
            assert_eq!(reply.headers["vary"], "Origin");
        }
        let preflight = send(&server, Method::OPTIONS, "/api/v1/push", &[("origin", origin)]).await;
        assert_eq!(
            (preflight.status, &preflight.headers["access-control-allow-origin"]),
            (204, &origin.parse().unwrap())
        );
        assert!(
            preflight.headers["access-control-allow-headers"].to_str().unwrap().contains("Authorization")
        );
    }
    let reply = send(&server, Method::POST, "/api/v1/push", &[("origin", "http://app.example.com")]).await;
    assert_eq!(reply.status, 403, "another scheme is another origin");
}

#[tokio::test]
async fn a_link_from_elsewhere_opens_the_dashboard() {
    let server = Server::start().await;
    for path in ["/", "/docs/", "/openapi.json"] {
        let reply = send(&server, Method::GET, path, &[("sec-fetch-site", "cross-site")]).await;
        assert_eq!(reply.status, 200, "{path}");
    }
}

/// DNS rebinding: the name of a foreign page suddenly resolves to this machine, and to the
/// browser that is the same origin.
#[tokio::test]
async fn on_loopback_a_foreign_host_name_is_refused() {
    let server = Server::start_with(&["--cors-origins", ALLOWED]).await;
    for (host, status) in [
        ("evil.example", 403),
        ("evil.example:6632", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("127.0.0.1:1", 200),
        ("127.9.9.9", 200),
        ("[::1]:6632", 200),
        ("app.example.com:8443", 200),
    ] {
        let reply = send(&server, Method::GET, "/api/v1/resources/queues", &[("host", host)]).await;
        assert_eq!(reply.status, status, "{host}: {}", reply.text);
    }
}

#[tokio::test]
async fn with_access_control_any_page_may_ask_because_it_needs_a_token() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    let headers =
        [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site"), ("host", "evil.example")];
    let reply = send(&server, Method::POST, "/api/v1/push", &headers).await;
    assert_eq!(reply.status, 401);
    assert_eq!(reply.headers["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn a_broker_that_others_can_reach_needs_access_control_or_an_explicit_word() {
    let database = queen_testkit::database().await;
    let args = ["serve", "--database-url", database.url()];
    let anywhere = ("HOST", "0.0.0.0");
    let refused = Broker::start(Path::new(QUEEN), &args, &[anywhere]).await.unwrap_err().to_string();
    for word in ["0.0.0.0", "QUEEN_AUTH_ENABLED", "--insecure"] {
        assert!(refused.contains(word), "{word} in {refused}");
    }
    let open = Broker::start(Path::new(QUEEN), &args, &[anywhere, ("QUEEN_INSECURE", "true")]).await.unwrap();
    open.says("without access control").await;
    let closed =
        Broker::start(Path::new(QUEEN), &args, &[anywhere, ("QUEEN_AUTH_ENABLED", "true")]).await.unwrap();
    assert!(!closed.output().contains("without access control"), "{}", closed.output());
}
