//! What can go wrong in the engine, and whether the same request may be sent again.

use queen_protocol::{BadRequest, ErrorCode};

use crate::crypt::{SealError, Unreadable};
use crate::db;
use crate::spool::SpoolError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    BadRequest(#[from] BadRequest),
    #[error("{0}")]
    Database(#[from] db::Error),
    #[error("{0}")]
    Spool(SpoolError),
    /// The deferred queue is full.
    #[error("System overloaded, queue full")]
    Overloaded {
        depth: u64,
        /// Seconds, never 0.
        retry_after: u64,
    },
    #[error(
        "queue {0:?} does not exist; create it with POST /api/v1/configure, because QUEEN_AUTO_CREATE is off"
    )]
    NoQueue(String),
    #[error("queue {0:?} does not exist")]
    QueueMissing(String),
    #[error("there are {0} queues, the most allowed (QUEEN_MAX_QUEUES)")]
    QueueLimit(i32),
    #[error(
        "consumer group {group:?} does not read queue {queue:?}; send \"create\": true to create it there"
    )]
    NoGroup { group: String, queue: String },
    #[error("{0}")]
    Unreadable(Box<UnreadableMessage>),
    #[error("{0}")]
    Seal(#[from] SealError),
    /// An encrypted message must not become readable by being moved.
    #[error(
        "a message that was encrypted cannot be pushed again without a key to encrypt with; set QUEEN_ENCRYPTION_KEY"
    )]
    NoKey,
    #[error(
        "no encryption key is configured on this broker, and queue {0:?} asks for encryption: set QUEEN_ENCRYPTION_KEY"
    )]
    KeyRequired(String),
    /// The queue may require encryption, and the database cannot be asked now.
    #[error(
        "the database cannot be reached, and without QUEEN_ENCRYPTION_KEY messages are spooled only for queues known not to ask for \
         encryption; {0:?} is not known"
    )]
    KeyInDoubt(String),
}

/// A message whose payload cannot be decrypted. Nothing is lost: it waits for its key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {transaction_id:?} of queue {queue:?}, partition {partition:?} cannot be read: {cause}")]
pub struct UnreadableMessage {
    pub queue: String,
    pub partition: String,
    pub transaction_id: String,
    pub cause: Unreadable,
}

impl Error {
    pub fn is_stopping(&self) -> bool {
        matches!(self, Self::Database(db::Error::Stopping))
    }

    /// For clients: without what only an operator can use.
    pub fn public_text(&self) -> String {
        match self {
            Self::Database(error) => error.public_text(),
            other => other.to_string(),
        }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::BadRequest(_) => ErrorCode::BadRequest,
            Self::NoQueue(_) | Self::QueueMissing(_) | Self::NoGroup { .. } => ErrorCode::NotFound,
            Self::QueueLimit(_) | Self::KeyRequired(_) => ErrorCode::Conflict,
            Self::Overloaded { .. } | Self::Spool(SpoolError::Full { .. }) => ErrorCode::RateLimited,
            Self::Spool(SpoolError::Disk(_) | SpoolError::Unusable(_) | SpoolError::None)
            | Self::KeyInDoubt(_) => ErrorCode::Unavailable,
            Self::Database(error) => error.code(),
            Self::Unreadable(_) | Self::Seal(_) | Self::NoKey => ErrorCode::Internal,
        }
    }
}

/// Why an engine did not start; each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the database settings cannot be read: {0}")]
    Settings(String),
    #[error("cannot reach the database at {at}: {cause}")]
    Unreachable { at: String, cause: String },
    #[error("the database at {at} refused user {user:?}: {cause}")]
    Refused { at: String, user: String, cause: String },
    #[error("PostgreSQL {found} is too old: Queen needs 15 or newer")]
    TooOld { found: String },
    #[error(
        "the schema in this database has version {found}, this binary knows {known}: start a newer queen"
    )]
    SchemaNewer { found: i32, known: i32 },
    #[error("the spool in {dir} cannot be opened: {cause}")]
    Spool { dir: String, cause: String },
    #[error("{0}")]
    Tls(String),
    #[error("migration {name} failed: {cause}")]
    Migration { name: String, cause: String },
    #[error(
        "this database has no schema of Queen, or an old one: start a broker of this version on it first"
    )]
    NoSchema,
    #[error("the database refused a statement at start: {0}")]
    Statement(String),
}
