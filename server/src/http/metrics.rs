//! `GET /metrics/prometheus`: what the broker counts, from its memory only, so that it answers while the database does not.

use std::fmt::{Display, Write};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use queen_engine::LaneCounts;

use crate::app::App;

const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// What the broker counts about itself, for Prometheus.
#[utoipa::path(get, path = "/metrics/prometheus", operation_id = "prometheus", tag = "broker",
    responses((status = 200, description = "Text in Prometheus' format", body = String, content_type = "text/plain")))]
pub async fn prometheus(State(app): State<App>) -> Response {
    (StatusCode::OK, [(CONTENT_TYPE, FORMAT)], text(&app)).into_response()
}

fn text(app: &App) -> String {
    let (stats, health) = (app.engine.stats(), app.engine.system_health());
    let (maintenance, spool) = (app.engine.maintenance(), app.engine.spool_stats());
    let mut page = Page::default();
    page.gauge("queen_db_pool_size", "Connections the message plane may have.", stats.connections);
    page.gauge("queen_db_pool_active", "Connections that carry a call.", stats.connections_busy);
    page.gauge("queen_db_pool_idle", "The others.", stats.connections - stats.connections_busy);
    page.gauge("queen_db_pool_waiting", "Callers that wait for a connection.", health.pool_waiting);
    page.gauge("queen_parked_pops", "Long polls that wait for messages.", stats.parked);
    page.gauge("queen_maintenance_mode_enabled", "Pushes go to the spool.", u8::from(maintenance.push));
    page.gauge("queen_pop_maintenance_mode_enabled", "Pops find nothing.", u8::from(maintenance.pop));
    page.gauge(
        "queen_file_buffer_pending",
        "Messages in the spool.",
        spool.map_or(0, |spool| spool.messages),
    );
    page.gauge("queen_file_buffer_bytes", "Their bytes.", spool.map_or(0, |spool| spool.bytes));
    let broken = spool.is_some_and(|spool| !spool.healthy);
    page.gauge("queen_file_buffer_failed", "The last write to the spool did not work.", u8::from(broken));
    let reached = u8::from(app.engine.reaches_database());
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
    page.head("queen_decisions_total", "counter", "What requests were told.");
    for (op, counts) in app.engine.load_counts() {
        for (decision, count) in
            [("execute", counts.executed), ("defer", counts.deferred), ("reject", counts.rejected)]
        {
            page.line(&format!("queen_decisions_total{{op=\"{op}\",decision=\"{decision}\"}}"), count);
        }
    }
    let (life, spans) = (app.engine.life_counts(), app.telemetry.counts());
    page.counter(
        "queen_life_events_recorded_total",
        "Events of traced messages that were recorded.",
        life.recorded,
    );
    page.counter("queen_life_events_dropped_total", "Those that were lost.", life.dropped);
    page.counter("queen_spans_exported_total", "Spans the collector has taken.", spans.exported);
    page.counter("queen_spans_dropped_total", "Spans it has not.", spans.dropped);
    let lanes: [(&str, &str, Count); 5] = [
        ("queen_sidecar_op_count", "Calls of a lane.", |lane| lane.flights),
        ("queen_sidecar_op_items", "Items in them.", |lane| lane.items),
        ("queen_sidecar_op_latency_microseconds", "Time in the database.", |lane| lane.database_us),
        ("queen_sidecar_op_waited_microseconds", "Longest wait for each call.", |lane| lane.waited_us),
        ("queen_sidecar_op_errors", "Calls that failed.", |lane| lane.errors),
    ];
    for (name, help, value) in lanes {
        page.head(name, "counter", help);
        for (op, counts) in &stats.lanes {
            page.line(&format!("{name}{{op=\"{op}\"}}"), value(counts));
        }
    }
    page.0
}

/// One of the numbers a lane counts.
type Count = fn(&LaneCounts) -> u64;

#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "counter", help);
        self.line(name, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, "gauge", help);
        self.line(name, value);
    }
}
