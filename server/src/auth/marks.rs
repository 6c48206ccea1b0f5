//! What each route asks of its caller: the whole table on two screens. `app.rs` has the routes; a test compares the two,
//! and what is missing here is closed to all but unrestricted admins.

use axum::http::Method;

use super::grants::Need::{self, Any, This};
use super::grants::Right::{Admin as Change, Pop, Read};
use super::role::Role::{self, Admin, ReadOnly, ReadWrite};
use crate::app::PAGE;
use crate::dashboard;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Public,
    /// At least this role, and a restricted caller only within its grants.
    Needs(Role, Scope),
}

/// Where it says which queues a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// It is about none.
    Nothing,
    /// It is about all of them, or about who knows which: not for restricted callers.
    All,
    /// `{queue}` in the path.
    Queue(Need),
    /// The queue whose name is empty.
    Nameless(Need),
    /// `queue` in the query, without which it would be about all.
    Asked(Need),
    /// `{partition}` in the path, an id.
    Partition(Need),
    /// `{lease}` in the path, which names partitions.
    Lease(Need),
    /// In the body, or where only the handler finds it: that asks `Caller::may…` itself.
    Handler,
}

use Mark::{Needs, Public};
use Scope::{All, Asked, Handler, Lease, Nameless, Nothing, Partition, Queue};

const GET: Method = Method::GET;
const POST: Method = Method::POST;
const DELETE: Method = Method::DELETE;

pub const MARKS: &[(Method, &str, Mark)] = &[
    (POST, "/api/v1/push", Needs(ReadWrite, Handler)),
    (GET, "/api/v1/pop", Needs(ReadWrite, All)),
    (GET, "/api/v1/pop/queue/", Needs(ReadWrite, Nameless(This(Pop)))),
    (GET, "/api/v1/pop/queue/{queue}", Needs(ReadWrite, Queue(This(Pop)))),
    (GET, "/api/v1/pop/queue/{queue}/partition/{partition}", Needs(ReadWrite, Queue(This(Pop)))),
    // Whoever is let in ends waits of his own only, and what waits there has passed the marks above.
    (DELETE, "/api/v1/pop/waits/{wait}", Needs(ReadWrite, Handler)),
    (POST, "/api/v1/ack", Needs(ReadWrite, Handler)),
    (POST, "/api/v1/ack/batch", Needs(ReadWrite, Handler)),
    (POST, "/api/v1/transaction", Needs(ReadWrite, Handler)),
    (POST, "/api/v1/lease/{lease}/extend", Needs(ReadWrite, Lease(This(Pop)))),
    (GET, "/api/v1/operations", Needs(ReadOnly, Asked(Any))),
    (GET, "/api/v1/operations/stats", Needs(ReadOnly, All)),
    (GET, "/api/v1/operations/{operation}", Needs(ReadOnly, Handler)),
    (DELETE, "/api/v1/operations/{operation}", Needs(Admin, Handler)),
    (POST, "/api/v1/operations/{operation}/retry", Needs(Admin, Handler)),
    (POST, "/api/v1/configure", Needs(ReadWrite, Handler)),
    (DELETE, "/api/v1/resources/queues/", Needs(Admin, Nameless(This(Change)))),
    (GET, "/api/v1/resources/queues", Needs(ReadOnly, Handler)),
    (GET, "/api/v1/resources/queues/{queue}", Needs(ReadOnly, Queue(Any))),
    (DELETE, "/api/v1/resources/queues/{queue}", Needs(Admin, Queue(This(Change)))),
    (GET, "/api/v1/resources/queues/{queue}/depth", Needs(ReadOnly, Queue(Any))),
    (GET, "/api/v1/resources/partitions", Needs(ReadOnly, Asked(Any))),
    (GET, "/api/v1/resources/namespaces", Needs(ReadOnly, All)),
    (GET, "/api/v1/resources/tasks", Needs(ReadOnly, All)),
    (GET, "/api/v1/resources/overview", Needs(ReadOnly, All)),
    (DELETE, "/api/v1/queues/{queue}/clear", Needs(Admin, Queue(This(Change)))),
    (POST, "/api/v1/stats/refresh", Needs(Admin, All)),
    (GET, "/api/v1/consumer-groups", Needs(ReadOnly, Asked(Any))),
    (GET, "/api/v1/consumer-groups/lagging", Needs(ReadOnly, All)),
    (GET, "/api/v1/consumer-groups/{group}", Needs(ReadOnly, Asked(Any))),
    (DELETE, "/api/v1/consumer-groups/{group}", Needs(Admin, All)),
    (GET, "/api/v1/messages/{partition}/{transaction}/life", Needs(ReadOnly, Partition(This(Read)))),
    (GET, "/api/v1/messages", Needs(ReadOnly, Asked(This(Read)))),
    (GET, "/api/v1/messages/{partition}/{transaction}", Needs(ReadOnly, Partition(This(Read)))),
    (DELETE, "/api/v1/messages/{partition}/{transaction}", Needs(ReadWrite, Partition(This(Change)))),
    (POST, "/api/v1/messages/{partition}/{transaction}/retry", Needs(ReadWrite, Partition(This(Change)))),
    (POST, "/api/v1/messages/{partition}/{transaction}/dlq", Needs(ReadWrite, Partition(This(Change)))),
    (GET, "/api/v1/status/queues/{queue}/messages", Needs(ReadOnly, Queue(This(Read)))),
    (GET, "/api/v1/dlq", Needs(ReadOnly, Asked(This(Read)))),
    (DELETE, "/api/v1/dlq", Needs(Admin, Asked(This(Change)))),
    (GET, "/api/v1/dlq/shapes", Needs(ReadOnly, Asked(This(Read)))),
    (POST, "/api/v1/dlq/redrive", Needs(ReadWrite, Handler)),
    (GET, "/api/v1/dlq/redrives", Needs(ReadOnly, All)),
    (GET, "/api/v1/dlq/redrives/{redrive}", Needs(ReadOnly, Handler)),
    (DELETE, "/api/v1/dlq/redrives/{redrive}", Needs(ReadWrite, Handler)),
    (POST, "/api/v1/traces", Needs(ReadWrite, Handler)),
    (GET, "/api/v1/traces/names", Needs(ReadOnly, All)),
    (GET, "/api/v1/traces/by-name/{name}", Needs(ReadOnly, All)),
    (GET, "/api/v1/traces/{partition}/{transaction}", Needs(ReadOnly, Partition(This(Read)))),
    (POST, "/api/v1/consumer-groups/{group}/subscription", Needs(ReadWrite, All)),
    (DELETE, "/api/v1/consumer-groups/{group}/queues/{queue}", Needs(Admin, Queue(This(Change)))),
    (POST, "/api/v1/consumer-groups/{group}/queues/{queue}/seek", Needs(ReadWrite, Queue(This(Change)))),
    (
        POST,
        "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek",
        Needs(ReadWrite, Queue(This(Change))),
    ),
    (GET, "/api/v1/system/maintenance", Needs(Admin, All)),
    (POST, "/api/v1/system/maintenance", Needs(Admin, All)),
    (GET, "/api/v1/system/maintenance/pop", Needs(Admin, All)),
    (POST, "/api/v1/system/maintenance/pop", Needs(Admin, All)),
    (GET, "/api/v1/whoami", Needs(ReadOnly, Nothing)),
    (GET, "/api/v1/system/settings", Needs(Admin, All)),
    (GET, "/api/v1/system/doctor", Needs(ReadOnly, All)),
    (GET, "/api/v1/system/shared-state", Needs(Admin, All)),
    (GET, "/internal/api/shared-state/stats", Needs(Admin, All)),
    (GET, "/internal/api/inter-instance/stats", Needs(Admin, All)),
    (POST, "/internal/api/notify", Needs(Admin, All)),
    (GET, "/api/v1/analytics/system-metrics", Needs(ReadOnly, All)),
    (GET, "/api/v1/analytics/worker-metrics", Needs(ReadOnly, All)),
    (GET, "/api/v1/analytics/queue-lag", Needs(ReadOnly, Asked(Any))),
    (GET, "/api/v1/analytics/queue-ops", Needs(ReadOnly, Asked(Any))),
    (GET, "/api/v1/analytics/queue-parked-replicas", Needs(ReadOnly, All)),
    (GET, "/api/v1/analytics/retention", Needs(ReadOnly, All)),
    (GET, "/api/v1/analytics/postgres-stats", Needs(ReadOnly, All)),
    (GET, "/api/v1/status", Needs(ReadOnly, All)),
    (GET, "/api/v1/status/queues", Needs(ReadOnly, Handler)),
    (GET, "/api/v1/status/queues/{queue}", Needs(ReadOnly, Queue(Any))),
    (GET, "/api/v1/status/analytics", Needs(ReadOnly, All)),
    (GET, "/api/v1/status/buffers", Needs(ReadOnly, All)),
    (GET, "/health", Public),
    (GET, "/health/live", Public),
    (GET, "/health/ready", Public),
    // Open all the same, unless JWT_SKIP_PATHS says otherwise.
    (GET, "/metrics", Needs(ReadOnly, All)),
    (GET, "/metrics/prometheus", Needs(ReadOnly, All)),
    (GET, "/openapi.json", Needs(ReadOnly, Nothing)),
];

/// What moves messages, and what consumers report about them: too many to log each. Every other route that is no GET changes a
/// queue, a group or the broker, and is in the audit log.
const MESSAGE_PLANE: [&str; 7] = [
    "/api/v1/push",
    "/api/v1/pop/waits/{wait}",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
    "/api/v1/lease/{lease}/extend",
    "/api/v1/traces",
];

pub fn is_act(method: &Method, path: Option<&str>) -> bool {
    let plain = [GET, Method::HEAD, Method::OPTIONS].contains(method);
    path.is_some_and(|path| !plain && has_acts(path))
}

pub fn has_acts(path: &str) -> bool {
    methods(path).any(|method| *method != GET) && !MESSAGE_PLANE.contains(&path)
}

pub fn methods(path: &str) -> impl Iterator<Item = &'static Method> {
    MARKS.iter().filter(move |(_, route, _)| *route == path).map(|(method, ..)| method)
}

/// `path`: the route, as `app.rs` spells it; `None` if there is none, and then nothing but an error will come of it.
pub fn of(method: &Method, path: Option<&str>) -> Mark {
    let Some(path) = path else { return Needs(ReadOnly, Nothing) };
    let method = if *method == Method::HEAD { GET } else { method.clone() };
    if method == GET && path == PAGE {
        return Needs(ReadOnly, Nothing);
    }
    if method == GET && dashboard::PATHS.contains(&path) {
        return Public;
    }
    let marked = MARKS.iter().find(|(known, route, _)| *route == path && *known == method);
    marked.map_or(Needs(Admin, All), |(_, _, mark)| *mark)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_marked_once_and_nothing_else() {
        let routes: BTreeSet<&str> = crate::app::routes().iter().map(|(path, _)| *path).collect();
        let marked: BTreeSet<&str> = MARKS.iter().map(|(_, path, _)| *path).collect();
        assert_eq!(routes, marked);
        let once: BTreeSet<(&str, &str)> =
            MARKS.iter().map(|(method, path, _)| (*path, method.as_str())).collect();
        assert_eq!(once.len(), MARKS.len());
    }

    /// Methods and all, as the document has them; another test holds that against the router.
    #[test]
    fn every_method_is_marked() {
        let document: serde_json::Value = serde_json::from_slice(&crate::openapi::DOCUMENT).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|method| (path.clone(), method.to_uppercase()))
            })
            .collect();
        let marked: BTreeSet<(String, String)> =
            MARKS.iter().map(|(method, path, _)| ((*path).to_owned(), method.to_string())).collect();
        assert_eq!(described, marked);
    }

    #[test]
    fn what_nobody_thought_of_is_closed() {
        assert_eq!(of(&Method::PUT, Some("/api/v1/push")), Needs(Admin, All));
        assert_eq!(of(&Method::GET, Some("/api/v1/new")), Needs(Admin, All));
        assert_eq!(of(&Method::POST, Some("/")), Needs(Admin, All));
        assert_eq!(of(&Method::HEAD, Some("/health")), Public);
    }
}
