//! Reads the `traceparent` and `tracestate` of a request. Invalid ones are ignored.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use queen_protocol::{PushItem, Trace};

use crate::telemetry::Span;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The two headers of a request. Few requests have them, so copying all headers would be wasteful.
pub struct TraceHeaders(pub HeaderMap);

impl<S: Send + Sync> FromRequestParts<S> for TraceHeaders {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let mut headers = HeaderMap::new();
        for name in [PARENT, STATE] {
            for value in parts.headers.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Ok(Self(headers))
    }
}

/// With two `traceparent` headers both are ignored; the standard allows one.
pub fn of_request(headers: &HeaderMap) -> Option<Trace<'_>> {
    let mut parents = headers.get_all(PARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    let state = headers.get(STATE).and_then(|state| state.to_str().ok());
    Trace::parse(parent, state)
}

/// Gives pushed messages the context of their request, or of its span.
pub fn hand_on<'i, 'a: 'i>(
    headers: &'a HeaderMap,
    span: &mut Span,
    items: impl Iterator<Item = &'i mut PushItem<'a>>,
) {
    let request = of_request(headers);
    if span.is_on() {
        span.relay(request, items);
    } else if let Some(trace) = request {
        items.for_each(|item| item.inherit(trace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_header_that_can_be_read_is_a_context() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = |parents: &[&str]| {
            let mut headers = HeaderMap::new();
            headers.insert(STATE, "a=1".parse().unwrap());
            for parent in parents {
                headers.append(PARENT, parent.parse().unwrap());
            }
            headers
        };
        let one = headers(&[good]);
        let trace = of_request(&one).unwrap();
        assert_eq!((trace.parent.to_string(), trace.state), (good.to_owned(), Some("a=1")));
        for bad in [&[][..], &["nonsense"], &[good, good]] {
            assert_eq!(of_request(&headers(bad)), None);
        }
    }
}
