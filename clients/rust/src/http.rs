//! A single HTTP request to one broker: connections, headers and the token. No retries here.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::wire;

/// A host that is down does not respond at all; with several brokers, the next one should be tried soon.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Shorter than the broker's idle timeout (120 s), so that the client closes idle connections first.
const IDLE_MAX: Duration = Duration::from_secs(60);
const AGENT: &str = concat!("queen-client/", env!("CARGO_PKG_VERSION"), " rust");

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// Provides the token of each attempt.
pub type TokenSource =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<String, BoxError>> + Send>> + Send + Sync>;
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub enum Token {
    None,
    Fixed(HeaderValue),
    Source(TokenSource),
}

pub struct Transport {
    client: Client<Connector, Full<Bytes>>,
    headers: HeaderMap,
    token: Token,
}

/// A 2xx response of a broker.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Empty for a 204.
    pub body: Bytes,
}

impl Transport {
    /// `bases` determine whether certificates are needed. `trusted`: PEM of certificates to trust in place of the system's.
    pub fn new(
        bases: &[Base],
        headers: HeaderMap,
        token: Token,
        trusted: Option<&[u8]>,
    ) -> Result<Self, Error> {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_PATIENCE));
        http.enforce_http(false);
        let connector = connector(http, bases.iter().any(|base| base.secure), trusted)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { client, headers, token })
    }

    /// # Cancel safety
    /// Dropping it closes the connection; the broker then cancels the request if it has not started.
    pub async fn send(
        &self,
        base: &Base,
        method: Method,
        path: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<Answer, Error> {
        match timeout(patience, self.exchange(base, method, path, body)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                format!("no response from {} within {patience:?}", base.url),
            )),
        }
    }

    async fn exchange(&self, base: &Base, method: Method, path: &str, body: Bytes) -> Result<Answer, Error> {
        let address = format!("{}{path}", base.url);
        let uri = Uri::try_from(address).map_err(|error| Error::bad_use("not a path").with_source(error))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        match &self.token {
            Token::None => {}
            Token::Fixed(value) => {
                request.headers_mut().insert(AUTHORIZATION, value.clone());
            }
            Token::Source(source) => {
                // A token provider may be unavailable for a moment, like a broker.
                let no_token = |error: BoxError| {
                    let text = format!("cannot get a token: {error}");
                    Error::new(ErrorKind::Network, text).with_source(error).unsent().ours()
                };
                let token = source().await.map_err(no_token)?;
                request.headers_mut().insert(AUTHORIZATION, bearer(&token)?);
            }
        }
        let response = self.client.request(request).await.map_err(|error| {
            let (unsent, distrust) = (error.is_connect(), distrust(&error));
            let error = match distrust {
                // An untrusted certificate does not become trusted by retrying.
                Some(why) => {
                    let text = format!("{}: the certificate of the broker is not trusted: {why}", base.url);
                    Error::new(ErrorKind::Network, text).with_source(error).hopeless()
                }
                None => lost(base, error),
            };
            if unsent { error.unsent() } else { error }
        })?;
        let (head, stream) = response.into_parts();
        let body = stream.collect().await.map_err(|error| lost(base, error))?.to_bytes();
        let status = head.status.as_u16();
        match head.status.is_success() {
            true => Ok(Answer { status, body }),
            false => Err(refusal(&Response::from_parts(head, body))),
        }
    }
}

fn lost(base: &Base, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let mut text = format!("{}: {error}", base.url);
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    Error::new(ErrorKind::Network, text).with_source(error)
}

fn refusal(response: &Response<Bytes>) -> Error {
    let status = response.status().as_u16();
    let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let after = after.and_then(|text| retry_after(text, clock::wall()));
    let said = wire::Failure::read(response.body());
    let text = said.error.unwrap_or_else(|| match response.status().canonical_reason() {
        Some(reason) => reason.to_lowercase(),
        None => "no reason given".to_owned(),
    });
    Error::answered(status, text, said.code, after)
}

/// Whole seconds, or a date.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

pub fn bearer(token: &str) -> Result<HeaderValue, Error> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| Error::bad_use("the token contains characters that are not allowed in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Headers of every request, including the caller's.
pub fn headers(more: &[(String, String)]) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    for (name, value) in more {
        let refused = |_| Error::bad_use(format!("invalid header {name:?}"));
        let header = HeaderName::try_from(name).map_err(|_| refused(()))?;
        headers.insert(header, HeaderValue::try_from(value).map_err(|_| refused(()))?);
    }
    Ok(headers)
}

/// Address of a broker.
#[derive(Debug)]
pub struct Base {
    /// Without a trailing slash.
    pub url: String,
    secure: bool,
}

impl Base {
    pub fn parse(url: &str) -> Result<Self, Error> {
        let url = url.trim().trim_end_matches('/');
        let secure = url.starts_with("https://");
        if !secure && !url.starts_with("http://") {
            let text = format!("{url:?} has no scheme; a broker URL looks like http://localhost:6632");
            return Err(Error::bad_use(text));
        }
        if secure && cfg!(not(feature = "tls")) {
            return Err(Error::bad_use(format!("{url:?} needs the feature `tls` of queen-client")));
        }
        if url.contains('#') {
            let text = format!("{url:?} has a fragment; a broker URL looks like http://localhost:6632");
            return Err(Error::bad_use(text));
        }
        let parsed = Uri::try_from(url).ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        match parsed.filter(|uri| uri.query().is_none()) {
            // Without the URL, which contains a password.
            Some(uri) if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) => {
                Err(Error::bad_use("a broker URL must not contain user and password; use .token(token)"))
            }
            Some(_) => Ok(Self { url: url.to_owned(), secure }),
            None => Err(Error::bad_use(format!("{url:?} is not a broker URL like http://localhost:6632"))),
        }
    }
}

#[cfg(feature = "tls")]
fn distrust(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    crate::tls::distrust(error)
}

#[cfg(not(feature = "tls"))]
fn distrust(_: &(dyn std::error::Error + 'static)) -> Option<String> {
    None
}

#[cfg(feature = "tls")]
fn connector(http: HttpConnector, secure: bool, trusted: Option<&[u8]>) -> Result<Connector, Error> {
    let tls = crate::tls::config(trusted, secure)?;
    let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    Ok(https.enable_http1().wrap_connector(http))
}

#[cfg(not(feature = "tls"))]
fn connector(http: HttpConnector, _secure: bool, _trusted: Option<&[u8]>) -> Result<Connector, Error> {
    Ok(http)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_url_needs_a_scheme_and_a_host() {
        assert_eq!(Base::parse(" http://localhost:6632/ ").unwrap().url, "http://localhost:6632");
        assert_eq!(Base::parse("http://gateway/queen/").unwrap().url, "http://gateway/queen");
        for url in [
            "",
            "localhost:6632",
            "ftp://localhost",
            "http://",
            "http:// a",
            "http://a?b=c",
            "http://localhost:6632/#/queues",
            "http://me:secret@localhost",
        ] {
            let error = Base::parse(url).unwrap_err();
            assert!(error.kind() == ErrorKind::BadUse && !error.text().contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn a_time_to_come_back_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let read = |text: &str| retry_after(text, now);
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(read("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        let soon = httpdate::fmt_http_date(now + Duration::from_secs(100));
        assert_eq!(read(&soon), Some(Duration::from_secs(100)));
        assert_eq!(read("soon"), None);
        assert_eq!(read("-1"), None);
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_at_once() {
        assert!(headers(&[("x-team".to_owned(), "a".to_owned())]).is_ok());
        assert!(headers(&[("x team".to_owned(), "a".to_owned())]).is_err());
        assert!(headers(&[("x".to_owned(), "a\nb".to_owned())]).is_err());
        assert!(bearer("a\nb").is_err());
    }
}
