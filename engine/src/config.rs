//! The settings an engine starts with. There are no defaults: the caller decides every value.

use std::path::PathBuf;
use std::time::Duration;

use crate::crypt::Keys;

#[derive(Debug, Clone)]
pub struct Config {
    /// A URL or a keyword string, as libpq takes it. Never logged: it may hold a password.
    pub database: String,
    pub tls: Tls,
    /// How soon a connection that ended silently is noticed.
    pub keepalive: Keepalive,
    /// The keys that encrypt payloads of queues with encryption.
    pub keys: Keys,
    /// Without a key, such queues reject messages. If false, they store them in clear text.
    pub encryption_required: bool,
    /// Connections of the message plane; 0 = sized from the server's `max_connections`.
    pub connections: usize,
    /// Flights of all lanes in the air at once; beyond that, the next one waits a moment for others to land.
    pub flights: usize,
    pub connect_timeout: Duration,
    /// No statement of the message plane runs longer.
    pub statement_timeout: Duration,
    /// No query for a list or figure runs longer.
    pub read_timeout: Duration,
    pub lock_timeout: Duration,
    /// How long an operation is retried after a lost connection before it fails.
    pub retry_for: Duration,
    /// A fixed collection window; zero = a lane flies as soon as a slot is free.
    pub linger: Duration,
    pub flight_items_max: usize,
    pub flight_bytes_max: usize,
    /// Entries that may wait for a flight of one lane; beyond that, the next is refused.
    pub waiting_max: usize,
    /// The database server is the broker's own, and so is the role.
    pub own_server: bool,
    /// Partitions a queue may have; 0 = any number.
    pub partitions_max: i32,
    /// Queues that may exist; 0 = any number.
    pub queues_max: i32,
    /// The first push to a queue creates it.
    pub auto_create: bool,
    /// Flights a lane may have in the air at once.
    pub slots: Slots,
    pub segment_cache_bytes: usize,
    pub dedup_cache_bytes: usize,
    /// Largest answer to one pop; a batch is cut short to stay below it.
    pub pop_bytes_max: usize,
    pub retention_interval: Duration,
    pub eviction_interval: Duration,
    pub retention_batch: i32,
    pub partition_cleanup: Duration,
    /// How long history is kept: the minutes of queues and brokers, traces, finished redrives.
    pub history_retention: Duration,
    pub extent_bytes: i64,
    pub extent_age: Duration,
    /// How often the counts of queues are reported to the database.
    pub statistics_interval: Duration,
    /// How often queues are measured even if their counts are not suspect.
    pub statistics_reconcile: Duration,
    /// How often the database is examined; zero = never.
    pub doctor_interval: Duration,
    pub deferring: Deferring,
    /// `host:port`, to tell brokers apart.
    pub name: String,
    /// How often the broker samples itself, and how often it writes down what it did.
    pub metrics_sample: Duration,
    pub metrics_aggregate: Duration,
    /// Where pushes go while the database cannot be reached; `None`: they fail.
    pub spool: Option<SpoolConfig>,
}

#[derive(Debug, Clone)]
pub struct SpoolConfig {
    /// Each broker uses a folder of its own in it.
    pub dir: PathBuf,
    /// Limit for all messages in it together.
    pub bytes_max: u64,
    /// A file ends at whichever of these it reaches first.
    pub file_bytes: u64,
    pub file_records: u64,
}

/// When operations are deferred, and how they are executed later.
#[derive(Debug, Clone)]
pub struct Deferring {
    /// Off: this broker defers nothing because of load, only what must stay behind operations that another broker
    /// deferred.
    pub enabled: bool,
    /// Share of connections that must be busy before pushes may be deferred.
    pub push_utilisation: f64,
    pub ack_utilisation: f64,
    /// Open operations above which pushes are rejected.
    pub push_depth_max: u64,
    pub ack_depth_max: u64,
    /// How long a request has to wait for its flight before the wait is a sign of load.
    pub patience: Duration,
    /// How often the processor looks for work while there is some; it is also notified.
    pub interval: Duration,
    /// Partitions that one look takes on.
    pub claim_limit: usize,
    /// After this time another broker takes over an operation.
    pub timeout: Duration,
    pub retries_max: i32,
    /// How long finished operations are kept.
    pub retention: Duration,
}

/// TLS to PostgreSQL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    pub mode: TlsMode,
    pub roots: Roots,
    /// The client certificate and key to present to the server, as PEM files.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub const OFF: Self = Self { mode: TlsMode::Off, roots: Roots::System, client: None };

    pub fn new(mode: TlsMode) -> Self {
        Self { mode, ..Self::OFF }
    }
}

/// As libpq means `sslmode`, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    #[default]
    Off,
    /// Encrypt if the server can; this does not stop an active attacker.
    Prefer,
    /// Encrypt, accept any certificate.
    Unverified,
    /// The certificate must come from an authority we trust, whatever name it carries.
    VerifyCa,
    /// The certificate must also carry the name we connect to.
    VerifyFull,
}

/// Whose certificates are trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Roots {
    #[default]
    System,
    /// A PEM file.
    File(PathBuf),
}

#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// After this time without traffic, the peer is probed.
    pub idle: Duration,
    /// How often an unanswered probe is repeated, and how many times.
    pub interval: Duration,
    pub count: u32,
    /// Sent data that is not acknowledged for this long ends the connection; zero = the system decides.
    pub user_timeout: Duration,
}

#[derive(Debug, Clone, Copy)]
pub struct Slots {
    pub push: usize,
    pub pop: usize,
    pub ack: usize,
    pub renew: usize,
    pub transaction: usize,
}
