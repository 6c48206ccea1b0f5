//! Types shared by plan, shadow and workers.

use std::time::SystemTime;

use uuid::Uuid;

pub const QUEUE: &str = "orders";
pub const PARTITIONS: usize = 4;
/// A message becomes a dead letter after this many failures and one more.
pub const RETRY_LIMIT: i32 = 1;
/// Lease time of a pop that sets none.
pub const LEASE_SECONDS: i32 = 1;
pub const LEASE_SECONDS_MAX: i32 = 2;

/// Microseconds of the clock that PostgreSQL and this process share, because they run on one machine.
pub type Micros = i64;

/// A call of an engine. Calls are numbered in the order in which they began.
pub type Op = u64;

/// The index of a partition; its name is `p` and the index.
pub type Partition = usize;

/// The payload of a message: a number that no other message of the workload has.
pub type Serial = u64;

#[expect(clippy::disallowed_methods, reason = "the shadow is told the time; here is where it comes from")]
pub fn now() -> Micros {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock after 1970");
    since.as_micros() as Micros
}

pub fn partition_name(partition: Partition) -> String {
    format!("p{partition}")
}

pub fn partition_index(name: &str) -> Option<Partition> {
    name.strip_prefix('p')?.parse().ok().filter(|index| *index < PARTITIONS)
}

/// The engine of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    Healthy,
    /// An engine whose connections break. It retries by itself, so even a refused call may have been executed.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Queue mode.
    Queue,
    Billing,
    /// The only group that seeks.
    Wander,
    /// Acknowledges at delivery, through the healthy engine: exactly once.
    Auto,
    /// Like `Auto`, through the broken engine: at most once.
    Far,
}

impl Group {
    pub const ALL: [Self; 5] = [Self::Queue, Self::Billing, Self::Wander, Self::Auto, Self::Far];

    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => queen_protocol::QUEUE_MODE,
            Self::Billing => "billing",
            Self::Wander => "wander",
            Self::Auto => "auto",
            Self::Far => "far",
        }
    }

    pub fn is_auto(self) -> bool {
        matches!(self, Self::Auto | Self::Far)
    }
}

/// The offset in a message id, because `#12` is easier to read than a UUID.
pub fn offset(id: Uuid) -> u64 {
    let bits = id.as_u128();
    let high = (bits >> 64) & 0xfff;
    let low = (bits >> 32) & 0x3fff_ffff;
    (high << 30 | low) as u64
}

/// No message that is stored by this time has a higher id.
pub fn id_ceiling(at: Micros) -> Uuid {
    Uuid::from_u128((at as u128 / 1000) << 80 | ((1 << 80) - 1))
}
