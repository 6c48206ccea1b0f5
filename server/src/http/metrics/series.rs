//! The metrics of the broker and its database, name by name. All values are in memory.

use std::time::Duration;

use queen_engine::{CacheStats, Engine, Facts, LaneCounts, Severity, Table, process};

use super::page::Page;
use crate::app::App;
use crate::auth::audit::Audit;
use crate::auth::refusal::Denied;
use crate::limits::Limit;
use crate::meter::Meter;

/// Older facts about the database are not reported.
const FACTS_AGE_MAX: Duration = Duration::from_secs(300);
const MICROSECONDS_PER_SECOND: f64 = 1e6;

pub fn process(page: &mut Page, meter: &Meter) {
    let usage = process::usage();
    page.family("queen_build_info", "gauge", "Version of this broker, in a label. Always 1.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge("queen_uptime_seconds", "Time since the broker started.", meter.uptime().as_secs_f64());
    page.gauge(
        "queen_process_resident_memory_bytes",
        "Resident memory of the process, or 0 if unknown.",
        usage.rss_bytes,
    );
    page.gauge("queen_process_threads", "Threads of the process.", usage.threads);
    let mut cpu = page.family("queen_process_cpu_seconds_total", "counter", "CPU time of the process.");
    for (mode, micros) in [("user", usage.user_us), ("system", usage.system_us)] {
        cpu.sample(&[("mode", mode)], micros as f64 / MICROSECONDS_PER_SECOND);
    }
}

pub fn http(page: &mut Page, meter: &Meter) {
    page.gauge("queen_http_connections", "Open client connections.", meter.connections());
    let help = "Time from the head of a request to its response, including the wait of long polls.";
    let mut durations = page.family("queen_http_request_duration_seconds", "histogram", help);
    for (route, class, spread) in meter.spreads() {
        durations.histogram(&[("route", route), ("status", class)], &spread, MICROSECONDS_PER_SECOND);
    }
}

/// The client is not a label: the number of clients is not bounded.
pub fn limits(page: &mut Page, app: &App) {
    page.gauge("queen_http_connections_max", "Maximum client connections.", app.limits.admission.limit());
    let mut refused = page.family(
        "queen_refused_total",
        "counter",
        "Requests, connections and messages refused because of a limit.",
    );
    for limit in Limit::ALL {
        refused.sample(&[("limit", limit.word())], app.limits.refused(limit));
    }
    refused.sample(&[("limit", "partitions")], app.engine.stats().partitions_refused);
    refused.sample(&[("limit", "queues")], app.engine.stats().queues_refused);
}

/// The caller is not a label, because their number is not bounded; the audit log has it.
pub fn access(page: &mut Page, audit: &Audit) {
    let help = "Requests refused with 401 or 403, and invalid credentials sent to an open path.";
    let mut refused = page.family("queen_auth_refused_total", "counter", help);
    for denied in Denied::ALL {
        let status = denied.status().to_string();
        refused.sample(&[("status", &status), ("reason", denied.word())], audit.refused(denied));
    }
}

pub fn broker(page: &mut Page, engine: &Engine) {
    let (stats, health) = (engine.stats(), engine.system_health());
    page.gauge("queen_db_pool_size", "Size of the database connection pool.", stats.connections);
    page.gauge(
        "queen_db_pool_active",
        "Database connections that are executing a call.",
        stats.connections_busy,
    );
    page.gauge(
        "queen_db_pool_idle",
        "Idle database connections.",
        stats.connections - stats.connections_busy,
    );
    page.gauge("queen_db_pool_waiting", "Callers waiting for a database connection.", health.pool_waiting);
    page.gauge("queen_parked_pops", "Long polls waiting for messages.", stats.parked);
    let mut lists = page.family(
        "queen_ready_partitions",
        "gauge",
        "Partitions in the ready lists of all groups: ready to deliver, or held back.",
    );
    lists.sample(&[("state", "ready")], stats.ready);
    lists.sample(&[("state", "held")], stats.listed.saturating_sub(stats.ready));
    page.gauge(
        "queen_leases",
        "Leases granted by this broker that are not fully acknowledged.",
        stats.leases,
    );
    page.gauge("queen_tasks", "Running flights and background jobs.", stats.tasks);
    caches(page, [("segments", stats.segment_cache), ("dedup", stats.dedup_cache)]);
    lanes(page, &stats.lanes, engine);
}

fn caches(page: &mut Page, caches: [(&'static str, CacheStats); 2]) {
    let mut bytes = page.family("queen_cache_bytes", "gauge", "Memory used by a cache.");
    for (cache, stats) in caches {
        bytes.sample(&[("cache", cache)], stats.bytes);
    }
    let mut lookups = page.family("queen_cache_lookups_total", "counter", "Cache lookups, by result.");
    for (cache, stats) in caches {
        lookups.sample(&[("cache", cache), ("result", "hit")], stats.hits);
        lookups.sample(&[("cache", cache), ("result", "miss")], stats.misses);
    }
}

/// One of the numbers a lane counts.
type Count = fn(&LaneCounts) -> u64;

fn lanes(page: &mut Page, lanes: &[(&'static str, LaneCounts)], engine: &Engine) {
    let counts: [(&str, &str, Count); 5] = [
        ("queen_sidecar_op_count", "Flights of a lane (batched database calls).", |lane| lane.flights),
        ("queen_sidecar_op_items", "Items carried by the flights of a lane.", |lane| lane.items),
        (
            "queen_sidecar_op_latency_microseconds",
            "Total time that the flights of a lane spent in the database.",
            |lane| lane.database_us,
        ),
        ("queen_flight_errors_total", "Flights that failed.", |lane| lane.errors),
        ("queen_flight_retries_total", "Flights that were retried.", |lane| lane.retries),
    ];
    for (name, help, value) in counts {
        let mut family = page.family(name, "counter", help);
        for (op, counts) in lanes {
            family.sample(&[("op", op)], value(counts));
        }
    }
    let mut waiting = page.family(
        "queen_lane_waiting",
        "gauge",
        "Entries waiting for a flight. Pops and acks share the lane `consume`.",
    );
    for (lane, entries) in engine.waiting() {
        waiting.sample(&[("lane", lane)], entries);
    }
    let spreads = engine.spreads();
    let mut items = page.family("queen_flight_items", "histogram", "Items per flight.");
    for (op, spread) in &spreads {
        items.histogram(&[("op", op)], &spread.items, 1.0);
    }
    let help = "Time that entries waited for their flight: the longest wait of each flight.";
    let mut waited = page.family("queen_flight_waited_seconds", "histogram", help);
    for (op, spread) in &spreads {
        waited.histogram(&[("op", op)], &spread.waited_us, MICROSECONDS_PER_SECOND);
    }
    let help = "Time of a flight in the database, including retries.";
    let mut database = page.family("queen_flight_database_seconds", "histogram", help);
    for (op, spread) in &spreads {
        database.histogram(&[("op", op)], &spread.database_us, MICROSECONDS_PER_SECOND);
    }
}

pub fn traces(page: &mut Page, app: &App) {
    let (life, spans) = (app.engine.life_counts(), app.telemetry.counts());
    for (name, help, count) in [
        ("queen_life_events_recorded_total", "Events of traced messages that were recorded.", life.recorded),
        ("queen_life_events_dropped_total", "Events of traced messages that were dropped.", life.dropped),
        ("queen_spans_exported_total", "Spans that the collector has accepted.", spans.exported),
        (
            "queen_spans_dropped_total",
            "Spans that were dropped or that the collector did not accept.",
            spans.dropped,
        ),
    ] {
        page.family(name, "counter", help).sample(&[], count);
    }
}

pub fn load(page: &mut Page, engine: &Engine) {
    let (maintenance, spool, health) = (engine.maintenance(), engine.spool_stats(), engine.system_health());
    page.gauge(
        "queen_maintenance_mode_enabled",
        "1 while maintenance mode sends pushes to the spool.",
        u8::from(maintenance.push),
    );
    page.gauge(
        "queen_pop_maintenance_mode_enabled",
        "1 while maintenance mode makes pops return nothing.",
        u8::from(maintenance.pop),
    );
    page.gauge(
        "queen_file_buffer_pending",
        "Messages in the spool.",
        spool.map_or(0, |spool| spool.messages),
    );
    page.gauge("queen_file_buffer_bytes", "Size of the spool.", spool.map_or(0, |spool| spool.bytes));
    page.gauge(
        "queen_file_buffer_limit_bytes",
        "Maximum size of the spool, or 0 without a spool.",
        spool.map_or(0, |spool| spool.bytes_max),
    );
    let broken = spool.is_some_and(|spool| !spool.healthy);
    page.gauge("queen_file_buffer_failed", "1 if the last write to the spool failed.", u8::from(broken));
    let reached = u8::from(engine.reaches_database());
    page.gauge("queen_file_buffer_db_healthy", "The same as queen_database_up.", reached);
    page.gauge("queen_deferred_depth", "Open deferred operations of all brokers.", health.queue_depth);
    page.gauge(
        "queen_deferred_oldest_seconds",
        "Age of the oldest open deferred operation.",
        health.oldest_age_seconds,
    );
    page.gauge(
        "queen_deferred_drain_rate",
        "Deferred operations that this broker currently finishes per second.",
        health.drain_rate,
    );
    let mut decisions = page.family(
        "queen_decisions_total",
        "counter",
        "Decisions of the load monitor: execute, defer or reject a request.",
    );
    for (op, counts) in engine.load_counts() {
        for (decision, count) in
            [("execute", counts.executed), ("defer", counts.deferred), ("reject", counts.rejected)]
        {
            decisions.sample(&[("op", op), ("decision", decision)], count);
        }
    }
}

/// What the doctor found last. Names are present from the start, samples after the first examination.
pub fn database(page: &mut Page, engine: &Engine) {
    page.gauge(
        "queen_database_up",
        "1 if the last attempt to reach the database succeeded.",
        u8::from(engine.reaches_database()),
    );
    page.gauge(
        "queen_database_latency_seconds",
        "Time that the database took for its last health check.",
        engine.database_latency().as_secs_f64(),
    );
    let latest = engine.findings();
    let examined = latest.as_deref().filter(|latest| latest.age() < FACTS_AGE_MAX);
    let mut age = page.family(
        "queen_database_examined_age_seconds",
        "gauge",
        "Time since the last examination of the database.",
    );
    if let Some(latest) = &latest {
        age.sample(&[], latest.age().as_secs_f64());
    }
    let mut findings = page.family("queen_doctor_findings", "gauge", "Findings of the doctor, by severity.");
    for severity in Severity::ALL {
        if let Some(examined) = examined {
            let count = examined.findings.iter().filter(|finding| finding.severity == severity).count();
            findings.sample(&[("severity", severity.word())], count);
        }
    }
    let mut codes = page.family("queen_doctor_finding", "gauge", "Findings of the doctor, by code.");
    if let Some(examined) = examined {
        let mut seen: Vec<(&str, &str)> =
            examined.findings.iter().map(|finding| (finding.code, finding.severity.word())).collect();
        seen.sort_unstable();
        for group in seen.chunk_by(|a, b| a == b) {
            let (code, severity) = group[0];
            codes.sample(&[("code", code), ("severity", severity)], group.len());
        }
    }
    let mut offset = page.family(
        "queen_database_clock_offset_seconds",
        "gauge",
        "How far the clock of this machine is ahead of that of the database.",
    );
    if let Some(examined) = examined {
        offset.sample(&[], examined.clock_offset_seconds);
    }
    facts(page, examined.and_then(|examined| examined.facts.as_ref()));
}

/// A number about the database; `None` if it is not known.
type Fact = fn(&Facts) -> Option<f64>;
type OfTable = fn(&Table) -> i64;

fn facts(page: &mut Page, facts: Option<&Facts>) {
    let single: [(&str, &str, Fact); 12] = [
        (
            "queen_database_oldest_xmin_age_seconds",
            "Age of the oldest transaction that keeps old row versions from being removed, or 0.",
            |facts| Some(facts.oldest_xmin_seconds()),
        ),
        (
            "queen_database_oldest_xmin_age_transactions",
            "Transactions since the oldest one that keeps old row versions, including replication slots.",
            |facts| Some(facts.oldest_xmin_transactions() as f64),
        ),
        (
            "queen_database_wraparound_age_transactions",
            "Age of the oldest unfrozen row of the database, in transactions.",
            |facts| Some(facts.wraparound.transactions as f64),
        ),
        ("queen_database_connections", "Client sessions on the PostgreSQL server.", |facts| {
            Some(facts.sessions.clients as f64)
        }),
        ("queen_database_connections_max", "Maximum client sessions of the PostgreSQL server.", |facts| {
            Some((facts.settings.max_connections - facts.settings.reserved_connections) as f64)
        }),
        ("queen_brokers", "Brokers connected to the database.", |facts| Some(facts.sessions.brokers as f64)),
        ("queen_extents", "Extents of the log, which are tables.", |facts| {
            Some(facts.contents.as_ref()?.extents.count as f64)
        }),
        ("queen_extents_oldest_age_seconds", "Age of the oldest extent.", |facts| {
            facts.contents.as_ref()?.extents.oldest_seconds
        }),
        (
            "queen_deferred_failed",
            "Failed deferred operations, which have to be retried or canceled by hand.",
            |facts| Some(facts.contents.as_ref()?.deferred.failed as f64),
        ),
        (
            "queen_live_leases",
            "Live leases of all groups; absent if there are too many cursors to count them.",
            |facts| Some(facts.leases.as_ref()?.live as f64),
        ),
        ("queen_oldest_lease_age_seconds", "Age of the oldest live lease.", |facts| {
            Some(facts.leases.as_ref()?.oldest_seconds.unwrap_or(0.0))
        }),
        (
            "queen_orphaned_leases",
            "Leases held for deferred acknowledgements that no longer exist.",
            |facts| Some(facts.leases.as_ref()?.orphaned as f64),
        ),
    ];
    for (name, help, value) in single {
        let mut family = page.family(name, "gauge", help);
        if let Some(value) = facts.and_then(value) {
            family.sample(&[], value);
        }
    }
    let tables = facts.map_or(&[][..], |facts| &facts.tables);
    let by_table: [(&str, &str, OfTable); 5] = [
        ("queen_database_live_tuples", "Live rows of a table.", |table| table.live),
        (
            "queen_database_dead_tuples",
            "Dead row versions of a table, which vacuum has to remove.",
            |table| table.dead,
        ),
        ("queen_database_table_bytes", "Size of a table with its indexes, as of the last vacuum.", |table| {
            table.bytes
        }),
        ("queen_database_updates_total", "Row updates of a table.", |table| table.updates),
        (
            "queen_database_hot_updates_total",
            "Row updates of a table that did not write to its indexes (HOT).",
            |table| table.hot_updates,
        ),
    ];
    for (name, help, value) in by_table {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let mut family = page.family(name, kind, help);
        for table in tables {
            family.sample(&[("table", &table.name)], value(table));
        }
    }
    let mut slots = page.family(
        "queen_database_replication_slot_bytes",
        "gauge",
        "WAL that the server keeps for a replication slot.",
    );
    for slot in facts.map_or(&[][..], |facts| &facts.slots) {
        let active = if slot.active { "true" } else { "false" };
        slots.sample(&[("slot", &slot.name), ("active", active)], slot.wal_bytes);
    }
}
