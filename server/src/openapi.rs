//! The OpenAPI document: what `routes.rs` says of each route, put together.

mod access;
mod options;
pub mod postgres_stats;
pub mod queries;
pub mod words;

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::OpenApi;

use crate::http::error;
use crate::routes::ROUTES;

/// The document as `queen openapi` prints it and `GET /openapi.json` serves it.
pub static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let mut document = Document::openapi();
    ROUTES.iter().for_each(|route| document.merge(access::described(route)));
    access::describe(&mut document);
    let mut text = document.to_pretty_json().expect("strings, numbers and maps of them serialise");
    text.push('\n');
    text.into()
});

#[derive(OpenApi)]
#[openapi(
    info(title = "Queen", description = DESCRIPTION),
    tags(
        (name = "messages", description = "Push, pop, acknowledge."),
        (name = "traces", description = "Events that consumers report about the messages they process."),
        (name = "operations", description = "Operations that were deferred under load, and their outcome."),
        (name = "queues", description = "Create, configure, inspect and delete queues."),
        (name = "consumer groups", description = "Positions and lag of consumer groups."),
        (name = "analytics", description = "History and statistics."),
        (name = "broker", description = "Health, settings and metrics of the broker."),
    ),
    components(schemas(error::ErrorBody)),
)]
struct Document;

const DESCRIPTION: &str = "A partitioned message queue on PostgreSQL. \
    Bodies are JSON in UTF-8; a missing Content-Type counts as JSON. Unknown query parameters and unknown fields \
    are ignored. Unknown options of a queue, fields of a redrive, parameters of a purge and misspelled fields of a seek are a 400. Names are any text of up to 255 characters without NUL; in a path they are percent-encoded. \
    Times are ISO 8601 in UTC. OPTIONS on any path is a 204. Web pages of other origins can use the API if access control is on, or if \
    QUEEN_CORS_ORIGINS lists them. \
    With access control on, every route except the health checks, the files of the dashboard and the paths in JWT_SKIP_PATHS \
    requires a bearer token or an API key; the \
    required role is listed with the route. An unknown path is a 404 with code `not_found`, a wrong method a 405 with code `method_not_allowed`.";

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn document() -> Value {
        serde_json::from_slice(&DOCUMENT).unwrap()
    }

    #[test]
    fn the_file_in_docs_is_the_one_generated() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        let file = std::fs::read_to_string(path).unwrap();
        assert_eq!(file.as_bytes(), &DOCUMENT[..], "regenerate it with `make docs`");
    }

    #[test]
    fn what_the_guard_and_the_limits_refuse_is_described() {
        let document = document();
        for (method, path) in [
            ("get", "/api/v1/resources/queues"),
            ("get", "/api/v1/analytics/queue-ops"),
            ("post", "/api/v1/configure"),
            ("post", "/api/v1/push"),
            ("delete", "/api/v1/dlq"),
        ] {
            let responses = &document["paths"][path][method]["responses"];
            for status in ["401", "403", "429"] {
                assert!(responses[status].is_object(), "{method} {path} {status}");
            }
        }
        assert!(document["components"]["responses"]["TooManyRequests"]["headers"]["Retry-After"].is_object());
        assert!(document["paths"]["/health"]["get"]["responses"]["429"].is_null());
    }

    #[test]
    fn every_operation_has_a_name_of_its_own_and_a_summary() {
        let document = document();
        let items = document["paths"].as_object().unwrap().values();
        let operations: Vec<&Value> = items.flat_map(|item| item.as_object().unwrap().values()).collect();
        let mut names: Vec<&str> =
            operations.iter().map(|operation| operation["operationId"].as_str().unwrap()).collect();
        for operation in &operations {
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{operation}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
