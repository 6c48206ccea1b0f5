//! Extractors: bodies up to a limit, decoded path segments, and query parameters, which are read leniently. Failures are
//! `ApiError`s, so that they become JSON like all others. It knows no route.

use std::time::Duration;

use axum::body::BodyDataStream;
use axum::extract::{FromRequest, FromRequestParts, Path, Query as AxumQuery, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use queen_protocol::{BadRequest, ErrorCode, read_object};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::error::ApiError;
use crate::app::App;
use crate::auth::audit::Sent;
use crate::limits::Limit;
use crate::limits::budget::Share;
use crate::limits::time::Reading;

/// How much of a body that is too large is still read before the response is sent. A client that is cut off while sending sees
/// a broken connection and not the 413.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_FOR: Duration = Duration::from_secs(5);
/// Memory is reserved for a claimed length up to here; beyond, as data arrives.
const TRUST_BYTES_MAX: usize = 1 << 20;

/// The limit of bodies without messages, because parsing them takes many times their length in memory.
pub const SMALL: usize = 1 << 20;

/// A whole request body, at most as long as the limit and as `MAX`.
pub struct Body<const MAX: usize = { usize::MAX }>(pub Bytes);

impl<const MAX: usize> FromRequest<App> for Body<MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let limit = app.options.body_bytes_max.min(MAX);
        let claimed = number(request.headers(), &CONTENT_LENGTH).unwrap_or(0);
        let waits_to_send = request.headers().contains_key(EXPECT);
        let reading = request.extensions().get::<Reading>().cloned();
        let audited = request.extensions().get::<Sent>().cloned();
        let chunks = request.into_body().into_data_stream();
        let limits = &app.limits;
        if claimed > limit && waits_to_send {
            limits.count(Limit::Body);
            return Err(too_large(limit));
        }
        let (idle, total) = (limits.bounds.body_idle, limits.bounds.body_total);
        let read = read(chunks, claimed, limit, idle, limits.bodies.share());
        let read = match within(total, read).await {
            Some(read) => read,
            None => Err(too_slow(total)),
        };
        if let Some(reading) = reading {
            reading.complete();
        }
        if let (Some(audited), Ok(body)) = (audited, &read) {
            audited.keep(body);
        }
        read.map(Self).inspect_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => limits.count(Limit::Body),
            StatusCode::TOO_MANY_REQUESTS => limits.count(Limit::Bodies),
            StatusCode::REQUEST_TIMEOUT => limits.count(Limit::BodyTime),
            _ => {}
        })
    }
}

/// `idle`: how long the next chunk may take.
async fn read(
    mut chunks: BodyDataStream,
    claimed: usize,
    limit: usize,
    idle: Duration,
    mut share: Share,
) -> Result<Bytes, ApiError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = within(idle, chunks.next()).await.ok_or_else(|| too_slow(idle))? {
        let chunk =
            chunk.map_err(|error| BadRequest(format!("the connection ended inside the body: {error}")))?;
        if claimed > limit || body.len() + chunk.len() > limit {
            drop((body, chunk));
            discard(chunks, DISCARD_BYTES_MAX, DISCARD_FOR).await;
            return Err(too_large(limit));
        }
        if !share.grow_to(body.len() + chunk.len()) {
            drop((body, chunk, share));
            discard(chunks, DISCARD_BYTES_MAX, DISCARD_FOR).await;
            return Err(no_room());
        }
        if chunk.len() == claimed {
            return Ok(share.keep(chunk));
        }
        if body.is_empty() {
            body.reserve(claimed.min(TRUST_BYTES_MAX).max(chunk.len()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(share.keep(body.freeze()))
}

/// `None` if it took longer. Zero is no limit.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    match limit.is_zero() {
        true => Some(future.await),
        false => timeout(limit, future).await.ok(),
    }
}

impl<const MAX: usize> Body<MAX> {
    /// For requests whose fields are all optional: an absent body means `{}`.
    pub fn or_empty<T: DeserializeOwned + Default>(&self) -> Result<T, BadRequest> {
        match self.0.is_empty() {
            true => Ok(T::default()),
            false => read_object(&self.0),
        }
    }
}

/// The parameters of a path, percent-decoded after routing, so that a `%2F` is part of a name.
pub struct Segments<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        if !well_encoded(parts.uri.path()) {
            return Err(
                BadRequest::new("the path contains a % that is not followed by two hex digits").into()
            );
        }
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(BadRequest(rejection.body_text()).into()),
        }
    }
}

/// A segment of a path as it is shown to people; invalid UTF-8 stays encoded.
pub fn decoded(segment: &str) -> String {
    let query = format!("v={}", segment.replace('+', "%2B").replace('&', "%26"));
    let read = Query::read(&query).and_then(|query| query.text("v").map(str::to_owned));
    read.unwrap_or_else(|| segment.to_owned())
}

/// The query parameters. Unknown ones are ignored, and invalid values count as absent.
pub struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match AxumQuery::from_request_parts(parts, state).await {
            Ok(AxumQuery(pairs)) => Ok(Self(pairs)),
            Err(rejection) => Err(BadRequest(rejection.body_text()).into()),
        }
    }
}

impl Query {
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The consumer group, by either of its names. Routes document one of them, but a request with the other one must not mean
    /// another group.
    pub fn group(&self) -> Result<Option<&str>, BadRequest> {
        match (self.filled("consumerGroup"), self.filled("group")) {
            (Some(_), Some(_)) => Err(BadRequest::new("group and consumerGroup are both given; send one")),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// For filters, where an empty value counts as absent.
    pub fn filled(&self, key: &str) -> Option<&str> {
        self.text(key).filter(|value| !value.is_empty())
    }

    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.text(key).map_or(default, |value| matches!(value, "true" | "1"))
    }

    pub fn number(&self, key: &str) -> Option<i64> {
        self.text(key).and_then(|value| value.parse().ok())
    }

    /// `limit` and `offset`; out of range means the nearest bound.
    pub fn page(&self, limit_default: i64, limit_max: i64) -> Pagination {
        Pagination {
            limit: self.number("limit").unwrap_or(limit_default).clamp(1, limit_max),
            offset: self.number("offset").unwrap_or(0).max(0),
        }
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Parses the part of a URL after the `?`. `None` for text that no request can contain.
    pub fn read(text: &str) -> Option<Self> {
        let uri = format!("/?{text}").parse().ok()?;
        AxumQuery::try_from_uri(&uri).ok().map(|AxumQuery(pairs)| Self(pairs))
    }

    #[cfg(test)]
    pub fn parse(text: &str) -> Self {
        Self::read(text).unwrap()
    }
}

/// A page of a list, as the query asks for it and the response repeats it.
#[derive(Serialize, ToSchema)]
pub struct Pagination {
    pub limit: i64,
    pub offset: i64,
}

fn too_slow(limit: Duration) -> ApiError {
    let text = format!("the body did not arrive within {} ms", limit.as_millis());
    ApiError::new(ErrorCode::RequestTimeout, text)
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(ErrorCode::PayloadTooLarge, format!("the body is too large; the limit is {limit} bytes"))
}

fn no_room() -> ApiError {
    let text = "the memory for large request bodies is used up; small ones are accepted";
    ApiError::rate_limited(text, Duration::from_secs(1))
}

/// Reads and drops the rest of a body for a while, for clients that read the response only after sending everything.
pub async fn discard(mut chunks: BodyDataStream, bytes_max: usize, patience: Duration) {
    let all = async {
        let mut discarded = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            discarded += chunk.len();
            if discarded > bytes_max {
                return;
            }
        }
    };
    // A client that is too slow gets the response anyway.
    _ = timeout(patience, all).await;
}

fn number(headers: &HeaderMap, name: &HeaderName) -> Option<usize> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn well_encoded(path: &str) -> bool {
    let hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = path.as_bytes();
    bytes
        .iter()
        .enumerate()
        .all(|(at, &byte)| byte != b'%' || hex(bytes.get(at + 1)) && hex(bytes.get(at + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_leniently() {
        let query = Query::parse("a=x+y&b=true&c=1&d=yes&e=12&f=twelve&g=&what=ever");
        assert_eq!(query.text("a"), Some("x y"));
        assert!(query.flag("b", false) && query.flag("c", false));
        assert!(!query.flag("d", true) && query.flag("absent", true));
        assert_eq!((query.number("e"), query.number("f"), query.number("absent")), (Some(12), None, None));
        assert_eq!((query.text("g"), query.filled("g")), (Some(""), None));
        let page = |text: &str| {
            let Pagination { limit, offset } = Query::parse(text).page(100, 1_000);
            (limit, offset)
        };
        assert_eq!(page("limit=5&offset=7"), (5, 7));
        assert_eq!(page("limit=0&offset=-1"), (1, 0));
        assert_eq!(page("limit=1001&offset=x"), (1_000, 0));
        assert_eq!(page(""), (100, 0));
        for one in ["group=g", "consumerGroup=g", "consumerGroup=&group=g", "group=&consumerGroup=g"] {
            assert_eq!(Query::parse(one).group(), Ok(Some("g")), "{one}");
        }
        let both = Query::parse("group=g&consumerGroup=g").group().map(|_| ()).unwrap_err();
        assert_eq!(both.0, "group and consumerGroup are both given; send one");
    }

    #[test]
    fn a_lone_percent_is_noticed() {
        assert!(well_encoded("/a%20b/%F0%9f"));
        for path in ["/%", "/%2", "/%zz", "/a%2gb"] {
            assert!(!well_encoded(path), "{path}");
        }
    }
}
