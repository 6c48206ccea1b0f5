//! What `queen.diagnose` answers, field by field. It judges nothing.

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub struct Facts {
    /// Seconds since 1970, by the database's clock.
    pub now: f64,
    pub version: i32,
    pub version_text: String,
    pub read_only: bool,
    /// Whether the role may see what other roles do.
    pub sees_others: bool,
    pub settings: Settings,
    pub checkpoints: Checkpoints,
    pub wraparound: Wraparound,
    pub sessions: Sessions,
    /// Who keeps old row versions from being removed, the oldest first.
    pub holders: Vec<Holder>,
    pub slots: Vec<Slot>,
    pub tables: Vec<Table>,
    pub indexes: Vec<String>,
    pub invalid_indexes: Vec<String>,
    /// Sessions that hold locks Queen waits for.
    pub blockers: Vec<Blocker>,
    pub waits: Vec<Wait>,
    /// Sessions that use the log, or lock a table of Queen as a whole.
    pub log_users: Vec<LogUser>,
    /// `None` if a table is locked as a whole.
    pub contents: Option<Contents>,
    /// `None` if there are too many to count them by the way.
    pub leases: Option<Leases>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Settings {
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    pub autovacuum: bool,
    pub max_wal_bytes: i64,
    pub shared_buffers_bytes: i64,
    pub max_connections: i64,
    pub reserved_connections: i64,
    pub freeze_max_age: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Checkpoints {
    pub timed: i64,
    pub requested: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Wraparound {
    pub transactions: i64,
    pub multixacts: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Sessions {
    /// Of all databases of the server.
    pub clients: i64,
    pub queen: i64,
    pub brokers: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Holder {
    /// `session`, `standby` or `prepared`.
    pub kind: String,
    pub name: String,
    pub pid: Option<i32>,
    pub owner: Option<String>,
    pub state: Option<String>,
    pub seconds: Option<f64>,
    pub transactions: Option<i64>,
    pub query: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Slot {
    pub name: String,
    pub active: bool,
    pub wal_bytes: i64,
    /// What it needs is gone already.
    pub lost: bool,
    /// How old the row versions are that it keeps, if it keeps any.
    pub transactions: Option<i64>,
}

/// Extents are added up as `segments`.
#[derive(Debug, Clone, Deserialize)]
pub struct Table {
    pub name: String,
    pub live: i64,
    pub dead: i64,
    pub updates: i64,
    pub hot_updates: i64,
    /// With indexes and TOAST, at the last vacuum.
    pub bytes: i64,
    pub autovacuum_off: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Blocker {
    pub pid: i32,
    pub waiting: i64,
    /// The longest of those that wait.
    pub seconds: f64,
    pub name: Option<String>,
    pub state: Option<String>,
    pub transaction_seconds: Option<f64>,
    pub query: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Wait {
    pub event: String,
    pub waiting: i64,
    pub active: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct LogUser {
    pub pid: i32,
    pub name: String,
    pub seconds: Option<f64>,
    pub query: Option<String>,
    pub exclusive: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Contents {
    /// Queues that ask for encryption, some of them.
    #[serde(default)]
    pub encrypted_queues: Vec<String>,
    pub schema: i32,
    pub deferred: Deferred,
    pub inbox: Inbox,
    pub maintenance: bool,
    pub pop_maintenance: bool,
    pub extents: Extents,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Deferred {
    pub open: i64,
    pub oldest_seconds: Option<f64>,
    pub failed: i64,
    /// Why the last of those failed.
    pub error: Option<String>,
}

/// Messages pushed with SQL that are not in the log yet.
#[derive(Debug, Clone, Deserialize)]
pub struct Inbox {
    pub waiting: i64,
    pub oldest_seconds: Option<f64>,
    pub refused: i64,
    /// Why the last of those was.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Extents {
    pub count: i64,
    pub oldest_seconds: Option<f64>,
    /// Tables that are part of the log.
    pub tables: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Leases {
    pub live: i64,
    /// Since the messages were handed out.
    pub oldest_seconds: Option<f64>,
    pub oldest: Option<Leased>,
    /// Held for deferred acknowledgements that do not exist.
    pub orphaned: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Leased {
    pub queue: String,
    pub partition: String,
    pub group: String,
}

impl Facts {
    /// How long something has kept old row versions, as far as its age is known.
    pub fn oldest_xmin_seconds(&self) -> f64 {
        self.holders.iter().filter_map(|holder| holder.seconds).fold(0.0, f64::max)
    }

    /// The same in transactions, which is also known of replication slots.
    pub fn oldest_xmin_transactions(&self) -> i64 {
        let holders = self.holders.iter().filter_map(|holder| holder.transactions);
        holders.chain(self.slots.iter().filter_map(|slot| slot.transactions)).max().unwrap_or(0)
    }
}
