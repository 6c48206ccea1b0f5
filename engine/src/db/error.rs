//! Errors of database calls. Each says what happened, which code a client gets, and what a caller may do next: retry, give
//! up the connection, or allow for a commit that was not confirmed.

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::ErrorCode;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Cheap to clone: one failed flight answers many callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No connection could be opened, so nothing was sent.
    #[error("no database connection: {0}")]
    Unreachable(String),
    /// The connection ended before the answer came.
    #[error("database connection lost: {0}")]
    Lost(String),
    /// The answer did not come in time.
    #[error("{procedure}: no answer from the database within {after:?}")]
    NoAnswer { procedure: &'static str, after: Duration },
    /// An earlier try of the same call has not ended, and two must not run at once.
    #[error("an earlier try of this call is still running in the database")]
    StillRunning,
    #[error("{procedure} failed: {message}", message = describe(source))]
    Procedure { procedure: &'static str, source: Arc<tokio_postgres::Error> },
    /// This release does not understand the answer of a procedure.
    #[error("{procedure} returned something unexpected: {cause}")]
    Unexpected { procedure: &'static str, cause: String },
    /// The connection ended during the commit, and the database says that nothing was committed.
    #[error("the database connection was lost, and the transaction rolled back")]
    RolledBack,
    /// The connection ended during the commit and the database could not be asked about it, or a task of the broker
    /// panicked. Never retried: it may have been committed.
    #[error("the outcome is unknown: it may have been committed")]
    Unknown,
    /// The data that the call works on changed or was deleted during every try. Nothing was changed.
    #[error("{0}")]
    Changed(&'static str),
    /// Skipped, because a row that it needs is locked. Nothing was changed.
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

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unreachable(_)
            | Self::Lost(_)
            | Self::NoAnswer { .. }
            | Self::StillRunning
            | Self::RolledBack
            | Self::Unknown
            | Self::Changed(_)
            | Self::Busy
            | Self::Stopping => ErrorCode::Unavailable,
            Self::Procedure { .. } if self.state().is_some_and(is_transient) => ErrorCode::Unavailable,
            Self::Procedure { .. } | Self::Unexpected { .. } => ErrorCode::Internal,
            Self::Full => ErrorCode::RateLimited,
        }
    }

    /// For clients, who have no use for procedure names and PostgreSQL error codes. The log has both.
    pub fn public_text(&self) -> String {
        match self {
            Self::Procedure { source, .. } => match source.as_db_error().filter(|_| self.is_data()) {
                Some(db) => format!("PostgreSQL rejected a value: {}", db.message()),
                None => "database error; see the broker's log".to_owned(),
            },
            Self::Unexpected { .. } => "database error; see the broker's log".to_owned(),
            Self::Unreachable(_) => "no database connection".to_owned(),
            Self::NoAnswer { after, .. } => format!("no answer from the database within {after:?}"),
            other => other.to_string(),
        }
    }

    fn state(&self) -> Option<&SqlState> {
        match self {
            Self::Procedure { source, .. } => source.code(),
            _ => None,
        }
    }

    /// The call may have been committed, or may yet be.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::NoAnswer { .. } | Self::StillRunning | Self::Unknown)
    }

    /// The same failure for a call of which an earlier try may have been committed.
    pub fn after_unknown_try(self) -> Self {
        match self {
            Self::Unreachable(cause) => Self::Lost(cause),
            Self::Busy | Self::Full | Self::Changed(_) | Self::RolledBack => Self::Unknown,
            other => other,
        }
    }

    /// The connection is of no more use. A server that takes no writes was demoted, or is a standby: another
    /// connection may lead to the right one.
    pub fn ends_connection(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::NoAnswer { .. })
            || self.state() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// A later try may well succeed. A statement that ran into its time limit is not retried: it would do so again.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Lost(_)
            | Self::NoAnswer { .. }
            | Self::StillRunning
            | Self::RolledBack
            | Self::Changed(_)
            | Self::Busy => true,
            Self::Unexpected { .. } | Self::Unknown | Self::Full | Self::Stopping => false,
            Self::Procedure { .. } => {
                self.state().is_some_and(|state| is_transient(state) && *state != SqlState::QUERY_CANCELED)
                    || self.is_extent_gone()
            }
        }
    }

    /// A statement waited for a lock until the lock timeout.
    pub fn is_lock_timeout(&self) -> bool {
        self.state() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }

    /// One entry of the batch holds something PostgreSQL cannot store; its neighbors are fine.
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

/// The session has ended, and the call may have been executed before. A pooler reports this as a connection exception.
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
        // An administrator has to make room. Nothing is wrong with the request.
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
    async fn server(mut client: DuplexStream, severity: &str, code: &str, message: &str) {
        let mut asked = [0; 1024];
        let _ = client.read(&mut asked).await;
        let accepted = [&b"R\0\0\0\x08\0\0\0\0"[..], b"Z\0\0\0\x05I"].concat();
        client.write_all(&accepted).await.unwrap();
        let _ = client.read(&mut asked).await;
        let fields = format!("S{severity}\0V{severity}\0C{code}\0M{message}\0\0");
        let mut answer = vec![b'E'];
        answer.extend((fields.len() as u32 + 4).to_be_bytes());
        answer.extend(fields.as_bytes());
        client.write_all(&answer).await.unwrap();
        let _ = client.read(&mut asked).await;
    }

    async fn answered(severity: &str, code: &str, message: &str) -> Error {
        let (ours, theirs) = tokio::io::duplex(4096);
        let serving = server(theirs, severity, code, message);
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
            assert!(answered(severity, code, "gone").await.is_outcome_unknown(), "{severity} {code}");
        }
        assert!(!answered("ERROR", "23505", "twice").await.is_outcome_unknown());
    }

    /// The predicates that hold, in the order of the rows below.
    fn holds(error: &Error) -> Vec<&'static str> {
        [
            ("retry", error.may_retry()),
            ("unknown", error.is_outcome_unknown()),
            ("ends", error.ends_connection()),
            ("data", error.is_data()),
            ("lock", error.is_lock_timeout()),
        ]
        .into_iter()
        .filter_map(|(name, holds)| holds.then_some(name))
        .collect()
    }

    /// One of each variant except `Procedure`. A new variant does not compile until it is added here.
    fn plain() -> Vec<Error> {
        let all = vec![
            Error::Unreachable("refused".to_owned()),
            Error::Lost("reset".to_owned()),
            Error::NoAnswer { procedure: "queen.push", after: Duration::from_secs(35) },
            Error::StillRunning,
            Error::Unexpected { procedure: "queen.pulse", cause: "no row".to_owned() },
            Error::RolledBack,
            Error::Unknown,
            Error::Changed("the partition kept changing"),
            Error::Busy,
            Error::Full,
            Error::Stopping,
        ];
        for error in &all {
            match error {
                Error::Unreachable(_) | Error::Lost(_) | Error::NoAnswer { .. } | Error::StillRunning => {}
                Error::Unexpected { .. } | Error::RolledBack | Error::Unknown | Error::Changed(_) => {}
                Error::Busy | Error::Full | Error::Stopping | Error::Procedure { .. } => {}
            }
        }
        all
    }

    #[test]
    fn every_error_says_what_happened_and_what_to_do_about_it() {
        use ErrorCode::{Internal, RateLimited, Unavailable};
        let expected: [(ErrorCode, &[&str], &str); 11] = [
            (Unavailable, &["retry"], "no database connection"),
            (Unavailable, &["retry", "unknown", "ends"], "database connection lost: reset"),
            (Unavailable, &["retry", "unknown", "ends"], "no answer from the database within 35s"),
            (
                Unavailable,
                &["retry", "unknown"],
                "an earlier try of this call is still running in the database",
            ),
            (Internal, &[], "database error; see the broker's log"),
            (Unavailable, &["retry"], "the database connection was lost, and the transaction rolled back"),
            (Unavailable, &["unknown"], "the outcome is unknown: it may have been committed"),
            (Unavailable, &["retry"], "the partition kept changing"),
            (Unavailable, &["retry"], "the partition or its cursor is locked by another database session"),
            (RateLimited, &[], "too many operations are waiting"),
            (Unavailable, &[], "the broker is shutting down"),
        ];
        let all = plain();
        assert_eq!(all.len(), expected.len());
        for (error, (code, predicates, text)) in all.iter().zip(expected) {
            assert_eq!((error.code(), &*holds(error), &*error.public_text()), (code, predicates, text));
        }
    }

    #[tokio::test]
    async fn an_error_of_a_statement_is_judged_by_its_state() {
        use ErrorCode::{Internal, Unavailable};
        let gone = "no partition of relation \"segments\" found for row";
        let expected: [(&str, &str, ErrorCode, &[&str]); 11] = [
            ("40001", "", Unavailable, &["retry"]),
            ("40P01", "", Unavailable, &["retry"]),
            ("55P03", "", Unavailable, &["retry", "lock"]),
            ("57014", "", Unavailable, &[]),
            ("25006", "", Unavailable, &["retry", "ends"]),
            ("53100", "", Unavailable, &["retry"]),
            ("23503", "", Unavailable, &["retry"]),
            ("42883", "", Unavailable, &["retry"]),
            ("42P01", "", Internal, &[]),
            ("22021", "", Internal, &["data"]),
            ("23514", gone, Internal, &["retry"]),
        ];
        for (state, message, code, predicates) in expected {
            let error = answered("ERROR", state, message).await;
            assert!(matches!(error, Error::Procedure { .. }), "{state}: {error}");
            assert_eq!((error.code(), &*holds(&error)), (code, predicates), "{state}");
        }
    }

    #[test]
    fn what_failed_after_an_unknown_try_does_not_claim_that_nothing_was_done() {
        for error in plain() {
            let after = error.clone().after_unknown_try();
            let silent = matches!(error, Error::Unexpected { .. } | Error::Stopping);
            assert!(after.is_outcome_unknown() || silent, "{error}: {after}");
        }
    }
}
