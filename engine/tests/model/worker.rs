//! Executes planned steps on the engines and reports requests and responses to the shadow.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use queen_engine::{Error, Seek, SeekTo};
use queen_protocol::{PopFilter, PopRequest, PushBody, PushStatus, Subscription, parse_time};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::plan::{Item, Pop, Step, Transaction};
use crate::shadow::{Message, Placed, Sent, Violation};
use crate::words::{Group, Op, PARTITIONS, Partition, QUEUE, Serial, Via, now, offset};
use crate::words::{partition_index, partition_name};
use crate::world::World;

/// Leases that a worker keeps before the oldest is left to expire, and how many it remembers after that.
const HELD_MAX: usize = 3;
const PAST_MAX: usize = 6;

pub struct Worker {
    pub(super) world: Arc<World>,
    sql: Client,
    pub(super) hand: Vec<Held>,
    pub(super) past: Vec<Held>,
}

/// The messages of one pop, under their lease.
#[derive(Debug, Clone)]
pub struct Held {
    pub group: Group,
    pub lease: String,
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone)]
pub struct Part {
    pub partition: Partition,
    pub partition_id: Uuid,
    pub messages: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Popped {
    lease_id: String,
    messages: Vec<Delivered>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delivered {
    id: Uuid,
    transaction_id: String,
    data: Payload,
    created_at: String,
    partition_id: Uuid,
    partition: String,
    retry_count: i32,
}

#[derive(Deserialize)]
struct Payload {
    serial: Serial,
}

impl Worker {
    pub async fn new(world: Arc<World>) -> Self {
        let sql = world.database.client().await;
        Self { world, sql, hand: Vec::new(), past: Vec::new() }
    }

    pub async fn run(&mut self, steps: Vec<Step>) {
        for step in steps {
            self.step(step).await;
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Push { via, items, hang_up, look } => self.push(via, &items, hang_up, look).await,
            Step::Pop(pop) => {
                self.pop(&pop).await;
            }
            Step::Settle { via, which, stale, how, share, hang_up } => {
                if let Some(held) = self.choose(via, which, stale).await {
                    self.settle(via, &held, how, share, hang_up).await;
                }
            }
            Step::Renew { via, which, stale, seconds } => {
                if let Some(held) = self.choose(via, which, stale).await {
                    self.renew(via, &held, seconds).await;
                }
            }
            Step::Transact { via, which, stale, share, proof, poison, items } => {
                if let Some(held) = self.choose(via, which, stale).await {
                    self.transact(via, &held, share, proof, poison, &items).await;
                }
            }
            Step::Seek { to_end } => self.seek(to_end).await,
            Step::Rest(time) => tokio::time::sleep(time).await,
        }
    }

    /// A lease that is held, after a pop if there is none; or one that was held earlier.
    async fn choose(&mut self, via: Via, which: usize, stale: bool) -> Option<Held> {
        if self.hand.is_empty() && !stale {
            let group = [Group::Queue, Group::Billing, Group::Wander][which % 3];
            let (partitions, batch) = (1 + which as u32 % 2, 1 + which as u32 % 10);
            let pop = Pop { via, group, partition: None, partitions, batch, ..Pop::default() };
            self.pop(&pop).await;
        }
        let from = if stale { &self.past } else { &self.hand };
        (!from.is_empty()).then(|| from[which % from.len()].clone())
    }

    async fn push(&self, via: Via, items: &[Item], hang_up: Option<Duration>, look: bool) {
        let body = json!({ "items": items.iter().map(wire).collect::<Vec<_>>() }).to_string();
        let body = PushBody::parse(body.as_bytes()).expect("a good push");
        let ticket = self.world.tell(|shadow| {
            let op = shadow.next_op();
            shadow.push_began(op, via, items.iter().map(sent).collect())
        });
        let answer = unless_hung_up(hang_up, self.world.engine(via).push(&body.items, None)).await;
        let at = now();
        let results = match answer {
            Ok(results) => results,
            Err(why) => {
                self.lost("push", via, &why);
                return self.world.tell(|shadow| shadow.push_lost(&ticket, at, &why));
            }
        };
        self.world.count(format!("{via:?} push"));
        assert_eq!(results.len(), items.len(), "one answer for each message");
        // In a request of several partitions, the result for one of them may be lost.
        let mut lost = HashMap::new();
        let mut placed = Vec::new();
        for (item, result) in items.iter().zip(&results) {
            if result.status == PushStatus::Failed {
                lost.insert(item.serial, result.error.clone().expect("a failed item says why"));
                continue;
            }
            let duplicate = result.status == PushStatus::Duplicate;
            placed.push(Placed {
                id: result.message_id,
                transaction: result.transaction_id.clone(),
                duplicate,
            });
            if look {
                self.look(item.partition, result.partition_id, result.message_id).await;
            }
        }
        let (ticket, unknown) = ticket.split(|serial| lost.contains_key(&serial));
        if let Some(why) = lost.values().next() {
            self.lost("push", via, why);
            self.world.tell(|shadow| shadow.push_lost(&unknown, at, why));
        }
        self.world.check(|shadow| shadow.push_answered(&ticket, at, &placed));
    }

    /// A push is confirmed only after its commit, so the database must have it now.
    async fn look(&self, partition: Partition, partition_id: Uuid, id: Uuid) {
        let sql = "select h.head from queen.heads h where h.partition_id = $1";
        let row = self.sql.query_opt(sql, &[&partition_id]).await.expect("the database answers");
        let head: i64 = row.map_or(0, |row| row.get(0));
        self.world.demand(head > offset(id) as i64, || Violation {
            partition,
            group: None,
            what: format!("#{} was answered and is not there: the head is {head}", offset(id)),
        });
    }

    /// Whether anything was delivered. `None`: unknown.
    pub async fn pop(&mut self, pop: &Pop) -> Option<bool> {
        let filter = match pop.partition {
            None => PopFilter::Queue { queue: QUEUE.to_owned() },
            Some(partition) => {
                PopFilter::Partition { queue: QUEUE.to_owned(), partition: partition_name(partition) }
            }
        };
        let request = PopRequest {
            filter,
            group: pop.group.name().to_owned(),
            batch: pop.batch,
            partitions: pop.partitions,
            auto_ack: pop.group.is_auto(),
            wait: pop.wait,
            lease_seconds: pop.lease_seconds,
            subscription: Subscription::All,
            mode: None,
            brief: false,
            holder: None,
        };
        let ticket = self.world.tell(|shadow| shadow.pop_began(now(), pop.via, pop.group, pop.lease_seconds));
        let answer = unless_hung_up(pop.hang_up, self.world.engine(pop.via).pop(request)).await;
        let at = now();
        let body = match answer {
            Ok(body) => body,
            Err(why) => {
                self.lost("pop", pop.via, &why);
                return None;
            }
        };
        let popped =
            body.map(|body| serde_json::from_slice::<Popped>(&body.body).expect("an answer to a pop"));
        let lease = popped.as_ref().map(|popped| popped.lease_id.clone()).unwrap_or_default();
        let parts = self.parts(pop, popped);
        let delivered: Vec<_> = parts.iter().map(|part| (part.partition, part.messages.clone())).collect();
        self.world.check(|shadow| shadow.pop_answered(&ticket, at, &lease, &delivered));
        let word = if parts.is_empty() { "empty pop" } else { "pop" };
        self.world.count(format!("{:?} {word}", pop.via));
        if parts.is_empty() {
            return Some(false);
        }
        if !pop.group.is_auto() {
            self.hand.push(Held { group: pop.group, lease, parts });
            if self.hand.len() > HELD_MAX {
                let oldest = self.hand.remove(0);
                self.remember(oldest);
            }
        }
        Some(true)
    }

    /// Groups a response by partition, and checks that it matches the request.
    fn parts(&self, pop: &Pop, popped: Option<Popped>) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for message in popped.into_iter().flat_map(|popped| popped.messages) {
            let partition = partition_index(&message.partition).expect("a partition of ours");
            let created_at = parse_time("createdAt", &message.created_at).expect("a time");
            let read = Message {
                id: message.id,
                transaction: message.transaction_id,
                serial: message.data.serial,
                created_at,
                retries: message.retry_count,
            };
            match parts.last_mut() {
                Some(part) if part.partition == partition => part.messages.push(read),
                _ => {
                    let partition_id = message.partition_id;
                    parts.push(Part { partition, partition_id, messages: vec![read] });
                }
            }
        }
        let total: usize = parts.iter().map(|part| part.messages.len()).sum();
        let most = if pop.partition.is_some() { 1 } else { pop.partitions as usize };
        let wanted = |part: &Part| pop.partition.is_none_or(|wanted| wanted == part.partition);
        let distinct = (0..PARTITIONS).all(|p| parts.iter().filter(|part| part.partition == p).count() < 2);
        let kept = total <= pop.batch as usize && parts.len() <= most && parts.iter().all(wanted) && distinct;
        self.world.demand(kept, || Violation {
            partition: parts[0].partition,
            group: Some(pop.group),
            what: format!("{pop:?} was answered with {parts:?}"),
        });
        parts
    }

    async fn renew(&self, via: Via, held: &Held, seconds: i32) {
        let (group, lease) = (held.group, &held.lease);
        let ticket = self.world.tell(|shadow| shadow.renew_began(now(), via, group, lease, seconds));
        let answer = self.world.engine(via).renew(lease, seconds).await;
        let at = now();
        match answer {
            Err(error) => self.lost("renew", via, &error.to_string()),
            Ok(answer) => {
                let until = answer.expires_at.map(|time| parse_time("expiresAt", &time).expect("a time"));
                self.world.check(|shadow| shadow.renew_answered(&ticket, at, answer.renewed, until));
                self.world.count(format!("{via:?} renew"));
            }
        }
    }

    async fn seek(&self, to_end: bool) {
        let ticket = self.world.tell(|shadow| shadow.seek_began(now(), Group::Wander));
        let to = if to_end { SeekTo::End } else { SeekTo::Time(0) };
        match self.world.healthy.seek(Group::Wander.name(), QUEUE, Seek { to, create: true }).await {
            Ok(_) => {
                let at = now();
                self.world.tell(|shadow| shadow.seek_answered(&ticket, at, to_end));
                self.world.count("seek");
            }
            Err(error) => self.lost("seek", Via::Healthy, &error.to_string()),
        }
    }

    pub(super) fn remember(&mut self, held: Held) {
        self.past.push(held);
        if self.past.len() > PAST_MAX {
            self.past.remove(0);
        }
    }

    pub(super) fn lost(&self, what: &str, via: Via, why: &str) {
        if why == HUNG_UP {
            self.world.count("hung up");
        } else {
            self.world.count(format!("{via:?} {what} lost"));
        }
    }
}

const HUNG_UP: &str = "hung up";

/// A call that its caller may abandon at any moment.
pub async fn unless_hung_up<T>(
    patience: Option<Duration>,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, String> {
    let Some(patience) = patience else { return call.await.map_err(|error| error.to_string()) };
    match tokio::time::timeout(patience, call).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(HUNG_UP.to_owned()),
    }
}

/// An item in a client's format.
pub fn wire(item: &Item) -> Value {
    let mut wire = json!({
        "queue": QUEUE, "partition": partition_name(item.partition), "payload": {"serial": item.serial},
    });
    if let Some(id) = transaction_id(item) {
        wire["transactionId"] = json!(id);
    }
    wire
}

pub fn sent(item: &Item) -> Sent {
    Sent {
        partition: item.partition,
        serial: item.serial,
        transaction: transaction_id(item),
        unique: !matches!(item.transaction, Transaction::Repeated(_)),
    }
}

fn transaction_id(item: &Item) -> Option<String> {
    match item.transaction {
        Transaction::Minted => None,
        Transaction::Fresh => Some(format!("t{}", item.serial)),
        Transaction::Repeated(number) => Some(format!("r{number}")),
    }
}

/// The error text of a nack, so that a dead letter names the call that it comes from.
pub fn reason(op: Op) -> String {
    format!("op {op}")
}
