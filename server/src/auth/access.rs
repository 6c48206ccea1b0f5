//! What a route can require of its caller. `routes.rs` states the requirement of each route, and `guard.rs` checks it.

use super::grants::Need;
use super::role::Role;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Public,
    /// At least this role, and a restricted caller only within its grants.
    Needs(Role, Scope),
}

/// Which queues a request is about, and where it names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// None.
    Nothing,
    /// All of them, or unknown ones: not for restricted callers.
    All,
    /// `{queue}` in the path.
    Queue(Need),
    /// The queue whose name is empty.
    Nameless(Need),
    /// `queue` in the query. Without it, the request would be about all queues.
    Asked(Need),
    /// `{partition}` in the path, an id.
    Partition(Need),
    /// `{lease}` in the path, which names partitions.
    Lease(Need),
    /// In the body, or where only the handler finds it: the handler asks `Caller::may…` itself.
    Handler,
}
