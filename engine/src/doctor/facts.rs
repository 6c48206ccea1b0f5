//! The facts that `queen.diagnose` returns, as types. No judgment here.

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub struct Facts {
    /// Seconds since 1970, by the database's clock.
    pub now: f64,
    pub version: i32,
    pub version_text: String,
    pub read_only: bool,
    /// Whether our role may see the activity of other roles.
    pub sees_others: bool,
    pub settings: Settings,
    pub checkpoints: Checkpoints,
    pub wraparound: Wraparound,
    pub sessions: Sessions,
    /// What keeps old row versions from being removed, oldest first.
    pub holders: Vec<Holder>,
    pub slots: Vec<Slot>,
    pub tables: Vec<Table>,
    pub indexes: Vec<String>,
    pub invalid_indexes: Vec<String>,
    /// Sessions that hold locks that Queen waits for.
    pub blockers: Vec<Blocker>,
    pub waits: Vec<Wait>,
    /// Sessions that use the log, or hold a table lock on one of Queen's tables.
    pub log_users: Vec<LogUser>,
    /// `None` if a table lock prevents reading.
    pub contents: Option<Contents>,
    /// `None` if there are too many to count quickly.
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
    /// WAL that it needs was removed.
    pub lost: bool,
    /// Age in transactions of the row versions that it keeps, if any.
    pub transactions: Option<i64>,
}

/// All extents count as one table, `segments`.
#[derive(Debug, Clone, Deserialize)]
pub struct Table {
    pub name: String,
    pub live: i64,
    pub dead: i64,
    pub updates: i64,
    pub hot_updates: i64,
    /// Size with indexes and TOAST, at the last vacuum.
    pub bytes: i64,
    pub autovacuum_off: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Blocker {
    pub pid: i32,
    pub waiting: i64,
    /// The longest wait.
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
    /// Some of the queues that require encryption.
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
    /// Why the latest of them failed.
    pub error: Option<String>,
}

/// Messages pushed from SQL that are not in the log yet.
#[derive(Debug, Clone, Deserialize)]
pub struct Inbox {
    pub waiting: i64,
    pub oldest_seconds: Option<f64>,
    pub refused: i64,
    /// Why the latest of them was refused.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Extents {
    pub count: i64,
    pub oldest_seconds: Option<f64>,
    /// Number of partitions of the table `segments`.
    pub tables: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Leases {
    pub live: i64,
    /// Since the messages were delivered.
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
    /// How long the oldest holder has kept old row versions, if its age is known.
    pub fn oldest_xmin_seconds(&self) -> f64 {
        self.holders.iter().filter_map(|holder| holder.seconds).fold(0.0, f64::max)
    }

    /// The same in transactions, which is known for replication slots too.
    pub fn oldest_xmin_transactions(&self) -> i64 {
        let holders = self.holders.iter().filter_map(|holder| holder.transactions);
        holders.chain(self.slots.iter().filter_map(|slot| slot.transactions)).max().unwrap_or(0)
    }
}
