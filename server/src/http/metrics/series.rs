//! What the broker counts about itself and knows of its database, name by name. All of it is in memory.

use std::time::Duration;

use queen_engine::{CacheStats, Engine, Facts, LaneCounts, Severity, Table, process};

use super::page::Page;
use crate::app::App;
use crate::auth::audit::Audit;
use crate::auth::refusal::Denied;
use crate::limits::Limit;
use crate::meter::Meter;

/// What was known about the database this long ago says nothing about now.
const FACTS_AGE_MAX: Duration = Duration::from_secs(300);
const MICROSECONDS_PER_SECOND: f64 = 1e6;

pub fn process(page: &mut Page, meter: &Meter) {
    let usage = process::usage();
    page.family("queen_build_info", "gauge", "The version of this broker; always 1.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge("queen_uptime_seconds", "Since the broker has started.", meter.uptime().as_secs_f64());
    page.gauge(
        "queen_process_resident_memory_bytes",
        "Memory of the process; 0 where it cannot be told.",
        usage.rss_bytes,
    );
    page.gauge("queen_process_threads", "Threads of the process.", usage.threads);
    let mut cpu = page.family("queen_process_cpu_seconds_total", "counter", "Processor time of the process.");
    for (mode, micros) in [("user", usage.user_us), ("system", usage.system_us)] {
        cpu.sample(&[("mode", mode)], micros as f64 / MICROSECONDS_PER_SECOND);
    }
}

pub fn http(page: &mut Page, meter: &Meter) {
    page.gauge("queen_http_connections", "Connections of clients that are open.", meter.connections());
    let help = "Time from a request's head to its answer. Pops that wait are in it with their waiting.";
    let mut durations = page.family("queen_http_request_duration_seconds", "histogram", help);
    for (route, class, spread) in meter.spreads() {
        durations.histogram(&[("route", route), ("status", class)], &spread, MICROSECONDS_PER_SECOND);
    }
}

/// Whom it was refused to is in no label: there may be as many clients as anybody likes.
pub fn limits(page: &mut Page, app: &App) {
    page.gauge(
        "queen_http_connections_max",
        "Connections of clients there may be.",
        app.limits.admission.limit(),
    );
    let mut refused = page.family("queen_refused_total", "counter", "What was refused because of a limit.");
    for limit in Limit::ALL {
        refused.sample(&[("limit", limit.word())], app.limits.refused(limit));
    }
    refused.sample(&[("limit", "partitions")], app.engine.stats().partitions_refused);
    refused.sample(&[("limit", "queues")], app.engine.stats().queues_refused);
}

/// Who was refused is in the audit log: there may be as many of them as anybody likes.
pub fn access(page: &mut Page, audit: &Audit) {
    let help = "Requests refused for their credentials: 401 and 403, and wrong keys sent to an open page.";
    let mut refused = page.family("queen_auth_refused_total", "counter", help);
    for denied in Denied::ALL {
        let status = denied.status().to_string();
        refused.sample(&[("status", &status), ("reason", denied.word())], audit.refused(denied));
    }
}

pub fn broker(page: &mut Page, engine: &Engine) {
    let (stats, health) = (engine.stats(), engine.system_health());
    page.gauge("queen_db_pool_size", "Connections the message plane may have.", stats.connections);
    page.gauge("queen_db_pool_active", "Connections that carry a call.", stats.connections_busy);
    page.gauge("queen_db_pool_idle", "The others.", stats.connections - stats.connections_busy);
    page.gauge("queen_db_pool_waiting", "Callers that wait for a connection.", health.pool_waiting);
    page.gauge("queen_parked_pops", "Long polls that wait for messages.", stats.parked);
    let mut lists =
        page.family("queen_ready_partitions", "gauge", "Partitions in the ready lists of all groups.");
    lists.sample(&[("state", "ready")], stats.ready);
    lists.sample(&[("state", "held")], stats.listed.saturating_sub(stats.ready));
    page.gauge("queen_leases", "Leases granted here whose messages are not all acknowledged.", stats.leases);
    page.gauge("queen_tasks", "Flights and background loops that are running.", stats.tasks);
    caches(page, [("segments", stats.segment_cache), ("dedup", stats.dedup_cache)]);
    lanes(page, &stats.lanes, engine);
}

fn caches(page: &mut Page, caches: [(&'static str, CacheStats); 2]) {
    let mut bytes = page.family("queen_cache_bytes", "gauge", "Memory of a cache.");
    for (cache, stats) in caches {
        bytes.sample(&[("cache", cache)], stats.bytes);
    }
    let mut lookups = page.family(
        "queen_cache_lookups_total",
        "counter",
        "What a cache could answer, and what it could not.",
    );
    for (cache, stats) in caches {
        lookups.sample(&[("cache", cache), ("result", "hit")], stats.hits);
        lookups.sample(&[("cache", cache), ("result", "miss")], stats.misses);
    }
}

/// One of the numbers a lane counts.
type Count = fn(&LaneCounts) -> u64;

fn lanes(page: &mut Page, lanes: &[(&'static str, LaneCounts)], engine: &Engine) {
    let counts: [(&str, &str, Count); 5] = [
        ("queen_sidecar_op_count", "Flights of a lane.", |lane| lane.flights),
        ("queen_sidecar_op_items", "Items in them.", |lane| lane.items),
        ("queen_sidecar_op_latency_microseconds", "Time in the database.", |lane| lane.database_us),
        ("queen_flight_errors_total", "Flights that failed.", |lane| lane.errors),
        ("queen_flight_retries_total", "Flights that were tried again.", |lane| lane.retries),
    ];
    for (name, help, value) in counts {
        let mut family = page.family(name, "counter", help);
        for (op, counts) in lanes {
            family.sample(&[("op", op)], value(counts));
        }
    }
    let mut waiting = page.family("queen_lane_waiting", "gauge", "Entries that wait for a flight.");
    for (lane, entries) in engine.waiting() {
        waiting.sample(&[("lane", lane)], entries);
    }
    let spreads = engine.spreads();
    let mut items = page.family("queen_flight_items", "histogram", "Items a flight carries.");
    for (op, spread) in &spreads {
        items.histogram(&[("op", op)], &spread.items, 1.0);
    }
    let help = "Time an entry waits for its flight, the longest of each flight.";
    let mut waited = page.family("queen_flight_waited_seconds", "histogram", help);
    for (op, spread) in &spreads {
        waited.histogram(&[("op", op)], &spread.waited_us, MICROSECONDS_PER_SECOND);
    }
    let help = "Time a flight is in the database, with retries.";
    let mut database = page.family("queen_flight_database_seconds", "histogram", help);
    for (op, spread) in &spreads {
        database.histogram(&[("op", op)], &spread.database_us, MICROSECONDS_PER_SECOND);
    }
}

pub fn traces(page: &mut Page, app: &App) {
    let (life, spans) = (app.engine.life_counts(), app.telemetry.counts());
    for (name, help, count) in [
        ("queen_life_events_recorded_total", "Events of traced messages that were recorded.", life.recorded),
        ("queen_life_events_dropped_total", "Those that were lost.", life.dropped),
        ("queen_spans_exported_total", "Spans the collector has taken.", spans.exported),
        ("queen_spans_dropped_total", "Spans it has not.", spans.dropped),
    ] {
        page.family(name, "counter", help).sample(&[], count);
    }
}

pub fn load(page: &mut Page, engine: &Engine) {
    let (maintenance, spool, health) = (engine.maintenance(), engine.spool_stats(), engine.system_health());
    page.gauge("queen_maintenance_mode_enabled", "Pushes go to the spool.", u8::from(maintenance.push));
    page.gauge("queen_pop_maintenance_mode_enabled", "Pops find nothing.", u8::from(maintenance.pop));
    page.gauge(
        "queen_file_buffer_pending",
        "Messages in the spool.",
        spool.map_or(0, |spool| spool.messages),
    );
    page.gauge("queen_file_buffer_bytes", "Their bytes.", spool.map_or(0, |spool| spool.bytes));
    page.gauge(
        "queen_file_buffer_limit_bytes",
        "How much the spool may hold; 0 without one.",
        spool.map_or(0, |spool| spool.bytes_max),
    );
    let broken = spool.is_some_and(|spool| !spool.healthy);
    page.gauge("queen_file_buffer_failed", "The last write to the spool did not work.", u8::from(broken));
    let reached = u8::from(engine.reaches_database());
    page.gauge("queen_file_buffer_db_healthy", "The database could be reached when last tried.", reached);
    page.gauge(
        "queen_deferred_depth",
        "Deferred operations that are open, of all brokers.",
        health.queue_depth,
    );
    page.gauge("queen_deferred_oldest_seconds", "Age of the oldest of them.", health.oldest_age_seconds);
    page.gauge(
        "queen_deferred_drain_rate",
        "Operations this broker finishes a second, of late.",
        health.drain_rate,
    );
    let mut decisions = page.family("queen_decisions_total", "counter", "What requests were told.");
    for (op, counts) in engine.load_counts() {
        for (decision, count) in
            [("execute", counts.executed), ("defer", counts.deferred), ("reject", counts.rejected)]
        {
            decisions.sample(&[("op", op), ("decision", decision)], count);
        }
    }
}

/// What the last look of the doctor has found. Names are there from the start, samples once there was a look.
pub fn database(page: &mut Page, engine: &Engine) {
    page.gauge(
        "queen_database_up",
        "The database could be reached when last tried.",
        u8::from(engine.reaches_database()),
    );
    page.gauge(
        "queen_database_latency_seconds",
        "How long the database took for a small question, the last time it answered.",
        engine.database_latency().as_secs_f64(),
    );
    let latest = engine.findings();
    let examined = latest.as_deref().filter(|latest| latest.age() < FACTS_AGE_MAX);
    let mut age =
        page.family("queen_database_examined_age_seconds", "gauge", "Since the doctor last looked.");
    if let Some(latest) = &latest {
        age.sample(&[], latest.age().as_secs_f64());
    }
    let mut findings =
        page.family("queen_doctor_findings", "gauge", "What the doctor has found, by severity.");
    for severity in Severity::ALL {
        if let Some(examined) = examined {
            let count = examined.findings.iter().filter(|finding| finding.severity == severity).count();
            findings.sample(&[("severity", severity.word())], count);
        }
    }
    let mut codes =
        page.family("queen_doctor_finding", "gauge", "The same by code; 1 or more of each that was found.");
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
        "How far this machine's clock is ahead of the database's.",
    );
    if let Some(examined) = examined {
        offset.sample(&[], examined.clock_offset_seconds);
    }
    facts(page, examined.and_then(|examined| examined.facts.as_ref()));
}

/// One of the numbers known about the database; `None`: not known.
type Fact = fn(&Facts) -> Option<f64>;
type OfTable = fn(&Table) -> i64;

fn facts(page: &mut Page, facts: Option<&Facts>) {
    let single: [(&str, &str, Fact); 12] = [
        (
            "queen_database_oldest_xmin_age_seconds",
            "How long the oldest transaction has been open that keeps old row versions; 0 without one.",
            |facts| Some(facts.oldest_xmin_seconds()),
        ),
        (
            "queen_database_oldest_xmin_age_transactions",
            "The same in transactions, replication slots included.",
            |facts| Some(facts.oldest_xmin_transactions() as f64),
        ),
        ("queen_database_wraparound_age_transactions", "Age of the oldest row of the database.", |facts| {
            Some(facts.wraparound.transactions as f64)
        }),
        ("queen_database_connections", "Sessions of clients on the server.", |facts| {
            Some(facts.sessions.clients as f64)
        }),
        ("queen_database_connections_max", "What the server allows of them.", |facts| {
            Some((facts.settings.max_connections - facts.settings.reserved_connections) as f64)
        }),
        ("queen_brokers", "Brokers that are connected to the database.", |facts| {
            Some(facts.sessions.brokers as f64)
        }),
        ("queen_extents", "Tables the log is in.", |facts| {
            Some(facts.contents.as_ref()?.extents.count as f64)
        }),
        ("queen_extents_oldest_age_seconds", "Age of the oldest of them.", |facts| {
            facts.contents.as_ref()?.extents.oldest_seconds
        }),
        ("queen_deferred_failed", "Deferred operations that have failed and wait for somebody.", |facts| {
            Some(facts.contents.as_ref()?.deferred.failed as f64)
        }),
        (
            "queen_live_leases",
            "Leases of all groups; not counted where there are very many cursors.",
            |facts| Some(facts.leases.as_ref()?.live as f64),
        ),
        ("queen_oldest_lease_age_seconds", "How long the oldest of them has been held.", |facts| {
            Some(facts.leases.as_ref()?.oldest_seconds.unwrap_or(0.0))
        }),
        ("queen_orphaned_leases", "Leases held for acknowledgements that do not exist.", |facts| {
            Some(facts.leases.as_ref()?.orphaned as f64)
        }),
    ];
    for (name, help, value) in single {
        let mut family = page.family(name, "gauge", help);
        if let Some(value) = facts.and_then(value) {
            family.sample(&[], value);
        }
    }
    let tables = facts.map_or(&[][..], |facts| &facts.tables);
    let by_table: [(&str, &str, OfTable); 5] = [
        ("queen_database_live_tuples", "Live rows of a table of Queen.", |table| table.live),
        ("queen_database_dead_tuples", "Row versions in it that vacuum has to remove.", |table| table.dead),
        ("queen_database_table_bytes", "Its size with indexes at the last vacuum.", |table| table.bytes),
        ("queen_database_updates_total", "Updates of its rows.", |table| table.updates),
        ("queen_database_hot_updates_total", "Those of them that did not write to indexes.", |table| {
            table.hot_updates
        }),
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
        "WAL the server keeps for a replication slot.",
    );
    for slot in facts.map_or(&[][..], |facts| &facts.slots) {
        let active = if slot.active { "true" } else { "false" };
        slots.sample(&[("slot", &slot.name), ("active", active)], slot.wal_bytes);
    }
}
