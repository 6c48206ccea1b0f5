//! The pages at `/`, as a browser receives them.

use reqwest::Method;

use crate::support::{Reply, Server};

async fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> (Reply, Vec<u8>) {
    let mut request = server.http.get(format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let bytes = response.bytes().await.unwrap().to_vec();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (Reply { status, headers, text }, bytes)
}

/// Files that the page loads.
fn assets(page: &str) -> Vec<&str> {
    let quoted = page.split('"').filter(|text| text.starts_with("/assets/"));
    quoted.collect()
}

#[tokio::test]
async fn the_root_is_a_page_that_may_load_and_run_nothing_from_elsewhere() {
    let server = Server::start().await;
    let page = server.get("/").await;
    assert_eq!(
        (page.status, &page.headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    for rule in [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.split("; ").any(|known| known == rule), "{rule} in {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    assert!(
        !page.text.contains("<script>") && !page.text.contains("<style") && !page.text.contains(" style=")
    );
    assert!(!page.text.contains("http://") && !page.text.contains("https://"), "{}", page.text);
}

#[tokio::test]
async fn a_page_is_asked_about_each_time_and_sent_once() {
    let server = Server::start().await;
    let page = server.get("/").await;
    assert_eq!(page.headers["cache-control"], "no-cache");
    let tag = page.headers["etag"].to_str().unwrap();
    let (again, bytes) = get(&server, "/", &[("if-none-match", tag)]).await;
    assert_eq!((again.status, bytes.len()), (304, 0));
    let (other, _) = get(&server, "/", &[("if-none-match", "W/\"other\"")]).await;
    assert_eq!(other.status, 200);
    let head = server.send(Method::HEAD, "/", None).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    assert_eq!(head.headers["etag"], tag);
}

/// If the dashboard was built, each file that the page names exists. Otherwise the page says how to build it.
#[tokio::test]
async fn what_the_page_names_is_there_in_a_short_form_and_kept_for_ever() {
    let server = Server::start().await;
    let page = server.get("/").await.text;
    let assets = assets(&page);
    if assets.is_empty() {
        assert!(page.contains("make dashboard"), "{page}");
        return;
    }
    assert!(assets.iter().any(|path| path.ends_with(".js")), "{page}");
    assert!(assets.iter().any(|path| path.ends_with(".css")), "{page}");
    for path in assets {
        let (plain, bytes) = get(&server, path, &[]).await;
        assert_eq!(plain.status, 200, "{path}");
        assert!(!plain.headers.contains_key("content-encoding"), "{path}");
        assert_eq!(plain.headers["cache-control"], "public, max-age=31536000, immutable", "{path}");
        assert_eq!(plain.headers["x-content-type-options"], "nosniff");
        let kind = plain.headers["content-type"].to_str().unwrap();
        let expected = [(".js", "text/javascript"), (".css", "text/css"), (".svg", "image/svg+xml")];
        let (_, expected) = expected.iter().find(|(end, _)| path.ends_with(end)).unwrap();
        assert!(kind.starts_with(expected), "{path}: {kind}");
        for (accepted, encoding) in [("gzip, deflate", "gzip"), ("gzip, br", "br")] {
            let (short, shorter) = get(&server, path, &[("accept-encoding", accepted)]).await;
            // Tiny files are not compressed.
            if bytes.len() > 2_000 {
                assert_eq!(short.headers["content-encoding"], encoding, "{path}");
                assert!(shorter.len() < bytes.len(), "{path}");
            }
            assert_eq!(short.headers["vary"], "Accept-Encoding");
        }
    }
}

#[tokio::test]
async fn what_is_not_a_file_stays_an_error_in_json() {
    let server = Server::start().await;
    for path in ["/assets/nothing.js", "/assets/", "/assets", "/index.html", "/queues", "/api/v1/nothing"] {
        let reply = server.get(path).await;
        assert!(reply.is_error(404, "not_found"), "{path}: {} {}", reply.status, reply.text);
    }
    let reply = server.send(Method::POST, "/", Some("{}")).await;
    assert!(reply.is_error(405, "method_not_allowed"), "{} {}", reply.status, reply.text);
}

#[tokio::test]
async fn without_a_login_the_page_is_served_but_no_data() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    let page = server.get("/").await;
    assert_eq!(page.status, 200);
    for path in assets(&page.text) {
        assert_eq!(server.get(path).await.status, 200, "{path}");
    }
    for path in ["/api/v1/status", "/api/v1/resources/queues", "/openapi.json", "/docs/"] {
        assert_eq!(server.get(path).await.status, 401, "{path}");
    }
}
