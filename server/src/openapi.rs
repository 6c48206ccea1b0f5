//! The API in words a machine reads. What a route takes and gives stands at its handler; this puts it together.

mod access;
mod options;
pub mod postgres_stats;
pub mod queries;
pub mod words;

use std::sync::LazyLock;

use bytes::Bytes;
use utoipa::OpenApi;

use access::Access;

use crate::http::{
    ack, analytics, cluster, dead_letters, doctor, error, groups, health, life, maintenance, messages,
    metrics, openapi, operations, pop, push, queue_history, queues, redrives, renew, resources, seeks,
    settings, statistics, status, traces, transaction, whoami,
};

/// The document as `queen openapi` prints it and `GET /openapi.json` serves it.
pub static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
    let mut text = Document::openapi().to_pretty_json().expect("strings, numbers and maps of them serialise");
    text.push('\n');
    text.into()
});

#[derive(OpenApi)]
#[openapi(
    info(title = "Queen", description = DESCRIPTION),
    tags(
        (name = "messages", description = "Push, pop, acknowledge."),
        (name = "traces", description = "What consumers tell about the messages they work on."),
        (name = "operations", description = "What was deferred under load, and what became of it."),
        (name = "queues", description = "Options of a queue, and its end."),
        (name = "consumer groups", description = "Where groups stand."),
        (name = "analytics", description = "What happened, step by step."),
        (name = "broker", description = "Is it well, and what can it do?"),
    ),
    paths(
        push::push,
        pop::labels,
        pop::nameless_queue,
        pop::queue,
        pop::partition,
        pop::end,
        ack::one,
        ack::batch,
        transaction::transaction,
        renew::renew,
        operations::list,
        operations::stats,
        operations::one,
        operations::cancel,
        operations::retry,
        queues::configure,
        queues::delete_nameless,
        queues::delete,
        resources::queues,
        resources::queue,
        resources::depth,
        resources::partitions,
        resources::namespaces,
        resources::tasks,
        resources::overview,
        resources::clear,
        statistics::refresh,
        groups::list,
        groups::lagging,
        groups::detail,
        life::life,
        messages::list,
        messages::one,
        messages::delete,
        messages::retry,
        messages::bury,
        messages::of_queue,
        dead_letters::list,
        dead_letters::purge,
        dead_letters::shapes,
        redrives::start,
        redrives::list,
        redrives::one,
        redrives::cancel,
        traces::add,
        traces::names,
        traces::by_name,
        traces::of_message,
        groups::delete,
        groups::subscription,
        groups::delete_from_queue,
        seeks::in_queue,
        seeks::in_partition,
        maintenance::push,
        maintenance::set_push,
        maintenance::pop,
        maintenance::set_pop,
        whoami::whoami,
        settings::settings,
        doctor::doctor,
        cluster::shared_state,
        cluster::shared_state_stats,
        cluster::inter_instance_stats,
        cluster::notify,
        analytics::system_metrics,
        analytics::worker_metrics,
        queue_history::lag,
        queue_history::ops,
        queue_history::parked,
        analytics::retention,
        analytics::postgres,
        status::status,
        status::queues,
        status::queue,
        analytics::ingested,
        analytics::buffers,
        health::health,
        health::live,
        health::ready,
        metrics::json,
        metrics::prometheus,
        openapi::openapi,
    ),
    components(schemas(error::ErrorBody)),
    modifiers(&Access),
)]
struct Document;

const DESCRIPTION: &str = "A partitioned message queue on PostgreSQL. \
    Bodies are JSON in UTF-8; a missing Content-Type is taken for JSON. Unknown query keys and unknown fields \
    are ignored, except for unknown options of a queue, which are a 400. Names are any text up to 255 characters without NUL; in a path they are percent-encoded. \
    Times are ISO 8601 in UTC. OPTIONS on any path is a 204. Web pages of other origins are answered where access control is on, or where \
    QUEEN_CORS_ORIGINS lists them. \
    Where access control is on, every route but those of health wants a bearer token or an API key; the \
    role it asks for stands with it. What no route answers is a 404 with code `not_found`, a wrong method a 405 with code `method_not_allowed`.";

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
        assert_eq!(file.as_bytes(), &DOCUMENT[..], "write it anew with `make docs`");
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
    fn every_operation_has_a_name_of_its_own() {
        let document = document();
        let items = document["paths"].as_object().unwrap().values();
        let operations = items.flat_map(|item| item.as_object().unwrap().values());
        let mut names: Vec<&str> =
            operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
