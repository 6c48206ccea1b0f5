//! One typed function per procedure that reports on queues, partitions and groups.

use std::time::SystemTime;

use queen_protocol::QueueOptions;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::{self, many, one};
use super::{Connections, Error};
use crate::clock;

/// A queue in numbers.
#[derive(Debug, Clone)]
pub struct QueueFigures {
    pub id: Uuid,
    pub name: String,
    pub namespace: String,
    pub task: String,
    /// Microseconds since 1970, like all times here.
    pub created_at: i64,
    pub partitions: i64,
    pub stored: i64,
    /// In queue mode, or, without it, of the group that is furthest behind. Includes leased messages.
    pub unread: i64,
    pub leased: i64,
    pub dead_letters: i64,
}

#[derive(Debug, Clone, Default)]
pub struct QueueFilter {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub task: Option<String>,
    /// A part of the name.
    pub search: Option<String>,
    /// The name matches one of these, where `*` stands for any run of characters.
    pub patterns: Option<Vec<String>>,
    pub limit: i64,
    pub offset: i64,
}

/// Translates a pattern for `like` in SQL: what is special only there is escaped.
fn like(pattern: &str) -> String {
    let special = |character| matches!(character, '%' | '_' | '\\');
    let mut text = String::with_capacity(pattern.len() + 8);
    for character in pattern.chars() {
        match character {
            '*' => text.push('%'),
            other => text.extend(special(other).then_some('\\').into_iter().chain([other])),
        }
    }
    text
}

/// Newest first.
pub async fn queues(connections: &Connections, filter: &QueueFilter) -> Result<Vec<QueueFigures>, Error> {
    let sql = "select * from queen.queue_list($1, $2, $3, $4, $5, $6, $7)";
    let patterns: Option<Vec<String>> =
        filter.patterns.as_ref().map(|all| all.iter().map(|one| like(one)).collect());
    let parameters: [&(dyn ToSql + Sync); 7] = [
        &filter.name,
        &filter.namespace,
        &filter.task,
        &filter.search,
        &patterns,
        &filter.limit,
        &filter.offset,
    ];
    let rows = many(connections, "queen.queue_list", sql, &parameters).await?;
    let figures = |row: &Row| QueueFigures {
        id: row.get("id"),
        name: row.get("name"),
        namespace: row.get("namespace"),
        task: row.get("task"),
        created_at: clock::micros(row.get("created_at")),
        partitions: row.get("partitions"),
        stored: row.get("stored"),
        unread: row.get("unread"),
        leased: row.get("leased"),
        dead_letters: row.get("dead_letters"),
    };
    Ok(rows.iter().map(figures).collect())
}

/// Queues that share a namespace or a task.
#[derive(Debug, Clone)]
pub struct LabelFigures {
    pub label: String,
    pub queues: i64,
    pub partitions: i64,
    pub stored: i64,
    pub unread: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    Namespace,
    Task,
}

pub async fn labels(connections: &Connections, label: Label) -> Result<Vec<LabelFigures>, Error> {
    let sql = "select * from queen.label_figures($1)";
    let rows = many(connections, "queen.label_figures", sql, &[&(label == Label::Namespace)]).await?;
    let figures = |row: &Row| LabelFigures {
        label: row.get(0),
        queues: row.get(1),
        partitions: row.get(2),
        stored: row.get(3),
        unread: row.get(4),
    };
    Ok(rows.iter().map(figures).collect())
}

/// A partition in numbers, for one group or for all.
#[derive(Debug, Clone)]
pub struct PartitionFigures {
    pub id: Uuid,
    pub name: String,
    pub queue: String,
    pub created_at: i64,
    pub stored: i64,
    pub unread: i64,
    pub leased: i64,
    pub cursor: i64,
    pub oldest_at: Option<i64>,
    /// When the first unread message was created.
    pub unread_at: Option<i64>,
    pub newest_at: Option<i64>,
    pub served_at: Option<i64>,
    /// Only for a live lease, which began when the partition was last served.
    pub lease: Option<Uuid>,
    /// Its own end, even while deferred acks hold it.
    pub lease_until: Option<i64>,
    /// How long the first unread message has waited.
    pub lag_seconds: Option<f64>,
}

fn partition(row: &Row) -> PartitionFigures {
    let time = |name: &str| row.get::<_, Option<SystemTime>>(name).map(clock::micros);
    PartitionFigures {
        id: row.get("id"),
        name: row.get("name"),
        queue: row.get("queue_name"),
        created_at: clock::micros(row.get("created_at")),
        stored: row.get::<_, i64>("head") - row.get::<_, i64>("tail"),
        unread: row.get("unread"),
        leased: row.get("leased"),
        cursor: row.get("cursor"),
        oldest_at: time("oldest_at"),
        unread_at: time("unread_at"),
        newest_at: time("newest_at"),
        served_at: time("served_at"),
        lease: row.get("lease_id"),
        lease_until: time("lease_until"),
        lag_seconds: row.get("lag_seconds"),
    }
}

/// By name, starting after `after`.
pub async fn queue_partitions(
    connections: &Connections,
    queue: Uuid,
    after: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<PartitionFigures>, Error> {
    let sql = "select * from queen.queue_partitions($1, $2, $3, $4)";
    let rows = many(connections, "queen.queue_partitions", sql, &[&queue, &after, &limit, &offset]).await?;
    Ok(rows.iter().map(partition).collect())
}

/// Most unread messages first. `queue`: `None` = all queues.
pub async fn busiest_partitions(
    connections: &Connections,
    queue: Option<Uuid>,
    group: Option<&str>,
    limit: i64,
    partitions_max: i32,
) -> Result<Vec<PartitionFigures>, Error> {
    let sql = "select * from queen.busiest_partitions($1, $2, $3, $4)";
    let parameters: [&(dyn ToSql + Sync); 4] = [&queue, &group, &limit, &partitions_max];
    let rows = many(connections, "queen.busiest_partitions", sql, &parameters).await?;
    Ok(rows.iter().map(partition).collect())
}

/// Selects a page of partitions.
#[derive(Debug, Clone, Copy)]
pub struct PartitionPage<'a> {
    /// `None` = all queues.
    pub queue: Option<Uuid>,
    /// The group whose cursor decides what is unread.
    pub group: Option<&'a str>,
    /// A part of the name; case is ignored.
    pub search: Option<&'a str>,
    pub limit: i64,
    pub offset: i64,
}

/// Most unread messages first.
pub async fn partition_page(
    connections: &Connections,
    page: &PartitionPage<'_>,
    partitions_max: i32,
) -> Result<Vec<PartitionFigures>, Error> {
    let sql = "select * from queen.partition_page($1, $2, $3, $4, $5, $6)";
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&page.queue, &page.group, &page.search, &page.limit, &page.offset, &partitions_max];
    let rows = many(connections, "queen.partition_page", sql, &parameters).await?;
    Ok(rows.iter().map(partition).collect())
}

/// By queue, and within a queue most unread messages first.
pub async fn group_partitions(
    connections: &Connections,
    queues: &[Uuid],
    group: &str,
    limit: i64,
    partitions_max: i32,
) -> Result<Vec<PartitionFigures>, Error> {
    let sql = "select * from queen.group_partitions($1, $2, $3, $4)";
    let parameters: [&(dyn ToSql + Sync); 4] = [&queues, &group, &limit, &partitions_max];
    let rows = many(connections, "queen.group_partitions", sql, &parameters).await?;
    Ok(rows.iter().map(partition).collect())
}

/// Groups and partitions where a message has waited for at least this many seconds, oldest first.
pub async fn lagging_partitions(
    connections: &Connections,
    seconds: i64,
    limit: i64,
) -> Result<Vec<(String, PartitionFigures)>, Error> {
    let sql = "select * from queen.lagging_partitions($1, $2)";
    let rows = many(connections, "queen.lagging_partitions", sql, &[&seconds, &limit]).await?;
    Ok(rows.iter().map(|row| (row.get("consumer_group"), partition(row))).collect())
}

/// A consumer group in one queue, in numbers.
#[derive(Debug, Clone)]
pub struct GroupFigures {
    pub group: String,
    pub queue: String,
    /// `None`: the group is registered for a queue that does not exist yet.
    pub queue_id: Option<Uuid>,
    /// Partitions in which the group has a cursor.
    pub members: i64,
    pub pending_partitions: i64,
    pub unread: i64,
    pub leased: i64,
    pub oldest_at: Option<i64>,
    pub served_at: Option<i64>,
    /// The time from which the group reads; `None`: from the oldest message.
    pub since: Option<i64>,
    pub registered_at: Option<i64>,
    /// How long its oldest unread message has waited.
    pub lag_seconds: Option<f64>,
    /// The word with which the group asked where to start, if it was recorded.
    pub mode: Option<String>,
}

pub async fn groups(
    connections: &Connections,
    group: Option<&str>,
    queue: Option<&str>,
    limit: i64,
    offset: i64,
) -> Result<Vec<GroupFigures>, Error> {
    let sql = "select * from queen.group_list($1, $2, $3, $4)";
    let rows = many(connections, "queen.group_list", sql, &[&group, &queue, &limit, &offset]).await?;
    let figures = |row: &Row| {
        let time = |name: &str| row.get::<_, Option<SystemTime>>(name).map(clock::micros);
        GroupFigures {
            group: row.get("consumer_group"),
            queue: row.get("queue_name"),
            queue_id: row.get("queue_id"),
            members: row.get("members"),
            pending_partitions: row.get("pending_partitions"),
            unread: row.get("unread"),
            leased: row.get("leased"),
            oldest_at: time("oldest_at"),
            served_at: time("served_at"),
            since: time("since"),
            registered_at: time("registered_at"),
            lag_seconds: row.get("lag_seconds"),
            mode: row.get("mode"),
        }
    };
    Ok(rows.iter().map(figures).collect())
}

/// Over all groups.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spread {
    pub avg: f64,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

#[derive(Debug, Clone)]
pub struct Overview {
    pub queues: i64,
    pub partitions: i64,
    pub namespaces: i64,
    pub tasks: i64,
    pub stored: i64,
    pub unread: i64,
    pub leased: i64,
    pub dead_letters: i64,
    /// Seconds.
    pub time_lag: Spread,
    /// Messages.
    pub offset_lag: Spread,
    /// Age in seconds of the oldest measurement that these figures rest on.
    pub age: Option<f64>,
}

pub async fn overview(connections: &Connections) -> Result<Overview, Error> {
    let row = one(connections, "queen.overview", "select * from queen.overview()", &[]).await?;
    let spread = |from: usize| Spread {
        avg: row.get(from),
        median: row.get(from + 1),
        min: row.get(from + 2),
        max: row.get(from + 3),
    };
    Ok(Overview {
        queues: row.get("queues"),
        partitions: row.get("partitions"),
        namespaces: row.get("namespaces"),
        tasks: row.get("tasks"),
        stored: row.get("stored"),
        unread: row.get("unread"),
        leased: row.get("leased"),
        dead_letters: row.get("dead_letters"),
        time_lag: spread(8),
        offset_lag: spread(12),
        age: row.get("age"),
    })
}

/// How many messages were removed; `None`: there is no such queue or partition.
pub async fn clear(
    connections: &Connections,
    queue: &str,
    partition: Option<&str>,
    note: &str,
) -> Result<Option<i64>, Error> {
    let sql = "select queen.clear($1, $2), pg_notify('queen', $3)";
    Ok(one(connections, "queen.clear", sql, &[&queue, &partition, &note]).await?.get(0))
}

/// Where a group stands in a partition.
pub async fn cursor(
    connections: &Connections,
    group: &str,
    queue: &str,
    partition: &str,
) -> Result<Option<i64>, Error> {
    let sql = "select queen.cursor($1, $2, $3)";
    Ok(one(connections, "queen.cursor", sql, &[&group, &queue, &partition]).await?.get(0))
}

/// As it is stored; `None`: the queue no longer exists.
pub async fn options(connections: &Connections, queue: Uuid) -> Result<Option<QueueOptions>, Error> {
    let sql = "select to_jsonb(o)::text from queen.queue_options($1) o";
    let rows = many(connections, "queen.queue_options", sql, &[&queue]).await?;
    rows.first().map(|row| control::options("queen.queue_options", row.get(0))).transpose()
}

/// The same by its name; `None`: there is no such queue.
pub async fn named_options(connections: &Connections, queue: &str) -> Result<Option<QueueOptions>, Error> {
    let sql = "select to_jsonb(o)::text from queen.named_options($1) o";
    let rows = many(connections, "queen.named_options", sql, &[&queue]).await?;
    rows.first().map(|row| control::options("queen.named_options", row.get(0))).transpose()
}

/// What is leased and what was given up, in all queues.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub leased_partitions: i64,
    pub leased: i64,
    /// By all groups together.
    pub consumed: i64,
    pub dead_letters: i64,
    pub dead_partitions: i64,
    /// The most frequent errors, and how often they occur.
    pub errors: Vec<(String, i64)>,
}

pub async fn trouble(connections: &Connections, letters_max: i32) -> Result<Trouble, Error> {
    let row = one(connections, "queen.trouble", "select * from queen.trouble($1)", &[&letters_max]).await?;
    let (errors, counts): (Vec<String>, Vec<i64>) = (row.get("errors"), row.get("counts"));
    Ok(Trouble {
        leased_partitions: row.get("leased_partitions"),
        leased: row.get("leased"),
        consumed: row.get("consumed"),
        dead_letters: row.get("dead_letters"),
        dead_partitions: row.get("dead_partitions"),
        errors: errors.into_iter().zip(counts).collect(),
    })
}
