//! Consumer groups: lists them, shows their positions, deletes them, and changes where they start. `seeks.rs` moves their cursors.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::{GroupFigures, PartitionFigures};
use queen_protocol::{Holder, check_name, format_millis, parse_time, read_object};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer;
use super::error::{ApiError, Failures, TooLarge};
use super::request::{Body, Query, SMALL, Segments};
use super::resources::{page_of, to_millis};
use crate::app::App;
use crate::openapi::queries;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GroupDeleted, example = json!({
    "success": true, "consumerGroup": "shipping", "queueName": "orders", "deletedPartitions": 1,
    "metadataDeleted": true,
}))]
struct Deleted<'a> {
    success: bool,
    consumer_group: &'a str,
    /// Only if one queue was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    queue_name: Option<&'a str>,
    /// Number of deleted cursors.
    deleted_partitions: i64,
    /// A registration was deleted: there was one, and `deleteMetadata` was not false.
    metadata_deleted: bool,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Subscription, example = json!({"subscriptionTimestamp": "2026-01-01T00:00:00Z"}))]
struct SubscriptionBody {
    #[schema(format = DateTime)]
    subscription_timestamp: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(example = json!({
    "success": true, "consumerGroup": "billing", "newTimestamp": "2026-01-01T00:00:00Z", "rowsUpdated": 1,
}))]
struct Subscribed<'a> {
    success: bool,
    consumer_group: &'a str,
    /// The time that was sent.
    new_timestamp: &'a str,
    /// Number of changed registrations.
    rows_updated: i64,
}

/// A consumer group in one queue.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ConsumerGroup)]
struct Group {
    name: String,
    /// The queue, as a list for existing clients.
    topics: Vec<String>,
    queue_name: String,
    /// Partitions in which it has a cursor.
    members: i64,
    /// As of the last measurement of the queue.
    partitions_with_lag: i64,
    total_lag: i64,
    /// Age of its oldest unread message in seconds.
    max_time_lag: f64,
    /// `Stable`; `Lagging` if a message has waited for more than five minutes; `Dead` if the group never read anything.
    state: &'static str,
    /// Where the group asked to start: `all`, `new`, `now` or another word of its first pop; `timestamp` for a time.
    subscription_mode: String,
    #[schema(required, format = DateTime)]
    subscription_timestamp: Option<String>,
    /// Null if the group never registered, as queue mode.
    #[schema(required, format = DateTime)]
    subscription_created_at: Option<String>,
}

/// A partition in which messages have waited long for a group.
#[derive(Serialize, ToSchema)]
#[schema(as = LaggingPartition)]
struct Lagging {
    consumer_group: String,
    queue_name: String,
    partition_name: String,
    partition_id: Uuid,
    /// The lease, if there is one.
    #[schema(required)]
    worker_id: Option<Uuid>,
    offset_lag: i64,
    time_lag_seconds: f64,
    lag_hours: f64,
    #[schema(required, format = DateTime)]
    oldest_unconsumed_at: Option<String>,
    #[schema(required, format = DateTime)]
    last_consumed_at: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = GroupInQueue)]
struct InQueue {
    partitions: Vec<InPartition>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = GroupInPartition)]
struct InPartition {
    partition: String,
    /// The lease, if there is one.
    #[schema(required)]
    worker_id: Option<Uuid>,
    /// Consumer that holds the lease. Null if it popped at another broker, or is no longer known.
    #[schema(required)]
    held_by: Option<HeldBy>,
    #[schema(required, format = DateTime)]
    leased_since: Option<String>,
    /// If deferred acknowledgements hold the lease: when it would have ended.
    #[schema(required, format = DateTime)]
    lease_expires_at: Option<String>,
    #[schema(required, format = DateTime)]
    last_consumed_at: Option<String>,
    total_consumed: i64,
    offset_lag: i64,
    time_lag_seconds: f64,
    lease_active: bool,
}

#[derive(Serialize, ToSchema)]
#[schema(as = LeaseHolder)]
struct HeldBy {
    /// The subject of its token, or the name of its API key.
    #[schema(required, value_type = Option<String>)]
    name: Option<Arc<str>>,
    /// Address of the consumer, or of the proxy in front of it.
    #[schema(value_type = String)]
    address: IpAddr,
}

const GROUPS_DEFAULT: i64 = 1_000;
const GROUPS_MAX: i64 = 10_000;
const LAGGING_DEFAULT: i64 = 200;
const LAGGING_MAX: i64 = 1_000;
/// Maximum number of queues in the detail of a group.
const QUEUES_MAX: i64 = 100;
const LAGGING_SECONDS: f64 = 300.0;

/// Lists consumer groups, with one entry for each queue that they read.
#[utoipa::path(get, path = "/api/v1/consumer-groups", operation_id = "listGroups", tag = "consumer groups",
    params(queries::GroupsQuery),
    responses((status = 200, description = "By queue and name", body = Vec<Group>), Failures))]
pub async fn list(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let page = query.page(GROUPS_DEFAULT, GROUPS_MAX);
    let queue = query.filled("queue");
    check_name("queue", queue.unwrap_or_default())?;
    let groups = app.engine.groups(None, queue, page.limit, page.offset).await?;
    answer::json(StatusCode::OK, &groups.into_iter().map(Group::from).collect::<Vec<_>>())
}

/// Lists the partitions in which messages have waited longest for a group.
///
/// Covers the notable partitions of the last measurement of each queue and group, with current numbers.
#[utoipa::path(get, path = "/api/v1/consumer-groups/lagging", operation_id = "laggingPartitions", tag = "consumer groups",
    params(queries::LaggingQuery),
    responses((status = 200, description = "Oldest first", body = Vec<Lagging>), Failures))]
pub async fn lagging(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let seconds = query.number("minLagSeconds").unwrap_or(3600).max(0);
    let limit = query.page(LAGGING_DEFAULT, LAGGING_MAX).limit;
    let lagging = app.engine.lagging_partitions(seconds, limit).await?.into_iter();
    let lagging = lagging.map(|(group, partition)| {
        let seconds = to_millis(partition.lag_seconds.unwrap_or_default());
        Lagging {
            consumer_group: group,
            queue_name: partition.queue,
            partition_name: partition.name,
            partition_id: partition.id,
            worker_id: partition.lease,
            offset_lag: partition.unread,
            time_lag_seconds: seconds,
            lag_hours: (seconds / 36.0).round() / 100.0,
            oldest_unconsumed_at: partition.unread_at.map(format_millis),
            last_consumed_at: partition.served_at.map(format_millis),
        }
    });
    answer::json(StatusCode::OK, &lagging.collect::<Vec<_>>())
}

/// Shows the positions of a consumer group, by queue. Empty for a group that reads nothing.
///
/// For a queue with more partitions than fit, or with more than 1,000, the notable partitions of the last measurement come
/// first, and the others by name.
#[utoipa::path(get, path = "/api/v1/consumer-groups/{group}", operation_id = "getGroup", tag = "consumer groups",
    params(("group" = String, Path), queries::GroupQuery),
    responses((status = 200, description = "By queue", body = HashMap<String, InQueue>), Failures))]
pub async fn detail(
    State(app): State<App>,
    Segments(group): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", &group)?;
    let queue = query.filled("queue");
    check_name("queue", queue.unwrap_or_default())?;
    let page = page_of(&query)?;
    let read = app.engine.groups(Some(&group), queue, QUEUES_MAX, 0).await?;
    let ids: Vec<Uuid> = read.iter().filter_map(|figures| figures.queue_id).collect();
    let mut queues: BTreeMap<String, InQueue> = BTreeMap::new();
    for figures in read.into_iter().filter(|figures| figures.queue_id.is_some()) {
        queues.insert(figures.queue, InQueue { partitions: Vec::new() });
    }
    let partitions = match (queue, ids.as_slice()) {
        (Some(_), [one]) => {
            app.engine.partition_page(Some(*one), Some(&group), page.search, page.limit, page.offset).await?
        }
        _ => app.engine.group_partitions(&ids, &group, page.limit).await?,
    };
    for partition in partitions {
        let Some(queue) = queues.get_mut(&partition.queue) else { continue };
        let held = partition.lease.and_then(|lease| app.engine.lease_holder(partition.id, &group, lease));
        queue.partitions.push(InPartition::new(partition, held));
    }
    answer::json(StatusCode::OK, &queues)
}

impl InPartition {
    fn new(partition: PartitionFigures, held: Option<Holder>) -> Self {
        Self {
            partition: partition.name,
            worker_id: partition.lease,
            held_by: held.map(|Holder { name, address }| HeldBy { name, address }),
            // A leased partition was last served when it was leased.
            leased_since: partition.served_at.filter(|_| partition.lease.is_some()).map(format_millis),
            lease_expires_at: partition.lease_until.map(format_millis),
            last_consumed_at: partition.served_at.map(format_millis),
            total_consumed: partition.cursor,
            offset_lag: partition.unread,
            time_lag_seconds: to_millis(partition.lag_seconds.unwrap_or_default()),
            lease_active: partition.lease.is_some(),
        }
    }
}

impl From<GroupFigures> for Group {
    fn from(group: GroupFigures) -> Self {
        let lag = to_millis(group.lag_seconds.unwrap_or_default());
        Self {
            topics: vec![group.queue.clone()],
            queue_name: group.queue,
            name: group.group,
            members: group.members,
            partitions_with_lag: group.pending_partitions,
            total_lag: group.unread,
            max_time_lag: lag,
            state: match group.served_at {
                None => "Dead",
                Some(_) if lag > LAGGING_SECONDS => "Lagging",
                Some(_) => "Stable",
            },
            // Registered by an earlier release, which did not store the word, or not registered.
            subscription_mode: group.mode.unwrap_or_else(|| match group.since {
                Some(_) => "timestamp".to_owned(),
                None => "all".to_owned(),
            }),
            subscription_timestamp: group.since.map(format_millis),
            subscription_created_at: group.registered_at.map(format_millis),
        }
    }
}

/// Deletes a consumer group from all queues.
///
/// Its cursors and leases are deleted; a group with the same name starts anew. It is not an error if the group does not exist.
#[utoipa::path(delete, path = "/api/v1/consumer-groups/{group}", operation_id = "deleteGroup",
    tag = "consumer groups", params(("group" = String, Path), queries::DeleteGroupQuery),
    responses((status = 200, description = "Deleted", body = Deleted<'static>), Failures))]
pub async fn delete(
    State(app): State<App>,
    Segments(group): Segments<String>,
    query: Query,
) -> Result<Response, ApiError> {
    delete_group(&app, &group, None, &query).await
}

/// Deletes a consumer group from one queue.
#[utoipa::path(delete, path = "/api/v1/consumer-groups/{group}/queues/{queue}",
    operation_id = "deleteGroupFromQueue", tag = "consumer groups",
    params(("group" = String, Path), ("queue" = String, Path), queries::DeleteGroupQuery),
    responses((status = 200, description = "Deleted", body = Deleted<'static>), Failures))]
pub async fn delete_from_queue(
    State(app): State<App>,
    Segments((group, queue)): Segments<(String, String)>,
    query: Query,
) -> Result<Response, ApiError> {
    check_name("queue", &queue)?;
    delete_group(&app, &group, Some(&queue), &query).await
}

/// Changes the time from which a group reads partitions that are new to it.
///
/// Changes existing registrations, adds none, and moves no cursor.
#[utoipa::path(post, path = "/api/v1/consumer-groups/{group}/subscription", operation_id = "setSubscription",
    tag = "consumer groups", params(("group" = String, Path)), request_body = SubscriptionBody,
    responses((status = 200, description = "Changed", body = Subscribed<'static>), Failures, TooLarge))]
pub async fn subscription(
    State(app): State<App>,
    Segments(group): Segments<String>,
    body: Body<SMALL>,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", &group)?;
    let wanted: SubscriptionBody = read_object(&body.0)?;
    let since = parse_time("subscriptionTimestamp", &wanted.subscription_timestamp)?;
    let rows_updated = app.engine.set_subscription(&group, since).await?;
    let new_timestamp = &wanted.subscription_timestamp;
    let answer = Subscribed { success: true, consumer_group: &group, new_timestamp, rows_updated };
    answer::json(StatusCode::OK, &answer)
}

async fn delete_group(
    app: &App,
    group: &str,
    queue: Option<&str>,
    query: &Query,
) -> Result<Response, ApiError> {
    check_name("consumerGroup", group)?;
    let deleted = app.engine.delete_group(group, queue, query.flag("deleteMetadata", true)).await?;
    let answer = Deleted {
        success: true,
        consumer_group: group,
        queue_name: queue,
        deleted_partitions: deleted.cursors,
        metadata_deleted: deleted.registrations,
    };
    answer::json(StatusCode::OK, &answer)
}
