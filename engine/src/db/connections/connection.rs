//! One connection: its calls have a deadline, and it knows whether it can be given to the next caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio_postgres::Client;

use super::incarnation::Incarnation;
use crate::db::backend::Backend;
use crate::db::error::Error;
use crate::db::procedures::Statements;

/// After this many abandoned calls a connection is replaced: a call abandoned while it was being prepared leaves a
/// prepared statement in the session, some kilobytes under a name that nothing knows.
const ABANDONED_MAX: u32 = 100;

pub struct Connection {
    pub client: Client,
    pub statements: Statements,
    /// Of the server. A connection ends with its incarnation, so this is asked for once.
    pub incarnation: Incarnation,
    /// The process that serves this connection.
    pub backend: Backend,
    deadline: Duration,
    broken: AtomicBool,
    /// A call has no response and will never get one here. The backend may still be at work on it, or may not have
    /// begun.
    unsettled: Arc<AtomicBool>,
    /// The caller has gone away before the response to its call, which may be on its way.
    abandoned: AtomicBool,
    /// How often that has happened.
    abandonments: u32,
    /// Between `begin` and the answer to `commit` or `rollback`.
    in_transaction: AtomicBool,
}

impl Connection {
    pub(super) fn new(
        client: Client,
        statements: Statements,
        incarnation: Incarnation,
        backend: Backend,
        deadline: Duration,
    ) -> Self {
        Self {
            client,
            statements,
            incarnation,
            backend,
            deadline,
            broken: AtomicBool::new(false),
            unsettled: Arc::default(),
            abandoned: AtomicBool::new(false),
            abandonments: 0,
            in_transaction: AtomicBool::new(false),
        }
    }

    /// Waits no longer than the deadline; a connection that missed one is not used again.
    ///
    /// # Cancel safety
    /// If dropped before the response, the connection serves others once it has become idle, and is closed if that
    /// takes longer than [`super::SETTLES_WITHIN`].
    pub async fn within<T>(
        &self,
        procedure: &'static str,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let answer = Outstanding(self);
        let result = match tokio::time::timeout(self.deadline, call).await {
            Ok(result) => result.map_err(|error| Error::from_postgres(procedure, error)),
            Err(_) => Err(Error::NoAnswer { procedure, after: self.deadline }),
        };
        match &result {
            Err(error) if error.is_outcome_unknown() => self.give_up(),
            Err(error) if error.ends_connection() => self.broken.store(true, Relaxed),
            _ => {}
        }
        std::mem::forget(answer);
        result
    }

    /// No response will come, and other callers must not wait behind it.
    pub(super) fn give_up(&self) {
        self.unsettled.store(true, Relaxed);
        self.broken.store(true, Relaxed);
    }

    /// Called before the statement that begins a transaction is sent.
    pub(in crate::db) fn enter_transaction(&self) {
        self.in_transaction.store(true, Relaxed);
    }

    /// PostgreSQL has reported that the transaction is over.
    pub(in crate::db) fn leave_transaction(&self) {
        self.in_transaction.store(false, Relaxed);
    }

    pub fn is_usable(&self) -> bool {
        !self.broken.load(Relaxed) && !self.client.is_closed() && self.is_current()
    }

    /// The backend, if it may still be at work on a call whose response can no longer arrive.
    pub fn unsettled(&self) -> Option<Backend> {
        self.unsettled.load(Relaxed).then_some(self.backend)
    }

    /// Becomes true when there is an `unsettled` backend. For a caller that gives the connection away in the meantime.
    pub(super) fn unsettled_flag(&self) -> Arc<AtomicBool> {
        self.unsettled.clone()
    }

    /// Whether its caller went away during a call, since this was last asked.
    pub(super) fn was_abandoned(&mut self) -> bool {
        let abandoned = self.abandoned.swap(false, Relaxed);
        self.abandonments += u32::from(abandoned);
        abandoned
    }

    /// A connection is replaced after [`ABANDONED_MAX`] abandoned calls.
    pub(super) fn retire_if_worn(&self) {
        if self.abandonments >= ABANDONED_MAX {
            self.broken.store(true, Relaxed);
        }
    }

    /// Whether the connection is as good as new: no call without a response, and no transaction.
    pub(super) fn is_idle(&self) -> bool {
        self.is_usable() && !self.in_transaction.load(Relaxed)
    }

    /// Whether it leads to the server that was met last. Nothing that another one has answered may be kept. Check this
    /// under the lock of the cache that keeps it, because the answer changes before that cache is emptied.
    pub fn is_current(&self) -> bool {
        self.incarnation.is_current()
    }
}

/// A call without its response. Dropped by a panic, or when the caller goes away.
struct Outstanding<'a>(&'a Connection);

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => self.0.give_up(),
            false => self.0.abandoned.store(true, Relaxed),
        }
    }
}
