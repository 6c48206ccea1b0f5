//! Conventions of all routes: CORS, errors as JSON, empty responses, decoded paths.

use reqwest::Method;
use reqwest::header::{HeaderValue, ORIGIN};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Reply, Server, numbers};

/// The bytes of the response, from a connection that the server closes after it.
pub async fn raw(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

const PAGE: &str = "https://app.example.com";

fn has_cors(reply: &Reply) -> bool {
    let header = |name: &str| reply.headers.get(name).and_then(|value| value.to_str().ok());
    header("access-control-allow-origin") == Some(PAGE)
        && header("access-control-allow-methods") == Some("GET, POST, PUT, DELETE, OPTIONS")
        && header("access-control-allow-headers")
            == Some("Content-Type, Authorization, Prefer, traceparent, tracestate")
        && header("access-control-expose-headers") == Some("Retry-After, Location, X-Queen-Operation-Id")
}

/// A server whose client sends the origin of an allowed page.
async fn visited() -> Server {
    let mut server = Server::start_with(&["--cors-origins", PAGE]).await;
    let headers = [(ORIGIN, HeaderValue::from_static(PAGE))].into_iter().collect();
    server.http = reqwest::Client::builder().default_headers(headers).build().unwrap();
    server
}

#[tokio::test]
async fn every_response_may_be_read_by_a_page_that_may_call() {
    let server = visited().await;
    for reply in [
        server.get("/health").await,
        server.get("/api/v1/pop/queue/none").await,
        server.get("/api/v1/nothing-here").await,
        server.get("/api/v1/push").await,
        server.post("/api/v1/push", json!("broken")).await,
        server.post("/api/v1/push", json!({"items": []})).await,
    ] {
        assert!(has_cors(&reply), "{}: {:?}", reply.status, reply.headers);
    }
}

#[tokio::test]
async fn options_on_any_path_is_an_empty_yes() {
    let server = visited().await;
    for path in ["/api/v1/push", "/api/v1/pop/queue/q", "/api/v1/unknown", "/", "/health"] {
        let reply = server.send(Method::OPTIONS, path, None).await;
        assert_eq!((reply.status, reply.text.as_str()), (204, ""), "{path}");
        assert!(has_cors(&reply));
    }
}

#[tokio::test]
async fn a_204_has_no_body_and_announces_none() {
    let server = Server::start().await;
    let request = "GET /api/v1/pop/queue/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = raw(&server, request).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 204 no content\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n") && answer.matches("\r\n\r\n").count() == 1, "{answer}");
    for header in ["content-length:", "content-type:", "transfer-encoding:"] {
        assert!(!answer.contains(&format!("\n{header}")), "{answer}");
    }
}

#[tokio::test]
async fn an_unknown_route_is_a_404_in_json() {
    let server = Server::start().await;
    for path in [
        "/api",
        "/api/",
        "/api/v1/nothing",
        "/index.html",
        "/streams/v1/claim",
        "/assets/x.js",
        "/api/v1/push/",
    ] {
        let reply = server.get(path).await;
        assert!(reply.is_error(404, "not_found"), "{path}: {} {}", reply.status, reply.text);
    }
}

#[tokio::test]
async fn a_wrong_method_is_a_405_in_json_that_names_the_right_one() {
    let server = visited().await;
    let reply = server.get("/api/v1/push").await;
    assert!(reply.is_error(405, "method_not_allowed"), "{} {}", reply.status, reply.text);
    assert_eq!(reply.headers["allow"], "POST");
    assert!(has_cors(&reply));
}

#[tokio::test]
async fn a_head_request_takes_no_message() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    assert_eq!(server.send(Method::HEAD, "/api/v1/pop/queue/q", None).await.status, 405);
    assert!(server.pop("/queue/q").await.is_some());
}

#[tokio::test]
async fn a_body_needs_no_content_type_and_bytes_are_not_json() {
    let server = Server::start().await;
    let body = r#"{"items":[{"queue":"q","payload":1}]}"#;
    assert_eq!(server.send(Method::POST, "/api/v1/push", Some(body)).await.status, 201);
    for (kind, status) in
        [("application/json; charset=utf-8", 201), ("text/plain", 201), ("application/octet-stream", 415)]
    {
        let request = server.http.post(format!("{}/api/v1/push", server.url));
        let response = request.header("content-type", kind).body(body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{kind}");
    }
}

#[tokio::test]
async fn unknown_query_keys_are_ignored_and_numbers_that_are_none_are_the_default() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1), json!(2)]).await;
    let popped = server.pop("/queue/q?frames=true&conflation=true&batch=lots&wait=maybe").await.unwrap();
    assert_eq!(popped.data(), [1]);
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
}

#[tokio::test]
async fn answers_are_neither_stored_nor_guessed_at_and_the_page_of_the_routes_runs_nothing_from_elsewhere() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    for path in
        ["/api/v1/pop/queue/q", "/api/v1/messages?queue=q", "/api/v1/nothing-here", "/health", "/metrics"]
    {
        let reply = server.get(path).await;
        assert_eq!(reply.headers["cache-control"], "no-store", "{path}");
        assert_eq!(reply.headers["x-content-type-options"], "nosniff", "{path}");
    }
    let page = server.get("/docs/").await;
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
}

#[tokio::test]
async fn no_body_at_all_is_an_empty_object_where_every_field_is_optional() {
    let server = Server::start().await;
    let pushed = server.push("q", "p", &numbers(0..3)).await;
    let leased = server.pop("/queue/q?consumerGroup=g").await.unwrap();
    let message = |n: usize| {
        let part = |name: &str| pushed[n][name].as_str().unwrap().to_owned();
        format!("/api/v1/messages/{}/{}", part("partition_id"), part("transaction_id"))
    };
    let lease = leased.messages[0]["leaseId"].as_str().unwrap();
    for path in [
        format!("/api/v1/lease/{lease}/extend"),
        "/api/v1/stats/refresh".to_owned(),
        // These concern queue mode, although only a group reads here.
        format!("{}/dlq", message(1)),
        format!("{}/retry", message(1)),
        "/api/v1/consumer-groups/g/queues/q/partitions/p/seek".to_owned(),
    ] {
        let reply = server.send(Method::POST, &path, None).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    }
    let reply = server.send(Method::POST, &format!("{}/dlq", message(2)), None).await.json();
    assert_eq!((&reply["dlq"], &reply["consumerGroup"]), (&json!(true), &json!("__QUEUE_MODE__")));
    let readers = server.get("/api/v1/consumer-groups").await.json();
    let names: Vec<&str> =
        readers.as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["g"], "a group that only gives up on messages does not read");
}

#[tokio::test]
async fn an_error_of_the_database_names_no_procedure_and_no_code() {
    let server = Server::start().await;
    server.push("q", "p", &[json!(1)]).await;
    let message = server.pop_soon("/queue/q").await.messages.remove(0);
    let document = server.get("/openapi.json").await.json();
    let partition = message["partitionId"].as_str().unwrap();
    server.sql("drop schema queen cascade").await;
    let mut failed = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{partition}", partition).replace(['{', '}'], "");
        for method in methods.as_object().unwrap().keys() {
            let body = match path.as_str() {
                _ if method != "post" => None,
                "/api/v1/push" => Some(json!({"items": [{"queue": "q", "partition": "p", "payload": 1}]})),
                "/api/v1/ack" => Some(json!({"transactionId": "t", "partitionId": partition})),
                "/api/v1/transaction" => {
                    let push = json!({"type": "push", "queue": "q", "partition": "p", "payload": 1});
                    Some(json!({"operations": [push]}))
                }
                "/api/v1/traces" => Some(json!({"transactionId": "t", "partitionId": partition, "data": 1})),
                _ => Some(json!({"queue": "new", "toEnd": true, "enabled": false})),
            };
            let body = body.map(|body| body.to_string());
            let method = method.to_uppercase().parse().unwrap();
            let reply = server.send(method, &path, body.as_deref()).await;
            if reply.status < 500 {
                continue;
            }
            failed += 1;
            let text = reply.json()["error"].as_str().unwrap_or_default().to_owned();
            let is_code = |word: &str| {
                word.len() == 5
                    && word.contains(|c: char| c.is_ascii_digit())
                    && word.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase())
            };
            let words = text.split(|c: char| !c.is_alphanumeric());
            assert!(!text.contains("queen.") && !text.contains("procedure"), "{path}: {text}");
            assert_eq!(words.clone().find(|word| is_code(word)), None, "{path}: {text}");
        }
    }
    assert!(failed > 40, "{failed}");
}
