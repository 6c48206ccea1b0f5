//! The procedures about a message's life: rare calls, like those in `control.rs`.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::many;
use super::{Connection, Connections, Error};
use crate::clock;
use crate::life::{Event, LookUp, Traced, TracedMessage};

/// Written once and never again, even if the response is lost: a missing event is better than one that did not happen.
pub async fn note_life(db: &Connection, events: &[Event]) -> Result<usize, Error> {
    let now = clock::now();
    let relation = |event: &Event| event.relation.clone();
    let partitions: Vec<Uuid> = events.iter().map(|event| event.partition).collect();
    let offsets: Vec<i64> = events.iter().map(|event| event.offset).collect();
    let messages: Vec<Uuid> = events.iter().map(|event| event.message_id).collect();
    let transactions: Vec<&str> = events.iter().map(|event| event.transaction_id.as_ref()).collect();
    let ages: Vec<f64> = events.iter().map(|event| (now - event.at).as_secs_f64()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event.happened.word()).collect();
    let groups: Vec<Option<&str>> = events.iter().map(|event| event.group.as_deref()).collect();
    let attempts: Vec<Option<i32>> = events.iter().map(|event| event.attempt).collect();
    let errors: Vec<Option<&str>> = events.iter().map(|event| event.error.as_deref()).collect();
    let relations: Vec<_> = events.iter().map(relation).collect();
    let others = || relations.iter().map(|relation| relation.as_ref().map(|relation| &relation.other));
    let operations: Vec<Option<Uuid>> =
        relations.iter().map(|relation| relation.as_ref().map(|relation| relation.transaction)).collect();
    let other_partitions: Vec<Option<Uuid>> = others().map(|other| Some(other?.partition.id)).collect();
    let other_messages: Vec<Option<Uuid>> = others().map(|other| Some(other?.message_id)).collect();
    let other_queues: Vec<Option<&str>> =
        others().map(|other| Some(other?.partition.queue.as_ref())).collect();
    let other_names: Vec<Option<&str>> = others().map(|other| Some(other?.partition.name.as_ref())).collect();
    let other_transactions: Vec<Option<&str>> =
        others().map(|other| Some(other?.transaction_id.as_ref())).collect();
    let sql = "select queen.note_life($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    let parameters: [&(dyn ToSql + Sync); 15] = [
        &partitions,
        &offsets,
        &messages,
        &transactions,
        &ages,
        &kinds,
        &groups,
        &attempts,
        &errors,
        &operations,
        &other_partitions,
        &other_messages,
        &other_queues,
        &other_names,
        &other_transactions,
    ];
    let row = db.within("queen.note_life", db.client.query_one(sql, &parameters)).await?;
    Ok(usize::try_from(row.get::<_, i32>(0)).unwrap_or(0))
}

pub async fn life_traced(db: &Connection, look_up: &LookUp) -> Result<Traced, Error> {
    let sql = "select * from queen.life_traced($1, $2, $3)";
    let (first, last) = (look_up.moved.from, look_up.end());
    let parameters: [&(dyn ToSql + Sync); 3] = [&look_up.partition, &first, &last];
    let rows = db.within("queen.life_traced", db.client.query(sql, &parameters)).await?;
    let message = |row: &tokio_postgres::Row| TracedMessage {
        offset: row.get(0),
        message_id: row.get(1),
        transaction_id: row.get::<_, String>(2).into(),
        parent: None,
    };
    Ok(Traced { first: None, messages: rows.iter().map(message).collect() })
}

pub async fn sweep_life(connections: &Connections, older_than: Duration, limit: i32) -> Result<i32, Error> {
    let sql = "select queen.sweep_life(make_interval(secs => $1), $2)";
    let rows = many(connections, "queen.sweep_life", sql, &[&older_than.as_secs_f64(), &limit]).await?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

pub struct MessageRow {
    pub queue: String,
    pub partition: String,
    pub offset: i64,
    pub message_id: Uuid,
    pub created_at: Option<i64>,
    /// The start of its frame, up to the payload.
    pub header: Option<String>,
    /// Base offset, count and extent; `None`: no longer in the log.
    pub segment: Option<(i64, i32, i32)>,
}

pub async fn life_message(
    connections: &Connections,
    partition: Uuid,
    transaction_id: &str,
    hashes: &[u8],
) -> Result<Option<MessageRow>, Error> {
    let sql = "select * from queen.life_message($1, $2, $3)";
    let rows = many(connections, "queen.life_message", sql, &[&partition, &transaction_id, &hashes]).await?;
    Ok(rows.first().map(|row| MessageRow {
        queue: row.get("queue_name"),
        partition: row.get("partition_name"),
        offset: row.get("message_offset"),
        message_id: row.get("message_id"),
        created_at: row.get::<_, Option<SystemTime>>("created_at").map(clock::micros),
        header: row.get("header"),
        segment: row
            .get::<_, Option<i64>>("base_offset")
            .map(|base| (base, row.get("count"), row.get("extent"))),
    }))
}

pub struct GroupRow {
    pub group: String,
    pub delivered: bool,
    pub consumed: bool,
    pub leased_until: Option<i64>,
    pub attempts: i32,
    pub dead: Option<DeadRow>,
}

pub struct DeadRow {
    pub error: Option<String>,
    pub attempts: i32,
    pub at: i64,
}

pub async fn life_groups(
    connections: &Connections,
    partition: Uuid,
    offset: i64,
    transaction_id: &str,
    limit: i32,
) -> Result<Vec<GroupRow>, Error> {
    let sql = "select * from queen.life_groups($1, $2, $3, $4)";
    let parameters: [&(dyn ToSql + Sync); 4] = [&partition, &offset, &transaction_id, &limit];
    let rows = many(connections, "queen.life_groups", sql, &parameters).await?;
    let group = |row: &tokio_postgres::Row| GroupRow {
        group: row.get("consumer_group"),
        delivered: row.get("delivered"),
        consumed: row.get("consumed"),
        leased_until: row.get::<_, Option<SystemTime>>("leased_until").map(clock::micros),
        attempts: row.get("attempts"),
        dead: row.get::<_, bool>("dead").then(|| DeadRow {
            error: row.get("dead_error"),
            attempts: row.get("dead_attempts"),
            at: clock::micros(row.get("dead_at")),
        }),
    };
    Ok(rows.iter().map(group).collect())
}

pub struct EventRow {
    pub at: i64,
    pub event: String,
    pub group: Option<String>,
    pub attempt: Option<i32>,
    pub error: Option<String>,
    pub relation: Option<RelationRow>,
}

pub struct RelationRow {
    pub operation: Uuid,
    pub queue: String,
    pub partition: String,
    pub partition_id: Uuid,
    pub transaction_id: String,
    pub message_id: Uuid,
}

pub async fn life_events_of(
    connections: &Connections,
    partition: Uuid,
    offset: i64,
    transaction_id: &str,
    limit: i32,
) -> Result<Vec<EventRow>, Error> {
    let sql = "select * from queen.life_events_of($1, $2, $3, $4)";
    let parameters: [&(dyn ToSql + Sync); 4] = [&partition, &offset, &transaction_id, &limit];
    let rows = many(connections, "queen.life_events_of", sql, &parameters).await?;
    let event = |row: &tokio_postgres::Row| EventRow {
        at: clock::micros(row.get("at")),
        event: row.get("event"),
        group: row.get("consumer_group"),
        attempt: row.get("attempt"),
        error: row.get("error"),
        relation: row.get::<_, Option<Uuid>>("operation").map(|operation| RelationRow {
            operation,
            queue: row.get("other_queue"),
            partition: row.get("other_partition"),
            partition_id: row.get("other_partition_id"),
            transaction_id: row.get("other_transaction_id"),
            message_id: row.get("other_message_id"),
        }),
    };
    Ok(rows.iter().map(event).collect())
}
