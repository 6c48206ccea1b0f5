//! What a database call can end in, sorted by what a caller may do next.

use std::sync::Arc;

use tokio_postgres::error::{DbError, Severity, SqlState};

/// Cheap to clone: one failed flight answers many callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No connection, so nothing was sent.
    #[error("no database connection: {0}")]
    Unreachable(String),
    /// The connection or the deadline ended before the answer came; it may have been committed.
    #[error("database connection lost: {0}")]
    Lost(String),
    #[error("{procedure} failed: {message}", message = describe(source))]
    Procedure { procedure: &'static str, source: Arc<tokio_postgres::Error> },
    /// A commit was sent and nobody could be asked what became of it, or the broker itself failed. Never tried again: it
    /// may have happened.
    #[error("the outcome is unknown: it may have been committed")]
    Unknown,
    /// Left out, because a row that it needs is locked; nothing was changed.
    #[error("the partition or its cursor is locked by another database session")]
    Busy,
    #[error("too many operations are waiting")]
    Full,
    #[error("the broker is shutting down")]
    Stopping,
}

fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} ({})", db.message(), db.code().code()),
        None => error.to_string(),
    }
}

impl Error {
    pub fn from_postgres(procedure: &'static str, error: tokio_postgres::Error) -> Self {
        match error.code() {
            Some(_) if error.as_db_error().is_some_and(ends_session) => Self::Lost(
                error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned()),
            ),
            Some(_) => Self::Procedure { procedure, source: Arc::new(error) },
            None if error.is_closed()
                || std::error::Error::source(&error).is_some_and(|s| s.is::<std::io::Error>()) =>
            {
                Self::Lost(error.to_string())
            }
            None => Self::Procedure { procedure, source: Arc::new(error) },
        }
    }

    /// For clients, who have no use for names of procedures and codes of PostgreSQL. The log has both.
    pub fn public_text(&self) -> String {
        match self {
            Self::Procedure { source, .. } => match source.as_db_error().filter(|_| self.is_data()) {
                Some(db) => format!("PostgreSQL rejected a value: {}", db.message()),
                None => "database error; see the broker's log".to_owned(),
            },
            Self::Unreachable(_) => "no database connection".to_owned(),
            other => other.to_string(),
        }
    }

    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Procedure { source, .. } => source.code(),
            _ => None,
        }
    }

    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// The connection is of no use any more. A server that takes no writes was demoted, or is a standby: another connection
    /// may lead to the right one.
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::Lost(_)) || self.state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Lost(_)
            | Self::Unknown
            | Self::Busy
            | Self::Full
            | Self::Stopping => true,
            Self::Procedure { .. } => self.state().is_some_and(is_transient),
        }
    }

    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }

    /// A later try may well succeed. A statement that ran into its time limit is not tried again: it would again.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Lost(_) | Self::Busy => true,
            Self::Unknown | Self::Full | Self::Stopping => false,
            Self::Procedure { .. } => {
                self.state().is_some_and(|state| is_transient(state) && *state != SqlState::QUERY_CANCELED)
                    || self.is_extent_gone()
            }
        }
    }

    /// A statement has waited for a lock for as long as it may.
    pub fn is_lock_timeout(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// One entry of the batch holds something PostgreSQL cannot; its neighbours are fine.
    pub fn is_data(&self) -> bool {
        let class = |state: &SqlState| matches!(state.code().get(..2), Some("22" | "23" | "54"));
        self.state().is_some_and(|state| class(state) && !is_transient(state)) && !self.is_extent_gone()
    }

    /// The extent was dropped between its choice and the insert.
    fn is_extent_gone(&self) -> bool {
        matches!(self, Self::Procedure { source, .. }
            if source.as_db_error().is_some_and(|db| *db.code() == SqlState::CHECK_VIOLATION
                && db.message().starts_with("no partition of relation")))
    }
}

/// What was asked for may have been done before. A pooler says so with a connection exception.
fn ends_session(error: &DbError) -> bool {
    let shutdown = [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
    let severity = error.parsed_severity();
    matches!(severity, Some(Severity::Fatal | Severity::Panic))
        || matches!(error.severity(), "FATAL" | "PANIC")
        || error.code().code().starts_with("08")
        || shutdown.contains(error.code())
}

fn is_transient(state: &SqlState) -> bool {
    [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
        SqlState::TOO_MANY_CONNECTIONS,
        // Somebody has to make room. Nothing is wrong with the request.
        SqlState::DISK_FULL,
        SqlState::OUT_OF_MEMORY,
        SqlState::INSUFFICIENT_RESOURCES,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        // The queue or partition was deleted in the same moment.
        SqlState::FOREIGN_KEY_VIOLATION,
        // A migration of another broker replaced a procedure between prepare and call.
        SqlState::UNDEFINED_FUNCTION,
    ]
    .contains(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A server that answers the first query with this error.
    async fn server(mut client: DuplexStream, severity: &str, code: &str) {
        let mut asked = [0; 1024];
        let _ = client.read(&mut asked).await;
        let accepted = [&b"R\0\0\0\x08\0\0\0\0"[..], b"Z\0\0\0\x05I"].concat();
        client.write_all(&accepted).await.unwrap();
        let _ = client.read(&mut asked).await;
        let fields = format!("S{severity}\0V{severity}\0C{code}\0Mgone\0\0");
        let mut answer = vec![b'E'];
        answer.extend((fields.len() as u32 + 4).to_be_bytes());
        answer.extend(fields.as_bytes());
        client.write_all(&answer).await.unwrap();
        let _ = client.read(&mut asked).await;
    }

    async fn answered(severity: &str, code: &str) -> Error {
        let (ours, theirs) = tokio::io::duplex(4096);
        let serving = server(theirs, severity, code);
        let asking = async {
            let mut config = tokio_postgres::Config::new();
            let (client, driver) = config.user("u").connect_raw(ours, tokio_postgres::NoTls).await.unwrap();
            tokio::select! {
                result = client.simple_query("commit") => Error::from_postgres("commit", result.unwrap_err()),
                _ = driver => unreachable!("the server stays"),
            }
        };
        tokio::join!(asking, serving).0
    }

    #[tokio::test]
    async fn an_error_that_ends_the_session_leaves_the_outcome_open() {
        for (severity, code) in
            [("FATAL", "57P05"), ("FATAL", "25P03"), ("PANIC", "XX000"), ("ERROR", "08P01")]
        {
            assert!(answered(severity, code).await.is_outcome_unknown(), "{severity} {code}");
        }
        assert!(!answered("ERROR", "23505").await.is_outcome_unknown());
    }
}
