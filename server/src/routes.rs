//! Every route, once: its handler, who may use it, and what a request to it does. Its method, path and documentation
//! are at the handler. The router, access control, limits, audit log, metrics and the OpenAPI document read this table.

use std::sync::LazyLock;

use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use utoipa::OpenApi;
use utoipa::openapi::PathItem;

use crate::app::{App, PAGE};
use crate::auth::access::Access::{self, Needs, Public};
use crate::auth::access::Scope::{All, Asked, Handler, Lease, Nameless, Nothing, Partition, Queue};
use crate::auth::grants::Need::{Any, This};
use crate::auth::grants::Right::{Admin as Administer, Pop, Read as Look};
use crate::auth::role::Role::{Admin, ReadOnly, ReadWrite};
use crate::dashboard;
use crate::http::{
    ack, analytics, cluster, dead_letters, doctor, error, groups, health, life, maintenance, messages,
    metrics, openapi, operations, pop, push, queue_history, queues, redrives, renew, resources, seeks,
    settings, statistics, status, traces, transaction, whoami,
};

/// What a request does. Determines which limits apply and whether it is in the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Answers from memory.
    Memory,
    /// Reads what the broker knows, or something short. Counts against the reads of its client, but uses none of the
    /// connections for reads.
    Quick,
    /// Reads from the database: counts against the reads of its client (`limits/reads.rs`).
    Read,
    /// Moves messages, or reports on them: too frequent for the audit log.
    Message,
    /// Changes a queue, a group or the broker. Is in the audit log.
    Change,
    /// A change that has to search as much as a list does. Counts as a read, and is in the audit log.
    Search,
}

use Effect::{Change, Memory, Message, Quick, Read, Search};

pub struct Route {
    pub method: Method,
    /// With `{parameters}`.
    pub path: String,
    pub access: Access,
    pub effect: Effect,
    document: fn() -> utoipa::openapi::OpenApi,
    handler: fn(MethodFilter) -> MethodRouter<App>,
}

/// A handler, the access it needs, its effect.
macro_rules! route {
    ($module:ident::$handler:ident, $access:expr, $effect:expr) => {{
        #[derive(OpenApi)]
        #[openapi(paths($module::$handler))]
        struct Described;
        Route::new(Described::openapi, |method| on(method, $module::$handler), $access, $effect)
    }};
}

pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    vec![
        route!(push::push, Needs(ReadWrite, Handler), Message),
        route!(pop::labels, Needs(ReadWrite, All), Message),
        route!(pop::nameless_queue, Needs(ReadWrite, Nameless(This(Pop))), Message),
        route!(pop::queue, Needs(ReadWrite, Queue(This(Pop))), Message),
        route!(pop::partition, Needs(ReadWrite, Queue(This(Pop))), Message),
        // A caller can end only its own waits, and the pops that wait have passed the checks above.
        route!(pop::end, Needs(ReadWrite, Handler), Message),
        route!(ack::one, Needs(ReadWrite, Handler), Message),
        route!(ack::batch, Needs(ReadWrite, Handler), Message),
        route!(transaction::transaction, Needs(ReadWrite, Handler), Message),
        route!(renew::renew, Needs(ReadWrite, Lease(This(Pop))), Message),
        route!(operations::list, Needs(ReadOnly, Asked(Any)), Read),
        route!(operations::stats, Needs(ReadOnly, All), Read),
        route!(operations::one, Needs(ReadOnly, Handler), Read),
        route!(operations::cancel, Needs(Admin, Handler), Change),
        route!(operations::retry, Needs(Admin, Handler), Change),
        route!(queues::configure, Needs(ReadWrite, Handler), Change),
        route!(queues::delete_nameless, Needs(Admin, Nameless(This(Administer))), Change),
        route!(queues::delete, Needs(Admin, Queue(This(Administer))), Change),
        route!(resources::queues, Needs(ReadOnly, Handler), Read),
        route!(resources::queue, Needs(ReadOnly, Queue(Any)), Read),
        route!(resources::depth, Needs(ReadOnly, Queue(Any)), Read),
        route!(resources::partitions, Needs(ReadOnly, Asked(Any)), Read),
        route!(resources::namespaces, Needs(ReadOnly, All), Read),
        route!(resources::tasks, Needs(ReadOnly, All), Read),
        route!(resources::overview, Needs(ReadOnly, All), Read),
        route!(resources::clear, Needs(Admin, Queue(This(Administer))), Change),
        route!(statistics::refresh, Needs(Admin, All), Search),
        route!(groups::list, Needs(ReadOnly, Asked(Any)), Read),
        route!(groups::lagging, Needs(ReadOnly, All), Read),
        route!(groups::detail, Needs(ReadOnly, Asked(Any)), Read),
        route!(life::life, Needs(ReadOnly, Partition(This(Look))), Read),
        route!(messages::list, Needs(ReadOnly, Asked(This(Look))), Read),
        route!(messages::one, Needs(ReadOnly, Partition(This(Look))), Read),
        route!(messages::delete, Needs(ReadWrite, Partition(This(Administer))), Change),
        route!(messages::retry, Needs(ReadWrite, Partition(This(Administer))), Change),
        route!(messages::bury, Needs(ReadWrite, Partition(This(Administer))), Change),
        route!(messages::of_queue, Needs(ReadOnly, Queue(This(Look))), Read),
        route!(dead_letters::list, Needs(ReadOnly, Asked(This(Look))), Read),
        route!(dead_letters::purge, Needs(Admin, Asked(This(Administer))), Search),
        route!(dead_letters::shapes, Needs(ReadOnly, Asked(This(Look))), Read),
        route!(redrives::start, Needs(ReadWrite, Handler), Search),
        route!(redrives::list, Needs(ReadOnly, All), Read),
        route!(redrives::one, Needs(ReadOnly, Handler), Read),
        route!(redrives::cancel, Needs(ReadWrite, Handler), Change),
        route!(traces::add, Needs(ReadWrite, Handler), Message),
        route!(traces::names, Needs(ReadOnly, All), Read),
        route!(traces::by_name, Needs(ReadOnly, All), Read),
        route!(traces::of_message, Needs(ReadOnly, Partition(This(Look))), Read),
        route!(groups::delete, Needs(Admin, All), Change),
        route!(groups::subscription, Needs(ReadWrite, All), Change),
        route!(groups::delete_from_queue, Needs(Admin, Queue(This(Administer))), Change),
        route!(seeks::in_queue, Needs(ReadWrite, Queue(This(Administer))), Search),
        route!(seeks::in_partition, Needs(ReadWrite, Queue(This(Administer))), Search),
        route!(maintenance::push, Needs(Admin, All), Quick),
        route!(maintenance::set_push, Needs(Admin, All), Change),
        route!(maintenance::pop, Needs(Admin, All), Quick),
        route!(maintenance::set_pop, Needs(Admin, All), Change),
        route!(whoami::whoami, Needs(ReadOnly, Nothing), Quick),
        route!(settings::settings, Needs(Admin, All), Quick),
        route!(doctor::doctor, Needs(ReadOnly, All), Quick),
        route!(cluster::shared_state, Needs(Admin, All), Quick),
        route!(cluster::shared_state_stats, Needs(Admin, All), Memory),
        route!(cluster::inter_instance_stats, Needs(Admin, All), Memory),
        route!(cluster::notify, Needs(Admin, All), Change),
        route!(analytics::system_metrics, Needs(ReadOnly, All), Read),
        route!(analytics::worker_metrics, Needs(ReadOnly, All), Read),
        route!(queue_history::lag, Needs(ReadOnly, Asked(Any)), Read),
        route!(queue_history::ops, Needs(ReadOnly, Asked(Any)), Read),
        route!(queue_history::parked, Needs(ReadOnly, All), Read),
        route!(analytics::retention, Needs(ReadOnly, All), Read),
        route!(analytics::postgres, Needs(ReadOnly, All), Read),
        route!(status::status, Needs(ReadOnly, All), Read),
        route!(status::queues, Needs(ReadOnly, Handler), Read),
        route!(status::queue, Needs(ReadOnly, Queue(Any)), Read),
        route!(analytics::ingested, Needs(ReadOnly, All), Read),
        route!(analytics::buffers, Needs(ReadOnly, All), Quick),
        route!(health::health, Public, Memory),
        route!(health::live, Public, Memory),
        route!(health::ready, Public, Memory),
        // Open unless JWT_SKIP_PATHS leaves them out.
        route!(metrics::json, Needs(ReadOnly, All), Memory),
        route!(metrics::prometheus, Needs(ReadOnly, All), Memory),
        route!(openapi::openapi, Needs(ReadOnly, Nothing), Memory),
    ]
});

impl Route {
    fn new(
        document: fn() -> utoipa::openapi::OpenApi,
        handler: fn(MethodFilter) -> MethodRouter<App>,
        access: Access,
        effect: Effect,
    ) -> Self {
        let (path, item) = document().paths.paths.into_iter().next().expect("it describes one handler");
        let method = match item {
            PathItem { post: Some(_), .. } => Method::POST,
            PathItem { delete: Some(_), .. } => Method::DELETE,
            _ => Method::GET,
        };
        Self { method, path, access, effect, document, handler }
    }

    /// What it takes and returns, with the schemas of both.
    pub fn document(&self) -> utoipa::openapi::OpenApi {
        (self.document)()
    }

    /// What the router calls.
    pub fn endpoint(&self) -> MethodRouter<App> {
        let method = MethodFilter::try_from(self.method.clone()).expect("GET, POST and DELETE are known");
        let endpoint = (self.handler)(method);
        // axum answers HEAD with the handler of GET, and a pop that returns only headers would lose messages.
        match self.method == Method::GET && self.effect == Message {
            true => endpoint.head(error::no_such_method),
            false => endpoint,
        }
    }

    /// Counts against the reads of its client.
    pub fn reads(&self) -> bool {
        matches!(self.effect, Quick | Read | Search)
    }

    /// Needs one of the connections for reads.
    pub fn reads_database(&self) -> bool {
        matches!(self.effect, Read | Search)
    }

    /// Is in the audit log.
    pub fn acts(&self) -> bool {
        matches!(self.effect, Change | Search)
    }
}

/// The paths, in the order of the table.
pub fn paths() -> Vec<&'static str> {
    let mut paths: Vec<&str> = Vec::new();
    for route in ROUTES.iter() {
        if !paths.contains(&route.path.as_str()) {
            paths.push(&route.path);
        }
    }
    paths
}

/// The routes of a path, one for each method.
pub fn at(path: &str) -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(move |route| route.path == path)
}

/// Whether a request goes to the audit log. An unsupported method counts if another method of the path goes there.
pub fn is_act(method: &Method, path: Option<&str>) -> bool {
    let plain = [Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    path.is_some_and(|path| !plain && at(path).any(Route::acts))
}

/// The access that a request needs. `path` is that of its route; without a route the response is an error. Methods that
/// are not in the table are closed to all but admins without grants.
pub fn access(method: &Method, path: Option<&str>) -> Access {
    let Some(path) = path else { return Needs(ReadOnly, Nothing) };
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    if *method == Method::GET && path == PAGE {
        return Needs(ReadOnly, Nothing);
    }
    if *method == Method::GET && dashboard::PATHS.contains(&path) {
        return Public;
    }
    at(path).find(|route| route.method == *method).map_or(Needs(Admin, All), |route| route.access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_each_method_once() {
        for path in paths() {
            let mut methods: Vec<&str> = at(path).map(|route| route.method.as_str()).collect();
            let all = methods.len();
            methods.sort_unstable();
            methods.dedup();
            assert_eq!(methods.len(), all, "{path}");
        }
    }

    #[test]
    fn a_get_changes_nothing_and_other_methods_do() {
        for route in ROUTES.iter() {
            let reads = matches!(route.effect, Memory | Quick | Read);
            assert!(route.effect == Message || reads == (route.method == Method::GET), "{}", route.path);
        }
    }

    #[test]
    fn what_the_table_does_not_list_is_closed() {
        assert_eq!(access(&Method::PUT, Some("/api/v1/push")), Needs(Admin, All));
        assert_eq!(access(&Method::GET, Some("/api/v1/new")), Needs(Admin, All));
        assert_eq!(access(&Method::POST, Some("/")), Needs(Admin, All));
        assert_eq!(access(&Method::HEAD, Some("/health")), Public);
    }
}
