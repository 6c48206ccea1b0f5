//! The history routes: on real data, without data, and with bad parameters.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Server, array, eventually, numbers};

const SERIES: [&str; 7] = [
    "analytics/system-metrics",
    "analytics/worker-metrics",
    "analytics/queue-lag",
    "analytics/queue-ops",
    "analytics/queue-parked-replicas",
    "analytics/retention",
    "status/analytics",
];

async fn ask(server: &Server, path: &str) -> Value {
    let reply = server.get(&format!("/api/v1/{path}")).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    reply.json()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn sum(series: &Value, key: &str) -> u64 {
    series.as_array().unwrap().iter().map(|step| step[key].as_u64().unwrap()).sum()
}

/// Pushes three messages, delivers and acknowledges two, and pops once in vain.
async fn busy() -> Server {
    let server = Server::start().await;
    server.push("orders.new", "p", &numbers(0..3)).await;
    let popped = server.pop("/queue/orders.new/partition/p?batch=2").await.unwrap();
    server.ack_all(&popped.messages, &["completed", "completed"]).await;
    assert!(server.pop("/queue/orders.new/partition/none").await.is_none());
    server
}

#[tokio::test]
async fn a_message_shows_at_once_in_every_series() {
    let server = busy().await;
    let workers = ask(&server, "analytics/worker-metrics").await;
    assert_eq!(workers["bucketMinutes"], 1);
    assert_eq!(workers["pointCount"], workers["timeSeries"].as_array().unwrap().len());
    let series = &workers["timeSeries"];
    for (key, expected) in [
        ("pushMessages", 3),
        ("popMessages", 2),
        ("ackMessages", 2),
        ("pushRequests", 1),
        ("popRequests", 2),
        ("ackRequests", 1),
        ("ackSuccess", 2),
        ("ackFailed", 0),
        ("lagCount", 2),
        ("dlqCount", 0),
    ] {
        assert_eq!(sum(series, key), expected, "{key}");
    }
    let summary = &workers["summary"];
    assert_eq!((&summary["totalPushMessages"], &summary["pendingMessages"]), (&json!(3), &json!(1)));
    assert_eq!(workers["queues"][0]["queueName"], "orders.new");
    assert_eq!(workers["queues"][0]["popCount"], 2);
    assert_eq!(workers["workers"].as_array().unwrap().len(), 1);

    let lag = array(ask(&server, "analytics/queue-lag").await);
    assert_eq!(keys(&lag[0]), ["avgLagMs", "bucketTime", "maxLagMs", "popCount", "queueName"]);
    assert!(lag[0]["maxLagMs"].as_f64().unwrap() > 0.0);

    let ops = ask(&server, "analytics/queue-ops?queue=orders.new").await;
    assert_eq!(ops["queues"], json!(["orders.new"]));
    assert_eq!((sum(&ops["series"], "pushMessages"), sum(&ops["series"], "popEmpty")), (3, 1));
    assert_eq!(sum(&ops["series"], "partitionsCreated"), 1);
    assert_eq!(ops["series"][0]["partitionCount"], 1);

    let ingested = ask(&server, "status/analytics?interval=day").await;
    assert_eq!((sum(&ingested["dataPoints"], "messages"), &ingested["interval"]), (3, &json!("day")));
}

#[tokio::test]
async fn filters_choose_queues_and_brokers() {
    let server = busy().await;
    server.push("other", "p", &numbers(0..5)).await;
    let pushed = async |filter: &str| {
        let told = ask(&server, &format!("analytics/worker-metrics?{filter}")).await;
        told["summary"]["totalPushMessages"].as_u64().unwrap()
    };
    for (filter, messages) in [
        ("", 8),
        ("queue=", 8),
        ("queue=orders.new", 3),
        ("namespace=orders", 3),
        ("namespace=orders&task=new", 3),
        ("namespace=orders&task=old", 0),
        ("queue=nothing", 0),
        ("hostname=elsewhere", 0),
    ] {
        assert_eq!(pushed(filter).await, messages, "{filter}");
    }
    let told = ask(&server, "analytics/worker-metrics").await;
    let worker = told["workers"][0]["workerId"].as_str().unwrap();
    assert_eq!(pushed(&format!("workerId={worker}")).await, 8);
    assert_eq!(pushed(&format!("workerId={worker}&queue=other")).await, 5);
}

#[tokio::test]
async fn two_brokers_are_two_replicas_and_add_up() {
    let server = busy().await;
    let twin = server.twin().await;
    twin.push("orders.new", "p", &numbers(0..4)).await;
    for broker in [&twin, &server] {
        ask(broker, "status/analytics").await;
    }
    let told = ask(&twin, "analytics/worker-metrics").await;
    assert_eq!(told["summary"]["totalPushMessages"], 7);
    let replicas = eventually("both have looked at themselves", async || {
        for broker in [&twin, &server] {
            ask(broker, "status/analytics").await;
        }
        let told = ask(&server, "analytics/system-metrics").await;
        (told["replicaCount"] == 2).then(|| array(told["replicas"].clone()))
    })
    .await;
    assert_ne!(replicas[0]["port"], replicas[1]["port"]);
    let metrics = &replicas[0]["timeSeries"][0]["metrics"];
    for path in [
        "/cpu/user_us",
        "/cpu/system_us",
        "/memory/rss_bytes",
        "/memory/virtual_bytes",
        "/database/pool_size",
        "/database/pool_idle",
        "/database/pool_active",
        "/threadpool/db/queue_size",
        "/threadpool/system/queue_size",
        "/registries/response",
        "/shared_state/brokers",
    ] {
        assert_eq!(keys(metrics.pointer(path).expect(path)), ["avg", "last", "max", "min"], "{path}");
    }
    let state = ask(&server, "system/shared-state").await;
    assert_eq!(state["brokers"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&state["enabled"], &state["maintenance_mode"], &state["pop_maintenance_mode"]),
        (&json!(true), &json!(false), &json!(false))
    );
}

#[tokio::test]
async fn an_idle_server_answers_with_all_keys_and_no_steps() {
    let server = Server::start().await;
    let from = "from=2099-01-01T00:00:00Z&to=2099-01-01T00:30:00Z";
    for path in SERIES {
        let told = ask(&server, &format!("{path}?{from}")).await;
        if path.ends_with("queue-lag") {
            assert_eq!(told, json!([]));
            continue;
        }
        let list = ["series", "timeSeries", "replicas", "dataPoints"].iter().find_map(|key| told.get(key));
        assert_eq!(list, Some(&json!([])), "{path}: {told}");
        if !path.starts_with("status") {
            assert_eq!(
                told["timeRange"],
                json!({"from": "2099-01-01T00:00:00.000Z", "to": "2099-01-01T00:30:00.000Z"})
            );
            assert_eq!(told["bucketMinutes"], 1);
        }
    }
    let retention = ask(&server, &format!("analytics/retention?{from}")).await;
    let totals = ["completedRetentionMsgs", "eventCount", "evictionMsgs", "retentionMsgs", "totalMsgs"];
    assert_eq!(keys(&retention["totals"]), totals);
    let buffers = ask(&server, "status/buffers").await;
    assert_eq!(
        (&buffers["pending"], &buffers["oldestAt"], &buffers["failed"], &buffers["dbHealthy"]),
        (&json!(0), &Value::Null, &json!(0), &json!(true))
    );
    assert!(buffers["worker"].is_string());
}

#[tokio::test]
async fn a_broker_of_another_release_may_measure_less() {
    let server = busy().await;
    eventually("it has looked at itself", async || {
        ask(&server, "status/analytics").await;
        (ask(&server, "analytics/system-metrics").await["replicaCount"] == 1).then_some(())
    })
    .await;
    server
        .sql(
            r#"insert into queen.broker_minutes
               select (jsonb_populate_record(b, jsonb_build_object('broker', gen_random_uuid(), 'worker_id', 'older',
                       'samples', 1, 'metrics', '{"cpu.user_us":{"avg":5}}'::jsonb))).*
               from queen.broker_minutes b limit 1"#,
        )
        .await;
    let told = ask(&server, "analytics/system-metrics?workerId=older").await;
    let metric = &told["replicas"][0]["timeSeries"][0]["metrics"]["cpu"]["user_us"];
    assert_eq!(metric, &json!({"avg": 5.0, "min": 5.0, "max": 5.0, "last": 5.0}), "{told}");
}

#[tokio::test]
async fn steps_follow_the_range_and_a_range_has_an_end() {
    let server = busy().await;
    for (from, to, minutes) in [
        ("2099-01-01T00:00:00Z", "2099-01-01T01:00:00Z", 1),
        ("2099-01-01T00:00:00Z", "2099-01-01T06:00:00Z", 5),
        ("2099-01-01T00:00:00", "2099-01-02T00:00:00", 15),
        ("2099-01-01T00:00:00Z", "2099-01-08T02:00:00%2B02:00", 60),
        ("2099-01-01T00:00:00Z", "2099-01-09T00:00:00Z", 360),
        // For times more than two days ago only hours are stored.
        ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", 60),
        ("2026-01-01T00:00:00Z", "2026-01-09T00:00:00Z", 360),
    ] {
        let told = ask(&server, &format!("analytics/queue-ops?from={from}&to={to}")).await;
        assert_eq!(told["bucketMinutes"], minutes, "{from} {to}");
    }
    for path in SERIES {
        ask(&server, &format!("{path}?from=0001-01-01T00:00:00Z&to=9999-01-01T00:00:00Z&interval=minute"))
            .await;
        ask(&server, &format!("{path}?from=-000500-01-01T00:00:00Z")).await;
    }
    let told = ask(&server, "analytics/retention?from=1999-01-01T00:00:00Z&to=2026-01-01T00:00:00Z").await;
    assert_eq!(told["timeRange"]["from"], "2024-11-27T00:00:00.000Z", "400 days");
}

#[tokio::test]
async fn bad_parameters_are_the_askers_fault() {
    let server = Server::start().await;
    for path in SERIES {
        for query in [
            "from=yesterday",
            "to=soon",
            "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
            "from=9000-01-01T00:00:00Z",
            "queue=%00",
        ] {
            let reply = server.get(&format!("/api/v1/{path}?{query}")).await;
            assert!(reply.is_error(400, "bad_request"), "{path}?{query}: {}", reply.text);
        }
    }
    let reply = server.get("/api/v1/status/analytics?interval=year").await;
    assert!(reply.is_error(400, "bad_request"));
    for body in [json!({}), json!([]), json!({"queue": 1}), json!({"queue": "x".repeat(300)})] {
        let reply = server.post("/internal/api/notify", body).await;
        assert!(reply.is_error(400, "bad_request"), "{}", reply.text);
    }
}

#[tokio::test]
async fn parked_pops_are_reported_by_broker() {
    let server = Server::start_with(&["--metrics-sample-interval", "50ms"]).await;
    server.configure("q", json!({})).await;
    let (http, url) =
        (server.http.clone(), format!("{}/api/v1/pop/queue/q?wait=true&timeout=15000", server.url));
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(async move { http.get(url).send().await });
    let told = eventually("the parked pop is told", async || {
        let told = ask(&server, "analytics/queue-parked-replicas?queue=q").await;
        (!array(told["series"].clone()).is_empty()).then_some(told)
    })
    .await;
    assert_eq!(told["series"][0]["parkedCount"], 1);
    assert_eq!(told["replicas"].as_array().unwrap().len(), 1);
    assert_eq!(told["replicas"][0]["workerId"], told["series"][0]["workerId"]);
    assert_eq!(sum(&ask(&server, "analytics/queue-ops?queue=q").await["series"], "parkedCount").min(1), 1);
    assert_eq!(
        server.post("/internal/api/notify", json!({"queue": "q", "partition": "p"})).await.json(),
        json!({"status": "ok"})
    );
}

#[tokio::test]
async fn removed_messages_are_reported() {
    let server = Server::start_with(&["--retention-interval", "50ms", "--eviction-interval", "50ms"]).await;
    server.configure("old", json!({"retentionEnabled": true, "retentionSeconds": 60})).await;
    server.configure("late", json!({"maxWaitTimeSeconds": 60})).await;
    server.push("old", "p", &numbers(0..3)).await;
    server.push("late", "p", &numbers(0..2)).await;
    server.travel("61 seconds").await;
    let totals = eventually("all are removed", async || {
        let totals = ask(&server, "analytics/retention").await["totals"].clone();
        (totals["totalMsgs"] == 5).then_some(totals)
    })
    .await;
    assert_eq!((&totals["retentionMsgs"], &totals["evictionMsgs"]), (&json!(3), &json!(2)));
    assert_eq!((&totals["completedRetentionMsgs"], &totals["eventCount"]), (&json!(0), &json!(2)));
}

#[tokio::test]
async fn postgres_is_described_to_an_ordinary_role_too() {
    let server = busy().await;
    let told = ask(&server, "analytics/postgres-stats").await;
    assert_eq!(
        keys(&told),
        [
            "activeQueries",
            "autovacuumStatus",
            "bufferConfig",
            "bufferUsage",
            "cacheSummary",
            "database",
            "databaseCache",
            "deadTuples",
            "hotUpdates",
            "indexCache",
            "tableCache",
            "tableSizes",
            "timestamp",
        ]
    );
    assert_eq!(told["bufferUsage"], json!([]));
    assert!(told["databaseCache"]["cacheHitRatio"].as_f64().unwrap() > 0.0);
    assert!(array(told["tableCache"].clone()).len() <= 20);
    let name = format!("ordinary_{}", uuid::Uuid::new_v4().simple());
    let sql = server.database.client().await;
    let grants = format!(
        "create role {name}; grant usage on schema queen to {name};
         grant execute on all functions in schema queen to {name}"
    );
    sql.batch_execute(&grants).await.expect("a role");
    let session = server.database.client().await;
    session.batch_execute(&format!("set role {name}")).await.expect("its rights");
    let text: String =
        session.query_one("select queen.postgres_stats()::text", &[]).await.expect("an answer").get(0);
    assert!(serde_json::from_str::<Value>(&text).unwrap()["tableSizes"].is_array());
    drop(session);
    sql.batch_execute(&format!("drop owned by {name}; drop role {name}")).await.expect("it goes again");
}

#[tokio::test]
async fn slow_statements_are_reported() {
    let server = Server::start().await;
    let session = server.database.client().await;
    session.batch_execute("set application_name = 'queen'").await.unwrap();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(async move { session.batch_execute("select pg_sleep(20)").await.is_ok() });
    let told = eventually("it has run for a second", async || {
        let told = ask(&server, "analytics/postgres-stats").await;
        let queries = array(told["activeQueries"].clone());
        queries.into_iter().find(|query| query["query"] == "select pg_sleep(20)")
    })
    .await;
    assert!(told["duration"].as_f64().unwrap() >= 1.0 && told["pid"].is_i64(), "{told}");
    assert!(Duration::from_secs_f64(told["duration"].as_f64().unwrap()) < Duration::from_secs(20));
}

#[tokio::test]
async fn statements_of_other_programs_are_never_shown() {
    let server = Server::start().await;
    let session = server.database.client().await;
    session
        .batch_execute("set application_name = 'payroll'; begin; create table public.mine (n int)")
        .await
        .unwrap();
    let pid: i32 = session.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let mut running = tokio::task::JoinSet::new();
    running.spawn(
        async move { session.batch_execute("select pg_sleep(30) -- the salary of ann").await.is_ok() },
    );
    let told = eventually("it has run for a second", async || {
        let told = ask(&server, "analytics/postgres-stats").await;
        array(told["activeQueries"].clone()).into_iter().find(|query| query["pid"] == pid)
    })
    .await;
    assert_eq!((&told["query"], &told["state"]), (&Value::Null, &json!("active")));
    assert!(told["duration"].as_f64().unwrap() >= 1.0 && told["user"].is_string(), "{told}");
    for path in ["analytics/postgres-stats", "system/doctor", "status"] {
        assert!(!ask(&server, path).await.to_string().contains("salary"), "{path}");
    }
    let sql = "select queen.diagnose(true)::text";
    let facts: String = server.database.client().await.query_one(sql, &[]).await.unwrap().get(0);
    assert!(facts.contains("payroll") && !facts.contains("salary"), "{facts}");
}
