//! A broker's metrics: with traffic, without, and without its database.

use queen_testkit::{Database, Proxy, cluster_with};
use serde_json::json;

use crate::exposition::Exposition;
use crate::support::{Server, eventually, numbers};

async fn page(server: &Server) -> Exposition {
    let reply = server.get("/metrics/prometheus").await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4");
    Exposition::check(&reply.text).unwrap_or_else(|error| panic!("{error}\n{}", reply.text))
}

/// Names that published dashboards rely on.
const PROMISED: [&str; 12] = [
    "queen_uptime_seconds",
    "queen_process_resident_memory_bytes",
    "queen_db_pool_size",
    "queen_db_pool_idle",
    "queen_db_pool_active",
    "queen_maintenance_mode_enabled",
    "queen_file_buffer_pending",
    "queen_file_buffer_failed",
    "queen_file_buffer_db_healthy",
    "queen_sidecar_op_count",
    "queen_sidecar_op_latency_microseconds",
    "queen_sidecar_op_items",
];

#[tokio::test]
async fn every_metric_is_documented() {
    let server = Server::start().await;
    let page = server.get("/metrics/prometheus").await.text;
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let mut documented: Vec<&str> = docs.lines().filter(|line| line.starts_with("| `queen_")).collect();
    let mut described = page.lines().filter_map(|line| line.strip_prefix("# HELP "));
    let mut kinds = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    while let (Some(help), Some(kind)) = (described.next(), kinds.next()) {
        let ((name, help), (_, kind)) = (help.split_once(' ').unwrap(), kind.split_once(' ').unwrap());
        let (begin, end) = (format!("| `{name}` | {kind} | "), format!(" | {help} |"));
        let before = documented.len();
        documented.retain(|row| !(row.starts_with(&begin) && row.ends_with(&end)));
        assert_eq!(documented.len(), before - 1, "docs/metrics.md must have {begin}labels{end}");
    }
    assert_eq!(documented, [""; 0], "docs/metrics.md documents what no broker has");
}

#[tokio::test]
async fn the_page_holds_together_and_follows_the_traffic() {
    let server = Server::start().await;
    let quiet = page(&server).await;
    for name in PROMISED {
        assert!(quiet.kinds.contains_key(name), "{name}");
    }
    assert_eq!(quiet.value("queen_flight_items_count", &[("op", "push")]), Some(0.0));
    assert_eq!(quiet.value("queen_database_up", &[]), Some(1.0));
    assert_eq!(quiet.value("queen_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), Some(1.0));

    server.push("q", "p", &numbers(0..30)).await;
    let popped = server.pop("/queue/q?batch=10").await.unwrap();
    server.ack(&popped.messages[9], "completed").await;
    server.pop("/queue/q?batch=5").await.unwrap();
    assert_eq!(server.get("/no/such/route").await.status, 404);
    assert_eq!(server.post("/api/v1/push", json!({"items": 7})).await.status, 400);
    let busy = page(&server).await;
    let value = |name: &str, labels: &[(&str, &str)]| {
        busy.value(name, labels).unwrap_or_else(|| panic!("{name} {labels:?}"))
    };
    assert_eq!(value("queen_sidecar_op_items", &[("op", "push")]), 30.0);
    assert_eq!(value("queen_flight_items_sum", &[("op", "push")]), 30.0);
    assert_eq!(value("queen_flight_items_bucket", &[("op", "push"), ("le", "25")]), 0.0);
    assert_eq!(value("queen_flight_items_bucket", &[("op", "push"), ("le", "50")]), 1.0);
    assert!(value("queen_flight_database_seconds_sum", &[("op", "pop")]) > 0.0);
    assert_eq!(value("queen_flight_waited_seconds_count", &[("op", "ack")]), 1.0);
    let requests = |route, status| {
        let labels = [("route", route), ("status", status)];
        value("queen_http_request_duration_seconds_count", &labels)
    };
    assert_eq!((requests("/api/v1/push", "2xx"), requests("/api/v1/push", "4xx")), (1.0, 1.0));
    assert_eq!((requests("/api/v1/pop/queue/{queue}", "2xx"), requests("other", "4xx")), (2.0, 1.0));
    assert_eq!(value("queen_leases", &[]), 1.0);
    assert_eq!(value("queen_cache_lookups_total", &[("cache", "segments"), ("result", "hit")]), 2.0);
    assert!(value("queen_cache_bytes", &[("cache", "segments")]) > 0.0);
    assert!(value("queen_http_connections", &[]) >= 1.0 && value("queen_tasks", &[]) >= 1.0);
    assert!(value("queen_process_resident_memory_bytes", &[]) > 1e6);
    assert!(value("queen_database_latency_seconds", &[]) > 0.0);

    for (name, labels) in busy.samples.iter().map(|sample| (&sample.name, &sample.labels)) {
        let counter = busy.kinds.get(name).is_some_and(|kind| kind == "counter");
        let labels: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        if let (true, Some(before)) = (counter, quiet.value(name, &labels)) {
            assert!(value(name, &labels) >= before, "{name} went down");
        }
    }
}

#[tokio::test]
async fn without_a_database_the_pages_still_answer_and_say_so() {
    let database = queen_testkit::database().await;
    let proxy = Proxy::to_postgres(database.url()).await;
    let server = Server::start_on(database.into(), proxy.url(), &[]).await;
    proxy.refuse(true);
    proxy.cut();
    eventually("the outage is seen", async || {
        let page = page(&server).await;
        (page.value("queen_database_up", &[]) == Some(0.0)).then_some(())
    })
    .await;
    let page = page(&server).await;
    assert_eq!(page.value("queen_file_buffer_db_healthy", &[]), Some(0.0));
    let reply = server.get("/metrics").await;
    assert_eq!((reply.status, &reply.json()["database"]["connected"]), (200, &json!(false)));
    let reply = server.get("/api/v1/system/doctor").await;
    assert_eq!(reply.status, 200, "what was found before is still known");
    assert_eq!((&reply.json()["healthy"], &reply.json()["reachable"]), (&json!(false), &json!(false)));
    let reply = server.get("/api/v1/system/doctor?fresh=true").await;
    assert!(reply.is_error(503, "unavailable"), "{}", reply.text);
}

#[tokio::test]
async fn the_json_page_counts_requests_messages_and_lanes() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..3)).await;
    let popped = server.pop("/queue/q").await.unwrap();
    let extend = format!("/api/v1/lease/{}/extend", popped.body["leaseId"].as_str().unwrap());
    server.call(&extend, json!({})).await;
    server.ack(&popped.messages[0], "completed").await;
    let reply = server.get("/metrics").await;
    assert_eq!((reply.status, &reply.headers["content-type"]), (200, &"application/json".parse().unwrap()));
    let metrics = reply.json();
    assert_eq!((&metrics["requests"]["total"], &metrics["messages"]["total"]), (&json!(4), &json!(3)));
    assert!(metrics["uptime"].as_f64() > Some(0.0) && metrics["memory"]["rss"].as_u64() > Some(1_000_000));
    assert!(metrics["cpu"]["user"].is_u64() && metrics["cpu"]["system"].is_u64(), "{metrics}");
    assert!(metrics["database"]["poolSize"].as_u64() >= metrics["database"]["idleConnections"].as_u64());
    assert!(metrics["database"]["latencyMs"].as_f64() > Some(0.0), "{metrics}");
    let done = &metrics["cluster"];
    assert_eq!((&done["pushed"], &done["popped"], &done["acknowledged"]), (&json!(3), &json!(1), &json!(1)));
    assert_eq!((&done["deadLetters"], &done["databaseErrors"]), (&json!(0), &json!(0)));
    let lanes = &metrics["sidecar"]["operations"];
    for op in ["push", "pop", "ack", "renew_lease"] {
        assert_eq!(lanes[op]["count"], 1, "{op}: {lanes}");
        assert!(lanes[op]["avg_ms"].as_f64() > Some(0.0), "{op}: {lanes}");
        assert!(lanes[op]["avg_wait_ms"].as_f64() >= Some(0.0), "{op}: {lanes}");
    }
    assert_eq!((&lanes["push"]["items"], &lanes["transaction"]["count"]), (&json!(3), &json!(0)));
    let queue = &metrics["sidecar"]["queue"];
    assert!(queue["pending"] == 0 && queue["completed"].as_u64() >= Some(4), "{queue}");
}

#[tokio::test]
async fn what_the_doctor_knows_is_on_the_page() {
    let cluster = cluster_with(&[("shared_buffers", "128MB")]).await;
    let database = Database::create(&cluster.maintenance_url()).await;
    let url = database.url().to_owned();
    let server = Server::start_on(database.into(), &url, &[]).await;
    server.push("q", "p", &numbers(0..3)).await;
    server.pop("/queue/q").await.unwrap();
    let report = server.get("/api/v1/system/doctor?fresh=true").await.json();
    assert_eq!((&report["healthy"], &report["findings"]), (&json!(true), &json!([])), "{report}");
    let healthy = page(&server).await;
    for (name, labels, expected) in [
        ("queen_doctor_findings", &[("severity", "problem")][..], 0.0),
        ("queen_brokers", &[], 1.0),
        ("queen_extents", &[], 1.0),
        ("queen_live_leases", &[], 1.0),
        ("queen_orphaned_leases", &[], 0.0),
    ] {
        assert_eq!(healthy.value(name, labels), Some(expected), "{name}");
    }
    // The age of the oldest running statement; the broker's own statements count.
    let oldest = healthy.value("queen_database_oldest_xmin_age_seconds", &[]);
    assert!(oldest.is_some_and(|seconds| seconds < 60.0), "{oldest:?}");
    for table in ["heads", "consumers", "segments", "deferred"] {
        assert!(healthy.value("queen_database_dead_tuples", &[("table", table)]).is_some(), "{table}");
    }

    let sql = server.database.client().await;
    sql.batch_execute("begin isolation level repeatable read; select 1 from queen.queues").await.unwrap();
    server.sql("select pg_create_physical_replication_slot('left', true)").await;
    server.travel("1 hour").await;
    let report = server.get("/api/v1/system/doctor?fresh=true").await.json();
    assert_eq!(report["healthy"], false, "{report}");
    let sick = page(&server).await;
    assert!(sick.value("queen_database_oldest_xmin_age_seconds", &[]) > Some(3_500.0));
    let slot = [("slot", "left"), ("active", "false")];
    assert!(sick.value("queen_database_replication_slot_bytes", &slot) > Some(0.0));
    let pinned = [("code", "idle_in_transaction"), ("severity", "problem")];
    assert_eq!(sick.value("queen_doctor_finding", &pinned), Some(1.0));
    assert!(sick.value("queen_database_clock_offset_seconds", &[]) < Some(-3_500.0));
}
