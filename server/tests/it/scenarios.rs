//! The environment of the clients' scenario suite, with this broker.

use std::path::Path;

use queen_testkit::Scenarios;
use serde_json::{Value, json};

/// What a runner of the suite uses.
struct Runner {
    http: reqwest::Client,
    stage: Scenarios,
}

impl Runner {
    async fn new() -> Self {
        let stage = Scenarios::start(Path::new(env!("CARGO_BIN_EXE_queen"))).await.unwrap();
        Self { http: reqwest::Client::new(), stage }
    }

    async fn order(&self, path: &str, body: Value) {
        let request = self.http.post(format!("{}{path}", self.stage.control())).body(body.to_string());
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status(), 200, "{path}: {}", reply.text().await.unwrap());
    }

    async fn record(&self) -> Vec<(u64, Option<u64>)> {
        let url = format!("{}/record?path=/api/v1/push&path=/api/v1/pop", self.stage.control());
        let lines: Vec<Value> = self.http.get(url).send().await.unwrap().json().await.unwrap();
        lines.iter().map(|line| (line["broker"].as_u64().unwrap(), line["status"].as_u64())).collect()
    }

    /// The status, or an error if there was no response.
    async fn push(&self, broker: usize) -> Result<u16, reqwest::Error> {
        let body = json!({"items": [{"queue": "q", "partition": "p", "payload": broker}]}).to_string();
        let request = self.http.post(format!("{}/api/v1/push", self.stage.urls()[broker])).body(body);
        request.send().await.map(|reply| reply.status().as_u16())
    }
}

#[tokio::test]
async fn two_brokers_on_one_database_are_spoiled_killed_and_brought_back() {
    let runner = Runner::new().await;
    let spoil = json!({"broker": 1, "path": "/api/v1/push", "fault": {"status": 503}});
    runner.order("/faults", spoil).await;
    assert_eq!((runner.push(0).await.unwrap(), runner.push(1).await.unwrap()), (201, 503));
    runner.order("/faults", json!({"path": "/api/v1/push", "fault": {"closeAfterAnswer": true}})).await;
    assert!(runner.push(1).await.is_err());
    runner.order("/kill", json!({"broker": 0})).await;
    assert!(runner.push(0).await.unwrap_err().is_connect());
    let popped = format!("{}/api/v1/pop/queue/q?batch=10", runner.stage.urls()[1]);
    let popped: Value = runner.http.get(popped).send().await.unwrap().json().await.unwrap();
    let data: Vec<&Value> =
        popped["messages"].as_array().unwrap().iter().map(|message| &message["data"]).collect();
    assert_eq!(data, [0, 1], "one of each: stored although no answer came");
    let came = [(0, Some(201)), (1, Some(503)), (1, None), (1, Some(200))];
    assert_eq!(runner.record().await, came);
    runner.order("/start", json!({"broker": 0})).await;
    assert_eq!(runner.push(0).await.unwrap(), 201);
    runner.order("/faults", json!({"broker": 0, "fault": {"refuse": true}})).await;
    runner.order("/kill", json!({"broker": 1})).await;
    assert!(runner.push(0).await.unwrap_err().is_connect() && runner.push(1).await.unwrap_err().is_connect());
    runner.order("/reset", json!({})).await;
    assert_eq!(runner.record().await, []);
    assert_eq!((runner.push(0).await.unwrap(), runner.push(1).await.unwrap()), (201, 201));
    runner.stage.stop().await;
}
