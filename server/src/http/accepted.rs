//! The two formats of a 202: the usual array, which published clients read, and on request one object.

use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use queen_protocol::{Queued, QueuedOperation, Ticket};
use serde::Serialize;

use super::answer;
use super::error::ApiError;
use super::request::Query;
use crate::app::App;

const OPERATION_ID: HeaderName = HeaderName::from_static("x-queen-operation-id");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// A request of which at least a part was deferred.
pub struct Accepted {
    first: Ticket,
    operations: Vec<QueuedOperation>,
}

impl Accepted {
    /// From the results of its items; `None` if nothing was deferred.
    pub fn from_tickets(tickets: impl Iterator<Item = (Ticket, QueuedOperation)>) -> Option<Self> {
        let mut accepted: Option<Self> = None;
        for (ticket, operation) in tickets {
            let accepted = accepted.get_or_insert_with(|| Self { first: ticket, operations: Vec::new() });
            if accepted.operations.last() != Some(&operation) {
                accepted.operations.push(operation);
            }
        }
        if let Some(accepted) = &mut accepted {
            accepted.operations.sort_by_key(|operation| operation.operation_id);
            accepted.operations.dedup();
        }
        accepted
    }

    pub fn object(self, note: Option<&'static str>) -> Result<Response, ApiError> {
        let location = self.first.operation_id;
        let queued = Queued { status: "queued", ticket: self.first, operations: self.operations, note };
        with_location(answer::json(StatusCode::ACCEPTED, &queued)?, &location.to_string())
    }

    /// The body of the direct call, with operation fields in each element.
    pub fn array(self, results: &impl Serialize) -> Result<Response, ApiError> {
        with_location(answer::json(StatusCode::ACCEPTED, results)?, &self.first.operation_id.to_string())
    }
}

fn with_location(mut response: Response, operation: &str) -> Result<Response, ApiError> {
    let headers = response.headers_mut();
    // A UUID is always a header.
    let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("/"));
    headers.insert(LOCATION, value(&format!("/api/v1/operations/{operation}")));
    headers.insert(OPERATION_ID, value(operation));
    Ok(response)
}

/// The format that the header, the query or the setting asks for.
pub fn wants_object(app: &App, headers: &HeaderMap, query: &Query) -> bool {
    let preferences = headers.get_all(PREFER).iter().filter_map(|value| value.to_str().ok());
    let mut preferences = preferences.flat_map(|value| value.split([',', ';']));
    app.options.operation_object
        || query.flag("async", false)
        || preferences.any(|preference| preference.trim().eq_ignore_ascii_case("respond-async"))
}
