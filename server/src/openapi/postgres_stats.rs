//! The schema of `/api/v1/analytics/postgres-stats`. `postgres_stats.sql` writes the response.

#![expect(dead_code, reason = "described, never built")]

use utoipa::ToSchema;

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct PostgresStats {
    #[schema(format = DateTime)]
    timestamp: String,
    database: String,
    database_cache: DatabaseCache,
    table_cache: Vec<TableCache>,
    index_cache: Vec<IndexCache>,
    cache_summary: CacheSummary,
    dead_tuples: Vec<DeadTuples>,
    hot_updates: Vec<HotUpdates>,
    /// Statements that have been running for a second.
    active_queries: Vec<ActiveQuery>,
    autovacuum_status: Vec<AutovacuumStatus>,
    buffer_config: BufferConfig,
    /// Empty without the extension `pg_buffercache`.
    buffer_usage: Vec<BufferUsage>,
    table_sizes: Vec<TableSize>,
}

/// Blocks of 8 kB.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct DatabaseCache {
    database: String,
    disk_reads: i64,
    cache_hits: i64,
    /// Percent.
    cache_hit_ratio: f64,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct TableCache {
    table: String,
    disk_reads: i64,
    cache_hits: i64,
    cache_hit_ratio: f64,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct IndexCache {
    index: String,
    table: String,
    disk_reads: i64,
    cache_hits: i64,
    cache_hit_ratio: f64,
}

#[derive(ToSchema)]
pub struct CacheSummary {
    tables: CacheSum,
    indexes: CacheSum,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct CacheSum {
    disk_reads: i64,
    cache_hits: i64,
    cache_hit_ratio: f64,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct DeadTuples {
    table: String,
    live_tuples: i64,
    dead_tuples: i64,
    dead_percentage: f64,
    #[schema(required, format = DateTime)]
    last_vacuum: Option<String>,
    #[schema(required, format = DateTime)]
    last_autovacuum: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct HotUpdates {
    table: String,
    total_updates: i64,
    hot_updates: i64,
    hot_update_percentage: f64,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct ActiveQuery {
    pid: i64,
    #[schema(required)]
    state: Option<String>,
    /// Seconds.
    duration: f64,
    #[schema(required)]
    wait_event_type: Option<String>,
    #[schema(required)]
    wait_event: Option<String>,
    #[schema(required)]
    user: Option<String>,
    /// Shown only for Queen's own sessions.
    #[schema(required)]
    query: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct AutovacuumStatus {
    table: String,
    dead_tuples: i64,
    autovacuum_count: i64,
    vacuum_count: i64,
    #[schema(required, format = DateTime)]
    last_autovacuum: Option<String>,
    #[schema(required, format = DateTime)]
    last_autoanalyze: Option<String>,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct BufferConfig {
    /// Blocks of 8 kB.
    shared_buffers: i64,
    /// With a unit.
    shared_buffers_size: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct BufferUsage {
    object: String,
    buffered_size: String,
    percent_of_cache: f64,
}

#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
pub struct TableSize {
    table: String,
    total_size: String,
    table_size: String,
    index_size: String,
    total_bytes: i64,
}
