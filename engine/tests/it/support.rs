//! An engine with short timeouts on a database of its own, and helpers for common calls.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use queen_engine::{
    Answer, Config, DeadLetter, DeadLetterFilter, Deferring, Engine, Error, Keepalive, Keys, LaneCounts,
    Slots, Tls,
};
use queen_protocol::{
    AckItem, AckResult, AckStatus, Configure, OperationStatus, PopFilter, PopRequest, PushBody, PushResult,
    QUEUE_MODE, Subscription, Ticket, TransactionBody, TransactionOutcome,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::Client;
use uuid::Uuid;

/// Long enough for a busy machine; a test that needs all of it has failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// Defaults for everything that a test does not care about. Background jobs do not run unless a test enables them.
pub fn config(url: &str) -> Config {
    Config {
        database: url.to_owned(),
        tls: Tls::OFF,
        keepalive: Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            count: 3,
            user_timeout: Duration::from_secs(30),
        },
        keys: Keys::default(),
        encryption_required: false,
        flights: 2,
        connections: 8,
        connect_timeout: Duration::from_secs(2),
        statement_timeout: Duration::from_secs(10),
        read_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        retry_for: Duration::from_secs(10),
        linger: Duration::ZERO,
        flight_items_max: 500,
        flight_bytes_max: 4 << 20,
        waiting_max: 100_000,
        own_server: false,
        partitions_max: 0,
        queues_max: 0,
        auto_create: true,
        slots: Slots { push: 4, pop: 4, ack: 4, renew: 2, transaction: 4 },
        segment_cache_bytes: 8 << 20,
        dedup_cache_bytes: 8 << 20,
        pop_bytes_max: 16 << 20,
        retention_interval: Duration::from_secs(3600),
        eviction_interval: Duration::from_secs(3600),
        retention_batch: 100,
        partition_cleanup: Duration::from_secs(30 * 86_400),
        history_retention: Duration::from_secs(30 * 86_400),
        extent_bytes: 256 << 20,
        extent_age: Duration::from_secs(3600),
        statistics_interval: Duration::from_secs(3600),
        statistics_reconcile: Duration::from_secs(120),
        doctor_interval: Duration::ZERO,
        deferring: Deferring {
            enabled: true,
            push_utilisation: 0.7,
            ack_utilisation: 0.8,
            push_depth_max: 10_000,
            ack_depth_max: 50_000,
            // Tests of deferral set this themselves. With a short time, other tests would defer on a busy machine.
            patience: Duration::from_secs(3600),
            interval: Duration::from_millis(50),
            claim_limit: 50,
            timeout: Duration::from_secs(30),
            retries_max: 3,
            retention: Duration::from_secs(3600),
        },
        name: "test:1".to_owned(),
        metrics_sample: Duration::from_secs(1),
        metrics_aggregate: Duration::from_secs(3600),
        spool: None,
    }
}

/// An engine that leaves deferred operations to other engines.
pub fn idle(url: &str) -> Config {
    let mut config = config(url);
    config.deferring.claim_limit = 0;
    config
}

/// A deferred operation, by the ticket of its sender.
pub async fn operation(engine: &Engine, ticket: &Option<Ticket>) -> OperationStatus {
    let id = ticket.as_ref().expect("it was deferred").operation_id;
    engine.operation(id).await.unwrap().expect("it is known")
}

/// Like [`operation`], once it is completed.
pub async fn landed(engine: &Engine, ticket: &Option<Ticket>) -> OperationStatus {
    eventually("the operation is done", async || {
        Some(operation(engine, ticket).await).filter(|operation| operation.status == "completed")
    })
    .await
}

pub async fn engine(url: &str) -> Engine {
    engine_with(config(url)).await
}

pub async fn engine_with(config: Config) -> Engine {
    Engine::start(config).await.expect("the engine starts")
}

/// Two engines that know of each other, like brokers that have run for a while.
pub async fn twins(url: &str, sql: &Client) -> (Engine, Engine) {
    let first = engine(url).await;
    listening(sql, 1).await;
    let second = engine(url).await;
    listening(sql, 2).await;
    (first, second)
}

/// Waits until this many engines listen for notifications on this database.
pub async fn listening(sql: &Client, engines: i64) {
    let text = "select count(*) from pg_stat_activity
                where datname = current_database() and query = 'listen queen' and state = 'idle'";
    eventually("the engines listen", async || (number(sql, text).await == engines).then_some(())).await;
}

/// Waits until no engine has a session on this database, because PostgreSQL completes its statistics only then.
pub async fn disconnected(sql: &Client) {
    let text = "select count(*) from pg_stat_activity
                where datname = current_database() and application_name = 'queen'";
    eventually("the engines are gone", async || (number(sql, text).await == 0).then_some(())).await;
}

/// How often each procedure was called. Complete only after `count_calls` and once the engines have stopped.
pub async fn calls(sql: &Client) -> HashMap<String, i64> {
    sql.batch_execute("select pg_stat_clear_snapshot()").await.unwrap();
    let text = "select funcname::text, calls from pg_stat_user_functions where schemaname = 'queen'";
    sql.query(text, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// From the next session on, PostgreSQL counts calls of procedures.
pub async fn count_calls(sql: &Client, database: &str) {
    sql.batch_execute(&format!("alter database {database} set track_functions = 'pl'")).await.unwrap();
}

/// Moves the database's clock for every decision that Queen bases on it. An engine's own timers do not move, and
/// neither does its ready list: pop by the name of the partition afterwards.
pub async fn travel(sql: &Client, interval: &str) {
    let text = format!(
        "create or replace function queen.now() returns timestamptz language sql volatile parallel safe
         as $$ select clock_timestamp() + interval '{interval}' $$"
    );
    sql.batch_execute(&text).await.unwrap();
}

/// The single number that a query returns.
pub async fn number(sql: &Client, text: &str) -> i64 {
    sql.query_one(text, &[]).await.unwrap().get(0)
}

pub async fn configure(engine: &Engine, queue: &str, options: Value) {
    let body = json!({"queue": queue, "options": options}).to_string();
    engine.configure(&Configure::parse(body.as_bytes()).unwrap()).await.unwrap();
}

/// Payloads as the helpers below push them.
pub fn numbers(range: Range<usize>) -> Vec<Value> {
    range.map(Value::from).collect()
}

/// Sends items in a client's format.
pub async fn send(engine: &Engine, items: &Value) -> Result<Vec<PushResult>, Error> {
    let body = json!({ "items": items }).to_string();
    engine.push(&PushBody::parse(body.as_bytes()).unwrap().items, None).await
}

/// Pushes one message per number; the engine generates the ids.
pub async fn push(engine: &Engine, queue: &str, partition: &str, numbers: Range<usize>) -> Vec<PushResult> {
    let items = numbers.map(|n| json!({"queue": queue, "partition": partition, "payload": n}));
    send(engine, &items.collect()).await.unwrap()
}

/// Messages numbered from 0, each larger than what a flight takes from one partition, so that each is sent separately.
pub fn large(queue: &str, partition: &str, count: usize) -> Value {
    let filler = "x".repeat(256 << 10);
    let item = |n| json!({"queue": queue, "partition": partition, "payload": {"n": n, "filler": filler}});
    (0..count).map(item).collect()
}

/// Pushes one message per id, which is also its payload.
pub async fn push_ids(engine: &Engine, queue: &str, partition: &str, ids: &[&str]) -> Vec<PushResult> {
    send(engine, &with_ids(queue, partition, ids)).await.unwrap()
}

pub fn with_ids(queue: &str, partition: &str, ids: &[&str]) -> Value {
    let item =
        |id: &&str| json!({"queue": queue, "partition": partition, "payload": id, "transactionId": id});
    ids.iter().map(item).collect()
}

/// Pushes one message to each of many partitions `p0`, `p1`, …
pub async fn push_wide(engine: &Engine, queue: &str, partitions: Range<usize>) {
    let items = partitions.map(|n| json!({"queue": queue, "partition": format!("p{n}"), "payload": n}));
    send(engine, &items.collect()).await.unwrap();
}

/// Adds what a push at another broker leaves in the log, without any notification. The partition must exist.
pub async fn write_unnoticed(sql: &Client, queue: &str, partition: &str, id: &str) {
    let text = "with written as (
                    update queen.heads as h set head = h.head + 1, last_push_at = queen.now(),
                                                message_bytes_max = greatest(h.message_bytes_max, 1000)
                    from queen.partitions p join queen.queues q on q.id = p.queue_id
                    where h.partition_id = p.id and q.name = $1 and p.name = $2
                    returning p.id, h.head)
                insert into queen.segments (partition_id, base_offset, created_at, extent, count, transactions, frames)
                select w.id, w.head - 1, queen.now(), (select max(e.number) from queen.extents e), 1,
                       set_byte(substr(h.hash, 1, 16), 0, get_byte(h.hash, 0) | 128),
                       format('{\"transactionId\":\"%1$s\",\"payload\":\"%1$s\"}', $3::text)
                from written w cross join lateral (select sha256(convert_to($3, 'UTF8')) as hash) h";
    assert_eq!(sql.execute(text, &[&queue, &partition, &id]).await.unwrap(), 1);
}

/// A pop from any partition of a queue: one message, queue mode, answered at once.
pub fn any(queue: &str) -> PopRequest {
    PopRequest {
        filter: PopFilter::Queue { queue: queue.to_owned() },
        group: QUEUE_MODE.to_owned(),
        batch: 1,
        partitions: 1,
        auto_ack: false,
        wait: None,
        lease_seconds: 0,
        subscription: Subscription::All,
        mode: None,
        brief: false,
        holder: None,
    }
}

pub fn named(queue: &str, partition: &str) -> PopRequest {
    let filter = PopFilter::Partition { queue: queue.to_owned(), partition: partition.to_owned() };
    PopRequest { filter, ..any(queue) }
}

/// Small changes to a pop, so that a test only states what matters to it.
pub trait Ask {
    fn batch(self, batch: u32) -> Self;
    fn group(self, group: &str) -> Self;
    fn wait(self, wait: Duration) -> Self;
}

impl Ask for PopRequest {
    fn batch(self, batch: u32) -> Self {
        Self { batch, ..self }
    }

    fn group(self, group: &str) -> Self {
        Self { group: group.to_owned(), ..self }
    }

    fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Popped {
    pub lease_id: String,
    pub lease_seconds: u32,
    pub partition: String,
    pub partition_id: Uuid,
    pub partitions_claimed: usize,
    pub messages: Vec<Message>,
}

/// `data` stays text, because not every valid payload is a `Value`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub id: Uuid,
    pub transaction_id: String,
    pub trace_id: Option<Uuid>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub data: Box<RawValue>,
    pub producer_sub: Option<String>,
    pub created_at: String,
    pub partition_id: Uuid,
    pub partition: String,
    pub queue: String,
    pub lease_id: String,
    pub consumer_group: String,
    pub retry_count: i32,
}

impl Message {
    pub fn json(&self) -> Value {
        serde_json::from_str(self.data.get()).unwrap()
    }
}

impl Popped {
    pub fn data(&self) -> Vec<Value> {
        self.messages.iter().map(Message::json).collect()
    }
}

pub async fn pop(engine: &Engine, request: PopRequest) -> Option<Popped> {
    engine.pop(request).await.unwrap().map(|body| read(&body))
}

pub fn read(answer: &Answer) -> Popped {
    let popped: Popped = serde_json::from_slice(&answer.body)
        .unwrap_or_else(|error| panic!("{error} in {}", String::from_utf8_lossy(&answer.body)));
    assert_eq!(popped.messages.len(), answer.messages);
    popped
}

/// A pop that must find something, perhaps a moment later.
pub async fn pop_soon(engine: &Engine, request: &PopRequest) -> Popped {
    eventually("a pop finds something", async || pop(engine, request.clone()).await).await
}

/// The payloads that a pop returns; none for an empty response.
pub async fn data(engine: &Engine, request: PopRequest) -> Vec<Value> {
    pop(engine, request).await.map_or_else(Vec::new, |popped| popped.data())
}

/// Everything a group can still read from a partition, in order, without leases.
pub async fn drain(engine: &Engine, queue: &str, partition: &str, group: &str) -> Vec<Message> {
    let request = PopRequest { auto_ack: true, ..named(queue, partition).group(group).batch(1_000) };
    let mut drained = Vec::new();
    while let Some(popped) = pop(engine, request.clone()).await {
        drained.extend(popped.messages);
    }
    drained
}

pub fn ack_of(message: &Message, status: AckStatus) -> AckItem {
    AckItem {
        transaction_id: message.transaction_id.clone(),
        message_id: None,
        partition_id: message.partition_id,
        lease_id: Some(message.lease_id.clone()).filter(|lease| !lease.is_empty()),
        status,
        group: message.consumer_group.clone(),
        error: Some(format!("no use for {}", message.transaction_id)),
    }
}

/// Like [`ack_of`], but without the lease.
pub fn leaseless(message: &Message, status: AckStatus) -> AckItem {
    AckItem { lease_id: None, ..ack_of(message, status) }
}

pub async fn ack(engine: &Engine, message: &Message, status: AckStatus) -> AckResult {
    ack_items(engine, vec![ack_of(message, status)]).await.remove(0)
}

/// Acknowledges messages in one call, each with the status at its position.
pub async fn ack_all(engine: &Engine, messages: &[Message], statuses: &[AckStatus]) -> Vec<AckResult> {
    assert_eq!(messages.len(), statuses.len());
    let items = messages.iter().zip(statuses).map(|(message, status)| ack_of(message, *status));
    ack_items(engine, items.collect()).await
}

pub async fn ack_items(engine: &Engine, items: Vec<AckItem>) -> Vec<AckResult> {
    let asked = items.len();
    let results = engine.ack(items).await.unwrap();
    assert!(results.iter().map(|result| result.index).eq(0..asked), "one answer each, in order: {results:?}");
    results
}

/// Completes everything that was popped, which must succeed.
pub async fn complete(engine: &Engine, popped: &Popped) {
    let statuses = vec![AckStatus::Completed; popped.messages.len()];
    let results = ack_all(engine, &popped.messages, &statuses).await;
    assert!(results.iter().all(|result| result.success), "{results:?}");
}

pub async fn transact(engine: &Engine, body: &Value) -> TransactionOutcome {
    let body = body.to_string();
    engine.transaction(&TransactionBody::parse(body.as_bytes()).unwrap(), None).await.unwrap()
}

/// An ack as an operation of a transaction, without a lease, as published clients send it.
pub fn ack_operation(message: &Message, status: &str) -> Value {
    json!({
        "type": "ack", "transactionId": message.transaction_id, "partitionId": message.partition_id,
        "consumerGroup": message.consumer_group, "status": status, "error": "said in a transaction",
    })
}

pub fn push_operation(queue: &str, partition: &str, payload: &Value) -> Value {
    json!({"type": "push", "items": [{"queue": queue, "partition": partition, "payload": payload}]})
}

/// Dead letters of a queue, newest first.
pub async fn dead_letters(engine: &Engine, queue: &str) -> Vec<DeadLetter> {
    let filter = DeadLetterFilter { queue: Some(queue.to_owned()), limit: 100, ..Default::default() };
    let (letters, total) = engine.dead_letters(&filter).await.unwrap();
    assert_eq!(letters.len() as i64, total);
    letters
}

pub fn lane(engine: &Engine, name: &str) -> LaneCounts {
    engine.stats().lanes.iter().find(|(lane, _)| *lane == name).expect("a lane of that name").1
}

/// Runs all tasks at once, and returns their results in the given order.
pub async fn at_once<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut running = JoinSet::new();
    for (index, task) in tasks.into_iter().enumerate() {
        running.spawn(async move { (index, task.await) });
    }
    let mut done = running.join_all().await;
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, answer)| answer).collect()
}

/// Tries until there is a value; panics with `what` after `PATIENCE`.
pub async fn eventually<T>(what: &str, attempt: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, attempt).await
}

pub async fn within<T>(patience: Duration, what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = attempt().await {
            return found;
        }
        assert!(began.elapsed() < patience, "did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A pop in the background that has parked when this returns.
pub async fn parked(engine: &Engine, request: PopRequest) -> Parked {
    let before = engine.stats().parked;
    let mut task = JoinSet::new();
    let popping = engine.clone();
    task.spawn(async move { pop(&popping, request).await });
    eventually("the pop parks", async || (engine.stats().parked > before).then_some(())).await;
    Parked { task }
}

/// When this is dropped, its pop ends like that of a client that disconnects.
pub struct Parked {
    task: JoinSet<Option<Popped>>,
}

impl Parked {
    pub async fn answer(mut self) -> Option<Popped> {
        self.task.join_next().await.expect("one pop").expect("it does not panic")
    }
}
