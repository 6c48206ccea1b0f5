//! Limits on what one client may use, so that others are not affected. They are counted per process: several brokers together
//! allow several times as much. A client is the subject of a token or API key, or else the address of the connection. Headers such
//! as `X-Forwarded-For` are ignored, because any client can send them.

pub mod admission;
mod buckets;
pub mod budget;
mod counted;
mod framing;
pub mod head;
pub mod pace;
pub mod reads;
pub mod stream;
pub mod time;

use std::collections::HashMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use queen_protocol::{ErrorCode, PushItem};

use self::admission::Admission;
use self::buckets::Buckets;
use self::budget::Budget;
use self::counted::{Counted, Place};
use crate::auth::Caller;
use crate::http::error::ApiError;

/// The limits from the settings. Zero is no limit.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    pub header_bytes: usize,
    /// For all incomplete heads together.
    pub heads_bytes: usize,
    /// From the first to the last byte of a head.
    pub header_time: Duration,
    pub message_bytes: usize,
    /// For all bodies in memory together.
    pub bodies_bytes: usize,
    /// Between two chunks of a body, and for the whole body.
    pub body_idle: Duration,
    pub body_total: Duration,
    pub request: Duration,
    pub write_idle: Duration,
    pub connections: usize,
    pub connections_per_client: usize,
    /// Open files that are not available to connections.
    pub files_reserved: usize,
    pub parked_per_client: usize,
    pub reads_per_client: usize,
    /// Messages per second and queue, and exceptions by queue.
    pub queue_rate: u32,
    pub queue_rates: HashMap<String, u32>,
    /// Requests per second.
    pub client_rate: u32,
}

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Headers,
    Heads,
    HeaderTime,
    Body,
    Bodies,
    Message,
    BodyTime,
    RequestTime,
    WriteTime,
    Connections,
    ClientConnections,
    ClientParked,
    ClientReads,
    QueueRate,
    ClientRate,
}

impl Limit {
    pub const ALL: [Self; 15] = [
        Self::Headers,
        Self::Heads,
        Self::HeaderTime,
        Self::Body,
        Self::Bodies,
        Self::Message,
        Self::BodyTime,
        Self::RequestTime,
        Self::WriteTime,
        Self::Connections,
        Self::ClientConnections,
        Self::ClientParked,
        Self::ClientReads,
        Self::QueueRate,
        Self::ClientRate,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Heads => "heads",
            Self::HeaderTime => "header_time",
            Self::Body => "body",
            Self::Bodies => "bodies",
            Self::Message => "message",
            Self::BodyTime => "body_time",
            Self::RequestTime => "request_time",
            Self::WriteTime => "write_time",
            Self::Connections => "connections",
            Self::ClientConnections => "client_connections",
            Self::ClientParked => "client_parked",
            Self::ClientReads => "client_reads",
            Self::QueueRate => "queue_rate",
            Self::ClientRate => "client_rate",
        }
    }
}

/// Who a limit applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Client {
    Subject(Arc<str>),
    Address(IpAddr),
}

impl From<&Caller> for Client {
    fn from(caller: &Caller) -> Self {
        match &caller.subject {
            Some(subject) => Self::Subject(subject.clone()),
            None => Self::Address(caller.address.to_canonical()),
        }
    }
}

pub struct Limits {
    pub bounds: Bounds,
    pub admission: Admission,
    pub bodies: Arc<Budget>,
    pub heads: Arc<Budget>,
    parked: Arc<Counted<Client>>,
    reads: Arc<Counted<Client>>,
    read_turns: reads::Turns,
    queues: Buckets<String>,
    clients: Buckets<Client>,
    refused: [AtomicU64; Limit::ALL.len()],
}

impl Limits {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            admission: Admission::new(&bounds),
            bodies: Budget::new(bounds.bodies_bytes),
            heads: Budget::heads(bounds.heads_bytes),
            parked: Counted::new(bounds.parked_per_client),
            reads: Counted::new(bounds.reads_per_client),
            read_turns: reads::Turns::default(),
            queues: Buckets::new(),
            clients: Buckets::new(),
            refused: Default::default(),
            bounds,
        }
    }

    pub fn count(&self, limit: Limit) {
        self.refused[limit as usize].fetch_add(1, Relaxed);
    }

    pub fn refused(&self, limit: Limit) -> u64 {
        self.refused[limit as usize].load(Relaxed)
    }

    /// Checks a payload that is to be stored.
    pub fn check_payload(&self, what: impl Display, payload: &str) -> Result<(), ApiError> {
        let (bytes, limit) = (payload.len(), self.bounds.message_bytes);
        if bytes <= limit || limit == 0 {
            return Ok(());
        }
        self.count(Limit::Message);
        let text = format!("{what}: the payload has {bytes} bytes; the limit is {limit}");
        Err(ApiError::new(ErrorCode::PayloadTooLarge, text))
    }

    /// Called before anything is stored. One message that is too large, or one queue that exceeds its rate, refuses the request.
    pub fn admit_push<'a, 'b: 'a, I>(&self, items: impl Fn() -> I) -> Result<(), ApiError>
    where
        I: Iterator<Item = &'a PushItem<'b>>,
    {
        if self.bounds.message_bytes > 0 {
            for (index, item) in items().enumerate() {
                self.check_payload(format_args!("items[{index}]"), item.payload())?;
            }
        }
        if self.bounds.queue_rate == 0 && self.bounds.queue_rates.is_empty() {
            return Ok(());
        }
        let mut counts: HashMap<&str, u32> = HashMap::new();
        for item in items() {
            *counts.entry(item.queue.as_ref()).or_default() += 1;
        }
        let asks: Vec<(&str, Duration)> =
            counts.into_iter().filter_map(|(queue, count)| Some((queue, self.cost(queue, count)?))).collect();
        self.queues.take(Instant::now(), &asks).map_err(|short| {
            self.count(Limit::QueueRate);
            let text = format!("pushes to queue {:?} exceed its rate limit", short.key);
            ApiError::rate_limited(text, short.wait)
        })
    }

    /// How much time of the queue's rate so many messages take; `None` without a rate.
    fn cost(&self, queue: &str, count: u32) -> Option<Duration> {
        let rate = self.bounds.queue_rates.get(queue).copied().unwrap_or(self.bounds.queue_rate);
        (rate > 0).then(|| Duration::from_secs(1) * count / rate)
    }

    pub fn paces_clients(&self) -> bool {
        self.bounds.client_rate > 0
    }

    /// Takes one request from the client's rate, or returns how long to wait.
    fn take_request(&self, client: &Client) -> Result<(), Duration> {
        let cost = Duration::from_secs(1) / self.bounds.client_rate.max(1);
        self.clients.take(Instant::now(), &[(client, cost)]).map_err(|short| short.wait)
    }

    /// A place among the waiting pops of a client, until it is dropped.
    pub fn park(&self, client: Client) -> Option<Place<Client>> {
        self.parked.enter(client)
    }

    /// Counts a refusal and returns it.
    pub fn too_fast(&self, wait: Duration) -> ApiError {
        self.count(Limit::ClientRate);
        let rate = self.bounds.client_rate;
        ApiError::rate_limited(format!("more than {rate} requests per second"), wait)
    }

    pub fn too_many_parked(&self) -> ApiError {
        self.count(Limit::ClientParked);
        let limit = self.bounds.parked_per_client;
        let text = format!(
            "{limit} pops of this client are waiting; the limit is {limit} (QUEEN_MAX_PARKED_PER_CLIENT)"
        );
        ApiError::rate_limited(text, Duration::from_secs(1))
    }
}
