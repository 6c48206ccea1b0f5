//! The dashboard at `/`: files in memory, as `build.rs` found them. They hold no data; the pages call the API with the rights of
//! their user.

use axum::Router;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::app::App;
use crate::http::error;

/// Public, because the login page is among them.
pub const PATHS: [&str; 2] = ["/", "/assets/{file}"];

struct File {
    path: &'static str,
    kind: &'static str,
    /// The `ETag` of its content. Weak, because it is the same for all encodings.
    tag: &'static str,
    plain: &'static [u8],
    gzip: Option<&'static [u8]>,
    brotli: Option<&'static [u8]>,
}

include!(concat!(env!("OUT_DIR"), "/dashboard.rs"));

/// The page at `/` in a binary that was built without the dashboard.
const UNBUILT: File = File {
    path: "/",
    kind: "text/html; charset=utf-8",
    tag: "W/\"unbuilt\"",
    plain: include_bytes!("dashboard/unbuilt.html"),
    gzip: None,
    brotli: None,
};

/// No content from elsewhere, nothing inline, not in a frame: a payload that is shown must never become a script.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Names in `/assets/` contain a hash of the content.
const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Cached, but revalidated each time.
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("no-cache");

pub fn router() -> Router<App> {
    PATHS.into_iter().fold(Router::new(), |router, path| router.route(path, get(file)))
}

async fn file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    match found(FILES, uri.path()) {
        Some(file) => answer(file, &headers),
        None => error::no_such_route(method, uri).await.into_response(),
    }
}

fn found<'a>(files: &'a [File], path: &str) -> Option<&'a File> {
    let found = files.iter().find(|file| file.path == path);
    found.or((path == "/").then_some(&UNBUILT))
}

fn answer(file: &File, asked: &HeaderMap) -> Response {
    let cached = if file.path == "/" { ASK_AGAIN } else { FOR_EVER };
    let mut response = if knows(asked, file.tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let (body, encoding) = encoded(file, asked);
        let mut response = ([(CONTENT_TYPE, file.kind)], body).into_response();
        if let Some(encoding) = encoding {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
        }
        response
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, cached);
    headers.insert(ETAG, HeaderValue::from_static(file.tag));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Whether the caller has this content already.
fn knows(asked: &HeaderMap, tag: &str) -> bool {
    listed(asked, IF_NONE_MATCH).any(|known| known == "*" || known == tag)
}

/// The shortest encoding that the caller accepts.
fn encoded(file: &File, asked: &HeaderMap) -> (&'static [u8], Option<&'static str>) {
    let reads = |encoding: &str| listed(asked, ACCEPT_ENCODING).any(|accepted| accepts(accepted, encoding));
    match file {
        File { brotli: Some(bytes), .. } if reads("br") => (*bytes, Some("br")),
        File { gzip: Some(bytes), .. } if reads("gzip") => (*bytes, Some("gzip")),
        _ => (file.plain, None),
    }
}

/// `accepted`: one entry of `Accept-Encoding`, such as `br` or `gzip;q=0.5`. With `q=0` it is refused.
fn accepts(accepted: &str, encoding: &str) -> bool {
    let mut parts = accepted.split(';').map(str::trim);
    let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(encoding));
    let refused = parts
        .filter_map(|part| part.split_once('='))
        .any(|(name, value)| name.trim().eq_ignore_ascii_case("q") && value.trim().parse() == Ok(0.0));
    named && !refused
}

/// The entries of a list header, from all its lines.
fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: File = File {
        path: "/assets/a-1.js",
        kind: "text/javascript",
        tag: "W/\"1\"",
        plain: b"plain",
        gzip: Some(b"gzip"),
        brotli: Some(b"brotli"),
    };

    fn asked(headers: &[(HeaderName, &'static str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn the_shortest_form_that_is_accepted_is_sent() {
        for (accepted, body) in [
            ("gzip, deflate, br, zstd", "brotli"),
            ("GZIP;q=0.5", "gzip"),
            ("br;q=0, gzip", "gzip"),
            ("br; q=0.000,gzip ;q=0", "plain"),
            ("identity", "plain"),
            ("brotli", "plain"),
            ("", "plain"),
        ] {
            let (sent, encoding) = encoded(&SCRIPT, &asked(&[(ACCEPT_ENCODING, accepted)]));
            assert_eq!(sent, body.as_bytes(), "{accepted}");
            assert_eq!(
                encoding,
                [("brotli", "br"), ("gzip", "gzip")]
                    .iter()
                    .find(|(form, _)| *form == body)
                    .map(|(_, word)| *word)
            );
        }
    }

    #[test]
    fn what_is_known_already_is_not_sent_again() {
        let status = |known| answer(&SCRIPT, &asked(&[(IF_NONE_MATCH, known)])).status();
        for known in ["W/\"1\"", "W/\"0\", W/\"1\"", "*"] {
            assert_eq!(status(known), StatusCode::NOT_MODIFIED, "{known}");
        }
        for other in ["W/\"2\"", "\"\"", ""] {
            assert_eq!(status(other), StatusCode::OK, "{other}");
        }
    }

    #[test]
    fn only_what_is_named_by_its_content_is_kept_for_ever() {
        let cached = |file| answer(file, &HeaderMap::new()).headers()[CACHE_CONTROL].clone();
        assert_eq!(cached(&SCRIPT), FOR_EVER);
        assert_eq!(cached(&UNBUILT), ASK_AGAIN);
    }

    #[test]
    fn without_pages_there_is_still_an_answer_at_the_root_and_nowhere_else() {
        assert!(found(&[], "/").is_some());
        assert!(found(&[], "/assets/a-1.js").is_none());
        assert!(found(&[SCRIPT], "/assets/a-1.js").is_some());
    }
}
