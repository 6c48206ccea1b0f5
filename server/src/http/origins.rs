//! Which web pages may call this broker, and the headers that tell browsers so (CORS). Without access control, pages of other
//! origins are refused, because any site that a user visits could otherwise read and delete messages. With access control every
//! page may call, because it has no token. Clients that are not browsers send none of the headers read here.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, HOST, ORIGIN, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri};
use axum::response::Response;

use crate::app::{Options, PAGE};
use crate::dashboard;

const HEADERS: [(HeaderName, HeaderValue); 3] = [
    (ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, PUT, DELETE, OPTIONS")),
    (
        ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Content-Type, Authorization, Prefer, traceparent, tracestate"),
    ),
    (ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("Retry-After, Location, X-Queen-Operation-Id")),
];
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const NOT_SNIFFED: HeaderValue = HeaderValue::from_static("nosniff");
/// Responses must not be cached. Files of the dashboard set their own header.
const NOT_STORED: HeaderValue = HeaderValue::from_static("no-store");

/// `scheme://host:port` as a browser sends it: in lower case, without the port its scheme implies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    text: String,
    host: String,
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an origin; write one like https://app.example.com:8443");
        let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
        let (Some(scheme @ ("http" | "https")), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(wrong());
        };
        let bare = uri.path() == "/" && uri.query().is_none() && !authority.as_str().contains('@');
        if !bare || authority.host().is_empty() || text.contains('#') {
            return Err(wrong());
        }
        let host = authority.host().to_ascii_lowercase();
        let implied = if scheme == "https" { 443 } else { 80 };
        let text = match authority.port_u16() {
            Some(port) if port != implied => format!("{scheme}://{host}:{port}"),
            _ => format!("{scheme}://{host}"),
        };
        Ok(Self { text, host })
    }
}

pub struct Origins {
    /// Access control is on.
    any: bool,
    allowed: Vec<Origin>,
    /// On loopback without access control: names under which the broker may be called, in
    /// addition to those of loopback.
    hosts: Option<Vec<String>>,
}

/// The parts of a request that are checked.
pub struct Visit {
    allow: Option<HeaderValue>,
    /// The reason for a refusal.
    pub refused: Option<&'static str>,
}

impl Origins {
    /// `address` is where the broker listens.
    pub fn new(options: &Options, address: Option<SocketAddr>) -> Self {
        let any = options.guard.is_some();
        let allowed = options.cors_origins.clone();
        let local = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
        let named = std::iter::once(options.host.to_ascii_lowercase());
        let hosts =
            (local && !any).then(|| named.chain(allowed.iter().map(|one| one.host.clone())).collect());
        Self { any, allowed, hosts }
    }

    pub fn visit<B>(&self, request: &Request<B>) -> Visit {
        if self.any {
            return Visit { allow: Some(HeaderValue::from_static("*")), refused: None };
        }
        let headers = request.headers();
        let origin = headers.get(ORIGIN);
        let allow = origin.filter(|origin| self.allows(origin)).cloned();
        let refused = if self.is_foreign_host(headers) {
            Some(
                "the Host of this request is not a name of this broker; add its origin to QUEEN_CORS_ORIGINS",
            )
        } else if allow.is_none() && is_cross_site(headers, origin) && !is_static(request.uri().path()) {
            Some(
                "web pages of other origins may not call this broker; list their origins in QUEEN_CORS_ORIGINS",
            )
        } else {
            None
        };
        Visit { allow, refused }
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.allowed.iter().any(|allowed| allowed.text.as_bytes() == origin.as_bytes())
    }

    fn is_foreign_host(&self, headers: &HeaderMap) -> bool {
        // Without a `Host` it is no browser.
        let (Some(hosts), Some(host)) = (&self.hosts, headers.get(HOST)) else { return false };
        let Ok(host) = host.to_str() else { return true };
        let name = without_port(host);
        !is_loopback(name) && !hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

impl Visit {
    pub fn finish(self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, NOT_SNIFFED);
        headers.entry(CACHE_CONTROL).or_insert(NOT_STORED);
        if let Some(origin) = self.allow {
            if origin.as_bytes() != b"*" {
                headers.append(VARY, HeaderValue::from_static("Origin"));
            }
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            for (name, value) in HEADERS {
                headers.insert(name, value);
            }
        }
        response
    }
}

/// Browsers do not let pages change `Sec-Fetch-Site`, but leave it out for plain HTTP to other machines.
fn is_cross_site(headers: &HeaderMap, origin: Option<&HeaderValue>) -> bool {
    if let Some(site) = headers.get(FETCH_SITE) {
        return !matches!(site.as_bytes(), b"same-origin" | b"none");
    }
    let Some(origin) = origin else { return false };
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let authority =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    authority.is_none_or(|authority| host.is_none_or(|host| !host.eq_ignore_ascii_case(authority.as_bytes())))
}

/// Files without data, to which other sites may link.
fn is_static(path: &str) -> bool {
    let below =
        |folder: &str| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    path == dashboard::PATHS[0] || path.starts_with("/assets/") || below(PAGE) || path == "/openapi.json"
}

fn is_loopback(name: &str) -> bool {
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || bare.parse::<Ipv6Addr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host_and_nothing_else() {
        for (given, read) in [
            ("https://App.Example.com", "https://app.example.com"),
            (" https://app.example.com:443", "https://app.example.com"),
            ("http://localhost:3000/", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            assert_eq!(given.parse::<Origin>().unwrap().text, read);
        }
        for wrong in [
            "*",
            "null",
            "",
            "app.example.com",
            "ftp://a",
            "https://a/b",
            "https://u@a",
            "https://a?b",
            "http://",
        ] {
            assert!(wrong.parse::<Origin>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_loopback_counts_as_loopback() {
        for name in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(is_loopback(name), "{name}");
        }
        for name in ["", "localhost.", "127.0.0.1.x", "10.0.0.1", "[::2]", "127.1"] {
            assert!(!is_loopback(name), "{name}");
        }
        assert_eq!(
            ["a:1", "a", "[::1]:1", "[::1]", "a:b"].map(without_port),
            ["a", "a", "[::1]", "[::1]", "a:b"]
        );
    }
}
