//! Every setting, once: its flag, its environment variable, its default and its meaning. It opens nothing.

pub mod access;
pub(crate) mod connection;
mod database;
pub(crate) mod environment;
mod keys;
pub mod report;
pub(crate) mod secrets;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum, value_parser};
use queen_engine::{Deferring, Keepalive, Slots, SpoolConfig, Tls};
use queen_protocol::Subscription;
use queen_protocol::units::{bytes, milliseconds, seconds, some_bytes, some_milliseconds, some_seconds};

pub use access::Access;
pub use database::Database;
pub use report::Setting;
use secrets::Secret;

use crate::app::Options;
use crate::connections;
use crate::http::origins::Origin;
use crate::limits::Bounds;
use crate::tls::Files;

/// With large payloads a flight is slow long before it has many items; eight flights of this size fit a small machine.
const FLIGHT_BYTES_MAX: usize = 8 << 20;
/// Longer than a restart of PostgreSQL, shorter than the timeout that clients have for a push.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// A file is read whole.
const SPOOL_FILE_BYTES: u64 = 8 << 20;
/// For all request heads that are incomplete: room for a thousand of the largest.
const HEADS_BYTES: usize = 64 << 20;
/// Left for PostgreSQL, the spool, and connections that are being refused.
const FILES_RESERVED: usize = 256;
const BATCH_MAX: i64 = crate::http::pop::BATCH_MAX as i64;

const LISTENER: &str = "HTTP";
const DATABASE: &str = "Database";
const ENCRYPTION: &str = "Encryption at rest";
const POP: &str = "Pop";
const LANES: &str = "Lanes and caches";
const LOAD: &str = "Load";
const SPOOL: &str = "Spool";
const LIMITS: &str = "Limits";
const HOUSEKEEPING: &str = "Housekeeping";
const LOGS: &str = "Logs";
const TRACING: &str = "Tracing";

#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// All settings as `queen config` and the dashboard show them, with secrets masked; empty for commands that show none.
    #[arg(skip)]
    pub in_force: Arc<[Setting]>,

    /// Port of the HTTP API; 0 picks a free one.
    #[arg(long, env = "PORT", default_value_t = 6632, help_heading = LISTENER)]
    pub port: u16,
    /// Address to listen on. Addresses other than loopback require access control or `--insecure`.
    #[arg(long, env = "HOST", default_value = "127.0.0.1", help_heading = LISTENER)]
    pub host: String,
    /// Allow listening on addresses other than loopback without access control. Every client that reaches the port can then
    /// read, change and delete everything.
    #[arg(long, env = "QUEEN_INSECURE", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = LISTENER)]
    pub insecure: bool,
    /// Origins of web pages that may call a broker without access control, separated by commas, such as
    /// `https://app.example.com`. Their host names are accepted in `Host` as well. The broker's own pages need no entry.
    #[arg(long, env = "QUEEN_CORS_ORIGINS", value_name = "ORIGINS", value_delimiter = ',', help_heading = LISTENER)]
    pub cors_origins: Vec<Origin>,
    /// Worker threads; 0 uses half of the cores and leaves the others to PostgreSQL and clients on the same machine.
    #[arg(long, env = "NUM_WORKERS", default_value_t = 0, value_parser = value_parser!(u16).range(..=1024),
          help_heading = LISTENER)]
    pub workers: u16,
    /// Maximum size of a request body.
    #[arg(long, env = "QUEEN_MAX_BODY_BYTES", default_value = "64MiB", value_name = "BYTES",
          value_parser = some_bytes, help_heading = LISTENER)]
    pub max_body_bytes: usize,
    /// On shutdown, wait this long for requests in progress.
    #[arg(long, env = "QUEEN_DRAIN_SECONDS", default_value = "30s", value_name = "SECONDS",
          value_parser = seconds, help_heading = LISTENER)]
    pub drain: Duration,
    /// PEM file with the certificate chain of this broker. When set, the API is HTTPS only. The file is checked every few seconds
    /// and on SIGHUP; new connections use the new certificate.
    #[arg(long, env = "QUEEN_TLS_CERT", value_name = "FILE", help_heading = LISTENER)]
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, env = "QUEEN_TLS_KEY", value_name = "FILE", help_heading = LISTENER)]
    pub tls_key: Option<PathBuf>,
    /// PEM file with authorities. When set, clients need a certificate that one of them has issued.
    #[arg(long, env = "QUEEN_TLS_CLIENT_CA", value_name = "FILE", help_heading = LISTENER)]
    pub tls_client_ca: Option<PathBuf>,

    #[command(flatten)]
    pub access: Access,

    /// Connection to your PostgreSQL, as a URL or a keyword string. Without it, and without any `PG_*` setting, Queen runs its own
    /// PostgreSQL.
    #[arg(long, env = "DATABASE_URL", value_name = "URL", help_heading = DATABASE)]
    pub database_url: Option<String>,
    /// Path of a file that contains `DATABASE_URL`.
    #[arg(long, env = "DATABASE_URL_FILE", value_name = "FILE", help_heading = DATABASE)]
    pub database_url_file: Option<PathBuf>,
    /// Host of your PostgreSQL.
    #[arg(long, env = "PG_HOST", help_heading = DATABASE)]
    pub pg_host: Option<String>,
    /// Port of your PostgreSQL.
    #[arg(long, env = "PG_PORT", help_heading = DATABASE)]
    pub pg_port: Option<u16>,
    /// User of your PostgreSQL.
    #[arg(long, env = "PG_USER", help_heading = DATABASE)]
    pub pg_user: Option<String>,
    /// Password of `PG_USER`.
    #[arg(long, env = "PG_PASSWORD", help_heading = DATABASE)]
    pub pg_password: Option<Secret>,
    /// Path of a file that contains `PG_PASSWORD`.
    #[arg(long, env = "PG_PASSWORD_FILE", value_name = "FILE", help_heading = DATABASE)]
    pub pg_password_file: Option<PathBuf>,
    /// Database in your PostgreSQL.
    #[arg(long, env = "PG_DB", help_heading = DATABASE)]
    pub pg_db: Option<String>,
    /// Encrypt connections to your PostgreSQL. If not set, the `sslmode` of the URL applies.
    #[arg(long, env = "PG_USE_SSL", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
          value_parser = BoolishValueParser::new(), help_heading = DATABASE)]
    pub pg_use_ssl: Option<bool>,
    /// With encryption, refuse a server whose certificate is not trusted or is for another host name (`verify-full`).
    #[arg(long, env = "PG_SSL_REJECT_UNAUTHORIZED", value_name = "BOOL", num_args = 0..=1,
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = DATABASE)]
    pub pg_ssl_reject_unauthorized: Option<bool>,
    /// Authorities to trust: a PEM file, or `system`, which is also used if not set.
    #[arg(long, env = "PG_SSL_ROOT_CERT", value_name = "FILE", help_heading = DATABASE)]
    pub pg_ssl_root_cert: Option<String>,
    /// Data directory of the embedded PostgreSQL: by default `/var/lib/queen` for root, otherwise `queen` in `$XDG_DATA_HOME` or
    /// `~/.local/share`.
    #[arg(long, env = "QUEEN_DATA_DIR", value_name = "DIR", help_heading = DATABASE)]
    pub data_dir: Option<PathBuf>,
    /// Directory of the PostgreSQL programs; if not set, the usual places are searched.
    #[arg(long, env = "QUEEN_PG_BIN_DIR", value_name = "DIR", help_heading = DATABASE)]
    pub pg_bin_dir: Option<PathBuf>,
    /// Size of the connection pool for pushes, pops and acknowledgements; 0 derives it from the server's `max_connections`.
    #[arg(long, env = "SIDECAR_POOL_SIZE", default_value_t = 0,
          value_parser = value_parser!(u16).range(..=1000), help_heading = DATABASE)]
    pub sidecar_pool_size: u16,
    /// Cancel statements that run longer than this.
    #[arg(long, env = "DB_STATEMENT_TIMEOUT", default_value = "30s", value_name = "MS",
          value_parser = some_milliseconds, help_heading = DATABASE)]
    pub db_statement_timeout: Duration,
    /// Cancel list and statistics queries (queues, messages, dead letters, history) that run longer than this.
    #[arg(long, env = "QUEEN_READ_TIMEOUT_MS", default_value = "10s", value_name = "MS",
          value_parser = some_milliseconds, help_heading = DATABASE)]
    pub read_timeout: Duration,
    /// Cancel statements that wait longer than this for a lock.
    #[arg(long, env = "DB_LOCK_TIMEOUT", default_value = "10s", value_name = "MS",
          value_parser = some_milliseconds, help_heading = DATABASE)]
    pub db_lock_timeout: Duration,
    /// Timeout for opening a database connection.
    #[arg(long, env = "DB_CONNECTION_TIMEOUT", default_value = "2s", value_name = "MS",
          value_parser = some_milliseconds, help_heading = DATABASE)]
    pub db_connection_timeout: Duration,
    /// Send a TCP keepalive probe on a database connection after this time without traffic.
    #[arg(long, env = "DB_KEEPALIVES_IDLE", default_value = "60s", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = DATABASE)]
    pub db_keepalives_idle: Duration,
    /// Pause between unanswered keepalive probes.
    #[arg(long, env = "DB_KEEPALIVES_INTERVAL", default_value = "10s", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = DATABASE)]
    pub db_keepalives_interval: Duration,
    /// Unanswered keepalive probes before the connection counts as lost.
    #[arg(long, env = "DB_KEEPALIVES_COUNT", default_value_t = 3, value_parser = value_parser!(u32).range(1..=100),
          help_heading = DATABASE)]
    pub db_keepalives_count: u32,
    /// Close a database connection when data sent on it is not acknowledged for this long; 0 uses the default of the operating
    /// system.
    #[arg(long, env = "DB_TCP_USER_TIMEOUT_MS", default_value = "30s", value_name = "MS",
          value_parser = milliseconds, help_heading = DATABASE)]
    pub db_tcp_user_timeout: Duration,

    /// Key that encrypts payloads of queues with `encryptionEnabled`: 64 hexadecimal digits, or `ID:DIGITS`. Without an id, the
    /// first 8 digits of the key's SHA-256 are its id. Without a key, payloads are stored unencrypted.
    #[arg(long, env = "QUEEN_ENCRYPTION_KEY", value_name = "KEY", help_heading = ENCRYPTION)]
    pub encryption_key: Option<Secret>,
    /// Path of a file that contains `QUEEN_ENCRYPTION_KEY`.
    #[arg(long, env = "QUEEN_ENCRYPTION_KEY_FILE", value_name = "FILE", help_heading = ENCRYPTION)]
    pub encryption_key_file: Option<PathBuf>,
    /// Previous keys, separated by commas. They decrypt stored messages and encrypt nothing.
    #[arg(long, env = "QUEEN_ENCRYPTION_OLD_KEYS", value_name = "KEYS", help_heading = ENCRYPTION)]
    pub encryption_old_keys: Option<Secret>,
    /// Path of a file that contains `QUEEN_ENCRYPTION_OLD_KEYS`, separated by commas or lines.
    #[arg(long, env = "QUEEN_ENCRYPTION_OLD_KEYS_FILE", value_name = "FILE", help_heading = ENCRYPTION)]
    pub encryption_old_keys_file: Option<PathBuf>,

    /// Without a key, refuse messages for queues with `encryptionEnabled`, and refuse to set that option, instead of storing
    /// payloads unencrypted.
    #[arg(long, env = "QUEEN_ENCRYPTION_REQUIRED", value_name = "BOOL", num_args = 0..=1, default_value = "false",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = ENCRYPTION)]
    pub encryption_required: bool,

    /// How long a pop with `wait` waits if it has no `timeout`.
    #[arg(long, env = "DEFAULT_TIMEOUT", default_value = "30s", value_name = "MS",
          value_parser = milliseconds, help_heading = POP)]
    pub default_timeout: Duration,
    /// Messages per pop if it has no `batch`.
    #[arg(long, env = "DEFAULT_BATCH_SIZE", default_value_t = 1,
          value_parser = value_parser!(u32).range(1..=BATCH_MAX), help_heading = POP)]
    pub default_batch_size: u32,
    /// Where a new consumer group starts if its pop has no `subscriptionMode`: `all` or `new`.
    #[arg(long, env = "DEFAULT_SUBSCRIPTION_MODE", default_value = "all", value_name = "MODE",
          value_parser = subscription, help_heading = POP)]
    pub default_subscription_mode: Subscription,
    /// Maximum size of a pop response; larger batches are cut short.
    #[arg(long, env = "QUEEN_POP_MAX_BYTES", default_value = "64MiB", value_name = "BYTES",
          value_parser = some_bytes, help_heading = POP)]
    pub pop_max_bytes: usize,

    /// How long a lane collects requests before it calls the database; 0 calls as soon as a slot is free.
    #[arg(long, env = "SIDECAR_MICRO_BATCH_WAIT_MS", default_value = "0", value_name = "MS",
          value_parser = milliseconds, help_heading = LANES)]
    pub micro_batch_wait: Duration,
    /// Maximum items per database call.
    #[arg(long, env = "SIDECAR_MAX_ITEMS_PER_TX", default_value_t = 500,
          value_parser = value_parser!(u16).range(1..), help_heading = LANES)]
    pub max_items_per_tx: u16,
    /// Concurrent database calls of all lanes. Beyond this, a call waits up to 2 ms for others to finish and then leaves together
    /// with all that wait; 0 uses the number of cores, at least 2.
    #[arg(long, env = "QUEEN_FLIGHTS", default_value_t = 0, value_parser = value_parser!(u16).range(..=1000),
          help_heading = LANES)]
    pub flights: u16,
    /// Maximum concurrent database calls for pushes.
    #[arg(long, env = "QUEEN_PUSH_MAX_CONCURRENT", default_value_t = 4, value_parser = slots(),
          help_heading = LANES)]
    pub push_max_concurrent: u16,
    /// Maximum concurrent database calls for pops. Pops and acknowledgements share their calls; the larger of the two settings
    /// applies.
    #[arg(long, env = "QUEEN_POP_MAX_CONCURRENT", default_value_t = 4, value_parser = slots(),
          help_heading = LANES)]
    pub pop_max_concurrent: u16,
    /// Maximum concurrent database calls for acknowledgements. See `QUEEN_POP_MAX_CONCURRENT`.
    #[arg(long, env = "QUEEN_ACK_MAX_CONCURRENT", default_value_t = 4, value_parser = slots(),
          help_heading = LANES)]
    pub ack_max_concurrent: u16,
    /// Maximum concurrent database calls for lease extensions.
    #[arg(long, env = "QUEEN_RENEW_LEASE_MAX_CONCURRENT", default_value_t = 2, value_parser = slots(),
          help_heading = LANES)]
    pub renew_lease_max_concurrent: u16,
    /// Maximum concurrent transactions.
    #[arg(long, env = "QUEEN_TRANSACTION_MAX_CONCURRENT", default_value_t = 8, value_parser = slots(),
          help_heading = LANES)]
    pub transaction_max_concurrent: u16,
    /// Memory for the cache of recently written and read messages.
    #[arg(long, env = "QUEEN_SEGMENT_CACHE_BYTES", default_value = "32MiB", value_name = "BYTES",
          value_parser = bytes, help_heading = LANES)]
    pub segment_cache_bytes: usize,
    /// Memory for the cache of transaction ids that deduplication compares.
    #[arg(long, env = "QUEEN_DEDUP_CACHE_BYTES", default_value = "256MiB", value_name = "BYTES",
          value_parser = bytes, help_heading = LANES)]
    pub dedup_cache_bytes: usize,

    /// Defer pushes and acknowledgements while the database cannot keep up, instead of letting them wait.
    #[arg(long, env = "OPERATION_QUEUE_ENABLED", value_name = "BOOL", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = LOAD)]
    pub operation_queue_enabled: bool,
    /// Share of busy connections, or of busy push calls, above which pushes may be deferred. With `0` here and in
    /// `OPQ_PATIENCE_MS`, every push is deferred.
    #[arg(long, env = "OPQ_PUSH_UTILIZATION", default_value_t = 0.7, value_name = "SHARE",
          value_parser = share, help_heading = LOAD)]
    pub opq_push_utilization: f64,
    /// Share of busy connections, or of busy acknowledgement calls, above which acknowledgements may be deferred.
    #[arg(long, env = "OPQ_ACK_UTILIZATION", default_value_t = 0.8, value_name = "SHARE",
          value_parser = share, help_heading = LOAD)]
    pub opq_ack_utilization: f64,
    /// With this many deferred operations open, answer pushes that would have to be deferred with 429.
    #[arg(long, env = "OPQ_PUSH_MAX_DEPTH", default_value_t = 10_000, help_heading = LOAD)]
    pub opq_push_max_depth: u64,
    /// With this many deferred operations open, answer acknowledgements that would have to be deferred with 429.
    #[arg(long, env = "OPQ_ACK_MAX_DEPTH", default_value_t = 50_000, help_heading = LOAD)]
    pub opq_ack_max_depth: u64,
    /// How long requests have to wait for their database call before the broker counts as overloaded. A busy database alone does
    /// not count.
    #[arg(long, env = "OPQ_PATIENCE_MS", default_value = "500ms", value_name = "MS",
          value_parser = milliseconds, help_heading = LOAD)]
    pub opq_patience: Duration,
    /// How often to look for deferred operations while there are any. New ones are also announced.
    #[arg(long, env = "OPQ_INTERVAL_MS", default_value = "100ms", value_name = "MS",
          value_parser = some_milliseconds, help_heading = LOAD)]
    pub opq_interval: Duration,
    /// Partitions whose deferred operations are claimed at once.
    #[arg(long, env = "OPQ_CLAIM_LIMIT", default_value_t = 50, value_parser = value_parser!(u16).range(1..),
          help_heading = LOAD)]
    pub opq_claim_limit: u16,
    /// After this time, another broker takes over a deferred operation.
    #[arg(long, env = "OPQ_TIMEOUT_SECONDS", default_value = "30s", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = LOAD)]
    pub opq_timeout: Duration,
    /// How often a deferred operation is retried before it fails.
    #[arg(long, env = "OPQ_MAX_RETRIES", default_value_t = 3, value_parser = value_parser!(i32).range(0..=1000),
          help_heading = LOAD)]
    pub opq_max_retries: i32,
    /// How long finished operations remain visible in `/api/v1/operations`.
    #[arg(long, env = "OPQ_RETENTION_SECONDS", default_value = "1h", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = LOAD)]
    pub opq_retention: Duration,
    /// Format of a 202 if the request does not choose one: `compat` is the usual array with additional fields, `object` is one
    /// object for the request.
    #[arg(long, env = "OPQ_RESPONSE", default_value = "compat", value_enum, help_heading = LOAD)]
    pub opq_response: OpqResponse,

    /// Status of a pop that is refused because too many wait: 204, as if the queue were empty, or 429. Published consumers stop on
    /// a 429. A pop with `wait` is parked instead.
    #[arg(long, env = "POP_OVERLOAD_RESPONSE", default_value_t = 204, value_name = "STATUS",
          value_parser = overload_status, help_heading = LOAD)]
    pub pop_overload_response: u16,

    /// Maximum size of the path and the headers of a request together.
    #[arg(long, env = "QUEEN_MAX_HEADER_BYTES", default_value = "32KiB", value_name = "BYTES",
          value_parser = header_bytes, help_heading = LIMITS)]
    pub max_header_bytes: usize,
    /// Close a connection when a request's path and headers are incomplete this long after their first byte; 0 applies the idle
    /// timeout (120 s).
    #[arg(long, env = "QUEEN_HEADER_TIMEOUT_MS", default_value = "10s", value_name = "MS", value_parser = milliseconds,
          help_heading = LIMITS)]
    pub header_timeout: Duration,
    /// Maximum size of a message payload; 0 allows what fits into a body.
    #[arg(long, env = "QUEEN_MAX_MESSAGE_BYTES", default_value = "0", value_name = "BYTES", value_parser = bytes,
          help_heading = LIMITS)]
    pub max_message_bytes: usize,
    /// Memory for all request bodies at once, not counting those below 64 KiB; 0 is no limit.
    #[arg(long, env = "QUEEN_MAX_BODIES_BYTES", default_value = "512MiB", value_name = "BYTES", value_parser = bytes,
          help_heading = LIMITS)]
    pub max_bodies_bytes: usize,
    /// Cancel a request when no data of its body arrives for this long; 0 disables the timeout.
    #[arg(long, env = "QUEEN_BODY_IDLE_MS", default_value = "30s", value_name = "MS", value_parser = milliseconds,
          help_heading = LIMITS)]
    pub body_idle: Duration,
    /// Cancel a request when its body is not complete after this time; 0 disables the timeout.
    #[arg(long, env = "QUEEN_BODY_TIMEOUT_MS", default_value = "5m", value_name = "MS", value_parser = milliseconds,
          help_heading = LIMITS)]
    pub body_timeout: Duration,
    /// Cancel a request that takes longer than this once its body has arrived. The wait of a pop is added; 0 disables the timeout.
    #[arg(long, env = "QUEEN_REQUEST_TIMEOUT_MS", default_value = "60s", value_name = "MS", value_parser = milliseconds,
          help_heading = LIMITS)]
    pub request_timeout: Duration,
    /// Close a connection when the client has not read any of a pending response for this long; 0 disables the timeout.
    #[arg(long, env = "QUEEN_WRITE_TIMEOUT_MS", default_value = "60s", value_name = "MS", value_parser = milliseconds,
          help_heading = LIMITS)]
    pub write_timeout: Duration,
    /// Maximum client connections; 0 allows as many as the limit on open files permits, less those that the broker itself needs.
    #[arg(long, env = "QUEEN_MAX_CONNECTIONS", default_value_t = 0, help_heading = LIMITS)]
    pub max_connections: u32,
    /// Maximum connections from one address; 0 is no limit.
    #[arg(long, env = "QUEEN_MAX_CONNECTIONS_PER_CLIENT", default_value_t = 0, help_heading = LIMITS)]
    pub max_connections_per_client: u32,
    /// Maximum waiting pops of one client; 0 is no limit. Further ones get the status in `POP_OVERLOAD_RESPONSE`.
    #[arg(long, env = "QUEEN_MAX_PARKED_PER_CLIENT", default_value_t = 0, help_heading = LIMITS)]
    pub max_parked_per_client: u32,
    /// Maximum concurrent read requests of one client (`GET` below `/api/v1`, without pops), including seeks, redrives, purges of
    /// dead letters and refreshes of statistics; 0 is no limit. Further ones get a 429.
    #[arg(long, env = "QUEEN_MAX_READS_PER_CLIENT", default_value_t = 32, help_heading = LIMITS)]
    pub max_reads_per_client: u32,
    /// Maximum requests that wait for a database call of one kind. Further ones get a 429.
    #[arg(long, env = "QUEEN_MAX_WAITING", default_value_t = 100_000, value_parser = value_parser!(u32).range(1..),
          help_heading = LIMITS)]
    pub max_waiting: u32,
    /// Maximum partitions of a queue; 0 is no limit. Push items for a further partition fail.
    #[arg(long, env = "QUEEN_MAX_PARTITIONS_PER_QUEUE", default_value_t = 0,
          value_parser = value_parser!(i32).range(0..), help_heading = LIMITS)]
    pub max_partitions_per_queue: i32,
    /// Maximum number of queues; 0 is no limit. Push items for a further queue fail, and configuring one returns a 409.
    #[arg(long, env = "QUEEN_MAX_QUEUES", default_value_t = 0, value_parser = value_parser!(i32).range(0..),
          help_heading = LIMITS)]
    pub max_queues: i32,
    /// Create a queue with the first push to it. When off, pushes and pops of a queue that does not exist get a 404, and only
    /// `POST /api/v1/configure` creates queues.
    #[arg(long, env = "QUEEN_AUTO_CREATE", value_name = "BOOL", num_args = 0..=1, default_value = "true",
          default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = LIMITS)]
    pub auto_create: bool,
    /// Maximum messages per second that may be pushed to one queue through this broker, with bursts of twice as many; 0 is no limit.
    #[arg(long, env = "QUEEN_RATE_PER_QUEUE", default_value_t = 0, help_heading = LIMITS)]
    pub rate_per_queue: u32,
    /// Maximum messages per second for single queues, as `name=rate` separated by commas; 0 is no limit.
    #[arg(long, env = "QUEEN_RATE_QUEUES", value_name = "RATES", value_delimiter = ',', value_parser = queue_rate,
          help_heading = LIMITS)]
    pub rate_queues: Vec<(String, u32)>,
    /// Maximum requests per second of one client through this broker, with bursts of twice as many; 0 is no limit.
    #[arg(long, env = "QUEEN_RATE_PER_CLIENT", default_value_t = 0, help_heading = LIMITS)]
    pub rate_per_client: u32,

    /// Directory of the spool, which holds pushes accepted while the database is unreachable; by default `spool` in the data
    /// directory.
    #[arg(long, env = "FILE_BUFFER_DIR", value_name = "DIR", help_heading = SPOOL)]
    pub file_buffer_dir: Option<PathBuf>,
    /// Maximum size of the spool; 0 disables it, so that pushes fail while the database is unreachable.
    #[arg(long, env = "FILE_BUFFER_MAX_BYTES", default_value = "1GiB", value_name = "BYTES", value_parser = bytes,
          help_heading = SPOOL)]
    pub file_buffer_max_bytes: usize,
    /// Requests per file of the spool. A file is removed once all its requests are in the database.
    #[arg(long, env = "FILE_BUFFER_EVENTS_PER_FILE", default_value_t = 10_000,
          value_parser = value_parser!(u32).range(1..), help_heading = SPOOL)]
    pub file_buffer_events_per_file: u32,

    /// How often expired messages are deleted.
    #[arg(long, env = "RETENTION_INTERVAL", default_value = "5m", value_name = "MS",
          value_parser = some_milliseconds, help_heading = HOUSEKEEPING)]
    pub retention_interval: Duration,
    /// Partitions that retention processes at once.
    #[arg(long, env = "RETENTION_BATCH_SIZE", default_value_t = 1000,
          value_parser = value_parser!(i32).range(1..), help_heading = HOUSEKEEPING)]
    pub retention_batch_size: i32,
    /// How often messages that have waited longer than `maxWaitTimeSeconds` are deleted.
    #[arg(long, env = "EVICTION_INTERVAL", default_value = "1m", value_name = "MS",
          value_parser = some_milliseconds, help_heading = HOUSEKEEPING)]
    pub eviction_interval: Duration,
    /// Delete empty partitions that were not used for this many days.
    #[arg(long, env = "PARTITION_CLEANUP_DAYS", default_value_t = 30, value_name = "DAYS",
          value_parser = value_parser!(u32).range(1..=36_500), help_heading = HOUSEKEEPING)]
    pub partition_cleanup_days: u32,
    /// How often a broker adds its changes to the counts of queues in the database. Requests to the same broker see them at once.
    #[arg(long, env = "STATS_INTERVAL_MS", default_value = "1s", value_name = "MS",
          value_parser = some_milliseconds, help_heading = HOUSEKEEPING)]
    pub stats_interval: Duration,
    /// How often queues that change are counted again, which corrects counts that are off.
    #[arg(long, env = "STATS_RECONCILE_INTERVAL_MS", default_value = "2m", value_name = "MS",
          value_parser = some_milliseconds, help_heading = HOUSEKEEPING)]
    pub stats_reconcile_interval: Duration,
    /// How often the broker samples its CPU, memory, connections and parked pops.
    #[arg(long, env = "METRICS_SAMPLE_INTERVAL_MS", default_value = "1s", value_name = "MS",
          value_parser = some_milliseconds, help_heading = HOUSEKEEPING)]
    pub metrics_sample_interval: Duration,
    /// How often the broker stores its samples and its figures per minute. Reading the history stores them at once.
    #[arg(long, env = "METRICS_AGGREGATE_INTERVAL_S", default_value = "1m", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = HOUSEKEEPING)]
    pub metrics_aggregate_interval: Duration,
    /// Keep the history of brokers and queues, traces, events of traced messages and finished redrives for this many days.
    #[arg(long, env = "METRICS_RETENTION_DAYS", default_value_t = 90, value_name = "DAYS",
          value_parser = value_parser!(u32).range(1..=36_500), help_heading = HOUSEKEEPING)]
    pub metrics_retention_days: u32,
    /// Size at which the log starts a new extent.
    #[arg(long, env = "QUEEN_EXTENT_BYTES", default_value = "256MiB", value_name = "BYTES",
          value_parser = some_bytes, help_heading = HOUSEKEEPING)]
    pub extent_bytes: usize,
    /// Age at which the log starts a new extent.
    #[arg(long, env = "QUEEN_EXTENT_SECONDS", default_value = "1h", value_name = "SECONDS",
          value_parser = some_seconds, help_heading = HOUSEKEEPING)]
    pub extent_age: Duration,

    /// How often the broker examines the database as `queen doctor` does; 0 disables it.
    #[arg(long, env = "QUEEN_DOCTOR_SECONDS", default_value = "1m", value_name = "SECONDS",
          value_parser = seconds, help_heading = HOUSEKEEPING)]
    pub doctor_interval: Duration,

    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,queen_engine=debug`.
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_name = "LEVEL", help_heading = LOGS)]
    pub log_level: String,
    /// Format of log lines.
    #[arg(long, env = "LOG_FORMAT", default_value = "text", value_enum, help_heading = LOGS)]
    pub log_format: LogFormat,

    /// Collector that receives spans, by OTLP over HTTP with protobuf, such as `http://localhost:4318`. `/v1/traces` is appended.
    /// If not set, nothing is exported.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL", value_parser = collector,
          help_heading = TRACING)]
    pub otlp_endpoint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpqResponse {
    Compat,
    Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Settings {
    /// The one place where settings become the engine's configuration.
    pub fn engine(&self, database: String, tls: Tls) -> Result<queen_engine::Config> {
        Ok(queen_engine::Config {
            database,
            tls,
            keepalive: Keepalive {
                idle: self.db_keepalives_idle,
                interval: self.db_keepalives_interval,
                count: self.db_keepalives_count,
                user_timeout: self.db_tcp_user_timeout,
            },
            keys: keys::read(self)?,
            encryption_required: self.encryption_required,
            connections: usize::from(self.sidecar_pool_size),
            flights: match self.flights {
                0 => std::thread::available_parallelism().map_or(2, usize::from).max(2),
                flights => usize::from(flights),
            },
            connect_timeout: self.db_connection_timeout,
            statement_timeout: self.db_statement_timeout,
            read_timeout: self.read_timeout,
            lock_timeout: self.db_lock_timeout,
            retry_for: RETRY_FOR,
            linger: self.micro_batch_wait,
            flight_items_max: usize::from(self.max_items_per_tx),
            flight_bytes_max: FLIGHT_BYTES_MAX,
            waiting_max: self.max_waiting as usize,
            own_server: false,
            partitions_max: self.max_partitions_per_queue,
            queues_max: self.max_queues,
            auto_create: self.auto_create,
            slots: Slots {
                push: usize::from(self.push_max_concurrent),
                pop: usize::from(self.pop_max_concurrent),
                ack: usize::from(self.ack_max_concurrent),
                renew: usize::from(self.renew_lease_max_concurrent),
                transaction: usize::from(self.transaction_max_concurrent),
            },
            segment_cache_bytes: self.segment_cache_bytes,
            dedup_cache_bytes: self.dedup_cache_bytes,
            pop_bytes_max: self.pop_max_bytes,
            retention_interval: self.retention_interval,
            eviction_interval: self.eviction_interval,
            retention_batch: self.retention_batch_size,
            partition_cleanup: Duration::from_secs(u64::from(self.partition_cleanup_days) * 86_400),
            history_retention: Duration::from_secs(u64::from(self.metrics_retention_days) * 86_400),
            extent_bytes: i64::try_from(self.extent_bytes).unwrap_or(i64::MAX),
            extent_age: self.extent_age,
            statistics_interval: self.stats_interval,
            statistics_reconcile: self.stats_reconcile_interval,
            doctor_interval: self.doctor_interval,
            deferring: Deferring {
                enabled: self.operation_queue_enabled,
                push_utilisation: self.opq_push_utilization,
                ack_utilisation: self.opq_ack_utilization,
                push_depth_max: self.opq_push_max_depth,
                ack_depth_max: self.opq_ack_max_depth,
                patience: self.opq_patience,
                interval: self.opq_interval,
                claim_limit: usize::from(self.opq_claim_limit),
                timeout: self.opq_timeout,
                retries_max: self.opq_max_retries,
                retention: self.opq_retention,
            },
            name: connections::name(self.port),
            metrics_sample: self.metrics_sample_interval,
            metrics_aggregate: self.metrics_aggregate_interval,
            spool: self.file_buffer_dir.clone().and_then(|dir| self.spool(dir)),
        })
    }

    /// `None` if the API is plain HTTP.
    pub fn tls(&self) -> Result<Option<Files>> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(Files {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            })),
            (None, None) if self.tls_client_ca.is_none() => Ok(None),
            _ => {
                bail!(
                    "QUEEN_TLS_CERT and QUEEN_TLS_KEY must be set together, and QUEEN_TLS_CLIENT_CA requires both"
                )
            }
        }
    }

    /// `None` if the spool is disabled.
    pub fn spool(&self, dir: PathBuf) -> Option<SpoolConfig> {
        let config = SpoolConfig {
            dir,
            bytes_max: self.file_buffer_max_bytes as u64,
            file_bytes: SPOOL_FILE_BYTES,
            file_records: u64::from(self.file_buffer_events_per_file),
        };
        (config.bytes_max > 0).then_some(config)
    }

    /// The options of the HTTP side. Fails if access control cannot work as configured.
    pub fn options(&self) -> Result<Options> {
        let (one, all) = (self.max_body_bytes, self.max_bodies_bytes);
        if all != 0 && all < one {
            bail!(
                "QUEEN_MAX_BODIES_BYTES is {all}; it must be at least QUEEN_MAX_BODY_BYTES, which is {one}"
            );
        }
        Ok(Options {
            body_bytes_max: self.max_body_bytes,
            pop_timeout: self.default_timeout,
            pop_batch: self.default_batch_size,
            subscription: self.default_subscription_mode,
            drain: self.drain,
            operation_object: self.opq_response == OpqResponse::Object,
            pop_overload_empty: self.pop_overload_response == 204,
            otlp_endpoint: self.otlp_endpoint.clone(),
            bounds: self.bounds(),
            tls: None,
            guard: self.access.guard()?,
            cors_origins: self.cors_origins.clone(),
            host: self.host.clone(),
            settings: self.in_force.clone(),
        })
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            header_bytes: self.max_header_bytes,
            heads_bytes: HEADS_BYTES,
            header_time: self.header_timeout,
            message_bytes: self.max_message_bytes,
            bodies_bytes: self.max_bodies_bytes,
            body_idle: self.body_idle,
            body_total: self.body_timeout,
            request: self.request_timeout,
            write_idle: self.write_timeout,
            connections: self.max_connections as usize,
            connections_per_client: self.max_connections_per_client as usize,
            files_reserved: FILES_RESERVED + usize::from(self.sidecar_pool_size),
            parked_per_client: self.max_parked_per_client as usize,
            reads_per_client: self.max_reads_per_client as usize,
            queue_rate: self.rate_per_queue,
            queue_rates: self.rate_queues.iter().cloned().collect(),
            client_rate: self.rate_per_client,
        }
    }
}

fn overload_status(text: &str) -> Result<u16, String> {
    match text {
        "204" => Ok(204),
        "429" => Ok(429),
        _ => Err("must be 204 or 429".to_owned()),
    }
}

/// Requests of published clients need up to a kilobyte.
fn header_bytes(text: &str) -> Result<usize, String> {
    bytes(text).and_then(|bytes| match bytes {
        1024..=1_048_576 => Ok(bytes),
        _ => Err("must be from 1KiB to 1MiB".to_owned()),
    })
}

fn queue_rate(text: &str) -> Result<(String, u32), String> {
    let (queue, rate) = text.rsplit_once('=').ok_or_else(|| "must be name=rate".to_owned())?;
    let rate = rate.parse().map_err(|_| "the rate must be a whole number".to_owned())?;
    Ok((queue.to_owned(), rate))
}

fn collector(text: &str) -> Result<String, String> {
    let uri: axum::http::Uri = text.parse().map_err(|_| "must be a URL".to_owned())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(text.to_owned()),
        _ => Err("must start with http:// or https://".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "must be a number between 0 and 1".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be between 0 and 1".to_owned()) }
}

fn slots() -> clap::builder::RangedI64ValueParser<u16> {
    value_parser!(u16).range(1..=1000)
}

/// In a request any unknown word means `all`; in a setting it is an error.
fn subscription(text: &str) -> Result<Subscription, String> {
    match text {
        "all" | "from_beginning" => Ok(Subscription::All),
        "new" | "new-only" | "new_only" | "newonly" => Ok(Subscription::New),
        _ => Err("must be `all` or `new`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let settings = Cli::parse_from(["queen"]).unwrap().settings;
        let config = settings.engine("host=x".to_owned(), Tls::OFF).unwrap();
        assert_eq!((settings.host.as_str(), settings.port), ("127.0.0.1", 6632));
        assert_eq!(settings.options().unwrap().body_bytes_max, 67_108_864);
        assert_eq!((config.flight_items_max, config.linger), (500, Duration::ZERO));
        assert_eq!(config.statement_timeout, Duration::from_secs(30));
        assert_eq!(config.retention_interval, Duration::from_millis(300_000));
        let keepalive = config.keepalive;
        assert_eq!((keepalive.idle.as_secs(), keepalive.interval.as_secs(), keepalive.count), (60, 10, 3));
        assert_eq!((keepalive.user_timeout.as_millis(), config.keys.can_seal()), (30_000, false));
        assert_eq!(settings.default_subscription_mode, Subscription::All);
        assert_eq!((config.metrics_sample.as_millis(), config.metrics_aggregate.as_secs()), (1000, 60));
        assert_eq!(config.history_retention.as_secs(), 90 * 86_400);
        assert_eq!((config.extent_bytes, config.extent_age.as_secs()), (268_435_456, 3600));
    }

    #[test]
    fn one_body_fits_into_the_memory_of_all() {
        let options = |all| {
            let flags = ["queen", "--max-body-bytes", "1MiB", "--max-bodies-bytes", all];
            Cli::parse_from(flags).unwrap().settings.options()
        };
        assert!(options("1MiB").is_ok() && options("0").is_ok());
        let error = options("1000KiB").unwrap_err().to_string();
        assert!(
            error.contains("QUEEN_MAX_BODIES_BYTES") && error.contains("QUEEN_MAX_BODY_BYTES"),
            "{error}"
        );
    }

    #[test]
    fn a_certificate_and_its_key_belong_together() {
        let tls = |flags: &[&str]| Cli::parse_from(["queen"].iter().chain(flags)).unwrap().settings.tls();
        assert!(tls(&[]).unwrap().is_none());
        assert!(tls(&["--tls-cert", "c", "--tls-key", "k"]).unwrap().is_some());
        for half in [["--tls-cert", "c"], ["--tls-key", "k"], ["--tls-client-ca", "a"]] {
            assert!(tls(&half).is_err(), "{half:?}");
        }
    }

    #[test]
    fn a_bad_value_is_refused_and_the_setting_is_named() {
        for (flag, value) in [
            ("--port", "70000"),
            ("--retention-interval", "0"),
            ("--default-batch-size", "20000"),
            ("--default-subscription-mode", "nwe"),
            ("--push-max-concurrent", "0"),
            ("--max-body-bytes", "lots"),
            ("--pg-use-ssl", "maybe"),
            ("--log-format", "xml"),
            ("--otlp-endpoint", "localhost:4318"),
            ("--metrics-retention-days", "0"),
            ("--max-header-bytes", "10"),
            ("--rate-queues", "orders"),
            ("--db-keepalives-count", "0"),
            ("--jwt-algorithm", "none"),
            ("--jwt-jwks-url", "https://user:pass@issuer/keys"),
        ] {
            let error = Cli::parse_from(["queen", flag, value]).unwrap_err();
            assert!(error.to_string().contains(flag), "{error}");
        }
    }
}
