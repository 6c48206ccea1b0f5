//! What arrives: bodies up to a limit, path segments decoded, query keys looked up leniently. Failures are
//! `ApiError`s, so that they leave as JSON like all others. It knows no route.

use std::time::Duration;

use axum::body::BodyDataStream;
use axum::extract::{FromRequest, FromRequestParts, Path, Query as AxumQuery, Request};
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use queen_protocol::{BadRequest, ErrorCode, read_object};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::error::ApiError;
use crate::app::App;
use crate::auth::audit::Sent;
use crate::limits::Limit;
use crate::limits::budget::Share;
use crate::limits::time::Reading;

/// What is still read of a body that is too large before the answer goes out. A client that is cut off while
/// sending sees a broken connection and not our 413.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_FOR: Duration = Duration::from_secs(5);
/// A claimed length is believed up to here; beyond, memory follows what really arrives.
const TRUST_BYTES_MAX: usize = 1 << 20;

/// Where nobody has a reason to send more: what is read there takes many times its length in memory.
pub const SMALL: usize = 1 << 20;

/// A whole request body, no longer than the limit, nor than `MAX`.
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

/// `idle`: how long the next piece may take.
async fn read(
    mut chunks: BodyDataStream,
    claimed: usize,
    limit: usize,
    idle: Duration,
    mut share: Share,
) -> Result<Bytes, ApiError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = within(idle, chunks.next()).await.ok_or_else(|| too_slow(idle))? {
        let chunk = chunk.map_err(|error| BadRequest(format!("the body broke off: {error}")))?;
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

/// `None`: it took longer. Zero is no limit.
async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    match limit.is_zero() {
        true => Some(future.await),
        false => timeout(limit, future).await.ok(),
    }
}

impl<const MAX: usize> Body<MAX> {
    /// For requests whose fields are all optional: one without a body says the same as `{}`.
    pub fn or_empty<T: DeserializeOwned + Default>(&self) -> Result<T, BadRequest> {
        match self.0.is_empty() {
            true => Ok(T::default()),
            false => read_object(&self.0),
        }
    }
}

/// The parameters of a path, percent-decoded after routing: a `%2F` is part of a name.
pub struct Segments<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        if !well_encoded(parts.uri.path()) {
            return Err(BadRequest::new("the path holds a % that is not followed by two hex digits").into());
        }
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(BadRequest(rejection.body_text()).into()),
        }
    }
}

/// A segment of a path, for people: what is no UTF-8 stays as it was sent.
pub fn decoded(segment: &str) -> String {
    let query = format!("v={}", segment.replace('+', "%2B").replace('&', "%26"));
    let read = Query::read(&query).and_then(|query| query.text("v").map(str::to_owned));
    read.unwrap_or_else(|| segment.to_owned())
}

/// The query by key. Unknown keys are ignored, and what cannot be read counts as not given.
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

    /// A consumer group by either of its names: routes differ in theirs, and a name that were ignored would mean another group.
    pub fn group(&self) -> Result<Option<&str>, BadRequest> {
        match (self.filled("consumerGroup"), self.filled("group")) {
            (Some(_), Some(_)) => Err(BadRequest::new("group and consumerGroup are both given; send one")),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// For filters, where an empty value is one left blank.
    pub fn filled(&self, key: &str) -> Option<&str> {
        self.text(key).filter(|value| !value.is_empty())
    }

    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.text(key).map_or(default, |value| matches!(value, "true" | "1"))
    }

    pub fn number(&self, key: &str) -> Option<i64> {
        self.text(key).and_then(|value| value.parse().ok())
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// As it stands behind the `?` of an address. `None` where no request gets so far.
    pub fn read(text: &str) -> Option<Self> {
        let uri = format!("/?{text}").parse().ok()?;
        AxumQuery::try_from_uri(&uri).ok().map(|AxumQuery(pairs)| Self(pairs))
    }

    #[cfg(test)]
    pub fn parse(text: &str) -> Self {
        Self::read(text).unwrap()
    }
}

fn too_slow(limit: Duration) -> ApiError {
    let text =
        format!("the body did not arrive: nothing came, or not all of it, within {} ms", limit.as_millis());
    ApiError::new(ErrorCode::RequestTimeout, text)
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(ErrorCode::PayloadTooLarge, format!("the body is larger than {limit} bytes"))
}

fn no_room() -> ApiError {
    let text = "other large bodies have all the memory there is for them; small ones are taken";
    ApiError::rate_limited(text, Duration::from_secs(1))
}

/// Reads on for a while, for a client that listens only once it has sent everything.
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
    // Too slow is answered all the same.
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
