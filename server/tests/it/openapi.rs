//! The OpenAPI document matches the server: the same routes, and responses of the described shape.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::support::{EASILY_STRAINED, Reply, Server, Strain, eventually};

/// Routes about history and about brokers. Those that have parameters take a time range.
const HISTORY: [&str; 12] = [
    "/api/v1/analytics/system-metrics",
    "/api/v1/analytics/worker-metrics",
    "/api/v1/analytics/queue-lag",
    "/api/v1/analytics/queue-ops",
    "/api/v1/analytics/queue-parked-replicas",
    "/api/v1/analytics/retention",
    "/api/v1/analytics/postgres-stats",
    "/api/v1/status/analytics",
    "/api/v1/status/buffers",
    "/api/v1/system/shared-state",
    "/internal/api/shared-state/stats",
    "/internal/api/inter-instance/stats",
];

/// A document, and which of its operations and statuses were seen in real responses.
struct Described {
    document: Value,
    seen: BTreeSet<(String, String, String)>,
}

#[tokio::test]
async fn every_route_is_described_and_nothing_else() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.json();
    let described = document["paths"].as_object().unwrap();
    assert_eq!(described.len(), queen_server::routes::paths().len());
    for path in described.keys() {
        // No route has this method, so nothing is done, and the refusal names the methods that exist.
        let reply = server.send(Method::PATCH, &path.replace(['{', '}'], ""), None).await;
        assert_eq!(reply.status, 405, "{path}");
        let allowed: BTreeSet<String> =
            reply.headers["allow"].to_str().unwrap().to_lowercase().split(',').map(str::to_owned).collect();
        let methods: BTreeSet<String> = described[path].as_object().unwrap().keys().cloned().collect();
        assert_eq!(&allowed - &BTreeSet::from(["head".to_owned()]), methods, "{path}");
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a request of every kind, one after the other")]
async fn answers_have_the_shape_described() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.json();
    let mut described = Described { document, seen: BTreeSet::new() };
    let d = &mut described;

    d.post(&server, "configure", json!({"queue": "q", "options": {"leaseTime": 5}})).await;
    d.post(
        &server,
        "push",
        json!({"items": [
            {"queue": "q", "partition": "p", "payload": 1, "transactionId": "a", "traceId": uuid::Uuid::nil(),
             "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1"},
            {"queue": "q", "partition": "p", "payload": 2, "transactionId": "a"},
            {"queue": "q", "partition": "p", "payload": [3]},
            {"queue": "", "payload": null},
        ]}),
    )
    .await;
    for template in ["/api/v1/pop/queue/{queue}", "/api/v1/pop/queue/{queue}/partition/{partition}"] {
        let path = template.replace("{queue}", "q").replace("{partition}", "p");
        d.get(&server, template, &path).await;
        d.get(&server, template, &path).await;
        d.get(&server, template, &format!("{path}?consumerGroup={}", path.len())).await;
    }
    let popped = d.get(&server, "/api/v1/pop", "/api/v1/pop?namespace=q&consumerGroup=g&partitions=3").await;
    d.get(&server, "/api/v1/pop", "/api/v1/pop?namespace=nothing").await;
    for _ in 0..2 {
        d.get(&server, "/api/v1/pop/queue/", "/api/v1/pop/queue/").await;
    }
    let wait = format!("/api/v1/pop/waits/{}", uuid::Uuid::nil());
    d.check("delete", "/api/v1/pop/waits/{wait}", &server.delete(&wait).await);
    let message = &popped["messages"][0];
    let lease = popped["leaseId"].as_str().unwrap();
    let ack = |status: &str| {
        json!({
            "transactionId": "a", "partitionId": message["partitionId"], "leaseId": lease, "status": status,
            "consumerGroup": "g",
        })
    };
    for lease in [lease, "gone"] {
        let path = format!("/api/v1/lease/{lease}/extend");
        let reply = server.post(&path, json!({})).await;
        d.check("post", "/api/v1/lease/{lease}/extend", &reply);
    }
    let with_lease = |lease: &str| {
        json!({
            "operations": [
                {"type": "push", "queue": "q", "partition": "p", "transactionId": "a"},
                {"type": "push", "items": [{"queue": "q2", "payload": {}}]},
                {"type": "ack", "transactionId": "a", "partitionId": message["partitionId"], "consumerGroup": "g"},
            ],
            "requiredLeases": [lease],
        })
    };
    for (lease, success) in [("gone", false), (lease, true)] {
        let outcome = d.post(&server, "transaction", with_lease(lease)).await;
        assert_eq!(outcome["success"], success, "{outcome}");
    }
    d.post(&server, "ack", ack("completed")).await;
    d.post(&server, "ack", ack("failed")).await;
    let other = d.get(&server, "/api/v1/pop", "/api/v1/pop?namespace=q&consumerGroup=h").await;
    let dead = json!({
        "transactionId": "a", "partitionId": other["partitionId"], "status": "dlq", "error": {"why": 1},
    });
    d.post(&server, "ack/batch", json!({"consumerGroup": "h", "acknowledgments": [dead, ack("completed")]}))
        .await;
    let letters = d.get(&server, "/api/v1/dlq", "/api/v1/dlq").await;
    assert_eq!(letters["total"], 1);
    let shapes = d.get(&server, "/api/v1/dlq/shapes", "/api/v1/dlq/shapes").await;
    assert_eq!(shapes["shapes"][0]["shape"], "{why:#}");

    let life = "/api/v1/messages/{partition}/{transaction}/life";
    let path = |transaction: &str| {
        format!("/api/v1/messages/{}/{transaction}/life", message["partitionId"].as_str().unwrap())
    };
    let told = d.get(&server, life, &path("a")).await;
    assert!(told["events"].as_array().unwrap().iter().any(|event| event["message"].is_object()), "{told}");
    assert!(told["groups"].as_array().unwrap().iter().any(|group| group["deadLetter"].is_object()), "{told}");
    d.get(&server, life, &path("nobody")).await;
    d.get(&server, life, "/api/v1/messages/nonsense/a/life").await;
    looked_at(d, &server, &letters["messages"][0]).await;

    for path in HISTORY {
        d.get(&server, path, path).await;
        if !path.ends_with("buffers") && !path.ends_with("stats") && !path.ends_with("state") {
            d.check("get", path, &server.get(&format!("{path}?from=yesterday")).await);
        }
    }
    for body in [json!({"queue": "q"}), json!({})] {
        d.check("post", "/internal/api/notify", &server.post("/internal/api/notify", body).await);
    }
    let groups = "/api/v1/consumer-groups/{group}";
    let seek = format!("{groups}/queues/{{queue}}/seek");
    for to in [
        json!({"toEnd": true, "dryRun": true}),
        json!({"toEnd": true}),
        json!({"timestamp": "2026-01-01T00:00:00Z"}),
        json!({}),
    ] {
        let reply = server.post("/api/v1/consumer-groups/g/queues/q/seek", to).await;
        d.check("post", &seek, &reply);
    }
    admin(d, &server).await;
    let since = json!({"subscriptionTimestamp": "2026-01-01T00:00:00Z"});
    let reply = server.post("/api/v1/consumer-groups/g/subscription", since).await;
    d.check("post", &format!("{groups}/subscription"), &reply);
    let reply = server.delete("/api/v1/consumer-groups/g/queues/q").await;
    d.check("delete", &format!("{groups}/queues/{{queue}}"), &reply);
    d.check("delete", groups, &server.delete("/api/v1/consumer-groups/g").await);
    d.check("delete", "/api/v1/resources/queues/{queue}", &server.delete("/api/v1/resources/queues/q").await);
    d.check("delete", "/api/v1/resources/queues/", &server.delete("/api/v1/resources/queues/").await);
    for path in ["/health", "/health/live", "/health/ready", "/openapi.json", "/metrics"] {
        d.get(&server, path, path).await;
    }
    let doctor = "/api/v1/system/doctor";
    for path in [doctor, "/api/v1/system/doctor?fresh=true"] {
        d.get(&server, doctor, path).await;
    }
    d.check("get", "/metrics/prometheus", &server.get("/metrics/prometheus").await);
    for path in ["configure", "push", "ack", "ack/batch", "transaction"] {
        d.post(&server, path, json!([])).await;
    }
    deferred_operations(d).await;
    deferred_acknowledgements(d).await;
    described.everything_good_was_seen();
}

/// Requires a queue `q` with messages, and a group `g` that reads it.
async fn admin(d: &mut Described, server: &Server) {
    for path in [
        "/api/v1/resources/queues",
        "/api/v1/resources/partitions",
        "/api/v1/resources/namespaces",
        "/api/v1/resources/tasks",
        "/api/v1/resources/overview",
        "/api/v1/consumer-groups",
    ] {
        d.get(server, path, path).await;
    }
    for path in ["/api/v1/status", "/api/v1/status/queues"] {
        d.get(server, path, path).await;
    }
    d.get(server, "/api/v1/status/queues/{queue}", "/api/v1/status/queues/q").await;
    let queue = "/api/v1/resources/queues/{queue}";
    d.get(server, queue, "/api/v1/resources/queues/q").await;
    d.get(server, queue, "/api/v1/resources/queues/none").await;
    d.get(server, &format!("{queue}/depth"), "/api/v1/resources/queues/q/depth?group=g").await;
    let lagging = "/api/v1/consumer-groups/lagging";
    d.get(server, lagging, &format!("{lagging}?minLagSeconds=0")).await;
    let group = "/api/v1/consumer-groups/{group}";
    d.get(server, group, "/api/v1/consumer-groups/g").await;
    d.get(server, group, "/api/v1/consumer-groups/g?queue=q").await;
    for body in [json!({"dryRun": true}), json!({})] {
        let reply = server.post("/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body).await;
        d.check("post", &format!("{group}/queues/{{queue}}/partitions/{{partition}}/seek"), &reply);
    }
    for path in ["/api/v1/whoami", "/api/v1/system/settings"] {
        d.get(server, path, path).await;
    }
    let reply = server.delete("/api/v1/queues/q/clear").await;
    d.check("delete", "/api/v1/queues/{queue}/clear", &reply);
    d.check("post", "/api/v1/stats/refresh", &server.post("/api/v1/stats/refresh", json!({})).await);
}

/// Everything that can be done with single messages and with dead letters.
async fn looked_at(d: &mut Described, server: &Server, letter: &Value) {
    let place = |message: &Value| {
        format!("{}/{}", message["partitionId"].as_str().unwrap(), message["transactionId"].as_str().unwrap())
    };
    let list = d.get(server, "/api/v1/messages", "/api/v1/messages").await;
    d.get(server, "/api/v1/status/queues/{queue}/messages", "/api/v1/status/queues/q/messages").await;
    let alive =
        list["messages"].as_array().unwrap().iter().find(|message| message["status"] == "pending").unwrap();
    let about = json!({"transactionId": alive["transactionId"], "partitionId": alive["partitionId"],
                       "traceNames": "n", "data": {"step": 1}});
    d.post(server, "traces", about).await;
    d.get(server, "/api/v1/traces/names", "/api/v1/traces/names").await;
    d.get(server, "/api/v1/traces/by-name/{name}", "/api/v1/traces/by-name/n").await;
    let traces = "/api/v1/traces/{partition}/{transaction}";
    d.get(server, traces, &format!("/api/v1/traces/{}", place(alive))).await;
    let (one, path) =
        ("/api/v1/messages/{partition}/{transaction}", format!("/api/v1/messages/{}", place(alive)));
    d.get(server, one, &path).await;
    for _ in 0..2 {
        d.check("post", &format!("{one}/dlq"), &server.post(&format!("{path}/dlq"), json!({})).await);
    }
    d.get(server, one, &path).await;
    d.check("post", &format!("{one}/retry"), &server.post(&format!("{path}/retry"), json!({})).await);
    for _ in 0..2 {
        d.check("delete", one, &server.delete(&path).await);
    }
    d.get(server, one, &path).await;
    d.post(server, "dlq/redrive", json!({"queue": "q", "dryRun": true})).await;
    let redrive = d.post(server, "dlq/redrive", json!({"queue": letter["queue"], "perSecond": 1})).await;
    d.post(server, "dlq/redrive", json!({"queue": "nothing"})).await;
    d.get(server, "/api/v1/dlq/redrives", "/api/v1/dlq/redrives").await;
    let path = format!("/api/v1/dlq/redrives/{}", redrive["id"].as_str().unwrap());
    d.get(server, "/api/v1/dlq/redrives/{redrive}", &path).await;
    d.check("delete", "/api/v1/dlq/redrives/{redrive}", &server.delete(&path).await);
    for query in ["queue=q", "queue=nothing", ""] {
        d.check("delete", "/api/v1/dlq", &server.delete(&format!("/api/v1/dlq?{query}")).await);
    }
}

async fn deferred_acknowledgements(d: &mut Described) {
    let server = Server::start_with(&EASILY_STRAINED).await;
    let (strain, reply, message) = Strain::on_acks(&server).await;
    d.check("post", "/api/v1/ack", &reply);
    let again = json!({"transactionId": message["transactionId"], "partitionId": message["partitionId"]});
    let batch = d.post(&server, "ack/batch", json!({"acknowledgments": [again]})).await;
    assert!(batch[0]["operationId"].is_string(), "{batch}");
    drop(strain);
}

async fn deferred_operations(d: &mut Described) {
    let spool = tempfile::tempdir().unwrap();
    let mut flags = EASILY_STRAINED.to_vec();
    flags.extend(["--file-buffer-dir", spool.path().to_str().unwrap()]);
    let server = Server::start_with(&flags).await;
    let strain = Strain::on(&server.database, &[&server.url]).await;
    let item = json!({"items": [{"queue": "q", "partition": "p", "payload": 1}]});
    let pushed = d.post(&server, "push", item.clone()).await;
    let object = server.post("/api/v1/push?async=true", item.clone()).await;
    d.check("post", "/api/v1/push", &object);
    let failed = d.post(&server, "push", item.clone()).await[0]["operationId"].as_str().unwrap().to_owned();
    let fail =
        format!("select queen.close_deferred(array['{failed}']::uuid[], 'failed', 'why', array[null::text])");
    server.sql(&fail).await;
    d.get(&server, "/api/v1/operations", "/api/v1/operations").await;
    d.get(&server, "/api/v1/operations/stats", "/api/v1/operations/stats").await;
    let one = "/api/v1/operations/{operation}";
    d.get(&server, one, &format!("/api/v1/operations/{failed}")).await;
    let retried = server.post(&format!("/api/v1/operations/{failed}/retry"), json!({})).await;
    d.check("post", "/api/v1/operations/{operation}/retry", &retried);
    d.check("delete", one, &server.delete(&format!("/api/v1/operations/{failed}")).await);
    drop(strain);
    let done = format!("/api/v1/operations/{}", pushed[0]["operationId"].as_str().unwrap());
    eventually("it is done", async || {
        (server.get(&done).await.json()["status"] == "completed").then_some(())
    })
    .await;
    d.get(&server, one, &done).await;
    d.check("delete", one, &server.delete(&done).await);
    for path in ["/api/v1/system/maintenance", "/api/v1/system/maintenance/pop"] {
        d.get(&server, path, path).await;
        for switch in [json!({"enabled": true}), json!({"enabled": "yes"}), json!({"enabled": false})] {
            d.check("post", path, &server.post(path, switch).await);
        }
    }
}

#[tokio::test]
async fn examples_have_the_shape_they_illustrate() {
    let document: Value = serde_json::from_slice(&queen_server::openapi::DOCUMENT).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let with_examples = schemas.values().filter(|schema| schema.get("example").is_some());
    assert!(with_examples.clone().count() > 15);
    for schema in with_examples {
        fits(&document, schema, &schema["example"]).unwrap();
    }
}

impl Described {
    async fn get(&mut self, server: &Server, template: &str, path: &str) -> Value {
        let reply = server.get(path).await;
        self.check("get", template, &reply);
        if reply.status == 204 { Value::Null } else { reply.json() }
    }

    /// The path is what follows `/api/v1/`.
    async fn post(&mut self, server: &Server, path: &str, body: Value) -> Value {
        let path = format!("/api/v1/{path}");
        let reply = server.post(&path, body).await;
        self.check("post", &path, &reply);
        reply.json()
    }

    fn check(&mut self, method: &str, template: &str, reply: &Reply) {
        let status = reply.status.to_string();
        let response = &self.document["paths"][template][method]["responses"][&status];
        assert!(response.is_object(), "{method} {template} answered {status}: {}", reply.text);
        match response["content"]["application/json"].get("schema") {
            Some(schema) => fits(&self.document, schema, &reply.json()).unwrap(),
            None => {
                let described = response["content"].get("text/plain").is_some();
                assert_eq!(!reply.text.is_empty(), described, "{method} {template}");
            }
        }
        self.seen.insert((method.to_owned(), template.to_owned(), status));
    }

    fn everything_good_was_seen(&self) {
        for (template, item) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let statuses = operation["responses"].as_object().unwrap().keys();
                for status in statuses.filter(|status| status.starts_with('2')) {
                    let key = (method.clone(), template.clone(), status.clone());
                    assert!(self.seen.contains(&key), "no test has seen {key:?}");
                }
            }
        }
    }
}

/// The parts of JSON Schema that the document uses. It is stricter: an undescribed field is an error.
fn fits(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let (properties, required) = fields(document, schema);
    if !properties.is_empty() {
        let object = value.as_object().ok_or_else(|| format!("no object: {value}"))?;
        let undescribed = object.keys().find(|name| !properties.contains_key(*name));
        let missing = required.iter().find(|name| !object.contains_key(*name));
        if let Some(name) = undescribed.or(missing) {
            return Err(format!("{name}: undescribed or missing in {value}"));
        }
        return object.iter().try_for_each(|(name, value)| fits(document, &properties[name], value));
    }
    if let Some(target) = schema["$ref"].as_str() {
        return fits(document, resolve(document, target), value);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let failed: Vec<String> =
            choices.iter().filter_map(|choice| fits(document, choice, value).err()).collect();
        return if failed.len() < choices.len() { Ok(()) } else { Err(failed.join("; ")) };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    let words = schema["enum"].as_array();
    let format = |text: &str| match schema["format"].as_str() {
        Some("uuid") => uuid::Uuid::try_parse(text).is_ok(),
        Some("date-time") => queen_protocol::parse_time("", text).is_ok() && text.ends_with('Z'),
        _ => true,
    };
    let good = (schema["type"].is_null() || kinds.contains(&json!(kind)))
        && words.is_none_or(|words| words.contains(value))
        && value.as_str().is_none_or(format);
    match value.as_array() {
        _ if !good => Err(format!("{value} is no {schema}")),
        Some(items) if !schema["items"].is_null() => {
            items.iter().try_for_each(|item| fits(document, &schema["items"], item))
        }
        _ => Ok(()),
    }
}

/// The fields of an object, including those of the schemas that it is composed of.
fn fields(document: &Value, schema: &Value) -> (Map<String, Value>, Vec<String>) {
    let mut properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let required = schema["required"].as_array().into_iter().flatten();
    let mut required: Vec<String> = required.filter_map(Value::as_str).map(str::to_owned).collect();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let part = part["$ref"].as_str().map_or(part, |target| resolve(document, target));
        let (more, needed) = fields(document, part);
        properties.extend(more);
        required.extend(needed);
    }
    (properties, required)
}

fn resolve<'a>(document: &'a Value, target: &str) -> &'a Value {
    document.pointer(target.trim_start_matches('#')).expect("a schema that is referred to exists")
}
